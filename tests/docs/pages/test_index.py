"""The index lists every study, says what each lacks, and is current."""

from __future__ import annotations

import pytest

from docs.generate.pages.index import INDEX, index
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import missing, read_study
from tests.tune.tables.making import row, write_study

FINAL = {"spec": {"space": {}, "final": {"best": 2}}}


@pytest.mark.results
@pytest.mark.parametrize("name", ["h200", "archive/h200", "archive/h100"])
def test_the_recorded_index_is_what_the_results_give(name):
    """``make pages`` writes it; a study that was added, changed or deleted since makes this fail."""
    root = results_root() / name
    assert (root / INDEX).read_text() == index(root)


@pytest.mark.parametrize(("finals", "lacking"), [(0, "2 of 2 finals"), (1, "1 of 2 finals"), (2, "rows")])
def test_a_study_that_never_ended_lacks_the_finals_that_were_asked_for(tmp_path, finals, lacking):
    rows = [
        row(tile_m=m, stage=stage) for stage, count in (("sweep", 3), ("final", finals)) for m in (64, 128, 256)[:count]
    ]
    assert missing(read_study(write_study(tmp_path, *rows, **FINAL))) == lacking


def test_finals_that_no_config_could_have_are_not_missed(tmp_path):
    rows = [row(), row("illegal", "registers: too many", tile_m=320), row(stage="final")]
    assert missing(read_study(write_study(tmp_path, *rows, **FINAL))) == "rows"


def test_a_study_that_never_ended_lacks_rows(tmp_path):
    assert missing(read_study(write_study(tmp_path / "open", row()))) == "rows"
    assert missing(read_study(write_study(tmp_path / "ended", row(), ended=True))) == ""


def test_a_line_has_question_best_remark_and_scope(tmp_path):
    root = tmp_path / "results/h200"
    write_study(root / "wide", row(speedup=1.2, speedup_low=1.1, speedup_high=1.3), question="How | wide?")
    write_study(root / "suite", row(stage="compare", speedup=1.5), ended=True)
    write_study(root / "group/deep", row(), ended=True)
    (root / "notes.toml").write_text('[wide]\nmissing = "a point"\nremark = "the L2 was warm"\n["group/deep"]\n')
    wide, deep, suite = [line for line in index(root).splitlines() if line.startswith("| [")]
    assert "| How \\| wide? | 1.200x [1.100, 1.300] in the sweep, 64x64x64 burst: 256x128x64 |" in wide
    assert "| unfinished: a point missing; the L2 was warm | burst | isolated | 2026-11-23 |" in wide
    assert deep.startswith("| [group/deep](group/deep) |")
    assert suite.startswith("| [suite](suite) | Which is the fastest? | 1.500x [1.000, 2.250] cublas | finished |")


def test_the_index_of_an_archive_names_a_study_without_its_date(tmp_path):
    root = tmp_path / "results/archive/h200"
    write_study(root / "2026-11-21-wide", row(), ended=True)
    (root / "notes.toml").write_text('[wide]\nremark = "the L2 was warm"\n')
    (line,) = [line for line in index(root).splitlines() if line.startswith("| [")]
    assert line.startswith("| [wide](2026-11-21-wide) |")
    assert "| finished; the L2 was warm |" in line
