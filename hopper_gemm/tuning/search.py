"""A search: for each problem and regime an Optuna study whose sampler proposes legal configs, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any

import numpy as np
import optuna
from optuna.storages import BaseStorage
from optuna.trial import TrialState, create_trial

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.places import here_or_in_checkout, shown
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.trials import ResultsError
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.fleet import Alone, Fleet
from hopper_gemm.tuning.legal import LegalSpace
from hopper_gemm.tuning.pooling import joint
from hopper_gemm.tuning.queue import WORKER, Asked, add, begin, close, open_study, tell
from hopper_gemm.tuning.rows import point_of
from hopper_gemm.tuning.samplers import EARLIER, SHOWN, Inside, make, predictions
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec
from hopper_gemm.tuning.storage import patiently


@dataclass(frozen=True)
class Earlier:
    """A row of an earlier study: told to the sampler, but measured anew if it is proposed.

    Args:
        study: as :attr:`hopper_gemm.tuning.space.Point.study`.
        config: resolved; it may lie outside the space.
        figures: of its row.
        where: folder it was found in.
    """

    study: str
    config: GemmConfig
    figures: Mapping[str, Any]
    where: str


class Search:
    """The points that samplers propose, one after the other, with a look ahead.

    Args:
        storage: of the studies; see :func:`hopper_gemm.tuning.queue.open_storage`.
        spec: sampler, objective, seeds and budget.
        legal: all legal points.
        done: those that have a row, with what was answered.
        earlier: rows of other studies.
        prepare: told points as soon as they are proposed, so that they compile while others are measured.
        spent: seconds that earlier runs have searched.
        most: stop after so many points now, leaving the rest for later.
        clock: seconds.
        fleet: the workers that share the storage; no two of them are proposed the same config.
        carry: keep whole answers in the storage, for workers with other folders.
        beside: think in a thread, while this one waits for a measurement; what is proposed then depends on the time
            that measurements take.
        ready: whether a point can be measured at once; of those proposed the first that can is the next.
    """

    def __init__(
        self,
        storage: BaseStorage | str,
        spec: SweepSpec,
        legal: Sequence[Point],
        done: Sequence[tuple[Point, Answer]],
        *,
        earlier: Sequence[Earlier] = (),
        prepare: Callable[[Sequence[Point]], None] = lambda points: None,
        spent: float = 0.0,
        most: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        fleet: Fleet | None = None,
        carry: bool = False,
        beside: bool = False,
        ready: Callable[[Point], bool] = lambda point: True,
    ) -> None:
        self._storage = optuna.storages.get_storage(storage)
        self._beside = beside
        self._ready = ready
        self._over = Event()
        self._apart = Lock()
        """Keeps this worker's own threads apart, which the locks of one database session do not."""
        self._fleet = fleet or Alone()
        self._carry = carry
        self._spec = spec
        self._objective = spec.looked_for
        self._prepare = prepare
        self._clock = clock
        self._left = None if spec.budget.seconds is None else max(0.0, spec.budget.seconds - spent)
        self._most = most
        self.finished = False
        """Whether the budget is used up or everything was measured; false where it was cut short by ``most``."""
        spaces: dict[tuple[GemmConfig, ...], LegalSpace] = {}
        self._open: list[_Open] = []
        for name, points in self._tasks(legal).items():
            configs = tuple(of[0].config for of in points)
            space = spaces.setdefault(configs, LegalSpace(configs)) if configs not in spaces else spaces[configs]
            mine = {point for of in points for point in of}
            known = [(point, answer) for point, answer in done if point in mine]
            told = [one for one in earlier if one.study == name]
            self._open.append(self._opened(name, points, space, known, told))

    def __iter__(self) -> Iterator[Asked]:
        if self._most == 0:
            return
        walk = self._walk()
        yield from walk if self._most is None else islice(walk, self._most)

    def tell(self, asked: Asked, answer: Answer) -> None:
        """Record an answer."""
        one = next(one for one in self._open if one.study is asked.study)
        one.answered[asked.point] = answer
        whole = self._whole(one, one.points[one.space.number[asked.point.config]])
        if whole is not None and not tell(asked.study, asked.trial, whole, self._objective, self._carry):
            self._settled(one, [(asked.point, answer)])

    @property
    def studies(self) -> dict[str, optuna.Study]:
        """By the name of :attr:`hopper_gemm.tuning.space.Point.study`, that of the first problem where one config is
        looked for that serves all."""
        return {one.points[0][0].study: one.study for one in self._open}

    @property
    def planned(self) -> int:
        """Points that will have a row at the end, as far as the budget names a number."""
        trials = self._spec.budget.trials
        return sum(len(one.points[0]) * min(len(one.points), trials or len(one.points)) for one in self._open)

    def _tasks(self, legal: Sequence[Point]) -> dict[str, list[tuple[Point, ...]]]:
        """What each study is about: for each of its configs the points that it is judged by."""
        grouped: dict[str, dict[GemmConfig, list[Point]]] = {}
        problems: dict[str, set[GemmProblem]] = {}
        for point in legal:
            name = point.study if self._spec.across == "each" else f"{self._spec.across} {point.of_all}"
            grouped.setdefault(name, {}).setdefault(point.config, []).append(point)
            problems.setdefault(name, set()).add(point.problem)
        return {
            name: [tuple(points) for points in configs.values() if len(points) == len(problems[name])]
            for name, configs in grouped.items()
        }

    def _whole(self, one: _Open, points: Sequence[Point]) -> Answer | None:
        """What a config's points come to; None while one is missing."""
        if any(point not in one.answered for point in points):
            return None
        found = [one.answered[point] for point in points]
        return found[0] if len(found) == 1 and self._spec.across == "each" else joint(found, self._spec.across)

    # -----------------------------------------------------------------------------------------

    def _walk(self) -> Iterator[Asked]:
        given = 0
        for i, one in enumerate(self._open):
            share = None if self._left is None else self._left / (len(self._open) - i)
            started: float | None = None
            waiting: list[Asked] = []
            proposed: SimpleQueue[Asked | None] = SimpleQueue()
            with self._thinker() as think:
                coming: Future[None] | None = None
                while True:
                    searched = 0.0 if started is None else self._clock() - started
                    over = share is not None and searched >= share
                    if over:
                        self._over.set()
                    coming = _take(proposed, coming, waiting, to_the_end=over)
                    room = 0 if over or coming is not None else min(self._spec.ahead - len(waiting), self._room(one))
                    if self._most is not None:
                        room = min(room, self._most - given - len(waiting))
                    if room > 0:
                        coming = think(self._ask_ahead, one, room, proposed)
                    coming = _take(proposed, coming, waiting)
                    if over or not waiting:
                        break
                    given += 1
                    asked = waiting.pop(self._first_ready(waiting))
                    for point in one.points[one.space.number[asked.point.config]]:
                        if point not in one.answered:
                            yield replace(asked, point=point)
                    if started is None:  # compilers that start up are no search: the first answer starts the clock
                        started = self._clock()
            for left in waiting:
                patiently(lambda left=left: left.study.tell(left.trial, state=TrialState.FAIL, skip_if_finished=True))  # type: ignore[misc]
            if self._left is not None and started is not None:
                self._left = max(0.0, self._left - (self._clock() - started))
        self.finished = self._most is None or all(self._room(one) == 0 for one in self._open)

    @contextmanager
    def _thinker(self) -> Iterator[Callable[..., Future[Any]]]:
        """What calls a function, beside the measurement or at once."""
        self._over.clear()
        if self._beside:
            with ThreadPoolExecutor(1, thread_name_prefix="search") as pool:
                try:
                    yield pool.submit
                finally:
                    self._over.set()
            return

        def now(do: Callable[..., Any], *arguments: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(do(*arguments))
            return done

        yield now

    def _room(self, one: _Open) -> int:
        return patiently(lambda: one.room(self._spec.budget.trials))

    def _first_ready(self, waiting: Sequence[Asked]) -> int:
        """Place of the first that need not be waited for; the first of all where each must be."""
        return next((i for i, asked in enumerate(waiting) if self._ready(asked.point)), 0)

    def _ask_ahead(self, one: _Open, most: int, proposed: SimpleQueue[Asked | None]) -> None:
        """So many proposals, each of which begins to compile; fewer where others have taken the last that the budget
        allows. None is the end."""
        try:
            for _ in range(most):
                asked = None if self._over.is_set() else self._ask(one)
                if asked is None:
                    break
                self._prepare([asked.point])
                proposed.put(asked)
        finally:
            proposed.put(None)

    def _ask(self, one: _Open) -> Asked | None:
        def once() -> Asked | None:
            while True:
                with self._apart, self._fleet.alone(one.study.study_name) as held:
                    asked = self._begin(one)
                    if asked is None or held():
                        return asked
                    one.study.tell(asked.trial, state=TrialState.FAIL)

        return patiently(once)

    def _begin(self, one: _Open) -> Asked | None:
        """A proposal as a running trial; none where there is no room for one."""
        while one.room(self._spec.budget.trials):
            parameters = one.sampler.propose(one.study)
            if parameters is None:
                trial = one.study.ask(one.space.distributions)
                number = one.space.find(trial.params)
                assert number is not None
                trial.set_user_attr("config", str(one.space.configs[number]))
                trial.set_user_attr(WORKER, self._fleet.worker)
            else:
                number = one.space.find(parameters)
                assert number is not None
                noted = {"config": str(one.space.configs[number]), WORKER: self._fleet.worker}
                trial = begin(self._storage, one.study, parameters, one.space.distributions, noted)
            known = self._whole(one, one.points[number])
            if known is None:
                return Asked(one.points[number][0], trial, one.study)
            tell(one.study, trial, known, self._objective, self._carry)  # somebody took it over from here, and died
        return None

    def _opened(
        self,
        name: str,
        points: list[tuple[Point, ...]],
        space: LegalSpace,
        done: list[tuple[Point, Answer]],
        earlier: list[Earlier],
    ) -> _Open:
        problem = points[0][0].problem
        told = [
            (one.config, self._objective.losses(values), float(predictions([one.config], problem)[0]))
            for one in earlier
            if (values := self._objective.values(one.figures)) is not None
        ]
        spec = self._spec
        predicted = self._predicted(space, [point.problem for point in points[0]])
        sampler = make(spec.sampler, space, self._objective, spec.seed, predicted, spec.seeds, told)
        study = patiently(lambda: open_study(self._storage, f"{spec.name}/{name}", self._objective, sampler))
        one = _Open(study, space, points, sampler)
        self._settled(one, done, earlier)
        return one

    def _predicted(self, space: LegalSpace, problems: Sequence[GemmProblem]) -> np.ndarray:
        """The model's time of each config; of several problems how far it is behind the best, at worst or on average,
        since their times are of different sizes."""
        each = np.array([predictions(space.configs, problem) for problem in problems])
        if len(problems) == 1:
            return each[0]
        behind = each - each.min(axis=1, keepdims=True)
        return behind.max(axis=0) if self._spec.across == "worst" else behind.mean(axis=0)

    def _settled(self, one: _Open, done: list[tuple[Point, Answer]], earlier: Sequence[Earlier] = ()) -> None:
        one.answered.update(done)
        configs = dict.fromkeys(point.config for point, _ in done)
        wholes = [(config, self._whole(one, one.points[one.space.number[config]])) for config in configs]
        known = [(config, answer) for config, answer in wholes if answer is not None]

        def settle() -> None:
            with self._apart, self._fleet.alone(one.study.study_name):
                self._settle(one.study, one.space, known)
                self._tell_earlier(one.study, one.space, earlier)

        patiently(settle)

    def _settle(self, study: optuna.Study, space: LegalSpace, done: list[tuple[GemmConfig, Answer]]) -> None:
        """Let the study hold what the rows hold: a trial that was cut off before it was told is told now, one that was
        cut off before its row is closed, and a row without a trial gets one."""
        answers = {space.number[config]: answer for config, answer in done}
        for trial in study.get_trials(deepcopy=False):
            number = space.find(trial.params)
            if trial.state == TrialState.RUNNING:
                if number in answers:
                    close(self._storage, study, trial.number, answers[number], self._objective, self._carry)
                elif not self._fleet.alive(trial.user_attrs.get(WORKER, "")):
                    study.tell(trial.number, state=TrialState.FAIL)
            if number in answers and EARLIER not in trial.user_attrs and trial.state != TrialState.FAIL:
                del answers[number]
        for number, answer in answers.items():
            noted = {"config": str(space.configs[number])}
            parameters = space.parameters(number)
            add(study, answer, self._objective, parameters, space.distributions, noted, self._carry)

    def _tell_earlier(self, study: optuna.Study, space: LegalSpace, earlier: Sequence[Earlier]) -> None:
        """Results of other studies that lie in the space, once."""
        if any(EARLIER in trial.user_attrs for trial in study.get_trials(deepcopy=False)):
            return
        for one in earlier:
            number, values = space.number.get(one.config), self._objective.values(one.figures)
            if number is not None and values is not None:
                study.add_trial(
                    create_trial(
                        values=values,
                        params=space.parameters(number),
                        distributions=space.distributions,
                        user_attrs={EARLIER: one.where, "config": str(one.config)},
                    )
                )


def _take(
    proposed: SimpleQueue[Asked | None], coming: Future[None] | None, waiting: list[Asked], to_the_end: bool = False
) -> Future[None] | None:
    """Move to those waiting what has been proposed; wait only where none is, or to the end of what is coming.

    Returns:
        What is still coming.
    """
    while coming is not None and (to_the_end or not waiting or not proposed.empty()):
        asked = proposed.get()
        if asked is not None:
            waiting.append(asked)
        else:
            coming.result()
            coming = None
    return coming


@dataclass
class _Open:
    """One study of the search.

    Args:
        study, space: Optuna's, and what it proposes from.
        points: of the space, by number: those by which a config is judged.
        sampler: of the study.
        answered: by this worker.
    """

    study: optuna.Study
    space: LegalSpace
    points: list[tuple[Point, ...]]
    sampler: Inside
    answered: dict[Point, Answer] = field(default_factory=dict)

    def room(self, trials: int | None) -> int:
        """Points that may still be proposed: those that any worker was proposed are counted."""
        asked = sum(EARLIER not in trial.user_attrs for trial in self.study.get_trials(deepcopy=False, states=SHOWN))
        return max(0, min(len(self.points), trials or len(self.points)) - asked)


def earlier_rows(folder: Path, gpu: str) -> list[Earlier]:
    """What an earlier study found, for a warm start.

    Args:
        folder: of the study; a relative one is looked for here and in the checkout.
        gpu: name of the GPU that is searched on.

    Raises:
        ResultsError: there is no such study, or it was recorded on another kind of GPU.
    """
    study = read_study(here_or_in_checkout(folder))
    other = study.provenance["gpu"]["name"]
    if other != gpu:
        raise ResultsError(f"warm_start: {folder} was recorded on an {other}, not an {gpu}; leave it out")
    ran = study.trials[study.trials["status"] == "ok"].to_dict("records")
    return [Earlier(point.study, point.config, row, shown(folder)) for row in ran for point in [point_of(row)]]
