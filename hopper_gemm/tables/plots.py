"""Pictures of a study, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm

from hopper_gemm.tables.ladder import Result, Step
from hopper_gemm.tables.pivot import EXCEEDS, cell_text, groups, in_order

PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}


def heatmap(trials: pd.DataFrame, path: Path, title: str, rows: str = "tile_m", cols: str = "k_depth") -> None:
    """Speedup over cuBLAS as a grid of colours, one panel per problem and regime; 1.0 is white.

    Args:
        trials: rows of a study.
        path: PNG to write.
        title: above all panels.
        rows, cols: columns of the schema that span a panel.
    """
    panels = groups(trials)
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    figure, axes = plt.subplots(down, across, figsize=(7.2 * across, 3.9 * down), squeeze=False, layout="constrained")
    norm = TwoSlopeNorm(vmin=0.0, vcenter=1.0, vmax=max(1.1, float(trials["speedup"].max(skipna=True) or 1.1)))
    for axis, (group, part) in zip(axes.flat, panels, strict=False):
        best = part.sort_values("speedup", ascending=False, na_position="last", kind="stable").drop_duplicates(
            [rows, cols]
        )
        values = best.pivot(index=rows, columns=cols, values="speedup")
        values = values.reindex(index=in_order(values.index), columns=in_order(values.columns))
        image = axis.imshow(
            np.ma.masked_invalid(values.astype(float).to_numpy()), cmap="RdBu", norm=norm, aspect="auto"
        )
        axis.set_xticks(range(len(values.columns)), [str(column) for column in values.columns])
        axis.set_yticks(range(len(values.index)), [str(index) for index in values.index])
        axis.set_xlabel(cols)
        axis.set_ylabel(rows)
        axis.set_title(group.title)
        for _, row in best.iterrows():
            text = cell_text(row).replace(EXCEEDS, "exceeds\nsmem").replace(" (", "\n(")
            at = (values.columns.get_loc(row[cols]), values.index.get_loc(row[rows]))
            dark = row["speedup"] < 0.35 if pd.notna(row["speedup"]) else False
            axis.text(*at, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.colorbar(image, ax=axes, label="speedup over cuBLAS", shrink=0.8)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def ladder_bars(steps: Sequence[Step], path: Path, title: str) -> None:
    """TFLOP/s of every rung as a bar, cuBLAS as a line; a row of panels for each problem, regimes side by side.

    Args:
        steps: of :func:`hopper_gemm.tables.ladder.ladder`, at least one.
        path: PNG to write.
        title: above all panels.
    """
    found = [result.group for result in steps[0].results]
    down = list(dict.fromkeys((group.problem, group.dtype, group.data) for group in found))
    across = list(dict.fromkeys(group.regime for group in found))
    size = (2.2 + 4.6 * len(across), 1.1 + (0.7 + 0.3 * len(steps)) * len(down))
    figure, axes = plt.subplots(len(down), len(across), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis in axes.flat:
        axis.set_visible(False)
    for i, group in enumerate(found):
        row = down.index((group.problem, group.dtype, group.data))
        axis = axes[row, across.index(group.regime)]
        axis.set_visible(True)
        axis.set_title(group.title, fontsize=10)
        _bars(axis, [step.name for step in steps], [step.results[i] for step in steps])
    for axis in axes[-1]:
        axis.set_xlabel("TFLOP/s")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(axis: plt.Axes, names: list[str], results: list[Result]) -> None:
    rates = [result.tflops or 0.0 for result in results]
    theirs = [result.cublas_tflops for result in results if result.cublas_tflops is not None]
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
