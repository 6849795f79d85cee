"""The model's constants are fitted to recorded bursts, never to what is held out, and judged on what is left out."""

from __future__ import annotations

import json
import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

import hopper_gemm.model.menu as menus
from benchmarks.fresh import drawn_in_fp8
from benchmarks.held_out import read_held_out
from benchmarks.picks import correct, fit
from benchmarks.picks.bursts import Bursts, ReachingOut, _torn, bursts_of, gated_bursts
from docs.generate.measurements import measurement, text_of
from hopper_gemm.model.correction import LEAF, Correction
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import menu
from hopper_gemm.model.predict import FITTED, predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.limits import CHIPS
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import Row
from tests.conftest import ROOT

HELD_OUT = GemmProblem(777, 4608, 3584)
UNEVEN = [GemmProblem(m, n, k) for m in (64, 300, 2000) for n, k in ((256, 4008), (896, 520), (4096, 4096))]
"""Problems that each slowing share concerns: rows of some start off sectors."""
PROBLEMS = [
    *(GemmProblem(m, n, k) for m in (64, 300, 2000, 6000) for n, k in ((256, 4000), (896, 512), (5000, 1024))),
    HELD_OUT,
]

SCALED = [problem for _, problem in drawn_in_fp8(5, 1) if not read_held_out().has(problem)]


def measured(problem, constants=FITTED):
    """Bursts of 60 kernels that take what the model says with these constants."""
    rng = random.Random(str(problem))
    kernels = tuple(rng.sample([one for one in menu() if is_legal(one, problem)], 60))
    seconds = np.array([predict(one, problem, constants=constants).seconds for one in kernels])
    return Bursts(problem, kernels, seconds, seconds.min() / seconds, float(seconds.min() * 1e6))


@pytest.fixture
def recorded(monkeypatch):
    """Isolated bursts of a GPU whose L2 is slower and whose launches take longer than the model says; nothing beside
    its limits slows a launch."""
    truth = replace(FITTED, **fit.NO_SHARES, l2_share=0.7 * FITTED.l2_share, launch=1.4 * FITTED.launch)
    found = {"isolated": tuple(measured(problem, truth) for problem in PROBLEMS), "chained": ()}
    monkeypatch.setattr(fit, "bursts_of", lambda context, fp8=False: () if fp8 else found[context])
    return truth


def test_the_fit_finds_the_constants_behind_the_times(recorded, monkeypatch):
    named = ("l2_share", "launch")
    monkeypatch.setattr(fit, "START", {name: getattr(FITTED, name) for name in named})
    expected = {name: pytest.approx(getattr(recorded, name), rel=0.02) for name in named}
    assert fit.fit([]) == expected | {name: pytest.approx(value, abs=1e-3) for name, value in fit.NO_SHARES.items()}


def test_the_second_step_finds_what_slows_launches_and_keeps_their_mean_time():
    """It goes by the order of a problem's kernels alone: that all times are twice as long changes nothing. ``level``
    makes up for the shares, so that launches near the fastest are predicted no longer than without these on average."""
    slowing = {"alike": 0.04, "shared": 0.03, "single": 0.02, "small": 0.01}
    bursts = [measured(problem, replace(FITTED, **fit.NO_SHARES | slowing)) for problem in UNEVEN]
    found = fit.slowing({}, [replace(burst, seconds=2 * burst.seconds) for burst in bursts])
    assert {name: found[name] for name in slowing} == pytest.approx(slowing, rel=0.1)
    changes = [
        np.average(
            fit.errors(replace(FITTED, **found), [burst]) - fit.errors(replace(FITTED, **fit.NO_SHARES), [burst]),
            weights=np.exp((burst.share - 1) / fit.BESIDE),
        )
        for burst in bursts
    ]
    assert np.mean(changes) == pytest.approx(0.0, abs=0.002)


def test_held_out_problems_and_those_left_out_are_not_fitted_to(recorded):
    free = {problem for problem in PROBLEMS if not read_held_out().has(problem)}
    assert HELD_OUT not in free
    assert {one.problem for one in fit.Fit().bursts} == free
    assert {one.problem for one in fit.Fit(PROBLEMS[:3]).bursts} == free - set(PROBLEMS[:3])
    dealt = [one.problem for part in fit.parts() for one in part]
    assert len(dealt) == len(free)
    assert set(dealt) == free


def test_rows_that_are_added_move_no_problem_to_another_part(recorded, monkeypatch):
    """Else problems count as left out to which the recorded constants were fitted."""
    before = {one.problem: number for number, part in enumerate(fit.parts()) for one in part}
    more = tuple(measured(problem) for problem in (*UNEVEN, *PROBLEMS))
    monkeypatch.setattr(fit, "bursts_of", lambda context, fp8=False: more)
    after = {one.problem: number for number, part in enumerate(fit.parts()) for one in part}
    assert len(after) > len(before)
    assert after | before == after


def test_a_choice_is_judged_by_the_speed_of_what_it_takes():
    one, nothing = measured(PROBLEMS[0]), Correction([[0]], [[0.0]], [[0, 0]])
    expected, slower = one.seconds, one.seconds * np.where(one.share == 1, 1.25, 1.0)
    as_said = fit.first_choices(FITTED, nothing, one)
    assert as_said["model"] == as_said["trees"]
    assert (as_said["model"]["share"], as_said["model"]["near"]) == (1.0, pytest.approx(0.0, abs=1e-20))
    fooled = replace(one, seconds=slower, share=slower.min() / slower)
    share = slower.min() / (1.25 * expected.min())
    assert fit.first_choices(FITTED, nothing, fooled)["model"]["share"] == pytest.approx(share)


