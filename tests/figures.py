"""Figures in prose: ratios, shares, rates, times, clocks and counts of what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable

UNITS = r"TFLOP/s|pJ/FLOP|[kKGM]i?B|bytes a clock|TB/s|[MG]Hz|times|points|clocks|cycles|us|ms|s|W"
COUNTED = "problems|points|configs|kernels|trials|boards|pairs|cells|checks|studies|comparisons|samplers|seeds"
WORDS = (
    "four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|"
    "twenty|thirty|forty|fifty|hundred|thousand"
)
LINKING = "have|has|had|are|is|was|were|at|on|or|in|of|a|while|the|for|to|beside|by|and|with|than|from|that|whose|as|an"
_NUMBER = r"(?<![\w./^-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?"

FIGURE = re.compile(
    rf"{_NUMBER}(?:x\b(?!\s?\d)|\s?%|\s(?:{UNITS})\b(?!\s?/))"
    rf"|(?<![\w./^-])\d\.\d{{3}}(?![\w.]\d|\w)"
    rf"|(?:{_NUMBER}|\b(?:{WORDS}))(?:\s(?!(?:{LINKING})\b)[a-z-]+)?\s(?:{COUNTED})\b",
    re.IGNORECASE,
)
"""A ratio, by its x or its three decimals; a share, a rate, an energy, an amount, a time, clocks, or a count in digits
or words."""

NOT_PROSE = re.compile(r"<!-- [a-z0-9-]+: make pages -->.*?<!-- end -->|```.*?```|`[^`\n]*`", re.DOTALL)
"""Generated parts and code."""


def figures(text: str) -> set[str]:
    """The figures of a Markdown text outside generated parts and code, each on one line."""
    return {" ".join(match.group().split()) for match in FIGURE.finditer(NOT_PROSE.sub("", text))}


NUMBERS = {word: number for number, word in enumerate(WORDS.split("|"), 4)} | {
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "hundred": 100,
    "thousand": 1000,
}


def value_of(figure: str) -> tuple[float, int]:
    """The number of a figure without its sign, and how many decimals it is written with."""
    word = figure.split()[0].lower()
    if word in NUMBERS:
        return float(NUMBERS[word]), 0
    match = re.match(r"[-+]?(\d+(?:,\d{3})*(?:\.(\d+))?)", word)
    assert match is not None
    return float(match[1].replace(",", "")), len(match[2] or "")


def stands_in(figure: str, numbers: Iterable[float]) -> bool:
    """Return True if one of the numbers is the figure, rounded as that is written. A share in percent, or a change of
    one, may stand there as a ratio."""
    value, digits = value_of(figure)
    among = list(numbers)
    if "%" in figure or "points" in figure:
        among += [each for one in among if one < 10 for each in (100 * one, 100 * abs(one - 1))]
    return any(round(one, digits) == value for one in among)
