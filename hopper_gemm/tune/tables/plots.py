"""Pictures of a study, drawn without a display; the suffix of the path says whether as SVG or as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hopper_gemm.tune.tables.ladder import MeasuredRung, Result
from hopper_gemm.tune.tables.pivot import EXCEEDS, cell_text, fastest, groups, in_order
from hopper_gemm.tune.tables.style import (
    CELL,
    EVEN,
    FAINT,
    INK,
    MISSING,
    OURS,
    SERIES,
    SPEEDUPS,
    STYLE,
    THEIRS,
    ink_on,
    label,
    save,
    speedup_bar,
    speedup_norm,
    value_label,
)

LOWEST = 2.6
"""Least height of a map with its title and its colour bar, inches."""


@plt.rc_context(STYLE)
def heatmap(frame: pd.DataFrame, path: Path, title: str, rows: str = "tile_m", cols: str = "k_depth") -> None:
    """Draw the speedup over cuBLAS as a grid of colours, spanned by two columns of the schema: a panel for each group
    of rows with several cells, if any."""
    panels = [(group, fastest(part, [rows, cols])) for group, part in groups(frame)]
    panels = [(group, best) for group, best in panels if len(best) > 1]
    if not panels:
        return
    down, across = (max(best[name].nunique() for _, best in panels) for name in (rows, cols))
    figure, axes = _grid(len(panels), 2, max(3.6, 0.8 + 0.55 * across), 0.7 + 0.36 * down)
    figure.set_size_inches(max(5.0, figure.get_figwidth()), max(LOWEST, figure.get_figheight()))
    speedups = frame["speedup"].astype(float)
    norm = speedup_norm(speedups)
    for axis, (group, best) in zip(axes.flat, panels, strict=False):
        xs, ys = in_order(best[cols]), in_order(best[rows])
        values = best.pivot(index=rows, columns=cols, values="speedup").reindex(index=ys, columns=xs)
        _cells(axis, values.astype(float).to_numpy(), norm, xs, ys)
        axis.set_title(group.title)
        for _, row in best.iterrows():
            text = cell_text(row).replace(EXCEEDS, "exceeds\nsmem").replace(" (", "\n(")
            ink = ink_on(norm, row["speedup"]) if row["status"] == "ok" and pd.notna(row["speedup"]) else INK
            at = (xs.index(row[cols]), ys.index(row[rows]))
            axis.text(*at, text, ha="center", va="center", fontsize=CELL, color=ink)
    figure.supxlabel(label(cols))
    figure.supylabel(label(rows, width=int(9 * figure.get_figheight())))
    speedup_bar(figure, norm, axes, speedups)
    save(figure, path, title)


@plt.rc_context(STYLE)
def small_multiples(
    frame: pd.DataFrame, rows: str | None, cols: str | None, x: str, y: str, path: Path, title: str
) -> None:
    """Draw the speedups of one problem and regime, of which at least one ran, as a grid of heat maps on one scale of
    colours: one for each value of the columns ``rows``, down, and ``cols``, across, either of them None for a single
    one. ``x`` and ``y`` span a heat map; values of y go down. A cell shows the fastest of its rows; a cell without a
    figure is grey. Nothing is drawn of a single cell."""
    facets = [name for name in (rows, cols) if name is not None]
    best = fastest(frame, [*facets, y, x])
    if len(best) < 2:
        return
    down, across = ([None] if name is None else in_order(best[name]) for name in (rows, cols))
    xs, ys = in_order(best[x]), in_order(best[y])
    speedups = best["speedup"].astype(float)
    norm = speedup_norm(speedups)
    cell = max(0.34, *(0.085 * len(value_label(value)) for value in xs))
    wide = 0.3 + max(cell * len(xs), *(0.07 * len(value_label(value)) + 0.07 * len(cols or "") for value in across))
    size = (max(4.6, 1.7 + len(across) * wide), max(LOWEST, 1.3 + len(down) * (0.5 + 0.26 * len(ys))))
    figure, axes = plt.subplots(
        len(down), len(across), figsize=size, squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    cells = best.set_index([*facets, y, x])["speedup"].astype(float).to_dict()
    for (i, j), axis in np.ndenumerate(axes):
        choices = [choice for name, choice in ((rows, down[i]), (cols, across[j])) if name is not None]
        values = np.array([[cells.get((*choices, b, a), np.nan) for a in xs] for b in ys])
        _cells(axis, values, norm, xs, ys)
        for (row, col), speedup in np.ndenumerate(values):
            if np.isfinite(speedup):
                ink = ink_on(norm, speedup)
                axis.text(col, row, f"{speedup:.2f}", ha="center", va="center", fontsize=CELL, color=ink)
        labels = [f"{name} {value_label(choice)}" for name, choice in zip(facets, choices, strict=True)]
        axis.set_title((", " if len(", ".join(labels)) * 0.075 < wide else "\n").join(labels), fontsize=8)
    figure.supxlabel(label(x, width=int(13 * size[0])))
    figure.supylabel(label(y, width=int(9 * size[1])))
    speedup_bar(figure, norm, axes, speedups)
    sides = [f"{side}: {label(name)}" for side, name in (("down", rows), ("across", cols)) if name is not None]
    save(figure, path, f"{title} Facets {'; '.join(sides)}.")


@plt.rc_context(STYLE)
def ladder_bars(steps: Sequence[MeasuredRung], path: Path, title: str) -> None:
    """Draw TFLOP/s of every rung as a bar, cuBLAS as a line: problems down, regimes and contexts across."""
    shown = [result.group for result in steps[0].results]
    down = list(dict.fromkeys((group.problem, group.data) for group in shown))
    across = list(dict.fromkeys((group.regime, group.context) for group in shown))
    size = (1.6 + 3.8 * len(across), 0.8 + (0.7 + 0.19 * len(steps)) * len(down))
    figure, axes = plt.subplots(len(down), len(across), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis in axes.flat:
        axis.set_visible(False)
    for i, group in enumerate(shown):
        row = down.index((group.problem, group.data))
        axis = axes[row, across.index((group.regime, group.context))]
        axis.set_visible(True)
        axis.set_title(group.title, loc="left")
        _bars(axis, [step.name for step in steps], [step.results[i] for step in steps])
    for axis in axes[-1]:
        axis.set_xlabel("TFLOP/s")
    save(figure, path, title)


@plt.rc_context(STYLE)
def regret_curves(runs: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the distance of the best so far from the best of all, trial by trial: the median of the runs and, shaded,
    the middle eight tenths. A run has ``place`` (the title of a panel), ``sampler``, and the distances ``low``,
    ``middle`` and ``high`` after each trial."""
    titles, samplers = (list(dict.fromkeys(run[name] for run in runs)) for name in ("place", "sampler"))
    figure, axes = _grid(len(titles), 2, 3.8, 2.8)
    for axis, panel in zip(axes.flat, titles, strict=False):
        for run in runs:
            if run["place"] != panel:
                continue
            low, middle, high = (100 * np.maximum(run[name], 1e-4) for name in ("low", "middle", "high"))
            trials = np.arange(1, len(middle) + 1)
            i = samplers.index(run["sampler"])
            look = {"color": SERIES[i % len(SERIES)], "linestyle": ("-", "--", "-.", ":")[i % 4]}
            axis.fill_between(trials, low, high, step="post", alpha=0.12, color=look["color"], linewidth=0)
            axis.step(trials, middle, where="post", label=run["sampler"], **look)
        axis.axhline(1.0, color=EVEN, linewidth=0.8, zorder=0)
        axis.set(xscale="log", yscale="log", xlabel="trials", ylabel="behind the best, % (0.01: at most)")
        axis.set_title(panel)
    lines = {line.get_label(): line for axis in axes.flat for line in axis.lines if line.get_label() in samplers}
    figure.legend(lines.values(), lines.keys(), loc="outside right upper")
    save(figure, path, title)


