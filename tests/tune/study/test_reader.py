"""A results folder reads, packed or not, and damage is told with its place."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from hopper_gemm.model.sealed import sealed
from hopper_gemm.tune.study import reader
from hopper_gemm.tune.study.files import write_sealed
from hopper_gemm.tune.study.folder import StudyFolder, pack
from hopper_gemm.tune.study.reader import (
    frame_of,
    has_rows,
    missing,
    read_provenance,
    read_rows,
    read_study,
    recorded_folders,
)
from hopper_gemm.tune.study.row import ResultsError, header, summed, values_of
from hopper_gemm.tune.study.schema import CARRIED, NAMES
from hopper_gemm.tune.study.seal import seal
from hopper_gemm.tune.tables.pages.publish import publish
from tests.conftest import ROOT
from tests.each import each
from tests.tune.tables.making import row, write_study

SUM_COLUMN = header().split(",")[-1]
SEED = ROOT / "results/archive/h200/2026-11-21-seed-table-first"
RECORDED_ROWS = len(read_study(SEED).rows)


def test_a_recorded_study_is_found_by_its_name_alone_or_in_a_group_or_archived(tmp_path, monkeypatch):
    """The archived one comes last; what was measured here is none."""
    monkeypatch.setattr("hopper_gemm.tune.study.reader.results_root", lambda: tmp_path)
    kept = "h200/wide", "h200/group/deep", "archive/h200/2026-11-21-wide", "archive/h200/2026-11-22-old"
    tuned = "h200/wide/tune", "archive/h200/2026-11-21-wide/tune"
    for name in (*kept, *tuned, "local/h200/wide", "archive/h200/2026-11-22-very-old"):
        write_study(tmp_path / name, row())
    found = {name: [str(path.relative_to(tmp_path)) for path in recorded_folders(name)] for name in ("wide", "deep")}
    assert found == {"wide": [kept[0], kept[2]], "deep": [kept[1]]}
    assert [path.name for path in recorded_folders("old")] == ["2026-11-22-old"]
    assert {str(path.relative_to(tmp_path)) for path in recorded_folders()} == {
        *kept,
        *tuned,
        "archive/h200/2026-11-22-very-old",
    }


@pytest.fixture
def recorded(tmp_path):
    """The seed table, unpacked and without its end."""
    study = read_study(SEED)
    lines = [header(), *(row.line() for row in study.rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    about = {name: value for name, value in study.provenance.items() if name != "finished"}
    write_sealed(tmp_path / "provenance.json", about)
    return tmp_path


def damaged(folder, change):
    lines = (folder / "rows.csv").read_text().split("\n")
    (folder / "rows.csv").write_text("\n".join(change(lines)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:5] + lines[4:], "line 6: the same row as line 5; delete one of them"),
        (lambda lines: [*lines[:9], lines[9].replace("burst", "steady"), *lines[10:]], "line 10: the row was changed"),
        (lambda lines: [*lines[:9], lines[9][:50], *lines[10:]], "line 10: 11 values for "),
        (lambda lines: [*lines[:9], lines[9] + '"', *lines[10:]], "line 10: "),
        (lambda lines: lines[1:], "line 1: lacks the column"),
        (lambda lines: [f"study,{lines[0]}", *lines[1:]], "line 1: names a column twice"),
        (lambda lines: ["", *lines], "line 1: lacks the column"),
        (lambda lines: [*lines[:3], "", *lines[3:]], "line 4: 1 values for "),
        (lambda lines: [*lines[:3], "\0" * 40, *lines[3:]], "line 4: 1 values for "),
    ],
    ids=["doubled", "changed", "cut", "quoted", "headless", "doubled column", "empty first", "empty", "zeros"],
)
def test_damage_is_refused_with_the_file_and_the_line(recorded, change, message):
    damaged(recorded, change)
    with pytest.raises(ResultsError) as caught:
        read_rows(recorded)
    assert str(caught.value).startswith(f"{recorded / 'rows.csv'}, ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


NAMED = {
    "swapped": {"speedup": "tflops", "tflops": "speedup"},
    "missing": {"watts": None},
    "renamed": {"watts": "speed"},
    "doubled": {"watts": "speedup"},
    "missing at the end": {SUM_COLUMN: None},
    "without a sum": {SUM_COLUMN: "sum"},
}
"""Other names of columns; None for no column."""


@pytest.mark.parametrize("new", NAMED.values(), ids=NAMED)
def test_column_names_that_were_changed_are_told_as_line_1(recorded, new):
    """No figure is ever shown under another's name."""

    def renamed(lines):
        names = [new.get(name, name) for name in lines[0].split(",")]
        return [",".join(filter(None, names)), *lines[1:]]

    damaged(recorded, renamed)
    for read in (read_study, StudyFolder):
        with pytest.raises(ResultsError) as caught:
            read(recorded)
        assert str(caught.value).startswith(f"{recorded / 'rows.csv'}, line 1: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-40], lambda content: b"no" + content, lambda content: b""]
)
def test_a_packed_file_that_was_damaged_is_told_with_its_name(recorded, damage):
    pack(recorded)
    path = recorded / "rows.csv.xz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ResultsError, match=rf"^{path} cannot be unpacked .*; restore it"):
        read_study(recorded)


