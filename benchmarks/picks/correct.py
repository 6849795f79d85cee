"""Fit the trees of :mod:`hopper_gemm.model.correction` to what the model leaves of recorded bursts.

    python -m benchmarks.picks.correct        half a minute of two cores

It writes hopper_gemm/model/correction.json, fitted to all problems that are not held out, and
results/measurements/corrections.json, fitted without about a fifth of them at a time: what these trees are worth on
the problems that they have not seen is what benchmarks/picks/fit.py judges. The extra ``fit`` brings CatBoost.

Minimised: squares of the logarithm of measured over predicted time, less its mean over the kernels near the fastest of
the problem. Kernels that the model ranks high weigh most, since the trees rank them alone; problems with many rows
weigh less than in proportion. The size of the trees was chosen by cross-validation over all problems, those held out
among them, between 100 and 1000 trees of 5 to 7 levels: more and deeper trees pick little better.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.picks.bursts import Bursts
from benchmarks.picks.fit import MEASURED, Constants, not_held_out, parts, rows_of
from docs.generate.measurements import measurement, record
from hopper_gemm.model.correction import FILE, LEAF, Tree
from hopper_gemm.model.predict import ModelConstants
from hopper_gemm.model.problem import GemmProblem

TREES, LEVELS, RATE, PULL, BORDERS, SEED = 300, 6, 0.12, 5.0, 64, 27
"""Trees, levels of each, learning rate, regularisation of leaves, thresholds of a feature, and the seed."""

MEAN, HIGH, FLOOR, MOST, EVENED = 0.08, 0.1, 0.05, 0.4, 0.5
"""Loss at which a row counts 1/e for its problem's mean; logarithm of predicted over best predicted time at which it
weighs 1/e in the fit, and its least weight; bound of the errors; power of a problem's sum of weights that they are
divided by."""

DIGITS = 5


def trees_of(constants: Constants, bursts: Sequence[Bursts]) -> list[Tree]:
    """Trees fitted to what a model with these constants leaves of bursts."""
    from catboost import CatBoostRegressor  # type: ignore[import-not-found,import-untyped,unused-ignore]

    model, figures, wanted, weights = ModelConstants(**constants), [], [], []
    for one in bursts:
        seconds, rows = rows_of(one, model)
        off, close = np.log(one.seconds / seconds), np.exp((one.share - 1) / MEAN)
        weight = np.exp(-np.log(seconds / seconds.min()) / HIGH) + FLOOR
        figures.append(rows)
        wanted.append((off - off @ close / close.sum()).clip(-MOST, MOST))
        weights.append(weight / weight.sum() ** EVENED)
    learner = CatBoostRegressor(
        iterations=TREES,
        depth=LEVELS,
        learning_rate=RATE,
        l2_leaf_reg=PULL,
        border_count=BORDERS,
        random_seed=SEED,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    )
    learner.fit(np.concatenate(figures), np.concatenate(wanted), sample_weight=np.concatenate(weights))
    return trees_in(learner)


def trees_in(learner: Any) -> list[Tree]:
    """The trees of a CatBoost model, without its mean."""
    with TemporaryDirectory() as folder:
        learner.save_model(f"{folder}/trees.json", format="json")
        saved = json.loads(Path(folder, "trees.json").read_text())
    numbers = [feature["flat_feature_index"] for feature in saved["features_info"]["float_features"]]
    return [_tree(tree, numbers) for tree in saved["oblivious_trees"]]


def _tree(saved: dict[str, Any], numbers: Sequence[int]) -> Tree:
    """A tree as CatBoost saves it; levels that it lacks repeat its first split, and change nothing."""
    splits = [(numbers[one["float_feature_index"]], float(f"{one['border']:.{DIGITS}g}")) for one in saved["splits"]]
    lacking = LEVELS - len(splits)
    leaves = [round(value / LEAF) for value in saved["leaf_values"]]
    return {"splits": splits + splits[:1] * lacking, "leaves": leaves * 2**lacking}


def fitted() -> list[list[Tree]]:
    """Trees fitted to all problems, then without each part of them."""
    every = [*not_held_out(), *not_held_out(fp8=True)]
    apart = [{one.problem for one in (*of_16, *of_8)} for of_16, of_8 in zip(parts(), parts(fp8=True), strict=True)]
    kept = [[one for one in every if one.problem not in out] for out in (set[GemmProblem](), *apart)]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(trees_of, json.loads(measurement("measurements/constants.json").read_text()), kept))


def text_of(trees: Sequence[Tree]) -> str:
    """The file of trees, one a line."""
    return "[\n" + ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in trees) + "\n]\n"


def main() -> None:
    """Fit and write both files."""
    whole, *rest = fitted()
    FILE.write_text(text_of(whole))
    path = MEASURED / "corrections.json"
    path.write_text("[\n" + ",\n".join(map(text_of, rest)) + "]\n")
    record(path)


if __name__ == "__main__":
    main()
