"""A sweep loses nothing: killed anywhere, the same command goes on, and no point is measured twice."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time

import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState

from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.trials import ResultsError, read_json, read_trials
from hopper_gemm.tables.tuned import FILE as TUNED
from hopper_gemm.tables.tuned import read_tuned
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.replay import ReplayBackend
from hopper_gemm.tuning.spec import read_spec
from hopper_gemm.tuning.storage import open_storage
from hopper_gemm.tuning.sweep import JOURNAL, Sweep, SweepError
from tests.tuning.fakes import LADDER, SPEC, FakeBackend


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return read_spec(path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results" / "small"


def test_every_point_gets_one_row_with_its_status(spec, out):
    Sweep(spec, out).run(FakeBackend())
    rows = read_trials(out / "trials.csv")
    assert rows["status"].value_counts().to_dict() == {"ok": 4, "illegal": 1, "timeout": 1}
    assert "exceeds smem" in rows.loc[rows["status"] == "illegal", "reason"].item()
    assert rows.loc[rows["status"] == "timeout", "speedup"].isna().all()
    assert set(rows["gpu"]) == {"NVIDIA H200"}
    assert len(pd.read_csv(out / "samples.csv").query("stage == 'sweep'")) == 4 * 3


class Crashing(FakeBackend):
    """Every point crashes until so many have; then all is well."""

    def __init__(self, crashes: int) -> None:
        super().__init__()
        self._left = crashes

    def measure(self, point, pairs=None):
        self._left -= 1
        return Answer("crash", "no such symbol", {}) if self._left >= 0 else super().measure(point)


def test_a_sweep_in_which_everything_crashes_ends_early_and_records_nothing(spec, out, monkeypatch):
    monkeypatch.setattr("hopper_gemm.tuning.sweep.HOPELESS", 3)
    with pytest.raises(SweepError, match=r"^the first 3 points all crashed, the last with: no such symbol; nothing"):
        Sweep(spec, out).run(Crashing(99))
    assert set(read_trials(out / "trials.csv")["status"]) == {"illegal"}
    mended = FakeBackend()
    Sweep(spec, out).run(mended)
    assert sum(mended.asked.values()) == 5


def test_a_few_crashes_at_the_start_are_rows_like_any_other(spec, out):
    Sweep(spec, out).run(Crashing(2))
    assert read_trials(out / "trials.csv")["status"].value_counts()["crash"] == 2


def test_a_sweep_that_skips_illegal_points_counts_them_and_gives_them_no_row(tmp_path, out):
    path = tmp_path / "skipping.toml"
    path.write_text(SPEC.replace("[[prob", "skip_illegal = true\n[[prob"))
    sweep = Sweep(read_spec(path), out)
    assert (sweep.plan().total, sweep.plan().open, sweep.plan().skipped) == (6, 5, 1)
    sweep.run(FakeBackend())
    assert read_trials(out / "trials.csv")["status"].value_counts().to_dict() == {"ok": 4, "timeout": 1}
    assert "4 ok, 1 timeout; 1 refused and left out: 1 by stages." in (out / "table.md").read_text()
    again = FakeBackend()
    Sweep(read_spec(path), out).run(again)
    assert not again.asked


def test_rungs_with_one_config_are_measured_once(tmp_path, out):
    path = tmp_path / "ladder.toml"
    path.write_text(LADDER)
    backend = FakeBackend()
    Sweep(read_spec(path), out).run(backend)
    assert set(backend.asked.values()) == {2}  # burst and steady
    assert len(backend.asked) == 4
    noted = {rung["name"]: rung for rung in read_json(out / "provenance.json")["rungs"]}
    assert noted["same"]["config"] == noted["tile"]["config"]
    assert (noted["pair"]["from"], noted["ring"]["published"]) == ("ring", "1.3 times as fast")


def test_the_best_are_measured_again_and_tuned(spec, out):
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    assert len(backend.measured_again) == 2
    finals = read_trials(out / "final.csv")
    assert finals["tile_m"].tolist() == [320, 128]
    (entry,) = read_tuned(out.parent / TUNED)
    assert (entry.config.tile_m, entry.study) == (320, "small")
    assert entry.noise == read_json(out / "provenance.json")["noise"]["1024x1024x1024 burst"] > 0


@pytest.fixture
def unpublished(monkeypatch):
    """Pages and pictures are other tests' matter, and most of the time."""
    monkeypatch.setattr("hopper_gemm.tuning.sweep.publish", lambda folder: None)


@pytest.mark.usefixtures("unpublished")
def test_the_finals_of_each_study_are_one_batch(both_kinds, out):
    backend = FakeBackend()
    Sweep(both_kinds, out).run(backend)
    assert backend.batches == [2, 2]


