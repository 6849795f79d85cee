"""The shorthand of configs in what a command prints: explained once, or with every parameter by its name."""

from __future__ import annotations

import re
from collections.abc import Callable

EXPLANATION = (
    "tile m x n x k, stages, stagger, consumers and the side they split, schedule, cluster m x n, raster and swizzle, "
    "epilogue columns x buffers, peek, what differs from its default; --long names each parameter"
)
"""One line for the first config of an output."""

LABEL = re.compile(
    r"\b(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<k_depth>\d+) s(?P<stages>\d+) stagger(?P<stagger>\d+) "
    r"(?P<consumers>\d+)(?P<split>[mn]) (?P<schedule>coop|ping|mult) (?P<cluster_m>\d+)x(?P<cluster_n>\d+) "
    r"(?P<raster>[mn])(?P<swizzle>\d+)(?P<serpentine>serp)? epi(?P<epi_n>\d+)x(?P<epi_buffers>\d+)"
    r"(?: (?P<peek>peek(?:-\w+)?))?"
)
"""Matches the label of a config that ``str`` returns, without the parameters that differ from their defaults."""

SCHEDULES = {"coop": "cooperative", "ping": "pingpong", "mult": "multistage"}


def in_words(text: str) -> str:
    """Return a text in which every config has ``name=value`` of each parameter, as ``--set`` takes them.

    Example:
        >>> in_words("128x256x64 s3 stagger0 2m coop 2x1 m16serp epi64x4 peek pdl=True, 1.02x")[:57]
        'tile_m=128 tile_n=256 k_depth=4 stages=3 stagger=0 consum'
    """
    return LABEL.sub(_named, text)


def wording(long: bool) -> Callable[[str], str]:
    """Return the function that a text for a person passes: :func:`in_words` if ``long``, else the identity."""
    return in_words if long else str


def _named(label: re.Match[str]) -> str:
    values: dict[str, object] = {**label.groupdict()}
    values["k_depth"] = int(label["k_depth"]) // 16
    values["schedule"] = SCHEDULES[label["schedule"]]
    values["serpentine"] = label["serpentine"] is not None
    values["peek"] = False if label["peek"] is None else label["peek"].partition("-")[2] or True
    return " ".join(f"{name}={value}" for name, value in values.items())
