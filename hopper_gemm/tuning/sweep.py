"""Running a sweep: ask, measure, write, tell; whatever happens, what is on disk stays and the rest goes on later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage

from hopper_gemm.measure.statistics import Pair, noise_floor, speedup
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.publish import publish
from hopper_gemm.tables.trials import ResultsError
from hopper_gemm.tuning.backend import Answer, Backend
from hopper_gemm.tuning.finals import measure_finals
from hopper_gemm.tuning.fleet import Fleet
from hopper_gemm.tuning.folder import SweepFolder
from hopper_gemm.tuning.importance import importances
from hopper_gemm.tuning.measuring import Measuring
from hopper_gemm.tuning.plan import Plan, Progress, Watcher, timing_seconds
from hopper_gemm.tuning.provenance import provenance
from hopper_gemm.tuning.queue import Asked, PointQueue, answers
from hopper_gemm.tuning.search import Search, earlier_rows
from hopper_gemm.tuning.space import Point, points, refused_by_rule, with_row
from hopper_gemm.tuning.spec import SweepSpec
from hopper_gemm.tuning.storage import open_fleet, open_storage, patiently, shown_url

JOURNAL = "study.journal"
BEGUN, FINALISED = "begun", "finals"
"""User attributes of a shared study: what its first worker asked, and who has measured the finals."""
HOPELESS = 5
"""So many crashes from the first point on, and the sweep ends."""
NOTE_SECONDS = 5.0
"""How often the time spent on a search is noted, so that a kill does not give it back."""


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
        if self._shared and spec.across != "each":
            raise ResultsError(
                "across judges by all problems at once, which workers cannot share; leave out --storage, name one GPU"
            )
        self._folder = SweepFolder(out, spec.name, spec.digest)
        self._measuring = Measuring(spec)

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
        about = self._folder.about()
        if about is None:
            return False
        return (about.get("finished"), about.get("kernel"), about["gpu"]["name"]) == (self._budget, kernel, gpu)

    def plan(self) -> Plan:
        """What there is to do."""
        counts = Counter(point.study for point in self._legal)
        trials = self.spec.budget.trials
        seconds = [timing_seconds(self.spec, point.regime) for point in self._legal]
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
        finals: bool = True,
    ) -> None:
        """Measure what has no row yet, or what a sampler proposes; then the finals; then write the tables.

        Args:
            backend: what answers points.
            watch: told after each answer.
            trials: stop after so many points, leaving the rest for later.
            seconds: a budget for this run, in place of the spec's.
            page: write the page and the pictures; else somebody calls :func:`hopper_gemm.tables.publish.publish`.
            finals: measure them; else another run of the same sweep does.
        """
        with self._folder.alone():
            fleet = open_fleet(self._storage)
            try:
                self._run(backend, fleet, watch, trials, seconds, finals)
            finally:
                fleet.close()
            if page:
                publish(self.out)

    def _run(
        self,
        backend: Backend,
        fleet: Fleet,
        watch: Watcher,
        trials: int | None,
        seconds: float | None,
        finals: bool,
    ) -> None:
        described = backend.describe()
        fresh = provenance(self.spec, backend.source, described, len(self._all), refused_by_rule(self._all))
        about = self._folder.begin(fresh)
        about.pop("finished", None)
        started = time.monotonic()
        self._folder.refuse((point for point in self._points if point.refused), about)
        known = self._known()
        done = [(point, known[point]) for point in self._legal if point in known]
        for point, answer in done:
            self._measuring.remember(point, answer, answer.figures.get("code", ""))
        queue = self._queue(backend, fleet, about, done, trials, seconds)
        self._refuse_another_sharing(queue, fleet, about)
        count = len(self._points) - len(self._legal) + len(done) + self._adopt(queue, about)
        total = (
            len(self._points) - len(self._legal) + (queue.planned if isinstance(queue, Search) else len(self._legal))
        )
        spent = about["searched"] = _searched(about)
        worked, at_work = about.get("at_work", 0.0), backend.busy
        searching = noted = time.monotonic()
        for asked, answer in _unless_all_crash(self._answers(queue, backend, about), len(self._legal) - len(done)):
            self._folder.record(asked.point, answer, about)
            queue.tell(asked, answer)
            count += 1
            best = self._measuring.best(asked.point)
            watch(Progress(asked.point, answer, "sweep", count, total, best, self.spec.looked_for.names[0]))
            now = time.monotonic()
            if now - noted >= NOTE_SECONDS:
                noted, about["searched"] = now, round(spent + now - searching, 3)
                self._folder.note(about)
        about["searched"] = round(spent + time.monotonic() - searching, 3)
        about["at_work"] = round(worked + backend.busy - at_work, 3)
        self._adopt(queue, about)
        self._folder.note(about)
        names = self._folder.name_cublas(backend.cublas_kernel)
        if queue.finished and finals:
            self._measure_finals_once(queue, fleet, backend, about, names, watch)
            about["finished"] = self._budget
        if self.spec.sampled:
            about["importance"] = importances(self.spec, self._known())
        about["seconds"] = round(about.get("seconds", 0) + time.monotonic() - started, 1)
        self._folder.note(about)

    # -----------------------------------------------------------------------------------------

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
                    self._folder.record(point, answer, about)
                    self._measuring.remember(point, answer, answer.figures.get("code", ""))
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

        def measure() -> None:
            measure_finals(self.spec, self._folder, self._legal, backend, about, names, watch)

        if not self._shared:
            measure()
            return
        first = next(iter(queue.studies.values()), None)
        if first is None or not self.spec.final.best:
            return

        def once() -> None:  # done twice it finds its own finals, and measures nothing again
            with fleet.alone(f"{first.study_name} finals"):
                if FINALISED not in first.user_attrs:
                    measure()
                    first.set_user_attr(FINALISED, fleet.worker)

        patiently(once)

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
            done = self._folder.with_samples(done)
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
                beside=backend.elsewhere,
                ready=backend.ready,
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
            yield asked, self._measuring.measure(asked.point, backend, about["noise"])

    def _control(self, backend: Backend, point: Point, about: dict[str, Any]) -> None:
        """The noise floor, once for each problem, regime and kind of data."""
        name = point.place
        if name in about["noise"]:
            return
        answer = backend.control(point)
        if answer.status == "ok" and answer.samples:
            pairs = [Pair(*sample) for sample in answer.samples]
            about["noise"][name] = round(noise_floor(speedup(pairs)), 6)
            self._folder.sample(point, answer, "control", "cublas")
            self._folder.note(about)

    def _known(self) -> dict[Point, Answer]:
        """Legal points with a row."""
        found = self._folder.trials()
        legal = set(self._legal) if found else set()
        return {point: answer for point, answer in found.items() if point in legal}

    @property
    def _budget(self) -> dict[str, Any]:
        return self.spec.budget.model_dump()


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
