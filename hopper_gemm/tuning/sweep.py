"""Running a sweep: ask, measure, write, tell; whatever happens, what is on disk stays and the rest goes on later."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.measure.statistics import Pair, noise_floor, speedup
from hopper_gemm.tables.publish import publish
from hopper_gemm.tables.schema import FIGURES, NAMES
from hopper_gemm.tables.trials import (
    FINALS,
    PROVENANCE,
    SAMPLE_NAMES,
    SAMPLES,
    TRIALS,
    AppendFile,
    ResultsError,
    read_json,
    read_trials,
    row_key,
    write_json,
)
from hopper_gemm.tables.tuned import FILE as TUNED
from hopper_gemm.tables.tuned import TunedEntry, write_tuned
from hopper_gemm.tuning.backend import Answer, Backend
from hopper_gemm.tuning.provenance import provenance
from hopper_gemm.tuning.queue import Asked, PointQueue, open_storage
from hopper_gemm.tuning.rows import row_of
from hopper_gemm.tuning.space import Point, points, refused_by_rule, with_row
from hopper_gemm.tuning.spec import SweepSpec

JOURNAL = "study.journal"
HOPELESS = 5
"""So many crashes from the first point on, and the sweep ends."""


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each step.

    Args:
        point: just answered.
        answer: the answer.
        stage: ``"sweep"`` or ``"final"``.
        done, total: points with a row, and points in all.
        best: best speedup so far on this problem and regime.
    """

    point: Point
    answer: Answer
    stage: str
    done: int
    total: int
    best: float | None


Watcher = Callable[[Progress], None]


@dataclass(frozen=True)
class Plan:
    """What a sweep would do, for a dry run.

    Args:
        total: points, refused ones included.
        refused: points that a rule refuses, by rule.
        skipped: how many of these get no row.
        recorded: points that already have a row.
    """

    total: int
    refused: dict[str, int]
    skipped: int
    recorded: int

    @property
    def open(self) -> int:
        """Points to be measured."""
        return self.total - sum(self.refused.values()) - self.recorded


class SweepError(ValueError):
    """The sweep cannot go on; the message says why and the mend."""


