"""The drop-in does what torch.mm does."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm import GemmConfig
from hopper_gemm.measure.correctness import check

pytestmark = pytest.mark.gpu


def operands(m, n, k, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda", generator=generator).to(dtype)
    b = torch.randn(n, k, device="cuda", generator=generator).to(dtype)
    return a, b.t()


def right(out, a, b):
    return check(out, a.float() @ b.float(), a.shape[1]).reason is None


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (1, 8, 8), (300, 520, 1000)], ids=str)
def test_the_product_is_right_for_any_size(sizes, dtype):
    a, b = operands(*sizes, dtype)
    assert right(hopper_gemm.matmul(a, b), a, b)


SHAPES = [(16, 6144, 4096), (512, 512, 65536), (2304, 2304, 4096), (1234, 4096, 4096), (65536, 256, 1024)]
"""Of which the model picks few rows, divided k, a ragged edge and a short k."""


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("by_rows", ["", "a", "b", "ab"])
def test_whatever_the_model_picks_is_right_in_every_layout(sizes, by_rows):
    a, b = operands(*sizes)
    a = a.t().contiguous().t() if "a" in by_rows else a
    b = b.contiguous() if "b" in by_rows else b
    assert right(hopper_gemm.matmul(a, b), a, b)


@pytest.mark.parametrize("sizes", [(13, 21, 5), (8191, 1023, 513), (300, 520, 1001), (77, 1000, 4096)], ids=str)
@pytest.mark.parametrize("by_rows", ["", "a", "b", "ab"])
def test_sizes_that_tma_cannot_reach_are_right_too(sizes, by_rows):
    a, b = operands(*sizes)
    a = a.t().contiguous().t() if "a" in by_rows else a
    b = b.contiguous() if "b" in by_rows else b
    assert right(hopper_gemm.matmul(a, b), a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [*SHAPES, (1, 8, 8), (13, 21, 5), (300, 520, 1001)], ids=str)
def test_an_fp32_output_is_what_was_accumulated(sizes, dtype):
    a, b = operands(*sizes, dtype)
    product = hopper_gemm.matmul(a, b, out_dtype=torch.float32)
    assert product.dtype == torch.float32
    assert right(product, a, b)
    out = torch.full_like(product, float("nan"))
    assert hopper_gemm.matmul(a, b, out=out) is out
    assert torch.equal(out, product)


def test_an_fp32_output_agrees_with_torch():
    a, b = operands(2048, 4096, 4096)
    theirs = torch.mm(a, b, out_dtype=torch.float32)
    assert right(theirs, a, b), "the bound holds for cuBLAS's accumulation as well"
    torch.testing.assert_close(hopper_gemm.matmul(a, b, out_dtype=torch.float32), theirs, atol=0.01, rtol=1e-4)


def test_an_fp32_output_may_have_any_pitch_and_offset():
    a, b = operands(300, 264, 1000)
    for first, pitch in ((0, 268), (4, 272), (1, 267)):
        whole = torch.zeros(300, pitch, device="cuda")
        out = whole[:, first : first + 264]
        hopper_gemm.matmul(a, b, out=out)
        assert right(out, a, b)
        out.zero_()
        assert not whole.any()


def test_out_is_written_and_returned():
    a, b = operands(256, 256, 256)
    out = torch.full((256, 256), float("nan"), device="cuda", dtype=a.dtype)
    assert hopper_gemm.matmul(a, b, out=out) is out
    assert right(out, a, b)


def test_a_config_of_the_callers_choice_is_used():
    a, b = operands(512, 512, 512)
    assert right(hopper_gemm.matmul(a, b, config=GemmConfig(tile_m=64, tile_n=64, cluster_m=2)), a, b)


def test_row_pitches_are_read_in_place():
    wide, b = operands(300, 264, 2048)
    a = wide[:, :1000]
    out = torch.zeros(300, 512, device="cuda", dtype=a.dtype)
    hopper_gemm.matmul(a, b[:1000], out=out[:, :264])
    assert right(out[:, :264], a, b[:1000])
    assert not out[:, 264:].any()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stream_k": True},
        {"split_k": 2},
        {"loads": "cp_async"},
        {"prefetch": 16},
        {"prefetch": 16, "ctas_per_sm": 2},
        {"split_k": 3, "reduction": "workspace", "prefetch": 4, "cluster_m": 2},
        {"schedule": "multistage", "prefetch": 4},
    ],
    ids=str,
)
def test_a_launch_that_starts_early_waits_for_what_it_reads_and_overwrites(changes):
    """Each product is the next one's operand, over two buffers in turn: a wrong bit would spread."""
    x, w = operands(512, 1024, 1024)
    w = w / 32

    def chain(early):
        ahead = {name: value for name, value in changes.items() if early or name != "prefetch"}
        config = GemmConfig(tile_m=64, tile_n=64, pdl=early, **ahead)
        given, buffers = x, (torch.empty(512, 1024, device="cuda", dtype=x.dtype), torch.empty_like(x))
        for step in range(100):
            given = hopper_gemm.matmul(given, w, out=buffers[step % 2], config=config)
        return given.clone()

    assert torch.equal(chain(True), chain(False))


def test_it_runs_on_the_current_stream_and_in_a_graph():
    a, b = operands(1024, 1024, 1024)
    out = torch.zeros(1024, 1024, device="cuda", dtype=a.dtype)
    hopper_gemm.matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hopper_gemm.matmul(a, b, out=out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, a, b)
