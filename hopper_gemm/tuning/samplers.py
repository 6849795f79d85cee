"""Samplers that propose legal configs only, and none twice.

All are Optuna samplers over a :class:`hopper_gemm.tuning.legal.LegalSpace`: what a trial is given are always the
parameters of one of its configs. What was tried is read from the study, so that several processes can share one, and a
run that was killed goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import sqrt
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.menu import technique
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.legal import LegalSpace
from hopper_gemm.tuning.objective import Objective

SAMPLERS = ("exhaustive", "random", "tpe", "gp", "prior")
GUIDED = ("tpe", "gp", "prior")

EARLIER = "earlier"
"""User attribute of a trial that was told from an earlier study: known, but not measured here."""

CANDIDATES = 2000
"""Of a larger space so many free configs are looked at for one proposal."""

OBSERVATIONS = 400
"""Of more results so many are modelled: the better half of that, and others drawn at random."""


@dataclass
class History:
    """What a sampler knows when it is asked.

    Args:
        taken: configs that were measured, or are being measured; none of them is proposed.
        seen: losses of those that ran, by number; those of earlier studies too.
        failed: configs that did not run.
        pending: being measured.
    """

    taken: set[int] = field(default_factory=set)
    seen: dict[int, tuple[float, ...]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)


class Inside(optuna.samplers.BaseSampler):
    """The base: keeps proposals inside the legal set and off what was tried. This one draws at random.

    Args:
        space: the legal configs.
        objective: what is looked for.
        seed: of the draws.
        first: configs to try before anything else, by number.
    """

    def __init__(self, space: LegalSpace, objective: Objective, seed: int, first: Iterable[int] = ()) -> None:
        self.space = space
        self._objective = objective
        self._rng = np.random.default_rng(seed)
        self._first = list(dict.fromkeys(first))
        self._closed: dict[int, tuple[int, str, tuple[float, ...] | None]] = {}

    def reseed_rng(self) -> None:
        """Draw otherwise from here on."""
        self._rng = np.random.default_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters are chosen together."""
        return self.space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of a legal config that nobody has tried."""
        return self.space.parameters(self._next(study, trial))

    def propose(self, study: optuna.Study) -> dict[str, Any] | None:
        """The same before there is a trial, so that it can be begun in one write to the storage; None from a sampler
        that wants the trial."""
        return self.space.parameters(self._next(study, None))

    def _next(self, study: optuna.Study, trial: FrozenTrial | None) -> int:
        history = self._history(study, trial)
        number = next((one for one in self._first if one not in history.taken), None)
        if number is None:
            free = np.setdiff1d(np.arange(len(self.space)), np.fromiter(history.taken, dtype=int), assume_unique=True)
            if not len(free):
                raise ValueError("every legal config was tried; ask for fewer trials")
            number = self._choose(study, trial, history, free)
        return number

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never: a parameter alone says nothing of whether the config is legal."""
        raise ValueError(f"{param_name} is no parameter of this search; ask with the space's distributions")

    def _choose(self, study: optuna.Study, trial: FrozenTrial | None, history: History, free: np.ndarray) -> int:
        return int(self._rng.choice(free))

    def _history(self, study: optuna.Study, asking: FrozenTrial | None) -> History:
        """Read the study; a trial that has ended never changes, so that each is looked at once."""
        history = History()
        for trial in study.get_trials(deepcopy=False, states=SHOWN):
            if asking is not None and trial.number == asking.number:
                continue
            closed = self._closed.get(trial.number)
            if closed is None:
                number = self.space.find(trial.params)
                if number is None:
                    continue
                if trial.state == TrialState.RUNNING:
                    history.taken.add(number)
                    history.pending.add(number)
                    continue
                losses = self._objective.losses(trial.values) if trial.state == TrialState.COMPLETE else None
                closed = (number, "earlier" if EARLIER in trial.user_attrs else "here", losses)
                self._closed[trial.number] = closed
            number, where, losses = closed
            if where == "here":
                history.taken.add(number)
            if losses is None:
                history.failed.add(number)
            elif where == "here" or number not in history.seen:
                history.seen[number] = losses
        return history


SHOWN = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
"""Trials that say something; a failed one was cut off before it was measured."""