def finished(spec, out) -> bool:
    return Sweep(spec, out).finished("fake", "NVIDIA H200")


class KilledInFinals(FakeBackend):
    """The command ends after so many finals."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def final(self, point):
        if len(self.measured_again) == self._after:
            raise KeyboardInterrupt
        return super().final(point)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.usefixtures("unpublished")
def test_a_kill_among_the_finals_leaves_only_those_without_a_row(spec, out, after):
    first, second = KilledInFinals(after), FakeBackend()
    with pytest.raises(KeyboardInterrupt):
        Sweep(spec, out).run(first)
    assert not finished(spec, out)
    Sweep(spec, out).run(second)
    assert finished(spec, out)
    assert not second.asked
    assert (second.batches, len(first.measured_again)) == ([2 - after], after)
    assert sorted(read_trials(out / "final.csv")["tile_m"]) == [128, 320]


@pytest.mark.usefixtures("unpublished")
def test_a_search_that_was_killed_among_the_finals_does_not_search_again(tmp_path, out):
    """Its seconds are noted before the finals begin."""
    path = tmp_path / "timed.toml"
    path.write_text(SPEC.replace("[[prob", 'sampler = "random"\n[[prob') + "[budget]\nseconds = 0.05\n")

    class Slow(KilledInFinals):
        def measure(self, point, pairs=None):
            time.sleep(0.03)
            return super().measure(point, pairs)

    with pytest.raises(KeyboardInterrupt):
        Sweep(read_spec(path), out).run(Slow(0))
    rows = len(read_trials(out / "trials.csv"))
    assert rows < 5
    second = FakeBackend()
    Sweep(read_spec(path), out).run(second)
    assert (len(read_trials(out / "trials.csv")), len(second.asked)) == (rows, 0)
    assert second.batches
    assert read_json(out / "provenance.json")["searched"] < 0.2


@pytest.mark.usefixtures("unpublished")
def test_a_sweep_is_finished_within_its_budget_and_not_within_a_larger_one(tmp_path, out):
    path = tmp_path / "small.toml"
    specs = []
    for trials in (2, 4):
        path.write_text(SPEC + f"[budget]\ntrials = {trials}\n")
        specs.append(read_spec(path))
    assert not finished(specs[0], out)
    Sweep(specs[0], out).run(FakeBackend(), trials=1)
    assert not finished(specs[0], out)
    Sweep(specs[0], out).run(FakeBackend())
    assert [finished(one, out) for one in specs] == [True, False]
    assert not Sweep(specs[0], out).finished("another", "NVIDIA H200")
    assert not Sweep(specs[0], out).finished("fake", "NVIDIA H100")


@pytest.mark.usefixtures("unpublished")
def test_cublas_is_named_once_for_each_problem_after_all_its_trials(spec, out):
    class Late(FakeBackend):
        def cublas_kernel(self, problem):
            assert sum(self.asked.values()) == 5
            assert not self.measured_again
            return super().cublas_kernel(problem)

    backend = Late()
    Sweep(spec, out).run(backend)
    assert backend.named == {"1024x1024x1024": 1}
    rows = read_trials(out / "trials.csv")
    assert set(rows.query("status == 'ok'")["cublas_kernel"]) == {"nvjet"}
    assert set(rows.query("status != 'ok'")["cublas_kernel"]) == {""}
    assert set(read_trials(out / "final.csv")["cublas_kernel"]) == {"nvjet"}
    again = FakeBackend()
    Sweep(spec, out).run(again)
    assert not again.named


@pytest.mark.usefixtures("unpublished")
def test_a_sweep_that_goes_on_names_cublas_by_what_is_known(spec, out):
    Sweep(spec, out).run(FakeBackend(), trials=2)
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    assert not backend.named
    assert set(read_trials(out / "trials.csv").query("status == 'ok'")["cublas_kernel"]) == {"nvjet"}


@pytest.fixture
def both_kinds(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text(SPEC.replace("[[prob", 'data = ["zeros", "normal"]\n[[prob'))
    return read_spec(path)


def test_each_kind_of_data_has_its_rows_and_noise_floor_and_only_normal_is_tuned(both_kinds, out):
    """Zeros run faster; the tuned table must not take that for a better config."""
    backend = FakeBackend()
    Sweep(both_kinds, out).run(backend)
    assert backend.data == {"zeros": 5, "normal": 5}
    rows = read_trials(out / "trials.csv")
    assert rows["data"].value_counts().to_dict() == {"zeros": 6, "normal": 6}
    assert list(read_json(out / "provenance.json")["noise"]) == ["1024x1024x1024 burst zeros", "1024x1024x1024 burst"]
    assert len(read_trials(out / "final.csv")) == 2 * 2
    (entry,) = read_tuned(out.parent / TUNED)
    normal = rows.query("data == 'normal' and tile_m == 320 and status == 'ok'")["speedup"].item()
    assert entry.speedup == pytest.approx(normal, rel=1e-5)
    page = (out / "table.md").read_text()
    assert "- data: zeros, normal (checked on normal), seed 0" in page
    assert "## 1024 x 1024 x 1024 bf16, burst, zeros" in page


def test_a_replay_keeps_the_kinds_of_data_apart(both_kinds, out, tmp_path):
    Sweep(both_kinds, out).run(FakeBackend())
    Sweep(both_kinds, tmp_path / "again").run(ReplayBackend(out))
    for name in ("trials.csv", "final.csv"):
        found, recorded = (read_trials(folder / name).drop(columns="source") for folder in (tmp_path / "again", out))
        pd.testing.assert_frame_equal(found, recorded)
    found, recorded = (pd.read_csv(folder / "samples.csv") for folder in (tmp_path / "again", out))
    timed = [frame.query("stage != 'control'").reset_index(drop=True) for frame in (found, recorded)]
    pd.testing.assert_frame_equal(*timed, check_dtype=False)
    assert set(timed[0]["data"]) == {"zeros", "normal"}


def test_samples_older_than_the_data_column_are_of_normal_data(spec, out, tmp_path):
    Sweep(spec, out).run(FakeBackend())
    pd.read_csv(out / "samples.csv").drop(columns="data").to_csv(out / "samples.csv", index=False)
    Sweep(spec, tmp_path / "again").run(ReplayBackend(out))
    found = pd.read_csv(tmp_path / "again" / "samples.csv").query("stage == 'sweep'")
    assert len(found) == 4 * 3
    assert set(found["data"]) == {"normal"}


def test_facets_of_the_spec_reach_the_picture(tmp_path, out):
    path = tmp_path / "facets.toml"
    path.write_text(SPEC + '[table]\nrows = "tile_m"\ncols = "stages"\nfacet_cols = "k_depth"\n')
    Sweep(read_spec(path), out).run(FakeBackend())
    about = read_json(out / "provenance.json")
    assert (about["facet_rows"], about["facet_cols"]) == (None, "k_depth")
    plain = tmp_path / "plain"
    path.write_text(SPEC + '[table]\nrows = "tile_m"\ncols = "stages"\n')
    Sweep(read_spec(path), plain).run(FakeBackend())
    assert (out / "heatmap.png").read_bytes() != (plain / "heatmap.png").read_bytes()


def test_the_page_and_the_noise_floor_are_written(spec, out):
    Sweep(spec, out).run(FakeBackend())
    page = (out / "table.md").read_text()
    assert "Measured on an NVIDIA H200" in page
    assert "exceeds smem" in page
    assert read_json(out / "provenance.json")["noise"]["1024x1024x1024 burst"] > 0


@pytest.mark.parametrize("after", range(5))
def test_interrupted_anywhere_it_goes_on_and_measures_nothing_twice(spec, out, after):
    first, second = FakeBackend(die_after=after), FakeBackend()
    with pytest.raises(KeyboardInterrupt):
        Sweep(spec, out).run(first)
    assert len(first.asked) == after
    Sweep(spec, out).run(second)
    assert not set(first.asked) & set(second.asked)
    assert len(first.asked) + len(second.asked) == 5
    assert len(read_trials(out / "trials.csv")) == 6
    storage = open_storage(str(out / JOURNAL))
    (name,) = optuna.get_all_study_names(storage)
    states = [trial.state for trial in optuna.load_study(study_name=name, storage=storage).trials]
    assert states.count(TrialState.COMPLETE) + states.count(TrialState.PRUNED) == 5


def test_a_finished_sweep_measures_nothing_again(spec, out):
    Sweep(spec, out).run(FakeBackend())
    before = (out / "trials.csv").read_text()
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    assert (backend.asked, backend.measured_again) == ({}, [])
    assert (out / "trials.csv").read_text() == before


def test_only_so_many_trials_then_the_rest(spec, out):
    Sweep(spec, out).run(FakeBackend(), trials=2)
    assert Sweep(spec, out).plan().open == 3
    assert not (out / "final.csv").exists()
    Sweep(spec, out).run(FakeBackend())
    assert Sweep(spec, out).plan().open == 0


def test_a_kill_between_the_row_and_the_journal_is_settled_from_the_row(spec, out, monkeypatch):
    """The row reaches the disk first; the trial that was left running is closed with the row's figure."""

    def killed(queue, asked, answer):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hopper_gemm.tuning.sweep.PointQueue.tell", killed)
        with pytest.raises(KeyboardInterrupt):
            Sweep(spec, out).run(FakeBackend())
    (row,) = read_trials(out / "trials.csv").query("status == 'ok'").to_dict("records")
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    assert len(backend.asked) == 4
    storage = open_storage(str(out / JOURNAL))
    (name,) = optuna.get_all_study_names(storage)
    first = optuna.load_study(study_name=name, storage=storage).trials[0]
    assert (first.state, first.value) == (TrialState.COMPLETE, row["speedup"])


