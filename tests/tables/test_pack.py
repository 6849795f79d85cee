"""Packed rows are the same rows: nothing is lost, every reader takes either, and a kill in between harms nothing."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest

from hopper_gemm.tables.pack import pack
from hopper_gemm.tables.report import read_study, report
from hopper_gemm.tables.trials import ResultsError, as_text, read_samples
from hopper_gemm.tuning.replay import ReplayBackend
from hopper_gemm.tuning.simulate import recorded_problems
from hopper_gemm.tuning.spec import read_spec
from hopper_gemm.tuning.sweep import Sweep
from tests.conftest import ROOT
from tests.test_cli import run

STUDIES = ("stagger", "ladder", "seed-table", "tune-2304x2304x4096-burst")


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(ROOT / "results/h200/stagger", tmp_path / "stagger")


@pytest.mark.parametrize("name", STUDIES)
def test_a_packed_study_reads_as_it_did(name, tmp_path):
    plain = ROOT / "results/h200" / name
    folder = shutil.copytree(plain, tmp_path / name)
    before = (read_study(plain), read_samples(plain))
    pack(folder)
    assert not (folder / "trials.csv").exists()
    after = (read_study(folder), read_samples(folder))
    pd.testing.assert_frame_equal(before[0].trials, after[0].trials)
    pd.testing.assert_frame_equal(before[0].finals, after[0].finals)
    pd.testing.assert_frame_equal(before[1], after[1], check_dtype=False)
    assert report(after[0]) == (plain / "table.md").read_text()


def test_the_csv_can_be_had_again_to_the_letter(folder):
    text = (folder / "trials.csv").read_text()
    pack(folder)
    frame = pd.read_parquet(folder / "trials.parquet")
    lines = [",".join(frame.columns), *(",".join(as_text(one) for one in row) for row in frame.itertuples(index=False))]
    assert "\n".join(lines).replace('"', "") + "\n" == text.replace('"', "")


def test_a_large_study_becomes_much_smaller(folder):
    for old, new in pack(folder).values():
        assert new < old / 3


def test_a_replay_and_a_simulation_of_packed_rows_are_those_of_the_csv(folder, tmp_path):
    pack(folder)
    spec = read_spec(ROOT / "sweeps/stagger.toml")
    point = next(point for point in Sweep(spec, tmp_path / "again")._legal)
    there, here = (ReplayBackend(one).measure(point) for one in (ROOT / "results/h200/stagger", folder))
    assert (there.figures, there.samples) == (here.figures, here.samples)
    ours = [game.best for game in recorded_problems(folder)]
    assert ours == [game.best for game in recorded_problems(ROOT / "results/h200/stagger")]


def test_a_row_that_would_not_come_back_to_the_letter_is_refused_and_nothing_is_touched(folder):
    path = folder / "trials.csv"
    torn = path.read_text() + "stagger,8192"
    path.write_text(torn)
    with pytest.raises(ResultsError, match="would not give back to the letter"):
        pack(folder)
    assert path.read_text() == torn
    assert (folder / "samples.csv").is_file()


def test_killed_between_two_files_it_goes_on(folder, monkeypatch):
    """What is left of the CSV is read; the next call finishes."""
    before = read_study(folder).trials
    unlink = type(folder).unlink

    def killed(path, *rest):
        if path.name == "trials.csv":
            raise KeyboardInterrupt
        unlink(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(type(folder), "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            pack(folder)
    pd.testing.assert_frame_equal(read_study(folder).trials, before)
    assert len(read_samples(folder))
    assert list(pack(folder)) == ["trials.parquet"]
    pd.testing.assert_frame_equal(read_study(folder).trials, before)


def test_a_packed_study_takes_no_more_rows(folder):
    pack(folder)
    with pytest.raises(ResultsError, match="is packed and takes no more rows; name another folder with --out"):
        Sweep(read_spec(ROOT / "sweeps/stagger.toml"), folder)


def test_what_cannot_be_packed_is_said_in_a_line(folder):
    pack(folder)
    again = run("pack", str(folder))
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "is packed already" in again.stderr
    assert "does not exist; name a results folder" in run("pack", "sweeps").stderr
    (folder / "trials.parquet").write_bytes(b"PAR1 and no more")
    broken = run("table", str(folder))
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1)
    assert "is not a Parquet file" in broken.stderr
