"""A Gaussian process over points in several parameters: its kernel, its fit, its predictions.

The kernel is a product of (1 + Matern-5/2) / 2 over the parameters. Multiplied out, it is a sum over all subsets of the
parameters: main effects, interactions of pairs, and so on. Its variance is profiled out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

SCALES = (0.15, 0.3, 0.6, 1.2, 2.5, 6.0)
SCALE_SPREAD = 3.0
NOISES = (1e-4, 1e-3, 1e-2, 1e-1)
ROUNDS = 2


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
    """Posterior of the process at some points; observed points, with a figure or a pending one, are added one by one.

    A new observed point costs a product of a vector with a matrix. The figures are passed to :meth:`predict`, so they
    may change at any time.
    """

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
