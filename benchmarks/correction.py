"""Fit a correction of the model to a map, and print its worth: ``python -m benchmarks.correction DIR [OUT.json]``.

The correction is a sum of small trees over features of problem and kernel: the logarithm of the measured over the
predicted time, as far as it differs from kernel to kernel of one problem. It is fitted to kernels that were drawn
uniformly from the menu, never to those that the model picked, and never to what sweeps/shapes/held_out.toml names.
Cross-validation leaves out a fifth of the problems at a time; its figure is the share of the best measured speed that
the first choice among a problem's measured kernels has, with the model alone and corrected.

The file holds the trees as lists: feature, threshold, left, right; or a leaf's value.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log2
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.held_out import read_held_out
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.tune.limits import waves
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import Row

TREES, DEPTH, LEAF, RATE, BINS = 120, 4, 40, 0.1, 32
"""Number of trees, splits on the way to a leaf, rows of a leaf at least, share of a tree that counts, thresholds."""

NEAR = 0.15
"""Rows weigh half at this loss to the best drawn one of their problem: what matters is the order near the top."""

FOLDS, SEED = 5, 27
MOST_BYTES = 200_000

FEATURES = (
    *("m", "n", "k", "tile_m", "tile_n", "stages", "k_depth", "stagger", "cluster_m", "cluster_n", "split_k"),
    *("swapped", "pingpong", "dynamic", "workspace", "ctas_per_sm", "n_walk", "swizzle"),
    *("predicted", "waves", "efficiency", "steps", "load", "ring", "epilogue", "rows_used", "columns_used"),
    *("a_along_k", "b_along_k"),
)
"""Sizes and times as binary logarithms; load and ring relative to math; epilogue relative to a tile's math."""

Tree = list[list[float]]
"""Nodes: [feature, threshold, left, right], or [value]."""


def features(kernel: Kernel, problem: GemmProblem) -> list[float]:
    """The features of a kernel on a problem that TMA reaches."""
    said, falls = predict(kernel, problem), waves(kernel, problem)
    down, across = (problem.n, problem.m) if kernel.swap_ab else (problem.m, problem.n)
    steps = -(-problem.k // (kernel.tile_k * kernel.split_k))
    return [
        *map(log2, (problem.m, problem.n, problem.k, kernel.tile_m, kernel.tile_n)),
        *(kernel.stages, kernel.k_depth, kernel.stagger, kernel.cluster_m, kernel.cluster_n, kernel.split_k),
        *(kernel.swap_ab, kernel.schedule == "pingpong", kernel.scheduler == "dynamic", kernel.work_items > 1),
        *(kernel.ctas_per_sm, kernel.raster == "n", log2(kernel.swizzle)),
        *(log2(said.seconds * 1e6), falls.waves, falls.efficiency, log2(steps)),
        *(said.load / said.math, said.ring / said.math, said.epilogue / (said.math * steps)),
        *(min(1.0, down / kernel.tile_m), min(1.0, across / kernel.tile_n)),
        *(problem.layouts[0] == "k", problem.layouts[1] == "k"),
    ]


@dataclass(frozen=True)
class Data:
    """Rows of a map as arrays.

    Args:
        x: features.
        y: logarithm of measured over predicted time.
        loss: to the best measured of the problem.
        group: index of the problem.
        drawn: True for rows to which may be fitted.
        problems: by index.
    """

    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    group: np.ndarray
    drawn: np.ndarray
    problems: list[GemmProblem]

    def of(self, rows: np.ndarray) -> Data:
        """Some of the rows."""
        return Data(*(part[rows] for part in (self.x, self.y, self.loss, self.group, self.drawn)), self.problems)


def data_of(rows: Sequence[Row], held_out: bool = False) -> Data:
    """The rows of a map that ran, of problems that are not held out; or of those that are, to judge."""
    held, by_problem = read_held_out(), defaultdict[GemmProblem, list[Row]](list)
    for row in rows:
        if row.ok and row.point.against == "cublas" and held.has(row.point.problem) == held_out:
            by_problem[row.point.problem].append(row)
    x, y, loss, group, drawn = [], [], [], [], []
    for index, (problem, own) in enumerate(by_problem.items()):
        best, filled = max(float(row.figures["speedup"]) for row in own), filled_up(problem)
        baseline = float(np.median([row.figures["baseline_us"] for row in own]))
        for row in own:
            speed = float(row.figures["speedup"])
            x.append(features(row.point.config, filled))
            y.append(log(baseline / speed / (predict(row.point.config, filled).seconds * 1e6)))
            loss.append(1 - speed / best)
            group.append(index)
            drawn.append("drawn" in str(row.figures["how"]).split(", "))
    return Data(np.array(x), np.array(y), np.array(loss), np.array(group), np.array(drawn), list(by_problem))


def fit(data: Data, trees: int = TREES) -> list[Tree]:
    """Boost trees on the drawn rows: each is fitted to what is left within each problem, its mean taken off."""
    data = data.of(data.drawn)
    least = np.full(len(data.problems), np.inf)
    np.minimum.at(least, data.group, data.loss)
    weights = 1 / (1 + (1 - (1 - data.loss) / (1 - least[data.group])) / NEAR)
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1])) for column in data.x.T]
    bins = np.stack([np.searchsorted(edge, column, "left") for edge, column in zip(edges, data.x.T, strict=True)], 1)
    total = np.bincount(data.group, weights)
    left, found = data.y.copy(), []
    for _ in range(trees):
        left -= (np.bincount(data.group, weights * left) / np.maximum(total, 1e-12))[data.group]
        tree: Tree = []
        _grow(tree, np.arange(len(left)), bins, left, weights, edges, DEPTH)
        left -= score([tree], data.x)
        found.append(tree)
    return found


