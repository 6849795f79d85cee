"""Samplers that propose legal configs only, and none twice.

All are Optuna samplers over a :class:`hopper_gemm.tune.search.legal.LegalSpace`: the parameters of a trial are always
those of one of its configs. At a restart their results are restored from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import inf, log
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.techniques import technique

SLOWEST_TECHNIQUE = 0.4
"""Logarithm of predicted times: a technique whose best config is predicted this much slower than the best of all is
left out of the initial configs."""


class LegalSampler(optuna.samplers.BaseSampler):
    """Random search over legal configs, and the base of all samplers: it never proposes a config twice, and tries the
    ``initial`` ones, by number, first. Each sampler has an Optuna study of its own, in memory."""

    def __init__(self, space: LegalSpace, seed: int, initial: Iterable[int] = ()) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = space
        self.losses: dict[int, float] = {}
        """:func:`loss` of the configs that ran, by number, those of earlier studies included."""
        self.failed: set[int] = set()  # numbers of the configs that did not run
        self.pending: dict[int, optuna.Trial] = {}  # trials that are being measured, by number of their config
        self._rng = np.random.default_rng(seed)
        self._initial = list(dict.fromkeys(initial))
        self._free = np.ones(len(space), dtype=bool)
        self._study = optuna.create_study(direction="maximize", sampler=self)

    def ask(self) -> int:
        """Return the number of a config that was not tried; it is pending from now on. ValueError if every config was
        tried."""
        trial = self._study.ask(self.space.distributions)
        number = self.space.find(trial.params)
        assert number is not None
        self.pending[number] = trial
        return number

    def tell(self, number: int, speedup: float | None) -> None:
        """Record the speedup of a pending config; None where it did not run. It is pruned and infeasible then, not
        failed: Optuna's samplers ignore failed trials and would propose the same region again. ValueError if the config
        is not pending, or that is no speedup."""
        if number not in self.pending:
            raise ValueError(f"tell takes a config that ask gave and that was not told yet, but got number {number}")
        self._record(number, speedup)
        trial = self.pending.pop(number)
        if speedup is None:
            trial.set_constraint("runs", 1.0)
        self._study.tell(trial, speedup, TrialState.PRUNED if speedup is None else TrialState.COMPLETE)

    def restore(self, number: int, speedup: float | None) -> None:
        """Record the result of a config that an earlier run measured; arguments as in :meth:`tell`."""
        self._record(number, speedup)
        self._study.add_trial(ended_trial(self.space, number, speedup))

    def hint(self, number: int, speedup: float) -> None:
        """Record the speedup of a config in an earlier study; it may still be proposed."""
        self.losses.setdefault(number, loss(speedup))

    def _record(self, number: int, speedup: float | None) -> None:
        self._free[number] = False
        if speedup is None:
            self.failed.add(number)
        else:
            self.losses[number] = loss(speedup)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all parameters: they are chosen together."""
        return self.space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of a legal config that was not tried."""
        free = np.flatnonzero(self._free)
        if not len(free):
            raise ValueError("every legal config was tried; ask for fewer trials")
        first = next((number for number in self._initial if self._free[number]), None)
        number = self.choose(study, trial, free) if first is None else first
        self._free[number] = False
        return self.space.parameters(number)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Raise ValueError: legality is a property of the whole config, so no parameter is drawn alone."""
        raise ValueError(f"{param_name} is no parameter of this search; ask with the space's distributions")

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """Return the number of one of the free configs."""
        return int(self._rng.choice(free))


class Ranked(LegalSampler):
    """Proposes configs in the order of a prediction of each, the least first."""

    def __init__(self, space: LegalSpace, seed: int, predicted: np.ndarray, initial: Iterable[int] = ()) -> None:
        super().__init__(space, seed, initial)
        self._predicted = predicted

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        return int(free[self._predicted[free].argmin()])


class Plugged(LegalSampler):
    """Proposes the free legal config nearest to what any Optuna sampler suggests, which learns of that config. The
    sampler sees numbers as integers between the least and the greatest value of the space, and words as categories.

    Example:
        >>> from hopper_gemm.tune.search.legal import LegalSpace
        >>> space = LegalSpace([GemmConfig(tile_m=m, tile_n=n) for m in (128, 192, 256) for n in (64, 128)])
        >>> plugged = Plugged(space, 0, optuna.samplers.RandomSampler(seed=0))
        >>> number = plugged.ask()
        >>> plugged.tell(number, 0.98)  # None where the config did not run
    """

    def __init__(
        self, space: LegalSpace, seed: int, sampler: optuna.samplers.BaseSampler, initial: Iterable[int] = ()
    ) -> None:
        super().__init__(space, seed, initial)
        self._sampler = sampler

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._sampler.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._sampler.after_trial(study, trial, state, values)

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        joint = self._sampler.infer_relative_search_space(study, trial)
        suggested = self._sampler.sample_relative(study, trial, joint)
        for name, distribution in self.space.distributions.items():
            if name not in suggested:
                suggested[name] = self._sampler.sample_independent(study, trial, name, distribution)
        return self.space.nearest(suggested, free)


def loss(speedup: float) -> float:
    """Return what a sampler minimises; ValueError if that is no speedup."""
    if not 0 < speedup < inf:
        raise ValueError(f"a speedup must be above 0 and finite, None where the config did not run, but got {speedup}")
    return -log(speedup)


def speedup_of(row: Row) -> float | None:
    """Return the speedup of a row; None where its config did not run."""
    return row.figures.get("speedup") if row.ok else None


def ended_trial(space: LegalSpace, number: int, speedup: float | None, **noted: Any) -> FrozenTrial:
    """Return a measured config as a trial, its speedup None where it did not run; ``noted`` are user attributes."""
    return create_trial(
        state=TrialState.PRUNED if speedup is None else TrialState.COMPLETE,
        value=speedup,
        params=space.parameters(number),
        distributions=space.distributions,
        user_attrs={"config": str(space.configs[number]), **noted},
    )


def predictions(configs: Iterable[GemmConfig], problem: GemmProblem) -> np.ndarray:
    """Return the logarithm of the time that :mod:`hopper_gemm.model.predict` predicts for each config."""
    return np.log([predict(config, problem).seconds for config in configs])


def diverse(predicted: np.ndarray, configs: Sequence[GemmConfig], most: int) -> list[int]:
    """Return at most ``most`` numbers of configs with the best predictions, which are logarithms of times; no two have
    the same tile and depth. Every other config is the best of another technique, unless the technique is predicted more
    than :data:`SLOWEST_TECHNIQUE` slower."""
    tiles: dict[Any, int] = {}
    techniques: dict[Any, int] = {}
    slowest = float(predicted.min()) + SLOWEST_TECHNIQUE if len(predicted) else 0.0
    for i in map(int, predicted.argsort(kind="stable")):
        config = configs[i]
        if len(tiles) < most:
            tiles.setdefault((config.tile_m, config.tile_n, config.k_depth), i)
        if predicted[i] <= slowest:
            techniques.setdefault(technique(config), i)
        elif len(tiles) == most:
            break
    pairs = zip_longest(tiles.values(), techniques.values())
    return list(dict.fromkeys(number for pair in pairs for number in pair if number is not None))[:most]
