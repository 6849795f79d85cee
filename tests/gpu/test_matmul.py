"""matmul does what torch.mm does, and refuses what it does not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import hopper_gemm
from hopper_gemm import GemmConfig
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem
from hopper_gemm.serve import kernels as serving
from hopper_gemm.serve import matmul as room
from hopper_gemm.tune.measure.correctness import check
from hopper_gemm.tune.parameters import config_of

pytestmark = pytest.mark.gpu


SIZES = [(4096, 4096, 4096), (1, 8, 8), (300, 520, 1000)]
SHAPES = [(16, 6144, 4096), (512, 512, 65536), (2304, 2304, 4096), (1234, 4096, 4096), (65536, 256, 1024)]
"""Of which the model picks few rows, divided k, a ragged edge and a short k."""
COPIED = [(13, 21, 5), (8191, 1023, 513), (300, 520, 1001), (77, 1000, 4096)]
"""That TMA cannot reach in one layout or another."""
CHAIN = GemmProblem(512, 1024, 1024)
EARLY: list[dict[str, Any]] = [
    {},
    {"stream_k": True},
    {"split_k": 2},
    {"loads": "cp_async"},
    {"prefetch": 16},
    {"prefetch": 16, "ctas_per_sm": 2},
    {"split_k": 3, "reduction": "workspace", "prefetch": 4, "cluster_m": 2},
    {"schedule": "multistage"},
]
"""Ways to run a chain of dependent launches."""


def launched(changes: dict[str, Any], early: bool) -> GemmConfig:
    """A way to run the chain, with programmatic dependent launch or without it and what needs it."""
    able = {name: value for name, value in changes.items() if early or name != "prefetch"}
    return config_of({"tile_m": 64, "tile_n": 64, "pdl": early, **able})


def kernels() -> list[KernelId]:
    """Those of the chains, and what is picked for the problems of most calls."""
    chains = [KernelId.of(launched(changes, early), CHAIN) for changes in EARLY for early in (False, True)]
    by_layout = [GemmProblem(*sizes, "bf16", layouts) for sizes in (*SHAPES, *COPIED) for layouts in LAYOUTS]
    by_type = [GemmProblem(*sizes, dtype) for sizes in (*SIZES, *SHAPES, *COPIED) for dtype in DTYPES]
    return chains + [KernelId.of(serving.default_config(problem), problem) for problem in by_layout + by_type]


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
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_product_is_right_for_any_size(sizes, dtype):
    a, b = operands(*sizes, dtype)
    assert right(hopper_gemm.matmul(a, b), a, b)


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("by_rows", ["", "a", "b", "ab"])
def test_whatever_the_model_picks_is_right_in_every_layout(sizes, by_rows):
    a, b = operands(*sizes)
    a = a.t().contiguous().t() if "a" in by_rows else a
    b = b.contiguous() if "b" in by_rows else b
    assert right(hopper_gemm.matmul(a, b), a, b)


@pytest.mark.parametrize("sizes", COPIED, ids=str)
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


@pytest.mark.parametrize("changes", EARLY, ids=str)
def test_a_launch_that_starts_early_waits_for_what_it_reads_and_overwrites(changes):
    """Each product is the next one's operand, over two buffers in turn: a wrong bit would spread."""
    x, w = operands(512, 1024, 1024)
    w = w / 32

    def chain(early):
        config = launched(changes, early)
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


@pytest.fixture
def nothing_known(monkeypatch):
    """As in a new process: what was loaded is forgotten, not what was compiled."""
    monkeypatch.setattr(room, "_known", {})
    monkeypatch.setattr(serving, "_loaded", {})


@pytest.mark.parametrize("config", [None, GemmConfig(split_k=2, reduction="workspace")], ids=["picked", "workspace"])
def test_a_first_call_may_be_captured_and_the_graph_replays_on_new_operands(nothing_known, config):
    """Compiled before, as the docstring of CUDA graphs wants of warm-ups, but not loaded."""
    a, b = operands(776, 1032, 2048)
    expected = hopper_gemm.matmul(a, b, config=config)
    room._known.clear()
    serving._loaded.clear()
    out = torch.zeros_like(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hopper_gemm.matmul(a, b, out=out, config=config)
    for _ in range(2):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, a, b)


def test_first_calls_of_many_threads_at_once_are_right(nothing_known):
    """On streams of their own; without the lock the compiler took the process along."""
    sizes = [(8 * (1 + number % 5), 264, 520) for number in range(16)]
    pairs = [operands(*size) for size in sizes]
    torch.cuda.synchronize()
    start = threading.Barrier(len(pairs))

    def multiply(pair):
        start.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            product = hopper_gemm.matmul(*pair)
            torch.cuda.current_stream().synchronize()
        return product

    with ThreadPoolExecutor(len(pairs)) as together:
        products = list(together.map(multiply, pairs))
    assert all(right(product, *pair) for product, pair in zip(products, pairs, strict=True))


def test_chained_calls_are_right_and_may_run_another_kernel():
    x, w = operands(512, 1024, 1024)
    w = w / 32
    with hopper_gemm.chained():
        chained = hopper_gemm.matmul(hopper_gemm.matmul(x, w), w)
    apart = hopper_gemm.matmul(hopper_gemm.matmul(x, w), w)
    torch.testing.assert_close(chained, apart, atol=0.05, rtol=0.02)


def test_negated_and_expanded_operands_are_read_as_they_are():
    a, b = operands(128, 264, 520)
    product = hopper_gemm.matmul(a, b)
    assert torch.equal(hopper_gemm.matmul(torch._neg_view(a), b), -product)
    assert torch.equal(hopper_gemm.matmul(a, torch._neg_view(b)), -product)
    row = a[:1].expand(128, 520)
    assert right(hopper_gemm.matmul(row, b), row, b)
    vector = a[0].expand(1, 520)
    assert right(hopper_gemm.matmul(vector, b), vector, b)
    negated = torch._neg_view(torch.zeros_like(product))
    assert torch.equal(hopper_gemm.matmul(a, b, out=negated), product)


@pytest.mark.parametrize("sizes", [(0, 64, 64), (64, 0, 64), (64, 64, 0)], ids=str)
def test_a_size_of_zero_is_as_of_torch(sizes):
    m, n, k = sizes
    a, b = torch.ones(m, k, device="cuda").bfloat16(), torch.ones(k, n, device="cuda").bfloat16()
    assert torch.equal(hopper_gemm.matmul(a, b), torch.mm(a, b))
    out = torch.full((m, n), 7.0, device="cuda").bfloat16()
    assert torch.equal(hopper_gemm.matmul(a, b, out=out), torch.mm(a, b))


def test_an_output_that_shares_memory_is_refused_and_blocks_of_one_matrix_are_not():
    whole = torch.randn(256, 512, device="cuda").bfloat16()
    b = operands(8, 256, 256)[1]
    a = whole[:, :256]
    with pytest.raises(ValueError, match="out must not share memory"):
        hopper_gemm.matmul(a, b, out=whole[:, 128:384])
    assert right(hopper_gemm.matmul(a, b, out=whole[:, 256:]), a, b)
    with pytest.raises(ValueError, match="a place in memory for each element"):
        hopper_gemm.matmul(a, b, out=torch.empty(1, 256, device="cuda").bfloat16().expand(256, 256))
