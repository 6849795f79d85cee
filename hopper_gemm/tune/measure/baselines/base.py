"""What a kernel of ours is compared with: one interface for every library that multiplies matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hopper_gemm.tune.measure.arms import Launch
from hopper_gemm.tune.measure.workload import MatrixSet, Workload


class BaselineError(RuntimeError):
    """A baseline has nothing that runs the problem; the message says why."""


def written(operands: MatrixSet) -> torch.Tensor:
    """Where a baseline writes unless it says otherwise."""
    return operands.theirs


@dataclass(frozen=True)
class Candidate:
    """One way in which a baseline can run a problem.

    Args:
        launch: runs it on a set of matrices, on torch's current stream.
        label: what tells it from the baseline's others, in the baseline's own words; empty where it has only one.
        recipe: text that makes it again in another process, by :meth:`Baseline.restore`; empty where the baseline has
            only one candidate.
        product: where the last launch on a set has left its product.
        seeded: whether it is timed to the end, however it does in the first rounds.
        variants: others like it, to be tried where it is near the fastest.
    """

    launch: Launch
    label: str = ""
    recipe: str = ""
    product: Callable[[MatrixSet], torch.Tensor] = written
    seeded: bool = False
    variants: Callable[[], Sequence[Candidate]] = tuple


class Baseline:
    """A library that multiplies matrices, and how it is asked.

    Where it offers several ways, all are candidates, and our clock chooses among them, not the library: see
    :mod:`hopper_gemm.tune.measure.baselines.choose`.
    """

    name: str
    """On the command line and in results."""

    seconds: float
    """Allowance for making the candidates of a problem and choosing among them."""

    def missing(self) -> str | None:
        """Why it cannot be asked here, with the fix; None where it can."""
        return None

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Every way in which it can run the problem; at least one.

        Raises:
            BaselineError: it cannot run the problem.
        """
        raise NotImplementedError

    def restore(self, workload: Workload, recipe: str) -> Candidate:
        """The candidate that a recipe is of, for a workload of the same problem; the first where there is only one."""
        return self.candidates(workload)[0]
