"""What answers a point: a GPU, or a recorded study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec


@dataclass(frozen=True)
class Answer:
    """What a backend says of a point.

    Args:
        status: of the results schema.
        reason: why it is not ok.
        figures: columns of the schema, from ``speedup`` on; empty where the status is not ok.
        samples: (process, ours_us, cublas_us) of every pair.
    """

    status: str
    reason: str
    figures: dict[str, Any]
    samples: tuple[tuple[int, float, float], ...] = ()


class Backend(Protocol):
    """Answers points. A backend that fails on one point answers with a status; it raises only when it is of no
    use any more."""

    source: str
    """``"measured"`` or ``"replayed"``."""

    elsewhere: bool
    """Whether another process measures, so that this one can think meanwhile."""

    busy: float
    """Seconds so far in which that process was at work."""

    def describe(self) -> dict[str, Any]:
        """The GPU, and whatever else belongs into provenance."""
        ...

    def prepare(self, points: Sequence[Point]) -> None:
        """Told all points to come, in their order, so that compiling can run ahead."""
        ...

    def ready(self, point: Point) -> bool:
        """Whether a point can be measured without waiting for its compilation."""
        ...

    def control(self, point: Point) -> Answer:
        """cuBLAS against itself on the point's problem and regime."""
        ...

    def code(self, point: Point) -> str:
        """Digest of the machine code that a point runs, waiting for its compilation; empty where it is not known."""
        ...

    def measure(self, point: Point, pairs: int | None = None) -> Answer:
        """Measure a point for the sweep, with so many pairs or as many as the protocol says."""
        ...

    def finals(self, points: Sequence[Point]) -> Iterable[tuple[Point, Answer]]:
        """Measure the best points of one study again, in fresh processes. Each is answered once, as soon as its figures
        are final, in any order."""
        ...

    def cublas_kernel(self, problem: GemmProblem) -> str:
        """Name of the kernel that cuBLAS runs; empty where that is not known. Asked when nothing is being timed."""
        ...

    def serving(self, spec: SweepSpec) -> Backend:
        """This backend for another sweep, with all that it has started and learnt; not for the old one any more."""
        ...

    def close(self) -> None:
        """Release processes; may be called more than once."""
        ...
