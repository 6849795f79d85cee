"""The default sampler: a Gaussian process that models the deviation of the measured times from a model's prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.tune.search.gaussian import Covariance, Posterior
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.samplers import LegalSampler, loss

CURIOSITY = 1.0
"""Weight of exploration; chosen by simulated searches (docs/samplers.md), as is the spread of the length scales."""

CANDIDATES = 2000
"""Free configs that are rated in a larger space."""

OBSERVATIONS = 400
"""Most results that are modelled; of more, one half are the best, the other drawn at random."""

FITTED = 200
"""Most observations that choose the length scales; the fit takes time with the cube of their number."""


class Gp(LegalSampler):
    """A Gaussian process over the legal configs, on top of the logarithm of the times that a model predicts. It learns
    from configs of earlier studies too, inside the space or not, each with its speedup and prediction.

    It proposes the config with the lowest mean less about :data:`CURIOSITY` standard deviations. A pending config
    counts with its expected loss.
    """

    def __init__(
        self,
        space: LegalSpace,
        seed: int,
        predicted: np.ndarray,
        initial: Iterable[int] = (),
        earlier: Sequence[tuple[GemmConfig, float, float]] = (),
    ) -> None:
        super().__init__(space, seed, initial)
        self._predicted = predicted
        self._points = np.hstack([space.points, _scaled(predicted, predicted)[:, None]])
        groups = np.append(space.groups, space.groups.max() + 1)
        self._kernel = Covariance(groups, np.full(groups.max() + 1, 1.0))
        self._outside = [result for result in earlier if result[0] not in space.number]
        self._results_at_fit = 0
        self._posterior: Posterior | None = None
        self._modelled: list[int] = []
        """Configs of the posterior by number, in its order; those outside the space have -1, -2, ..."""
        self._considered: set[int] = set()
        self._size_at_rebuild = 0
        self._candidates = np.zeros(0, dtype=int)
        self._expected: dict[int, float] = {}
        """Expected deviation from the prediction, by proposed config."""

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
        """Return the free config with the lowest loss that is plausible."""
        if not self.losses:
            return int(free[self._predicted[free].argmin()])
        losses = {**self.losses, **{-1 - i: loss(speedup) for i, (_, speedup, _) in enumerate(self._outside)}}
        losses |= dict.fromkeys(sorted(self.failed - self.losses.keys()), max(losses.values()))  # failed: the worst
        predicted = np.array([self._predicted[i] if i >= 0 else self._outside[-1 - i][2] for i in losses])
        values = np.array(list(losses.values()))
        slope = _slope(predicted, values)
        level = float(np.mean(values - slope * predicted))
        deviations = {
            number: loss - level - slope * p for (number, loss), p in zip(losses.items(), predicted, strict=True)
        }
        self._update_posterior(deviations, free)
        assert self._posterior is not None
        figures = np.array([deviations.get(number, self._expected.get(number, 0.0)) for number in self._modelled])
        mean, deviation = self._posterior.predict(figures)
        curiosity = CURIOSITY * self._rng.uniform(0.9, 1.1)
        rated = mean + level + slope * self._predicted[self._candidates] - curiosity * deviation
        rated[~self._free[self._candidates]] = np.inf
        best = int(rated.argmin())
        number = int(self._candidates[best])
        self._expected[number] = float(mean[best])
        return number

    def _update_posterior(self, deviations: dict[int, float], free: np.ndarray) -> None:
        """Add the results and proposals since the last call to the posterior.

        It is rebuilt when it has grown by a sixteenth or its candidates are used up; the length scales are fitted again
        when the results have grown by an eighth.
        """
        waiting = sorted(self.pending)
        added = [number for number in (*deviations, *waiting) if number not in self._considered]
        grown = len(self._modelled) + len(added) - self._size_at_rebuild
        self._considered.update(added)
        usable = grown < max(4, self._size_at_rebuild // 16) and self._free[self._candidates].any()
        if self._posterior is not None and usable:
            for number in added:
                self._posterior.add(self._point(number))
                self._modelled.append(number)
            return
        kept = self._modelled_of(deviations)
        if len(kept) >= self._results_at_fit + max(4, self._results_at_fit // 8):
            some = kept if len(kept) <= FITTED else list(self._rng.permutation(kept)[:FITTED])
            points = np.array([self._point(number) for number in some])
            self._kernel = self._kernel.fitted(points, np.array([deviations[number] for number in some]))
            self._results_at_fit = len(kept)
        self._modelled = [*kept, *waiting]
        self._size_at_rebuild = len(self._modelled)
        self._candidates = self._choose_candidates(free)
        observed = np.array([self._point(number) for number in self._modelled])
        self._posterior = Posterior(self._kernel, self._points[self._candidates], observed)

    def _modelled_of(self, deviations: dict[int, float]) -> list[int]:
        """Return the measured configs to model."""
        if len(deviations) <= OBSERVATIONS:
            return list(deviations)
        order = sorted(deviations, key=lambda number: deviations[number])
        drawn = self._rng.permutation(order[OBSERVATIONS // 2 :])[: OBSERVATIONS // 2]
        return [*order[: OBSERVATIONS // 2], *map(int, drawn)]

    def _choose_candidates(self, free: np.ndarray) -> np.ndarray:
        """Return the free configs to rate: of many, the best by prediction, those near the best, and random ones."""
        if len(free) <= CANDIDATES:
            return free
        promising = free[self._predicted[free].argpartition(CANDIDATES // 4)[: CANDIDATES // 4]]
        best = sorted(self.losses, key=lambda number: self.losses[number])[:8]
        each = CANDIDATES // 4 // len(best)
        around = [
            free[np.abs(self.space.points[free] - self.space.points[number]).sum(axis=1).argpartition(each)[:each]]
            for number in best
        ]
        return np.unique(np.concatenate([promising, *around, self._rng.choice(free, CANDIDATES // 2, replace=False)]))

    def _point(self, number: int) -> np.ndarray:
        """Return the coordinates of a config, its prediction the last of them."""
        if number >= 0:
            return self._points[number]
        config, _, predicted = self._outside[-1 - number]
        return np.append(self.space.coordinates(config), _scaled(np.array([predicted]), self._predicted))


def _slope(predicted: np.ndarray, losses: np.ndarray) -> float:
    """Return the slope of the losses over the predictions: 1 without evidence, at most 1.5, never negative."""
    if len(losses) < 2:
        return 1.0
    p, y = predicted - predicted.mean(), losses - losses.mean()
    trust = 0.02
    return float(np.clip((p @ y + trust) / (p @ p + trust), 0.0, 1.5))


def _scaled(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Return values scaled so that the range of ``over`` is 0 to 1."""
    return (values - over.min()) / max(float(np.ptp(over)), 1e-9)
