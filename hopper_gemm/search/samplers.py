"""Samplers that propose legal configs only, and none twice.

All are Optuna samplers over a :class:`hopper_gemm.search.legal.LegalSpace`: what a trial is given are always the
parameters of one of its configs. What was tried they are told, since the Optuna study is made anew from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.menu import technique
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.search.legal import LegalSpace
from hopper_gemm.search.objective import Objective

HOPELESS = 0.4
"""A technique whose best is predicted so much slower, as a logarithm, is not tried unless the search comes to it."""

Losses = tuple[float, ...]


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
        self.seen: dict[int, Losses] = {}
        """Losses of the configs that ran, by number; those of earlier studies too."""
        self.failed: set[int] = set()
        """Configs that did not run."""
        self.pending: set[int] = set()
        """Configs that are being measured."""
        self._objective = objective
        self._rng = np.random.default_rng(seed)
        self._first = list(dict.fromkeys(first))
        self._free = np.ones(len(space), dtype=bool)

    def begin(self, number: int) -> None:
        """Note that a config is being measured; it is not proposed again."""
        self._free[number] = False
        self.pending.add(number)

    def end(self, number: int, losses: Losses | None) -> None:
        """Note what came of a config: its losses, or None where it did not run."""
        self._free[number] = False
        self.pending.discard(number)
        if losses is None:
            self.failed.add(number)
        else:
            self.seen[number] = losses

    def hint(self, number: int, losses: Losses) -> None:
        """Note what an earlier study measured: it is known, and may be proposed all the same."""
        self.seen.setdefault(number, losses)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters are chosen together."""
        return self.space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of a legal config that was not tried, which is pending from then on.

        Raises:
            ValueError: every config was tried.
        """
        number = next((one for one in self._first if self._free[one]), None)
        if number is None:
            free = np.flatnonzero(self._free)
            if not len(free):
                raise ValueError("every legal config was tried; ask for fewer trials")
            number = self.choose(study, trial, free)
        self.begin(number)
        return self.space.parameters(number)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never: a parameter alone says nothing of whether the config is legal."""
        raise ValueError(f"{param_name} is no parameter of this search; ask with the space's distributions")

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """One of the free configs, by number."""
        return int(self._rng.choice(free))


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

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """The free config with the best prediction."""
        return int(free[self._predicted[free].argmin()])


class Tpe(Inside):
    """Optuna's TPE; the free legal config nearest to what it suggests is taken."""

    def __init__(self, space: LegalSpace, objective: Objective, seed: int, first: Iterable[int] = ()) -> None:
        super().__init__(space, objective, seed, first)
        self._tpe = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed)

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """The free config nearest to TPE's suggestion; any, as long as TPE has too few results."""
        suggested = self._tpe.sample_relative(study, trial, self.space.distributions)
        return self.space.nearest(suggested, free) if suggested else super().choose(study, trial, free)


def predictions(configs: Iterable[GemmConfig], problem: GemmProblem) -> np.ndarray:
    """Logarithm of the time that :mod:`hopper_gemm.model.predict` gives each config."""
    return np.log([predict(config, problem).seconds for config in configs])


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
