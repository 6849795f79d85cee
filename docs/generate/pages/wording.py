"""Ratios and figures as the pages word them."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import pandas as pd

from hopper_gemm.model.config import GemmConfig

WIDTH = 120
"""Columns of a page's text."""


def wrapped(text: str) -> str:
    """A paragraph in the lines of a page."""
    return fill(text, WIDTH, break_on_hyphens=False)


def percent(ratio: float, digits: int = 1) -> str:
    """A ratio as a gain."""
    return f"{100 * (ratio - 1):+.{digits}f} %"


def reach(ratios: pd.Series) -> str:
    """Ratios as gains: from the least to the greatest, one where they read alike."""
    least, most = percent(ratios.min()), percent(ratios.max())
    return least if least == most else f"{least} to {most}"


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def spread(ratios: pd.Series) -> str:
    """Ratios as gains: their median and how far they reach."""
    return f"{percent(ratios.median())} at the median ({reach(ratios)})"


def between(rates: pd.Series) -> str:
    """Speedups from the least to the greatest."""
    return f"{rates.min():.2f}x to {rates.max():.2f}x"


def cube(problem: str) -> str:
    """A cube by its side, any other problem by its sizes."""
    sides = problem.split("x")
    return f"{sides[0]}^3" if len(set(sides)) == 1 else problem


def short_label(config: GemmConfig) -> str:
    """Return tile, cluster, raster, and the techniques of a config: enough to tell the winners of problems apart.

    Example:
        >>> short_label(GemmConfig(tile_m=256, tile_n=200, cluster_m=2, raster="n", swizzle=4, swap_ab=True, pace=8))
        '256x200 2x1 n4 swap_ab pace 8'
    """
    used = {
        "pingpong": config.schedule == "pingpong",
        "stream_k": config.stream_k,
        f"split_k {config.split_k}": config.split_k > 1,
        "workspace": config.split_k > 1 and config.reduction == "workspace",
        **{name: getattr(config, name) for name in ("swap_ab", "pdl", "reverse_k", "evict_c")},
        "alternate": config.multicast == "alternate",
        f"pace {config.pace}": config.pace > 0,
    }
    start = f"{config.tile_m}x{config.tile_n} {config.cluster_m}x{config.cluster_n} {config.raster}{config.swizzle}"
    return " ".join([start, *(name for name, holds in used.items() if holds)])
