"""A chapter shows what its rungs change, beside the last rung before, and a picture where one is drawn."""

from __future__ import annotations

import json

import pytest

from docs.generate.pages import chapters
from docs.generate.pages.chapters import CHAPTERS, COLUMNS, diff, overview, rates
from tests.conftest import ROOT

pytestmark = pytest.mark.results


def test_a_hunk_names_the_function_that_it_begins_within():
    """A hunk that begins between functions names none."""
    within = {word: name for name, word in _added(diff(8))}
    assert within["fill.end(filling, walk.ending, True)"] == "_fill"
    assert within["passed = ring.peek_full(state.index, state.parity)"] == "multiply_stage"
    assert within['space = "cluster"'] == ""


def _added(text):
    """Added lines, each with the name at the head of its hunk."""
    name = ""
    for line in text.splitlines():
        name = line.strip("@ ") if line.startswith("@@") else name
        if line.startswith("+"):
            yield name, line[1:].strip()


def test_the_table_grows_from_chapter_to_chapter_by_the_last_rung_of_each():
    for number, own in enumerate(CHAPTERS, 1):
        shown = [line.split(" | ")[0].strip("| ") for line in rates(number).splitlines()[2:]]
        assert shown == [*(before.rungs[-1] for before in CHAPTERS[: number - 1]), *own.rungs]


def test_the_overview_names_each_chapter_as_its_page_does():
    lines = overview().splitlines()[2:]
    for number, chapter in enumerate(CHAPTERS, 1):
        assert f"# {number}. {chapter.title}\n" in (ROOT / f"docs/learn/{chapter.page}.md").read_text()
        assert lines[number - 1].startswith(f"| [{number}. {chapter.title}]({chapter.page}.md) | {chapter.idea} | ")


def test_the_overview_shows_the_last_good_row_of_the_printed_code_where_there_is_one(tmp_path, monkeypatch):
    about = {"gpu": "NVIDIA H200", "created": "2026-11-25T00:00:00+00:00"}
    rows = [
        {"chapter": 1, "status": "ok", "tflops": 400.0, "speedup": 0.5, **about},
        {"chapter": 1, "status": "ok", "tflops": 440.0, "speedup": 0.55, **about},
        {"chapter": 1, "status": "wrong_result", **about},
    ]
    monkeypatch.setattr(chapters, "PRINTED", tmp_path / "chapters.jsonl")
    assert "as printed" not in overview()
    (tmp_path / "chapters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = overview().splitlines()
    assert lines[2].endswith(" | 433 | 0.549x | 440 | 0.550x |")
    assert lines[3].endswith(" | 495 | 0.628x |  |  |")
    assert "on an NVIDIA H200 (2026-11-25)" in overview()


def test_a_listing_is_as_wide_as_a_page_shows():
    assert max(len(line) for number in range(1, 9) for line in diff(number).splitlines()) <= COLUMNS + 1


def test_a_page_shows_the_picture_that_is_drawn_of_its_chapter():
    for chapter in CHAPTERS:
        drawn = (ROOT / f"docs/learn/{chapter.page}.svg").is_file()
        assert drawn == (f"({chapter.page}.svg)" in (ROOT / f"docs/learn/{chapter.page}.md").read_text())
        assert drawn or not chapter.windows
