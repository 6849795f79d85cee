"""Lower bounds of the predicted times of many kernels at once: what need not be predicted. An untuned call makes some
hundreds of them, so that they are computed together, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hopper_gemm.model import hopper, predict
from hopper_gemm.model.kernel import MOVED_FROM
from hopper_gemm.model.predict import FITTED, Fixed
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once


class _Values(NamedTuple):
    """What the bounds read of each kernel: its fields, and parts of its prediction. The first ones are pairs: of the
    output's rows and columns, and so of A and of B, whichever of them the kernel has as its own A."""

    tile: np.ndarray
    reach: np.ndarray
    cluster: np.ndarray
    row: np.ndarray
    boxes: np.ndarray
    stage: np.ndarray
    tile_k: np.ndarray
    unit: np.ndarray
    swath: np.ndarray
    area: np.ndarray
    down: np.ndarray
    size: np.ndarray
    neighbours: np.ndarray
    read: np.ndarray
    moves_back: np.ndarray
    pingpong: np.ndarray
    dynamic: np.ndarray
    in_order: np.ndarray
    at_once: np.ndarray
    ctas: np.ndarray
    product: np.ndarray
    math: np.ndarray
    promoted: np.ndarray
    wait: np.ndarray
    depth: np.ndarray
    rate_along_k: np.ndarray
    rate_across: np.ndarray
    early: np.ndarray
    entry: np.ndarray
    entry_behind: np.ndarray
    epilogue: np.ndarray
    scattered: np.ndarray
    chunks: np.ndarray
    box: np.ndarray
    by_tma: np.ndarray


PAIRS = 5
"""Fields of :class:`_Values` that are pairs."""


