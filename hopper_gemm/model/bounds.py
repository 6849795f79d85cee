"""Lower bounds of the predicted times of many kernels at once: what need not be predicted. An untuned call makes some
hundreds of them, so that they are computed together, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hopper_gemm.model import hopper, predict
from hopper_gemm.model.kernel import MOVED_FROM, Kernel
from hopper_gemm.model.predict import FITTED
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once


class _Values(NamedTuple):
    """What the bounds read of each kernel: its fields, and parts of its prediction."""

    tile_m: np.ndarray
    tile_n: np.ndarray
    tile_k: np.ndarray
    cluster_m: np.ndarray
    cluster_n: np.ndarray
    swapped: np.ndarray
    by_rows: np.ndarray
    swizzle: np.ndarray
    straight: np.ndarray
    moves_back: np.ndarray
    pingpong: np.ndarray
    dynamic: np.ndarray
    in_order: np.ndarray
    at_once: np.ndarray
    ctas: np.ndarray
    product: np.ndarray
    math: np.ndarray
    promoted: np.ndarray
    away: np.ndarray
    depth: np.ndarray
    rate_along_k: np.ndarray
    rate_across: np.ndarray
    boxes_a: np.ndarray
    boxes_b: np.ndarray
    early: np.ndarray
    entry: np.ndarray
    entry_behind: np.ndarray
    epilogue: np.ndarray
    scattered: np.ndarray
    chunks: np.ndarray
    box: np.ndarray
    by_tma: np.ndarray


class LowerBounds:
    """Bounds that are never above the seconds of :func:`hopper_gemm.model.predict.predict`, and mostly equal to them.
    What neighbours read counts as if they stood in squares, which share most, a finish takes no time, and CTAs do not
    drift.

    Args:
        kernels: without stream-K.
        chip: the GPU.
    """

    def __init__(self, kernels: Sequence[Kernel], chip: Chip = SXM) -> None:
        self._chip = chip
        self._table = np.array([_values(kernel, chip) for kernel in kernels], dtype=float).T

    def __call__(self, problem: GemmProblem, rows: Sequence[int], parts: Sequence[int]) -> np.ndarray:
        """Seconds of some of the kernels, each with a number of split-K parts.

        Args:
            problem: what is multiplied.
            rows: numbers of the kernels.
            parts: split-K parts of each.
        """
        chip, constants, padded, promote = self._chip, FITTED, bool(problem.padded), problem.promote
        problem = problem.in_words
        of = _Values(*self._table[:, rows])
        split, swapped, size = np.asarray(parts, dtype=float), of.swapped > 0, of.cluster_m * of.cluster_n
        m, n = float(problem.m), float(problem.n)  # integers of 64 bits would end below some sizes
        down, across = np.where(swapped, n, m), np.where(swapped, m, n)
        tall, wide = of.tile_m * of.cluster_m, of.tile_n * of.cluster_n
        tiles_down, tiles_across = np.ceil(down / tall), np.ceil(across / wide)
        items, tiles = np.where(of.scattered > 0, split, 1.0), tiles_down * tiles_across
        clusters, slots = tiles * items, of.at_once * of.ctas
        whole = slots // items * items
        resident = np.minimum(np.where((of.in_order > 0) & (whole > 0), whole, slots), clusters)
        steps = np.ceil(np.ceil(problem.k / of.tile_k) / split)

        math = of.math
        if promote:
            math = math + (of.promoted > 0) * constants.drain + of.promoted / promote
        row = 2.0 * of.tile_k
        taken = row * np.minimum(of.tile_m, down) / of.cluster_n, row * np.minimum(of.tile_n, across) / of.cluster_m
        held = row * of.tile_m / of.cluster_n, row * of.tile_n / of.cluster_m
        asked, passed, shared = 0.0, 0.0, 1.0
        for side, boxes in enumerate((of.boxes_a, of.boxes_b)):
            off, along_k = _operands(problem, chip, swapped, side)
            rate, more = np.where(along_k, of.rate_along_k, of.rate_across), np.where(along_k, 0.0, boxes)
            inside, beyond = taken[side], (held[side] - taken[side]) * constants.beyond
            asked += (inside + beyond) * (1 + constants.narrow * more) / rate
            asked += inside * off * (1 + constants.straddle * more)
            passed += beyond / rate + inside * off
            shared *= inside / rate
        neighbours = np.minimum(np.maximum(1, predict.NEIGHBOURS // size), clusters)
        passed = passed + 2 * np.sqrt(shared / neighbours)

        unit, sides = np.where(of.by_rows, wide, tall), np.where(of.by_rows, (across, down), (down, across))
        swath = np.minimum(of.swizzle * unit, np.ceil(sides[0] / unit) * unit)
        patch = np.minimum(resident / items * tall * wide / swath, sides[1]) + np.minimum(swath, sides[0])
        dram = constants.dram_share * row * split * patch * (1 + of.straight) * (predict.BURST_HZ / chip.memory_rate)
        held_down, held_across = tiles_down * of.cluster_m, tiles_across * of.cluster_n
        back = (of.moves_back > 0) & (problem.k >= MOVED_FROM)
        past_down = np.where(back, held_down * np.maximum(0, of.tile_m - down), held_down * of.tile_m - down)
        past_across = np.where(back, held_across * np.maximum(0, of.tile_n - across), held_across * of.tile_n - across)
        outside = (past_down * tiles_across + past_across * tiles_down) * row / hopper.L2_LINE_BYTES
        load = asked / constants.l2_bytes + constants.stage + dram
        load = load + constants.outside * outside * np.minimum(1.0, resident / tiles)
        l2 = passed / constants.l2_share * np.minimum(1.0, resident * size / chip.sms)
        ring = (math + constants.latency + of.away + load) / of.depth
        ctas = np.minimum(of.ctas, np.ceil(clusters / of.at_once))
        load = load * ctas
        work = _norm((math * ctas, load, l2 * ctas, ring), constants.sharpness) * steps

        own = np.ceil(of.chunks / split) / of.chunks
        epilogue = of.epilogue + of.scattered * (1 / constants.scatter + split * own / constants.gather)
        rounds = np.ceil(clusters / resident)
        other = np.maximum(work, (work + epilogue) / 2) + constants.turn
        idle = epilogue + np.where(of.early > 0, 0.0, constants.latency + load)
        total = np.where(of.pingpong > 0, rounds * other + epilogue, rounds * (work + idle))
        saved = total * (1 - constants.balance * (1 - 1 / rounds)) + constants.counted
        total = np.where(of.dynamic > 0, saved, total) + (of.entry_behind if padded else of.entry) + load

        stages = clusters * size * steps / (chip.sms * total)
        moving = np.minimum(1.0, stages * (taken[0] + taken[1]) / predict.L2_PORT_BYTES)
        busy = np.minimum(1.0, stages * of.product) + constants.heat * moving
        clock = constants.fast_hz - constants.slope_hz * np.maximum(0.0, busy - constants.knee)
        shred = 32 * constants.shred / np.minimum(of.box, hopper.L2_LINE_BYTES // problem.out_bytes)
        if problem.n * problem.out_bytes % predict.SECTOR_BYTES:
            torn = 128 * constants.torn / np.where(swapped, tall, wide) + shred
        else:
            torn = np.where((of.by_tma > 0) & (of.box * problem.out_bytes % predict.SECTOR_BYTES > 0), shred, 0.0)
        moved = problem.bytes + torn * problem.out_bytes * problem.m * problem.n
        least = moved / (constants.dram_rate * chip.memory_rate) + constants.launch / clock
        return _norm((total / clock, least), constants.sharpness)


def _values(kernel: Kernel, chip: Chip) -> tuple[float, ...]:
    """Return the values of a kernel in the order of :class:`_Values`."""
    constants, fixed = FITTED, predict.Fixed(kernel)
    apart = fixed.items > 1
    return (
        *(kernel.tile_m, kernel.tile_n, kernel.tile_k, kernel.cluster_m, kernel.cluster_n, kernel.swap_ab),
        *(kernel.raster == "m", kernel.swizzle, 0.0 if kernel.serpentine else constants.straight),
        *(kernel.may_move_back, kernel.schedule == "pingpong", kernel.scheduler == "dynamic"),
        *(apart and kernel.scheduler == "static" and kernel.part_order == "tile",),
        *(clusters_at_once(fixed.size, chip), fixed.ctas, fixed.product, fixed.math),
        2 * predict.PROMOTION * kernel.accumulators * kernel.tile_k if kernel.readers == 1 else 0.0,
        constants.away if fixed.size > 1 else 0.0,
        max(1, kernel.stages - kernel.stagger),
        *(fixed.rates[True], fixed.rates[False], *fixed.extra_boxes, fixed.early, fixed.entry),
        predict.Fixed(kernel.but(pdl=True)).entry,  # behind the launch that pads operands
        fixed.epilogue - (predict.through_memory(kernel, constants) if apart else 0.0),
        4.0 * kernel.tile_m * kernel.tile_n if apart else 0.0,
        *(kernel.chunks, fixed.box, kernel.stores == "tma"),
    )


def _operands(problem: GemmProblem, chip: Chip, swapped: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the operand that each kernel has at a side: the extra share of its load for rows off lines and sectors, and
    whether it is contiguous along k."""
    slower = SXM.memory_rate / chip.memory_rate
    off = [(lines * FITTED.off_lines + sectors * FITTED.off_sectors) * slower
           for lines, sectors in predict.astray(problem)]  # fmt: skip
    along_k = [axis == "k" for axis in problem.layouts]
    return np.where(swapped, off[1 - side], off[side]), np.where(swapped, along_k[1 - side], along_k[side])


def _norm(limits: Sequence[np.ndarray], sharpness: float) -> np.ndarray:
    """Smooth maximum of several limits, kernel by kernel."""
    most = np.maximum.reduce(limits)
    total: np.ndarray = most * sum((limit / most) ** sharpness for limit in limits) ** (1 / sharpness)
    return total