def test_a_deleted_journal_costs_nothing(spec, out):
    Sweep(spec, out).run(FakeBackend(), trials=3)
    (out / JOURNAL).unlink()
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    assert len(backend.asked) == 2


def _slow_sweep(spec, out):
    class Slow(FakeBackend):
        def measure(self, point, pairs=None):
            time.sleep(0.3)
            return super().measure(point)

    Sweep(spec, out).run(Slow())


def test_killed_without_warning_it_goes_on(spec, out):
    process = multiprocessing.get_context("fork").Process(target=_slow_sweep, args=(spec, out))
    process.start()
    while not (out / "trials.csv").exists() or len((out / "trials.csv").read_text().splitlines()) < 4:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    measured = len(read_trials(out / "trials.csv").query("status != 'illegal'"))
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    assert len(backend.asked) == 5 - measured
    assert len(read_trials(out / "trials.csv")) == 6


def test_another_question_in_the_same_folder_is_refused(spec, out, tmp_path):
    Sweep(spec, out).run(FakeBackend())
    other = tmp_path / "other.toml"
    other.write_text(SPEC.replace("best = 2", "best = 1"))
    with pytest.raises(ResultsError, match=r"holds another sweep .* name another folder with --out"):
        Sweep(read_spec(other), out)


def test_another_gpu_or_kernel_in_the_same_folder_is_refused(spec, out):
    Sweep(spec, out).run(FakeBackend(), trials=1)

    class Other(FakeBackend):
        def describe(self):
            return {**super().describe(), "gpu": {"name": "NVIDIA H100 80GB HBM3", "driver": "580"}}

    with pytest.raises(ResultsError, match=r"begun with another GPU \(NVIDIA H200, now NVIDIA H100 80GB HBM3"):
        Sweep(spec, out).run(Other())


