"""What is timed beside the menu lies outside of it, in different shapes, the best by the model first."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import between
from benchmarks.held_out import read_held_out
from benchmarks.menu import Case, predicted
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import binaries, choices
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.study.space import points
from hopper_gemm.tune.study.spec import read_spec
from tests.conftest import ROOT


def test_the_kernels_beyond_the_menu_are_the_best_of_different_shapes():
    problem = GemmProblem(257, 28672, 4096)
    found = between.beyond(problem, 6)
    assert not {one.compiled() for one in found} & set(binaries())
    assert all(is_legal(one, problem) for one in found)
    assert len({(one.tile_m, one.tile_n, one.swap_ab, one.split_k, one.schedule) for one in found}) == 6
    times = [predict(one, problem).seconds for one in found]
    assert times == sorted(times)
    assert times[0] < predict(choices(problem, 1)[0], problem).seconds


def test_the_sweep_times_the_picks_and_the_others_of_each_problem_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(between, "CLOSE", 0.2)
    path = tmp_path / "between.toml"
    others = between.beyond(between.PROBLEMS[0], 20)
    timed = {one.compiled() for one in others[: between.BEYOND]}
    brought = [one for one in others if one.compiled() not in timed][:1]
    path.write_text(between.sweep_text(brought))
    asked = points(read_spec(path))
    assert not any(asked.values())
    binaries = {point.config.compiled() for point in asked if point.problem == between.PROBLEMS[0]}
    assert brought[0].compiled() in binaries
    for problem in between.PROBLEMS:
        configs = {point.config for point in asked if point.problem == problem}
        assert {*choices(problem, between.PICKS), *between.beyond(problem, between.BEYOND)} <= configs
        assert len(configs) <= between.PICKS + between.BEYOND + 2


def test_rows_are_judged_by_the_best_inside_and_outside_of_the_menu():
    lines = between.judged(ROOT / "results/archive/h200/2026-11-24-map-picks")
    told = [re.match(r"\S+: pick (\S+), menu (\S+) \(", line) for line in lines]
    assert len(lines) == 35
    assert all(float(one[1]) <= float(one[2]) or one[1] == "nan" for one in told)
    (line,) = between.judged(ROOT / "results/archive/h200/2026-11-21-tune-2304x2304x4096-burst")
    assert re.fullmatch(r"2304x2304x4096: pick nan, beyond 0.996 \(384x112x64 .*\)", line)


@pytest.mark.results
@pytest.mark.timeout(300)
def test_an_exchange_keeps_the_size_of_the_menu_and_serves_rows_between_its_tiles_better(monkeypatch):
    """From the menu of when it was exchanged for such rows, without the widths that came; judged on a fifth of the
    problems. With the kernels that were added since little is left to gain."""
    fewer = {problem: of for number, (problem, of) in enumerate(between.searched().items()) if number % 5 == 0}
    monkeypatch.setattr(between, "searched", lambda: fewer)
    monkeypatch.setattr(between, "read_shapes", lambda path: SimpleNamespace(problems=read_shapes(path).problems[::5]))
    narrow = tuple(one for one in binaries()[:256] if one.tile_n % 16 == 0)
    assert len(narrow) < 256
    monkeypatch.setattr(between, "binaries", lambda: narrow)
    menu = between.exchanged(2)
    assert len(set(menu)) == len(narrow)
    assert len(set(menu) - set(narrow)) == 2
    problems = between.rows_between()
    assert not any(read_held_out().has(one) for one in problems)
    cases = [Case(problem) for problem in problems]
    before, after = (predicted(of, cases).min(axis=1) for of in (narrow, menu))
    assert np.log(after).mean() < np.log(before).mean() - 0.001
