"""Products of FP8 on a GPU by the public call, against fp64 of the dequantised operands; the kernels are in
tests/gpu/test_kernel.py."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler.loader import load
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.checks import UnsupportedError
from hopper_gemm.tune.measure.correctness import rel_err_max
from tests.each import each
from tests.serve.test_scaled import exact, exact_blocks

functional = torch.nn.functional
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not hasattr(functional, "scaled_mm"), reason="torch has no scaled_mm"),
]

BLOCK_ERROR = 1.75e-3
"""Largest error with scales of blocks and an output of bf16."""

SIZES = [(1, 16, 16), (1, 7168, 2048), (17, 272, 1040), (64, 2112, 7168), (129, 4096, 512), (300, 528, 992)]
SIZES += [(1000, 1024, 4096), (4096, 2112, 1536), (513, 7168, 16384)]

BLOCKS = Epilogue(scales="blocks")
PROBLEM = GemmProblem(129, 528, 4000, "e4m3_bf16", promote=128)
"""Odd along m, ragged along n and k."""


def kernels() -> list[KernelId]:
    """Those with scales of blocks."""
    return [KernelId.of(config, PROBLEM, finish=BLOCKS) for config in block_kernels()]


def operands(m, n, k, scales="row", dtype=torch.float8_e4m3fn, seed=0):
    """a, b, their scales and the recipe."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", generator=generator)

    a, b = normal(m, k).to(dtype), normal(n, k).to(dtype).t()
    sides = ((m, 1), (1, n)) if scales == "row" else ((1,), (1,))
    scale_a, scale_b = (normal(*side).abs() + 0.5 for side in sides)
    recipe = functional.ScalingType.RowWise if scales == "row" else functional.ScalingType.TensorWise
    return a, b, scale_a, scale_b, recipe


