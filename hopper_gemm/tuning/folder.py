"""A sweep's results folder: one process at a time writes into it, and whatever is on disk stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.locks import FileLock
from hopper_gemm.tables.schema import CARRIED, NAMES
from hopper_gemm.tables.trials import (
    FINALS,
    PROVENANCE,
    SAMPLE_NAMES,
    SAMPLES,
    TRIALS,
    AppendFile,
    ResultsError,
    packed,
    read_json,
    read_samples,
    read_trials,
    row_key,
    write_json,
)
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.rows import point_of, problem_of, row_of
from hopper_gemm.tuning.space import Point

LOCK = ".sweep.lock"

Answers = dict[Point, Answer]


class SweepFolder:
    """The files of a sweep.

    Args:
        path: the folder; made when it is entered.
        name: of the sweep.
        digest: of its question.

    Raises:
        ResultsError: the folder holds another sweep, or takes no more rows.
    """

    def __init__(self, path: Path, name: str, digest: str) -> None:
        self.path = path
        self._name = name
        self._digest = digest
        self._files = {"sweep": AppendFile(path / TRIALS, NAMES), "final": AppendFile(path / FINALS, NAMES)}
        self._samples = AppendFile(path / SAMPLES, SAMPLE_NAMES)
        self._refuse_another()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder and hold it: it is one process's, two would tear each other's rows.

        Raises:
            ResultsError: it cannot be made or written, or another process holds it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(
                f"{self.path} cannot be made ({error.strerror}); name another folder with --out"
            ) from None
        if not os.access(self.path, os.W_OK):
            raise ResultsError(f"{self.path} cannot be written; name another folder with --out")
        lock = FileLock(self.path / LOCK)
        if not lock.take(wait=False):
            raise ResultsError(
                f"another process is at work in {self.path}; wait for it, or name another folder with --out and one "
                "--storage for both, to share the sweep"
            )
        try:
            yield
        finally:
            lock.release()

    # What the folder says of itself ----------------------------------------------------------

    def about(self) -> dict[str, Any] | None:
        """Its provenance; None before the first run."""
        path = self.path / PROVENANCE
        return read_json(path) if path.is_file() else None

    def note(self, about: dict[str, Any]) -> None:
        """Write the provenance."""
        write_json(self.path / PROVENANCE, about)

    def begin(self, fresh: dict[str, Any]) -> dict[str, Any]:
        """The provenance of an earlier run, or this one's written down.

        Raises:
            ResultsError: the earlier run had another source, kind of GPU or kernel.
        """
        about = self.about()
        if about is None:
            self.note(fresh)
            return fresh
        for name, of in (
            ("source", lambda a: a["source"]),
            ("GPU", lambda a: a["gpu"]["name"]),
            ("kernel", lambda a: a.get("kernel")),
        ):
            if of(about) != of(fresh):
                raise ResultsError(
                    f"{self.path} was begun with another {name} ({of(about)}, now {of(fresh)}); "
                    "name another folder with --out"
                )
        return about

    def _refuse_another(self) -> None:
        path = self.path
        if path.exists() and not path.is_dir():
            raise ResultsError(f"{path} is a file; name a folder with --out")
        if any(packed(path / name).is_file() and not (path / name).is_file() for name in (TRIALS, SAMPLES)):
            raise ResultsError(f"{path} is packed and takes no more rows; name another folder with --out")
        about = self.about()
        if about is None and (path / TRIALS).exists():
            raise ResultsError(f"{path} holds {TRIALS} without {PROVENANCE}; name another folder with --out")
        if about is not None and about.get("spec_digest") != self._digest:
            raise ResultsError(
                f"{path} holds another sweep (its file has changed since); name another folder with --out"
            )

    # Rows ------------------------------------------------------------------------------------

    def trials(self) -> Answers:
        """Every point with a row, and what was answered."""
        return {point_of(row): _answer_of(row) for row in self._rows(TRIALS)}

    def finals(self) -> Answers:
        """The same of the finals."""
        return {point_of(row): _answer_of(row) for row in self._rows(FINALS)}

    def record(self, point: Point, answer: Answer, about: dict[str, Any], stage: str = "sweep") -> None:
        """Add a row to the sweep's or the finals'. Samples first: a row on disk means that everything about it is."""
        self.sample(point, answer, stage, str(point.config))
        row = row_of(point, answer, study=self._name, source=about["source"], gpu=about["gpu"]["name"])
        self._files[stage].append([row])

    def refuse(self, points: Iterable[Point], about: dict[str, Any]) -> None:
        """Give points that a rule refuses their rows, where they have none."""
        known = {row_key(row) for row in self._rows(TRIALS)}
        for point in points:
            if row_key(row_of(point)) not in known:
                self.record(point, Answer("illegal", point.refused, {}), about)

    def sample(self, point: Point, answer: Answer, stage: str, config: str) -> None:
        """Add an answer's pairs of times, if it has any."""
        if not answer.samples:
            return
        problem = point.problem
        key = {"m": problem.m, "n": problem.n, "k": problem.k, "data": point.data, "regime": point.regime}
        self._samples.append(
            {**key, "config": config, "stage": stage, "process": process, "ours_us": ours, "cublas_us": theirs}
            for process, ours, theirs in answer.samples
        )

    def with_samples(self, answers: Iterable[tuple[Point, Answer]]) -> list[tuple[Point, Answer]]:
        """Answers read back together with the sweep's pairs of times."""
        kept: dict[tuple[Any, ...], list[tuple[int, float, float]]] = {}
        frame = read_samples(self.path)
        for row in frame[frame["stage"] == "sweep"].itertuples():
            key = (row.m, row.n, row.k, row.data, row.regime, row.config)
            kept.setdefault(key, []).append((int(row.process), float(row.ours_us), float(row.cublas_us)))

        def key_of(point: Point) -> tuple[Any, ...]:
            problem = point.problem
            return (problem.m, problem.n, problem.k, point.data, point.regime, str(point.config))

        return [(point, replace(answer, samples=tuple(kept.get(key_of(point), ())))) for point, answer in answers]

    def name_cublas(self, ask: Callable[[GemmProblem], str]) -> dict[GemmProblem, str]:
        """The kernel that cuBLAS runs for each problem, put into the rows that lack it.

        Args:
            ask: for a problem's kernel, where no row names it.
        """
        ran = [row for row in self._rows(TRIALS) if row["status"] == "ok"]
        names = {problem_of(row): row["cublas_kernel"] for row in ran if row["cublas_kernel"]}
        unnamed = {problem_of(row) for row in ran if not row["cublas_kernel"]}
        if unnamed:
            names |= {problem: ask(problem) for problem in unnamed - set(names)}
            self._files["sweep"].fill(
                "cublas_kernel", lambda row: names.get(problem_of(row), "") if row["status"] == "ok" else ""
            )
        return names

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """The latest row of each point."""
        path = self.path / name
        if not path.is_file() or not path.stat().st_size:
            return []
        return list({row_key(row): row for row in read_trials(path).to_dict("records")}.values())


def _answer_of(row: dict[str, Any]) -> Answer:
    figures = {name: row[name] for name in CARRIED if not pd.isna(row[name])}
    return Answer(row["status"], row["reason"], figures)
