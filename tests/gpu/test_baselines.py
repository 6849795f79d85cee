"""Every baseline that is here computes the product, and a comparison runs from end to end."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from hopper_gemm.measure.arms import make_arm
from hopper_gemm.measure.baseline import UNKNOWN, kernel_of
from hopper_gemm.measure.baselines import BASELINES
from hopper_gemm.measure.baselines.choose import REL_ERR_MAX
from hopper_gemm.measure.baselines.cublaslt_api import CublasLtError
from hopper_gemm.measure.correctness import check, poison
from hopper_gemm.measure.workload import make_workload
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.compare import PAGE, read_compare
from hopper_gemm.tuning.compare import Comparison, host_times

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
@pytest.mark.parametrize("name", ["cublas", "cublaslt"])
def test_the_first_candidate_is_right_also_when_it_is_restored(name, problem):
    baseline = BASELINES[name]
    assert baseline.missing() is None
    workload = make_workload(problem, l2_bytes=0)
    candidate = baseline.candidates(workload)[0]
    assert error_of(candidate, workload) < REL_ERR_MAX
    assert error_of(baseline.restore(workload, candidate.recipe), workload) < REL_ERR_MAX


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
    arm = make_arm(candidate.launch, workload, 0.001, 0.001)
    arm.timed.replay()
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


def test_a_chosen_algorithm_has_a_kernel_with_a_name():
    workload = make_workload(PROBLEMS[0], l2_bytes=0)
    candidate = BASELINES["cublaslt"].candidates(workload)[-1]
    assert kernel_of(candidate.launch, workload.sets[0]) != UNKNOWN


def test_a_comparison_fills_its_table_and_is_not_run_twice(tmp_path):
    sizes = (1024, 1024, 1024, 256, 512, 4096)
    comparison = Comparison.prepare(None, sizes, against="cublas,cublaslt", out=tmp_path)
    assert comparison.run() == 4
    frame = read_compare(tmp_path)
    assert frame["status"].tolist() == ["ok"] * 4
    assert (frame["theirs_rel_err"] < REL_ERR_MAX).all()
    assert (frame["kernel"] != UNKNOWN).all()
    lt = frame[frame["against"] == "cublaslt"]
    assert (lt["candidates"] > 3).all()
    assert "geometric mean" in (tmp_path / PAGE).read_text()
    assert Comparison.prepare(None, sizes, against="cublas,cublaslt", out=tmp_path).run() == 0


def test_the_host_time_of_a_launch_is_that_of_a_call_and_not_of_a_kernel():
    times = host_times()
    assert set(times) == {"torch.mm", "hopper_gemm.matmul", "kernel"}
    assert times["kernel"] < times["hopper_gemm.matmul"] < 50
