"""A kernel with a finish compiles without a spill, stores what the plain one stores, and finds its accumulators."""

from __future__ import annotations

from itertools import product

import pytest

from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import ACTIVATIONS, Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from tests.each import each
from tests.serve.layers import FINISHES, GATED, KINDS, Case, cases, legal

pytestmark = [pytest.mark.compile, pytest.mark.timeout(900)]

LARGE = GemmProblem(8192, 8192, 4096)

EDGE = {
    "bias and activation": (GemmConfig(256, 200, epi_n=200), Epilogue(bias=True, activation="gelu")),
    "bias and activation, swapped": (GemmConfig(256, 208, swap_ab=True), Epilogue(bias=True, activation="gelu_tanh")),
    "residual": (GemmConfig(256, 176, epi_n=88), Epilogue(residual=True)),
    "residual, swapped": (GemmConfig(256, 192, swap_ab=True), Epilogue(residual=True)),
    "residual, beside a bias": (GemmConfig(256, 176, epi_n=88), Epilogue(bias=True, residual=True)),
    "residual, beside an activation": (GemmConfig(256, 192, epi_n=64), Epilogue(activation="gelu_tanh", residual=True)),
    "scale and activation": (GemmConfig(128, 208, schedule="pingpong", epi_n=16), Epilogue(True, activation="silu")),
    "all": (GemmConfig(256, 168, epi_n=56), FINISHES[-1]),
    "all, swapped": (GemmConfig(256, 160, swap_ab=True), FINISHES[-1]),
    "activation": (GemmConfig(256, 200, epi_n=200), Epilogue(activation="gelu_tanh")),
    "gated": (GemmConfig(256, 208, epi_n=104, cluster_n=2), GATED),
}
"""Configs at the edge of the registers, with what they finish."""


@pytest.fixture(scope="module")
def pool(kernel_store):
    pool = CompilePool(kernel_store)
    yield pool
    pool.close()


def chosen() -> list[Case]:
    """Every kind with all steps, and gated, each in one of its types in turn; the first kind with every finish and
    type. On a GPU all of them run."""
    kept, (first, *others) = (FINISHES[-1], GATED), KINDS
    drawn = [case for case in cases() if case.kind == first]
    for turn, (kind, finish) in enumerate(product(others, kept)):
        able = [case for case in cases() if (case.kind, case.finish) == (kind, finish)]
        drawn += able and [able[turn % len(able)]]
    return drawn


def test_every_step_type_and_kind_is_compiled():
    found = chosen()
    assert {case.kind for case in found} == {*KINDS}
    assert {case.finish.activation for case in found} >= {*ACTIVATIONS}
    assert {case.problem.dtype for case in found} == {"bf16", "fp16", "bf16_fp32", "fp16_fp32"}


@each("case", chosen())
def test_a_finish_spills_nothing_and_stores_what_the_plain_kernel_stores(case, pool):
    built = pool.result(KernelId.of(case.config, case.problem, finish=case.finish))
    assert (built.status, built.reason) == ("ok", "")
    kernel = resolve(case.config)
    stores = kernel.tma_stores(case.problem.out_bytes) // (2 if case.finish.gated else 1)
    assert kernel.work_items > 1 or built.report.tma_stores == stores
    apart = not case.finish.scaled_alone  # a tile's first stage stands before the loop
    assert built.report.wgmma == kernel.wgmma_per_stage * (1 + apart)
    assert built.report.wgmma_waits == kernel.wgmma_waits + 2 * apart, "more: the compiler serialised wgmma"


@each("name", EDGE)
def test_a_finish_at_the_edge_of_the_registers_spills_nothing(name, pool):
    config, finish = EDGE[name]
    assert is_legal(config, LARGE, finish)
    built = pool.result(KernelId.of(config, LARGE, finish=finish))
    assert (built.status, built.reason) == ("ok", "")


def test_a_case_that_no_rule_allows_is_none():
    assert legal([Case("swapped cluster", GATED, LARGE)]) == []


@pytest.mark.parametrize("columns", [8, 88, 256])
def test_accumulators_lie_where_a_finish_expects_them(columns):
    """Row and column of every register of every thread, by the DSL's layout of the very wgmma."""
    import cutlass
    from cutlass import Float32, cute
    from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

    found = {}

    def note(layout):
        for at in product(range(128), range(columns // 2)):
            found[at] = cute.crd2idx(at, layout)

    @cute.jit
    def place():
        source, major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
        op = warpgroup.MmaF16BF16Op(cutlass.BFloat16, Float32, (64, columns, 16), source, major, major)
        note(cute.make_tiled_mma(op).tv_layout_C_tiled)

    cute.compile(place, options=f"--gpu-arch {hopper.ARCH}")
    for (thread, register), index in found.items():
        group, half, e = register // 4, register // 2 % 2, register % 2
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * half
        assert (index % 64, index // 64) == (row, 8 * group + thread % 4 * 2 + e)
    assert len(found) == 64 * columns
