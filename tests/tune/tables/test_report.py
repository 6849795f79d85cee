"""A study's page says where its figures come from, and never calls a shared first place a winner's."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from functools import reduce
from operator import getitem

import pytest

from docs.generate.pages.index import index
from hopper_gemm.model.config import LEGEND
from hopper_gemm.tune.study.files import write_sealed
from hopper_gemm.tune.study.provenance import checked
from hopper_gemm.tune.study.reader import Study, missing, read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.tables.comparison import compare_page
from hopper_gemm.tune.tables.conclusion import conclude
from hopper_gemm.tune.tables.pages.publish import comparison_title
from hopper_gemm.tune.tables.pages.report import report
from hopper_gemm.tune.tables.t4 import metadata, results
from tests.tune.tables.making import ABOUT, row, write_study


def page(tmp_path, *rows, **about):
    return report(read_study(write_study(tmp_path / "s", *rows, **about)))


def test_a_page_names_regime_context_boards_and_what_a_config_s_label_means(tmp_path):
    text = page(tmp_path, row(), row(peek=False, board="GPU-2"))
    assert "Regime: burst; context: isolated; board: GPU-1, GPU-2." in text
    assert "Measured on an NVIDIA H200, driver 580, 2026-11-23 08:00 UTC." in text
    assert "## 64 x 64 x 64 bf16, burst, isolated" in text
    assert f"Configs: {LEGEND}." in text


def test_a_replayed_study_says_that_nothing_was_measured(tmp_path):
    text = page(tmp_path, row(), source="replayed", replayed_from="results/h200/s")
    assert "Replayed from recorded measurements of an NVIDIA H200 (results/h200/s); nothing was measured here." in text


def test_a_best_that_cannot_be_told_from_others_is_said_not_to_be_alone(tmp_path):
    rows = [
        row(speedup=speed, speedup_low=speed - 0.0004, speedup_high=speed + 0.0004, peek=peek)
        for speed, peek in ((1.0, True), (0.999, False), (0.9, "producer"))
    ]
    assert "1 of 2 others cannot be told from it." in page(tmp_path, *rows, noise={"64x64x64 burst isolated": 0.002})


def test_configs_that_share_the_first_place_are_listed(tmp_path):
    text = page(tmp_path, row(), even={"64x64x64 burst isolated": ["one", "two"]})
    assert "No unique best: 2 finals are even within the noise: `one`; `two`." in text


def test_coverage_counts_what_ran_was_refused_and_was_not_tried(tmp_path):
    rows = [row(), row("illegal", "registers: too many", tile_m=320, k_depth=4)]
    text = page(tmp_path, *rows, skipped={"multicast": 3, "split": 2}, points=12)
    assert "1 ok, 1 illegal; 12 points, 7 of them legal, 5 refused (3 by multicast, 2 by split), 5 not tried." in text


def test_a_page_is_written_without_what_provenance_need_not_say(tmp_path):
    """Name, source, date, GPU and spec are needed; table and seed are not."""
    folder = write_study(tmp_path, row())
    about = {name: ABOUT[name] for name in ("schema_version", "study", "source")}
    about |= {"created": "", "gpu": {"name": "NVIDIA H200", "driver": ""}, "spec": {"space": {}}}
    write_sealed(folder / "provenance.json", about)
    text = report(read_study(folder))
    assert "**Measured on an NVIDIA H200.**" in text
    assert "| 256 | 1.00x (4) |" in text


def test_a_tag_in_provenance_or_in_a_row_stands_as_text_on_every_page(tmp_path):
    tag = "<img src=x>"
    about = {"question": f"Is n < 64? {tag}", "gpu": {"name": tag, "driver": tag}, "skipped": {tag: 1}}
    rows = [
        row(),
        row("crash", tag, tile_m=64),
        row(stage="compare", choice=tag, how="other context", tuned_on=tag),
        row("crash", tag, stage="compare", sizes=(64, 64, 128)),
    ]
    study = read_study(write_study(tmp_path / "results/h200/s", *rows, **about))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/reader.py").write_text("")  # an index with readers shows the questions
    for text in (report(study), compare_page(study), index(tmp_path / "results/h200")):
        assert tag not in text
        assert "Is n < 64? &lt;img src=x>" in text


def test_facets_that_provenance_notes_stand_before_the_rows_of_the_table(tmp_path):
    """Else the fastest of all their values would stand in a cell, and the others nowhere."""
    rows = [
        row(tile_m=m, spills=s, peek=p, speedup=v)
        for m, s, p, v in ((64, False, True, 0.5), (64, True, "producer", 0.25), (128, True, True, 0.75))
    ]
    text = page(tmp_path, *rows, facet_cols="spills")
    assert "| spills, M tile \\ K depth | 4 |" in text
    lines = [line for line in text.splitlines() if line.startswith(("| true, ", "| false, "))]
    assert [line.split(" (")[0] for line in lines] == [
        "| false, 64 | 0.50x",
        "| true, 64 | 0.25x",
        "| true, 128 | 0.75x",
    ]
    text = page(tmp_path, *rows, facet_rows="peek", facet_cols="spills")
    assert "| true, true, 128 | 0.75x" in text
    assert "| producer, true, 64 | 0.25x" in text


PLACE = "64x64x64 burst isolated"
NOTED = {
    **ABOUT,
    "replayed_from": "s",
    "commit": "c",
    "facet_rows": "stages",
    "facet_cols": "peek",
    "skipped": {"stages": 1},
    "boards": ["GPU-1"],
    "versions": {"torch": "2.13"},
    "missing": {"triton": "not installed"},
    "seconds": 3.0,
    "even": {PLACE: ["a", "b"]},
    "noise": {PLACE: 0.01},
    "protocols": [{"regime": "burst"}],
    "points": 3,
    "importance": {PLACE: {"evaluator": "fanova", "parameters": {"tile_m": 0.5}}},
    "spec": {**ABOUT["spec"], "data": ["normal"], "final": {"best": 1}},
}
ENDED = {"finished": {"rows": 3, "digest": "", "places": {PLACE: 3}}}
RUNGS = [{"name": "first", "adds": "all", "from": None, "config": {"tile_m": 64}}]


def places_of(value, place=()):
    """The places of all values inside a value, as names and numbers."""
    for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*place, name)
        yield from places_of(value[name], (*place, name))


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [3], {"x": 3}], ids=repr)
@pytest.mark.parametrize("noted", [NOTED, {**NOTED, **ENDED, "rungs": RUNGS}], ids=["sweep", "ladder"])
def test_whatever_stands_in_provenance_readers_take_it_or_it_is_refused(tmp_path, monkeypatch, noted, value):
    """The schema knows all that pages, verdict, index and export take from the file: none of them meets a value that
    it cannot use."""
    rows = (row(tile_m=64), row(tile_m=128), row(stage="final"), row(stage="compare"))
    readers = (report, compare_page, missing, comparison_title, metadata, lambda study: results(study, rows[:2]))
    monkeypatch.setattr("hopper_gemm.tune.tables.conclusion.read_study", lambda study: study)
    for read in (*readers, conclude):
        read(Study(tmp_path, rows, checked(deepcopy(noted), tmp_path)))
    for *parents, name in places_of(noted):
        about = deepcopy(noted)
        reduce(getitem, parents, about)[name] = deepcopy(value)
        with suppress(ResultsError):
            study = Study(tmp_path, rows, checked(about, tmp_path))
            for read in (*readers, conclude):
                read(study)
