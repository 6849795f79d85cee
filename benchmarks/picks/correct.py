"""Fit the trees of :mod:`hopper_gemm.model.correction` to what the model leaves of recorded bursts.

    python -m benchmarks.picks.correct            two minutes of two cores
    python -m benchmarks.picks.correct number     results/measurements/trees.csv, a minute

It writes hopper_gemm/model/correction.npz, fitted to all problems that are not held out, and
results/measurements/corrections.json.gz, fitted without about a fifth of them at a time: what these trees are worth on
the problems that they have not seen is what benchmarks/picks/fit.py judges. The extra ``fit`` brings CatBoost.

Minimised: squares of the logarithm of measured over predicted time, less its mean over the kernels near the fastest of
the problem. Kernels that the model ranks high weigh most, since the trees rank them alone; problems with many rows
weigh less than in proportion. ``number`` writes what more and fewer trees are worth on seeds that none of them was
fitted to (:data:`JUDGES`), by which their number was chosen.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from benchmarks.picks.bursts import Bursts, bursts_of, gated_bursts
from benchmarks.picks.fit import MEASURED, Constants, first_choices, not_held_out, parts, rows_of
from docs.generate.measurements import measurement, record
from hopper_gemm.model.correction import FILE, LEAF, Correction
from hopper_gemm.model.predict import ModelConstants
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.reader import recorded_folders

TREES, LEVELS, RATE, PULL, BORDERS, SEED = 1000, 6, 0.08, 5.0, 64, 27
"""Trees, levels of each, learning rate, regularisation of leaves, thresholds of a feature, and the seed."""

MEAN, HIGH, FLOOR, MOST, EVENED = 0.08, 0.1, 0.05, 0.4, 0.5
"""Loss at which a row counts 1/e for its problem's mean; logarithm of predicted over best predicted time at which it
weighs 1/e in the fit, and its least weight; bound of the errors; power of a problem's sum of weights that they are
divided by."""

DIGITS = 5

JUDGES, NUMBERS = range(12, 20), {0.12: (300,), RATE: (300, 600, 1000, 1500, 2000, 3000)}
"""Seeds of problems that nobody chose, and numbers of trees by learning rate, that are compared with one another."""

Trees = dict[str, list[list[float]]]
"""The arguments of :class:`hopper_gemm.model.correction.Correction`."""


def trees_of(constants: Constants, bursts: Sequence[Bursts], number: int = TREES, rate: float = RATE) -> Trees:
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
        iterations=number,
        depth=LEVELS,
        learning_rate=rate,
        l2_leaf_reg=PULL,
        border_count=BORDERS,
        random_seed=SEED,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    )
    learner.fit(np.concatenate(figures), np.concatenate(wanted), sample_weight=np.concatenate(weights))
    return trees_in(learner)


def trees_in(learner: Any) -> Trees:
    """The trees of a CatBoost model, without its mean."""
    with TemporaryDirectory() as folder:
        learner.save_model(f"{folder}/trees.json", format="json")
        saved = json.loads(Path(folder, "trees.json").read_text())
    numbers = [feature["flat_feature_index"] for feature in saved["features_info"]["float_features"]]
    found: Trees = {"features": [], "thresholds": [], "leaves": []}
    for tree in saved["oblivious_trees"]:
        splits = [(numbers[one["float_feature_index"]], float(f"{one['border']:.{DIGITS}g}")) for one in tree["splits"]]
        lacking = LEVELS - len(splits)  # such levels repeat the first split, and change nothing
        splits += splits[:1] * lacking
        found["features"].append([number for number, _ in splits])
        found["thresholds"].append([threshold for _, threshold in splits])
        found["leaves"].append([round(value / LEAF) for value in tree["leaf_values"]] * 2**lacking)
    return found


def fitted() -> list[Trees]:
    """Trees fitted to all problems, then without each part of them."""
    every = [*not_held_out(), *not_held_out(fp8=True), *gated_bursts()]
    apart = [{one.problem for one in part} for part in parts(every)]
    kept = [[one for one in every if one.problem not in out] for out in (set[GemmProblem](), *apart)]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(trees_of, json.loads(measurement("measurements/constants.json").read_text()), kept))


def write(trees: Trees, path: Path) -> None:
    """Write trees in the types that hold them, packed."""
    types = {"features": np.uint8, "thresholds": np.float32, "leaves": np.int16}
    np.savez_compressed(path, **{name: np.array(trees[name], kind) for name, kind in types.items()})  # type: ignore[arg-type]


def by_number() -> str:
    """The table of the share that first choices of unseen problems have of the fastest, by number of trees."""
    seeds = {f"fresh-{seed}" for seed in JUDGES}
    judges = bursts_of("isolated", tuple(folder for folder in recorded_folders() if folder.name in seeds))
    unseen = {one.problem for one in judges}
    kept = [one for one in (*not_held_out(), *not_held_out(fp8=True)) if one.problem not in unseen]
    constants = json.loads(measurement("measurements/constants.json").read_text())[0]
    model = ModelConstants(**constants)
    lines = ["rate,trees,problems,share,below_0.95"]
    for rate, numbers in NUMBERS.items():
        trees = trees_of(constants, kept, max(numbers), rate)
        for number in numbers:
            first = Correction(**{name: values[:number] for name, values in trees.items()})
            share = np.array([first_choices(model, first, one)["trees"]["share"] for one in judges])
            mean, far = np.exp(np.log(share).mean()), (share < 0.95).mean()
            lines.append(f"{rate:g},{number},{len(share)},{mean:.4f},{far:.3f}")
    return "\n".join([*lines, ""])


def main(what: Literal["fit", "number"]) -> None:
    """Fit and write both files, or the table."""
    if what == "number":
        path = MEASURED / "trees.csv"
        path.write_text(by_number())
        record(path)
        return
    whole, *rest = fitted()
    write(whole, FILE)
    path = MEASURED / "corrections.json.gz"
    path.write_bytes(gzip.compress(json.dumps(rest, separators=(",", ":")).encode() + b"\n", mtime=0))
    record(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picks.correct")
    parser.add_argument("what", nargs="?", choices=("fit", "number"), default="fit")
    main(parser.parse_args().what)
