"""Decisions over measured speedups: faster, slower, same or unsure; held or fallen. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hopper_gemm.measure.statistics import Ratio

Outcome = Literal["faster", "slower", "same", "unsure"]


def compare(ratio: Ratio, noise: float) -> Outcome:
    """Our kernel against cuBLAS, with the noise floor as the margin.

    Args:
        ratio: speedup with its interval.
        noise: the noise floor of the same run, as a fraction.

    Returns:
        ``"faster"`` or ``"slower"`` where the whole interval lies beyond the margin, ``"same"`` where it lies
        within, ``"unsure"`` where it straddles.
    """
    if ratio.low > 1 + noise:
        return "faster"
    if ratio.high < 1 - noise:
        return "slower"
    if ratio.low >= 1 - noise and ratio.high <= 1 + noise:
        return "same"
    return "unsure"


@dataclass(frozen=True)
class Regression:
    """Whether a recorded speedup still holds.

    Args:
        status: ``"held"``, ``"fallen"`` or ``"skipped"``.
        message: one line with the figures.
    """

    status: Literal["held", "fallen", "skipped"]
    message: str


def regression(recorded: Ratio, now: Ratio, noise: float, margin: float) -> Regression:
    """Hold a speedup measured now against the recorded one.

    The recorded interval may be undercut by the noise floor, no more; what counts is the new figure's own interval,
    which must lie below that as a whole. Where the noise floor itself exceeds the margin, nothing can be said and the
    check is skipped.

    Args:
        recorded: the figure in the tuned table.
        now: the same config, measured now.
        noise: the larger noise floor of the two runs.
        margin: the loosest noise floor at which the check still means something.
    """
    if noise > margin:
        return Regression(
            "skipped", f"noise floor {noise:.2%} exceeds the margin {margin:.2%}; run it on a quiet GPU of its own"
        )
    floor = recorded.low - noise
    record = f"recorded {recorded.median:.4f}x [{recorded.low:.4f}, {recorded.high:.4f}]"
    figures = f"{now.median:.4f}x [{now.low:.4f}, {now.high:.4f}] now, {record}, noise {noise:.2%}"
    if now.high < floor:
        return Regression("fallen", f"fallen {floor - now.high:.4f} below the floor {floor:.4f}: {figures}")
    return Regression("held", figures)
