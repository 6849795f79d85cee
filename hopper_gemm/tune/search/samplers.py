"""Samplers that propose legal configs only, and none twice.

All are Optuna samplers over a :class:`hopper_gemm.tune.search.legal.LegalSpace`: what a trial is given are always the
parameters of one of its configs. What was tried they are told, since the Optuna study is made anew from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.menu import technique
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.objective import Objective

SLOWEST_TECHNIQUE = 0.4
"""Logarithm of predicted times: a technique whose best config is predicted this much slower than the best of all is
left out of the initial configs."""

Losses = tuple[float, ...]


class LegalSampler(optuna.samplers.BaseSampler):
    """The base: keeps proposals inside the legal set and off what was tried. This one draws at random.

    Each has an Optuna study of its own, in memory.

    Args:
        space: the legal configs.
        objective: what is looked for.
        seed: of the draws.
        first: configs to try before anything else, by number.
    """

    def __init__(self, space: LegalSpace, objective: Objective, seed: int, first: Iterable[int] = ()) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.objective = space, objective
        self.seen: dict[int, Losses] = {}
        """Losses of the configs that ran, by number; those of earlier studies too."""
        self.failed: set[int] = set()
        """Configs that did not run."""
        self.pending: dict[int, optuna.Trial] = {}
        """Configs that are being measured."""
        self._rng = np.random.default_rng(seed)
        self._first = list(dict.fromkeys(first))
        self._free = np.ones(len(space), dtype=bool)
        self._study = optuna.create_study(directions=objective.directions, sampler=self)

    def ask(self) -> int:
        """A config that was not tried, by number; it is pending from now on.

        Raises:
            ValueError: every config was tried.
        """
        trial = self._study.ask(self.space.distributions)
        number = self.space.find(trial.params)
        assert number is not None
        self.pending[number] = trial
        return number

    def tell(self, number: int, values: list[float] | None) -> None:
        """Record what came of a pending config. One that did not run is pruned and infeasible, never failed: samplers
        do not see failures and would propose the same corner for ever.

        Args:
            number: of the config.
            values: what was looked for; None where it did not run.
        """
        trial = self.pending.pop(number)
        self._note(number, values)
        if values is not None:
            self._study.tell(trial, values)
        else:
            trial.set_constraint("runs", 1.0)
            self._study.tell(trial, state=TrialState.PRUNED)

    def know(self, number: int, values: list[float] | None) -> None:
        """Record what came of a config before, as in :meth:`tell`."""
        self._note(number, values)
        self._study.add_trial(ended_trial(self.space, number, values))

    def hint(self, number: int, losses: Losses) -> None:
        """Note what an earlier study measured: it is known, and may be proposed all the same."""
        self.seen.setdefault(number, losses)

    def _note(self, number: int, values: list[float] | None) -> None:
        self._free[number] = False
        if values is None:
            self.failed.add(number)
        else:
            self.seen[number] = self.objective.losses(values)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters are chosen together."""
        return self.space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of a legal config that was not tried; see :meth:`ask`."""
        number = next((one for one in self._first if self._free[one]), None)
        if number is None:
            free = np.flatnonzero(self._free)
            if not len(free):
                raise ValueError("every legal config was tried; ask for fewer trials")
            number = self.choose(study, trial, free)
        self._free[number] = False
        return self.space.parameters(number)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never: a parameter alone says nothing of whether the config is legal."""
        raise ValueError(f"{param_name} is no parameter of this search; ask with the space's distributions")

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """One of the free configs, by number."""
        return int(self._rng.choice(free))


class Ranked(LegalSampler):
    """Configs in the order of a model's prediction.

    Args:
        predicted: what the model says of each config, the less the better.
    """

    def __init__(
        self, space: LegalSpace, objective: Objective, seed: int, predicted: np.ndarray, first: Iterable[int] = ()
    ) -> None:
        super().__init__(space, objective, seed, first)
        self._predicted = predicted

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """The free config with the best prediction."""
        return int(free[self._predicted[free].argmin()])


class Tpe(LegalSampler):
    """Optuna's TPE; the free legal config nearest to what it suggests is taken."""

    def __init__(self, space: LegalSpace, objective: Objective, seed: int, first: Iterable[int] = ()) -> None:
        super().__init__(space, objective, seed, first)
        self._tpe = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed)

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """The free config nearest to TPE's suggestion; any, as long as TPE has too few results."""
        suggested = self._tpe.sample_relative(study, trial, self.space.distributions)
        return self.space.nearest(suggested, free) if suggested else super().choose(study, trial, free)


def ended_trial(space: LegalSpace, number: int, values: list[float] | None, **noted: Any) -> FrozenTrial:
    """A config that was measured, as a trial.

    Args:
        space: of the config.
        number: its number there.
        values: what was looked for; None where it did not run.
        noted: user attributes.
    """
    return create_trial(
        state=TrialState.PRUNED if values is None else TrialState.COMPLETE,
        values=values,
        params=space.parameters(number),
        distributions=space.distributions,
        user_attrs={"config": str(space.configs[number]), **noted},
    )


def predictions(configs: Iterable[GemmConfig], problem: GemmProblem) -> np.ndarray:
    """Logarithm of the time that :mod:`hopper_gemm.model.predict` gives each config."""
    return np.log([predict(config, problem).seconds for config in configs])


def diverse(predicted: np.ndarray, configs: Sequence[GemmConfig], most: int) -> list[int]:
    """The configs with the best predictions, no two with one tile and depth: near twins teach little. Every other one
    is the best of another technique, as long as that is not predicted much slower.

    Args:
        predicted: logarithm of a time.
        configs: what it is of.
        most: how many.
    """
    tiles: dict[Any, int] = {}
    techniques: dict[Any, int] = {}
    slowest = float(predicted.min()) + SLOWEST_TECHNIQUE if len(predicted) else 0.0
    for i in map(int, predicted.argsort(kind="stable")):
        config = configs[i]
        if len(tiles) < most:
            tiles.setdefault((config.tile_m, config.tile_n, config.k_depth), i)
        if predicted[i] > slowest and len(tiles) == most:
            break
        if predicted[i] <= slowest:
            techniques.setdefault(technique(config), i)
    alternately = (one for pair in zip_longest(tiles.values(), techniques.values()) for one in pair if one is not None)
    return list(dict.fromkeys(alternately))[:most]
