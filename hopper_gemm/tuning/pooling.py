"""Answers as statistics: the ratio of one, two measurements of a point as one, a config on several problems as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopper_gemm.measure.statistics import Pair, Ratio, speedup
from hopper_gemm.tables.schema import FIGURES
from hopper_gemm.tuning.backend import Answer


def ratio_of(answer: Answer) -> Ratio:
    """The speedup of an answer that is ok, with its interval."""
    figures = answer.figures
    return Ratio(figures["speedup"], figures["speedup_low"], figures["speedup_high"], int(figures.get("pairs", 0)))


def pooled(first: Answer, rest: Answer) -> Answer:
    """Two measurements of one point as one: pairs together, medians of all, the rest averaged by pairs."""
    samples = (*first.samples, *rest.samples)
    ratio = speedup([Pair(*sample) for sample in samples])
    share = len(first.samples) / len(samples)
    figures = dict(rest.figures)
    for name in FIGURES:
        one, other = first.figures.get(name), rest.figures.get(name)
        if isinstance(one, float) and isinstance(other, float):
            figures[name] = share * one + (1 - share) * other
    time_us = float(np.median([ours for _, ours, _ in samples]))
    figures |= {
        "speedup": ratio.median,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "pairs": ratio.pairs,
        "time_us": time_us,
        "cublas_us": float(np.median([theirs for *_, theirs in samples])),
        "tflops": rest.figures["tflops"] * rest.figures["time_us"] / time_us,
    }
    return Answer("ok", rest.reason, figures, samples)


def joint(answers: Sequence[Answer], across: str) -> Answer:
    """One answer for a config that was measured on several problems.

    Args:
        answers: of all of them.
        across: ``"worst"`` or ``"mean"``; see :class:`hopper_gemm.tuning.spec.SweepSpec`.

    Returns:
        The speedup to judge it by; or the first answer that is not ok.
    """
    failed = next((answer for answer in answers if answer.status != "ok"), None)
    if failed is not None:
        return failed
    speedups = [float(answer.figures["speedup"]) for answer in answers]
    judged = min(speedups) if across == "worst" else float(np.exp(np.mean(np.log(speedups))))
    return Answer("ok", "", {"speedup": judged})
