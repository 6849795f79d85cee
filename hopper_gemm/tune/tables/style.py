"""Style of pictures: fonts, colours, the scale of speedups, words on axes, and the writing of files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure

from hopper_gemm.tune.parameters import PARAMETERS
from hopper_gemm.tune.study.files import write_whole

DPI = 200
"""Resolution of a PNG, and of what an SVG holds as pixels."""

STYLE = matplotlib.rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), use_default_template=False)
"""Settings of matplotlib under which every picture is drawn and written."""

SERIES: list[str] = STYLE["axes.prop_cycle"].by_key()["color"]
INK, FAINT, MISSING = STYLE["text.color"], "#dddddd", "#cccccc"
OURS, THEIRS, EVEN = *SERIES[:2], "#777777"

SPEEDUPS = "RdBu"
"""Diverging colour map: slower is red, even is white, faster is blue."""

CELL = 7
"""Size of the figures in the cells of a map, points."""

WORDS = {
    "tile": "tile rows x columns",
    "tile_m": "tile rows",
    "tile_n": "tile columns",
    "k_depth": "depth of a stage in k-blocks of 16 elements",
    "stagger": "wgmma groups in flight at a release",
    "schedule": "how warpgroups share the work",
    "cluster": "CTAs of a cluster along m x n",
    "swizzle": "cluster tiles that advance together",
    "multicast": "how a cluster loads a shared tile",
    "reverse_k": "every other tile from the end of k",
    "part_order": "order of split-K parts",
    "peek": "probe the next stage's barrier early",
    "l2_promotion": "least fetch of the L2, bytes",
    "prefetch": "stages prefetched into the L2",
    "skew": "stages between the starts of two consumers",
    "rotate_k": "stages between the starts of two clusters",
}
"""Words of columns whose declaration is too long for an axis."""

LONGEST = 48
"""Letters of the words on an axis, at most."""


def label(name: str, width: int = 80) -> str:
    """Return the label of a parameter's axis, in lines of ``width`` letters: its meaning in a few words, and its name.

    Example:
        >>> label("stages")
        'slots of the shared-memory ring (stages)'
    """
    words = WORDS.get(name, "")
    if not words and name in PARAMETERS:
        words = re.split("[;:,(]", PARAMETERS[name].doc)[0].strip()
    return fill(f"{words} ({name})" if 0 < len(words) <= LONGEST else name, width)


def value_label(value: Any) -> str:
    """Return a value of a parameter as a sweep file writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def speedup_norm(speedups: Iterable[float]) -> FuncNorm:
    """Return the scale of colours of speedups, logarithmic and symmetric about 1: the narrowest of 0.84 to 1.19, 0.71
    to 1.41 and 0.5 to 2 that holds all; a speedup beyond the last has the colour of its end."""
    most = max((abs(np.log2(value)) for value in speedups if value > 0), default=0.0)
    octaves = 0.25 if most <= 0.25 else 0.5 if most <= 0.5 else 1.0
    # bounded below for the 0 that matplotlib tries
    return FuncNorm((lambda ratios: np.log2(np.maximum(ratios, 2.0**-20)), np.exp2), vmin=2**-octaves, vmax=2**octaves)


def speedup_bar(figure: Figure, norm: FuncNorm, axes: Any, speedups: Iterable[float]) -> None:
    """Draw the colour bar of a scale, with ticks on both sides of 1, and arrows where speedups lie beyond its ends."""
    positive = [value for value in speedups if value > 0]
    low, high = (float(norm.inverse(end)) for end in (0.0, 1.0))
    beyond = (min(positive, default=1.0) < low, max(positive, default=1.0) > high)
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
    figure.colorbar(
        ScalarMappable(norm, SPEEDUPS),
        ax=axes,
        label="speedup over cuBLAS",
        ticks=norm.inverse(np.linspace(0, 1, 9 if high > 1.5 else 5)),
        format="%.2f",
        extend=extend,
        aspect=30,
        fraction=0.06,
    )


def ink_on(norm: FuncNorm, speedup: float) -> str:
    """Return the colour of text on the cell of a speedup."""
    red, green, blue, _ = matplotlib.colormaps[SPEEDUPS](norm(speedup))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def save(figure: Figure, path: Path, title: str) -> None:
    """Write a figure drawn under :data:`STYLE`, its title wrapped to its width, and release it; equal figures give
    equal bytes. The suffix says in which form: ``.svg``, or ``.png`` of :data:`DPI`."""
    figure.suptitle("\n".join(wrap(title, width=int(13 * figure.get_figwidth()))))
    form, drawn = path.suffix.removeprefix("."), BytesIO()
    undated: dict[str, None] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    try:
        figure.savefig(drawn, format=form, dpi=DPI, metadata=undated)
    finally:
        plt.close(figure)
    image = drawn.getvalue()
    write_whole(path, re.sub(rb' transform="rotate\(-0 [^"]*"', b"", image) if form == "svg" else image)
