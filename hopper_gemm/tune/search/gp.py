"""The default sampler: a Gaussian process that models the deviation of the measured times from a model's prediction.

The kernel is a product of (1 + Matern-5/2) / 2 over the parameters. Multiplied out, it is a sum over all subsets of the
parameters: main effects, interactions of pairs, and so on. Its variance is profiled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from hopper_gemm.model.config import GemmConfig
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

SCALES = (0.15, 0.3, 0.6, 1.2, 2.5, 6.0)
SCALE_SPREAD = 3.0
NOISES = (1e-4, 1e-3, 1e-2, 1e-1)
ROUNDS = 2


class Gp(LegalSampler):
    """A Gaussian process over the legal configs, on top of the logarithm of the times that a model predicts. It learns
    from configs of earlier studies too, inside the space or not, each with its speedup and prediction. It proposes the
    config with the lowest mean less about :data:`CURIOSITY` standard deviations; a pending config counts with its
    expected loss."""

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
        self._expected: dict[int, float] = {}  # expected deviation from the prediction, by proposed config

    def choose(self, study: optuna.Study, trial: FrozenTrial, free: np.ndarray) -> int:
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
        """Add the results and proposals since the last call to the posterior. It is rebuilt when it has grown by a
        sixteenth or its candidates are used up; the length scales are fitted again when the results have grown by an
        eighth."""
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
        kept = list(deviations)
        if len(kept) > OBSERVATIONS:
            kept.sort(key=lambda number: deviations[number])
            drawn = self._rng.permutation(kept[OBSERVATIONS // 2 :])[: OBSERVATIONS // 2]
            kept = [*kept[: OBSERVATIONS // 2], *map(int, drawn)]
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


@dataclass(frozen=True)
class Covariance:
    """Covariance of the figures at two points."""

    groups: np.ndarray  # index of the parameter behind each coordinate
    scales: np.ndarray  # length scale of each parameter
    noise: float = 1e-3  # variance of a figure over that of the process

    def between(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the covariance of any two points; rows of ``a`` down, rows of ``b`` across."""
        return covariance(apart(a, b, self.groups), self.scales)

    def fitted(self, points: np.ndarray, figures: np.ndarray) -> Covariance:
        """Return the covariance with the likeliest length scales and noise for the figures at the observed points,
        chosen in turn among a few values each."""
        distances = apart(points, points, self.groups)
        scales, noise = self.scales.copy(), self.noise

        def score(kernel: np.ndarray, noise: float) -> float:
            try:
                factor = np.linalg.cholesky(kernel + (noise + 1e-9) * np.eye(len(kernel)))
            except np.linalg.LinAlgError:
                return -np.inf
            white = np.linalg.solve(factor, figures - figures.mean())
            variance = max(float(white @ white) / len(figures), 1e-10)
            likelihood = -0.5 * len(figures) * np.log(variance) - float(np.log(np.diag(factor)).sum())
            return likelihood - 0.5 * float((np.log(scales) ** 2).sum()) / SCALE_SPREAD**2

        for _ in range(ROUNDS):
            for group in range(len(scales)):
                others = covariance(np.delete(distances, group, axis=0), np.delete(scales, group))
                rated = []
                for scale in SCALES:
                    scales[group] = scale
                    rated.append(score(others * _link(distances[group], scale), noise))
                scales[group] = SCALES[int(np.argmax(rated))]
            whole = covariance(distances, scales)
            noise = max(NOISES, key=lambda value: score(whole, value))
        return Covariance(self.groups, scales, noise)


class Posterior:
    """Posterior of the process at some points; observed points, with a figure or a pending one, are added one by one,
    each at the cost of a product of a vector with a matrix. The figures are passed to :meth:`predict`, so they may
    change at any time."""

    def __init__(self, kernel: Covariance, points: np.ndarray, observed: np.ndarray) -> None:
        self._kernel, self._points, self._observed = kernel, points, observed
        self._inverse = np.linalg.inv(_factor(kernel.between(observed, observed), kernel.noise))
        # float32: the exponentials take most of the time
        across = kernel.between(observed.astype(np.float32), points.astype(np.float32))
        self._white = self._inverse @ across.astype(np.float64)
        self._unexplained = 1.0 - (self._white**2).sum(axis=0)

    def add(self, point: np.ndarray) -> None:
        """Add an observed point."""
        n = len(self._observed)
        along = self._inverse @ self._kernel.between(self._observed, point[None])[:, 0]
        rest = sqrt(max(1.0 + self._kernel.noise + 1e-9 - float(along @ along), 1e-12))
        grown = np.zeros((n + 1, n + 1))
        grown[:n, :n] = self._inverse
        grown[n, :n], grown[n, n] = -(along @ self._inverse) / rest, 1 / rest
        row = (self._kernel.between(point[None], self._points)[0] - along @ self._white) / rest
        self._inverse, self._white = grown, np.vstack([self._white, row])
        self._observed, self._unexplained = np.vstack([self._observed, point]), self._unexplained - row**2

    def predict(self, figures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation at each point, from the figure of each observed point in the order of
        their addition."""
        mean = float(figures.mean())
        white = self._inverse @ (figures - mean)
        variance = max(float(white @ white) / len(figures), 1e-10)
        return mean + white @ self._white, np.sqrt(variance * np.maximum(self._unexplained, 1e-12))


def apart(a: np.ndarray, b: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the distance between any two points in each parameter: (parameters, rows of ``a``, rows of ``b``)."""
    distances = np.zeros((groups.max() + 1, len(a), len(b)), dtype=a.dtype)
    for column, group in enumerate(groups):
        distances[group] += np.abs(a[:, column, None] - b[:, column])
    return distances


def covariance(distances: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the covariance of points at these distances in each parameter."""
    total = np.ones(distances.shape[1:], dtype=distances.dtype)
    for distance, scale in zip(distances, scales, strict=True):
        total *= _link(distance, scale)
    return total


def _link(distance: np.ndarray, scale: float) -> np.ndarray:
    near = distance * distance.dtype.type(sqrt(5) / scale)
    return 0.5 + 0.5 * (1 + near + near**2 / 3) * np.exp(-near)


def _factor(kernel: np.ndarray, noise: float) -> np.ndarray:
    """Return the Cholesky factor, with as much noise as it takes: the distance of a parameter with several coordinates
    is a sum, for which the kernel need not be positive definite."""
    try:
        return np.linalg.cholesky(kernel + (noise + 1e-9) * np.eye(len(kernel)))
    except np.linalg.LinAlgError:
        return _factor(kernel, 10 * noise + 1e-6)
