"""The guard of the best configs: do they still run, still compute the right product, still reach what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hopper_gemm.measure.statistics import Pair, Ratio, noise_floor, speedup
from hopper_gemm.measure.verdict import Regression, regression
from hopper_gemm.tables.tuned import TunedEntry
from hopper_gemm.tuning.backend import Answer, Backend
from hopper_gemm.tuning.space import Point

MARGIN = 0.02
"""The loosest noise floor at which a comparison still means something."""


@dataclass(frozen=True)
class Checked:
    """One entry of the tuned table and what became of it."""

    entry: TunedEntry
    verdict: Regression

    def as_dict(self) -> dict[str, str]:
        """Ready for JSON."""
        asked = {"problem": str(self.entry.problem), "regime": self.entry.regime, "config": str(self.entry.config)}
        return {**asked, "status": self.verdict.status, "message": self.verdict.message}


def check(entries: Iterable[TunedEntry], backend: Backend, margin: float = MARGIN) -> Iterator[Checked]:
    """Measure every entry anew and hold it against its record.

    Args:
        entries: of the tuned table of this kind of GPU.
        backend: what measures.
        margin: see :data:`MARGIN`.
    """
    entries = list(entries)
    points = [Point(entry.problem, entry.regime, entry.config) for entry in entries]
    backend.prepare(points)
    for entry, point in zip(entries, points, strict=True):
        yield Checked(entry, _verdict(entry, backend.control(point), backend.measure(point), margin))


def recorded_ratio(entry: TunedEntry) -> Ratio:
    """The recorded speedup with its interval."""
    return Ratio(entry.speedup, entry.speedup_low, entry.speedup_high, pairs=0)


def _verdict(entry: TunedEntry, control: Answer, now: Answer, margin: float) -> Regression:
    if now.status != "ok":
        return Regression("fallen", f"{now.status.replace('_', ' ')}: {now.reason}")
    if control.status != "ok":
        return Regression("skipped", f"cuBLAS against itself could not be timed: {control.reason}")
    noise = max(entry.noise, noise_floor(speedup(_pairs(control))))
    return regression(recorded_ratio(entry), speedup(_pairs(now)), noise, margin)


def _pairs(answer: Answer) -> list[Pair]:
    return [Pair(*sample) for sample in answer.samples]
