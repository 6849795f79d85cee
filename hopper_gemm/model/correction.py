"""Correction of the analytic model's times by trees that are fitted to recorded launches.

:mod:`.predict` has a reason for every term. Its errors that differ from kernel to kernel of one problem have none that
was found, but they repeat: trees over the :func:`features` of a launch predict them on problems that they were not
fitted to (docs/menu.md). :func:`hopper_gemm.model.menu.choices` ranks its best candidates again with them.

The trees are symmetric: all nodes of a level have one split, so that the answers, as bits, are the number of the leaf.
benchmarks/picks/correct.py fits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np

from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.hopper import L2_LINE_BYTES
from hopper_gemm.model.predict import Fixed, Prediction, in_blocks
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once, output_sides, tile_sides

Numbers = Sequence[Sequence[float]] | np.ndarray

FILE = Path(__file__).with_name("correction.npz")
LEAF = 1e-4  # logarithm of a time that a unit of a leaf stands for


class Correction:
    """Trees whose corrections add up, all with as many levels. ``features`` and ``thresholds`` hold by tree and level
    the number of the feature that is looked at, and above what the level's bit is set; ``leaves`` hold by tree the
    corrections in units of :data:`LEAF`, where the first level's bit is the lowest."""

    def __init__(self, features: Numbers, thresholds: Numbers, leaves: Numbers) -> None:
        splits = np.full((len(leaves), 8), complex(0, np.inf))  # levels that set no bit: the number of a leaf is a byte
        levels = splits[:, : np.shape(features)[1]]
        levels.real, levels.imag = features, thresholds
        asked, at = np.unique(splits, return_inverse=True)  # many are alike
        self._features, self._thresholds, self._splits = asked.real.astype(int), asked.imag.astype("f4"), at.ravel()
        self._leaves = np.array(leaves, dtype=float) * LEAF
        self._first = np.arange(len(self._leaves)) * self._leaves.shape[1]

    def __call__(self, rows: Numbers) -> np.ndarray:
        """Factors on predicted times, for rows of :func:`features`."""
        above = np.asarray(rows, dtype=np.float32).take(self._features, axis=1) > self._thresholds
        at = np.packbits(above.take(self._splits, axis=1), axis=1, bitorder="little") + self._first
        return np.exp(self._leaves.take(at).sum(axis=1))


def features(
    fixed: Fixed, predicted: Prediction, problem: GemmProblem, chip: Chip = SXM, finish: Epilogue | None = None
) -> tuple[float, ...]:
    """Features of a launch, by whose numbers the trees split; ``predicted`` by :func:`.predict.predict_fixed`."""
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
        *(kernel.scheduler == "dynamic", kernel.split_k, fixed.items),
        *(kernel.part_order == "part", kernel.raster == "m"),
        # where rows start in the L2's lines
        *(ELEMENT_BYTES * side % L2_LINE_BYTES for side in (problem.m, problem.n, words.k)),
        finish is not None and finish.gated,
    )


@cache
def shipped() -> Correction:
    """The trees that picks are ranked with."""
    with np.load(FILE) as trees:
        return Correction(**trees)


def is_learnt(problem: GemmProblem) -> bool:
    """True for products that the trees rank: those that TMA reaches, whose bits of a row may depend on m. Fitted to
    isolated launches of H100s and H200s without a finish or with scales or a gate, they serve any (docs/menu.md)."""
    return not (problem.out_of_reach or problem.batch_invariant)
