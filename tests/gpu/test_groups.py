"""Groups on a GPU by the public functions: products right whatever the routing, and rows that do not know each other;
the kernels are in tests/gpu/test_kernel.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

import hopper_gemm
from hopper_gemm.tune.measure.correctness import rel_err_max, same_bits
from tests.serve.layers import excess
from tests.serve.test_ops import near

pytestmark = pytest.mark.gpu

ROUTINGS = {
    "uneven": [1, 300, 64, 7, 129, 500, 0, 22],
    "empty": [0, 0, 511, 0, 0, 512, 0, 0],
    "one hot": [0, 0, 0, 1023, 0, 0, 0, 0],
    "all empty": [0] * 8,
    "single rows": [1] * 8,
    "aligned": [128] * 8,
    "of 70 groups": [5, 0, 63] * 23 + [17],
    "of 130 groups": [0] * 40 + [3] * 50 + [200, 0] + [1] * 38,
}
"""Rows of each group."""

N, K = 392, 328
"""No multiple of a tile."""

FP8_N, FP8_K = 400, 336
"""Multiples of 16 with blocks of 16 behind whole ones."""


def ends_of(rows: list[int]) -> torch.Tensor:
    """Where groups of so many rows end."""
    return torch.tensor(rows, device="cuda").cumsum(0, dtype=torch.int32)


def operands(m: int, groups: int, k: int = K, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    """A (m, k), and B (groups, n, k), contiguous along n."""
    generator = torch.Generator("cuda").manual_seed(m + groups)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

    return normal(m, k), normal(groups, k, n).mT


def exact(a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """The product in fp64, of B (groups, n, k); NaN behind the last end."""
    out, start = a.new_full((a.shape[0], b.shape[1]), float("nan"), dtype=torch.float64), 0
    for group, end in enumerate(ends):
        end = max(start, min(end, a.shape[0]))
        out[start:end] = a[start:end].double() @ b[group].double().t()
        start = end
    return out


def right(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ends: list[int], **finished: Any) -> bool:
    """Return True if rows of groups are right and the others, which were NaN, were not touched."""
    wanted = followed(exact(a, b, ends), ends, **finished)
    outside = wanted.isnan()
    return bool(result[outside].isnan().all()) and excess(result.nan_to_num(), wanted.nan_to_num()) <= 1


def followed(
    product: torch.Tensor, ends: list[int], bias: torch.Tensor | None = None, activation: str | None = None
) -> torch.Tensor:
    """What follows a product of groups of rows, by torch."""
    start = 0
    for group, end in enumerate(ends if bias is not None else ()):
        end = max(start, min(end, len(product)))
        product[start:end] += bias[group]
        start = end
    if activation == "swiglu":
        gate, up = product.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    return getattr(torch.nn.functional, activation)(product) if activation else product


def fp8_operands(m: int, groups: int, scales: str) -> tuple[torch.Tensor, ...]:
    """A (m, k) and B (groups, n, k) of FP8, their scales as the kernel takes them, and both dequantised."""
    generator = torch.Generator("cuda").manual_seed(m + groups)
    a, b = (
        torch.randn(*shape, FP8_K, device="cuda", generator=generator).to(torch.float8_e4m3fn)
        for shape in ((m,), (groups, FP8_N))
    )
    deep, wide = -(-FP8_K // 128), -(-FP8_N // 128)
    shapes = ((m,), (groups, FP8_N)) if scales == "row" else ((deep, m), (groups, wide, deep))
    down, across = (torch.rand(*shape, device="cuda", generator=generator) + 0.5 for shape in shapes)
    if scales == "row":
        return a, b, down, across, a.double() * down[:, None], b.double() * across[..., None]
    depth, rows = (torch.arange(size, device="cuda") // 128 for size in (FP8_K, FP8_N))
    return a, b, down, across, a.double() * down.t()[:, depth], b.double() * across[:, rows[:, None], depth]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_grouped_mm_is_the_product_of_each_group(routing, dtype):
    rows = ROUTINGS[routing]
    a, b = (tensor.to(dtype) for tensor in operands(sum(rows) or 5, len(rows)))
    ends = ends_of(rows)
    with hopper_gemm.fallback("never"):
        out = hopper_gemm.grouped_mm(a, b.mT, offs=ends)
        wide = hopper_gemm.grouped_mm(a, b.mT, offs=ends, out_dtype=torch.float32)
    used, wanted = sum(rows), exact(a, b, ends.tolist())
    assert near(out[:used], wanted[:used], dtype)
    assert wide.dtype == torch.float32
    assert near(wide[:used], wanted[:used], dtype)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_grouped_mm"), reason="torch has no scaled_grouped_mm")
@pytest.mark.parametrize("scales", ["row", "blocks"])
def test_scaled_grouped_mm_is_the_scaled_product_of_each_group(scales):
    rows, kinds = ROUTINGS["uneven"], torch.nn.functional.ScalingType
    a, b, down, across, wide_a, wide_b = fp8_operands(sum(rows), len(rows), scales)
    recipes = (kinds.RowWise, kinds.RowWise) if scales == "row" else (kinds.BlockWise1x128, kinds.BlockWise128x128)
    given = (down, across) if scales == "row" else (down.t(), across.mT)
    bias, ends = torch.randn(len(rows), FP8_N, device="cuda").bfloat16(), ends_of(rows)
    with hopper_gemm.fallback("never"):
        out = hopper_gemm.scaled_grouped_mm(
            a, b.mT, given[0], recipes[0], given[1], recipes[1], bias=bias, offs=ends, activation="silu"
        )
    wanted = followed(exact(wide_a, wide_b, ends.tolist()), ends.tolist(), bias, "silu")
    assert float((out.double() - wanted).norm() / wanted.norm()) <= rel_err_max(torch.bfloat16, FP8_K, 128)
    if scales == "row":
        theirs = torch.nn.functional.scaled_grouped_mm(
            a, b.mT, down, recipes[0], across, recipes[1], offs=ends, use_fast_accum=True
        )
        ours = hopper_gemm.scaled_grouped_mm(a, b.mT, down, recipes[0], across, recipes[1], offs=ends)
        assert float((ours.double() - theirs.double()).norm() / theirs.double().norm()) < 6e-3


@pytest.mark.parametrize("activation", [None, "gelu", "relu", "swiglu"])
def test_what_follows_the_product_is_one_launch_with_its_gradients(activation):
    rows = ROUTINGS["uneven"]
    n = N * 2 if activation == "swiglu" else N
    a, b = operands(sum(rows), len(rows), n=n)
    given = [(a.float() / 8).bfloat16(), b.mT.contiguous(), torch.randn(len(rows), n, device="cuda").bfloat16()]
    given = given[: 2 if activation == "swiglu" else 3]
    bias = given[2] if len(given) == 3 else None
    ends = ends_of(rows)

    def run():
        if activation == "swiglu":
            return hopper_gemm.grouped_swiglu(*given[:2], offs=ends)
        return hopper_gemm.grouped_mm(*given[:2], offs=ends, bias=bias, activation=activation)

    with hopper_gemm.fallback("never"):
        assert right(run(), given[0], given[1].mT, ends.tolist(), bias=bias, activation=activation)
        for tensor in given:
            tensor.requires_grad_()
        out = run()
    gradient = torch.randn_like(out)
    out.backward(gradient)
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    starts = [0, *ends.tolist()]
    product = torch.cat([wide[0][s:e] @ wide[1][g] for g, (s, e) in enumerate(pairwise(starts))])
    group = torch.repeat_interleave(torch.tensor(rows, device="cuda"))
    followed(product if bias is None else product + wide[2][group], [], None, activation).backward(gradient.double())
    for ours, exactly in zip(given, wide, strict=True):
        error = (ours.grad.double() - exactly.grad).norm() / exactly.grad.norm()
        assert error < 6e-3


def test_masked_products_have_bias_activation_and_gradients_of_the_rows_that_count():
    rows = [0, 300, 1, 0, 129, 300, 7, 64]
    a, b = operands(2400, 8)
    given = [(a.float() / 8).bfloat16().view(8, 300, K), b.mT.contiguous(), torch.randn(8, N, device="cuda").bfloat16()]
    counts = torch.tensor(rows, device="cuda", dtype=torch.int32)
    used = torch.arange(300, device="cuda") < counts[:, None]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    wanted = torch.nn.functional.gelu(wide[0] @ wide[1] + wide[2][:, None])[used]
    with hopper_gemm.fallback("never"):
        out = hopper_gemm.grouped_mm(*given[:2], counts=counts, bias=given[2], activation="gelu")
        assert excess(out[used], wanted) <= 1
        for tensor in given:
            tensor.requires_grad_()
        out = hopper_gemm.grouped_mm(*given[:2], counts=counts, bias=given[2], activation="gelu")
    gradient = torch.randn_like(out).masked_fill_(~used[..., None], float("nan"))
    out.backward(gradient)
    wanted.backward(gradient[used].double())
    for ours, exactly in zip(given, wide, strict=True):
        kept = used if ours is given[0] else ...
        assert (ours.grad[kept].double() - exactly.grad[kept]).norm() / exactly.grad[kept].norm() < 6e-3


def test_a_row_has_the_same_bits_whatever_the_routing_of_the_others():
    tokens, groups, generator = 1000, 16, torch.Generator("cuda").manual_seed(1)
    x, (_, b) = torch.randn(tokens, 1024, device="cuda", generator=generator).bfloat16(), operands(8, groups, k=1024)
    alone = torch.stack(
        [hopper_gemm.grouped_mm(x, b.mT, offs=ends_of([0] * g + [tokens] + [0] * (15 - g))) for g in range(16)]
    )
    for number in range(50):
        chosen = torch.randint(0, groups if number % 2 else 2, (tokens,), device="cuda", generator=generator)
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=groups).cumsum(0, dtype=torch.int32)
        out = hopper_gemm.grouped_mm(x[order], b.mT, offs=ends)
        assert same_bits(out, alone[chosen[order], order])


def test_a_captured_graph_follows_offsets_that_change():
    a, b = operands(1048, 8)
    ends = ends_of([131] * 8)
    hopper_gemm.grouped_mm(a, b.mT, offs=ends)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hopper_gemm.grouped_mm(a, b.mT, offs=ends)
    for rows in ROUTINGS.values():
        if len(rows) == 8:
            ends.copy_(ends_of(rows))
            out.fill_(float("nan"))
            graph.replay()
            assert right(out, a, b, ends.tolist())


def test_a_compiled_call_has_the_bits_of_the_eager_one():
    rows = ROUTINGS["aligned"]
    a, b = operands(sum(rows), len(rows))
    ends = ends_of(rows)
    layer = torch.compile(lambda a, b, ends: hopper_gemm.grouped_mm(a, b, offs=ends).relu(), fullgraph=True)
    assert torch.equal(layer(a, b.mT, ends), hopper_gemm.grouped_mm(a, b.mT, offs=ends).relu())


BMM = [(32, 2048, 2048, 128), (32, 2048, 128, 2048), (128, 512, 512, 64), (128, 512, 64, 512), (16, 1, 512, 128)]
BMM += [(128, 16, 512, 128), (128, 16, 128, 512), (8, 1024, 1024, 1024), (64, 256, 256, 256), (1024, 64, 64, 64)]


@pytest.mark.parametrize(("batch", "m", "n", "k"), BMM)
def test_bmm_is_one_launch_and_right(batch, m, n, k):
    a, b = (torch.randn(batch, *shape, device="cuda").bfloat16() for shape in ((m, k), (k, n)))
    assert kernels_launched(lambda: hopper_gemm.bmm(a, b)) == 1
    out = hopper_gemm.bmm(a, b)
    assert torch.allclose(out.double(), a.double() @ b.double(), rtol=0.008, atol=5e-3)


def kernels_launched(call: Callable[[], object]) -> int:
    """Number of kernels that a call launches, the second time."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


@pytest.mark.parametrize(("batch", "m", "n", "k"), BMM)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (1, 0.125), (0, 2), (0.5, 1)])
def test_baddbmm_is_one_launch_and_right(batch, m, n, k, beta, alpha):
    a, b = (torch.randn(batch, *shape, device="cuda").bfloat16() for shape in ((m, k), (k, n)))
    for shape in ((batch, m, n), (n,), (batch, 1, n)):
        added = torch.randn(shape, device="cuda").bfloat16()

        def run(added=added):
            return hopper_gemm.baddbmm(added, a, b, beta=beta, alpha=alpha)

        wanted = torch.baddbmm(added.double().expand(batch, m, n), a.double(), b.double(), beta=beta, alpha=alpha)
        assert torch.allclose(run().double(), wanted, rtol=0.008, atol=5e-3)
        assert beta == 0.5 or kernels_launched(run) == 1
