"""From pairs of times to a speedup with an interval. Pure functions, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Pair:
    """Two times measured next to each other, microseconds per launch.

    Args:
        process: which process took them; fresh processes see different memory and different luck.
        ours_us: our kernel.
        cublas_us: cuBLAS.
    """

    process: int
    ours_us: float
    cublas_us: float

    @property
    def ratio(self) -> float:
        """Speedup: cuBLAS time over ours; above 1 we are faster."""
        return self.cublas_us / self.ours_us


@dataclass(frozen=True)
class Ratio:
    """A speedup: the median of the pairs' ratios with its bootstrap interval."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def half_width(self) -> float:
        """The larger distance from the median to an end of the interval."""
        return max(self.median - self.low, self.high - self.median)


def speedup(pairs: Sequence[Pair], seed: int = 0) -> Ratio:
    """The median ratio with its 95 % percentile-bootstrap interval.

    Pairs of one process share its luck, so with several processes the processes are drawn first and the pairs
    within them second (Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013).

    Raises:
        ValueError: there are no pairs.
    """
    if not pairs:
        raise ValueError("speedup needs at least one pair but got none")
    if len(pairs) == 1:
        return Ratio(pairs[0].ratio, pairs[0].ratio, pairs[0].ratio, 1)
    rng = np.random.default_rng(seed)
    groups = [
        np.array([pair.ratio for pair in pairs if pair.process == process])
        for process in sorted({pair.process for pair in pairs})
    ]
    sizes = np.array([len(group) for group in groups])
    table = np.full((len(groups), sizes.max()), np.nan)
    for i, group in enumerate(groups):
        table[i, : len(group)] = group
    chosen = rng.integers(len(groups), size=(RESAMPLES, len(groups)))
    within = rng.integers(sizes[chosen][..., None], size=(*chosen.shape, sizes.max()))
    drawn = table[chosen[..., None], within]
    drawn[np.arange(sizes.max()) >= sizes[chosen][..., None]] = np.nan
    medians = np.nanmedian(drawn.reshape(RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(float(np.median(np.concatenate(groups))), float(low), float(high), len(pairs))


def noise_floor(control: Ratio) -> float:
    """What an A/A control says about the smallest difference worth a word: how far it or its interval strays from 1."""
    return max(abs(control.low - 1.0), abs(control.high - 1.0))
