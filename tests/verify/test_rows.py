"""Rows are kept as they come, survive a kill, and a damaged file is named by its line."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from hopper_gemm.tune.study.provenance import MOMENT
from tests.conftest import ROOT
from tests.each import each
from tests.verify.rows import (
    FILE,
    FIXED,
    TOTAL,
    Rows,
    RowsError,
    VerifyRow,
    failed_before,
    judged,
    read_rows,
    verifier_digest,
    write_total,
)

ONE, OTHER = (
    VerifyRow("pair", {"seed": 1}, "ok", bits="ab"),
    VerifyRow("pair", {"seed": 2}, "timeout", "no answer", kernel="k"),
)


def test_rows_are_read_back_and_added_to(tmp_path):
    rows = Rows(tmp_path / "new")
    rows.add(ONE)
    again = Rows(tmp_path / "new")
    assert again.rows == [ONE]
    again.add(OTHER)
    assert read_rows(tmp_path / "new") == [ONE, OTHER]


@pytest.mark.parametrize("left", [-20, None], ids=["torn", "whole"])
def test_a_row_that_a_kill_left_uncounted_is_dropped_and_the_file_goes_on_whole(tmp_path, left):
    rows = Rows(tmp_path)
    rows.add(ONE)
    total = (tmp_path / TOTAL).read_bytes()
    rows.add(OTHER)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:left])
    (tmp_path / TOTAL).write_bytes(total)
    assert read_rows(tmp_path) == [ONE]
    again = Rows(tmp_path)
    again.add(rows.rows[1])
    assert (tmp_path / FILE).read_bytes() == whole
    assert read_rows(tmp_path) == [ONE, OTHER]


LINES = {
    "{": "Expecting property name",
    "[]": "it is no row of this version",
    '{"kind": "pair"}': "it is no row of this version",
    '{"kind": "pair", "subject": {}, "status": "ok", "n": 2}': "it is no row of this version",
    '{"kind": 1, "subject": {}, "status": "ok"}': "kind has a value of another kind: 1",
    '{"kind": "pair", "subject": null, "status": "ok"}': "subject has a value of another kind: None",
    '{"kind": "pair", "subject": {}, "status": "wrong_resu1t"}': "status must be one of ok, skipped, wrong_result",
    '{"kind": "pair", "subject": {}, "status": null}': "status must be one of ok",
    '{"kind": "pair", "subject": {}, "status": "ok", "seconds": NaN}': "numbers must be finite but got NaN",
    '{"kind": "pair", "subject": {}, "status": "crash", "reason": "\\u001b[2J"}': "reason has a value of another kind",
    '{"kind": "pair", "subject": {}, "status": "crash", "minimal": 3}': "minimal has a value of another kind: 3",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_row_is_named_and_nothing_is_changed(tmp_path, line):
    Rows(tmp_path).add(ONE)
    with (tmp_path / FILE).open("a") as file:
        file.write(line + "\n")
    before = (tmp_path / FILE).read_bytes()
    write_total(tmp_path, before.split(b"\n")[:-1])
    with pytest.raises(RowsError, match=r"rows.jsonl, line 2: ") as caught:
        Rows(tmp_path)
    assert LINES[line] in str(caught.value)
    assert (tmp_path / FILE).read_bytes() == before


def without(name):
    return lambda folder: (folder / name).unlink()


def lines_of(change):
    def damage(folder):
        lines = (folder / FILE).read_bytes().splitlines(keepends=True)
        (folder / FILE).write_bytes(b"".join(change(lines)))

    return damage


DAMAGES = {
    "cut": lines_of(lambda lines: lines[:-1]),
    "order": lines_of(lambda lines: lines[::-1]),
    "digit": lines_of(lambda lines: [lines[0].replace(b"1", b"2", 1), *lines[1:]]),
    "no rows": without(FILE),
    "no total": without(TOTAL),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_other_rows_than_were_written_are_refused(tmp_path, damage):
    """A failure that is cut off, or a digest that is another, is not passed over."""
    rows = Rows(tmp_path)
    for row in (ONE, OTHER):
        rows.add(row)
    DAMAGES[damage](tmp_path)
    with pytest.raises(RowsError, match="restore"):
        read_rows(tmp_path)


def test_a_row_is_on_the_disk_before_it_is_counted(tmp_path, steps):
    """A machine that loses its power has every row that its count says."""
    rows = Rows(tmp_path)
    steps.clear()
    rows.add(ONE)
    assert steps == [(tmp_path / FILE).stat().st_size, (tmp_path / TOTAL).stat().st_size, TOTAL, "folder"]


def test_a_row_has_the_date_of_its_check(tmp_path):
    Rows(tmp_path).add(ONE)
    (row,) = read_rows(tmp_path)
    assert datetime.strptime(row.date, MOMENT)


@each("folder", sorted((ROOT / "results/verification").glob("**/rows.jsonl")), ids=lambda path: path.parent.name)
def test_recorded_rows_are_those_that_were_written(folder):
    assert read_rows(folder.parent)


def test_rows_of_another_kernel_or_verifier_are_of_something_else_to_verify():
    assert ONE.key != VerifyRow("pair", {"seed": 1}, "ok", kernel="other").key
    assert ONE.key != VerifyRow("pair", {"seed": 1}, "ok", verifier="other").key
    assert ONE.key == VerifyRow("pair", {"seed": 1}, "wrong_result", board="b", seconds=3.0).key


def test_a_thing_is_judged_on_all_its_runs_and_one_failure_outweighs_what_went_right():
    failed = replace(OTHER, board="GPU-a")
    (one,) = judged([replace(failed, status="ok"), failed, replace(failed, status="ok", board="GPU-b")]).values()
    assert (one.failed, one.row, one.tally) == (True, failed, "failed 1 of 3 runs")


def test_a_failure_written_again_with_its_smallest_pair_is_one_run():
    (one,) = judged([OTHER, replace(OTHER, minimal={"seed": 3})]).values()
    assert (one.tally, one.row.minimal) == ("failed 1 of 1 runs", {"seed": 3})
    (alone,) = judged([replace(OTHER, minimal={"seed": 3})]).values()
    assert alone.tally == "failed 1 of 1 runs"


def test_after_a_note_that_names_a_fix_a_thing_starts_afresh_and_is_known_to_have_failed():
    note = replace(OTHER, status=FIXED, reason="commit 123")
    (noted,) = judged([OTHER, note]).values()
    assert noted.rows == ()
    (again,) = judged([OTHER, note, replace(OTHER, status="ok")]).values()
    assert (again.failed, again.tally) == (False, "failed 0 of 1 runs")
    assert failed_before([OTHER, note], {OTHER.sources}) == {OTHER.thing: OTHER}


def test_failed_before_is_what_failed_with_other_sources():
    assert failed_before([ONE, OTHER], {("new", "")}) == {OTHER.thing: OTHER}
    assert failed_before([ONE, OTHER], {OTHER.sources}) == {}


def test_the_verifier_s_digest_follows_its_code_and_not_its_comments(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for name, text in (("judge_a", "LIMIT = 1\n"), ("judge_b", "LIMIT = 1  # why\n"), ("judge_c", "LIMIT = 2\n")):
        (tmp_path / f"{name}.py").write_text(text)
        digests.append(verifier_digest(name))
    assert digests[0] == digests[1] != digests[2]