def _grow(
    tree: Tree, rows: np.ndarray, bins: np.ndarray, left: np.ndarray, weights: np.ndarray, edges: list[Any], depth: int
) -> int:
    """Add a node for some rows, and those below it; return its number."""
    number = len(tree)
    w, wy = weights[rows], weights[rows] * left[rows]
    tree.append([RATE * float(wy.sum() / w.sum())])
    best = 1e-9, -1, -1
    for feature, edge in enumerate(edges) if depth else ():
        column, size = bins[rows, feature], len(edge) + 1
        counts, sums, ones = (np.bincount(column, of, size).cumsum()[:-1] for of in (w, wy, np.ones(len(rows))))
        able = (ones >= LEAF) & (len(rows) - ones >= LEAF)
        if able.any():
            rest, rest_sums = w.sum() - counts, wy.sum() - sums
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = sums**2 / counts + rest_sums**2 / rest - wy.sum() ** 2 / w.sum()
            gain = np.where(able, gain, -1)
            if gain.max() > best[0]:
                best = float(gain.max()), feature, int(gain.argmax())
    if best[1] >= 0:
        _, feature, at = best
        below = bins[rows, feature] <= at
        threshold = float(f"{edges[feature][at]:.5g}")
        children = [_grow(tree, rows[of], bins, left, weights, edges, depth - 1) for of in (below, ~below)]
        tree[number] = [feature, threshold, *children]
    return number


def score(trees: Sequence[Tree], x: np.ndarray) -> np.ndarray:
    """The correction of each row: what is to be added to the logarithm of its predicted time."""
    total = np.zeros(len(x))
    for tree in trees:
        at = np.zeros(len(x), dtype=int)
        for _ in range(DEPTH):
            for number in np.unique(at):
                if len(node := tree[number]) == 4:
                    rows = at == number
                    at[rows] = np.where(x[rows, int(node[0])] <= node[1], node[2], node[3])
        total += np.array([tree[number][0] for number in at])
    return total


def shares(data: Data, corrections: np.ndarray) -> np.ndarray:
    """Of each problem the share of the best that the first choice among its measured kernels has."""
    expected = data.x[:, FEATURES.index("predicted")] * log(2) + corrections
    found = []
    for group in np.unique(data.group):
        rows = np.flatnonzero(data.group == group)
        found.append(1 - data.loss[rows[np.argmin(expected[rows])]])
    return np.array(found)


def cross_validated(data: Data, trees: int = TREES) -> tuple[np.ndarray, np.ndarray]:
    """Shares with the model alone, and corrected by trees that saw nothing of the problem."""
    groups = random.Random(SEED).sample(range(len(data.problems)), len(data.problems))
    corrections = np.zeros(len(data.y))
    for fold in range(FOLDS):
        out = np.isin(data.group, groups[fold::FOLDS])
        corrections[out] = score(fit(data.of(~out), trees), data.x[out])
    return shares(data, np.zeros(len(data.y))), shares(data, corrections)


def text_of(trees: Sequence[Tree]) -> str:
    """The file of a correction."""
    rounded = [[[float(f"{value:.4g}") for value in node] if len(node) == 1 else node for node in of] for of in trees]
    return json.dumps({"features": FEATURES, "trees": rounded}, separators=(",", ":")) + "\n"


def main(folder: Path, out: Path | None) -> None:
    """Print what a correction is worth; write it where a file is named."""
    rows = read_study(folder).stage("map")
    data = data_of(rows)
    for name, of in zip(("model", "corrected"), cross_validated(data), strict=True):
        mean = float(np.exp(np.log(of).mean()))
        print(json.dumps({"cross-validated": name, "problems": len(of), "share": mean, "worst": float(of.min())}))
    if out is not None:
        text = text_of(fit(data))
        if len(text) > MOST_BYTES:
            sys.exit(f"the correction takes {len(text)} B of {MOST_BYTES}; fit fewer trees")
        out.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
