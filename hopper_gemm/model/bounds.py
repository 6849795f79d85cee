"""Lower bounds of the predicted times of many kernels at once: what need not be predicted. An untuned call makes some
150 of them, so that they are computed together, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from hopper_gemm.model import hopper, predict
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.predict import FITTED
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once


class LowerBounds:
    """Bounds that are never above the seconds of :func:`hopper_gemm.model.predict.predict`, for any raster, swizzle and
    part order. A load counts as if neighbours stood in squares, which share most, and nothing were read from DRAM. The
    clock is that of the fewest clocks, without the heat of the loads: the time rises with the clocks of a launch.

    Args:
        kernels: without stream-K.
        chip: the GPU.
    """

    def __init__(self, kernels: Sequence[Kernel], chip: Chip = SXM) -> None:
        self._memory = FITTED.dram_rate * chip.memory_rate
        self._table = np.array([_columns(kernel, chip) for kernel in kernels], dtype=float).T

    def __call__(self, problem: GemmProblem, rows: Sequence[int], parts: Sequence[int]) -> np.ndarray:
        """Seconds of some of the kernels, each with a number of split-K parts.

        Args:
            problem: what is multiplied.
            rows: numbers of the kernels.
            parts: split-K parts of each.
        """
        constants, padded, problem = FITTED, bool(problem.padded), problem.in_words
        (tile_m, tile_n, tile_k, cluster_m, cluster_n, swapped, at_once, most_ctas, slots, spread, product, math,
         row_a, row_b, passed, depth, hidden, early, dynamic, alone, behind, epilogue, scattered, chunks, box, by_tma,
        ) = self._table[:, rows]  # fmt: skip
        split = np.asarray(parts, dtype=float)
        apart = scattered > 0
        m, n = float(problem.m), float(problem.n)  # integers of 64 bits would end below some sizes
        down, across = np.where(swapped, n, m), np.where(swapped, m, n)
        clusters = np.ceil(down / (tile_m * cluster_m)) * np.ceil(across / (tile_n * cluster_n))
        clusters *= np.where(apart, split, 1)
        ctas = np.minimum(most_ctas, np.ceil(clusters / at_once))
        resident = np.minimum(slots, clusters)
        of_a, of_b = row_a * np.minimum(tile_m, down), row_b * np.minimum(tile_n, across)
        load = (of_a + of_b) / constants.l2_bytes + constants.stage
        l2 = passed * np.sqrt(of_a * of_b) * np.minimum(resident, spread)
        steps = np.ceil(problem.k / (tile_k * split))
        ring = (math + constants.latency + load) / depth
        work = _norm((math * ctas, load * ctas, l2 * ctas, ring), constants.sharpness) * steps
        own = np.ceil(chunks / split) / chunks
        epilogue = epilogue + scattered * (1 / constants.scatter + split * own / constants.gather)
        rounds = np.ceil(clusters / resident)
        other = np.maximum(work, (work + epilogue) / 2) + constants.turn
        total = np.where(
            hidden,
            rounds * other + epilogue,
            rounds * (work + epilogue + np.where(early, 0.0, constants.latency + load)),
        )
        saved = total * (1 - constants.balance * (1 - 1 / rounds)) + constants.counted
        total = np.where(dynamic, saved, total) + (behind if padded else alone) + load
        busy = np.minimum(1.0, clusters * steps * product / total)
        clock = constants.fast_hz - constants.slope_hz * np.maximum(0.0, busy - constants.knee)
        shred = 32 * constants.shred / np.minimum(box, hopper.L2_LINE_BYTES // problem.out_bytes)
        if problem.n * problem.out_bytes % predict.SECTOR_BYTES:
            written = np.where(swapped, tile_m * cluster_m, tile_n * cluster_n)
            torn = 128 * constants.torn / written + shred
        else:
            torn = np.where((by_tma > 0) & (box * problem.out_bytes % predict.SECTOR_BYTES > 0), shred, 0.0)
        moved = problem.bytes + torn * problem.out_bytes * problem.m * problem.n
        least = moved / self._memory + constants.launch / constants.fast_hz
        seconds: np.ndarray = _norm((total / clock, least), constants.sharpness)
        return seconds


def _columns(kernel: Kernel, chip: Chip) -> tuple[float, ...]:
    """Return the values of a kernel that the bound reads, in that order."""
    constants, fixed = FITTED, predict.Fixed(kernel)
    at_once, size, ctas = clusters_at_once(fixed.size, chip), fixed.size, fixed.ctas
    row = fixed.stage / fixed.rates[False]
    passed = 2 / sqrt(max(1, predict.NEIGHBOURS // size)) * size / chip.sms / constants.l2_share
    apart = fixed.items > 1
    return (
        *(kernel.tile_m, kernel.tile_n, kernel.tile_k, kernel.cluster_m, kernel.cluster_n, kernel.swap_ab),
        *(at_once, ctas, at_once * ctas, chip.sms / size),
        *(fixed.product * size / chip.sms, fixed.math, row / kernel.cluster_n, row / kernel.cluster_m, passed),
        *(max(1, kernel.stages - kernel.stagger), kernel.schedule == "pingpong", fixed.early),
        *(kernel.scheduler == "dynamic", fixed.entry),
        predict.Fixed(kernel.but(pdl=True)).entry,  # behind the launch that pads operands
        fixed.epilogue - (predict.through_memory(kernel, constants) if apart else 0.0),
        4.0 * kernel.tile_m * kernel.tile_n if apart else 0.0,
        *(kernel.chunks, fixed.box, kernel.stores == "tma"),
    )


def _norm(limits: Sequence[np.ndarray], sharpness: float) -> np.ndarray:
    """Smooth maximum of several limits, kernel by kernel."""
    most = np.maximum.reduce(limits)
    total: np.ndarray = most * sum((limit / most) ** sharpness for limit in limits) ** (1 / sharpness)
    return total