@plt.rc_context(STYLE)
def search_plot(
    rows: pd.DataFrame, varied: Sequence[str], importance: Mapping[str, Any] | None, path: Path, title: str
) -> None:
    """Draw a search of one problem and regime, its rows in the order of measurement: its history, the importance of its
    parameters unless None, and a slice along each varied parameter. Nothing is drawn where fewer than two trials ran.
    """
    ok = rows[rows["status"] == "ok"].reset_index(drop=True)
    if len(ok) < 2:
        return
    speedups = ok["speedup"].astype(float)
    pixels = len(ok) > 500  # as shapes more points would make an SVG larger than a PNG
    figure, axes = _grid(1 + bool(importance) + len(varied), 3, 3.2, 2.3)
    history, *slices = axes.flat
    history.scatter(range(1, len(ok) + 1), speedups, s=6, color=OURS, rasterized=pixels)
    history.step(range(1, len(ok) + 1), speedups.cummax(), where="post", color=THEIRS)
    history.set(xlabel="trial (line: best so far)", ylabel="speedup over cuBLAS")
    if importance:
        weights = slices.pop(0)
        shares = list(importance["parameters"].items())[::-1]
        weights.barh([name for name, _ in shares], [share for _, share in shares], color=OURS)
        weights.set_xlabel(f"share of importance ({importance['evaluator']})")
        weights.tick_params(axis="y", labelsize=min(8, 110 / len(shares)))
    for axis, name in zip(slices, varied, strict=False):
        values = in_order(ok[name])
        at = [values.index(value) for value in ok[name]]
        shade = {"c": range(len(ok)), "cmap": "Blues", "edgecolors": EVEN, "linewidths": 0.3}
        axis.scatter(at, speedups, s=8, rasterized=pixels, **shade)
        texts = [value_label(value) for value in values]
        crowded = sum(len(text) + 1 for text in texts) > 45
        axis.set_xticks(range(len(values)), texts, fontsize=CELL, rotation=90 if crowded else 0)
        axis.set_xlim(-0.6, len(values) - 0.4)
        axis.set_xlabel(label(name, width=42))
    save(figure, path, f"{title} Slices: darker points are later trials.")


