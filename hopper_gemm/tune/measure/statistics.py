"""From pairs of times to a speedup with an interval. Pure functions, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hopper_gemm.model.point import Sample

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A speedup: the median of the pairs' ratios with its bootstrap interval."""

    median: float
    low: float
    high: float
    pairs: int


def speedup(samples: Sequence[Sample], seed: int = 0) -> Ratio:
    """The median ratio with its 95 % percentile-bootstrap interval.

    Samples of one process share its luck, so with several processes the processes are drawn first and the samples
    within them second (Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013). One sample has no
    interval: both ends are its ratio.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("speedup needs at least one pair but got none")
    if len(samples) == 1:
        ratio = samples[0].ratio
        return Ratio(ratio, ratio, ratio, 1)
    rng = np.random.default_rng(seed)
    groups = [
        np.array([sample.ratio for sample in samples if sample.process == process])
        for process in sorted({sample.process for sample in samples})
    ]
    sizes = np.array([len(group) for group in groups])
    table = np.full((len(groups), sizes.max()), np.nan)
    for i, group in enumerate(groups):
        table[i, : len(group)] = group
    chosen = rng.integers(len(groups), size=(RESAMPLES, len(groups)))
    within = rng.integers(sizes[chosen][..., None], size=(*chosen.shape, sizes.max()))
    drawn = table[chosen[..., None], within]
    drawn[np.arange(sizes.max()) >= sizes[chosen][..., None]] = np.nan
    median = np.median if sizes.min() == sizes.max() else np.nanmedian  # the latter takes ten times as long
    low, high = np.quantile(median(drawn.reshape(RESAMPLES, -1), axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(float(np.median(np.concatenate(groups))), float(low), float(high), len(samples))


def noise_floor(control: Ratio) -> float:
    """The smallest difference worth a word by an A/A control: how far it or its interval strays from 1."""
    return max(abs(control.low - 1.0), abs(control.high - 1.0))
