"""Geometric means with the interval that holds for other processes and boards."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log, sqrt
from statistics import stdev
from typing import Any

from docs.generate.pages.certainty import student
from hopper_gemm.tune.measure.verdict import mean_of, published
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.mapped import Mapped


def pick_of(point: Mapped, share: float = 1.0) -> Ratio:
    """The pick's speedup over torch.mm, or a share of it, as published."""
    ratio = Ratio(point.pick * share, point.low * share, point.high * share, 1)
    return published(ratio, point.torch_us)


def over_faster(point: Mapped) -> Ratio:
    """The pick's speedup over the faster of torch.mm and the heuristic list, as published."""
    return pick_of(point, point.over_faster / point.pick)


def of_row(row: Any) -> Ratio:
    """The speedup of a benchmark's row, which one process measured, as published."""
    return published(Ratio(row.speedup, row.low, row.high, row.pairs), row.baseline_us)


def of_boards(ratio: float, baseline_us: float, boards: int = 1) -> Ratio:
    """A speedup that one process measured on each of some boards, as published."""
    return published(Ratio(ratio, ratio, ratio, 1), baseline_us, (1,) * boards)


def mean_figure(ratios: Iterable[Ratio], bold: str = "") -> str:
    """The geometric mean between two marks, and its interval."""
    mean = mean_of(list(ratios))
    return f"{bold}{mean.median:.3f}x{bold} [{mean.low:.3f}, {mean.high:.3f}]"


def over_problems(ratios: Iterable[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios of two kernels of ours, and its 95 % interval by Student's t over problems."""
    values = list(ratios)
    mean = geometric_mean(values)
    half = student(len(values) - 1) * stdev(map(log, values)) / sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean * exp(-half), mean * exp(half)


def share_of_best(ratios: Iterable[float]) -> str:
    """The figure of :func:`over_problems`, with its interval."""
    mean, low, high = over_problems(ratios)
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"
