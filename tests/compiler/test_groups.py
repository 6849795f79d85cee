"""Kernels of groups compile for sm_90a without a spill, with the instructions that their config asks for."""

from __future__ import annotations

import pytest

from hopper_gemm.compiler.compile import compile_kernel
from hopper_gemm.compiler.cubin import read_cubin
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GROUPINGS, GroupedProblem
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import reasons

pytestmark = [pytest.mark.compile, pytest.mark.timeout(300)]

KERNELS = [
    ("kk", "bf16", {}),
    ("kn", "bf16", {}),
    ("kn", "fp16", {"tile_m": 128}),
    ("kn", "bf16_fp32", {"tile_m": 128, "cluster_n": 2}),
    ("kn", "bf16", {"tile_m": 64, "schedule": "pingpong"}),
    ("kk", "bf16", {"tile_m": 128, "schedule": "pingpong", "cluster_m": 2, "swap_ab": True}),
    ("kk", "bf16", {"tile_m": 128, "tile_n": 16, "swap_ab": True}),
    ("kk", "bf16", {"tile_m": 128, "tile_n": 256, "staging": "ring"}),
    ("kk", "bf16", {"tile_m": 256, "scheduler": "dynamic", "cluster_n": 2}),
]


BIAS, GATED = Epilogue(bias=True, activation="gelu"), Epilogue(activation="silu", gated=True)

CASES = [("rows", *case, None) for case in KERNELS]
CASES += [("rows", *KERNELS[number], BIAS) for number in (1, 3, 5, 8)]
CASES += [("rows", "kk", "bf16", KERNELS[number][2], GATED) for number in (0, 2, 4, 8)]
CASES += [("masked", *KERNELS[number], None) for number in (5, 8)]
CASES += [("batch", "mn", "bf16", {}, None)]
CASES += [("batch", *KERNELS[number], Epilogue(scale=True, residual=True)) for number in (1, 3, 4, 6, 8)]
CASES += [
    (grouping, "mn", "bf16", {"tile_m": 128, "cluster_n": 2, "swap_ab": True}, None) for grouping in GROUPINGS[2::2]
]
CASES += [("depth", "mn", "bf16_fp32", {}, None)]


@pytest.mark.parametrize(("grouping", "layouts", "dtype", "values", "finish"), CASES)
def test_kernels_of_groups_have_the_wgmma_and_the_waits_of_their_config_and_no_spill(
    grouping, layouts, dtype, values, finish
):
    kernel = resolve(GemmConfig(**values))
    assert reasons(kernel, GroupedProblem(4096, 1024, 4096, dtype, layouts, groups=8, grouping=grouping), finish) == []
    report = read_cubin(compile_kernel(kernel, dtype, layouts, finish=finish, grouping=grouping).cubin)
    assert not report.spills
    assert report.wgmma % kernel.wgmma_per_stage == 0 < report.wgmma
    assert report.wgmma_waits <= kernel.wgmma_waits + (0 if finish is None else 2), "the compiler serialised wgmma"


SCALED = [
    ({"tile_m": 128, "tile_n": 128}, 128, "row"),
    ({"tile_m": 128, "tile_n": 128}, 0, "row"),
    ({"tile_m": 128, "tile_n": 64, "swap_ab": True}, 128, "row"),
    ({"tile_m": 64, "tile_n": 128, "schedule": "pingpong"}, 128, "blocks"),
    ({"tile_m": 128, "tile_n": 128, "swap_ab": True}, 128, "blocks"),
    ({"tile_m": 128, "tile_n": 128, "scheduler": "dynamic", "cluster_m": 2}, 128, "blocks"),
]


@pytest.mark.parametrize(("values", "promote", "scales"), SCALED)
def test_kernels_of_fp8_in_groups_promote_as_dense_ones_and_do_not_spill(values, promote, scales):
    kernel, finish = resolve(GemmConfig(**values)), Epilogue(scales=scales)
    problem = GroupedProblem(4096, 1024, 4096, "e4m3_bf16", promote=promote, groups=8)
    assert reasons(kernel, problem, finish) == []
    code = compile_kernel(kernel, "e4m3_bf16", finish=finish, promote=promote, grouping="rows").cubin
    dense = compile_kernel(kernel, "e4m3_bf16", finish=finish, promote=promote).cubin
    report, alone = read_cubin(code), read_cubin(dense)
    assert not report.spills
    assert (report.wgmma, report.wgmma_waits) == (alone.wgmma, alone.wgmma_waits)
