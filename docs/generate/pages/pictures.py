"""Pictures of the docs and the notebooks: a wave of tiles, a time line; copies for dark pages; and the small PNGs of a
notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.tables.style import DPI, EVEN, FAINT, INK, OURS, THEIRS

COLOURS = 256
"""Colours of the palette of a picture in a notebook."""

_SPANS = {
    "waits": "#d9d9d9",
    "issues": "#7f7f7f",
    "load": "#8fbc8f",
    "queued": "#9ec5e8",
    "math": "#1f5f9f",
    "stores": "#e0a050",
}

DARK = {
    "#ffffff": "#0d1117",  # the ground of GitHub's dark pages
    INK: "#e6edf3",
    "#000000": "#e6edf3",
    FAINT: "#30363d",
    EVEN: "#8b949e",
    OURS: "#56b4e9",
    THEIRS: "#e69f00",
}
"""Colours of a picture on a dark page by those on a light one; series keep to the lighter hues of Okabe and Ito."""


def darkened(drawn: str) -> str:
    """Return an SVG in the colours of :data:`DARK`.

    Raises:
        KeyError: it has a colour that has none there.
    """
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: DARK[match[0]], drawn)


def write_dark(path: Path) -> None:
    """Write the copy of an SVG for dark pages beside it, as ``NAME-dark.svg``."""
    write_whole(path.with_stem(f"{path.stem}-dark"), darkened(path.read_text()))


def png(figure: Figure, dpi: float = DPI) -> bytes:
    """Return a figure as a PNG with a palette, a third of the size of a PNG with full colours."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    small = BytesIO()
    image = Image.open(drawn).convert("RGB")
    image.quantize(COLOURS, kmeans=3, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def show_small(dpi: float = 72) -> None:
    """Make the calling notebook embed its figures as :func:`png` returns them."""
    from IPython import get_ipython

    shell = get_ipython()
    shell.run_line_magic("matplotlib", "inline")  # this module draws without a display, and so do its importers
    shell.display_formatter.formatters["image/png"].for_type(Figure, lambda figure: png(figure, dpi))


def timeline(axis: plt.Axes, spans: pd.DataFrame, stages: int) -> None:
    """Draw the work of a CTA's roles over time: a lane for each role, and below the producer's a lane for each slot.

    Groups queued behind another are a thin bar below it; a long bar bears the number of its stage.

    Args:
        axis: to draw on.
        spans: ``role``, ``stage``, ``start`` and ``end`` of each piece of work.
        stages: slots of the ring; loads of one slot share a lane.
    """
    lanes = {"producer": 0.0, **{f"slot {slot}": 1.0 + slot for slot in range(stages)}}
    for role in sorted(set(spans["role"]) - {"producer"}):
        lanes[role] = float(len(lanes))
    whole = spans["end"].max() - spans["start"].min()
    for span in spans.itertuples():
        lane = lanes[f"slot {span.stage % stages}" if span.what == "load" else span.role]
        long, queued = span.end - span.start, span.what == "queued"
        at, height = (lane + 0.38, 0.16) if queued else (lane, 0.6)
        axis.barh(at, long, height, span.start, color=_SPANS[span.what], edgecolor="white", linewidth=0.4)
        if span.what in ("load", "math") and long > whole / 60:
            ink = "white" if span.what == "math" else "black"
            axis.text(
                (span.start + span.end) / 2, lane, str(span.stage), ha="center", va="center", fontsize=7, color=ink
            )
    axis.set_yticks(list(lanes.values()), list(lanes), fontsize=7)
    axis.set_ylim(max(lanes.values()) + 0.5, -0.5)
    axis.set_xlabel("SM clocks", fontsize=8)


def patch(axis: plt.Axes, tiles: Sequence[tuple[int, int]], size: tuple[int, int], at_once: int) -> None:
    """Draw the first wave of a tile order on the grid of tiles: its tiles, and the rows and columns they read.

    Args:
        axis: to draw on.
        tiles: (m, n) in their order.
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
    rows, columns = ({tile[side] for tile in wave} for side in (0, 1))
    axis.set_title(f"{len(rows)} + {len(columns)} = {len(rows) + len(columns)} panels", fontsize=9)
