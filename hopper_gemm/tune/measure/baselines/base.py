"""Baselines: one interface for every library that multiplies matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch

from hopper_gemm.tune.measure.arms import Launch
from hopper_gemm.tune.measure.workload import MatrixSet, Workload


class BaselineError(RuntimeError):
    """A baseline cannot run the problem; the message says why."""


@dataclass(frozen=True)
class Care:
    """Effort of the search for the fastest of a baseline's candidates."""

    near: float = 1.3  # candidates that take longer than this times the shortest are not timed further
    varied: int = 8  # number of candidates of which variants are tried
    semifinalists: int = 24  # number of candidates that are timed in short bursts, short_rounds times
    finalists: int = 6  # number of candidates that are timed in bursts as long as the comparison's, rounds times
    short_rounds: int = 3
    rounds: int = 7


@dataclass(frozen=True)
class Candidate:
    """An algorithm by which a baseline can run a problem."""

    launch: Launch  # runs it on a set of matrices, on torch's current stream
    # distinguishes it from the baseline's other candidates, in the baseline's own words; empty if it is the only
    # candidate
    label: str = ""
    recipe: str = ""  # text from which Baseline.restore makes it in another process; empty for an only candidate
    product: Callable[[MatrixSet], torch.Tensor] = attrgetter("theirs")  # of the last launch on a set
    seeded: bool = False  # True if it stays in the search to the end, whatever its first times
    # makes similar candidates, which are tried if this one is near the fastest
    variants: Callable[[], Sequence[Candidate]] = tuple


class Baseline:
    """A library that multiplies matrices. All of its algorithms are candidates; our clock chooses among them, not the
    library: see :mod:`hopper_gemm.tune.measure.baselines.choose`."""

    name: str
    """Name on the command line and in results."""

    care: Care = Care()
    """Effort of the search for the fastest candidate."""

    def missing(self) -> str | None:
        """Return why the baseline cannot run here, with the fix; None if it can."""
        return None

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Return every candidate for the problem, at least one; a BaselineError says why the library cannot run it."""
        raise NotImplementedError

    def restore(self, workload: Workload, recipe: str) -> Candidate:
        """Return the candidate of a recipe, for a workload of the same problem; by default the only candidate."""
        return self.candidates(workload)[0]
