"""Correction of the analytic model's times by trees that are fitted to recorded launches.

:mod:`.predict` has a reason for every term. Its errors that differ from kernel to kernel of one problem have none that
was found, but they repeat: trees over the :func:`features` of a launch predict them on problems that they were not
fitted to (docs/menu.md). :func:`hopper_gemm.model.menu.choices` ranks its best candidates again with them.

The trees are symmetric: all nodes of a level have one split, so that the answers, as bits, are the number of the leaf.
benchmarks/picks/correct.py fits them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import TypedDict

import numpy as np

from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.hopper import L2_LINE_BYTES
from hopper_gemm.model.predict import Fixed, Prediction, in_blocks
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once, output_sides, tile_sides

FILE = Path(__file__).with_name("correction.json")

LEAF = 1e-4
"""Logarithm of a time that a unit of a leaf stands for."""


class Tree(TypedDict):
    """One symmetric tree.

    Args:
        splits: for each level the number of a feature, and the threshold above which the bit is set.
        leaves: corrections in units of :data:`LEAF`; the first level's bit is the lowest.
    """

    splits: list[tuple[int, float]]
    leaves: list[int]


class Correction:
    """Trees whose corrections add up.

    Args:
        trees: any number; all with as many levels.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        splits = np.array([tree["splits"] for tree in trees], dtype=np.float32)
        self._features, self._thresholds = splits[..., 0].astype(int), splits[..., 1]
        self._bits = 1 << np.arange(splits.shape[1])
        self._leaves = np.array([tree["leaves"] for tree in trees], dtype=float) * LEAF
        self._trees = np.arange(len(trees))

    def __call__(self, rows: Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
        """Factors on predicted times, for rows of :func:`features`."""
        above = np.asarray(rows, dtype=np.float32)[:, self._features] > self._thresholds
        return np.exp(self._leaves[self._trees, above @ self._bits].sum(axis=1))


def features(
    fixed: Fixed, predicted: Prediction, problem: GemmProblem, chip: Chip = SXM, finish: Epilogue | None = None
) -> tuple[float, ...]:
    """Features of a launch, by whose numbers the trees split.

    Args:
        fixed, problem, chip, finish: as for :func:`hopper_gemm.model.predict.predict_fixed`.
        predicted: what it returned.
    """
    kernel, words = fixed.kernel, problem.in_words
    most = max(predicted.math, predicted.load, predicted.l2, predicted.ring)
    sides, clocks = tile_sides(kernel, problem.m, problem.n), predicted.seconds * predicted.clock_hz
    clusters = sides[0] * sides[1] * fixed.items
    steps = ceil(ceil(words.k / kernel.tile_k) / kernel.split_k)
    down, across = output_sides(kernel, problem.m, problem.n)
    a, b = (axis == "k" for axis in problem.layouts)
    return (
        chip.memory_rate / 1e12,
        *(a, b, kernel.swap_ab, problem.promote, in_blocks(problem, finish)),
        # what limits a stage, and shares of the launch
        *(predicted.math / most, predicted.load / most, predicted.l2 / most, predicted.ring / most),
        *(predicted.epilogue / clocks, steps * most * predicted.waves / clocks),
        # rounds of the launch, and how full they are
        *(predicted.waves, clusters, clusters / (predicted.waves * clusters_at_once(fixed.size, chip)), steps),
        *(down / (ceil(down / kernel.tile_m) * kernel.tile_m), across / (ceil(across / kernel.tile_n) * kernel.tile_n)),
        # the kernel
        *(kernel.tile_m, kernel.tile_n, kernel.tile_k, kernel.stages, kernel.stagger, kernel.consumers),
        *(kernel.cluster_m, kernel.cluster_n, kernel.ctas_per_sm, kernel.schedule == "pingpong"),
        *(
            kernel.scheduler == "dynamic",
            kernel.split_k,
            fixed.items,
            kernel.part_order == "part",
            kernel.raster == "m",
        ),
        # where rows start in the L2's lines
        *(ELEMENT_BYTES * side % L2_LINE_BYTES for side in (problem.m, problem.n, words.k)),
    )


@cache
def shipped() -> Correction:
    """The trees that picks are ranked with."""
    return Correction(json.loads(FILE.read_text(encoding="utf-8")))


def is_learnt(problem: GemmProblem) -> bool:
    """True for the kind of products that the trees rank: those that TMA reaches, and free to let the bits of a row
    depend on m. They were fitted to isolated launches of H100s and H200s without a finish, scales aside, and are
    trusted with any finish, a gate among them (docs/menu.md)."""
    return not (problem.out_of_reach or problem.batch_invariant)