def test_a_file_without_the_figures_and_parameters_that_it_does_not_use_reads(recorded):
    before = read_rows(recorded)
    used = {name for row in before for name in row.figures}
    names = [name for name in NAMES if name not in CARRIED or name in used]
    names.remove("rotate_k")
    assert len(names) < len(NAMES) - 1
    lines = [header(names), *(row.line(names) for row in before)]
    (recorded / "rows.csv").write_text("\n".join(lines) + "\n")
    assert read_rows(recorded) == before


def test_a_torn_last_line_is_passed_over(recorded):
    whole = (recorded / "rows.csv").read_text()
    (recorded / "rows.csv").write_text(whole[:-40])
    assert len(read_rows(recorded)) == RECORDED_ROWS - 1


def test_a_byte_order_mark_is_no_damage_and_a_byte_that_is_no_text_has_its_place(recorded):
    content = (recorded / "rows.csv").read_bytes()
    (recorded / "rows.csv").write_bytes(b"\xef\xbb\xbf" + content)
    assert len(read_rows(recorded)) == RECORDED_ROWS
    (recorded / "rows.csv").write_bytes(content[:2000] + b"\x8b" + content[2001:])
    with pytest.raises(ResultsError, match=r"line \d+, column \d+: byte 0x8b is not UTF-8"):
        read_rows(recorded)


def told(**changed):
    gpu = {"name": "g", "driver": "580"}
    about = {"schema_version": 3, "study": "s", "source": "measured", "created": "", "gpu": gpu, "spec": {}}
    return sealed({**about, **changed})


