"""Baseline of the recorded binary of a problem, with which today's kernel is compared. Only a worker loads it: its
imports are torch and the DSL, which a check's coordinator does without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hopper_gemm.lab.guard.binaries import RecordedBinaryError, read_binary
from hopper_gemm.tune.measure.baselines.base import Baseline, BaselineError, Candidate
from hopper_gemm.tune.measure.workload import MatrixSet, Workload


class RecordedBaseline(Baseline):
    """A binary that is kept beside a tuned table. Its recipe is the path of its description; a search has no
    candidates."""

    name = "recorded"

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Raise: a recorded binary is restored by its file."""
        raise BaselineError(f"no file names a recorded binary for {workload.problem}; run hopper-gemm check")

    def restore(self, workload: Workload, recipe: str) -> Candidate:
        """Return the binary that a file describes.

        Raises:
            BaselineError: the binary is damaged, or the installed DSL cannot load it.
        """
        try:
            binary = read_binary(Path(recipe))
            kernel = binary.load()
        except RecordedBinaryError as error:
            raise BaselineError(str(error)) from error

        def launch(operands: MatrixSet) -> None:
            kernel(operands.a, operands.b, operands.theirs)

        return Candidate(launch, binary.report.code, recipe)
