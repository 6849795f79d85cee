"""Trees that rank a pick's candidates again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fresh import drawn, drawn_in_fp8
from benchmarks.picks import correct
from hopper_gemm.model import menu as menus
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.correction import FILE, LEAF, Correction, features, is_learnt, shipped
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.menu import by_model, choices
from hopper_gemm.model.predict import Fixed, predict_fixed
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.walk import abreast
from hopper_gemm.tune.limits import CHIPS
from tests.conftest import ROOT

HALF = {"features": [[1, 0]], "thresholds": [[0.5, 10.0]], "leaves": [[0, 100, -200, 300]]}
PROBLEMS = [problem for _, problem in (*drawn(5, 2), *drawn_in_fp8(5, 2))]


def test_answers_are_the_bits_of_the_leafs_number_and_corrections_add_up():
    rows = [(10.0, 0.5), (10.0, 0.6), (11.0, 0.5), (11.0, 0.6)]
    assert Correction(**HALF)(rows) == pytest.approx(np.exp(LEAF * np.array([0, 100, -200, 300])))
    both = {name: values * 2 for name, values in HALF.items()}
    assert Correction(**both)(rows) == pytest.approx(Correction(**HALF)(rows) ** 2)


def test_every_figure_that_the_shipped_trees_ask_for_is_seen_of_every_kind_of_problem():
    with np.load(FILE) as trees:
        asked = {*trees["features"].ravel().tolist()}
    for problem in PROBLEMS:
        for chip in CHIPS.values():
            for _, _, fixed, predicted in by_model(problem, 2, chip, None):
                row = features(fixed, predicted, problem, chip)
                assert all(math.isfinite(feature) for feature in row)
                assert asked <= {*range(len(row))}
                assert 0.5 < shipped()([row])[0] < 2


def test_a_launch_is_seen_in_the_order_that_the_trees_were_fitted_to():
    """They name figures by their numbers alone."""
    sides = {"tile_m": 64, "tile_n": 96, "cluster_m": 2, "swap_ab": True}
    config = GemmConfig(**sides, split_k=3, reduction="workspace", stagger=0, k_depth=8)
    fixed, problem = Fixed(resolve(config)), GemmProblem(776, 1032, 2056, layouts="mk")
    predicted = predict_fixed(fixed, problem)
    row = features(fixed, predicted, problem)
    assert row[:6] == (4.3, False, True, True, 0, False)
    most = max(predicted.math, predicted.load, predicted.l2, predicted.ring)
    assert row[6:10] == tuple(each / most for each in (predicted.math, predicted.load, predicted.l2, predicted.ring))
    assert row[12:14] == (predicted.waves, 9 * 9 * 3)
    assert row[15:18] == (6, pytest.approx(1032 / 1088), pytest.approx(776 / 864))
    assert row[18:28] == (64, 96, 128, 5, 0, 1, 2, 1, 1, False)
    assert row[28:] == (False, 3, 3, False, True, 16, 16, 16, False)


def test_the_data_of_a_pick_are_small():
    model = ROOT / "hopper_gemm/model"
    assert sum(path.stat().st_size for path in (FILE, *model.glob("*.json"))) < 200_000


def test_the_models_best_are_ranked_by_corrected_times_and_the_rest_stay():
    counts = []
    for problem in PROBLEMS:
        best = by_model(problem, 20)
        near = [one for one in best[: menus.CORRECTED] if one[0] <= menus.WITHIN * best[0][0]]
        rows = [features(fixed, predicted, problem) for _, _, fixed, predicted in near]
        times = shipped()(rows) * [seconds for seconds, *_ in near]
        order = [*np.argsort(times, kind="stable"), *range(len(near), len(best))]
        for count in (1, 4, 20):
            ordered = [best[at][2].kernel.compiled() for at in order[:count]]
            assert [one.compiled() for one in choices(problem, count)] == ordered
        counts.append(len(near))
    assert min(counts) < menus.CORRECTED == max(counts)


def test_choices_are_as_many_as_asked_for_and_those_close_behind():
    for problem in PROBLEMS:
        every = by_model(problem, 20)
        for count, close in ((1, 0), (3, 0), (1, 16), (8, 4), (20, 16)):
            near = [one for one in every[:close] if one[0] <= menus.WITHIN * every[0][0]]
            assert by_model(problem, count, close=close) == every[: max(count, len(near))]


def test_the_trees_change_some_picks():
    changed = [problem for problem in PROBLEMS if choices(problem, 1, CHIPS["h100"])[0] != first(problem)]
    assert 0 < len(changed) < len(PROBLEMS)


def first(problem):
    """The model's own choice."""
    return abreast(by_model(problem, 1, CHIPS["h100"])[0][2].kernel, problem, CHIPS["h100"])


def test_what_the_trees_were_not_fitted_to_keeps_the_models_order():
    problem = GemmProblem(320, 4096, 4096)
    assert is_learnt(problem)
    for one in (replace(problem, batch_invariant=True), GemmProblem(320, 4096, 4095)):
        assert not is_learnt(one)
        kernels = [fixed.kernel.compiled() for _, _, fixed, _ in by_model(one, 4)]
        assert [kernel.compiled() for kernel in choices(one, 4)] == kernels


def test_a_shallow_tree_is_written_with_levels_that_change_nothing(tmp_path):
    splits = [{"border": 0.123456789, "float_feature_index": 0}]
    saved = {
        "features_info": {"float_features": [{"flat_feature_index": 7}]},
        "oblivious_trees": [{"splits": splits, "leaf_values": [-1.0, 2.0]}],
    }
    trees = correct.trees_in(Saved(saved))
    assert trees["features"] == [[7] * correct.LEVELS]
    assert trees["thresholds"] == [[0.12346] * correct.LEVELS]
    rows = np.zeros((2, 8))
    rows[1, 7] = 1.0
    assert Correction(**trees)(rows) == pytest.approx(np.exp([-1.0, 2.0]))
    correct.write(trees, path := tmp_path / "trees.npz")
    with np.load(path) as packed:
        assert Correction(**packed)(rows) == pytest.approx(np.exp([-1.0, 2.0]))


class Saved:
    """A stand-in for a fitted CatBoost model."""

    def __init__(self, model):
        self.model = model

    def save_model(self, path, format):
        Path(path).write_text(json.dumps(self.model))


def test_trees_are_written_as_catboost_predicts():
    catboost = pytest.importorskip("catboost", reason="the extra fit brings CatBoost")
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 5)).astype(np.float32)
    learner = catboost.CatBoostRegressor(iterations=20, depth=correct.LEVELS, verbose=False, allow_writing_files=False)
    learner.fit(rows, rows[:, 1] * (rows[:, 3] > 0))
    factors = np.log(Correction(**correct.trees_in(learner))(rows))
    _, bias = learner.get_scale_and_bias()
    assert factors == pytest.approx(learner.predict(rows) - bias, abs=20 * LEAF)


def test_a_launch_is_seen_alike_whatever_was_predicted_before():
    problem = GemmProblem(777, 1024, 2048)
    for _, _, fixed, predicted in by_model(problem, 3):
        again = Fixed(fixed.kernel)
        assert features(again, predict_fixed(again, problem), problem) == features(fixed, predicted, problem)
