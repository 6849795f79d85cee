"""Kernels of FP8 compile for sm_90a without a spill, with the instructions that their config asks for."""

from __future__ import annotations

import pytest

from hopper_gemm.compiler.compile import compile_kernel
from hopper_gemm.compiler.cubin import read_cubin
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.tune.run.worker import wgmma_waits

pytestmark = [pytest.mark.compile, pytest.mark.timeout(300)]

TENSOR, ROW, BLOCKS = (Epilogue(scales=scales) for scales in ("tensor", "row", "blocks"))

KERNELS = [
    ("e4m3_bf16", 0, TENSOR, {}),
    ("e4m3_fp16", 0, ROW, {"swap_ab": True}),
    ("e4m3_fp32", 0, None, {"tile_m": 128, "cluster_n": 2}),
    ("e5m2_bf16", 0, TENSOR, {"k_depth": 2}),
    ("e4m3_bf16", 0, None, {"staging": "ring"}),
    ("e4m3_bf16", 128, ROW, {}),
    ("e4m3_bf16", 256, Epilogue(scales="row", bias=True), {}),
    ("e4m3_bf16", 512, ROW, {"tile_m": 128}),
    ("e4m3_bf16", 128, ROW, {"tile_m": 64, "schedule": "pingpong"}),
    ("e4m3_bf16", 128, ROW, {"tile_m": 128, "split_k": 4, "stagger": 0}),
    ("e4m3_bf16", 128, ROW, {"tile_m": 128, "split_k": 3, "reduction": "workspace", "stagger": 0}),
    (
        "e4m3_bf16",
        128,
        Epilogue(scales="tensor", bias=True, activation="gelu"),
        {"tile_m": 128, "scheduler": "dynamic"},
    ),
    ("e4m3_bf16", 128, BLOCKS, {}),
    ("e5m2_fp32", 128, BLOCKS, {"tile_m": 128, "tile_n": 160, "cluster_m": 2}),
    ("e4m3_fp16", 128, Epilogue(scales="blocks", bias=True), {"tile_m": 128, "tile_n": 64, "swap_ab": True}),
    ("e4m3_bf16", 128, BLOCKS, {"tile_m": 64, "schedule": "pingpong"}),
    ("e4m3_bf16", 128, BLOCKS, {"tile_m": 64, "tile_n": 256, "consumers": 2, "split": "n"}),
    ("e4m3_bf16", 128, BLOCKS, {"tile_m": 128, "tile_n": 64, "split_k": 3, "reduction": "workspace", "swap_ab": True}),
]


@pytest.mark.parametrize(("dtype", "promote", "finish", "values"), KERNELS)
def test_kernels_of_fp8_have_the_wgmma_and_the_waits_of_their_config_and_no_spill(dtype, promote, finish, values):
    """QGMMA is counted as HGMMA is; more waits than the config asks for mean that the compiler serialised it."""
    kernel = resolve(GemmConfig(**values))
    problem = ScaledProblem(1024, 1024, 4096, dtype, promote=promote, scales=finish.scales if finish else "tensor")
    assert reasons(kernel, problem, finish) == []
    report = read_cubin(compile_kernel(kernel, dtype, finish=finish, promote=promote).cubin)
    peeled = finish is not None and not promote
    assert not report.spills
    assert report.wgmma % kernel.wgmma_per_stage == 0 < report.wgmma
    assert report.wgmma_waits <= wgmma_waits(kernel, problem) + 2 * peeled
