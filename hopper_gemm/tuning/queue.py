"""The Optuna studies of a sweep: one for each problem and regime, each an exhaustive queue of its legal points.

Optuna remembers what was asked and told, so that its dashboard and its plots work on our sweeps and guided samplers can
take over the same storage. The queue never proposes a point that a rule refuses, nor one whose row is already on disk,
nor one that another worker has claimed: a claim is a running trial that bears the worker's name, made while no other
worker may make one, and it ends with its worker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import TrialState, create_trial

from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.fleet import Alone, Fleet, Held
from hopper_gemm.tuning.legal import telling
from hopper_gemm.tuning.objective import Objective
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.storage import patiently

PLANNED = "planned"
"""User attribute of a trial of a queue: the label of the point it stands for."""

WORKER = "worker"
"""User attribute of a trial: who measures it, or did."""

ANSWER = "answer"
"""User attribute of a trial in a storage that several folders share: the answer, so that each of them gets its row."""

WAIT_SECONDS = 0.2
"""Between two looks at points that others are measuring, when nothing else is left."""

ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Asked:
    """A point that is being measured, and the trial that stands for it."""

    point: Point
    trial: optuna.Trial
    study: optuna.Study


class LockLostError(Exception):
    """The database that held a lock was away meanwhile; what was done under it was taken back."""


class PointQueue:
    """The points still to be measured, in order, as Optuna trials.

    Args:
        storage: of the studies; see :func:`hopper_gemm.tuning.storage.open_storage`.
        name: of the sweep; studies are called ``name/problem dtype layouts regime``.
        points: legal points that are open, as far as the budget allows.
        done: legal points that have a row, with what was answered: trials that were cut off before they were told are
            told now.
        space: all legal points of the sweep; their values are the categories, the same in every run.
        seed: of the sampler.
        objective: the figure that trials are told.
        most: give out so many points now, leaving the rest for later.
        seconds: ask for nothing more after so many.
        fleet: the workers that share the storage.
        carry: keep whole answers in the storage, for workers with other folders.
    """

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        points: Sequence[Point],
        done: Sequence[tuple[Point, Answer]],
        space: Sequence[Point],
        seed: int,
        objective: Objective,
        most: int | None = None,
        seconds: float | None = None,
        fleet: Fleet | None = None,
        carry: bool = False,
    ) -> None:
        self._storage = storage
        self._objective = objective
        self._fleet = fleet or Alone()
        self._carry = carry
        self._most = len(points) if most is None else most
        self._ends = None if seconds is None else time.monotonic() + seconds
        self.finished = False
        """Whether nothing is left that the budget allows."""
        self._points: dict[str, dict[str, Point]] = {}
        for point in points:
            self._points.setdefault(point.study, {})[_label(point)] = point
        self._choices = _choices(space)
        self._mine: set[int] = set()
        self._answered: dict[tuple[str, str], Answer] = {}
        self.studies = {
            study: patiently(
                lambda study=study: open_study(  # type: ignore[misc]
                    storage, f"{name}/{study}", objective, optuna.samplers.RandomSampler(seed=seed)
                )
            )
            for study in dict.fromkeys(point.study for point in space)
        }
        """By the name of :attr:`hopper_gemm.tuning.space.Point.study`."""
        for study, handle in self.studies.items():
            known = {_label(point): (point, answer) for point, answer in done if point.study == study}
            self._alone(handle, lambda held, handle=handle, known=known: self._settle(handle, known))  # type: ignore[misc]

    def __iter__(self) -> Iterator[Asked]:
        given = 0
        for study in self._points:
            while True:
                if self._ends is not None and time.monotonic() >= self._ends:
                    self.finished = True
                    return
                if given >= self._most:
                    self.finished = self._most > 0 and not self._open_points()
                    return
                handle = self.studies[study]
                asked, others = self._alone(handle, lambda held, study=study: self._claim(study, held))  # type: ignore[misc]
                if asked is not None:
                    given += 1
                    yield asked
                elif others:
                    time.sleep(WAIT_SECONDS)
                else:
                    break
        self.finished = True

    def known(self) -> set[Point]:
        """Points that somebody has measured."""
        return {point for name, points in self._points.items() for point, _ in answers(self.studies[name], points)}

    def tell(self, asked: Asked, answer: Answer) -> None:
        """Record an answer."""
        self._answered[asked.point.study, _label(asked.point)] = answer
        tell(asked.study, asked.trial, answer, self._objective, self._carry)
        self._mine.discard(asked.trial.number)

    def _alone(self, study: optuna.Study, do: Callable[[Held], Any]) -> Any:
        """Do something that no other worker does meanwhile, whatever becomes of the database."""

        def once() -> Any:
            while True:
                try:
                    with self._fleet.alone(study.study_name) as held:
                        return do(held)
                except LockLostError:
                    continue

        return patiently(once)

    def _claim(self, name: str, held: Held) -> tuple[Asked | None, bool]:
        """The next point that is open, or None and whether others are still at work on theirs."""
        study = self.studies[name]
        point, others = self._next(study, name, reap=False)
        if point is None and others:
            point, others = self._next(study, name, reap=True)
        if point is None:
            return None, others
        chosen = self._chosen(point)
        noted = {PLANNED: _label(point), WORKER: self._fleet.worker}
        trial = begin(self._storage, study, chosen, {name: self._choices[name] for name in chosen}, noted)
        if not held():
            study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            raise LockLostError
        self._mine.add(trial.number)
        return Asked(point, trial, study), True

    def _next(self, study: optuna.Study, name: str, reap: bool) -> tuple[Point | None, bool]:
        """The first point that has neither an answer nor a worker. One that this worker has answered, and was taken for
        dead over, gets its answer instead.

        Args:
            study: its.
            name: the study's, among :attr:`studies`.
            reap: look whether the workers live; else they are believed to.
        """
        points = self._points[name]
        taken, others, lives = set(), False, {}
        for trial in study.get_trials(deepcopy=False):
            label = trial.user_attrs.get(PLANNED)
            if label not in points:
                continue
            if trial.state == TrialState.RUNNING:
                worker = trial.user_attrs.get(WORKER, "")
                if worker == self._fleet.worker:
                    lives[worker] = trial.number in self._mine  # else its making was in doubt, and it is not begun
                elif reap and worker not in lives:
                    lives[worker] = self._fleet.alive(worker)
                if not lives.get(worker, True):
                    study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                    continue
                others = True
            if trial.state in (TrialState.RUNNING, *ENDED):
                taken.add(label)
        for label, point in points.items():
            if label not in taken:
                if (name, label) not in self._answered:
                    return point, others
                self._add(study, point, self._answered[name, label])
        return None, others

    def _open_points(self) -> bool:
        """Whether a point is left that has no answer."""
        for name, points in self._points.items():
            trials = patiently(lambda name=name: self.studies[name].get_trials(deepcopy=False, states=ENDED))  # type: ignore[misc]
            if points.keys() - {trial.user_attrs.get(PLANNED) for trial in trials}:
                return True
        return False

    def _settle(self, study: optuna.Study, done: Mapping[str, tuple[Point, Answer]]) -> None:
        """Let the study hold what the rows hold: trials whose row reached the disk but whose answer did not reach the
        storage are told now, others that were cut off are closed, and what an older version left waiting is too."""
        told = set()
        for trial in study.get_trials(deepcopy=False):
            label = trial.user_attrs.get(PLANNED)
            if trial.state == TrialState.WAITING:
                self._storage.set_trial_state_values(
                    self._storage.get_trial_id_from_study_id_trial_number(
                        self._storage.get_study_id_from_name(study.study_name), trial.number
                    ),
                    TrialState.FAIL,
                )
            elif trial.state == TrialState.RUNNING and label in done:  # whether or not its worker is thought to live
                close(self._storage, study, trial.number, done[label][1], self._objective, self._carry)
                told.add(label)
            elif trial.state == TrialState.RUNNING and not self._fleet.alive(trial.user_attrs.get(WORKER, "")):
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            elif trial.state != TrialState.FAIL:
                told.add(label)
        for label, (point, answer) in done.items():
            if self._carry and label not in told:
                self._add(study, point, answer)

    def _add(self, study: optuna.Study, point: Point, answer: Answer) -> None:
        chosen = self._chosen(point)
        distributions = {name: self._choices[name] for name in chosen}
        add(study, answer, self._objective, chosen, distributions, {PLANNED: _label(point)}, self._carry)

    def _chosen(self, point: Point) -> dict[str, str]:
        """The point's values of the parameters that tell configs apart."""
        return {name: value for name, value in _parameters(point).items() if name in self._choices}