class Ranked(Inside):
    """Configs in the order of a model's prediction.

    Args:
        predicted: what the model says of each config, the less the better.
    """

    def __init__(
        self, space: LegalSpace, objective: Objective, seed: int, predicted: np.ndarray, first: Iterable[int] = ()
    ) -> None:
        super().__init__(space, objective, seed, first)
        self._predicted = predicted

    def _choose(self, study: optuna.Study, trial: FrozenTrial | None, history: History, free: np.ndarray) -> int:
        return int(free[self._predicted[free].argmin()])


class Tpe(Inside):
    """Optuna's TPE; the free legal config nearest to what it suggests is taken."""

    def __init__(self, space: LegalSpace, objective: Objective, seed: int, first: Iterable[int] = ()) -> None:
        super().__init__(space, objective, seed, first)
        self._tpe = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed)

    def reseed_rng(self) -> None:
        """Draw otherwise from here on."""
        super().reseed_rng()
        self._tpe.reseed_rng()

    def propose(self, study: optuna.Study) -> dict[str, Any] | None:
        """Optuna's sampler wants a trial."""
        return None

    def _choose(self, study: optuna.Study, trial: FrozenTrial | None, history: History, free: np.ndarray) -> int:
        assert trial is not None
        suggested = self._tpe.sample_relative(study, trial, self.space.distributions)
        if not suggested:  # too few results yet
            return super()._choose(study, trial, history, free)
        return self.space.nearest(suggested, free)


