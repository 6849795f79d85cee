"""Decisions between configs that were measured alike: which to drop, which may be the best. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hopper_gemm.tune.statistics import Ratio


class Look(NamedTuple):
    """A number of pairs after which a config is dropped if it is behind the leader by a margin beside the noise."""

    pairs: int
    margin: float = 0.0


class Race(NamedTuple):
    """Rule of dropping configs: the looks, and the leader that a config is compared with.

    Args:
        looks: looks in order, at which a hopeless config is dropped.
        leader: the best so far, with all its pairs; without a leader nothing is dropped.
        noise: the noise floor of the run, as a fraction.
    """

    looks: Sequence[Look] = ()
    leader: Ratio | None = None
    noise: float = 0.0


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