def begin(
    storage: BaseStorage,
    study: optuna.Study,
    parameters: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    attributes: Mapping[str, Any],
) -> optuna.Trial:
    """A running trial, made in one write: asked for its parameters one by one, each would be another."""
    begun = create_trial(
        state=TrialState.RUNNING,
        params=dict(parameters),
        distributions=dict(distributions),
        user_attrs=dict(attributes),
    )
    return optuna.Trial(study, storage.create_new_trial(storage.get_study_id_from_name(study.study_name), begun))


def tell(study: optuna.Study, trial: optuna.Trial, answer: Answer, objective: Objective, carry: bool = False) -> bool:
    """Record an answer. A point that did not run is pruned and infeasible, never failed: samplers do not see failures
    and would propose the same corner for ever.

    Args:
        study, trial, answer, objective: what was asked, and what came of it.
        carry: keep the whole answer in the storage.

    Returns:
        Whether it is recorded; not where another worker took this one for dead and closed the trial.
    """
    return patiently(lambda: _tell(study, trial, answer, objective, carry))


def _tell(study: optuna.Study, trial: optuna.Trial, answer: Answer, objective: Objective, carry: bool) -> bool:
    values = objective.values(answer.figures) if answer.status == "ok" else None
    try:
        if carry:  # one attribute is one commit
            trial.set_user_attr(ANSWER, packed_answer(answer))
        else:
            trial.set_user_attr("status", answer.status)
        if values is not None:
            told = study.tell(trial, values, skip_if_finished=True)
        else:
            trial.set_constraint("runs", 1.0)
            told = study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
    except UpdateFinishedTrialError:  # told already, and only the database's reply was lost; or taken over
        told = study.get_trials(deepcopy=False)[trial.number]
    return told.state in ENDED


