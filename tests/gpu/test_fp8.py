"""Products of FP8 on a GPU: every kind of scales and of sums, against fp64 of the dequantised operands."""

from __future__ import annotations

from math import hypot

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler.loader import load
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.checks import UnsupportedError
from tests.each import each

functional = torch.nn.functional
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not hasattr(functional, "scaled_mm"), reason="torch has no scaled_mm"),
]

ROUNDED = {torch.bfloat16: 1.72e-3, torch.float16: 2.2e-4, torch.float32: 0.0}
"""Relative Frobenius error of the output's rounding alone."""

FAST_ERROR, PROMOTED_ERROR = 4e-5, {128: 2.6e-4, 256: 4.2e-4, 512: 7e-4}
"""Errors of the sums alone: of fast ones by the root of k, of promoted ones by the interval. Twice what a simulation of
13 bits gives: 1.3e-3 at k = 4096 and 3.1e-3 at 16384; 1.3e-4, 2.1e-4 and 3.5e-4."""

SIZES = [(1, 16, 16), (1, 7168, 2048), (17, 272, 1040), (64, 2112, 7168), (129, 4096, 512), (300, 528, 992)]
SIZES += [(1000, 1024, 4096), (4096, 2112, 1536), (513, 7168, 16384)]

KERNELS = {
    "cooperative": GemmConfig(256, 128),
    "pingpong": GemmConfig(64, 128, schedule="pingpong"),
    "swapped": GemmConfig(128, 128, swap_ab=True),
    "cluster": GemmConfig(128, 128, cluster_m=2),
    "along n": GemmConfig(64, 256, consumers=2, split="n"),
    "split in a cluster": GemmConfig(128, 128, split_k=4, stagger=0),
    "split by a workspace": GemmConfig(128, 128, split_k=3, reduction="workspace", stagger=0),
    "dynamic": GemmConfig(128, 128, scheduler="dynamic"),
    "shallow": GemmConfig(128, 128, k_depth=2),
}
PROBLEM = GemmProblem(129, 528, 4000, "e4m3_bf16")
"""Odd along m, ragged along n and k."""


def problem_of(promote):
    return GemmProblem(PROBLEM.m, PROBLEM.n, PROBLEM.k, PROBLEM.dtype, promote=promote)


CASES = [
    (name, promote, scales)
    for name, config in KERNELS.items()
    for promote in (0, 128, 256, 512)
    for scales in ("tensor", "row")
    if is_legal(config, problem_of(promote), Finish(scales=scales))
]
"""All but those of two blocks of rows that would hold five stages."""


def kernels() -> list[KernelId]:
    """Those of the cases."""
    return [
        KernelId.of(KERNELS[name], problem_of(promote), finish=Finish(scales=scales)) for name, promote, scales in CASES
    ]


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


def exact(a, b, scale_a, scale_b):
    return (a.double() @ b.double()) * scale_a.double() * scale_b.double()


def error(result, right):
    return float((result.double() - right).norm() / right.norm())


def most(k, promote, dtype=torch.bfloat16):
    """The largest error of a product."""
    return hypot(ROUNDED[dtype], PROMOTED_ERROR[promote] if promote else FAST_ERROR * k**0.5)


@each("name, promote, scales", CASES)
def test_every_kind_of_kernel_is_right_with_every_kind_of_scales_and_sums(name, promote, scales):
    problem = problem_of(promote)
    a, b, scale_a, scale_b, _ = operands(problem.m, problem.n, problem.k, scales)
    kernel = load(KERNELS[name], problem, finish=Finish(scales=scales))
    out = torch.full((problem.m, problem.n), float("nan"), device="cuda", dtype=torch.bfloat16)
    kernel(a, b.t(), out, None, None, None, scales=(scale_a.view(-1), scale_b.view(-1)))
    assert error(out, exact(a, b, scale_a, scale_b)) <= most(problem.k, promote)


@each("sizes", SIZES)
def test_picked_kernels_are_right_at_every_size(sizes):
    few = 1.5 if sizes[0] * sizes[1] < 10_000 else 1.0  # whose errors differ more from their mean
    for scales in ("tensor", "row"):
        a, b, scale_a, scale_b, recipe = operands(*sizes, scales)
        right, given = exact(a, b, scale_a, scale_b), (a, b, scale_a, recipe, scale_b, recipe)
        for fast in (False, True):
            result = hopper_gemm.scaled_mm(*given, use_fast_accum=fast)
            assert error(result, right) <= few * most(sizes[2], 0 if fast else 128), (scales, fast)


@pytest.mark.parametrize("out_dtype", list(ROUNDED))
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_both_types_of_fp8_give_every_output(dtype, out_dtype):
    a, b, scale_a, scale_b, recipe = operands(200, 304, 4096, dtype=dtype)
    given = a, b, scale_a, recipe, scale_b, recipe
    result = hopper_gemm.scaled_mm(*given, output_dtype=out_dtype)
    assert result.dtype == out_dtype
    assert error(result, exact(a, b, scale_a, scale_b)) <= most(4096, 128, out_dtype)


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
    assert fast <= most(16384, 0, torch.float32)


def test_a_bias_and_an_activation_come_behind_the_scales():
    a, b, scale_a, scale_b, recipe = operands(100, 272, 512)
    bias = torch.randn(272, device="cuda").bfloat16()
    right = functional.silu(exact(a, b, scale_a, scale_b) + bias.double())
    result = hopper_gemm.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, bias=bias, activation="silu")
    assert error(result, right) <= 2e-3


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


def test_compiled_and_captured_calls_give_the_bits_of_eager_ones():
    a, b, scale_a, scale_b, recipe = operands(64, 272, 512)

    def layer(a, scale_a):
        return hopper_gemm.scaled_mm(a, b, scale_a, recipe, scale_b, recipe)

    right = layer(a, scale_a)
    assert torch.equal(torch.compile(layer, fullgraph=True)(a, scale_a), right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(a, scale_a)
    out.zero_()
    graph.replay()
    assert torch.equal(out, right)


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
    assert error(hopper_gemm.scaled_mm(*mixed), exact(*mixed[:3], scale_b)) <= most(512, 0)
    with hopper_gemm.fallback("never"), pytest.raises(UnsupportedError, match="one FP8 type"):
        hopper_gemm.scaled_mm(*mixed)
    memory = torch.zeros(64 * 512 + 1, device="cuda").to(a.dtype)
    with pytest.raises(ValueError, match="rows of mat_a must start at multiples of 16 bytes"):
        hopper_gemm.scaled_mm(memory[1:].view(64, 512), b, scale_a, recipe, scale_b, recipe)