def test_a_folder_that_cannot_be_written_is_named(spec, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(ResultsError, match="is a file; name a folder with --out"):
        Sweep(spec, blocker)
    with pytest.raises(ResultsError, match="cannot be made"):
        Sweep(spec, blocker / "below").run(FakeBackend())


def test_a_replay_gives_the_recorded_figures_and_says_what_it_is(spec, out, tmp_path):
    Sweep(spec, out).run(FakeBackend())
    again = tmp_path / "again"
    Sweep(spec, again).run(ReplayBackend(out))
    recorded, replayed = read_study(out), read_study(again)
    drop = ["source"]
    pd.testing.assert_frame_equal(recorded.trials.drop(columns=drop), replayed.trials.drop(columns=drop))
    pd.testing.assert_frame_equal(recorded.finals.drop(columns=drop), replayed.finals.drop(columns=drop))
    assert set(replayed.trials["source"]) == {"replayed"}
    assert "Replayed from recorded measurements of an NVIDIA H200" in (again / "table.md").read_text()
    assert not (again.parent / TUNED).exists()


def test_a_replay_of_what_was_not_recorded_says_so(spec, out, tmp_path):
    Sweep(spec, out).run(FakeBackend())
    wider = tmp_path / "wider.toml"
    wider.write_text(SPEC.replace("[64, 128, 320]", "[64, 128, 256]"))
    Sweep(read_spec(wider), tmp_path / "wide").run(ReplayBackend(out))
    rows = read_trials(tmp_path / "wide" / "trials.csv").query("tile_m == 256")
    assert rows["status"].tolist() == ["illegal", "illegal"]
    assert rows["reason"].str.startswith("not recorded in").all()


def test_the_page_says_how_fast_it_went_and_how_long_the_gpu_waited(spec, out):
    class Working(FakeBackend):
        def measure(self, point, pairs=None):
            time.sleep(0.02)
            self.busy += 0.02
            return super().measure(point, pairs)

    Sweep(spec, out).run(Working())
    about = read_json(out / "provenance.json")
    assert about["at_work"] == pytest.approx(0.1)
    assert about["searched"] > 0.1
    pattern = r" ([\d.]+) points a second for \d+ s; the GPU waited for work (\d+)% of that time\."
    rate, waited = re.search(pattern, (out / "table.md").read_text()).groups()
    assert float(rate) == pytest.approx(5 / about["searched"], abs=0.06)
    assert int(waited) == pytest.approx(100 * (1 - about["at_work"] / about["searched"]), abs=0.6)
