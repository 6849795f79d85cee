"""Numbers of split-K parts worth a prediction, for kernels that take their number at launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once
from hopper_gemm.model.rules.invariance import parts_of
from hopper_gemm.model.rules.pairs import WORKSPACE_BYTES_MAX
from hopper_gemm.model.rules.technique import PARTS_MAX

ROUNDS_OF_PARTS, FEW_PARTS = np.array([[1], [2], [3]]), (2, 3)
"""Rounds of a launch that split-K parts are chosen to fill, and numbers of parts that are considered besides: where no
number fills few rounds, two or three parts in many rounds may be the best."""


class PartsAtLaunch:
    """The numbers of many kernels at once: the most parts that take :data:`ROUNDS_OF_PARTS`, w rounds of s clusters at
    once for t tiles: s // ceil(t / w); and :data:`FEW_PARTS`. Of batch-invariant problems the one that n and k demand.

    Args:
        kernels: that take their number of parts at launch.
        chip: the GPU.
    """

    def __init__(self, kernels: Sequence[Kernel], chip: Chip = SXM) -> None:
        sides = [(kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n) for kernel in kernels]
        oriented = [pair[::-1] if kernel.swap_ab else pair for kernel, pair in zip(kernels, sides, strict=True)]
        self._reach = np.array(oriented, dtype=float).reshape(-1, 2).T
        self._tile_k = np.array([kernel.tile_k for kernel in kernels], dtype=float)
        self._at_once, rule = (
            np.array(
                [clusters_at_once(kernel.cluster_size, gpu) * kernel.ctas_per_sm for kernel in kernels], dtype=float
            )
            for gpu in (chip, SXM)
        )
        self._most, self._in_order = np.minimum(PARTS_MAX, self._at_once), np.minimum(self._at_once, rule)
        self._area, self._few = (
            4 * self._reach[0] * self._reach[1],
            np.array([[few] * len(kernels) for few in FEW_PARTS]),
        )

    def __call__(self, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of kernels, parts of each, ascending, and whether the parts of all tiles run at once, as the rule of
        such an order demands."""
        words = problem.in_words
        tiles = np.ceil(
            np.array([[words.m], [words.n]], dtype=float) / self._reach
        )  # integers of 64 bits would overflow
        tiles = tiles[0] * tiles[1]
        most = np.minimum(self._most, np.ceil(words.k / self._tile_k))
        most = np.minimum(most, np.floor(WORKSPACE_BYTES_MAX / (self._area * tiles)))
        if problem.batch_invariant:
            parts = np.full((1, len(tiles)), float(parts_of(words.n, words.k)))
        else:
            filling = np.floor(self._at_once / np.ceil(tiles / ROUNDS_OF_PARTS))
            parts = np.concatenate((self._few, np.minimum(most, filling)))
        considered = (parts > 1) & (parts <= most)
        considered[1:] &= parts[1:] > np.maximum.accumulate(parts)[:-1]
        kernels, order = considered.T.nonzero()
        chosen = parts[order, kernels]
        return kernels, chosen, (tiles[kernels] * chosen <= self._in_order[kernels])


def parts_for(kernel: Kernel, problem: GemmProblem, chip: Chip = SXM) -> tuple[int, ...]:
    """The numbers of split-K parts worth a prediction: of :class:`PartsAtLaunch`, none if no number is allowed; of
    other kernels their own.

    Example:
        >>> from hopper_gemm.model.config import GemmConfig
        >>> from hopper_gemm.model.kernel import resolve
        >>> kernel = resolve(GemmConfig(tile_m=128, tile_n=128, split_k=2, reduction="workspace", stagger=0))
        >>> parts_for(kernel, GemmProblem(512, 512, 65536)), parts_for(kernel, GemmProblem(1024, 1024, 128))
        ((2, 3, 8, 16, 22), (2,))
    """
    return tuple(map(int, PartsAtLaunch([kernel], chip)(problem)[1])) if kernel.parts_at_launch else (kernel.split_k,)
