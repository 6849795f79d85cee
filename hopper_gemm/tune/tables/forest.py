"""The picture of a comparison: speedups over each baseline with their intervals, one line for each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

from hopper_gemm.model.point import CONTEXTS
from hopper_gemm.tune.tables.compare import geometric_mean
from hopper_gemm.tune.tables.style import CELL, EVEN, FAINT, OURS, SERIES, STYLE, THEIRS, save

FASTER = ("cublas", "cublaslt")
"""Baselines of which the faster counts, problem by problem."""

MARKERS = {
    "torch.mm": ("o", OURS),
    "the faster of torch.mm and cuBLASLt": ("D", THEIRS),
    "triton": ("^", SERIES[2]),
    "quack": ("v", SERIES[3]),
}
"""Marker and colour of each series, from the top of a line to its bottom."""

Record = Mapping[str, Any]


def series(records: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Measured cells by series and problem; the problems in the order of their launch times.

    Args:
        records: of :func:`hopper_gemm.tune.tables.compare.cells`, of one regime and context.
    """
    by_problem: dict[str, dict[str, Record]] = {}
    for record in records:
        if record["status"] == "ok":
            usual = record.get("data", "normal") == "normal"
            name = record["problem"] if usual else f"{record['problem']} {record['data']}"
            by_problem.setdefault(name, {})[record["against"]] = record
    found: dict[str, dict[str, Record]] = {name: {} for name in MARKERS}
    for problem, cell in sorted(by_problem.items(), key=lambda one: _launch(one[1].values())):
        shown: dict[str, Record | None] = {"torch.mm": cell.get("cublas"), "triton": cell.get("triton")}
        shown["quack"] = cell.get("quack")
        if all(name in cell for name in FASTER):
            faster = min((cell[name] for name in FASTER), key=lambda record: record["speedup"])
            shown["the faster of torch.mm and cuBLASLt"] = faster
        for name, one in shown.items():
            if one is not None:
                found[name][problem] = one
    return {name: of for name, of in found.items() if of}


@plt.rc_context(STYLE)
def forest(records: Sequence[Record], path: Path, title: str) -> None:
    """Draw a comparison: a panel for each regime and context, a line for each problem, geometric means at the bottom.

    Nothing is drawn of a comparison of a single problem.

    Args:
        records: of :func:`hopper_gemm.tune.tables.compare.cells`.
        path: file to write.
        title: above all panels.
    """
    by_place: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda one: CONTEXTS.index(one["context"])):
        by_place.setdefault((record["regime"], record["context"]), []).append(record)
    panels = {place: series(part) for place, part in by_place.items()}
    panels = {place: shown for place, shown in panels.items() if any(len(of) > 1 for of in shown.values())}
    if not panels:
        return
    most = max(len(_problems(shown)) + len(shown) for shown in panels.values())
    size = (5.8 * len(panels), 1.4 + 0.22 * most)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axis, ((regime, context), shown) in zip(axes.flat, panels.items(), strict=True):
        axis.set_title(f"{regime}, {context}", loc="left")
        _panel(axis, shown)
    lines = {line.get_label(): line for axis in axes.flat for line in axis.containers}
    ordered = [name for name in MARKERS if f"over {name}" in lines]
    figure.legend(
        [lines[f"over {name}"] for name in ordered],
        [f"over {name}" for name in ordered],
        loc="outside lower center",
        ncols=2,
    )
    save(figure, path, title)


def _panel(axis: plt.Axes, shown: Mapping[str, Mapping[str, Record]]) -> None:
    problems = _problems(shown)
    bottom = len(problems) + len(shown)
    low = high = 1.0
    for number, (name, of) in enumerate(shown.items()):
        marker, colour = MARKERS[name]
        speedups = [record["speedup"] for record in of.values()]
        ends = [(record["speedup_low"], record["speedup_high"]) for record in of.values()]
        reach = [
            [max(0.0, mid - a) for mid, (a, _) in zip(speedups, ends, strict=True)],
            [max(0.0, b - mid) for mid, (_, b) in zip(speedups, ends, strict=True)],
        ]
        shift = 0.5 * ((number + 0.5) / len(shown) - 0.5)
        look = {"fmt": marker, "color": colour, "markersize": 3.5, "elinewidth": 1.0, "linestyle": "none"}
        axis.errorbar(
            speedups, [problems.index(problem) + shift for problem in of], xerr=reach, label=f"over {name}", **look
        )
        mean = geometric_mean(speedups)
        axis.plot(mean, len(problems) + number, marker, color=colour, markersize=5)
        axis.text(
            1.02,
            len(problems) + number,
            f"{mean:.3f}x",
            transform=axis.get_yaxis_transform(),
            va="center",
            fontsize=CELL,
        )
        low, high = min(low, *(a for a, _ in ends)), max(high, *(b for _, b in ends))
    for at, problem in enumerate(problems):
        us = _launch(of[problem] for of in shown.values() if problem in of)
        axis.text(1.02, at, f"{us:.1f} us", transform=axis.get_yaxis_transform(), va="center", fontsize=CELL)
    counted = [f"geometric mean of {len(of)}" for of in shown.values()]
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


def _problems(shown: Mapping[str, Mapping[str, Record]]) -> list[str]:
    """Problems of all series by launch time."""
    cells: dict[str, list[Record]] = {}
    for of in shown.values():
        for problem, record in of.items():
            cells.setdefault(problem, []).append(record)
    return sorted(cells, key=lambda problem: _launch(cells[problem]))


def _launch(records: Any) -> float:
    """Time of our launch, us: the median over the records of a problem."""
    return float(median(record["time_us"] for record in records))


def _ticks(low: float, high: float) -> list[float]:
    """Round speedups between two ends, 1 among them, at most nine."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        first, last = (round((end - 1) / step) for end in (low, high))
        ticks = [1 + step * at for at in range(first, last + 1) if low <= 1 + step * at <= high]
        if len(ticks) <= 9:
            return ticks
    return [2.0**power for power in range(-6, 7) if low <= 2.0**power <= high]