def test_trees_that_know_what_the_model_missed_choose_the_fastest(monkeypatch):
    """Kernels that swap A and B, or those that do not, take twice as long as the model says: those it ranks first."""
    monkeypatch.setattr(menus, "WITHIN", 4.0)
    one = measured(PROBLEMS[0])
    _, rows = fit.rows_of(one, FITTED)
    swapped = np.array([kernel.swap_ab for kernel in one.kernels])
    (figure,) = (number for number, column in enumerate(rows.T) if (column == swapped).all())
    missed = swapped == swapped[one.seconds.argmin()]
    leaves = [0, round(math.log(2) / LEAF)]
    knowing = Correction([[figure]], [[0.5]], [leaves if swapped[missed][0] else leaves[::-1]])
    slower = one.seconds * np.where(missed, 2.0, 1.0)
    found = fit.first_choices(FITTED, knowing, replace(one, seconds=slower, share=slower.min() / slower))
    assert found["model"]["share"] < found["trees"]["share"] == 1.0


def test_the_trees_of_a_part_are_fitted_to_none_of_its_problems_of_either_width(monkeypatch):
    """Else what they are worth there would be no judgement."""
    found = {False: [measured(problem) for problem in PROBLEMS], True: []}
    found[True] = [replace(one, problem=problem) for one, problem in zip(found[False], SCALED, strict=False)]
    monkeypatch.setattr(fit, "bursts_of", lambda context, fp8=False: tuple(found[fp8]))
    monkeypatch.setattr(correct, "trees_of", lambda constants, bursts: [one.problem for one in bursts])
    monkeypatch.setattr(correct, "ProcessPoolExecutor", ThreadPoolExecutor)
    whole, *rest = correct.fitted()
    gated = {one.problem for one in gated_bursts()}
    assert {*SCALED, *gated} < {*whole}
    for kept, *parts in zip(rest, fit.parts(), fit.parts(found[True]), fit.parts(gated_bursts()), strict=True):
        apart = {one.problem for part in parts for one in part}
        assert {*kept} == {*whole} - apart


def test_recorded_gates_are_bursts_with_their_finish():
    found = gated_bursts()
    assert len(found) == len(measurement("measurements/gated.jsonl").read_text().splitlines())
    assert all(one.finish.gated and one.share.max() == 1 and len(one.kernels) > 20 for one in found)
    assert all(is_legal(kernel, one.problem, one.finish) for one in found for kernel in one.kernels)
    _, rows = fit.rows_of(found[0], FITTED)
    assert rows[:, -1].all(), "trees see the gate"


def test_rows_beside_an_unsteady_torch_mm_are_left_out(monkeypatch):
    """A speedup over it says nothing of the kernel then."""
    one = measured(PROBLEMS[4])
    us = [100.0] * (len(one.kernels) - 1) + [140.0]
    rows = [
        Row(Point(one.problem, kernel), "ok", "", {"speedup": 1.0, "baseline_us": each, "pairs": 5}, (), "map")
        for kernel, each in zip(one.kernels, us, strict=True)
    ]

    class Study:
        provenance = MappingProxyType({"gpu": {"name": "NVIDIA H200"}, "created": "2026-11-25 00:00 UTC"})

        def stage(self, *names):
            return [row for row in rows if row.stage in names]

    monkeypatch.setattr("benchmarks.picks.bursts.read_study", lambda folder: Study())
    (found,) = bursts_of("isolated", ("anywhere",))
    assert {type(kernel) for kernel in found.kernels} == {ReachingOut}
    assert [Kernel.like(kernel) for kernel in found.kernels] == [Kernel.like(kernel) for kernel in one.kernels[:-1]]
    assert found.torch_us == 100.0


def test_rows_are_of_one_kind_of_gpu_each_and_torn_launches_are_left_out():
    between = tuple(ROOT / f"results/{kind}/between" for kind in ("h100", "h200"))
    found = bursts_of("isolated", between)
    assert [one.chip for one in found] == [CHIPS["h100"]] * 12 + [CHIPS["h200"]] * 12
    assert len({one.problem for one in found}) == 12
    mapped = ROOT / "results/archive/h200/2026-11-24-map"
    torn = [row for row in read_study(mapped).stage("map") if not row.point.is_baseline and _torn(row)]
    kernels = {(one.problem, kernel) for one in bursts_of("isolated", (mapped,)) for kernel in one.kernels}
    assert torn
    assert not kernels & {(row.point.problem, row.point.config) for row in torn}


def test_the_models_constants_are_those_that_were_fitted():
    fitted = json.loads(measurement("measurements/constants.json").read_text())
    assert len(fitted) == 1 + fit.PARTS
    assert {name: getattr(FITTED, name) for name in fitted[0]} == fitted[0]
    assert {*fitted[0]} == {*fit.START, *fit.NO_SHARES}
    assert all(math.isfinite(value) and value > 0 for value in fitted[0].values())


@pytest.mark.results
@pytest.mark.timeout(300)
def test_the_models_worth_is_what_the_rows_give():
    fitted, trees = (json.loads(text_of(measurement(f"measurements/{name}"))) for name in fit.FITTED_FILES)
    assert len(trees) == fit.PARTS
    assert (fit.MEASURED / "model.csv").read_text() == fit.table_of(fit.judged(fitted, trees))
