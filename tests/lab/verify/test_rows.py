"""Rows are kept as they come, survive a kill, and a damaged file is named by its line."""

from __future__ import annotations

import pytest

from hopper_gemm.lab.verify.rows import FILE, Row, Rows, RowsError, read_rows

ONE, OTHER = Row("pair", {"seed": 1}, "ok", bits="ab"), Row("pair", {"seed": 2}, "timeout", "no answer", kernel="k")


def test_rows_are_read_back_and_added_to(tmp_path):
    rows = Rows(tmp_path / "new")
    rows.add(ONE)
    again = Rows(tmp_path / "new")
    assert again.rows == [ONE]
    again.add(OTHER)
    assert read_rows(tmp_path / "new") == [ONE, OTHER]


def test_a_line_that_a_kill_tore_is_dropped_and_the_file_goes_on_whole(tmp_path):
    rows = Rows(tmp_path)
    rows.add(ONE)
    rows.add(OTHER)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-20])
    assert read_rows(tmp_path) == [ONE]
    again = Rows(tmp_path)
    again.add(OTHER)
    assert (tmp_path / FILE).read_bytes() == whole


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "pair"}', '{"kind": 1, "subject": {}, "status": "ok", "n": 2}'])
def test_a_line_that_is_no_row_is_named_and_nothing_is_changed(tmp_path, line):
    Rows(tmp_path).add(ONE)
    with (tmp_path / FILE).open("a") as file:
        file.write(line + "\n")
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(RowsError, match=r"rows.jsonl, line 2: not a row"):
        Rows(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_rows_of_another_kernel_are_of_something_else_to_verify():
    assert ONE.key != Row("pair", {"seed": 1}, "ok", kernel="other").key
    assert ONE.key == Row("pair", {"seed": 1}, "wrong_result", board="b", seconds=3.0).key
