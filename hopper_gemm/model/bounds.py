"""Lower bounds of the predicted times of many kernels at once, in arrays: what need not be predicted. An untuned call
makes some hundreds of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from hopper_gemm.model import hopper, predict
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import MOVED_FROM, Kernel
from hopper_gemm.model.predict import FITTED, Fixed
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once


class LowerBounds:
    """Bounds never above the seconds of :func:`.predict.predict`, and mostly equal, of kernels without stream-K; those
    of one number are one binary. What neighbours read counts as if they divided their patch evenly, a finish takes no
    time, and CTAs do not drift. What the L2 passes on counts twice: the slowing of loads and an L2 that limit alike
    rises with it until it limits most, and then falls, so that it is least at an end, where neighbours share evenly or
    not at all."""

    def __init__(self, ways: Sequence[tuple[int, Kernel]], chip: Chip = SXM) -> None:
        at = np.unique([number for number, _ in ways], return_inverse=True)[1]
        self._chip, columns = chip, [_columns(Fixed(way), chip) for _, way in sorted(dict(ways).items())]
        of = {name: np.array([each[name] for each in columns], dtype=float).T[..., at] for name in columns[0]}
        walks = [(one.raster == "m", one.part_order == "tile", one.swizzle) for _, one in ways]
        down, by_tile, of["swizzle"] = np.array(walks, dtype=int).T
        abreast = of["apart"] * by_tile > 0
        of |= {name: np.where(down, pair, pair[::-1]) for name, pair in of.items() if pair.ndim > 1}
        of |= {"down": down != of.pop("swap_ab"), "in_order": abreast & (of["dynamic"] == 0)}
        of["near"], of["turn"] = np.where(abreast, (of["near"] * of["turn"], by_tile), (of["near"], of["turn"]))
        self._columns, self._tables = of, cache(self._table)

    def __call__(
        self, problem: GemmProblem, rows: np.ndarray, parts: np.ndarray, finish: Epilogue | None = None
    ) -> np.ndarray:
        """Seconds of the kernels numbered ``rows``, with ``parts`` of split-K each. A finish counts by scales alone."""
        chip, constants, promote, padded = self._chip, FITTED, problem.promote, bool(problem.padded)
        blocks, problem, split = predict.in_blocks(problem, finish), problem.in_words, parts.astype(float)
        torn = problem.n * problem.out_bytes % predict.SECTOR_BYTES > 0
        names, table = self._tables(problem.layouts, problem.out_bytes, torn, padded)
        table, pairs = table.take(rows, 1), len(table) - len(names)
        values = *table[: 2 * pairs].reshape(pairs, 2, -1), *table[2 * pairs :]
        of = SimpleNamespace(**dict(zip(names, values, strict=True)))
        starts = [(lines * constants.off_lines + sectors * constants.off_sectors) * SXM.memory_rate / chip.memory_rate
                  for lines, sectors in predict.astray(problem)]  # fmt: skip
        ends = np.array([problem.m, problem.n, *starts], dtype=float).reshape(2, 2, 1)  # 64 bits hold not all integers
        sides, off = np.where(of.down, ends, ends[:, ::-1])
        counts, items = np.ceil(sides / of.reach), np.maximum(1.0, split * of.apart)
        tiles, ordered = counts[0] * counts[1], np.maximum(1.0, split * of.in_order)
        clusters, whole = tiles * items, np.floor(of.slots / ordered) * ordered
        resident = np.minimum(np.where(whole, whole, of.slots), clusters)
        steps = np.ceil(np.ceil(problem.k / of.tile_k) / split)

        math = of.math
        if promote:
            alone = math / of.readers + constants.drain + predict.PROMOTION * of.promoted / promote
            math = np.where(of.readers == 1, alone, _norm(constants.sharpness, (math, alone)) if blocks else math)
        taken, wide = of.row * np.minimum(of.tile, sides), np.minimum(of.swizzle, counts[1])
        requested, unshared = taken * (of.requested + off * of.off), taken * of.passed
        near = np.minimum(tiles, np.ceil(of.near / ordered))
        rows_read = of.turn * near / wide
        in_row = np.ceil(wide / of.turn) * np.ceil(rows_read / counts[0])
        neighbours = np.minimum(near, np.array((in_row, np.minimum(counts[0], np.ceil(rows_read)))))
        passed, rest = unshared / neighbours, taken * (off / constants.l2_share) - constants.beyond * unshared
        patch = np.minimum(resident / items * of.reach[0] / wide, sides[0]) + np.minimum(wide * of.reach[1], sides[1])
        past = counts * of.reach - sides
        if problem.k >= MOVED_FROM:
            past = np.where(of.moves_back, of.cluster * np.maximum(0, of.tile - sides), past)
        outside = (past[0] * counts[1] + past[1] * counts[0]) * of.outside * np.minimum(1.0, resident / tiles)
        load = requested[0] + requested[1] + of.requested_beyond + of.read * split * patch + outside
        ctas = np.minimum(of.ctas, np.ceil(clusters / of.at_once))
        shared, rest = np.minimum(1.0, resident * of.sms) * ctas, rest[0] + rest[1] + of.passed_beyond
        l2, l2_unshared = ((by[0] + by[1] + rest) * shared for by in (passed, unshared))
        ring, load = (math + of.wait + load) / of.depth, load * ctas
        limits = np.array((math * ctas, load, l2, ring))
        work, most = _norm(constants.sharpness, limits) * steps, limits.max(0)
        alike = load * np.minimum(l2 / most**2, 1 / np.maximum(most, l2_unshared))

        epilogue = of.epilogue + of.gathered * split * np.ceil(of.chunks / split)
        rounds, behind = np.ceil(clusters / resident), work + epilogue
        alone, turns = behind + of.late * (constants.latency + load), np.maximum(work, behind / 2) + constants.turn
        total = np.where(of.pingpong, rounds * turns + epilogue, rounds * alone)
        total = total - of.dynamic * constants.balance * (total - total / rounds) + of.entry + load
        stages = clusters * of.sms * steps / total
        moving = np.minimum(1.0, stages * (taken[0] + taken[1]) / predict.L2_PORT_BYTES)
        busy = np.minimum(1.0, stages * of.product) + constants.heat * moving
        clock = constants.fast_hz - constants.slope_hz * np.maximum(0.0, busy - constants.knee)
        moved = problem.bytes + of.torn * (float(problem.out_bytes) * problem.m * problem.n)
        least = moved / (constants.dram_rate * chip.memory_rate) + constants.launch / clock
        seconds = _norm(constants.sharpness, (total / clock, least))
        slowed = of.level + of.single * sum(sectors for _, sectors in predict.astray(problem))
        slowed += constants.shared * np.log(split) * (problem.bytes / chip.memory_rate / seconds) ** 2
        # less its rounding: ways that tie are all predicted
        return seconds * (slowed + constants.alike * alike) * (1 - 1e-12)

    def _table(self, layouts: str, out_bytes: int, torn: bool, padded: bool) -> tuple[list[str], np.ndarray]:
        """Names and values for the layouts, the output and the reach of a problem, pairs first. A load is linear in the
        bytes of A and of B: those in narrow boxes, off lines of the L2 and outside the matrices count by their cost."""
        of, constants = dict(self._columns), FITTED
        ends = np.array([[axis == "k"] for axis in layouts])
        along_k = np.where(of["down"], ends, ends[::-1])
        rate = np.where(along_k, of.pop("rate_along_k"), of.pop("rate_across"))
        more = np.where(along_k, 0.0, of.pop("boxes"))
        requested = (1 + constants.narrow * more) / rate / constants.l2_bytes
        passed, held = 1 / rate / constants.l2_share, of["row"] * of["tile"] * constants.beyond
        box, entries = of.pop("box"), (of.pop("entry"), of.pop("entry_behind"))
        shred = 32 * constants.shred / np.minimum(box, hopper.L2_LINE_BYTES // out_bytes)
        uneven = of.pop("by_tma") * (box * out_bytes % predict.SECTOR_BYTES > 0)
        across = np.where(of["down"], *of["reach"][::-1])
        values = of | {
            "requested": requested * (1 - constants.beyond),
            "requested_beyond": (held * requested).sum(0) + constants.stage,
            "off": (1 + constants.straddle * more) / constants.l2_bytes,
            "passed": passed,
            "passed_beyond": (held * passed).sum(0),
            "torn": 128 * constants.torn / across + shred if torn else shred * uneven,
            "entry": entries[padded],
        }
        names = sorted(values, key=lambda name: -values[name].ndim)
        return names, np.concatenate([np.atleast_2d(values[name]) for name in names])


def _columns(fixed: Fixed, chip: Chip) -> dict[str, float | tuple[float, ...]]:
    """Values of a binary that its bounds need for any problem; a pair has one for each side of the output."""
    constants, kernel, apart = fixed.constants, fixed.kernel, fixed.items > 1
    tile, cluster = (kernel.tile_m, kernel.tile_n), (kernel.cluster_m, kernel.cluster_n)
    dynamic, scattered = kernel.scheduler == "dynamic", 4.0 * tile[0] * tile[1]
    counted = constants.counted if dynamic else 0.0
    through = predict.through_memory(kernel, constants) - scattered / constants.scatter
    values: dict[str, Any] = {name: getattr(kernel, name) for name in ("tile_k", "swap_ab", "readers", "chunks")}
    values |= {name: getattr(fixed, name) for name in ("ctas", "product", "math", "level", "single", "box")}
    return values | {
        "tile": tile,
        "reach": (tile[0] * cluster[0], tile[1] * cluster[1]),
        "cluster": cluster,
        "row": (fixed.stage / cluster[1], fixed.stage / cluster[0]),
        "boxes": fixed.extra_boxes,
        "turn": 1 if fixed.size == 1 else predict.TURNS,
        "near": max(1, predict.NEIGHBOURS // fixed.size),  # tiles, by the turns of parts that run abreast
        "read": constants.dram_share * fixed.stage * predict.BURST_HZ / chip.memory_rate,
        "outside": constants.outside * fixed.stage / hopper.L2_LINE_BYTES,
        "moves_back": kernel.may_move_back,
        "pingpong": kernel.schedule == "pingpong",
        "dynamic": dynamic,
        "apart": apart,
        "at_once": clusters_at_once(fixed.size, chip),
        "slots": clusters_at_once(fixed.size, chip) * fixed.ctas,
        "sms": fixed.size / chip.sms,
        "promoted": 2 * kernel.accumulators * kernel.tile_k,
        "wait": constants.latency + (constants.away if fixed.size > 1 else 0.0),
        "depth": max(1, kernel.stages - kernel.stagger),
        "rate_along_k": fixed.rates[True],
        "rate_across": fixed.rates[False],
        "late": not fixed.early,
        "entry": fixed.entry + counted,
        "entry_behind": predict.entry(kernel.but(pdl=True), constants) + counted,  # after the launch that pads operands
        "epilogue": fixed.epilogue - (through if apart else 0.0),
        "gathered": scattered / (kernel.chunks * constants.gather) if apart else 0.0,
        "by_tma": kernel.stores == "tma",
    }


def _norm(sharpness: float, limits: np.ndarray | tuple[np.ndarray, ...]) -> np.ndarray:
    """Smooth maximum of several limits, kernel by kernel."""
    table = np.asarray(limits)
    most = table.max(0)
    total: np.ndarray = most * ((table / most) ** sharpness).sum(0) ** (1 / sharpness)
    return total
