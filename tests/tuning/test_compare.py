"""A comparison without a GPU: rows as they come, nothing twice, failures as statuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.pool import Built
from hopper_gemm.measure.device import GpuId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.compare import ABOUT, FILE, PAGE, SAMPLES, read_compare
from hopper_gemm.tables.trials import ResultsError
from hopper_gemm.tables.tuned import TunedEntry, read_tuned
from hopper_gemm.tuning import compare as room
from hopper_gemm.tuning.compare import Comparison
from hopper_gemm.tuning.comparing import About, Result
from tests.conftest import ROOT

GPU = GpuId(0, "NVIDIA H200", "GPU-1")
PROBLEMS = (GemmProblem(4096, 4096, 4096), GemmProblem(512, 512, 512), GemmProblem(640, 640, 640))
ENTRY = read_tuned(ROOT / "results/h200/best_configs.json")[0]
REPORT = dict.fromkeys(CubinReport.__dataclass_fields__, 0)


def entry(problem, regime="burst", **config) -> TunedEntry:
    return replace(ENTRY, problem=problem, regime=regime, config=resolve(GemmConfig(**config)))


class FakeComparer:
    """Answers from tables, notes what it was asked, dies on command."""

    def __init__(self, results=None, missing=None, built=None, code="c0de", die_after=None, gpu="NVIDIA H200") -> None:
        self._results, self._missing, self._built = results or {}, missing or {}, built or {}
        self._code, self._die_after, self._gpu = code, die_after, gpu
        self.duels, self.noises, self.compiled, self.renewed, self.closed = [], [], [], 0, False

    def describe(self, against):
        gpu = {"name": self._gpu, "driver": "580.1"}
        return About(gpu, {name: self._missing[name] for name in against if name in self._missing}, "13.1.0")

    def compile(self, kernels):
        self.compiled += [problem for _, problem in kernels]

    def built(self, config, problem):
        report = CubinReport(**{**REPORT, "code": self._code})
        return self._built.get(problem, Built("ok", "", report))

    def noise(self, problem, protocol):
        self.noises.append(problem)
        return 0.002

    def duel(self, duel):
        if self._die_after is not None and len(self.duels) >= self._die_after:
            raise KeyboardInterrupt
        self.duels.append((duel.problem, duel.against, duel.process))
        found = self._results.get((duel.problem, duel.against))
        return found or ok(1.1 if duel.against == "cublas" else 1.05)

    def renew(self):
        self.renewed += 1

    def close(self):
        self.closed = True


def ok(speed: float) -> Result:
    figures = {
        "speedup": speed,
        "speedup_low": speed - 0.01,
        "speedup_high": speed + 0.01,
        "pairs": 15,
        "time_us": 100.0,
        "theirs_us": 100 * speed,
        "tflops": 700.0,
        "theirs_tflops": 700 / speed,
        "candidates": 3,
        "choice": "AB id=66",
        "kernel": "nvjet",
    }
    return Result("ok", "", figures, ((100.0, 100 * speed),) * 2)


def comparison(out, **changes) -> Comparison:
    usual = {
        "name": "list",
        "question": "Who is ahead?",
        "problems": PROBLEMS[:2],
        "against": ("cublas", "cublaslt"),
        "regime": "burst",
        "config": "tuned",
        "processes": 1,
        "entries": (entry(PROBLEMS[0]),),
        "out": out,
        "gpu": GPU,
    }
    return Comparison(**{**usual, **changes})


def test_every_problem_meets_every_baseline_and_the_page_has_the_means(tmp_path):
    comparer = FakeComparer()
    seen = []
    watch = lambda cell, result, done, total: seen.append((str(cell), result.status, done, total))  # noqa: E731
    assert comparison(tmp_path).run(watch, comparer=comparer) == 4
    assert [(str(problem), against) for problem, against, _ in comparer.duels] == [
        ("4096x4096x4096", "cublas"),
        ("4096x4096x4096", "cublaslt"),
        ("512x512x512", "cublas"),
        ("512x512x512", "cublaslt"),
    ]
    assert seen[-1] == ("512x512x512 cublaslt", "ok", 4, 4)
    assert comparer.compiled == list(PROBLEMS[:2])
    assert comparer.noises == list(PROBLEMS[:2])
    assert comparer.closed
    page = (tmp_path / PAGE).read_text()
    assert "| geometric mean |  |  | 1.100x | 1.050x |" in page
    assert "Measured on an NVIDIA H200, driver 580.1" in page
    assert len(pd.read_csv(tmp_path / SAMPLES)) == 8
    assert json.loads((tmp_path / ABOUT).read_text())["versions"]["cublaslt"] == "13.1.0"


def test_what_was_measured_before_a_kill_is_not_measured_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        comparison(tmp_path).run(comparer=FakeComparer(die_after=3))
    assert len(read_compare(tmp_path)) == 3
    assert (tmp_path / PAGE).is_file()
    comparer = FakeComparer()
    assert comparison(tmp_path).run(comparer=comparer) == 1
    assert [duel[:2] for duel in comparer.duels] == [(PROBLEMS[1], "cublaslt")]
    comparer = FakeComparer()
    assert comparison(tmp_path).run(comparer=comparer) == 0
    assert not comparer.noises


def test_other_machine_code_or_another_config_is_measured_anew_and_replaces_the_row(tmp_path):
    comparison(tmp_path).run(comparer=FakeComparer())
    slower = FakeComparer(code="new", results={(PROBLEMS[0], "cublas"): ok(0.9)})
    assert comparison(tmp_path).run(comparer=slower) == 4
    frame = read_compare(tmp_path)
    assert len(frame) == 4
    assert frame["speedup"].tolist()[0] == 0.9
    changed = (entry(PROBLEMS[0], tile_m=128),)
    assert comparison(tmp_path, entries=changed).run(comparer=FakeComparer(code="new")) == 2
    frame = read_compare(tmp_path)
    assert set(frame.loc[frame["m"] == PROBLEMS[0].m, "tile_m"]) == {128}


def test_failures_are_rows_and_those_of_the_moment_are_tried_again(tmp_path):
    results = {
        (PROBLEMS[0], "cublas"): Result("timeout", "no answer within 60 s; killed"),
        (PROBLEMS[0], "cublaslt"): Result("no_baseline", "cuBLASLt has no algorithm"),
        (PROBLEMS[1], "cublas"): Result("wrong_result", "3 of 9 elements"),
    }
    comparison(tmp_path).run(comparer=FakeComparer(results))
    assert read_compare(tmp_path)["status"].tolist() == ["timeout", "no_baseline", "wrong_result", "ok"]
    comparer = FakeComparer()
    comparison(tmp_path).run(comparer=comparer)
    assert [duel[:2] for duel in comparer.duels] == [(PROBLEMS[0], "cublas")]
    page = (tmp_path / PAGE).read_text()
    assert "no baseline" in page
    assert "wrong result: 3 of 9 elements" in page
    assert "1.050x over 1 of 2 problems" in page


def test_a_problem_that_tma_cannot_reach_is_compared_as_matmul_runs_it(tmp_path):
    """The duel is about the problem itself; config, kernel and table are those of the one filled up."""
    ragged, filled = GemmProblem(100, 100, 98), GemmProblem(100, 104, 104)
    comparer = FakeComparer()
    run = comparison(tmp_path, problems=(ragged,), against=("cublas",), entries=(entry(filled, tile_m=64),))
    run.run(comparer=comparer)
    assert [duel[0] for duel in comparer.duels] == [ragged]
    assert comparer.compiled == [filled]
    (row,) = read_compare(tmp_path).to_dict("records")
    assert (row["m"], row["n"], row["k"], row["tile_m"], row["status"]) == (100, 100, 98, 64, "ok")
    assert (row["how"], row["tuned_on"]) == ("tuned", "100x104x104 burst")


def test_an_illegal_config_and_a_kernel_that_does_not_compile_are_rows_without_a_duel(tmp_path):
    few = GemmProblem(64, 64, 64)
    spilled = {PROBLEMS[1]: Built("compile_error", "ptxas says no")}
    comparer = FakeComparer(built=spilled)
    entries = (entry(few, tile_m=64, split_k=8, consumers=1),)
    comparison(tmp_path, problems=(few, PROBLEMS[1]), against=("cublas",), entries=entries).run(comparer=comparer)
    assert comparer.duels == []
    assert comparer.compiled == [PROBLEMS[1]]
    frame = read_compare(tmp_path)
    assert frame["status"].tolist() == ["illegal", "compile_error"]
    assert "too short for 8 parts" in frame["reason"].iloc[0]


def test_a_missing_baseline_leaves_no_rows_and_is_told(tmp_path):
    run = comparison(tmp_path, against=("cublas", "quack"))
    run.run(comparer=FakeComparer(missing={"quack": "quack is not installed; pip install quack-kernels"}))
    assert run.missing == {"quack": "quack is not installed; pip install quack-kernels"}
    assert set(read_compare(tmp_path)["against"]) == {"cublas"}
    assert "Without quack: quack is not installed" in (tmp_path / PAGE).read_text()
    comparer = FakeComparer()
    comparison(tmp_path, against=("cublas", "quack")).run(comparer=comparer)
    assert {against for _, against, _ in comparer.duels} == {"quack"}


def test_processes_measure_everything_again_each_in_a_fresh_one(tmp_path):
    comparer = FakeComparer()
    assert comparison(tmp_path, processes=3).run(comparer=comparer) == 12
    assert comparer.renewed == 2
    assert [process for _, _, process in comparer.duels] == [0] * 4 + [1] * 4 + [2] * 4
    rows = comparison(tmp_path).summary()["rows"]
    assert {(row["processes"], row["pairs"]) for row in rows} == {(3, 45)}


def test_a_limit_leaves_the_rest_for_later(tmp_path):
    assert comparison(tmp_path).run(limit=3, comparer=FakeComparer()) == 3
    assert comparison(tmp_path).run(limit=3, comparer=FakeComparer()) == 1


def test_a_folder_of_another_gpu_is_refused(tmp_path):
    comparison(tmp_path).run(comparer=FakeComparer())
    with pytest.raises(ResultsError, match="was begun with another GPU"):
        comparison(tmp_path).run(comparer=FakeComparer(gpu="NVIDIA H100"))


def test_the_tuned_config_is_that_of_the_problem_and_regime_else_what_matmul_picks(tmp_path):
    entries = (
        entry(PROBLEMS[0], tile_m=128),
        entry(PROBLEMS[0], "steady", tile_m=192),
        entry(PROBLEMS[1], tile_m=64, tile_n=64),
    )
    tuned = comparison(tmp_path, entries=entries)
    assert (tuned.pick(PROBLEMS[0]).config.tile_m, tuned.pick(PROBLEMS[0]).how) == (128, "tuned")
    steady = comparison(tmp_path, entries=entries, regime="steady")
    assert (steady.pick(PROBLEMS[0]).config.tile_m, steady.pick(PROBLEMS[0]).how) == (192, "tuned")
    picked = tuned.pick(PROBLEMS[2])
    assert (picked.how, picked.tuned_on) == ("model", "")
    auto = comparison(tmp_path, entries=entries, config="auto").pick(PROBLEMS[1])
    assert (auto.how, auto.tuned_on) == ("model", "")
    assert comparison(tmp_path, entries=()).pick(PROBLEMS[0]).how == "model"


def test_summary_is_json(tmp_path):
    comparison(tmp_path).run(comparer=FakeComparer(results={(PROBLEMS[0], "cublas"): Result("crash", "signal 9")}))
    summary = json.loads(json.dumps(comparison(tmp_path).summary()))
    assert {mean["against"]: mean["problems"] for mean in summary["means"]} == {"cublas": 1, "cublaslt": 2}
    assert summary["rows"][0]["speedup"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"against": "mkl"}, "--against must be among cublas, cublaslt, triton, quack but got 'mkl'"),
        ({"against": ""}, "--against must be among cublas, cublaslt, triton, quack but got ''"),
        ({"regime": "idle"}, "--regime must be one of burst, steady but got 'idle'"),
        ({"config": "best"}, "--config must be one of tuned, auto but got 'best'"),
        ({"sizes": (1, 2)}, "problems are M N K, one after the other, but got 2 numbers"),
        ({"sizes": (8, 8, 0)}, "k must be a positive integer"),
        ({"shapes": ROOT / "sweeps/shapes/suite.toml", "sizes": (8, 8, 8)}, "not both"),
        ({"shapes": ROOT / "sweeps/shapes/drawn.toml", "regime": "steady"}, "no problem of drawn is marked steady"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused_before_a_gpu_is_looked_for(changes, message):
    usual = {"shapes": None, "sizes": (), "against": "cublas"}
    arguments = {**usual, **changes}
    with pytest.raises(ValueError) as caught:
        Comparison.prepare(arguments.pop("shapes"), arguments.pop("sizes"), **arguments)
    assert message in str(caught.value)


def test_problems_are_given_one_after_the_other_and_rows_go_to_a_folder_of_their_own(monkeypatch):
    monkeypatch.setattr(room, "find_hopper", lambda index: GPU)
    prepared = Comparison.prepare(None, (64, 128, 256, 8, 8, 8), against="cublas,cublaslt,cublas", config="auto")
    assert prepared.problems == (GemmProblem(64, 128, 256), GemmProblem(8, 8, 8))
    assert prepared.against == ("cublas", "cublaslt")
    assert prepared.out.name == "compare-shapes-auto"
    assert prepared.out.parent.name == "h200"
    suite = Comparison.prepare(None, (), against="cublas", regime="steady")
    assert len(suite.problems) == 5
    assert "5 problems" in suite.opening
    assert not (suite.out / FILE).exists()
