"""A Gaussian process over places in several parameters: its kernel, its fit, its predictions. Arrays in, arrays out.

The kernel is a product of (1 + Matern-5/2) / 2 over the parameters, so that what a parameter does by itself, in pairs,
and with all others is part of it from the start. Its variance is profiled out.
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
    """Covariance of the figures at two places.

    Args:
        groups: the parameter behind each column of a place.
        scales: length scale of each parameter.
        noise: variance of a figure, as a part of the process's.
    """

    groups: np.ndarray
    scales: np.ndarray
    noise: float = 1e-3

    def between(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Covariance of any two places; rows of ``a`` down, rows of ``b`` across."""
        return covariance(apart(a, b, self.groups), self.scales)

    def fitted(self, where: np.ndarray, figures: np.ndarray) -> Covariance:
        """Length scales and noise by marginal likelihood, one after the other over a few values each.

        Args:
            where: places.
            figures: one at each.
        """
        distances = apart(where, where, self.groups)
        scales, noise = self.scales.copy(), self.noise

        def score(found: np.ndarray, noise: float) -> float:
            try:
                likely = _likelihood(found, figures, noise)
            except np.linalg.LinAlgError:
                return -np.inf
            return likely - 0.5 * float((np.log(scales) ** 2).sum()) / SCALE_SPREAD**2

        for _ in range(ROUNDS):
            for group in range(len(scales)):
                others = covariance(np.delete(distances, group, axis=0), np.delete(scales, group))
                rated = []
                for scale in SCALES:
                    scales[group] = scale
                    rated.append(score(others * _link(distances[group], scale), noise))
                scales[group] = SCALES[int(np.argmax(rated))]
            whole = covariance(distances, scales)
            noise = max(NOISES, key=lambda one: score(whole, one))
        return Covariance(self.groups, scales, noise)


class Posterior:
    """Expectation at some places, as others become known one by one. A new one costs a product of a vector with a
    matrix; figures may change at any time.

    Args:
        kernel: of the process.
        places: where something is asked.
        known: places that have a figure, or will have one.
    """

    def __init__(self, kernel: Covariance, places: np.ndarray, known: np.ndarray) -> None:
        self._kernel, self._places, self._known = kernel, places, known
        self._inverse = np.linalg.inv(_factor(kernel.between(known, known), kernel.noise))
        across = kernel.between(known.astype(np.float32), places.astype(np.float32))  # the time goes into exponentials
        self._white = self._inverse @ across.astype(np.float64)
        self._left = 1.0 - (self._white**2).sum(axis=0)

    def add(self, place: np.ndarray) -> None:
        """Let a place be known too."""
        n = len(self._known)
        along = self._inverse @ self._kernel.between(self._known, place[None])[:, 0]
        rest = sqrt(max(1.0 + self._kernel.noise + 1e-9 - float(along @ along), 1e-12))
        grown = np.zeros((n + 1, n + 1))
        grown[:n, :n] = self._inverse
        grown[n, :n], grown[n, n] = -(along @ self._inverse) / rest, 1 / rest
        row = (self._kernel.between(place[None], self._places)[0] - along @ self._white) / rest
        self._inverse, self._white = grown, np.vstack([self._white, row])
        self._known, self._left = np.vstack([self._known, place]), self._left - row**2

    def predict(self, figures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each place.

        Args:
            figures: one for each known place, in the order in which they became known.
        """
        mean = float(figures.mean())
        white = self._inverse @ (figures - mean)
        variance = max(float(white @ white) / len(figures), 1e-10)
        return mean + white @ self._white, np.sqrt(variance * np.maximum(self._left, 1e-12))


def apart(a: np.ndarray, b: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Distance between any two places in each parameter by itself."""
    found = np.zeros((groups.max() + 1, len(a), len(b)), dtype=a.dtype)
    for column, group in enumerate(groups):
        found[group] += np.abs(a[:, column, None] - b[:, column])
    return found


def covariance(distances: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Covariance of places so far apart in each parameter."""
    total = np.ones(distances.shape[1:], dtype=distances.dtype)
    for distance, scale in zip(distances, scales, strict=True):
        total *= _link(distance, scale)
    return total


def _link(distance: np.ndarray, scale: float) -> np.ndarray:
    near = distance * distance.dtype.type(sqrt(5) / scale)
    return 0.5 + 0.5 * (1 + near + near**2 / 3) * np.exp(-near)


def _likelihood(found: np.ndarray, figures: np.ndarray, noise: float) -> float:
    factor = np.linalg.cholesky(found + (noise + 1e-9) * np.eye(len(found)))
    white = np.linalg.solve(factor, figures - figures.mean())
    variance = max(float(white @ white) / len(figures), 1e-10)
    return -0.5 * len(figures) * np.log(variance) - float(np.log(np.diag(factor)).sum())


def _factor(found: np.ndarray, noise: float) -> np.ndarray:
    """Cholesky's, with as much noise as it takes: several columns of one parameter may leave it without one."""
    try:
        return np.linalg.cholesky(found + (noise + 1e-9) * np.eye(len(found)))
    except np.linalg.LinAlgError:
        return _factor(found, 10 * noise + 1e-6)