def _grid(panels: int, most: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """Return a figure and its axes: ``panels`` of a width and height in inches, at most ``most`` side by side."""
    across = min(most, panels)
    down = -(-panels // across)
    size = (width * across, height * down)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    return figure, axes


def _bars(axis: plt.Axes, names: list[str], results: list[Result]) -> None:
    """Draw bars of rates; the figures stand in columns to the right of all bars, where nothing crosses them."""
    rates = [result.tflops or 0.0 for result in results]
    theirs = [result.baseline_tflops for result in results if result.baseline_tflops is not None]
    most = max([*rates, *theirs], default=1.0) or 1.0
    at_rate, at_gain = 1.2 * most, 1.43 * most
    axis.hlines(range(len(names)), rates, 1.03 * most, color=FAINT, linewidth=0.6)
    axis.barh(range(len(names)), rates, color=OURS)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -1.6)
    axis.set_xlim(0, 1.46 * most)
    axis.set_xticks([tick for tick in MaxNLocator(5).tick_values(0, most) if tick <= most])
    axis.text(at_rate, -1.0, "TFLOP/s", ha="right", va="center", fontsize=CELL)
    axis.text(at_gain, -1.0, "gain", ha="right", va="center", fontsize=CELL)
    for at, result in enumerate(results):
        if result.tflops is None:
            axis.text(at_gain, at, result.status.replace("_", " "), ha="right", va="center", fontsize=CELL)
            continue
        axis.text(at_rate, at, f"{result.tflops:.0f}", ha="right", va="center", fontsize=CELL)
        if result.gain is not None:
            axis.text(at_gain, at, f"{result.gain:+.1%}", ha="right", va="center", fontsize=CELL)
    if theirs:
        cublas = float(np.median(theirs))
        axis.vlines(cublas, -0.6, len(names) - 0.4, color=THEIRS, linestyle="--", linewidth=1.2)
        axis.text(cublas, -1.0, f"cuBLAS {cublas:.0f} ", ha="right", va="center", fontsize=CELL, color=THEIRS)


def _cells(axis: plt.Axes, values: np.ndarray, norm: FuncNorm, xs: Sequence[Any], ys: Sequence[Any]) -> None:
    """Draw the cells of one heat map as shapes; the first row is on top."""
    axis.set_facecolor(MISSING)
    edges = (np.arange(len(side) + 1) - 0.5 for side in (xs, ys))
    axis.pcolormesh(*edges, np.ma.masked_invalid(values), cmap=SPEEDUPS, norm=norm, edgecolors="white", linewidth=0.5)
    axis.set_xticks(range(len(xs)), [value_label(value) for value in xs])
    axis.set_yticks(range(len(ys)), [value_label(value) for value in ys])
    axis.set_ylim(len(ys) - 0.5, -0.5)
    axis.tick_params(length=0)
