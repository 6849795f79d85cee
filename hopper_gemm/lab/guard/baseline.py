"""The binaries that were recorded for a problem: today's kernel beside what it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hopper_gemm.lab.guard.binaries import FOLDER, RecordedBinary, RecordedBinaryError, recorded_binaries
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.measure.baselines.base import Baseline, BaselineError, Candidate
from hopper_gemm.tune.measure.workload import MatrixSet, Workload


class RecordedBaseline(Baseline):
    """The fastest binary recorded for a problem, in the context and the regime that are asked about. Its label is the
    digest of its machine code.

    Args:
        root: folder of results by GPU; the package's own by default.
    """

    name = "recorded"
    seconds = 60.0

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    def missing(self) -> str | None:
        """Say that no binary is recorded; None where there are some."""
        return None if self._binaries() else f"no binaries are recorded under {self._root or results_root()}"

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """The recorded binaries of the problem."""
        found = [_candidate(one) for one in self._binaries() if one.problem == workload.problem]
        if not found:
            raise BaselineError(f"no binary is recorded for {workload.problem} {workload.problem.dtype}")
        return found

    def restore(self, workload: Workload, recipe: str) -> Candidate:
        """The problem's binary of a machine code."""
        return next(one for one in self.candidates(workload) if one.recipe == recipe)

    def _binaries(self) -> list[RecordedBinary]:
        folders = sorted((self._root or results_root()).glob(f"*/{FOLDER}"))
        return [binary for folder in folders for binary in recorded_binaries(folder)]


def _candidate(binary: RecordedBinary) -> Candidate:
    try:
        kernel = binary.load()
    except RecordedBinaryError as error:
        raise BaselineError(str(error)) from error

    def launch(operands: MatrixSet) -> None:
        kernel(operands.a, operands.b, operands.theirs)

    return Candidate(launch, binary.report.code, binary.report.code)
