"""A recorded binary is timed by the file that describes it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import KernelId, KernelStore
from hopper_gemm.lab.guard.binaries import RecordedBinary, RecordedBinaryError, record_binary
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.baselines import BASELINES
from hopper_gemm.tune.measure.baselines.base import BaselineError
from hopper_gemm.tune.measure.workload import MatrixSet

PROBLEM = GemmProblem(16, 16, 16)
WORKLOAD = SimpleNamespace(problem=PROBLEM)
REPORT = CubinReport(168, 0, 0, 0, 8, 3, 2, 4, 500, "0" * 16)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The files of two binaries of one problem, and what was launched, by its stages."""
    launched = []

    def load(binary):
        def kernel(a, b, out):
            launched.append(binary.config.stages)
            out.copy_(a.float() @ b.float().t())

        return kernel

    monkeypatch.setattr(RecordedBinary, "load", load)
    binaries = []
    for stages in (2, 3):
        config, report = GemmConfig(tile_m=64, tile_n=64, stages=stages), replace(REPORT, code=f"code of {stages}")
        KernelStore(tmp_path / "store").put(KernelId.of(config, PROBLEM), b"%d" % stages, report)
        binaries.append(record_binary(tmp_path / "recorded", config, PROBLEM, tmp_path / "store"))
    return [str(binary.description) for binary in binaries], launched


def test_a_binary_is_restored_from_the_file_that_describes_it_wherever_that_lies(kept):
    files, launched = kept
    found = [BASELINES["recorded"].restore(WORKLOAD, file) for file in files]
    assert [(one.label, one.recipe) for one in found] == [("code of 2", files[0]), ("code of 3", files[1])]
    a, b, out = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16(), torch.zeros(16, 16).bfloat16()
    for candidate in found:
        out.zero_()
        candidate.launch(MatrixSet(a, b, out.clone(), out))
        assert torch.equal(candidate.product(MatrixSet(a, b, a, out)), (a.float() @ b.float().t()).bfloat16())
    assert launched == [2, 3]


def test_nothing_is_searched_where_no_file_is_named():
    with pytest.raises(BaselineError, match="no file names a recorded binary for 16x16x16; run hopper-gemm check"):
        BASELINES["recorded"].candidates(WORKLOAD)
    assert BASELINES["recorded"].missing() is None


def test_a_binary_that_is_gone_or_cannot_be_loaded_is_no_baseline_and_says_why(kept, tmp_path, monkeypatch):
    with pytest.raises(BaselineError, match=r"x\.json is no recorded binary .*; restore it from git"):
        BASELINES["recorded"].restore(WORKLOAD, str(tmp_path / "x.json"))

    def refuse(binary):
        raise RecordedBinaryError("x.o cannot be loaded with nvidia-cutlass-dsl 9.0")

    monkeypatch.setattr(RecordedBinary, "load", refuse)
    with pytest.raises(BaselineError, match="cannot be loaded with nvidia-cutlass-dsl 9"):
        BASELINES["recorded"].restore(WORKLOAD, kept[0][0])
