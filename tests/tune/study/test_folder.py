"""A folder takes whole rows from one process at a time, keeps what it has, and refuses what does not belong."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading

import pytest

from hopper_gemm.tune.study.files import FileLock, write_json, write_whole
from hopper_gemm.tune.study.folder import StudyFolder, pack
from hopper_gemm.tune.study.provenance import fresh
from hopper_gemm.tune.study.reader import read_rows, read_study
from hopper_gemm.tune.study.row import ResultsError, header
from hopper_gemm.tune.study.schema import NAMES
from tests.conftest import ROOT

ROWS = read_study(ROOT / "results/archive/h200/2026-11-21-data").rows
ABOUT = fresh(
    "data", "", "measured", spec={}, spec_digest="q", gpu={"name": "NVIDIA H200", "driver": "580"}, kernel="k"
)


def made(path, rows=ROWS[:6], finish=True):
    folder = StudyFolder(path)
    with folder.held(ABOUT):
        folder.append(rows[:4])
        folder.append(rows[4:])
        if finish:
            folder.finish({"budget": None}, {"noise": {}})
    return folder


def files(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*")) if path.exists() else None


def test_rows_are_on_the_disk_and_a_finished_folder_says_so(tmp_path):
    made(tmp_path / "a" / "b")
    assert files(tmp_path / "a") == ["b", "b/provenance.json", "b/rows.csv"]
    folder = StudyFolder(tmp_path / "a" / "b")
    assert list(folder.rows.values()) == list(ROWS[:6])
    assert folder.finished
    assert folder.remark == ""


def test_looking_changes_nothing(tmp_path):
    StudyFolder(tmp_path / "none").refuse_another({"question": "q"})
    assert files(tmp_path) == []


def test_what_is_refused_leaves_no_folder(tmp_path):
    folder = StudyFolder(tmp_path / "a" / "b")
    with pytest.raises(KeyError), folder.held({}):
        pass
    assert files(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="is a file; name a folder with --out"):
        StudyFolder(tmp_path / "file")
    with pytest.raises(ResultsError, match="cannot be made"), StudyFolder(tmp_path / "file" / "x").held(ABOUT):
        pass
    assert files(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"spec_digest": "other"}, "was begun with another question; name another folder with --out"),
        ({"source": "replayed", "record": "r"}, r"was begun with another source \(measured, now replayed\)"),
        (
            {"gpu": {"name": "NVIDIA H100", "driver": "580"}},
            r"with another GPU \(NVIDIA H200, now NVIDIA H100\)",
        ),
        ({"kernel": "k2"}, r"was begun with another kernel \(k, now k2\)"),
    ],
)
def test_another_study_in_the_same_folder_is_refused_and_nothing_changes(tmp_path, changed, message):
    made(tmp_path / "s")
    before = {one.name: one.read_bytes() for one in (tmp_path / "s").iterdir()}
    with pytest.raises(ResultsError, match=message), StudyFolder(tmp_path / "s").held({**ABOUT, **changed}):
        pass
    assert {one.name: one.read_bytes() for one in (tmp_path / "s").iterdir()} == before


def test_a_folder_is_one_processs_and_free_when_that_is_killed(tmp_path):
    made(tmp_path / "s")
    code = (
        "import sys, time; from tests.tune.study.test_folder import *; from pathlib import Path\n"
        "with StudyFolder(Path(sys.argv[1])).held(ABOUT): print('held', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE, env=environment, cwd=ROOT
    )
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(ResultsError, match=rf"another run \(process {other.pid} since .*\) is at work in"):
        StudyFolder(tmp_path / "s")
    other.kill()
    other.wait()
    with StudyFolder(tmp_path / "s").held(ABOUT):
        pass
    assert ".lock" not in files(tmp_path / "s")


def test_a_row_that_vanished_from_a_finished_folder_is_noticed(tmp_path):
    made(tmp_path / "s")
    lines = (tmp_path / "s" / "rows.csv").read_text().splitlines(keepends=True)
    (tmp_path / "s" / "rows.csv").write_text("".join(lines[:3] + lines[5:]))
    folder = StudyFolder(tmp_path / "s")
    assert not folder.finished
    assert folder.remark.startswith("2 of the 6 rows of the finished study are gone from ")


def test_a_study_that_another_process_began_meanwhile_is_not_continued_with_another_question(tmp_path):
    """Both found an empty folder; the second to lock it looks again."""
    late = StudyFolder(tmp_path / "s")
    made(tmp_path / "s", finish=False)
    before = (tmp_path / "s" / "provenance.json").read_bytes()
    with pytest.raises(ResultsError, match="was begun with another question"):
        late.held({**ABOUT, "spec_digest": "other"}).__enter__()
    assert (tmp_path / "s" / "provenance.json").read_bytes() == before


def test_rows_without_provenance_are_refused_and_provenance_without_rows_goes_on(tmp_path):
    made(tmp_path / "s")
    about = (tmp_path / "s" / "provenance.json").read_bytes()
    (tmp_path / "s" / "provenance.json").unlink()
    with pytest.raises(ResultsError, match=r"holds rows\.csv without provenance\.json, which says of which question"):
        StudyFolder(tmp_path / "s")
    (tmp_path / "s" / "provenance.json").write_bytes(about)
    (tmp_path / "s" / "rows.csv").unlink()
    folder = StudyFolder(tmp_path / "s")
    assert folder.remark.startswith("6 of the 6 rows")
    with folder.held(ABOUT):
        folder.note(finished=None)
        folder.append(ROWS[:6])
    assert read_rows(tmp_path / "s") == list(ROWS[:6])


@pytest.mark.parametrize("cut", [1, 30, 5000])
def test_a_torn_last_line_is_cut_off_before_the_next_row(tmp_path, cut):
    made(tmp_path / "s", finish=False)
    path = tmp_path / "s" / "rows.csv"
    path.write_bytes(path.read_bytes()[:-cut])
    folder = StudyFolder(tmp_path / "s")
    kept = list(folder.rows.values())
    with folder.held(ABOUT):
        folder.append([row for row in ROWS[:6] if row not in kept])
    assert sorted(map(str, read_rows(tmp_path / "s"))) == sorted(map(str, ROWS[:6]))


def test_a_point_never_gets_a_second_row(tmp_path):
    folder = made(tmp_path / "s", finish=False)
    with folder.held(ABOUT), pytest.raises(ResultsError, match="has a row already"):
        folder.append(ROWS[:1])


@pytest.mark.parametrize(
    "change", [lambda names: [n for n in names if n != "watts"], lambda names: [*names[1:], names[0]]]
)
def test_a_folder_begun_with_other_columns_takes_no_rows(tmp_path, change):
    """The sum of a row covers the names that it stands under, so that no row may be added under others; a kill may
    leave the names alone, with no row that could tell."""
    made(tmp_path / "s", [], finish=False)
    (tmp_path / "s" / "rows.csv").write_text(header(change(NAMES)) + "\n")
    with pytest.raises(ResultsError, match="was begun with the columns of another version; name another folder"):
        made(tmp_path / "s")
    assert read_rows(tmp_path / "s") == []


def test_packed_folders_take_no_rows(tmp_path):
    made(tmp_path / "s")
    pack(tmp_path / "s")
    with pytest.raises(ResultsError, match="is packed and takes no more rows"):
        StudyFolder(tmp_path / "s")


def test_rows_are_on_the_disk_when_append_returns(tmp_path, steps):
    """A machine that loses its power after an append keeps its rows, and the name of their file."""
    folder, path = StudyFolder(tmp_path / "s"), tmp_path / "s" / "rows.csv"
    with folder.held(ABOUT):
        steps.clear()
        folder.append(ROWS[:4])
        assert steps == [path.stat().st_size, "folder"]
        steps.clear()
        folder.append(ROWS[4:6])
        assert steps == [path.stat().st_size]


def test_content_is_on_the_disk_before_it_takes_the_files_name_and_the_name_before_write_whole_returns(tmp_path, steps):
    """A machine that loses its power leaves the whole old file or the whole new one."""
    write_whole(tmp_path / "x.json", "content")
    assert steps == [len("content"), "x.json", "folder"]


def test_a_file_is_whole_at_every_moment(tmp_path):
    """Two writers at once: a reader sees the one or the other."""
    path = tmp_path / "x.json"
    write_json(path, {"a": [0] * 5000})

    def write(value):
        for _ in range(50):
            write_whole(path, json.dumps({"a": [value] * 5000}))

    writers = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for one in writers:
        one.start()
    while any(one.is_alive() for one in writers):
        assert len(set(json.loads(path.read_text())["a"])) == 1
    assert files(tmp_path) == ["x.json"]


def test_a_writer_removes_what_killed_writers_of_its_file_left(tmp_path):
    """Parts of other files stay, and young ones, whose writer may be at work."""
    old, young, other = (tmp_path / f".{name}.part" for name in ("x.json.1-1", "x.json.2-2", "y.json.1-1"))
    for part in (old, young, other):
        part.write_text("{")
    for part in (old, other):
        os.utime(part, (0, 0))
    write_json(tmp_path / "x.json", {})
    assert files(tmp_path) == sorted([young.name, other.name, "x.json"])


def test_a_folder_that_is_held_has_no_half_written_provenance_of_a_killed_holder(tmp_path):
    """However young it is; a page may be another process's, at work."""
    made(tmp_path, finish=False)
    page = tmp_path / ".table.md.1-1.part"
    for part in (page, tmp_path / ".provenance.json.1-1.part"):
        part.write_text("{")
    with StudyFolder(tmp_path).held(ABOUT):
        pass
    assert files(tmp_path) == sorted([page.name, "provenance.json", "rows.csv"])


def test_a_lock_is_taken_once_and_leaves_no_file(tmp_path):
    first, second = FileLock(tmp_path / "l"), FileLock(tmp_path / "l")
    assert first.take("me")
    assert not second.take()
    assert second.taken() == "me"
    first.release()
    assert files(tmp_path) == []
    assert second.taken() is None
    assert second.take()
    second.release()


@pytest.mark.parametrize("replaced", [True, False])
def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(tmp_path, monkeypatch, replaced):
    """The holder removes the file between the open and the lock of another process: only a lock on the file that has
    the name now counts."""
    first, second, third = (FileLock(tmp_path / "l") for _ in range(3))
    flock = fcntl.flock

    def late(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        first.release()
        if replaced:
            assert third.take("third")
        flock(handle, how)

    assert first.take()
    monkeypatch.setattr(fcntl, "flock", late)
    assert second.take("second") is not replaced
    assert not FileLock(tmp_path / "l").take()
    assert first.taken() == ("third" if replaced else "second")
    second.release()
    third.release()