class LowerBounds:
    """Bounds that are never above the seconds of :func:`hopper_gemm.model.predict.predict`, and mostly equal to them.
    What neighbours read counts as if they stood in squares, which share most, a finish takes no time, and CTAs do not
    drift.

    Args:
        kernels: without stream-K, each with the part of its prediction that depends on it alone.
        chip: the GPU.
    """

    def __init__(self, kernels: Sequence[Fixed], chip: Chip = SXM) -> None:
        self._chip = chip
        self._table = np.array([_values(fixed, chip) for fixed in kernels], dtype=float).T

    def __call__(self, problem: GemmProblem, rows: Sequence[int], parts: Sequence[int]) -> np.ndarray:
        """Seconds of some of the kernels, each with a number of split-K parts.

        Args:
            problem: what is multiplied.
            rows: numbers of the kernels.
            parts: split-K parts of each.
        """
        chip, constants, padded, promote = self._chip, FITTED, bool(problem.padded), problem.promote
        problem = problem.in_words
        values, split = self._table.take(rows, 1), np.asarray(parts, dtype=float)
        of = _Values(*values[: 2 * PAIRS].reshape(PAIRS, 2, -1), *values[2 * PAIRS :])
        sides = np.array([[problem.m], [problem.n]], dtype=float)  # integers of 64 bits would end below some sizes
        counts, items = np.ceil(sides / of.reach), np.where(of.scattered > 0, split, 1.0)
        tiles = counts[0] * counts[1]
        clusters, slots = tiles * items, of.at_once * of.ctas
        whole = np.floor(slots / items) * items
        resident = np.minimum(np.where((of.in_order > 0) & (whole > 0), whole, slots), clusters)
        steps = np.ceil(np.ceil(problem.k / of.tile_k) / split)

        math = of.math
        if promote:
            math = math + (of.promoted > 0) * constants.drain + of.promoted / promote
        along_k = np.array([[axis == "k"] for axis in problem.layouts])
        off = np.array([[lines * constants.off_lines + sectors * constants.off_sectors]
                        for lines, sectors in predict.astray(problem)]) * SXM.memory_rate / chip.memory_rate  # fmt: skip
        rate, more = np.where(along_k, of.rate_along_k, of.rate_across), np.where(along_k, 0.0, of.boxes)
        taken = of.row * np.minimum(of.tile, sides)
        beyond, slow = (of.row * of.tile - taken) * constants.beyond, taken * off
        requested = (taken + beyond) * (1 + constants.narrow * more) / rate + slow * (1 + constants.straddle * more)
        passed, shared = beyond / rate + slow, taken / rate
        passed = passed[0] + passed[1] + 2 * np.sqrt(shared[0] * shared[1] / np.minimum(of.neighbours, clusters))

        along, across = np.where(of.down > 0, sides, sides[::-1])
        swath = np.minimum(of.swath, np.ceil(across / of.unit) * of.unit)
        patch = np.minimum(resident / items * of.area / swath, along) + np.minimum(swath, across)
        past = counts * of.reach - sides
        if problem.k >= MOVED_FROM:
            past = np.where(of.moves_back > 0, counts * of.cluster * np.maximum(0, of.tile - sides), past)
        outside = (past[0] * counts[1] + past[1] * counts[0]) * of.stage / hopper.L2_LINE_BYTES
        load = (requested[0] + requested[1]) / constants.l2_bytes + constants.stage + of.read * split * patch
        load = load + constants.outside * outside * np.minimum(1.0, resident / tiles)
        l2 = passed / constants.l2_share * np.minimum(1.0, resident * of.size / chip.sms)
        ring = (math + of.wait + load) / of.depth
        ctas = np.minimum(of.ctas, np.ceil(clusters / of.at_once))
        load = load * ctas
        work = _norm(constants.sharpness, math * ctas, load, l2 * ctas, ring) * steps

        own = np.ceil(of.chunks / split) / of.chunks
        epilogue = of.epilogue + of.scattered * (1 / constants.scatter + split * own / constants.gather)
        rounds = np.ceil(clusters / resident)
        other = np.maximum(work, (work + epilogue) / 2) + constants.turn
        idle = epilogue + np.where(of.early > 0, 0.0, constants.latency + load)
        total = np.where(of.pingpong > 0, rounds * other + epilogue, rounds * (work + idle))
        saved = total * (1 - constants.balance * (1 - 1 / rounds)) + constants.counted
        total = np.where(of.dynamic > 0, saved, total) + (of.entry_behind if padded else of.entry) + load

        stages = clusters * of.size * steps / (chip.sms * total)
        moving = np.minimum(1.0, stages * (taken[0] + taken[1]) / predict.L2_PORT_BYTES)
        busy = np.minimum(1.0, stages * of.product) + constants.heat * moving
        clock = constants.fast_hz - constants.slope_hz * np.maximum(0.0, busy - constants.knee)
        torn = 32 * constants.shred / np.minimum(of.box, hopper.L2_LINE_BYTES // problem.out_bytes)
        if problem.n * problem.out_bytes % predict.SECTOR_BYTES:
            torn = 128 * constants.torn / of.reach[1] + torn
        else:
            torn = np.where((of.by_tma > 0) & (of.box * problem.out_bytes % predict.SECTOR_BYTES > 0), torn, 0.0)
        moved = problem.bytes + torn * problem.out_bytes * problem.m * problem.n
        least = moved / (constants.dram_rate * chip.memory_rate) + constants.launch / clock
        return _norm(constants.sharpness, total / clock, least)


def _values(fixed: Fixed, chip: Chip) -> tuple[float, ...]:
    """Return the values of a kernel in the order of :class:`_Values`."""
    constants, kernel, apart = fixed.constants, fixed.kernel, fixed.items > 1
    tile, cluster = (kernel.tile_m, kernel.tile_n), (kernel.cluster_m, kernel.cluster_n)
    reach, boxes = (tile[0] * cluster[0], tile[1] * cluster[1]), fixed.extra_boxes
    row, by_rows = (fixed.stage / cluster[1], fixed.stage / cluster[0]), kernel.raster == "m"
    straight = 1.0 if kernel.serpentine else 1.0 + constants.straight
    pairs = [pair[::-1] if kernel.swap_ab else pair for pair in (tile, reach, cluster, row, boxes)]
    return (
        *(value for pair in pairs for value in pair),
        *(fixed.stage, kernel.tile_k, reach[by_rows], kernel.swizzle * reach[by_rows], reach[0] * reach[1]),
        *(by_rows != kernel.swap_ab, cluster[0] * cluster[1], max(1, predict.NEIGHBOURS // fixed.size)),
        constants.dram_share * fixed.stage * straight * (predict.BURST_HZ / chip.memory_rate),
        *(kernel.may_move_back, kernel.schedule == "pingpong", kernel.scheduler == "dynamic"),
        *(apart and kernel.scheduler == "static" and kernel.part_order == "tile",),
        *(clusters_at_once(fixed.size, chip), fixed.ctas, fixed.product, fixed.math),
        2 * predict.PROMOTION * kernel.accumulators * kernel.tile_k if kernel.readers == 1 else 0.0,
        constants.latency + (constants.away if fixed.size > 1 else 0.0),
        max(1, kernel.stages - kernel.stagger),
        *(fixed.rates[True], fixed.rates[False], fixed.early, fixed.entry),
        predict.entry(kernel.but(pdl=True), constants),  # behind the launch that pads operands
        fixed.epilogue - (predict.through_memory(kernel, constants) if apart else 0.0),
        4.0 * kernel.tile_m * kernel.tile_n if apart else 0.0,
        *(kernel.chunks, fixed.box, kernel.stores == "tma"),
    )


def _norm(sharpness: float, *limits: np.ndarray) -> np.ndarray:
    """Smooth maximum of several limits, kernel by kernel."""
    table = np.array(limits)
    most = table.max(0)
    total: np.ndarray = most * ((table / most) ** sharpness).sum(0) ** (1 / sharpness)
    return total
