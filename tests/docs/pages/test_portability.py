"""The speed that a tuned config keeps on the other GPU is computed from rows of different boards."""

from __future__ import annotations

import pytest

from docs.generate.pages import portability
from docs.generate.pages.comparisons import ON_H100S
from docs.generate.pages.sources import recorded

SIDES = portability.FROM_H200S, ON_H100S


@pytest.mark.results
def test_no_board_measured_both_sides_of_a_share():
    """Else the share's interval, made of both sides' as if they were independent, would be wrong."""
    sides = [
        {row.board for name in names for row in recorded(name).rows} for names in (portability.FROM_H200S, ON_H100S)
    ]
    assert not sides[0] & sides[1]


@pytest.mark.results
def test_an_entry_keeps_no_more_than_the_best_that_was_measured_beside_it():
    """Back on an H200 the share is of the best of the same study, and an entry of both GPUs is no evidence there."""
    back = portability.kept_back()
    assert back
    assert max(back.values()) <= 1
    rows = [line for line in portability.entries().splitlines() if line.startswith("| ")][2:]
    there, here = (portability.suite_configs(names[0]) for names in SIDES)
    assert sum("| the same |" in row for row in rows) == sum(there[problem] == here[problem] for problem in there)
