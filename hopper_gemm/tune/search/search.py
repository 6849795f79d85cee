"""The search: for each task an Optuna study whose sampler proposes legal configs, within a budget.

A task is what one sampler searches: a problem, regime, context and kind of data.
The Optuna studies live in memory and are rebuilt from the rows at every start: only a point with a row is finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.search.gp import Gp
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.samplers import LegalSampler, Plugged, Ranked, diverse, predictions, speedup_of
from hopper_gemm.tune.study.files import here_or_recorded
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import begun_with, place_of
from hopper_gemm.tune.study.spec import Spec

SAMPLERS = ("exhaustive", "random", "tpe", "gp", "prior")
"""Samplers by name."""


class Search:
    """Proposes legal points, which come in order, to workers, each of which stays with a task.

    Rows are of points that were measured; ``earlier`` ones, of other studies, are hints to the sampler, measured anew
    if they are proposed. ``spent`` are the seconds that earlier runs have searched, by task; ``most`` limits the points
    that this run proposes; ``owed`` counts the rows by task that a finished search has lost: proposed again although
    its time is up. ``clock`` returns seconds.
    """

    def __init__(
        self,
        spec: Spec,
        legal: Sequence[Point],
        rows: Iterable[Row],
        *,
        earlier: Iterable[Row] = (),
        spent: Mapping[str, float] | None = None,
        most: int | None = None,
        owed: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._clock, self._most, self._owed = spec, clock, most, dict(owed or {})
        self._rows = {row.point: row for row in rows}
        self._earlier = list(earlier)
        self._task_of: dict[Point, _Task] = {}
        self._alone = {alone.problems[0].problem(): alone for alone in spec.each()}
        self._tasks: list[_Task] = []
        for name, points in grouped(legal, place_of).items():
            task = _Task(name, points, target=min(len(points), spec.budget.trials or len(points)))
            task.done = {number for point, number in task.number.items() if point in self._rows}
            task.spent = (spent or {}).get(name, 0.0)
            self._task_of |= dict.fromkeys(points, task)
            self._tasks.append(task)
        self._spaces: dict[tuple[GemmConfig, ...], LegalSpace] = {}

    @property
    def planned(self) -> int:
        """Number of points that will have a row at the end, as far as the budget limits it."""
        return sum(task.target for task in self._tasks)

    @property
    def spent(self) -> dict[str, float]:
        """Seconds searched in all runs, by task."""
        return {task.name: round(self._used(task), 3) for task in self._tasks}

    @property
    def open(self) -> int:
        """Number of points that may still be proposed, as far as the budget limits it."""
        remaining = sum(0 if task.closed else task.remaining + len(task.waiting) for task in self._tasks)
        return remaining if self._most is None else min(remaining, self._most)

    @property
    def finished(self) -> bool:
        """Return True if the budget is used up or everything was measured; False where ``most`` cut it short."""
        return not any(task.open for task in self._tasks)

    def propose(self, worker: str = "") -> Point | None:
        """Return a point for a worker to measure; None where there is none, or none now. A worker stays with a task
        until the task's search is over, then takes a task without a worker; where there is none, it helps another
        worker."""
        if self._most is not None and self._most <= 0:
            return None
        for task in sorted(self._tasks, key=lambda task: (task.worker != worker, task.worker is not None)):
            while not task.waiting and not task.closed:
                if self._over(task) or not task.remaining:
                    task.spent, task.started, task.closed = self._used(task), None, True
                    continue
                self._owed[task.name] = self._owed.get(task.name, 0) - 1
                task.waiting.append(task.points[self._sampler(task).ask()])
            if task.waiting:
                task.worker = task.worker or worker
                self._most = None if self._most is None else self._most - 1
                return task.waiting.popleft()
        return None

    def left(self, worker: str, point: Point | None) -> None:
        """Free the tasks of a worker that has gone; the point that it will not measure is proposed again."""
        for task in self._tasks:
            if task.worker == worker:
                task.worker = None
        if point is not None:
            self._task_of[point].waiting.appendleft(point)
            self._most = None if self._most is None else self._most + 1

    def ended(self) -> list[Point]:
        """Return the points of all tasks whose search has ended since the last call."""
        ended = [task for task in self._tasks if not (task.reported or task.open)]
        for task in ended:
            task.reported = True
        return [point for task in ended for point in task.points]

    def tell(self, row: Row) -> None:
        """Record the row of a point."""
        task = self._task_of[row.point]
        self._rows[row.point] = row
        if task.started is None and not task.closed:  # the first row starts the clock: compilers start up before it
            task.started = self._clock()
        number = task.number[row.point]
        if task.sampler is not None and number in task.pending:
            task.sampler.tell(number, speedup_of(row))
            task.done.add(number)

    def _used(self, task: _Task) -> float:
        return task.spent + (0.0 if task.started is None else self._clock() - task.started)

    def _over(self, task: _Task) -> bool:
        """Return True if a task has used up its share of the seconds that closed tasks have left."""
        seconds = self._spec.budget.seconds
        if seconds is None or self._owed.get(task.name, 0) > 0:
            return False
        closed = [other.spent for other in self._tasks if other.closed]
        return self._used(task) >= max(0.0, seconds - sum(closed)) / (len(self._tasks) - len(closed))

    def _sampler(self, task: _Task) -> LegalSampler:
        """Return the task's sampler, made at the first call from the task's rows and those of earlier studies."""
        if task.sampler is not None:
            return task.sampler
        configs = tuple(point.config for point in task.points)
        if configs not in self._spaces:
            self._spaces[configs] = LegalSpace(configs)
        space, spec, problem = self._spaces[configs], self._spec, task.points[0].problem
        earlier = [
            (row.point.config, speedup, float(predictions([row.point.config], problem)[0]))
            for row in self._earlier
            if place_of(row.point) == task.name and not row.point.is_baseline
            if (speedup := speedup_of(row)) is not None
        ]
        predicted = predictions(space.configs, problem) if spec.sampled else np.zeros(len(space))
        initial = [space.number[config] for config in begun_with(self._alone[problem]) if config in space.number]
        task.sampler = make(spec.sampler, space, spec.seed, predicted, spec.seeds, earlier, initial)
        for config, speedup, _ in (result for result in earlier if result[0] in space.number):
            task.sampler.hint(space.number[config], speedup)
        for number in sorted(task.done):
            task.sampler.restore(number, speedup_of(self._rows[task.points[number]]))
        return task.sampler


@dataclass
class _Task:
    """The space of one sampler."""

    name: str
    points: list[Point]  # a point of each config
    target: int = 0  # configs to measure
    done: set[int] = field(default_factory=set)  # numbers of the measured configs
    started: float | None = None  # time of the first row of this run; None before it and after the end
    closed: bool = False  # whether its search is over
    sampler: LegalSampler | None = None  # made when the first config is proposed
    worker: str | None = None  # its name
    waiting: deque[Point] = field(default_factory=deque)  # proposed points that no worker has
    spent: float = 0.0  # seconds searched without those since started
    reported: bool = False  # whether Search.ended has returned its points

    def __post_init__(self) -> None:
        self.number = {point: i for i, point in enumerate(self.points)}

    @property
    def pending(self) -> Collection[int]:
        """Numbers of the configs that are being measured."""
        return () if self.sampler is None else self.sampler.pending

    @property
    def open(self) -> bool:
        """Return True if a point is still to be proposed or measured."""
        return bool(self.waiting or self.pending or (self.remaining and not self.closed))

    @property
    def remaining(self) -> int:
        """Number of configs that may still be proposed."""
        return max(0, self.target - len(self.done) - len(self.pending))


def earlier_rows(folder: Path, gpu: str) -> list[Row]:
    """Return the rows of an earlier study that ran, for a warm start on a GPU, whose name is empty if it is not known
    yet. A relative folder is looked up in the current folder and in the checkout. ResultsError if there is no such
    study, or it was recorded on another kind of GPU."""
    try:
        study = read_study(here_or_recorded(folder))
    except ResultsError as error:
        raise ResultsError(f"warm_start: {error}") from None
    other = study.provenance["gpu"]["name"]
    if gpu and other != gpu:
        raise ResultsError(f"warm_start: {folder} was recorded on an {other}, not an {gpu}; leave it out")
    return [row for row in study.stage("sweep") if row.ok]


def make(
    name: str,
    space: LegalSpace,
    seed: int,
    predicted: np.ndarray,
    seeds: int = 4,
    earlier: Sequence[tuple[GemmConfig, float, float]] = (),
    initial: Sequence[int] = (),
) -> LegalSampler:
    """Return a new sampler by its name of :data:`SAMPLERS`; ValueError if there is none.

    Guided samplers try the ``initial`` configs, by number, then ``seeds`` more: up to half of them the best of
    ``earlier`` studies, whose configs come with speedup and prediction, the others the model's, by the predicted
    logarithm of the time of each config."""
    if name == "exhaustive":
        return Ranked(space, seed, np.arange(len(space)))
    if name == "random":
        return LegalSampler(space, seed)
    ranked = sorted((-speedup, number) for config, speedup, _ in earlier if (number := space.like(config)) is not None)
    seeded = list(dict.fromkeys(number for _, number in ranked))[: seeds // 2]
    if name == "prior":
        return Ranked(space, seed, predicted, [*initial, *seeded])
    seeded += [number for number in diverse(predicted, space.configs, seeds) if number not in seeded]
    if name == "tpe":
        tpe = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed)
        return Plugged(space, seed, tpe, [*initial, *seeded[:seeds]])
    if name == "gp":
        return Gp(space, seed, predicted, [*initial, *seeded[:seeds]], earlier)
    raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)} but got {name!r}")
