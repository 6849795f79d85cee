"""Decisions between configs that were measured alike: who is out of the race, who has won it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopper_gemm.measure.protocol import Protocol
from hopper_gemm.measure.statistics import Ratio


@dataclass(frozen=True)
class Look:
    """A point of a measurement at which a config may be dropped.

    Args:
        pairs: taken by then. A look by the measurement's own protocol counts its pairs from the first; one by a
            protocol of its own takes these pairs beside them.
        margin: fraction by which a config must be behind the leader, beside the noise, to be dropped.
        protocol: shorter than the measurement's own and of the same regime, for a first look; its samples are
            forgotten if the config survives, so that no ratio mixes short timings with long ones. None for the
            measurement's own.

    Example: one pair of 3 ms after rests of 4 ms, then one pair of the measurement's own.

        >>> from hopper_gemm.measure.protocol import Burst
        >>> looks = (Look(1, 0.08, Burst(rest=0.004, warm=0.003, timed=0.003)), Look(1, 0.015))
    """

    pairs: int
    margin: float = 0.0
    protocol: Protocol | None = None


def hopeless(candidate: Ratio, best: Ratio, noise: float) -> bool:
    """Whether more pairs of a candidate would be wasted: its whole interval lies below the best's by more than the
    noise floor.

    Args:
        candidate: after a first look.
        best: the best so far, with all its pairs.
        noise: the noise floor of the run, as a fraction, with the look's margin.
    """
    return candidate.high < best.low - noise


def even(finals: Sequence[Ratio], noise: float) -> list[int]:
    """Which finals may be the best, the greatest median first: those whose intervals reach the leader's within the
    noise floor. One is a unique best; of several none is.

    Args:
        finals: measured alike, in fresh processes.
        noise: the noise floor of the run, as a fraction.
    """
    if not finals:
        return []
    order = sorted(range(len(finals)), key=lambda i: -finals[i].median)
    leader = finals[order[0]]
    return [i for i in order if finals[i].high >= leader.low - noise]
