"""A GPU as its driver describes it, and the tiles of a launch on it: how many there are, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem

COPIED = 0.875
"""Share of a memory's bandwidth that a copy reaches: :data:`hopper_gemm.model.hopper.HBM_BYTES_PER_SECOND` of an H200's
6144 bits twice a clock of 3201 MHz. Other GPUs are taken to reach as much."""

CLUSTER_SIZES = (1, 2, 4, 8)  # CTAs of the clusters that a Chip counts


@dataclass(frozen=True)
class Chip:
    """Properties in which a GPU differs from other Hopper GPUs; by default an H200, of whose SMs an H100 SXM has as
    many. They shape no machine code, and so do not stand in :mod:`.hopper`, which is part of the kernel's digest."""

    sms: int = hopper.SM_COUNT  # streaming multiprocessors
    l2_bytes: int = hopper.L2_BYTES
    # clusters of 1, 2, 4 and 8 CTAs at once, one CTA an SM, as the driver counts them; empty: see clusters_at_once
    resident: tuple[int, ...] = ()
    memory_rate: float = hopper.HBM_BYTES_PER_SECOND  # bytes a second that a copy moves, read and written, see copied


SXM = Chip()  # an H200; plans without a GPU are made for it


def copied(bus_bits: int, clock_hz: float) -> float:
    """Bytes a second that a copy moves, read and written, rounded to 10 GB, in a memory that transfers twice a clock.

    Example:
        >>> copied(6144, 3.201e9), copied(5120, 2.619e9)  # an H200, an H100 SXM
        (4300000000000.0, 2930000000000.0)
    """
    return round(COPIED * 2 * clock_hz * bus_bits / 8, -10)


def output_sides(config: GemmConfig, m: int, n: int) -> tuple[int, int]:
    """Rows and columns of an (m, n) output as the tiles see it."""
    return (n, m) if config.swap_ab else (m, n)


def cluster_tiles(config: GemmConfig, problem: GemmProblem) -> int:
    """Tiles of the output, each as large as a cluster computes at once."""
    return prod(tile_sides(config, problem.m, problem.n))


def tile_sides(config: GemmConfig, m: int, n: int) -> tuple[int, int]:
    """Cluster tiles down and across an output of m rows and n columns, as the tiles see it."""
    rows, columns = output_sides(config, m, n)
    return -(-rows // (config.tile_m * config.cluster_m)), -(-columns // (config.tile_n * config.cluster_n))


def work_items(config: GemmConfig, problem: GemmProblem) -> int:
    """Work items of a launch: cluster tiles, or their split-K parts where these go through a workspace."""
    return cluster_tiles(config, problem) * config.work_items


def clusters_at_once(size: int, chip: Chip = SXM) -> int:
    """Clusters of ``size`` CTAs that should run at once, one CTA an SM, at least 1: the driver's count where the chip
    has it, else an estimate; a launch asks the driver.

    Example:
        >>> [[clusters_at_once(size, Chip(sms)) for size in (1, 2, 4, 8)] for sms in (132, 78)]
        [[132, 66, 30, 15], [78, 39, 17, 8]]
    """
    if chip.resident and size in CLUSTER_SIZES:
        return chip.resident[CLUSTER_SIZES.index(size)]
    stranded = 0 if size <= 2 else -(-chip.sms * hopper.STRANDED_SMS // hopper.SM_COUNT)
    return max(1, (chip.sms - stranded) // size)


def clusters_launched(config: GemmConfig, at_once: int) -> int:
    """Clusters of a launch, of which ``at_once`` could run: no more than hold whole tiles, where the split-K parts of a
    tile follow one another through a workspace. A part that is left to the next round lets the others wait, round after
    round: where the parts did not divide the clusters that run at once, recorded launches of three rounds and more took
    1.7 times as long as predicted at the median, and up to 3.6 times; where they did, 1.05 times.

    Example:
        >>> clusters_launched(GemmConfig(split_k=8, reduction="workspace"), 132)
        128
    """
    whole = at_once // config.work_items * config.work_items
    ordered = config.scheduler == "static" and config.part_order == "tile"
    return whole if ordered and whole else at_once


def parts_meet(config: GemmConfig, problem: GemmProblem, chip: Chip = SXM) -> bool:
    """Return True if the split-K parts of each tile run at once, so that none waits for a part of a later wave."""
    at_once = clusters_at_once(config.cluster_size, chip) * config.ctas_per_sm
    return config.part_order == "tile" or cluster_tiles(config, problem) * config.split_k <= at_once


def tile_at(number: int, tiles_m: int, tiles_n: int, raster: str, swizzle: int, serpentine: bool) -> tuple[int, int]:
    """A cluster tile (m, n) by its number in the order of the kernel's scheduler, of ``tiles_m`` by ``tiles_n``; other
    arguments are those of the config.

    Example:
        >>> [tile_at(number, 3, 3, "m", 2, serpentine=True) for number in range(9)]
        [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (1, 2), (0, 2)]
    """
    walk, across = (tiles_m, tiles_n) if raster == "m" else (tiles_n, tiles_m)
    group, rest = divmod(number, walk * swizzle)
    step, side = divmod(rest, min(swizzle, across - group * swizzle))
    step, side = walk - 1 - step if serpentine and group % 2 else step, side + group * swizzle
    return (step, side) if raster == "m" else (side, step)


def best_swizzle(config: GemmConfig, chip: Chip = SXM) -> float:
    """The swizzle that reads the fewest bytes into L2, in theory. The clusters that run at once compute a patch of the
    output, ``swizzle`` cluster tiles wide across the walk and ``clusters / swizzle`` long along it. It needs the panels
    of A beside it and those of B above it, and their sum is least where the patch is a square, in elements::

        swizzle * across = clusters / swizzle * along      swizzle = sqrt(clusters * along / across)

    with ``along`` and ``across`` the sides of a cluster tile: for raster n and single CTAs sqrt(sms * tile_n / tile_m).
    The minimum is flat: half or twice the swizzle costs a quarter more. The config's own swizzle is ignored.

    Example:
        >>> [round(best_swizzle(GemmConfig(tile_m=256, tile_n=128, raster=raster)), 1) for raster in ("m", "n")]
        [16.2, 8.1]
    """
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    along, across = (rows, columns) if config.raster == "m" else (columns, rows)
    return (clusters_at_once(config.cluster_size, chip) * config.ctas_per_sm * along / across) ** 0.5