RUNG = {"name": "first", "adds": "all", "from": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must hold an object of JSON but holds a list"),
        ("{", "line 1, column 2: "),
        ("{}", "carries no sum"),
        (sealed({"source": "measured"}), "the key schema_version is missing"),
        (sealed({"schema_version": 3, "study": "s"}), "the key source is missing"),
        (told(study=7), "study must be a name of letters, digits and . _ + - but got 7"),
        (told(study="../../x"), "study must be a name of letters, digits and . _ + - but got '../../x'"),
        (told(question="\x1b]0;owned"), r"question must be text without control characters but got '\x1b]0;owned'"),
        (told(noise={"\x1b[2J": 1}), r"the key noise.\x1b[2J must be text without control characters"),
        (told().replace("580", "581"), "was changed since it was written; restore it"),
        (told(noise={"burst": 0.1}).replace("0.1", "NaN"), "numbers must be finite but got NaN"),
        (told(rows="tilt"), "rows must be a column of the results but got 'tilt'"),
        (told(created="today"), "created must be a time such as 2026-11-23 08:00 UTC but got 'today'"),
        (told(spec={"data": 3}), "spec.data must be text or a list of texts but got 3"),
        (told(spec={"space": {"tilt": [1, 2]}}), "spec.space must be an object of kernel parameters but is a dict"),
        (told(spec={"burst": {"rest": 1}}), "the key spec.burst.warm is missing"),
        (told(rungs=[{}]), "the key rungs.0.name is missing"),
        (told(rungs=[{**RUNG, "config": {"tile_m": "x"}}]), "rungs.0.config must be a config of the kernel (tile"),
        (told(importance={"x": {}}), "the key importance.x.parameters is missing"),
        (told(skipped={"stages": "many"}), "skipped.stages must be an integer but got 'many'"),
        (told(gpu={}), "the key gpu.name is missing"),
        (told(noise={"x": "y"}), "noise.x must be a number"),
        (told(finished={}), "the key finished.rows is missing"),
        (told(schema_version=9), "schema_version must be 3 but got 9; update hopper-gemm"),
        (told(schema_version=2), "schema_version must be 3 but got 2; read it with the release that wrote it"),
        ("[" * 100_000, "is no JSON that can be read"),
    ],
)
def test_damaged_provenance_is_told_with_file_and_key(recorded, content, message):
    (recorded / "provenance.json").write_text(content)
    with pytest.raises(ResultsError) as caught:
        read_provenance(recorded)
    assert str(recorded / "provenance.json") in str(caught.value)
    assert message in str(caught.value)


ENDED = [row(tile_m=m) for m in (64, 128, 256)]


def only(folder, kept):
    """Keep some of the lines of a file of rows."""
    path = folder / "rows.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))


