"""The picture of a comparison: speedups over each baseline with their intervals, one line for each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator

from hopper_gemm.model.tuned import CONTEXTS
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.style import CELL, EVEN, FAINT, OURS, SERIES, STYLE, THEIRS, save

FASTER = ("cublas", "cublaslt", "heuristics")
"""Baselines of which the fastest counts, problem by problem: torch.mm, and what is best of cuBLASLt's."""

MARKERS = {
    "torch.mm": ("o", OURS),
    "the faster of torch.mm and cuBLASLt": ("D", THEIRS),
    "triton": ("^", SERIES[2]),
    "quack": ("v", SERIES[3]),
}
"""Marker and colour of each series, from the top of a line to its bottom."""

Record = Mapping[str, Any]


def series(records: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Return the measured :func:`hopper_gemm.tune.tables.comparison.cells` of one regime and context by series and
    problem; problems stand in the order of their launch times."""
    by_problem: dict[str, dict[str, Record]] = {name: {} for name in launches(records)}
    for record in records:
        if record["status"] == "ok":
            by_problem[_problem(record)][record["against"]] = record
    by_series: dict[str, dict[str, Record]] = {name: {} for name in MARKERS}
    for problem, cell in by_problem.items():
        shown = {"torch.mm" if name == "cublas" else name: record for name, record in cell.items()}
        both = [cell[name] for name in FASTER if name in cell]
        if len(both) > 1:
            shown["the faster of torch.mm and cuBLASLt"] = min(both, key=lambda record: record["speedup"])
        for name in by_series.keys() & shown.keys():
            by_series[name][problem] = shown[name]
    return {name: cells for name, cells in by_series.items() if cells}


@plt.rc_context(STYLE)
def forest(records: Sequence[Record], path: Path, title: str) -> None:
    """Draw the :func:`hopper_gemm.tune.tables.comparison.cells` of a comparison: a panel for each regime and context, a
    line for each problem, geometric means at the bottom. Nothing is drawn of a comparison of a single problem."""
    ordered = sorted(records, key=lambda record: CONTEXTS.index(record["context"]))
    by_conditions = grouped(ordered, lambda record: (record["regime"], record["context"]))
    panels = {key: (launches(part), series(part)) for key, part in by_conditions.items()}
    panels = {key: (us, shown) for key, (us, shown) in panels.items() if shown and len(us) > 1}
    if not panels:
        return
    most = max(len(us) + len(shown) for us, shown in panels.values())
    size = (5.8 * len(panels), 1.4 + 0.22 * most)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axis, ((regime, context), (us, shown)) in zip(axes.flat, panels.items(), strict=True):
        axis.set_title(f"{regime}, {context}", loc="left")
        _panel(axis, us, shown)
    lines = {line.get_label(): line for axis in axes.flat for line in axis.containers}
    names = [name for name in (f"over {marker}" for marker in MARKERS) if name in lines]
    figure.legend([lines[name] for name in names], names, loc="outside lower center", ncols=2)
    save(figure, path, title)


def _panel(axis: plt.Axes, launch_us: Mapping[str, float], shown: Mapping[str, Mapping[str, Record]]) -> None:
    problems = list(launch_us)
    bottom = len(problems) + len(shown)
    beside = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": CELL}
    low = high = 1.0
    for number, (name, cells) in enumerate(shown.items()):
        marker, colour = MARKERS[name]
        speedups = [record["speedup"] for record in cells.values()]
        ends = [(record["speedup_low"], record["speedup_high"]) for record in cells.values()]
        lows, highs = np.transpose(ends)
        errors = np.maximum(0.0, [speedups - lows, highs - speedups])
        shift = 0.5 * ((number + 0.5) / len(shown) - 0.5)
        look = {"fmt": marker, "color": colour, "markersize": 3.5, "elinewidth": 1.0, "linestyle": "none"}
        heights = [problems.index(problem) + shift for problem in cells]
        axis.errorbar(speedups, heights, xerr=errors, label=f"over {name}", **look)
        mean = geometric_mean(speedups)
        axis.plot(mean, len(problems) + number, marker, color=colour, markersize=5)
        axis.text(1.02, len(problems) + number, f"{mean:.3f}x", **beside)
        low, high = min(low, lows.min()), max(high, highs.max())
    axis.text(1.02, -1.1, "our time", **beside)
    for at, us in enumerate(launch_us.values()):
        axis.text(1.02, at, f"{us:.1f} us", **beside)
    counted = [f"geometric mean of {len(cells)}" for cells in shown.values()]
    axis.set_yticks(range(bottom), [*problems, *counted], fontsize=CELL)
    axis.set_ylim(bottom - 0.4, -0.6)
    axis.axhline(len(problems) - 0.5, color=EVEN, linewidth=0.6)
    axis.axvline(1.0, color=EVEN, linewidth=1.0, zorder=0)
    axis.set_xscale("log")
    margin = max(0.02, 0.05 * log2(high / low))
    axis.set_xlim(low * 2**-margin, high * 2**margin)
    ticks = _ticks(*axis.get_xlim())
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(ticks, [f"{tick:.2f}" for tick in ticks])
    axis.grid(color=FAINT, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.set_xlabel("speedup: time of the baseline / ours; right of 1 we are faster")


def launches(records: Sequence[Record]) -> dict[str, float]:
    """Return the time of our launch by problem, us: the median over its baselines, the shortest first."""
    by_problem = grouped((record for record in records if record["status"] == "ok"), _problem)
    times = {name: float(median(record["time_us"] for record in of)) for name, of in by_problem.items()}
    return dict(sorted(times.items(), key=lambda item: item[1]))


def _problem(record: Record) -> str:
    """Return the name of a line: the problem, with its data where they are not the usual ones."""
    usual = record.get("data", "normal") == "normal"
    return str(record["problem"]) if usual else f"{record['problem']} {record['data']}"


def _ticks(low: float, high: float) -> list[float]:
    """Return at most nine round speedups between two ends, 1 among them."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        first, last = (round((end - 1) / step) for end in (low, high))
        ticks = [1 + step * at for at in range(first, last + 1) if low <= 1 + step * at <= high]
        if len(ticks) <= 9:
            return ticks
    return [2.0**power for power in range(-6, 7) if low <= 2.0**power <= high]
