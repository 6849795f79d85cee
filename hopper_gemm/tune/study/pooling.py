"""The measurements of one point by several fresh processes, as one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hopper_gemm.model.point import Sample
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.schema import BY_NAME, FIGURES

RESAMPLES, CONFIDENCE = 2000, 0.95


def pooled(rows: Iterable[Row]) -> list[Row]:
    """One row for each point and stage, in the order of their first rows.

    A point measured once keeps its row. Else speedup and times are medians over all pairs, the interval is that of
    :func:`interval`, other figures are means over the processes that ran; a point is ok where any process was.
    """
    by_point: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_point.setdefault((row.stage, row.point), []).append(row)
    return [_pool([row for row in found if row.ok] or found[-1:]) for found in by_point.values()]


def interval(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Median ratio of pairs, with the ends of its 95 % percentile-bootstrap interval.

    Pairs of one process share its luck, so processes are drawn first and pairs within them second (Kalibera and Jones,
    "Rigorous benchmarking in reasonable time", 2013).

    Args:
        samples: at least one.
    """
    rng = np.random.default_rng(0)
    ratios = [
        np.array([one.ratio for one in samples if one.process == process])
        for process in sorted({one.process for one in samples})
    ]
    sizes = np.array([len(part) for part in ratios])
    table = np.full((len(ratios), sizes.max()), np.nan)
    for i, part in enumerate(ratios):
        table[i, : len(part)] = part
    chosen = rng.integers(len(ratios), size=(RESAMPLES, len(ratios)))
    drawn = table[chosen[..., None], rng.integers(sizes[chosen][..., None], size=(*chosen.shape, sizes.max()))]
    drawn[np.arange(sizes.max()) >= sizes[chosen][..., None]] = np.nan
    medians = np.nanmedian(drawn.reshape(RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(np.median(np.concatenate(ratios))), float(low), float(high)


def _pool(rows: list[Row]) -> Row:
    first, samples = rows[0], tuple(sample for row in rows for sample in row.samples)
    if len(rows) == 1:
        return first
    figures = dict(first.figures)
    for name in FIGURES:
        values = [row.figures[name] for row in rows if row.figures.get(name) is not None]
        if values and BY_NAME[name].kind == "number":
            figures[name] = float(np.mean(values))
    if samples:
        time_us, baseline_us = map(float, np.median([sample.bare_us for sample in samples], axis=0))
        figures |= {"time_us": time_us, "baseline_us": baseline_us}
        figures |= {"tflops": first.point.problem.flop / time_us / 1e6, "pairs": len(samples)}
        figures |= dict(zip(("speedup", "speedup_low", "speedup_high"), interval(samples), strict=True))
    boards = dict.fromkeys(row.board for row in rows)
    figures["processes"] = sum(int(row.figures.get("processes", 1)) for row in rows)
    return replace(first, figures=figures, samples=samples, process=0, board=" ".join(boards))
