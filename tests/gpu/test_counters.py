"""Counted figures are physics: they agree with what the arithmetic of the problem and of the tile demands."""

from __future__ import annotations

import pytest

from hopper_gemm.lab.counters.counting import count
from hopper_gemm.lab.counters.profiler import ProfilerError, find_profiler
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.tune.limits import smem_reads_per_flop
from hopper_gemm.tune.point import Point

pytestmark = pytest.mark.gpu


def test_a_launch_reads_its_operands_from_memory_and_shared_memory_as_its_tile_demands(gpu, kernel_store):
    problem, config = GemmProblem(4096, 4096, 4096), resolve(GemmConfig(tile_m=256, tile_n=128, cluster_n=2))
    try:
        points = [Point(problem, "cublas"), Point(problem, config)]
        cublas, ours = count(points, gpu, find_profiler(), store=kernel_store)
    except ProfilerError as error:
        pytest.skip(str(error))
    operands = ELEMENT_BYTES * (problem.m + problem.n) * problem.k
    for counted in (cublas, ours):
        assert not counted.reason
        assert 20 < counted.figures["tensor_active_hw"] <= 100
        assert 0.3 < counted.figures["sm_ghz"] < 2.1
        assert counted.figures["dram_read_bytes"] > 0.95 * operands, "the L2 was not cold"
        assert counted.figures["executed"] > 0
    banks = smem_reads_per_flop(config) * problem.flop / 4
    assert ours.figures["shared_bank_reads"] == pytest.approx(banks, rel=0.25)
    assert "HopperGemm" in ours.kernel
    assert "HopperGemm" not in cublas.kernel
