"""The Optuna studies of a sweep: one for each problem and regime, each an exhaustive queue of its legal points.

Optuna remembers what was asked and told, in a journal file that needs no server, so that its dashboard and its plots
work on our sweeps and guided samplers can take over the same storage. The queue never proposes a point that a rule
refuses, nor one whose row is already on disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.objective import Objective
from hopper_gemm.tuning.space import Point

PLANNED = "planned"
"""User attribute of a queued trial: the label of the point it stands for."""


@dataclass(frozen=True)
class Asked:
    """A point that is being measured, and the trial that stands for it."""

    point: Point
    trial: optuna.Trial
    study: optuna.Study


class PointQueue:
    """The points still to be measured, in order, as Optuna trials.

    Args:
        storage: of the studies; see :func:`open_storage`.
        name: of the sweep; studies are called ``name/problem dtype layouts regime``.
        points: legal points to be measured now.
        done: legal points that have a row, with what was answered: trials that were cut off before they were told are
            told now.
        space: all legal points of the sweep; their values are the categories, the same in every run.
        seed: of the sampler.
        objective: the figure that trials are told.
        whole: whether the sweep is done with these points.
        seconds: ask for nothing more after so many.
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
        whole: bool = True,
        seconds: float | None = None,
    ) -> None:
        self._objective = objective
        self._whole = whole
        self._ends = None if seconds is None else time.monotonic() + seconds
        self.finished = False
        """Whether nothing is left that the budget allows."""
        self._points = list(points)
        self._choices = _choices(space)
        self._studies = {
            study: open_study(storage, f"{name}/{study}", objective, optuna.samplers.RandomSampler(seed=seed))
            for study in dict.fromkeys(point.study for point in space)
        }
        for study, handle in self._studies.items():
            self._settle(handle, [(point, answer) for point, answer in done if point.study == study])
            self._plan(handle, [point for point in points if point.study == study])

    def __iter__(self) -> Iterator[Asked]:
        by_label = {(point.study, _label(point)): point for point in self._points}
        for study in dict.fromkeys(point.study for point in self._points):
            handle = self._studies[study]
            for _ in range(sum(point.study == study for point in self._points)):
                if self._ends is not None and time.monotonic() >= self._ends:
                    self.finished = True
                    return
                trial = handle.ask(self._choices)
                yield Asked(by_label[study, trial.user_attrs[PLANNED]], trial, handle)
        self.finished = self._whole

    def tell(self, asked: Asked, answer: Answer) -> None:
        """Record an answer."""
        tell(asked.study, asked.trial, answer, self._objective)

    def _plan(self, study: optuna.Study, points: list[Point]) -> None:
        """Leave exactly the open points waiting, in order; what an earlier run left in another state is closed."""
        waiting = {
            trial.user_attrs.get(PLANNED): trial
            for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        }
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
        for point in points:
            if _label(point) not in waiting:
                study.enqueue_trial(_parameters(point), user_attrs={PLANNED: _label(point)})

    def _settle(self, study: optuna.Study, done: list[tuple[Point, Answer]]) -> None:
        """Tell trials whose row reached the disk but whose answer did not reach the journal."""
        answers = {_label(point): answer for point, answer in done}
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            answer = answers.get(trial.user_attrs.get(PLANNED))
            if answer is not None:
                self._close(study, trial, answer)

    def _close(self, study: optuna.Study, trial: FrozenTrial, answer: Answer) -> None:
        values = self._objective.values(answer.figures) if answer.status == "ok" else None
        if values is not None:
            study.tell(trial.number, values)
        else:
            study.tell(trial.number, state=TrialState.PRUNED)


def tell(study: optuna.Study, trial: optuna.Trial, answer: Answer, objective: Objective) -> None:
    """Record an answer. A point that did not run is pruned and infeasible, never failed: samplers do not see failures
    and would propose the same corner for ever."""
    trial.set_user_attr("status", answer.status)
    values = objective.values(answer.figures) if answer.status == "ok" else None
    if values is not None:
        study.tell(trial, values)
    else:
        trial.set_constraint("runs", 1.0)
        study.tell(trial, state=TrialState.PRUNED)


def open_study(
    storage: BaseStorage | str, name: str, objective: Objective, sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """A study, taken up where it was left."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name=name, storage=storage, directions=objective.directions, load_if_exists=True, sampler=sampler
    )


def open_storage(url: str) -> BaseStorage | str:
    """An Optuna storage: a path is a journal file; anything with ``://`` is a database URL, handed to Optuna."""
    if "://" in url:
        return url
    Path(url).parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(url))


def _choices(points: Sequence[Point]) -> dict[str, Any]:
    """The parameters that vary, as categories of text (a journal turns tuples into lists)."""
    values: dict[str, list[str]] = {}
    for point in points:
        for name, value in point.config.as_dict().items():
            seen = values.setdefault(name, [])
            if str(value) not in seen:
                seen.append(str(value))
    return {
        name: CategoricalDistribution(sorted(seen, key=_number_first)) for name, seen in values.items() if len(seen) > 1
    }


def _number_first(text: str) -> tuple[int, float, str]:
    return (0, float(text), "") if text.lstrip("-").isdigit() else (1, 0.0, text)


def _parameters(point: Point) -> dict[str, str]:
    return {name: str(value) for name, value in point.config.as_dict().items()}


def _label(point: Point) -> str:
    return str(point.config)
