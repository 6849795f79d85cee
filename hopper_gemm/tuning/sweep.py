"""Running a sweep: ask, measure, write, tell; whatever happens, what is on disk stays and the rest goes on later."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.storages import BaseStorage

from hopper_gemm.measure.racing import even, hopeless
from hopper_gemm.measure.statistics import Pair, Ratio, noise_floor, speedup
from hopper_gemm.model.config import LAUNCH_FIELDS
from hopper_gemm.model.footprint import footprint
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.locks import FileLock
from hopper_gemm.tables.places import results_root, shown
from hopper_gemm.tables.publish import publish
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.schema import CARRIED, FIGURES, NAMES
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
from hopper_gemm.tables.tuned import FILE as TUNED
from hopper_gemm.tables.tuned import TunedEntry, write_tuned
from hopper_gemm.tuning.backend import Answer, Backend
from hopper_gemm.tuning.fleet import Fleet
from hopper_gemm.tuning.importance import importances
from hopper_gemm.tuning.provenance import provenance
from hopper_gemm.tuning.queue import Asked, PointQueue, answers
from hopper_gemm.tuning.rows import point_of, problem_of, row_of
from hopper_gemm.tuning.search import Earlier, Search
from hopper_gemm.tuning.space import Point, points, refused_by_rule, with_row
from hopper_gemm.tuning.spec import SweepSpec
from hopper_gemm.tuning.storage import open_fleet, open_storage, patiently, shown_url

JOURNAL = "study.journal"
LOCK = ".sweep.lock"
BEGUN, FINALISED = "begun", "finals"
"""User attributes of a shared study: what its first worker asked, and who has measured the finals."""
HOPELESS = 5
"""So many crashes from the first point on, and the sweep ends."""
NOTE_SECONDS = 5.0
"""How often the time spent on a search is noted, so that a kill does not give it back."""


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


class SweepError(ValueError):
    """The sweep cannot go on; the message says why and the mend."""


class Sweep:
    """A sweep in its results folder.

    Args:
        spec: the question.
        out: the results folder; made if need be.
        storage: Optuna storage; by default a journal file in the folder. Where one is named it may be shared: workers
            with other folders, on this host or others, measure other points of the same sweep, and each that stays to
            the end has all rows.

    Raises:
        ResultsError: the folder holds another sweep, or cannot be written.
    """

    def __init__(self, spec: SweepSpec, out: Path, storage: str | None = None) -> None:
        self.spec = spec
        self.out = out
        self._storage = storage or str(out / JOURNAL)
        self._shared = storage is not None
        self._goal = spec.looked_for
        self._trials = AppendFile(out / TRIALS, NAMES)
        self._finals = AppendFile(out / FINALS, NAMES)
        self._samples = AppendFile(out / SAMPLES, SAMPLE_NAMES)
        self._refuse_another()
        self._leaders: dict[str, Answer] = {}
        self._measured: dict[tuple[Any, ...], tuple[str, Answer]] = {}

    @cached_property
    def _all(self) -> list[Point]:
        return points(self.spec)

    @cached_property
    def _points(self) -> list[Point]:
        return with_row(self.spec, self._all)

    @cached_property
    def _legal(self) -> list[Point]:
        return [point for point in self._points if not point.refused]

    def finished(self, kernel: str, gpu: str) -> bool:
        """Whether an earlier run used up this very budget and measured all its finals; provenance says so.

        Args:
            kernel: digest of the kernel's sources; figures of another one answer nothing.
            gpu: name of the GPU, likewise.
        """
        if not (self.out / PROVENANCE).is_file():
            return False
        about = read_json(self.out / PROVENANCE)
        return (about.get("finished"), about.get("kernel"), about["gpu"]["name"]) == (self._budget, kernel, gpu)

    def plan(self) -> Plan:
        """What there is to do."""
        counts = Counter(point.study for point in self._legal)
        trials = self.spec.budget.trials
        seconds = [_seconds(self.spec, point.regime) for point in self._legal]
        return Plan(
            total=len(self._all),
            refused=refused_by_rule(self._all),
            skipped=len(self._all) - len(self._points),
            recorded=len(self._known()),
            most=None if trials is None else sum(min(count, trials) for count in counts.values()),
            each=sum(seconds) / len(seconds) if seconds else 0.0,
        )

    def run(
        self,
        backend: Backend,
        watch: Watcher = lambda progress: None,
        trials: int | None = None,
        seconds: float | None = None,
        page: bool = True,
    ) -> None:
        """Measure what has no row yet, or what a sampler proposes; then the finals; then write the tables.

        Args:
            backend: what answers points.
            watch: told after each answer.
            trials: stop after so many points, leaving the rest for later.
            seconds: a budget for this run, in place of the spec's.
            page: write the page and the pictures; else somebody calls :func:`hopper_gemm.tables.publish.publish`.
        """
        with self._alone_in_folder():
            fleet = open_fleet(self._storage)
            try:
                self._run(backend, fleet, watch, trials, seconds)
            finally:
                fleet.close()
            if page:
                publish(self.out)

    def _run(self, backend: Backend, fleet: Fleet, watch: Watcher, trials: int | None, seconds: float | None) -> None:
        about = self._open(backend)
        about.pop("finished", None)
        started = time.monotonic()
        self._write_refused(about)
        known = self._known()
        done = [(point, known[point]) for point in self._legal if point in known]
        for point, answer in done:
            self._remember(point, answer, answer.figures.get("code", ""))
        queue = self._queue(backend, fleet, about, done, trials, seconds)
        self._refuse_another_sharing(queue, fleet, about)
        count = len(self._points) - len(self._legal) + len(done) + self._adopt(queue, about)
        total = (
            len(self._points) - len(self._legal) + (queue.planned if isinstance(queue, Search) else len(self._legal))
        )
        spent = about["searched"] = _searched(about)
        searching = noted = time.monotonic()
        for asked, answer in _unless_all_crash(self._answers(queue, backend, about), len(self._legal) - len(done)):
            self._record(self._trials, asked.point, answer, about, "sweep")
            queue.tell(asked, answer)
            count += 1
            watch(Progress(asked.point, answer, "sweep", count, total, self._best(asked.point), self._goal.names[0]))
            now = time.monotonic()
            if now - noted >= NOTE_SECONDS:
                noted, about["searched"] = now, round(spent + now - searching, 3)
                write_json(self.out / PROVENANCE, about)
        about["searched"] = round(spent + time.monotonic() - searching, 3)
        self._adopt(queue, about)
        write_json(self.out / PROVENANCE, about)
        names = self._name_cublas(backend)
        if queue.finished:
            self._measure_finals_once(queue, fleet, backend, about, names, watch)
            about["finished"] = self._budget
        if self.spec.sampled:
            about["importance"] = importances(self.spec, self._known())
        about["seconds"] = round(about.get("seconds", 0) + time.monotonic() - started, 1)
        write_json(self.out / PROVENANCE, about)

    # -----------------------------------------------------------------------------------------

    @contextmanager
    def _alone_in_folder(self) -> Iterator[None]:
        """A folder is one process's: two would tear each other's rows."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(
                f"{self.out} cannot be made ({error.strerror}); name another folder with --out"
            ) from None
        lock = FileLock(self.out / LOCK)
        if not lock.take(wait=False):
            raise ResultsError(
                f"another process is at work in {self.out}; wait for it, or name another folder with --out and one "
                "--storage for both, to share the sweep"
            )
        try:
            yield
        finally:
            lock.release()

    def _refuse_another_sharing(self, queue: PointQueue | Search, fleet: Fleet, about: dict[str, Any]) -> None:
        """Workers share a sweep only if they ask the same question of the same kernel on the same kind of GPU."""
        if not self._shared:
            return
        mine = {"sweep": self.spec.digest, "kernel": about.get("kernel"), "GPU": about["gpu"]["name"]}
        for study in queue.studies.values():

            def begun(study: optuna.Study = study) -> dict[str, Any]:
                with fleet.alone(study.study_name):
                    if BEGUN not in study.user_attrs:
                        study.set_user_attr(BEGUN, mine)
                    return study.user_attrs[BEGUN]

            theirs = patiently(begun)
            for name, value in mine.items():
                if theirs[name] != value:
                    raise ResultsError(
                        f"{shown_url(self._storage)} holds {study.study_name} of another {name} "
                        f"({theirs[name]}, now {value}); name another --storage"
                    )

    def _adopt(self, queue: PointQueue | Search, about: dict[str, Any]) -> int:
        """Give what other workers measured a row here; how many."""
        if not self._shared:
            return 0
        known = self._known()
        found = 0
        for name, study in queue.studies.items():
            points = {str(point.config): point for point in self._legal if point.study == name}
            for point, answer in answers(study, points):
                if point not in known:
                    known[point] = answer
                    self._record(self._trials, point, answer, about, "sweep")
                    self._remember(point, answer, answer.figures.get("code", ""))
                    found += 1
        return found

    def _measure_finals_once(
        self,
        queue: PointQueue | Search,
        fleet: Fleet,
        backend: Backend,
        about: dict[str, Any],
        names: dict[GemmProblem, str],
        watch: Watcher,
    ) -> None:
        """Of the workers that share a sweep the first to come measures its finals; the others go without."""
        if not self._shared:
            self._measure_finals(backend, about, names, watch)
            return
        first = next(iter(queue.studies.values()), None)
        if first is None or not self.spec.final.best:
            return

        def once() -> None:  # done twice it finds its own finals, and measures nothing again
            with fleet.alone(f"{first.study_name} finals"):
                if FINALISED not in first.user_attrs:
                    self._measure_finals(backend, about, names, watch)
                    first.set_user_attr(FINALISED, fleet.worker)

        patiently(once)

    def _recalled(self, done: list[tuple[Point, Answer]]) -> list[tuple[Point, Answer]]:
        """Rows with their pairs of times, for workers that know neither."""
        kept: dict[tuple[Any, ...], list[tuple[int, float, float]]] = {}
        frame = read_samples(self.out)
        for row in frame[frame["stage"] == "sweep"].itertuples():
            key = (row.m, row.n, row.k, row.data, row.regime, row.config)
            kept.setdefault(key, []).append((int(row.process), float(row.ours_us), float(row.cublas_us)))

        def key_of(point: Point) -> tuple[Any, ...]:
            problem = point.problem
            return (problem.m, problem.n, problem.k, point.data, point.regime, str(point.config))

        return [(point, replace(answer, samples=tuple(kept.get(key_of(point), ())))) for point, answer in done]

    def _queue(
        self,
        backend: Backend,
        fleet: Fleet,
        about: dict[str, Any],
        done: list[tuple[Point, Answer]],
        trials: int | None,
        seconds: float | None,
    ) -> PointQueue | Search:
        """What says which point is next."""

        def opened() -> BaseStorage:
            with fleet.alone("tables"):  # two workers that make them at once would trip over each other
                return open_storage(self._storage)

        spec, storage = self.spec, patiently(opened)
        if self._shared:
            done = self._recalled(done)
        if seconds is not None:
            spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"seconds": seconds})})
        if spec.sampled:
            earlier = [one for folder in spec.warm_start for one in earlier_rows(Path(folder), about["gpu"]["name"])]
            spent = 0.0 if seconds is not None else _searched(about)
            return Search(
                storage,
                spec,
                self._legal,
                done,
                earlier=earlier,
                prepare=backend.prepare,
                spent=spent,
                most=trials,
                fleet=fleet,
                carry=self._shared,
            )
        measured = {point for point, _ in done}
        todo = [point for point in self._legal if point not in measured]
        allowed = len(todo) if spec.budget.trials is None else max(0, self.plan().open)
        now = todo[:allowed]
        left = None if spec.budget.seconds is None else spec.budget.seconds - _searched(about)
        queue = PointQueue(
            storage,
            spec.name,
            now,
            done,
            self._legal,
            spec.seed,
            spec.looked_for,
            trials,
            left,
            fleet,
            self._shared,
        )
        found = queue.known() if self._shared else set()
        unknown = [point for point in now if point not in found]
        backend.prepare(unknown[: len(unknown) if trials is None else trials])
        return queue

    def _answers(
        self, queue: PointQueue | Search, backend: Backend, about: dict[str, Any]
    ) -> Iterator[tuple[Asked, Answer]]:
        for asked in queue:
            self._control(backend, asked.point, about)
            yield asked, self._answer(asked.point, backend, about)

    def _answer(self, point: Point, backend: Backend, about: dict[str, Any]) -> Answer:
        """Measure a point, unless the same machine code was measured with the same launch."""
        code = backend.code(point)
        twin = self._measured.get(_launch(point, code)) if code else None
        if twin is not None:
            label, answer = twin
            return Answer(answer.status, f"{TWIN} {label}; not measured again", answer.figures)
        answer = self._raced(point, backend, about)
        self._remember(point, answer, code)
        return answer

    def _raced(self, point: Point, backend: Backend, about: dict[str, Any]) -> Answer:
        """All pairs at once, or a first look and the others only where the point may still be the best."""
        race = self.spec.race
        if race is None:
            return backend.measure(point)
        burst = point.regime == "burst"
        pairs = self.spec.burst.pairs if burst else self.spec.steady.pairs
        look = race.burst_pairs if burst else race.steady_pairs
        if look >= pairs:
            return backend.measure(point)
        first = backend.measure(point, look)
        best = self._leaders.get(point.study)
        noise = about["noise"].get(point.place, 0.0)
        out = first.status == "ok" and best is not None and hopeless(_ratio(first), _ratio(best), noise)
        if first.status != "ok" or not first.samples or out:
            return first
        rest = backend.measure(point, pairs - look)
        return pooled(first, rest) if rest.status == "ok" else rest

    def _remember(self, point: Point, answer: Answer, code: str) -> None:
        """What later points are held against: the best, and every kernel."""
        values = self._goal.values(answer.figures) if answer.status == "ok" else None
        if values is not None:
            best = self._leaders.get(point.study)
            old = self._goal.values(best.figures) if best is not None else None
            if old is None or self._goal.losses(values) < self._goal.losses(old):
                self._leaders[point.study] = answer
        if code and answer.status in ("ok", "wrong_result") and not answer.reason.startswith(TWIN):
            self._measured.setdefault(_launch(point, code), (str(point.config), answer))

    def _best(self, point: Point) -> float | None:
        best = self._leaders.get(point.study)
        return None if best is None else float(best.figures[self._goal.names[0]])

    def _known(self) -> dict[Point, Answer]:
        """Legal points with a row."""
        rows = self._rows(TRIALS)
        if not rows:
            return {}
        legal = set(self._legal)
        found = {point_of(row): _answer_of(row) for row in rows.values()}
        return {point: answer for point, answer in found.items() if point in legal}

    def _refuse_another(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise ResultsError(f"{self.out} is a file; name a folder with --out")
        if any(packed(self.out / name).is_file() and not (self.out / name).is_file() for name in (TRIALS, SAMPLES)):
            raise ResultsError(f"{self.out} is packed and takes no more rows; name another folder with --out")
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
        fresh = provenance(self.spec, backend.source, described, len(self._all), refused_by_rule(self._all))
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

    def _write_refused(self, about: dict[str, Any]) -> None:
        rows = self._rows(TRIALS)
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

    @property
    def _budget(self) -> dict[str, Any]:
        return self.spec.budget.model_dump()

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

    def _name_cublas(self, backend: Backend) -> dict[GemmProblem, str]:
        """The kernel that cuBLAS runs for each problem: asked once everything is timed, and put into the rows."""
        ran = [row for row in self._rows(TRIALS).values() if row["status"] == "ok"]
        names = {problem_of(row): row["cublas_kernel"] for row in ran if row["cublas_kernel"]}
        unnamed = {problem_of(row) for row in ran if not row["cublas_kernel"]}
        if unnamed:
            names |= {problem: backend.cublas_kernel(problem) for problem in unnamed - set(names)}
            self._trials.fill(
                "cublas_kernel", lambda row: names.get(problem_of(row), "") if row["status"] == "ok" else ""
            )
        return names

    def _measure_finals(
        self, backend: Backend, about: dict[str, Any], names: dict[GemmProblem, str], watch: Watcher
    ) -> None:
        """The best of each problem and regime once more: the best of a sweep is otherwise its luckiest sample."""
        if not self.spec.final.best:
            return
        finals = {point_of(row): _answer_of(row) for row in self._rows(FINALS).values()}
        by_study: dict[str, list[tuple[Point, Answer]]] = {}
        for point, answer in self._known().items():
            if answer.status == "ok" and not answer.reason.startswith(TWIN):
                by_study.setdefault(point.study, []).append((point, answer))
        chosen: list[Point] = []
        for study in dict.fromkeys(point.study for point in self._legal):
            known = by_study.get(study, [])
            best = self._goal.best([answer.figures for _, answer in known], self.spec.final.best)
            chosen += [known[i][0] for i in best]
        todo = [point for point in chosen if point not in finals]
        for i, (point, found) in enumerate(_finals(backend, todo), 1):
            if found.status == "illegal":  # a replay knows only the finals that were recorded
                continue
            answer = replace(found, figures={"cublas_kernel": names.get(point.problem, ""), **found.figures})
            earlier = [other for known, other in finals.items() if known.study == point.study]
            if all(other.figures.get("speedup", 0.0) <= answer.figures.get("speedup", 0.0) for other in earlier):
                self._tune(point, answer, about)
            self._record(self._finals, point, answer, about, "final")
            finals[point] = answer
            watch(Progress(point, answer, "final", i, len(todo), answer.figures.get("speedup")))
        about["even"] = self._even(chosen, finals, about)

    def _even(self, chosen: list[Point], finals: dict[Point, Answer], about: dict[str, Any]) -> dict[str, list[str]]:
        """Where no final is the best beyond the noise: the configs that share the first place."""
        found = {}
        for place in dict.fromkeys(point.place for point in chosen):
            ran = [point for point in chosen if point.place == place and point in finals]
            ran = [point for point in ran if finals[point].status == "ok"]
            first = even([_ratio(finals[point]) for point in ran], about["noise"].get(place, 0.0))
            if len(first) > 1 and self._goal.names == ("speedup",):
                found[place] = [str(ran[i].config) for i in first]
        return found

    def _tune(self, point: Point, answer: Answer, about: dict[str, Any]) -> None:
        """Put a measured final into the tuned table beside the study's folder, if it ran on data like a user's."""
        if about["source"] != "measured" or answer.status != "ok" or point.data != "normal":
            return
        if "speedup" not in self._goal.names:
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


def _finals(backend: Backend, points: list[Point]) -> Iterator[tuple[Point, Answer]]:
    """The answers of each study's finals, one study after the other."""
    for study in dict.fromkeys(point.study for point in points):
        yield from backend.finals([point for point in points if point.study == study])


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


def _searched(about: dict[str, Any]) -> float:
    """Seconds that earlier runs have searched; older provenance notes only the whole time, finals and all."""
    return float(about.get("searched", about.get("seconds", 0.0)))


def _answer_of(row: dict[str, Any]) -> Answer:
    figures = {name: row[name] for name in CARRIED if not pd.isna(row[name])}
    return Answer(row["status"], row["reason"], figures)


def earlier_rows(folder: Path, gpu: str) -> list[Earlier]:
    """What an earlier study found, for a warm start.

    Args:
        folder: of the study; a relative one is looked for here and in the checkout.
        gpu: name of the GPU that is searched on.

    Raises:
        ResultsError: there is no such study, or it was recorded on another kind of GPU.
    """
    inside = results_root().parent / folder
    study = read_study(inside if not folder.is_dir() and inside.is_dir() else folder)
    other = study.provenance["gpu"]["name"]
    if other != gpu:
        raise ResultsError(f"warm_start: {folder} was recorded on an {other}, not an {gpu}; leave it out")
    ran = study.trials[study.trials["status"] == "ok"].to_dict("records")
    return [Earlier(point.study, point.config, row, shown(folder)) for row in ran for point in [point_of(row)]]


def pooled(first: Answer, rest: Answer) -> Answer:
    """Two measurements of one point as one: pairs together, medians of all, the rest averaged by pairs."""
    samples = (*first.samples, *rest.samples)
    ratio = speedup([Pair(*sample) for sample in samples])
    share = len(first.samples) / len(samples)
    figures = dict(rest.figures)
    for name in FIGURES:
        one, other = first.figures.get(name), rest.figures.get(name)
        if isinstance(one, float) and isinstance(other, float):
            figures[name] = share * one + (1 - share) * other
    time_us = float(np.median([ours for _, ours, _ in samples]))
    figures |= {
        "speedup": ratio.median,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "pairs": ratio.pairs,
        "time_us": time_us,
        "cublas_us": float(np.median([theirs for *_, theirs in samples])),
        "tflops": rest.figures["tflops"] * rest.figures["time_us"] / time_us,
    }
    return Answer("ok", rest.reason, figures, samples)


TWIN = "same machine code as"
"""How the reason of a row begins whose figures are another's."""

_HOST_FIELDS = (*LAUNCH_FIELDS, "tile_m", "tile_n", "k_depth", "cluster_m", "cluster_n", "l2_promotion")
"""Parameters that reach the GPU by the launch or by TMA descriptors, and may leave the machine code as it is."""


def _launch(point: Point, code: str) -> tuple[Any, ...]:
    """What two points must share to be one measurement."""
    shares = footprint(point.config)
    host = tuple(getattr(point.config, name) for name in _HOST_FIELDS)
    return (point.study, code, shares.smem_bytes, shares.threads, shares.chunk_n, *host)


def _ratio(answer: Answer) -> Ratio:
    figures = answer.figures
    return Ratio(figures["speedup"], figures["speedup_low"], figures["speedup_high"], int(figures.get("pairs", 0)))


def _seconds(spec: SweepSpec, regime: str) -> float:
    """Timing alone, both arms."""
    if regime == "burst":
        return 2 * spec.burst.pairs * (spec.burst.rest + spec.burst.warm + spec.burst.timed)
    return 2 * spec.steady.pairs * (spec.steady.settle + spec.steady.window)
