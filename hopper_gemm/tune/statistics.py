"""From pairs of times to a speedup with an interval; which configs to drop, and which may be the best. Pure functions,
no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hopper_gemm.tune.point import Sample

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A speedup: the median of the pairs' ratios with its bootstrap interval."""

    median: float
    low: float
    high: float
    pairs: int


def speedup(*boards: Sequence[Sample], seed: int = 0) -> Ratio:
    """Return the median ratio of the samples with its 95 % percentile-bootstrap interval; ValueError if a board has
    none.

    Samples of one process share its luck, so with several processes the processes are drawn first and the samples
    within them second (Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013). With several boards the
    ratio is the geometric mean of theirs, in which they count alike, and they are drawn before the processes. One
    sample has no interval: both ends are its ratio."""
    if not boards or not all(boards):
        raise ValueError("speedup needs at least one pair but got none")
    if len(boards) == len(boards[0]) == 1:
        ratio = boards[0][0].ratio
        return Ratio(ratio, ratio, ratio, 1)
    rng = np.random.default_rng(seed)
    medians, drawn = zip(*(_resampled(samples, rng) for samples in boards), strict=True)
    middle, among = medians[0], drawn[0]
    if len(boards) > 1:
        middle = np.exp(np.log(medians).mean())
        chosen = rng.integers(len(boards), size=(len(boards), RESAMPLES))
        among = np.exp(np.log(np.take_along_axis(np.array(drawn), chosen, axis=0)).mean(axis=0))
    low, high = np.quantile(among, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(float(middle), float(low), float(high), sum(map(len, boards)))


def _resampled(samples: Sequence[Sample], rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """Return the median of a board's ratios, and medians of drawings of its processes and their samples."""
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
    return float(np.median(np.concatenate(groups))), median(drawn.reshape(RESAMPLES, -1), axis=1)


def noise_floor(control: Ratio) -> float:
    """Return the noise floor by an A/A control: the largest distance of its interval from 1."""
    return max(abs(control.low - 1.0), abs(control.high - 1.0))


class Look(NamedTuple):
    """A number of pairs after which a config is dropped if it is behind the leader by a margin beside the noise."""

    pairs: int
    margin: float = 0.0


class Race(NamedTuple):
    """Rule of dropping configs: the looks, and the leader that a config is compared with."""

    looks: Sequence[Look] = ()  # looks in order, at which a hopeless config is dropped
    leader: Ratio | None = None  # the best so far, with all its pairs; without a leader nothing is dropped
    noise: float = 0.0  # the noise floor of the run, as a fraction


ALONE = Race()
"""No race: nothing is dropped."""


def hopeless(candidate: Ratio, best: Ratio, noise: float) -> bool:
    """Return True if more pairs of a candidate are wasted: its whole interval lies below the best's by more than the
    noise floor, to which the look's margin is added."""
    return candidate.high < best.low - noise


def even(finals: Sequence[Ratio], noise: float) -> list[int]:
    """Return indices of the finals that may be the best, the greatest median first: those whose intervals reach the
    leader's within the noise floor. A single index means a unique best."""
    if not finals:
        return []
    order = sorted(range(len(finals)), key=lambda i: -finals[i].median)
    leader = finals[order[0]]
    return [i for i in order if finals[i].high >= leader.low - noise]