def of_blocks(m, n, k, seed=0, dtype=torch.float8_e4m3fn):
    """The arguments of a call with scales of blocks, which differ from block to block by up to 2^8."""
    a, b, *_ = operands(m, n, k, dtype=dtype, seed=seed)
    generator, deep, wide = torch.Generator("cuda").manual_seed(seed + 1), -(-k // 128), -(-n // 128)

    def scales(*shape):
        return torch.exp2(8 * torch.rand(*shape, device="cuda", generator=generator) - 4).t()

    kinds = functional.ScalingType
    given = scales(deep, m), kinds.BlockWise1x128, scales(wide, -(-deep // 4) * 4), kinds.BlockWise128x128
    given[2][deep:] = float("nan")  # these fill up, and belong to no element
    return a, b, *given


def error(result, right):
    return float((result.double() - right).norm() / right.norm())


@each("sizes", SIZES)
def test_picked_kernels_are_right_at_every_size(sizes):
    few = 1.5 if sizes[0] * sizes[1] < 10_000 else 1.0  # whose errors differ more from their mean
    for scales in ("tensor", "row"):
        a, b, scale_a, scale_b, recipe = operands(*sizes, scales)
        right, given = exact(a, b, scale_a, scale_b), (a, b, scale_a, recipe, scale_b, recipe)
        for fast in (False, True):
            result = hopper_gemm.scaled_mm(*given, use_fast_accum=fast)
            assert error(result, right) <= few * rel_err_max(torch.bfloat16, sizes[2], 0 if fast else 128), (
                scales,
                fast,
            )


@each("sizes", SIZES)
def test_picked_kernels_are_right_with_scales_of_blocks_at_every_size(sizes):
    given = of_blocks(*sizes)
    few = 1.5 if sizes[0] * sizes[1] < 10_000 else 1.0
    assert error(hopper_gemm.scaled_mm(*given), exact_blocks(*given)) <= few * BLOCK_ERROR


BLOCK_TILES = [
    *({"tile_m": 64, "tile_n": tile_n} for tile_n in (8, 64, 96, 112, 128, 136, 160, 192, 256)),
    *({"tile_m": 64, "tile_n": tile_n, "swap_ab": True} for tile_n in (8, 24, 32, 72, 128, 192, 256)),
    *({"tile_m": tile_m, "tile_n": 64, "swap_ab": swap} for tile_m in (128, 192, 256) for swap in (False, True)),
    {"tile_m": 256, "tile_n": 128},
    {"tile_m": 256, "tile_n": 96, "swap_ab": True},
    {"tile_m": 128, "tile_n": 256, "split": "n"},
    {"tile_m": 64, "tile_n": 128, "schedule": "pingpong", "swap_ab": True},
    {"tile_m": 128, "tile_n": 128, "cluster_m": 2, "cluster_n": 2, "scheduler": "dynamic"},
    {"tile_m": 128, "tile_n": 128, "stages": 2, "stagger": 0},
]


def block_kernels():
    """Kernels with scales of blocks that the rules allow: every way that columns lie in blocks of B."""
    return [GemmConfig(**tile) for tile in BLOCK_TILES if is_legal(GemmConfig(**tile), PROBLEM, BLOCKS)]


ROWS = (4096, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 127, 128, 129, 257, 513, 1000, 2048, 4095)


@each("n, k", [(528, 4000), (2112, 7168), (512, 16384), (7168, 528), (528, 128), (528, 384)])
def test_scales_of_blocks_give_the_same_bits_in_every_tile_whether_swapped_or_not_and_at_every_m(n, k):
    """Some 2,400 outputs; the first kernel's, of all rows, is right."""
    a, b, scale_a, first, scale_b, second = of_blocks(4096, n, k)
    drawn = [torch.randperm(4096, device="cuda")[:m] if m < 4096 else torch.arange(4096, device="cuda") for m in ROWS]
    parts = [(rows, a[rows], scale_a.t()[:, rows].contiguous()) for rows in drawn]
    whole, kernels_of = None, block_kernels()
    assert len(kernels_of) > 20
    for config in kernels_of:
        kernel = load(config, GemmProblem(4096, n, k, "e4m3_bf16", promote=128), finish=BLOCKS)
        for rows, left, scales in parts:
            out = torch.full((len(rows), n), float("nan"), device="cuda", dtype=torch.bfloat16)
            kernel(left, b.t(), out, None, None, None, scales=(scales, scale_b.t()))
            if whole is None:
                whole = out
                assert error(whole, exact_blocks(a, b, scale_a, first, scale_b, second)) <= BLOCK_ERROR
            assert torch.equal(out, whole[rows]), (str(config), len(rows))


@each("n, k", [(2112, 7168), (7168, 2048), (512, 16384), (4096, 7184)])
def test_rows_with_scales_of_blocks_have_the_same_bits_whatever_m(n, k):
    """Where the thread asks for that."""
    a, b, scale_a, first, scale_b, second = of_blocks(4096, n, k)
    with hopper_gemm.batch_invariant():
        whole = hopper_gemm.scaled_mm(a, b, scale_a, first, scale_b, second)
        for m in (1, 2, 7, 16, 17, 64, 65, 100, 128, 256, 257, 1000, 2048, 4095):
            rows = torch.randperm(4096, device="cuda")[:m]
            part = hopper_gemm.scaled_mm(a[rows], b, scale_a.t()[:, rows].contiguous().t(), first, scale_b, second)
            assert torch.equal(part, whole[rows]), m


def test_scales_of_blocks_that_are_no_numbers_reach_their_elements_alone():
    a, b, scale_a, first, scale_b, second = of_blocks(129, 272, 512)
    scale_a[128, 2], scale_b[1, 2] = float("nan"), float("inf")
    result = hopper_gemm.scaled_mm(a, b, scale_a, first, scale_b, second)
    assert result[128].isnan().all()
    assert not result[:128].isnan().any()
    assert result[:128, 256:].isinf().all()
    assert result[:128, :256].isfinite().all()


def test_scales_of_blocks_are_compiled_captured_and_read_at_any_pitch():
    a, b, scale_a, first, scale_b, second = of_blocks(65, 272, 1040)
    bias = torch.randn(272, device="cuda").bfloat16()

    def layer(a, scale_a, scale_b):
        return hopper_gemm.scaled_mm(a, b, scale_a, first, scale_b, second, bias=bias, activation="silu")

    right = layer(a, scale_a, scale_b)
    exactly = exact_blocks(a, b, scale_a, first, scale_b, second) + bias.double()
    assert error(right, functional.silu(exactly)) <= 2e-3
    assert torch.equal(torch.compile(layer, fullgraph=True)(a, scale_a, scale_b), right)
    wide, high = (torch.full((size, 77), float("nan"), device="cuda") for size in (9, 3))
    wide[:, 3:68], high[:, 1:10] = scale_a.t(), scale_b.t()[:, :9]
    assert torch.equal(layer(a, wide.t()[3:68], high.t()[1:10]), right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(a, scale_a, scale_b)
    out.zero_()
    graph.replay()
    assert torch.equal(out, right)


def test_torch_takes_the_same_scales_of_blocks():
    """Rows in multiples of 4, of which torch's function asks."""
    given = of_blocks(256, 512, 1024)
    assert error(functional.scaled_mm(*given), exact_blocks(*given)) <= 2 * BLOCK_ERROR


def test_promoted_sums_lose_fewer_bits_the_shorter_the_interval():
    """Measured on an output of fp32, which no rounding hides."""
    a, b, scale_a, scale_b, recipe = operands(512, 512, 16384)
    given, right = (a, b, scale_a, recipe, scale_b, recipe), exact(a, b, scale_a, scale_b)
    promoted = [
        error(hopper_gemm.scaled_mm(*given, output_dtype=torch.float32, promote=promote), right)
        for promote in (128, 256, 512)
    ]
    fast = error(hopper_gemm.scaled_mm(*given, output_dtype=torch.float32, use_fast_accum=True), right)
    assert promoted[0] < promoted[1] < promoted[2] < fast / 2
    assert fast <= rel_err_max(torch.float32, 16384, 0)


def test_scales_that_are_no_numbers_make_their_rows_none_and_no_others():
    a, b, scale_a, scale_b, recipe = operands(129, 272, 512)
    scale_a[128] = float("nan")
    result = hopper_gemm.scaled_mm(a, b, scale_a, recipe, scale_b, recipe)
    assert result[128].isnan().all()
    assert not result[:128].isnan().any()


def test_an_output_that_is_given_is_written_wherever_its_rows_start():
    a, b, scale_a, scale_b, recipe = operands(33, 272, 512)
    given = a, b, scale_a, recipe, scale_b, recipe
    right = hopper_gemm.scaled_mm(*given)
    for pitch in (272, 280, 275):
        memory = torch.full((33, pitch), float("nan"), device="cuda", dtype=torch.bfloat16)
        out = memory[:, :272]
        assert hopper_gemm.scaled_mm(*given, out=out) is out
        assert torch.equal(out, right)
        assert memory[:, 272:].isnan().all()


def test_rows_have_the_same_bits_whatever_m_where_that_is_asked_for():
    a, b, scale_a, scale_b, recipe = operands(1024, 512, 16384)
    with hopper_gemm.batch_invariant():
        for fast in (False, True):
            whole = hopper_gemm.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, use_fast_accum=fast)
            for m in (1, 17, 128, 700):
                part = hopper_gemm.scaled_mm(a[:m], b, scale_a[:m], recipe, scale_b, recipe, use_fast_accum=fast)
                assert torch.equal(part, whole[:m]), (fast, m)


def test_what_the_kernel_lacks_goes_to_torch_or_is_refused():
    a, b, scale_a, scale_b, recipe = operands(64, 256, 512, "tensor")
    mixed = a, b.to(torch.float8_e5m2), scale_a, recipe, scale_b, recipe
    assert error(hopper_gemm.scaled_mm(*mixed), exact(*mixed[:3], scale_b)) <= rel_err_max(torch.bfloat16, 512, 0)
    with hopper_gemm.fallback("never"), pytest.raises(UnsupportedError, match="one FP8 type"):
        hopper_gemm.scaled_mm(*mixed)
    memory = torch.zeros(64 * 512 + 1, device="cuda").to(a.dtype)
    with pytest.raises(ValueError, match="rows of mat_a must start at multiples of 16 bytes"):
        hopper_gemm.scaled_mm(memory[1:].view(64, 512), b, scale_a, recipe, scale_b, recipe)
