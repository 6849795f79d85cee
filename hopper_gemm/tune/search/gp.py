"""The default sampler: a Gaussian process that learns by how much a model's prediction is off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.tune.search.gaussian import Covariance, Posterior
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.objective import Objective
from hopper_gemm.tune.search.samplers import LegalSampler, Losses

CURIOSITY = 1.0
"""Between learning and gaining; chosen by simulated searches (docs/samplers.md), as is the
spread of the length scales."""

CANDIDATES = 2000
"""Free configs that are looked at in a larger space."""

OBSERVATIONS = 400
"""Results that are modelled where there are more: one half the best, the other drawn at random."""

FITTED = 200
"""Observations that choose the length scales where there are more; the fit takes time with the cube of their number."""


class Gp(LegalSampler):
    """A Gaussian process over the legal configs, on top of a model's prediction. The config is taken that could be the
    best: that with the lowest mean less about :data:`CURIOSITY` deviations. What is being measured counts as what the
    process expects of it.

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
        earlier: Sequence[tuple[GemmConfig, Losses, float]] = (),
    ) -> None:
        super().__init__(space, objective, seed, first)
        self._predicted = predicted
        self._where = np.hstack([space.places, _scaled(predicted, predicted)[:, None]])
        groups = np.append(space.groups, space.groups.max() + 1)
        self._kernel = Covariance(groups, np.full(groups.max() + 1, 1.0))
        self._outside = [one for one in earlier if one[0] not in space.number]
        self._fitted = 0
        self._posterior: Posterior | None = None
        self._known: list[int] = []
        """Configs of the posterior by number, in its order; those outside the space have -1, -2, ..."""
        self._looked_at: set[int] = set()
        self._made = 0
        self._some = np.zeros(0, dtype=int)
        self._believed: dict[int, float] = {}
        """Expected deviation from the prediction, by proposed config."""

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """The free config that could be the best."""
        if not self.seen:
            return int(free[self._predicted[free].argmin()])
        losses = self._losses()
        predicted, values = self._prior(losses), np.array(list(losses.values()))
        slope = _slope(predicted, values)
        level = float(np.mean(values - slope * predicted))
        off = {number: loss - level - slope * p for (number, loss), p in zip(losses.items(), predicted, strict=True)}
        self._keep_up(off, free)
        assert self._posterior is not None
        figures = np.array([off.get(number, self._believed.get(number, 0.0)) for number in self._known])
        mean, deviation = self._posterior.predict(figures)
        curiosity = CURIOSITY * self._rng.uniform(0.9, 1.1)
        rated = mean + level + slope * self._predicted[self._some] - curiosity * deviation
        rated[~self._free[self._some]] = np.inf
        at = int(rated.argmin())
        number = int(self._some[at])
        self._believed[number] = float(mean[at])
        return number

    def _losses(self) -> dict[int, float]:
        """One figure for each config that is known; what failed counts as the worst."""
        numbers = [*self.seen, *range(-1, -1 - len(self._outside), -1)]
        losses = np.array([*self.seen.values(), *(one[1] for one in self._outside)])
        if self.objective.pareto:
            spread = np.maximum(np.ptp(losses, axis=0), 1e-9)
            normal = (losses - losses.min(axis=0)) / spread
            weights = self._rng.dirichlet(np.ones(losses.shape[1]))
            one = (normal * weights).max(axis=1) + 0.05 * (normal * weights).sum(axis=1)
        else:
            one = losses[:, 0]
        failed = sorted(self.failed - self.seen.keys())
        return dict(zip([*numbers, *failed], [*one.tolist(), *[float(one.max())] * len(failed)], strict=True))

    def _keep_up(self, off: dict[int, float], free: np.ndarray) -> None:
        """Let the posterior know what was answered or proposed since; made anew when it has grown by a sixteenth, or
        when its candidates are used up. Every other time the length scales are fitted anew too."""
        waiting = sorted(self.pending)
        new = [number for number in (*off, *waiting) if number not in self._looked_at]
        grown = len(self._known) + len(new) - self._made
        self._looked_at.update(new)
        if self._posterior is not None and grown < max(4, self._made // 16) and self._free[self._some].any():
            for number in new:
                self._posterior.add(self._place(number))
                self._known.append(number)
            return
        kept = self._observations(off)
        if len(kept) >= self._fitted + max(4, self._fitted // 8):
            some = kept if len(kept) <= FITTED else list(self._rng.permutation(kept)[:FITTED])
            places = np.array([self._place(number) for number in some])
            self._kernel = self._kernel.fitted(places, np.array([off[number] for number in some]))
            self._fitted = len(kept)
        self._known = [*kept, *waiting]
        self._made = len(self._known)
        self._some = self._candidates(free)
        known = np.array([self._place(number) for number in self._known])
        self._posterior = Posterior(self._kernel, self._where[self._some], known)

    def _observations(self, off: dict[int, float]) -> list[int]:
        """The modelled figures of all known configs."""
        if len(off) <= OBSERVATIONS:
            return list(off)
        order = sorted(off, key=lambda number: off[number])
        drawn = self._rng.permutation(order[OBSERVATIONS // 2 :])[: OBSERVATIONS // 2]
        return [*order[: OBSERVATIONS // 2], *map(int, drawn)]

    def _candidates(self, free: np.ndarray) -> np.ndarray:
        """The free configs to look at; of many, the best by prediction, those around the best, and some at random."""
        if len(free) <= CANDIDATES:
            return free
        promising = free[self._predicted[free].argpartition(CANDIDATES // 4)[: CANDIDATES // 4]]
        best = sorted(self.seen, key=lambda one: self.seen[one])[:8]
        each = CANDIDATES // 4 // len(best)
        around = [
            free[np.abs(self.space.places[free] - self.space.places[one]).sum(axis=1).argpartition(each)[:each]]
            for one in best
        ]
        return np.unique(np.concatenate([promising, *around, self._rng.choice(free, CANDIDATES // 2, replace=False)]))

    def _place(self, number: int) -> np.ndarray:
        if number >= 0:
            return self._where[number]
        config, _, predicted = self._outside[-1 - number]
        return np.append(self.space.coordinates(config), _scaled(np.array([predicted]), self._predicted))

    def _prior(self, numbers: Iterable[int]) -> np.ndarray:
        return np.array([self._predicted[one] if one >= 0 else self._outside[-1 - one][2] for one in numbers])


def _slope(predicted: np.ndarray, losses: np.ndarray) -> float:
    """Trust in the prediction: 1 where nothing speaks against it."""
    if len(losses) < 2:
        return 1.0
    p, y = predicted - predicted.mean(), losses - losses.mean()
    trust = 0.02
    return float(np.clip((p @ y + trust) / (p @ p + trust), 0.0, 1.5))


def _scaled(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """From 0 to 1 over the range of the space."""
    return (values - over.min()) / max(float(np.ptp(over)), 1e-9)
