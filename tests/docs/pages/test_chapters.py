"""A chapter shows what its rungs change, beside the last rung before, and a picture where one is drawn."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from docs.generate.pages import chapters
from docs.generate.pages.chapters import CHAPTERS, COLUMNS, WIDE, burst, diff, kernel, measured, overview, rates
from docs.generate.todays_code import CURRENT, EARLIER, UNKNOWN
from hopper_gemm.model import hopper
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


def test_the_overview_shows_the_ladder_of_each_gpu():
    (last,) = (one for one in overview().splitlines() if one.startswith("| [8. "))
    on_h200 = burst("256x192")
    assert last.endswith(f" | {on_h200.tflops:.0f} | {on_h200.speedup:.3f}x |")
    page = (ROOT / "results/h100/ladder-on-h100/table.md").read_text()
    tflops, speedup = re.search(r"\| 256x192 \| .* \| (\d+) \((\d\.\d+x), ", page).groups()
    assert f" | {tflops} | {speedup} | {on_h200.tflops:.0f} | " in last


def test_the_overview_tells_of_the_last_good_row_of_the_printed_code_of_each_gpu(tmp_path, monkeypatch):
    about = {"gpu": "NVIDIA H200", "created": "2026-11-25T00:00:00+00:00"}
    serial = burst("serial").speedup
    rows = [
        {"chapter": 1, "status": "ok", "speedup": 0.5 * serial, **about},
        {"chapter": 1, "status": "ok", "speedup": 1.25 * serial, **about},
        {"chapter": 1, "status": "wrong_result", **about},
        {"chapter": 1, "status": "ok", "speedup": 9.0, **about, "gpu": "NVIDIA H100 80GB HBM3"},
    ]
    monkeypatch.setattr(chapters, "PRINTED", tmp_path / "chapters.jsonl")
    assert "make chapters" not in overview()
    (tmp_path / "chapters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = " ".join(overview().split())
    assert "on an NVIDIA H200 (2026-11-25) and an NVIDIA H100 (2026-11-25)" in told
    assert re.search(r"are 1\.250 to 1[0-9]\.\d+ times those of the kernels", told)


@pytest.mark.parametrize(
    ("standings", "told"),
    [
        ([EARLIER], "all 8 listings compile to other machine code than was timed then, and were not timed again."),
        ([CURRENT, EARLIER], "4 of the 8 listings compile to other machine code"),
        ([CURRENT], "Today they compile to the same machine code."),
        ([CURRENT, UNKNOWN], "was not compared with what they compile to today."),
    ],
)
def test_the_overview_says_whether_the_listings_of_today_are_those_that_were_timed(standings, told, monkeypatch):
    turns = iter(standings * 8)
    monkeypatch.setattr(chapters, "todays_code", lambda: SimpleNamespace(standing=lambda one: next(turns)))
    assert told in " ".join(overview().split())


def test_the_listings_that_were_timed_are_compared_with_their_rungs_of_today():
    assert [one.config for one in measured()] == [kernel(chapter.rungs[-1]) for chapter in CHAPTERS]
    assert all(one.code and one.dsl for one in measured())


def test_a_gap_shrinks_with_a_third_stage_to_two_fifths_in_the_windows_and_to_a_third_over_the_tile():
    """Chapter 2 states both ratios."""
    windows = CHAPTERS[1].windows
    drawn, whole = ([gap(window, last) for window in windows] for last in (None, 48))
    assert drawn[1] / drawn[0] == pytest.approx(2 / 5, abs=0.05)
    assert whole[1] / whole[0] == pytest.approx(1 / 3, abs=0.05)


def gap(window, last):
    """Mean clocks between the math of stages, of those that a window shows or from 16 to another."""
    math = window.found[1].query("what == 'math' and stage >= 16").sort_values("start")
    shown = math["start"] < math["start"].min() + WIDE if last is None else math["stage"] <= last
    return (math["start"].shift(-1) - math["end"])[shown][:-1].mean()


def test_two_stages_lead_up_to_chapter_5():
    """Chapters 3 and 4 state this and the speed of two stages."""
    rungs = [rung for chapter in CHAPTERS[:4] for rung in chapter.rungs]
    assert max(rungs, key=lambda rung: burst(rung).tflops) == "two stages"
    assert min(burst(rung).tflops for rung in CHAPTERS[4].rungs) > burst("two stages").tflops
    for number in (3, 4):
        page = (ROOT / f"docs/learn/{CHAPTERS[number - 1].page}.md").read_text()
        assert f"{burst('two stages').speedup:.3f}x" in page.replace(rates(number), "")


def test_six_ctas_of_the_first_chapter_fit_by_shared_memory_with_what_the_system_takes_of_each():
    each = kernel("serial").smem_bytes + hopper.SMEM_SYSTEM_BYTES
    assert hopper.SMEM_BYTES_PER_SM // each == 6
    assert f"{each:,} together" in (ROOT / "docs/learn/1-serial.md").read_text()


def test_tiles_move_back_up_to_chapter_4():
    moves = [kernel(chapter.rungs[-1]).may_move_back for chapter in CHAPTERS]
    assert moves == [True] * 4 + [False] * 4


def test_a_listing_is_as_wide_as_a_page_shows():
    assert max(len(line) for number in range(1, 9) for line in diff(number).splitlines()) <= COLUMNS + 1


def test_a_page_shows_the_picture_that_is_drawn_of_its_chapter():
    for chapter in CHAPTERS:
        drawn = (ROOT / f"docs/learn/{chapter.page}.svg").is_file()
        assert drawn == (f"({chapter.page}.svg)" in (ROOT / f"docs/learn/{chapter.page}.md").read_text())
        assert drawn or not chapter.windows
