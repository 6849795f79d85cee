"""Numbers of split-K parts worth a prediction, for kernels that take their number at launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once, output_sides
from hopper_gemm.model.rules.invariance import parts_of
from hopper_gemm.model.rules.pairs import WORKSPACE_BYTES_MAX
from hopper_gemm.model.rules.technique import PARTS_MAX

ROUNDS_OF_PARTS, FEW_PARTS = np.array([[1], [2], [3]]), np.array([[2], [3]])
"""Rounds of a launch that split-K parts are chosen to fill, and numbers of parts that are considered besides: where no
number fills few rounds, two or three parts in many rounds may be the best."""


class PartsAtLaunch:
    """The numbers of many kernels at once, which take theirs at launch on a GPU: the most parts that take
    :data:`ROUNDS_OF_PARTS`, w rounds of s clusters at once for t tiles: s // ceil(t / w); and :data:`FEW_PARTS`. Of
    batch-invariant problems the one that n and k demand."""

    def __init__(self, kernels: Sequence[Kernel], chip: Chip = SXM) -> None:
        values = [
            (
                *output_sides(kernel, kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n),
                kernel.tile_k,
                *(clusters_at_once(kernel.cluster_size, gpu) * kernel.ctas_per_sm for gpu in (chip, SXM)),
            )
            for kernel in kernels
        ]
        *self._reach, self._tile_k, self._at_once, by_rule = np.array(values, dtype=float).reshape(-1, 5).T
        self._in_order = np.minimum(self._at_once, by_rule)

    def __call__(self, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of kernels, parts of each, ascending, and whether the parts of all tiles run at once, as the rule of
        such an order demands."""
        words, (tall, wide) = problem.in_words, self._reach
        # sizes as floats: integers of 64 bits would end below some
        tiles = np.ceil(float(words.m) / tall) * np.ceil(float(words.n) / wide)
        most = np.minimum(np.minimum(PARTS_MAX, self._at_once), np.ceil(words.k / self._tile_k))
        most = np.minimum(most, np.floor(WORKSPACE_BYTES_MAX / (4 * tall * wide * tiles)))
        if problem.batch_invariant:
            parts = np.full((1, len(tiles)), float(parts_of(words.n, words.k)))
        else:
            filling = np.floor(self._at_once / np.ceil(tiles / ROUNDS_OF_PARTS))
            parts = np.concatenate((FEW_PARTS.repeat(len(tiles), 1), np.minimum(most, filling)))
        considered = (parts > 1) & (parts <= most)
        considered[1:] &= parts[1:] > np.maximum.accumulate(parts)[:-1]
        kernels, order = considered.T.nonzero()
        chosen = parts[order, kernels]
        return kernels, chosen, tiles[kernels] * chosen <= self._in_order[kernels]
