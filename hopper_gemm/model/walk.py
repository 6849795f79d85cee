"""The walk of single CTAs through the tiles: those that run near each other read the same panels.

CTAs that are alone in their cluster get the SMs of one group (GPC) after the other, and what several CTAs of a GPC read
at the same time leaves the L2 once (docs/neighbours.md), so that the walk decides how much the L2 hands out. Over 25
problems and tiles on two NVIDIA H100s the chosen walk reaches 0.990 of the speed of the best of 16 to 20, least 0.932.
A fixed swizzle of 4, which can leave a single row of tiles over, reaches 0.91 along either axis, least 0.68
(results/measurements/walks.csv, by benchmarks/walks.py).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_launched, tile_sides

# swizzle of single CTAs that makes the sixteen of a GPC a square of tiles, which reads the fewest panels
SQUARE = 4
WIDTHS = (SQUARE, 5, 6, 3, 7, 8)  # candidate swizzles, the preferred one first; each at most the number of tiles across

SPARE, GPC_SMS, GPCS = 8, 16, 7
"""Model of the placement: CTAs 0 to 7 run on the SMs that GPCs have beyond :data:`GPC_SMS`, 8 to 15 in a GPC of eight
SMs, the others evenly in seven GPCs. Recorded launches of 132 and 115 CTAs agree; some start at another GPC."""

WAVES = 2  # most for which the raster is chosen too; for more it decides the DRAM traffic, which is not modelled here


def abreast(kernel: Kernel, problem: GemmProblem, chip: Chip = SXM) -> Kernel:
    """Return the kernel with the raster and swizzle that minimise the bytes read by all GPCs; a tie keeps its raster.
    Clusters, CTAs that share an SM and GPUs with other numbers of SMs are unchanged: their placement is not known.

    Example:
        >>> from hopper_gemm.model.config import GemmConfig
        >>> from hopper_gemm.model.kernel import resolve
        >>> walk = abreast(resolve(GemmConfig(tile_m=128, tile_n=64, swap_ab=True)), GemmProblem(267, 2944, 7616))
        >>> walk.raster, walk.swizzle
        ('m', 5)
    """
    if kernel.cluster_size > 1 or kernel.ctas_per_sm > 1 or kernel.stream_k or chip.sms != hopper.SM_COUNT:
        return kernel
    walk = kernel.raster, kernel.serpentine, kernel.work_items, kernel.part_order == "part"
    sides, ctas = tile_sides(kernel, problem.m, problem.n), clusters_launched(kernel, hopper.SM_COUNT)
    raster, swizzle = _best((kernel.tile_m, kernel.tile_n), sides, ctas, *walk)
    return kernel.but(raster=raster, swizzle=swizzle)


@lru_cache(maxsize=4096)
def _best(
    tile: tuple[int, int], sides: tuple[int, int], ctas: int, raster: str, serpentine: bool, parts: int, by_part: bool
) -> tuple[str, int]:
    """Return raster and swizzle; ``raster`` wins a tie. A row of each array is one candidate's ``tile_at``."""
    tiles = sides[0] * sides[1]
    rasters = (raster, "n" if raster == "m" else "m")[: 2 if tiles * parts <= WAVES * ctas else 1]
    ways = list(dict.fromkeys((axis, min(width, sides[axis == "m"])) for width in WIDTHS for axis in rasters))
    along_m, width = np.array([[axis == "m"] for axis, _ in ways]), np.array([[width] for _, width in ways])
    length, across = np.where(along_m, *sides), np.where(along_m, *sides[::-1])
    numbers = np.arange(min(ctas, tiles * parts))
    part, tile_number = np.divmod(numbers, tiles) if by_part else np.divmod(numbers, parts)[::-1]
    group, rest = np.divmod(tile_number, length * width)
    step, column = np.divmod(rest, np.minimum(width, across - group * width))
    step, column = np.where(group % 2 * serpentine, length - 1 - step, step), column + group * width
    panel = (_gpcs(len(numbers)) * parts + part) * max(sides)
    panels = panel + np.where(along_m, step, column), panel + np.where(along_m, column, step)
    read = [1 + np.count_nonzero(np.diff(np.sort(each)), axis=1) for each in panels]
    return ways[int(np.dot(tile, read).argmin())]


def _gpcs(ctas: int) -> np.ndarray:
    """The number of the GPC of each CTA of a launch."""
    numbers, size = np.arange(ctas), max(1.0, min(GPC_SMS, (ctas - 2 * SPARE) / GPCS))
    return np.where(numbers < 2 * SPARE, numbers // SPARE, 2 + (numbers - 2 * SPARE + 0.5) // size).astype(int)
