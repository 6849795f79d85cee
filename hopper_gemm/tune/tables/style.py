"""Style of pictures: fonts, colours, and how a picture becomes a file."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from hopper_gemm.tune.study.files import write_whole

DPI = 200
"""Resolution of a PNG, and of what an SVG holds as pixels."""

INK, FAINT, MISSING = "#222222", "#dddddd", "#cccccc"
OURS, THEIRS, EVEN = "#0072b2", "#d55e00", "#777777"
SERIES = (OURS, THEIRS, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours of Okabe and Ito, which colour-blind readers can tell apart."""

CELL = 7
"""Size of the figures in the cells of a map, points."""

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 8,
    "figure.titlesize": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.prop_cycle": plt.cycler(color=SERIES),
    "figure.facecolor": "white",  # dark text on a transparent ground cannot be read on a dark page
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: a third of the size, and it can be searched and copied
    "svg.hashsalt": "hopper-gemm",
}
"""Settings of matplotlib under which every picture is drawn and written."""


def save(figure: Figure, path: Path, title: str) -> None:
    """Write a figure, its title wrapped to its width, and release it; equal figures give equal bytes.

    Args:
        figure: drawn under :data:`STYLE`.
        path: its suffix says in which form: ``.svg``, or ``.png`` of :data:`DPI`.
        title: above everything.
    """
    figure.suptitle("\n".join(wrap(title, width=int(13 * figure.get_figwidth()))))
    form, drawn = path.suffix.removeprefix("."), BytesIO()
    undated: dict[str, None] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    try:
        figure.savefig(drawn, format=form, dpi=DPI, metadata=undated)
        write_whole(path, drawn.getvalue())
    finally:
        plt.close(figure)
