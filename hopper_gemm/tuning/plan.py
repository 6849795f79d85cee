"""What a sweep would do, counted before anything is measured; and how far it is, told after each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec


@dataclass(frozen=True)
class Plan:
    """What a sweep would do, for a dry run.

    Args:
        total: points, refused ones included.
        refused: points that a rule refuses, by rule.
        skipped: how many of these get no row.
        recorded: legal points that already have a row.
        most: rows that the budget allows, or None where every legal point gets one.
        each: seconds that a point takes on the GPU by its protocol, on average; compiling runs beside.
    """

    total: int
    refused: dict[str, int]
    skipped: int
    recorded: int
    most: int | None = None
    each: float = 0.0

    @property
    def legal(self) -> int:
        """Points that can run."""
        return self.total - sum(self.refused.values())

    @property
    def open(self) -> int:
        """Points to be measured."""
        return max(0, min(self.legal, self.legal if self.most is None else self.most) - self.recorded)

    @property
    def minutes(self) -> float:
        """Expected time on the GPU."""
        return self.open * self.each / 60

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        counts = {name: getattr(self, name) for name in ("legal", "open", "recorded")}
        minutes = round(self.minutes, 2)
        return {"points": self.total, **counts, "minutes": minutes, "refused": self.refused, "skipped": self.skipped}

    def lines(self) -> list[str]:
        """For a person."""
        refused = ", ".join(f"{count} by {rule}" for rule, count in self.refused.items()) or "none"
        skipped = f" ({self.skipped} of them skipped)" if self.skipped else ""
        rows = self.open + self.recorded
        legal = f" of {self.legal} legal ones" if rows < self.legal else ""
        return [
            f"{self.total} points: {self.open} to measure, {self.recorded} recorded, refused: {refused}{skipped}",
            f"{rows}{legal} get a row; timing those that are left takes {self.minutes:.1f} minutes",
        ]


def timing_seconds(spec: SweepSpec, regime: str) -> float:
    """Seconds that a point of a regime takes by its protocol, both arms; timing alone."""
    if regime == "burst":
        return 2 * spec.burst.pairs * (spec.burst.rest + spec.burst.warm + spec.burst.timed)
    return 2 * spec.steady.pairs * (spec.steady.settle + spec.steady.window)


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each step.

    Args:
        point: just answered.
        answer: the answer.
        stage: ``"sweep"`` or ``"final"``.
        done, total: points with a row, and points in all.
        best: best figure so far on this problem and regime.
        goal: name of that figure.
    """

    point: Point
    answer: Answer
    stage: str
    done: int
    total: int
    best: float | None
    goal: str = "speedup"


Watcher = Callable[[Progress], None]
