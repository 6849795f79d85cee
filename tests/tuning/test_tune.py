"""One command from a problem to its winner."""

from __future__ import annotations

import json

import pytest

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.trials import ResultsError, read_trials
from hopper_gemm.tuning.space import points, with_row
from hopper_gemm.tuning.spec import SpecError, checked
from hopper_gemm.tuning.sweep import Sweep
from hopper_gemm.tuning.tune import SPACE, prepare, verdict
from tests.conftest import ROOT
from tests.test_cli import run
from tests.tuning.fakes import FakeBackend

SEED = ROOT / "results/h200/seed-table"
TUNE = {"name": "tune", "problems": [{"m": 1024, "n": 1024, "k": 1024}], "sampler": "gp", "space": SPACE}


def test_the_space_holds_what_a_search_needs():
    spec = checked(TUNE, "tune")
    legal = with_row(spec, points(spec))
    assert 4000 < len(legal) < 20000
    assert {point.config.tile_m for point in legal} == set(SPACE["tile_m"])


def test_a_search_of_the_whole_space_writes_page_picture_and_tuned_table(tmp_path):
    spec = checked({**TUNE, "budget": {"trials": 14}, "final": {"best": 3}}, "tune")
    out = tmp_path / "h200" / "tune"
    Sweep(spec, out).run(FakeBackend())
    assert len(read_trials(out / "trials.csv")) == 14
    page = (out / "table.md").read_text()
    assert "of them legal" in page
    assert "not tried." in page
    assert (out / "search.png").stat().st_size > 10_000
    assert (out.parent / "best_configs.json").is_file()
    found = verdict(out)
    assert found.final
    assert found.runner_up is not None
    assert found.winner.speedup >= found.runner_up.speedup
    assert found.winner.config != found.runner_up.config
    assert any("look-ahead" in line for line in found.lines())


def test_tune_replays_a_recorded_study_and_says_why_the_winner_won(tmp_path):
    done = run("tune", "8192", "8192", "8192", "--backend", "replay", "--trials", "6", "--out", str(tmp_path / "t"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Replaying tune-8192x8192x8192-burst from recorded measurements of an NVIDIA H200")
    for word in ("256x200x64", "=turns", "x cuBLAS [", "runner-up", "waves", "intensity", "look-ahead", "limit"):
        assert word in done.stdout
    again = run(
        "tune", "8192", "8192", "8192", "--backend", "replay", "--out", str(tmp_path / "t"), "--json", "--trials", "8"
    )
    assert json.loads(again.stdout)["winner"]["speedup"] > 1
    assert len(read_trials(tmp_path / "t" / "trials.csv")) == 8


def test_mistakes_are_told_all_at_once_and_what_is_not_recorded_is_named():
    with pytest.raises(SpecError) as caught:
        prepare(GemmProblem(8192, 8192, 8192), regime="warm", sampler="luck", backend="replay", recorded=SEED)
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(ResultsError, match="no recorded study of 8x8x8 bf16 burst; name one with --from"):
        prepare(GemmProblem(8, 8, 8), backend="replay")


def test_the_folder_of_a_list_stands_for_its_folder_of_the_problem():
    suite = ROOT / "results/h200/suite-second"
    begun = prepare(GemmProblem(2048, 2048, 2048), backend="replay", recorded=SEED, warm_start=[suite, SEED])
    assert begun.sweep.spec.warm_start == [str(suite / "tune-2048x2048x2048-burst"), str(SEED)]
    begun = prepare(GemmProblem(2048, 2048, 2056), backend="replay", recorded=SEED, warm_start=[suite])
    assert begun.sweep.spec.warm_start == []