class Gp(Inside):
    """A Gaussian process over the legal configs, on top of a model's prediction: what is learnt is by how much the
    prediction is off. The config is taken that could be the best: that with the lowest mean less about
    :data:`CURIOSITY` deviations.

    With two objectives each proposal looks for the best of another weighting of them (Knowles, "ParEGO", 2006).

    Args:
        predicted: logarithm of the time that a model predicts for each config.
        earlier: configs with their losses, from earlier studies, which may lie outside the space; with what the model
            predicts for them.
    """

    def __init__(
        self,
        space: LegalSpace,
        objective: Objective,
        seed: int,
        predicted: np.ndarray,
        first: Iterable[int] = (),
        earlier: Sequence[tuple[GemmConfig, tuple[float, ...], float]] = (),
    ) -> None:
        super().__init__(space, objective, seed, first)
        self._predicted = predicted
        self._where = np.hstack([space.places, _scaled(predicted, predicted)[:, None]])
        self._groups = np.append(space.groups, space.groups.max() + 1)
        outside = [one for one in earlier if one[0] not in space.number]
        self._outside = (
            np.array([[*space.coordinates(config), *_scaled(np.array([p]), predicted)] for config, _, p in outside]),
            [losses for _, losses, _ in outside],
            np.array([p for *_, p in outside]),
        )
        self._scales = np.full(self._groups.max() + 1, 1.0)
        self._noise = 1e-3
        self._fitted = 0

    def _choose(self, study: optuna.Study, trial: FrozenTrial | None, history: History, free: np.ndarray) -> int:
        if not history.seen:
            return int(free[self._predicted[free].argmin()])
        where, losses, predicted = self._observed(history)
        slope = _slope(predicted, losses)
        level = float(np.mean(losses - slope * predicted))
        off = losses - level - slope * predicted
        if len(off) >= self._fitted + max(4, self._fitted // 8):
            self._fit(where, off)
        some = self._candidates(free, history)
        process = _Process(where, off, self._groups, self._scales, self._noise)
        if history.pending:  # believe the model about what is being measured
            waiting = np.array(sorted(history.pending))
            believed, _ = process.predict(self._where[waiting])
            where, off = np.vstack([where, self._where[waiting]]), np.append(off, believed)
            process = _Process(where, off, self._groups, self._scales, self._noise)
        mean, deviation = process.predict(self._where[some])
        mean += level + slope * self._predicted[some]
        curiosity = CURIOSITY * self._rng.uniform(0.9, 1.1)
        return int(some[(mean - curiosity * deviation).argmin()])

    def _observed(self, history: History) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places, losses (one figure each) and predictions of all that is known. What failed counts as the worst."""
        numbers = list(history.seen)
        losses = np.array([*history.seen.values(), *self._outside[1]])
        if self._objective.pareto:
            spread = np.maximum(np.ptp(losses, axis=0), 1e-9)
            normal = (losses - losses.min(axis=0)) / spread
            weights = self._rng.dirichlet(np.ones(losses.shape[1]))
            one = (normal * weights).max(axis=1) + 0.05 * (normal * weights).sum(axis=1)
        else:
            one = losses[:, 0]
        failed = sorted(history.failed - history.seen.keys())
        where = np.vstack(
            [self._where[numbers], self._outside[0].reshape(-1, self._where.shape[1]), self._where[failed]]
        )
        one = np.append(one, np.full(len(failed), one.max()))
        predicted = np.concatenate([self._predicted[numbers], self._outside[2], self._predicted[failed]])
        if len(one) <= OBSERVATIONS:
            return where, one, predicted
        order = one.argsort(kind="stable")
        drawn = self._rng.permutation(order[OBSERVATIONS // 2 :])[: OBSERVATIONS // 2]
        kept = np.concatenate([order[: OBSERVATIONS // 2], drawn])
        return where[kept], one[kept], predicted[kept]

    def _candidates(self, free: np.ndarray, history: History) -> np.ndarray:
        """Of many free configs the most promising by prediction, those around the best, and some at random."""
        if len(free) <= CANDIDATES:
            return free
        promising = free[self._predicted[free].argpartition(CANDIDATES // 4)[: CANDIDATES // 4]]
        best = sorted(history.seen, key=lambda one: history.seen[one])[:8]
        each = CANDIDATES // 4 // len(best)
        around = [
            free[np.abs(self.space.places[free] - self.space.places[one]).sum(axis=1).argpartition(each)[:each]]
            for one in best
        ]
        return np.unique(np.concatenate([promising, *around, self._rng.choice(free, CANDIDATES // 2, replace=False)]))

    def _fit(self, where: np.ndarray, off: np.ndarray) -> None:
        """Length scales and noise by marginal likelihood, one after the other over a few values each."""
        self._fitted = len(off)
        apart = _apart(where, where, self._groups)

        def score(covariance: np.ndarray, noise: float, scales: np.ndarray) -> float:
            try:
                found = _likelihood(covariance, off, noise)
            except np.linalg.LinAlgError:
                return -np.inf
            return found - 0.5 * float((np.log(scales) ** 2).sum()) / SCALE_SPREAD**2

        for _ in range(ROUNDS):
            for group in range(len(self._scales)):
                others = _covariance(np.delete(apart, group, axis=0), np.delete(self._scales, group))
                rated = []
                for scale in SCALES:
                    self._scales[group] = scale
                    rated.append(score(others * _link(apart[group], scale), self._noise, self._scales))
                self._scales[group] = SCALES[int(np.argmax(rated))]
            covariance = _covariance(apart, self._scales)
            self._noise = max(NOISES, key=lambda noise: score(covariance, noise, self._scales))


def make(
    name: str,
    space: LegalSpace,
    objective: Objective,
    seed: int,
    predicted: np.ndarray,
    seeds: int = 4,
    earlier: Sequence[tuple[GemmConfig, tuple[float, ...], float]] = (),
) -> Inside:
    """A sampler by its name.

    Args:
        name: of :data:`SAMPLERS`.
        space, objective, seed: as for :class:`Inside`.
        predicted: logarithm of the time that a model predicts for each config of the space.
        seeds: configs that guided samplers try first: up to half of them the best of earlier studies, the others the
            model's.
        earlier: configs with losses and prediction, from earlier studies.

    Raises:
        ValueError: there is no such sampler.
    """
    if name == "exhaustive":
        return Ranked(space, objective, seed, np.arange(len(space)))
    if name == "random":
        return Inside(space, objective, seed)
    known = sorted((losses, number) for config, losses, _ in earlier if (number := space.like(config)) is not None)
    first = list(dict.fromkeys(number for _, number in known))[: seeds // 2]
    first += [number for number in diverse(predicted, space.configs, seeds) if number not in first]
    first = first[:seeds]
    if name == "prior":
        return Ranked(space, objective, seed, predicted, [number for _, number in known[: seeds // 2]])
    if name == "tpe":
        return Tpe(space, objective, seed, first)
    if name == "gp":
        return Gp(space, objective, seed, predicted, first, earlier)
    raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)} but got {name!r}")


def predictions(configs: Iterable[GemmConfig], problem: GemmProblem) -> np.ndarray:
    """Logarithm of the time that :mod:`hopper_gemm.model.predict` gives each config."""
    return np.log([predict(config, problem).seconds for config in configs])


CURIOSITY = 1.0
"""Between learning and gaining; chosen by :mod:`hopper_gemm.tuning.simulate`, as are the length scales' spread, and
fewer seeds rather than more."""

HOPELESS = 0.4
"""A technique whose best is predicted so much slower, as a logarithm, is not tried unless the search comes to it."""

SCALES = (0.15, 0.3, 0.6, 1.2, 2.5, 6.0)
SCALE_SPREAD = 3.0
NOISES = (1e-4, 1e-3, 1e-2, 1e-1)
ROUNDS = 2


class _Process:
    """A Gaussian process whose variance is profiled out.

    The kernel is a product of (1 + Matern-5/2) / 2 over the parameters, so that what a parameter does by itself, in
    pairs, and with all others is part of it from the start.

    Args:
        where, off: places and figures.
        groups: the parameter behind each column.
        scales: length scale of each parameter.
        noise: variance of a figure, as a part of the process's.
    """

    def __init__(
        self, where: np.ndarray, off: np.ndarray, groups: np.ndarray, scales: np.ndarray, noise: float
    ) -> None:
        self._where, self._groups, self._scales = where, groups, scales
        self._mean = float(off.mean())
        factor = _factor(_covariance(_apart(where, where, groups), scales), noise)
        self._inverse = np.linalg.inv(factor)
        white = self._inverse @ (off - self._mean)
        self._weights = self._inverse.T @ white
        self._variance = max(float(white @ white) / len(off), 1e-10)

    def predict(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation."""
        places, known = where.astype(np.float32), self._where.astype(np.float32)  # the time goes into exponentials
        across = _covariance(_apart(places, known, self._groups), self._scales).astype(np.float64)
        left = np.maximum(1.0 - ((across @ self._inverse.T) ** 2).sum(axis=1), 1e-12)
        return self._mean + across @ self._weights, np.sqrt(self._variance * left)


def _likelihood(covariance: np.ndarray, off: np.ndarray, noise: float) -> float:
    factor = _factor(covariance, noise)
    white = np.linalg.solve(factor, off - off.mean())
    variance = max(float(white @ white) / len(off), 1e-10)
    return -0.5 * len(off) * np.log(variance) - float(np.log(np.diag(factor)).sum())


def _factor(covariance: np.ndarray, noise: float) -> np.ndarray:
    return np.linalg.cholesky(covariance + (noise + 1e-9) * np.eye(len(covariance)))


def _apart(a: np.ndarray, b: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Distance between any two places in each parameter by itself."""
    apart = np.zeros((groups.max() + 1, len(a), len(b)), dtype=a.dtype)
    for column, group in enumerate(groups):
        apart[group] += np.abs(a[:, column, None] - b[:, column])
    return apart


def _covariance(apart: np.ndarray, scales: np.ndarray) -> np.ndarray:
    total = np.ones(apart.shape[1:], dtype=apart.dtype)
    for distance, scale in zip(apart, scales, strict=True):
        total *= _link(distance, scale)
    return total


def _link(distance: np.ndarray, scale: float) -> np.ndarray:
    near = distance * distance.dtype.type(sqrt(5) / scale)
    return 0.5 + 0.5 * (1 + near + near**2 / 3) * np.exp(-near)


def diverse(predicted: np.ndarray, configs: Sequence[GemmConfig], most: int) -> list[int]:
    """The configs with the best predictions, no two with one tile and depth: near twins teach little. Every other one
    is the best of another technique, as long as it is not hopeless.

    Args:
        predicted: logarithm of a time.
        configs: what it is of.
        most: how many.
    """
    tiles: dict[Any, int] = {}
    techniques: dict[Any, int] = {}
    hopeless = float(predicted.min()) + HOPELESS if len(predicted) else 0.0
    for i in map(int, predicted.argsort(kind="stable")):
        config = configs[i]
        if len(tiles) < most:
            tiles.setdefault((config.tile_m, config.tile_n, config.k_depth), i)
        if predicted[i] > hopeless and len(tiles) == most:
            break
        if predicted[i] <= hopeless:
            techniques.setdefault(technique(config), i)
    alternately = (one for pair in zip_longest(tiles.values(), techniques.values()) for one in pair if one is not None)
    return list(dict.fromkeys(alternately))[:most]


def _slope(predicted: np.ndarray, losses: np.ndarray) -> float:
    """How far the prediction is to be believed: 1 where nothing speaks against it."""
    if len(losses) < 2:
        return 1.0
    p, y = predicted - predicted.mean(), losses - losses.mean()
    trust = 0.02
    return float(np.clip((p @ y + trust) / (p @ p + trust), 0.0, 1.5))


def _scaled(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """From 0 to 1 over the range of the space."""
    return (values - over.min()) / max(float(np.ptp(over)), 1e-9)
