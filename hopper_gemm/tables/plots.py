"""Pictures of a study, drawn without a display."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm

from hopper_gemm.tables.pivot import EXCEEDS, cell_text, groups, in_order


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
