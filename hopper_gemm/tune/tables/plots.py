"""Pictures of a study, drawn without a display and saved as small PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.tables.ladder import Result, Step
from hopper_gemm.tune.tables.pivot import EXCEEDS, cell_text, fastest, groups, in_order

DPI, COLOURS = 80, 256
"""Resolution of saved pictures, and colours of their palette."""

_LABELS = {"speedup": "speedup over cuBLAS", "pj_per_flop": "pJ/FLOP"}

PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}


def png(figure: Figure, dpi: float = DPI) -> bytes:
    """A figure as a PNG with a palette, a third of the size of one with full colours."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    small = BytesIO()
    image = Image.open(drawn).convert("RGB")
    image.quantize(COLOURS, kmeans=3, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def show_small(dpi: float = 72) -> None:
    """Make the notebook that calls this embed its figures as :func:`png` gives them."""
    from IPython import get_ipython

    shell = get_ipython()
    shell.run_line_magic("matplotlib", "inline")  # this module draws without a display, and so do its importers
    shell.display_formatter.formatters["image/png"].for_type(Figure, lambda figure: png(figure, dpi))


def heatmap(frame: pd.DataFrame, path: Path, title: str, rows: str = "tile_m", cols: str = "k_depth") -> None:
    """Speedup over cuBLAS as a grid of colours, one panel for each group of rows; 1.0 is white.

    Args:
        frame: rows of a study.
        path: PNG to write.
        title: above all panels.
        rows, cols: columns of the schema that span a panel.
    """
    panels = groups(frame)
    figure, axes = _grid(len(panels), 2, 7.2, 3.9)
    norm = TwoSlopeNorm(vmin=0.0, vcenter=1.0, vmax=max(1.1, float(frame["speedup"].max(skipna=True) or 1.1)))
    for axis, (group, part) in zip(axes.flat, panels, strict=False):
        best = fastest(part, [rows, cols])
        values = best.pivot(index=rows, columns=cols, values="speedup")
        values = values.reindex(index=in_order(values.index), columns=in_order(values.columns))
        cells = np.ma.masked_invalid(values.astype(float).to_numpy())
        image = axis.imshow(cells, cmap="RdBu", norm=norm, aspect="auto")
        axis.set_xticks(range(len(values.columns)), [str(column) for column in values.columns])
        axis.set_yticks(range(len(values.index)), [str(index) for index in values.index])
        axis.set(xlabel=cols, ylabel=rows, title=group.title)
        for _, row in best.iterrows():
            text = cell_text(row).replace(EXCEEDS, "exceeds\nsmem").replace(" (", "\n(")
            at = (values.columns.get_loc(row[cols]), values.index.get_loc(row[rows]))
            dark = pd.notna(row["speedup"]) and row["speedup"] < 0.35
            axis.text(*at, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    figure.colorbar(image, ax=axes, label=_LABELS["speedup"], shrink=0.8)
    _save(figure, path, title, axes.shape[1] * 90)


def small_multiples(
    frame: pd.DataFrame, rows: str | None, cols: str | None, x: str, y: str, path: Path, title: str
) -> None:
    """A grid of heat maps of speedups on one scale of colours, so that a cell can be compared with its like in every
    facet.

    The scale diverges at 1.0, which is white. Where several rows share a cell the fastest stands in it; a cell without
    a figure is grey.

    Args:
        frame: rows of one problem and regime, of which at least one ran.
        rows, cols: columns whose values are the facets, down and across; None for a single row or column of them.
        x, y: columns that span a heat map; values of y go down.
        path: PNG to write.
        title: above all facets.
    """
    facets = [name for name in (rows, cols) if name is not None]
    best = fastest(frame, [*facets, y, x])
    down, across = ([None] if name is None else in_order(best[name]) for name in (rows, cols))
    xs, ys = in_order(best[x]), in_order(best[y])
    speedups = best["speedup"].astype(float)
    norm = TwoSlopeNorm(1.0, min(speedups.min(), 0.99), max(speedups.max(), 1.01))
    size = (1.6 + len(across) * (0.4 + 0.25 * len(xs)), 1.0 + len(down) * (0.45 + 0.25 * len(ys)))
    figure, axes = plt.subplots(
        len(down), len(across), figsize=size, squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    cells = best.set_index([*facets, y, x])["speedup"].astype(float).to_dict()
    for (i, j), axis in np.ndenumerate(axes):
        here = [choice for name, choice in ((rows, down[i]), (cols, across[j])) if name is not None]
        values = np.array([[cells.get((*here, b, a), np.nan) for a in xs] for b in ys])
        image = _facet(axis, values, norm)
        axis.set_xticks(range(len(xs)), [str(one) for one in xs], fontsize=7)
        axis.set_yticks(range(len(ys)), [str(one) for one in ys], fontsize=7)
        told = [f"{name} {choice}" for name, choice in zip(facets, here, strict=True)]
        axis.set_title((", " if len(xs) > 5 else "\n").join(told), fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel(x, fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel(y, fontsize=8)
    ticks = {f"{one:.2f}": one for one in norm.inverse(np.linspace(0, 1, 9))}  # gains are the shorter side of the scale
    figure.colorbar(image, ax=axes, label=_LABELS["speedup"], aspect=30, ticks=list(ticks.values()), format="%.2f")
    _save(figure, path, title, int(12 * size[0]))


def ladder_bars(steps: Sequence[Step], path: Path, title: str) -> None:
    """TFLOP/s of every rung as a bar, cuBLAS as a line; a row of panels for each problem, regimes and contexts side by
    side.

    Args:
        steps: of :func:`hopper_gemm.tune.tables.ladder.ladder`, at least one.
        path: PNG to write.
        title: above all panels.
    """
    found = [result.group for result in steps[0].results]
    down = list(dict.fromkeys((group.problem, group.data) for group in found))
    across = list(dict.fromkeys((group.regime, group.context) for group in found))
    size = (2.2 + 4.6 * len(across), 1.1 + (0.7 + 0.3 * len(steps)) * len(down))
    figure, axes = plt.subplots(len(down), len(across), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis in axes.flat:
        axis.set_visible(False)
    for i, group in enumerate(found):
        row = down.index((group.problem, group.data))
        axis = axes[row, across.index((group.regime, group.context))]
        axis.set_visible(True)
        axis.set_title(group.title, fontsize=10, loc="left")
        _bars(axis, [step.name for step in steps], [step.results[i] for step in steps])
    for axis in axes[-1]:
        axis.set_xlabel("TFLOP/s")
    _save(figure, path, title, int(12 * size[0]))


def regret_curves(runs: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Distance of the best so far from the best of all, trial by trial: the median of the runs and, shaded, the middle
    eight of ten.

    Args:
        runs: records with ``place``, ``sampler``, and the distances ``low``, ``middle`` and ``high`` after each trial.
        path: PNG to write.
        title: above all places.
    """
    places = list(dict.fromkeys(run["place"] for run in runs))
    figure, axes = _grid(len(places), 2, 6.4, 4.0)
    for axis, place in zip(axes.flat, places, strict=False):
        for number, run in enumerate(one for one in runs if one["place"] == place):
            low, middle, high = (100 * np.maximum(run[name], 1e-4) for name in ("low", "middle", "high"))
            trials = np.arange(1, len(middle) + 1)
            axis.fill_between(trials, low, high, step="post", alpha=0.15, color=f"C{number}")
            axis.step(trials, middle, where="post", color=f"C{number}", label=run["sampler"])
        axis.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")
        axis.set(xscale="log", yscale="log", xlabel="trials", ylabel="behind the best, %")
        axis.set_title(place, fontsize=10)
        axis.legend(fontsize=8)
    _save(figure, path, title, 90)


def search_plot(
    rows: pd.DataFrame, varied: Sequence[str], value: str, importance: Mapping[str, Any] | None, path: Path, title: str
) -> None:
    """A search at a glance: its history, the importance of its parameters, and a slice along each of them.

    Args:
        rows: of one problem and regime, in the order in which they were measured.
        varied: parameters with several values, one slice each.
        value: figure that was looked for.
        importance: ``evaluator`` and ``parameters``, or None where too little was measured.
        path: PNG to write.
        title: above all.
    """
    ok = rows[(rows["status"] == "ok") & rows[value].notna()].reset_index(drop=True)
    figures = ok[value].astype(float)
    figure, axes = _grid(1 + bool(importance) + len(varied), 4, 4, 3)
    history, *slices = axes.flat
    best = figures.cummin() if value == "pj_per_flop" else figures.cummax()
    history.scatter(range(1, len(ok) + 1), figures, s=12, color="#4878a8")
    history.step(range(1, len(ok) + 1), best, where="post", color="#b03a2e")
    history.set(xlabel="trial", ylabel=_LABELS[value])
    history.set_title("history", fontsize=9)
    if importance:
        weights = slices.pop(0)
        shares = list(importance["parameters"].items())[::-1]
        weights.barh([name for name, _ in shares], [share for _, share in shares], color="#4878a8")
        weights.set_title(f"importance ({importance['evaluator']})", fontsize=9)
    for axis, name in zip(slices, varied, strict=False):
        values = in_order(ok[name])
        at = [values.index(one) for one in ok[name]]
        axis.scatter(at, figures, s=12, c=range(len(ok)), cmap="Blues", edgecolors="#888888", linewidths=0.3)
        axis.set_xticks(range(len(values)), [str(one) for one in values], fontsize=7)
        axis.set_title(name, fontsize=9)
    _save(figure, path, title, 30 * axes.shape[1])


_SPANS = {"waits": "#d9d9d9", "issues": "#7f7f7f", "load": "#8fbc8f", "queued": "#9ec5e8", "math": "#1f5f9f"}


def timeline(axis: plt.Axes, spans: pd.DataFrame, stages: int) -> None:
    """Draw what the roles of a CTA do over time: a lane for each role, and one below the producer's for each slot.

    What a consumer has queued behind a group is a thin bar below that group's; a bar that is long enough has its stage.

    Args:
        axis: to draw on.
        spans: ``role``, ``stage``, ``start`` and ``end`` of what a role did, of the stages to be shown.
        stages: slots of the ring; loads of one slot share a lane.
    """
    lanes = {"producer": 0.0, **{f"slot {slot}": 1.0 + slot for slot in range(stages)}}
    for role in sorted(set(spans["role"]) - {"producer"}):
        lanes[role] = float(len(lanes))
    whole = spans["end"].max() - spans["start"].min()
    for one in spans.itertuples():
        lane = lanes[f"slot {one.stage % stages}" if one.what == "load" else one.role]
        long, queued = one.end - one.start, one.what == "queued"
        at, height = (lane + 0.38, 0.16) if queued else (lane, 0.6)
        axis.barh(at, long, height, one.start, color=_SPANS[one.what], edgecolor="white", linewidth=0.4)
        if one.what in ("load", "math") and long > whole / 60:
            ink = "white" if one.what == "math" else "black"
            axis.text((one.start + one.end) / 2, lane, str(one.stage), ha="center", va="center", fontsize=7, color=ink)
    axis.set_yticks(list(lanes.values()), list(lanes), fontsize=7)
    axis.set_ylim(max(lanes.values()) + 0.5, -0.5)
    axis.set_xlabel("SM clocks", fontsize=8)


def patch(axis: plt.Axes, tiles: Sequence[tuple[int, int]], size: tuple[int, int], at_once: int) -> None:
    """Draw the first wave of a walk over a grid of tiles: the tiles under way, and the rows and columns they read.

    Args:
        axis: to draw on.
        tiles: (m, n) in the order of the walk.
        size: tiles along m and along n.
        at_once: tiles of a wave.
    """
    wave = tiles[:at_once]
    grid = np.zeros(size)
    grid[:, sorted({n for _, n in wave})] += 0.25
    grid[sorted({m for m, _ in wave})] += 0.25
    for m, n in wave:
        grid[m, n] = 1
    axis.imshow(grid, cmap="Blues", vmin=0, vmax=1.3, aspect="equal")
    axis.set_xticks(np.arange(-0.5, size[1]), [])
    axis.set_yticks(np.arange(-0.5, size[0]), [])
    axis.grid(color="white", linewidth=0.6)
    rows, columns = ({one[side] for one in wave} for side in (0, 1))
    axis.set_title(f"{len(rows)} + {len(columns)} = {len(rows) + len(columns)} panels", fontsize=9)


def _grid(panels: int, most: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure and its axes: so many panels of a size in inches, at most so many of them side by side."""
    across = min(most, panels)
    down = -(-panels // across)
    size = (width * across, height * down)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path, title: str, width: int) -> None:
    """Write the picture, its title wrapped to so many letters, and release the figure."""
    figure.suptitle("\n".join(wrap(title, width=width)), fontsize=10)
    try:
        write_whole(path, png(figure))
    finally:
        plt.close(figure)


def _bars(axis: plt.Axes, names: list[str], results: list[Result]) -> None:
    rates = [result.tflops or 0.0 for result in results]
    theirs = [result.baseline_tflops for result in results if result.baseline_tflops is not None]
    axis.barh(range(len(names)), rates, color="#4878a8")
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    most = max([*rates, *theirs], default=1.0) or 1.0
    axis.set_xlim(0, 1.22 * most)
    for at, result in enumerate(results):
        text = result.status.replace("_", " ")
        if result.tflops is not None:
            text = f"{result.tflops:.0f}" + ("" if result.gain is None else f"  {result.gain:+.1%}")
        axis.text((result.tflops or 0.0) + 0.01 * most, at, text, va="center", fontsize=8, zorder=4, bbox=PAPER)
    if theirs:
        cublas = float(np.median(theirs))
        axis.axvline(cublas, color="#b03a2e", linestyle="--", linewidth=1.2, label=f"cuBLAS {cublas:.0f}", zorder=3)
        axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1, frameon=False)


def _facet(axis: plt.Axes, values: np.ndarray, norm: Normalize) -> AxesImage:
    """One heat map with its figures; dark cells have light text."""
    axis.set_facecolor("#cccccc")
    image = axis.imshow(np.ma.masked_invalid(values), cmap="RdBu", norm=norm, aspect="auto")
    for (row, col), figure in np.ndenumerate(values):
        if np.isfinite(figure):
            red, green, blue, _ = image.cmap(norm(figure))
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            colour = "black" if light else "white"
            axis.text(col, row, f"{figure:.2f}", ha="center", va="center", fontsize=6, color=colour)
    return image