def close(
    storage: BaseStorage, study: optuna.Study, number: int, answer: Answer, objective: Objective, carry: bool
) -> None:
    """Record the answer of a trial that somebody began and did not tell."""
    study_id = storage.get_study_id_from_name(study.study_name)
    trial = optuna.Trial(study, storage.get_trial_id_from_study_id_trial_number(study_id, number))
    _tell(study, trial, answer, objective, carry)


def add(
    study: optuna.Study,
    answer: Answer,
    objective: Objective,
    parameters: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    attributes: Mapping[str, Any],
    carry: bool,
) -> None:
    """Record an answer of which the storage knows no trial."""
    values = objective.values(answer.figures) if answer.status == "ok" else None
    carried = {ANSWER: packed_answer(answer)} if carry else {}
    study.add_trial(
        create_trial(
            state=TrialState.PRUNED if values is None else TrialState.COMPLETE,
            values=values,
            params=dict(parameters),
            distributions=dict(distributions),
            user_attrs={**attributes, "status": answer.status, **carried},
        )
    )


def answers(study: optuna.Study, points: Mapping[str, Point]) -> Iterator[tuple[Point, Answer]]:
    """What all workers found, as far as the storage carries it.

    Args:
        study: of one problem and regime.
        points: its legal points, by the label of their config.
    """
    for trial in patiently(lambda: study.get_trials(deepcopy=False, states=ENDED)):
        point = points.get(trial.user_attrs.get(PLANNED) or trial.user_attrs.get("config", ""))
        if point is not None and ANSWER in trial.user_attrs:
            yield point, unpacked_answer(trial.user_attrs[ANSWER])


def packed_answer(answer: Answer) -> str:
    """An answer as one line of JSON; figures that are no numbers are left out."""
    figures = {name: _plain(value) for name, value in answer.figures.items()}
    kept = {name: value for name, value in figures.items() if value is not None and value == value}
    return json.dumps([answer.status, answer.reason, kept, [list(map(_plain, one)) for one in answer.samples]])


def unpacked_answer(text: str) -> Answer:
    """The other way round."""
    status, reason, figures, samples = json.loads(text)
    return Answer(status, reason, figures, tuple(tuple(one) for one in samples))


def open_study(
    storage: BaseStorage | str, name: str, objective: Objective, sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """A study, taken up where it was left."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name=name, storage=storage, directions=objective.directions, load_if_exists=True, sampler=sampler
    )


def _choices(points: Sequence[Point]) -> dict[str, Any]:
    """The parameters that tell the configs apart, as categories of text (a journal turns tuples into lists). Those that
    follow from the others, as the stages that fit do, would cost a database as much again."""
    return {
        name: CategoricalDistribution(sorted(map(str, values), key=_number_first))
        for name, values in telling(list(dict.fromkeys(point.config for point in points))).items()
    }


def _number_first(text: str) -> tuple[int, float, str]:
    return (0, float(text), "") if text.lstrip("-").isdigit() else (1, 0.0, text)


def _parameters(point: Point) -> dict[str, str]:
    return {name: str(value) for name, value in point.config.as_dict().items()}


def _label(point: Point) -> str:
    return str(point.config)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
