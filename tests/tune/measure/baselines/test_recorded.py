"""Recorded binaries are candidates for their problem, and no other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import KernelId, KernelStore
from hopper_gemm.lab.guard.baseline import RecordedBaseline
from hopper_gemm.lab.guard.binaries import RecordedBinary, RecordedBinaryError, record_binary
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.baselines import BASELINES
from hopper_gemm.tune.measure.baselines.base import BaselineError
from hopper_gemm.tune.measure.workload import MatrixSet

PROBLEM, OTHER = GemmProblem(16, 16, 16), GemmProblem(32, 16, 16)


@pytest.fixture
def baseline(tmp_path, monkeypatch):
    """Two binaries of one problem, and one of another."""
    launched = []

    def load(binary):
        def kernel(a, b, out):
            launched.append(binary.config.stages)
            out.copy_(a.float() @ b.float().t())

        return kernel

    monkeypatch.setattr(RecordedBinary, "load", load)
    for stages, problem in ((2, PROBLEM), (3, PROBLEM), (4, OTHER)):
        config = GemmConfig(tile_m=64, tile_n=64, stages=stages)
        report = CubinReport(168, 0, 0, 0, 8, 3, 2, 4, 500, f"code of {stages}")
        KernelStore(tmp_path / "store").put(KernelId.of(config, problem), b"%d" % stages, report)
        record_binary(tmp_path / "results" / "h200" / "recorded", config, problem, tmp_path / "store")
    return RecordedBaseline(tmp_path / "results"), launched


def test_the_binaries_of_a_problem_are_its_candidates_by_their_code(baseline):
    one, launched = baseline
    candidates = one.candidates(SimpleNamespace(problem=PROBLEM))
    assert sorted(candidate.label for candidate in candidates) == ["code of 2", "code of 3"]
    a, b, out = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16(), torch.zeros(16, 16).bfloat16()
    for candidate in (candidates[0], one.restore(SimpleNamespace(problem=PROBLEM), candidates[0].recipe)):
        out.zero_()
        candidate.launch(MatrixSet(a, b, out.clone(), out))
        assert torch.equal(candidate.product(MatrixSet(a, b, a, out)), (a.float() @ b.float().t()).bfloat16())
    assert launched[0] == launched[1]


def test_a_problem_without_a_recorded_binary_is_refused(baseline):
    with pytest.raises(BaselineError, match="no binary is recorded for 8x8x8 fp16"):
        baseline[0].candidates(SimpleNamespace(problem=GemmProblem(8, 8, 8, "fp16")))


def test_it_is_missing_where_nothing_is_recorded(baseline, tmp_path):
    assert baseline[0].missing() is None
    assert RecordedBaseline(tmp_path / "none").missing() == f"no binaries are recorded under {tmp_path / 'none'}"
    assert isinstance(BASELINES["recorded"], RecordedBaseline)


def test_a_binary_that_cannot_be_loaded_is_no_baseline_and_says_why(baseline, monkeypatch):
    def refuse(binary):
        raise RecordedBinaryError("x.o cannot be loaded with nvidia-cutlass-dsl 9.0")

    monkeypatch.setattr(RecordedBinary, "load", refuse)
    with pytest.raises(BaselineError, match="cannot be loaded with nvidia-cutlass-dsl 9"):
        baseline[0].candidates(SimpleNamespace(problem=PROBLEM))
