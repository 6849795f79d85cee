"""Answers as statistics: the ratio of one, and two measurements of a point as one."""

from __future__ import annotations

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
