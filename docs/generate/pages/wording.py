"""Ratios and figures as the pages word them."""

from __future__ import annotations

from textwrap import fill

import pandas as pd

WIDTH = 120
"""Columns of a page's text."""


def wrapped(text: str) -> str:
    """A paragraph in the lines of a page."""
    return fill(text, WIDTH, break_on_hyphens=False)


def percent(ratio: float, digits: int = 1) -> str:
    """A ratio as a gain."""
    return f"{100 * (ratio - 1):+.{digits}f} %"


def reach(ratios: pd.Series) -> str:
    """Ratios as gains: from the least to the greatest."""
    return f"{percent(ratios.min())} to {percent(ratios.max())}"


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
