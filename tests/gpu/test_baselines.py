"""Every baseline that is here computes the product; the best of cuBLASLt is not behind torch.mm."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.menu import choose
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.tune.measure.arms import Arm
from hopper_gemm.tune.measure.baselines import BASELINES, baseline_kernel
from hopper_gemm.tune.measure.baselines.choose import REL_ERR_MAX
from hopper_gemm.tune.measure.baselines.cublaslt_api import CublasLtError
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.correctness import check, poison, rel_err_max
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.workload import make_workload
from hopper_gemm.tune.point import Point

pytestmark = pytest.mark.gpu

PROBLEMS = [
    GemmProblem(1024, 768, 512),
    GemmProblem(100, 136, 1000, "fp16"),
    GemmProblem(16, 4096, 4096),
    GemmProblem(1024, 768, 512, "bf16_fp32"),
    GemmProblem(100, 136, 1000, "fp16_fp32"),
]


def error_of(candidate, workload) -> float:
    first = workload.sets[0]
    poison(first.theirs)
    candidate.launch(first)
    return check(candidate.product(first), workload.reference, workload.problem.k).rel_err


@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[3]], ids=lambda problem: problem.dtype)
@pytest.mark.parametrize(("name", "which"), [("cublas", 0), ("cublaslt", 0), ("cublaslt", 1), ("cublaslt", -1)])
def test_a_candidate_is_right_also_when_it_is_restored(name, which, problem):
    baseline = BASELINES[name]
    assert baseline.missing() is None
    workload = make_workload(problem, l2_bytes=0)
    candidate = baseline.candidates(workload)[which]
    assert error_of(candidate, workload) < REL_ERR_MAX
    assert error_of(baseline.restore(workload, candidate.recipe), workload) < REL_ERR_MAX


@pytest.mark.timeout(420, method="thread")
@pytest.mark.parametrize("name", ["triton", "quack"])
def test_a_peer_that_is_installed_is_right_and_can_be_captured(name):
    """It tunes itself first, which takes a minute."""
    baseline = BASELINES[name]
    reason = baseline.missing()
    if reason is not None:
        pytest.skip(reason)
    workload = make_workload(PROBLEMS[0], l2_bytes=0)
    (candidate,) = baseline.candidates(workload)
    assert error_of(candidate, workload) < REL_ERR_MAX
    Arm(candidate.launch, workload.sets, 1e-4).graph(0.001).replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem} {problem.dtype}")
def test_cublaslt_lists_several_algorithms_and_what_runs_is_right(problem):
    workload = make_workload(problem, l2_bytes=0)
    candidates = BASELINES["cublaslt"].candidates(workload)
    assert len(candidates) > 3
    assert any(candidate.label.startswith("BA") for candidate in candidates), "as torch asks"
    right = 0
    for candidate in candidates:
        with suppress(CublasLtError):
            right += error_of(candidate, workload) < REL_ERR_MAX
    assert right > 0.8 * len(candidates)


def test_variants_of_an_algorithm_are_right_too():
    workload = make_workload(PROBLEMS[0], l2_bytes=0)
    variants = BASELINES["cublaslt"].candidates(workload)[1].variants()
    assert len(variants) > 3
    right = 0
    for candidate in variants:
        with suppress(CublasLtError):
            right += error_of(candidate, workload) < REL_ERR_MAX
    assert right > 0.8 * len(variants)


@pytest.mark.alone  # beside others a pair may take less than its spacer, and is thrown away
@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch has no scaled_mm")
@pytest.mark.parametrize("against", ["cublas", "heuristics"])
@pytest.mark.parametrize(
    ("scales", "promote"), [("tensor", 0), ("tensor", 128), ("row", 0), ("row", 256), ("blocks", 128)]
)
def test_fp8_is_measured_by_its_recipe(kernel_store, scales, promote, against):
    """The library's list may have nothing for a recipe; of one scale for each operand it has."""
    problem = ScaledProblem(1024, 768, 512, "e4m3_bf16", promote=promote, scales=scales)
    point = Point(problem, choose(problem), against=against)
    outcome = Bench(describe_current(), kernel_store).measure(point, Burst(rest=0.010, pairs=3))
    allowed = ("ok",) if against == "cublas" or scales == "tensor" else ("ok", "no_baseline")
    assert outcome.status in allowed, outcome.reason
    if outcome.status == "ok":
        assert outcome.figures["rel_err"] <= rel_err_max(torch.bfloat16, problem.k, promote)
        assert outcome.figures["baseline_rel_err"] < REL_ERR_MAX


@pytest.mark.parametrize("context", ["isolated", "chained"])
@pytest.mark.parametrize("problem", [GemmProblem(1024, 1024, 1024), GemmProblem(2048, 2048, 2048)], ids=str)
def test_the_best_of_cublaslt_is_right_and_its_kernel_has_a_name(kernel_store, problem, context):
    bench, protocol = Bench(describe_current(), kernel_store), Burst(rest=0.010, pairs=5)
    point = Point(problem, GemmConfig(tile_m=128, tile_n=128), context=context, against="cublaslt")
    outcome = bench.measure(point, protocol)
    assert outcome.status == "ok", outcome.reason
    assert outcome.figures["candidates"] > 50
    assert outcome.figures["baseline_rel_err"] < REL_ERR_MAX
    assert baseline_kernel(point, outcome.recipe) != "unknown"