class Sweep:
    """A sweep in its results folder.

    Args:
        spec: the question.
        out: the results folder; made if need be.
        storage: Optuna storage; by default a journal file in the folder.

    Raises:
        ResultsError: the folder holds another sweep, or cannot be written.
    """

    def __init__(self, spec: SweepSpec, out: Path, storage: str | None = None) -> None:
        self.spec = spec
        self.out = out
        self._storage = storage or str(out / JOURNAL)
        self._all = points(spec)
        self._points = with_row(spec, self._all)
        self._trials = AppendFile(out / TRIALS, NAMES)
        self._finals = AppendFile(out / FINALS, NAMES)
        self._samples = AppendFile(out / SAMPLES, SAMPLE_NAMES)
        self._refuse_another()

    def plan(self) -> Plan:
        """What there is to do."""
        rows = self._rows(TRIALS)
        recorded = sum(row_key(row_of(point)) in rows for point in self._points if not point.refused)
        return Plan(
            total=len(self._all),
            refused=refused_by_rule(self._all),
            skipped=len(self._all) - len(self._points),
            recorded=recorded,
        )

    def run(self, backend: Backend, watch: Watcher = lambda progress: None, trials: int | None = None) -> None:
        """Measure what has no row yet, then the finals, then write the tables.

        Args:
            backend: what answers points.
            watch: told after each answer.
            trials: stop after so many points, leaving the rest for later.
        """
        about = self._open(backend)
        started = time.monotonic()
        rows = self._rows(TRIALS)
        self._write_refused(rows, about)
        legal = [point for point in self._points if not point.refused]
        todo = [point for point in legal if row_key(row_of(point)) not in rows][:trials]
        done = [(point, _answer_of(rows[row_key(row_of(point))])) for point in legal if row_key(row_of(point)) in rows]
        backend.prepare(todo)
        best = {study: _best(done, study) for study in {point.study for point in legal}}
        count = len(self._points) - len(todo)
        queue = PointQueue(open_storage(self._storage), self.spec.name, todo, done, legal, self.spec.seed)
        for asked, answer in _unless_all_crash(self._answers(queue, backend, about), len(todo)):
            self._record(self._trials, asked.point, answer, about, "sweep")
            queue.tell(asked, answer)
            count += 1
            if answer.status == "ok":
                best[asked.point.study] = max(answer.figures["speedup"], best[asked.point.study] or 0.0)
            watch(Progress(asked.point, answer, "sweep", count, len(self._points), best[asked.point.study]))
        if len(todo) + len(done) == len(legal):
            self._measure_finals(backend, about, watch)
        about["seconds"] = round(about.get("seconds", 0) + time.monotonic() - started, 1)
        write_json(self.out / PROVENANCE, about)
        publish(self.out)

    # -----------------------------------------------------------------------------------------

    def _answers(self, queue: PointQueue, backend: Backend, about: dict[str, Any]) -> Iterator[tuple[Asked, Answer]]:
        for asked in queue:
            self._control(backend, asked.point, about)
            yield asked, backend.measure(asked.point)

    def _refuse_another(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise ResultsError(f"{self.out} is a file; name a folder with --out")
        if not (self.out / PROVENANCE).is_file():
            if (self.out / TRIALS).exists():
                raise ResultsError(f"{self.out} holds {TRIALS} without {PROVENANCE}; name another folder with --out")
            return
        digest = read_json(self.out / PROVENANCE).get("spec_digest")
        if digest != self.spec.digest:
            raise ResultsError(
                f"{self.out} holds another sweep (its file has changed since); name another folder with --out"
            )

    def _open(self, backend: Backend) -> dict[str, Any]:
        """Make the folder and its provenance, or take up those of an earlier run on the same kind of GPU."""
        described = backend.describe()
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(
                f"{self.out} cannot be made ({error.strerror}); name another folder with --out"
            ) from None
        if not os.access(self.out, os.W_OK):
            raise ResultsError(f"{self.out} cannot be written; name another folder with --out")
        fresh = provenance(self.spec, backend.source, described)
        if (self.out / PROVENANCE).is_file():
            about = read_json(self.out / PROVENANCE)
            for name, of in (
                ("source", lambda a: a["source"]),
                ("GPU", lambda a: a["gpu"]["name"]),
                ("kernel", lambda a: a.get("kernel")),
            ):
                if of(about) != of(fresh):
                    raise ResultsError(
                        f"{self.out} was begun with another {name} ({of(about)}, now {of(fresh)}); "
                        "name another folder with --out"
                    )
            return about
        write_json(self.out / PROVENANCE, fresh)
        return fresh

    def _rows(self, name: str) -> dict[tuple[str, ...], dict[str, Any]]:
        if not (self.out / name).is_file() or not (self.out / name).stat().st_size:
            return {}
        return {row_key(row): row for row in read_trials(self.out / name).to_dict("records")}

    def _write_refused(self, rows: dict[tuple[str, ...], dict[str, Any]], about: dict[str, Any]) -> None:
        new = [point for point in self._points if point.refused and row_key(row_of(point)) not in rows]
        for point in new:
            self._record(self._trials, point, Answer("illegal", point.refused, {}), about, "sweep")

    def _control(self, backend: Backend, point: Point, about: dict[str, Any]) -> None:
        """The noise floor, once for each problem, regime and kind of data."""
        name = point.place
        if name in about["noise"]:
            return
        answer = backend.control(point)
        if answer.status == "ok" and answer.samples:
            pairs = [Pair(*sample) for sample in answer.samples]
            about["noise"][name] = round(noise_floor(speedup(pairs)), 6)
            self._sample(point, answer, "control", "cublas")
            write_json(self.out / PROVENANCE, about)

    def _record(self, file: AppendFile, point: Point, answer: Answer, about: dict[str, Any], stage: str) -> None:
        """Samples first: a row on disk means that everything about it is."""
        if answer.samples:
            self._sample(point, answer, stage, str(point.config))
        row = row_of(point, answer, study=self.spec.name, source=about["source"], gpu=about["gpu"]["name"])
        file.append([row])

    def _sample(self, point: Point, answer: Answer, stage: str, config: str) -> None:
        problem = point.problem
        key = {"m": problem.m, "n": problem.n, "k": problem.k, "data": point.data, "regime": point.regime}
        self._samples.append(
            {**key, "config": config, "stage": stage, "process": process, "ours_us": ours, "cublas_us": theirs}
            for process, ours, theirs in answer.samples
        )

    def _measure_finals(self, backend: Backend, about: dict[str, Any], watch: Watcher) -> None:
        """The best of each problem and regime once more: the best of a sweep is otherwise its luckiest sample."""
        if not self.spec.final.best:
            return
        finals = self._rows(FINALS)
        trials = read_trials(self.out / TRIALS)
        by_key = {row_key(row_of(point)): point for point in self._points}
        chosen: list[Point] = []
        for study in dict.fromkeys(point.study for point in self._points):
            keys = {key for key, point in by_key.items() if point.study == study}
            rows = [row for row in trials[trials["status"] == "ok"].to_dict("records") if row_key(row) in keys]
            rows.sort(key=lambda row: -row["speedup"])
            chosen += [by_key[row_key(row)] for row in rows[: self.spec.final.best]]
        todo = [point for point in chosen if row_key(row_of(point)) not in finals]
        for i, point in enumerate(todo, 1):
            answer = backend.final(point)
            self._tune(point, answer, about)
            self._record(self._finals, point, answer, about, "final")
            watch(Progress(point, answer, "final", i, len(todo), answer.figures.get("speedup")))

    def _tune(self, point: Point, answer: Answer, about: dict[str, Any]) -> None:
        """Put a measured final into the tuned table beside the study's folder, if it ran on data like a user's."""
        if about["source"] != "measured" or answer.status != "ok" or point.data != "normal":
            return
        names = ("speedup", "speedup_low", "speedup_high", "registers", "wgmma", "instructions", "code")
        entry = TunedEntry(
            problem=point.problem,
            regime=point.regime,
            config=point.config,
            noise=about["noise"].get(point.place, 0.0),
            study=self.spec.name,
            gpu=about["gpu"]["name"],
            **{name: answer.figures[name] for name in names},
        )
        write_tuned(self.out.parent / TUNED, [entry])


def _unless_all_crash(answers: Iterable[tuple[Asked, Answer]], total: int) -> Iterator[tuple[Asked, Answer]]:
    """Pass answers on, but hold the first ones back while they are crashes: what fails on every config is not the
    configs' fault, and rows of it would keep the points from being measured once it is mended.

    Raises:
        SweepError: the first :data:`HOPELESS` answers are all crashes.
    """
    held: list[tuple[Asked, Answer]] | None = []
    for asked, answer in answers:
        if held is not None and answer.status == "crash" and len(held) < total - 1:
            held.append((asked, answer))
            if len(held) == HOPELESS:
                raise SweepError(
                    f"the first {HOPELESS} points all crashed, the last with: {answer.reason}; nothing was recorded: "
                    "run hopper-gemm doctor and mend what it names, then run the same command"
                )
            continue
        yield from held or ()
        held = None
        yield asked, answer


def _answer_of(row: dict[str, Any]) -> Answer:
    figures = {name: row[name] for name in FIGURES if not pd.isna(row[name])}
    return Answer(row["status"], row["reason"], figures)


def _best(done: Sequence[tuple[Point, Answer]], study: str) -> float | None:
    known = [answer.figures["speedup"] for point, answer in done if point.study == study and answer.status == "ok"]
    return max(known, default=None)
