"""A chapter shows what its rungs change, beside the last rung before, and a picture where one is drawn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hopper_gemm.lab.pages.chapters import CHAPTERS, diff, rates
from tests.conftest import ROOT

pytestmark = pytest.mark.results


def test_a_hunk_names_the_function_that_it_begins_within():
    """A hunk that begins between functions names none."""
    within = {word: name for name, word in _added(diff(8))}
    assert within["fill.end(filling, walk.ending, True)"] == "_fill"
    assert within["passed = ring.peek_full(state.index, state.parity)"] == "multiply_tile"
    assert within['space = "cluster"'] == ""


def _added(text):
    """Added lines, each with the name at the head of its hunk."""
    name = ""
    for line in text.splitlines():
        name = line.strip("@ ") if line.startswith("@@") else name
        if line.startswith("+"):
            yield name, line[1:].strip()


def test_the_table_of_a_chapter_begins_with_the_last_rung_of_the_one_before():
    for number, (before, own) in enumerate(pairwise(CHAPTERS), 2):
        shown = [line.split(" | ")[0].strip("| ") for line in rates(number).splitlines()[2:]]
        assert shown == [before.rungs[-1], *own.rungs]


def test_a_page_shows_the_picture_that_is_drawn_of_its_chapter():
    for chapter in CHAPTERS:
        drawn = (ROOT / f"docs/learn/{chapter.page}.svg").is_file()
        assert drawn == (f"({chapter.page}.svg)" in (ROOT / f"docs/learn/{chapter.page}.md").read_text())
        assert drawn or not chapter.windows
