"""Limits of a launch: waves, arithmetic intensity, shortest time. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import COPIED, SXM, Chip, clusters_at_once, clusters_launched, copied, work_items

LAUNCH_SECONDS = 1.5e-6
"""Time of a launch before the first and after the last byte, as seen on short kernels on an NVIDIA H200."""

POWER_LIMITED_FLOPS = 840e12
"""Sustained 16-bit rate under the 700 W cap on random data, the best seen in a burst on an NVIDIA H200, FLOP/s."""

CHIPS = {"h100": Chip(l2_bytes=50 * 2**20, memory_rate=copied(5120, 2.619e9)), "h200": SXM}
"""The SXM boards as their driver describes them, by kind (:func:`hopper_gemm.model.tuned.slug`), for plans without one;
how many clusters run at once is estimated."""


@dataclass(frozen=True)
class Waves:
    """Distribution of the output tiles over the SMs."""

    tiles: int  # output tiles, or their split-K parts, counting tiles that only fill up a cluster
    slots: int  # CTAs that run at once
    waves: int  # rounds of the fullest SM
    efficiency: float  # share of the SMs' time spent on elements of the output


def waves(config: GemmConfig, problem: GemmProblem, chip: Chip = SXM) -> Waves:
    """Count the rounds of a persistent launch of any config."""
    items = work_items(config, problem)
    at_once = clusters_at_once(config.cluster_size, chip) * config.ctas_per_sm
    resident = min(clusters_launched(config, at_once), items)
    rounds = ceil(items / resident)
    useful = problem.m * problem.n * config.split_k
    offered = rounds * chip.sms * config.ctas_per_sm * config.tile_m * config.tile_n
    return Waves(items * config.cluster_size, resident * config.cluster_size, rounds, useful / offered)


def smem_intensity(config: GemmConfig) -> float:
    """FLOP per byte that enters shared memory: 2 tile_m tile_n / (2 (tile_m + tile_n)) for 16-bit operands."""
    return 2 * config.tile_m * config.tile_n / (ELEMENT_BYTES * (config.tile_m + config.tile_n))


def smem_reads_per_flop(config: GemmConfig) -> float:
    """Shared-memory bytes that wgmma reads per FLOP: A's 64 rows and B's n columns for 2 * 64 * n FLOP per k."""
    n = resolve(config).share_n
    return ELEMENT_BYTES * (hopper.WGMMA_M + n) / (2 * hopper.WGMMA_M * n)


def limit_seconds(problem: GemmProblem, chip: Chip = SXM) -> float:
    """The time that a chip takes under sustained load at least: the larger of arithmetic and memory, plus a launch.
    Arithmetic is limited by power, as on an H200, or by the SMs at their highest clock; a burst may beat the former."""
    peak = hopper.FLOP_PER_CLOCK_PER_SM * chip.sms * hopper.SM_HZ_MAX
    arithmetic = problem.in_words.flop / min(POWER_LIMITED_FLOPS, peak)
    memory = problem.bytes / chip.memory_rate
    return max(arithmetic, memory) + LAUNCH_SECONDS


def least_seconds(problem: GemmProblem, chip: Chip = SXM) -> float:
    """The time below which no launch can be whose operands lie in memory: their bytes at the memory's peak, or the
    arithmetic at the highest clock. A shorter timing is wrong.

    Example:
        >>> round(least_seconds(GemmProblem(32, 4096, 12288)) * 1e6, 1)
        20.6
    """
    operands = problem.bytes - problem.out_bytes * problem.m * problem.n
    if isinstance(problem, GroupedProblem):  # the matrix of an empty group is not read
        operands = ELEMENT_BYTES * problem.m * problem.in_words.k
    peak = hopper.FLOP_PER_CLOCK_PER_SM * chip.sms * hopper.SM_HZ_MAX
    return max(COPIED * operands / chip.memory_rate, problem.in_words.flop / peak)
