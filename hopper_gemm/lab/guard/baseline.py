"""The binary that was recorded for a problem: today's kernel beside what it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hopper_gemm.lab.guard.binaries import RecordedBinaryError, read_binary
from hopper_gemm.tune.measure.baselines.base import Baseline, BaselineError, Candidate
from hopper_gemm.tune.measure.workload import MatrixSet, Workload


class RecordedBaseline(Baseline):
    """A binary that is kept beside a tuned table. Its recipe is the file that describes it, so that whoever asks for it
    says from which table; there is none to search for."""

    name = "recorded"
    seconds = 60.0

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Refuse: a recorded binary is asked for by its file."""
        raise BaselineError(f"no file names a recorded binary for {workload.problem}; run hopper-gemm check")

    def restore(self, workload: Workload, recipe: str) -> Candidate:
        """The binary that a file describes.

        Raises:
            BaselineError: it is damaged, or the DSL installed cannot load it.
        """
        try:
            binary = read_binary(Path(recipe))
            kernel = binary.load()
        except RecordedBinaryError as error:
            raise BaselineError(str(error)) from error

        def launch(operands: MatrixSet) -> None:
            kernel(operands.a, operands.b, operands.theirs)

        return Candidate(launch, binary.report.code, recipe)