@pytest.mark.parametrize("command", [read_study, pack, publish], ids=lambda one: one.__name__)
def test_a_finished_study_that_lost_rows_is_refused_and_nothing_is_written(tmp_path, command):
    """Every reader checks what `sweep` checks: how many rows a finished study had, and which."""
    folder = write_study(tmp_path / "s", *ENDED, ended=True)
    only(folder, 3)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ResultsError, match=r"1 of the 3 rows of the finished study are gone from .*s/rows\.csv; res"):
        command(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


OTHER_ROWS = {
    "other": [*ENDED[:2], row(tile_m=320)],
    "more": [*ENDED, row(tile_m=320)],
    "another order": [*reversed(ENDED)],
}


@pytest.mark.parametrize("rows", OTHER_ROWS.values(), ids=OTHER_ROWS)
def test_a_finished_study_with_other_rows_than_it_ended_with_is_refused(tmp_path, rows):
    """The ends of intervals depend on the order of rows."""
    finished = json.loads((write_study(tmp_path, *ENDED, ended=True) / "provenance.json").read_text())["finished"]
    with pytest.raises(ResultsError, match=r"rows\.csv does not hold the 3 rows with which the study was finished"):
        read_study(write_study(tmp_path, *rows, finished=finished))


def test_packed_rows_unpack_to_no_more_than_a_bound(tmp_path, monkeypatch):
    """100 kB of xz can be made to take gigabytes of memory."""
    folder = write_study(tmp_path, *ENDED, ended=True)
    pack(folder)
    monkeypatch.setattr(reader, "UNPACKED_BYTES_MAX", 2**25)
    (folder / "rows.csv.xz").write_bytes(lzma.compress(bytes(2**26)))
    with pytest.raises(ResultsError, match=r"cannot be unpacked .*; restore it"):
        read_study(folder)


@each("folder", recorded_folders())
def test_every_recorded_study_says_which_rows_it_has(folder):
    """A study that was stopped has its rows counted afterwards, so that none of them can vanish."""
    assert read_provenance(folder)["finished"]["digest"]


def test_a_stopped_study_is_sealed_with_its_rows_counted_and_lacks_what_it_lacked(tmp_path):
    folder = write_study(tmp_path, *ENDED)
    seal(folder)
    assert "finished" not in read_provenance(folder)
    seal(folder, ended=True)
    assert read_provenance(folder)["finished"]["rows"] == 3
    assert missing(read_study(folder)) == "rows"
    only(folder, 3)
    with pytest.raises(ResultsError, match="1 of the 3 rows of the finished study are gone"):
        read_study(folder)
    with pytest.raises(ResultsError, match="does not hold the 3 rows"):
        seal(folder)


def test_control_characters_of_a_row_are_shown(tmp_path):
    """A terminal obeys them, in a row that another program wrote too."""
    bad = row("crash", "died \x1b]0;owned\x07", tile_m=64)
    assert r"died \x1b]0;owned\x07" in bad.line()
    names = header().split(",")[:-1]
    values = dict(zip(names, values_of(bad.line(), names), strict=True)) | {"reason": bad.reason}
    (write_study(tmp_path) / "rows.csv").write_text(f"{header()}\n{summed([values[name] for name in names], names)}\n")
    assert [one.reason for one in read_rows(tmp_path)] == [r"died \x1b]0;owned\x07"]


def test_rows_of_another_study_are_refused_with_their_number_and_its_name(tmp_path):
    write_study(tmp_path, *ENDED, replace(row(tile_m=320), study="ladder"))
    with pytest.raises(ResultsError, match=r"rows\.csv: 1 of 4 rows are of the study 'ladder', not of 's'; restore"):
        read_study(tmp_path)


def test_what_is_no_study_is_told_with_what_it_lacks(tmp_path):
    with pytest.raises(ResultsError, match="is not a folder; name a results folder such as"):
        read_study(tmp_path / "none")
    with pytest.raises(ResultsError, match=r"holds no rows\.csv; name a results folder"):
        read_study(tmp_path)
    assert not has_rows(tmp_path)


def test_a_packed_folder_gives_the_same_rows_and_frame(recorded):
    before = read_rows(recorded)
    sizes = pack(recorded)
    assert sizes["rows.csv.xz"][1] < sizes["rows.csv.xz"][0]
    assert not (recorded / "rows.csv").exists()
    assert read_rows(recorded) == before
    frame = frame_of(before)
    assert frame["m"].dtype == "Int64"
    assert set(frame["tile"]) >= {"256x128"}


def test_a_torn_last_line_is_packed_with_its_file_and_is_no_row(tmp_path):
    path = write_study(tmp_path, *ENDED) / "rows.csv"
    plain = path.read_bytes() + b"2026-11-23,"
    path.write_bytes(plain)
    pack(tmp_path)
    assert lzma.decompress((tmp_path / "rows.csv.xz").read_bytes()) == plain
    assert len(read_study(tmp_path).rows) == 3


def test_rows_that_do_not_come_back_are_not_packed_and_stay(tmp_path, monkeypatch):
    """The compressed rows are read back before the CSV goes."""
    write_study(tmp_path, *ENDED)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    compress = lzma.compress
    monkeypatch.setattr(lzma, "compress", lambda plain, **options: compress(plain.replace(b",kk,", b",kn,"), **options))
    with pytest.raises(ResultsError, match=r"rows\.csv does not come back from its compressed form and stays"):
        pack(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_packed_file_is_on_the_disk_before_its_csv_goes(tmp_path, steps, monkeypatch):
    """A machine that loses its power keeps the one or the other."""
    csv, unlink = write_study(tmp_path, *ENDED) / "rows.csv", Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **more: (steps.append(f"no {path.name}"), unlink(path, **more)))
    steps.clear()
    pack(tmp_path)
    size = (tmp_path / "rows.csv.xz").stat().st_size
    assert steps == [size, "rows.csv.xz", "folder", f"no {csv.name}"]
