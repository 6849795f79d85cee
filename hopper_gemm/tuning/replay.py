"""A recorded study as a backend: the same sweep, answered from its tables, with no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.places import shown
from hopper_gemm.tables.report import Study, read_study
from hopper_gemm.tables.schema import CARRIED, KEY
from hopper_gemm.tables.trials import read_samples, row_key
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.rows import row_of
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec


class ReplayBackend:
    """Answers from a results folder.

    Args:
        folder: of the recorded study.

    Raises:
        ResultsError: the folder is not one.
    """

    source = "replayed"
    elsewhere = False
    busy = 0.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._study: Study = read_study(folder)
        self._trials = _by_key(self._study.trials)
        self._finals = _by_key(self._study.finals)
        self._samples = read_samples(folder)

    def describe(self) -> dict[str, Any]:
        """The recorded GPU and protocol."""
        about = self._study.provenance
        carried = ("gpu", "versions", "protocols", "kernel", "noise")
        return {**{name: about[name] for name in carried if name in about}, "replayed_from": shown(self._folder)}

    def prepare(self, points: Sequence[Point]) -> None:
        """Nothing to compile."""

    def ready(self, point: Point) -> bool:
        """Always."""
        return True

    def control(self, point: Point) -> Answer:
        """The recorded noise floor stands in the provenance; there are no new samples."""
        return Answer("ok", "", {}, self._samples_of(point, "control", "cublas"))

    def code(self, point: Point) -> str:
        """Not asked: a recorded row costs nothing."""
        return ""

    def measure(self, point: Point, pairs: int | None = None) -> Answer:
        """The recorded row, whatever pairs it has."""
        return self._answer(self._trials, point, "sweep")

    def finals(self, points: Sequence[Point]) -> Iterator[tuple[Point, Answer]]:
        """The recorded finals of the same configs."""
        for point in points:
            yield point, self._answer(self._finals, point, "final")

    def cublas_kernel(self, problem: GemmProblem) -> str:
        """Recorded with the rows, or not known."""
        return ""

    def serving(self, spec: SweepSpec) -> ReplayBackend:
        """What is recorded depends on no question."""
        return self

    def close(self) -> None:
        """Nothing to release."""

    def _answer(self, rows: dict[tuple[str, ...], dict[str, Any]], point: Point, stage: str) -> Answer:
        row = rows.get(row_key(row_of(point)))
        if row is None:
            return Answer("illegal", f"not recorded in {shown(self._folder)}; measure it on a Hopper GPU", {})
        figures = {name: row[name] for name in CARRIED if not pd.isna(row[name])}
        return Answer(row["status"], row["reason"], figures, self._samples_of(point, stage, str(point.config)))

    def _samples_of(self, point: Point, stage: str, config: str) -> tuple[tuple[int, float, float], ...]:
        s, p = self._samples, point.problem
        chosen = s[
            (s.m == p.m)
            & (s.n == p.n)
            & (s.k == p.k)
            & (s.data == point.data)
            & (s.regime == point.regime)
            & (s.stage == stage)
            & (s.config == config)
        ]
        return tuple(zip(chosen.process.tolist(), chosen.ours_us.tolist(), chosen.cublas_us.tolist(), strict=True))


def _by_key(frame: pd.DataFrame) -> dict[tuple[str, ...], dict[str, Any]]:
    records = frame.to_dict("records")
    return {row_key({name: record[name] for name in KEY}): record for record in records}
