"""Columns beside a row's own figures: hardware counters, and figures derived from its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from hopper_gemm.model import hopper, roofline
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.predict import l2_bytes_per_stage
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.tune import limits
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.schema import COUNTED
from hopper_gemm.tune.tables.pivot import config_of, problem_of

COUNTERS = tuple(column.name for column in COUNTED)
PROFILED = COUNTERS[: COUNTERS.index("producer_hit_pct")]
"""Figures of the profiler, which the baseline has too; our kernel's own meter counts the others."""

DERIVED = {
    "stage_kib": "one stage of A and B, KiB",
    "ahead": "stages that can be loading while one is multiplied: stages - 1 - stagger",
    "ahead_kib": "the same in KiB: bytes that can be in flight",
    "span": "bytes of a row of the shared-memory swizzle",
    "wave_efficiency": "share of the SMs' time that computes something of the output",
    "l2_bytes_per_clock": "what an SM must take from the L2 each clock at full rate, multicast counted once",
    "flop_per_smem_byte": "arithmetic intensity of the tile",
    "smem_bytes_per_flop": "what wgmma reads back from shared memory",
    "reached": "tensor-active percent divided by the wave efficiency, so that idle SMs do not count",
}
"""The columns of :func:`with_derived` and their meaning."""


def with_counters(frame: pd.DataFrame, counted: Iterable[Row]) -> pd.DataFrame:
    """Rows with the counters of their config, and those of the baseline on their problem, beside their figures.

    Args:
        frame: rows of a sweep, as :func:`hopper_gemm.tune.study.reader.frame_of` gives them.
        counted: rows of stage ``counters``; those of a baseline are cuBLAS's.

    Returns:
        The same rows in the same order, with the columns :data:`COUNTERS`, and :data:`PROFILED` again with
        ``baseline_`` before each; empty where nothing was counted, or other machine code than the row ran was profiled.
    """
    by_config = {(row.point.problem, row.point.subject): row.figures for row in counted}
    added: list[list[float | None]] = []
    for record in frame.to_dict("records"):
        problem = problem_of(record)
        ours, theirs = by_config.get((problem, config_of(record)), {}), by_config.get((problem, "cublas"), {})
        profiled = any(name in ours for name in PROFILED)  # a kernel that counts its own waits has code of its own
        if profiled and record["code"] and ours.get("code") and record["code"] != ours["code"]:
            ours = {}
        added.append([*map(ours.get, COUNTERS), *map(theirs.get, PROFILED)])
    names = [*COUNTERS, *(f"baseline_{name}" for name in PROFILED)]
    return frame.assign(**pd.DataFrame(added, frame.index, names, dtype="Float64"))


def panels(config: GemmConfig, problem: GemmProblem, sms: int = hopper.SM_COUNT) -> tuple[float, float]:
    """Bytes of the distinct panels of A and B that all waves of cluster tiles read, and how many waves there are.

    DRAM reads so much if all clusters of a wave keep step and the L2 keeps nothing from one wave to the next.
    """
    height, width = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    down, across = roofline.tile_sides(config, problem.m, problem.n)
    tiles = tile_order(down, across, config.raster, config.swizzle, config.serpentine)
    at_once = sms // (config.cluster_m * config.cluster_n)
    sides = sum(height * rows + width * columns for rows, columns in unique_panels(tiles, at_once))
    return float(ELEMENT_BYTES * problem.k * sides), len(tiles) / at_once


def with_derived(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that ran, with the columns of :data:`DERIVED`."""
    ok = frame[frame["status"] == "ok"]
    derived = pd.DataFrame([_derived(row) for row in ok.to_dict("records")], index=ok.index)
    return ok.join(derived).assign(reached=lambda rows: rows["tensor_active"] / rows["wave_efficiency"])


def _derived(row: Mapping[str, Any]) -> dict[str, float]:
    config, problem = config_of(row), problem_of(row)
    footprint = resolve(config)
    assert isinstance(config.stages, int)
    ahead = config.stages - 1 - config.stagger
    clocks = 2 * config.tile_m * config.tile_n * config.tile_k / hopper.FLOP_PER_CLOCK_PER_SM
    return {
        "stage_kib": footprint.stage_bytes / 1024,
        "ahead": ahead,
        "ahead_kib": ahead * footprint.stage_bytes / 1024,
        "span": footprint.swizzle_bytes,
        "wave_efficiency": limits.waves(config, problem).efficiency,
        "l2_bytes_per_clock": sum(l2_bytes_per_stage(config, problem)) / clocks,
        "flop_per_smem_byte": limits.smem_intensity(config),
        "smem_bytes_per_flop": limits.smem_reads_per_flop(config),
    }


def tile_order(
    tiles_m: int, tiles_n: int, raster: str, swizzle: int, serpentine: bool, most: int | None = None
) -> list[tuple[int, int]]:
    """The cluster tiles (m, n) in the order of the kernel's scheduler, the first ``most`` of them; None for all."""
    count = tiles_m * tiles_n if most is None else min(most, tiles_m * tiles_n)
    return [roofline.tile_at(number, tiles_m, tiles_n, raster, swizzle, serpentine) for number in range(count)]


def unique_panels(tiles: Sequence[tuple[int, int]], at_once: int) -> list[tuple[int, int]]:
    """Distinct rows and columns of tiles in each wave of so many: what the L2 must hold of A and of B at a time.

    Example:
        >>> [unique_panels(tile_order(8, 8, "m", swizzle, False), 16)[0] for swizzle in (1, 4)]
        [(8, 2), (4, 4)]
    """
    waves = [tiles[start : start + at_once] for start in range(0, len(tiles), at_once)]
    return [(len({m for m, _ in wave}), len({n for _, n in wave})) for wave in waves]
