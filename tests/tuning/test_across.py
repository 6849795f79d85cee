"""One config for several problems: judged by all of them at once, and by nothing less."""

from __future__ import annotations

from math import sqrt

import pytest
from optuna.trial import TrialState

from hopper_gemm.model.config import FIELDS
from hopper_gemm.tables.across import serving_all
from hopper_gemm.tables.report import read_study, report
from hopper_gemm.tables.trials import ResultsError, read_trials
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.pooling import joint
from hopper_gemm.tuning.spec import SpecError, checked
from hopper_gemm.tuning.sweep import Sweep
from tests.tuning.fakes import FakeBackend

SIZES = (1024, 2048)


def spec_of(**more):
    return checked(
        {
            "name": "both",
            "problems": [{"m": size, "n": size, "k": size} for size in SIZES],
            "space": {"tile_m": [64, 128, 256], "tile_n": [64, 128], "k_depth": [2, 4], "stagger": [0, 1]},
            "sampler": "random",
            "budget": {"trials": 20},
            "final": {"best": 2},
            "across": "worst",
            **more,
        },
        "both",
    )


class Torn(FakeBackend):
    """Large tiles are the best on the large problem and the worst on the small one; 128 rows are never bad. A tile of
    64 columns does not run on the large one."""

    def measure(self, point, pairs=None):
        answer = super().measure(point, pairs)
        large = point.problem.m == SIZES[1]
        if large and point.config.tile_n == 64:
            return Answer("timeout", "killed", {})
        speed = {64: (1.2, 0.5), 128: (0.9, 0.95), 256: (0.7, 1.4)}[point.config.tile_m][large]
        speed -= 0.01 * point.config.stagger + 0.02 * (point.config.k_depth == 2)
        names = ("speedup", "speedup_low", "speedup_high")
        return Answer(answer.status, "", {**answer.figures, **dict.fromkeys(names, speed)}, answer.samples)

    def final(self, point):
        return self.measure(point)


def study_of(out):
    import optuna

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "study.journal")))
    (summary,) = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage)


@pytest.mark.parametrize(("across", "tile_m"), [("worst", 128), ("mean", 256)])
def test_the_config_that_serves_all_problems_is_not_the_best_of_either(tmp_path, across, tile_m):
    out = tmp_path / "both"
    Sweep(spec_of(across=across, budget={"trials": 24}), out).run(Torn())
    rows = read_trials(out / "trials.csv")
    assert len(rows) == 2 * 24, "each config on each problem"
    study = study_of(out)
    best = study.best_trial
    worst, mean = (0.9, sqrt(0.9 * 0.95)) if tile_m == 128 else (0.7, sqrt(0.7 * 1.4))
    assert best.value == pytest.approx(worst if across == "worst" else mean)
    assert f"{tile_m}x128" in best.user_attrs["config"]
    states = [trial.state for trial in study.trials]
    assert states.count(TrialState.PRUNED) == 12, "what does not run on one problem serves not all"
    finals = read_trials(out / "final.csv")
    assert len(finals) == 2 * 2
    assert set(finals["tile_m"]) == {tile_m}
    page = report(read_study(out))
    assert f"best by the {'worst' if across == 'worst' else 'geometric mean'}, finals" in page
    assert not (out.parent / "best_configs.json").exists()


def test_a_search_that_was_cut_off_measures_only_what_is_missing(tmp_path):
    out, spec = tmp_path / "both", spec_of()
    first = Torn()
    Sweep(spec, out).run(first, trials=7)
    assert len(read_trials(out / "trials.csv")) == 7, "the fourth config lacks a problem"
    again = Torn()
    Sweep(spec, out).run(again)
    rows = read_trials(out / "trials.csv")
    assert not rows.duplicated(["m", *FIELDS]).any()
    assert 40 <= len(rows) <= 41, "the cut off config may be left as it is"
    whole = serving_all(rows, "worst")
    assert list(whole.columns) == ["1024x1024x1024", "2048x2048x2048", "worst", "geometric mean"]
    done = [trial for trial in study_of(out).trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    assert len(done) == 20


def test_workers_cannot_share_it(tmp_path):
    with pytest.raises(ResultsError, match="across judges by all problems at once, which workers cannot share"):
        Sweep(spec_of(), tmp_path / "both", str(tmp_path / "shared.journal"))


def test_the_first_answer_that_is_not_ok_is_the_answer():
    ok, bad = Answer("ok", "", {"speedup": 2.0}), Answer("crash", "gone", {})
    assert joint([ok, bad, ok], "worst") is bad
    assert joint([ok, Answer("ok", "", {"speedup": 0.5})], "mean").figures["speedup"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"sampler": "exhaustive"}, "across: is for a search; take sampler gp, or leave it out"),
        ({"warm_start": ["results/h200/options"]}, "earlier rows are of one; leave out warm_start"),
        ({"objective": ["pj_per_flop"], "regimes": ["steady"]}, "is for speedups; leave out objective, or across"),
    ],
)
def test_what_it_cannot_stand_beside_is_told(more, text):
    with pytest.raises(SpecError, match=text):
        spec_of(**more)
