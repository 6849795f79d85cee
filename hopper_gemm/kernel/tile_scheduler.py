"""Which output tile next: a static schedule over cluster tiles, rastered in swizzle groups.

A *cluster tile* is the block of output tiles that one cluster computes together. Cluster ``c`` of ``C`` computes the
cluster tiles ``c, c + C, c + 2C ...`` of the raster order; every role of every CTA walks the same sequence by itself,
so nothing is communicated.

The raster walks along one axis, ``swizzle`` tiles of the other axis abreast. With raster m and swizzle 2, on 3 x 5
cluster tiles (rows m, columns n) the order is::

    0  1 |  6  7 | 12
    2  3 |  8  9 | 13
    4  5 | 10 11 | 14

The last group is narrower where the width does not divide. Neighbours in the order run at the same time and share
their panels of A and B in L2. A serpentine walk takes every other group backwards (6 and 7 below, 10 and 11 above), so
that a group starts on the panels with which the last one ended. All of this is launch-time values: changing them
recompiles nothing.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values


class Raster:
    """The order of the cluster tiles, fixed for a launch. Made on the host; its divisions are by
    precomputed multipliers on the device.

    Args:
        tiles_m: cluster tiles along m.
        tiles_n: cluster tiles along n.
        along_m: 1 to walk along m, 0 to walk along n.
        swizzle: tiles of the other axis that advance together.
        serpentine: 1 to walk every other group backwards, 0 not to.
        clusters: the most clusters that can be resident at once.
        parts: of a cluster tile that different clusters compute, each over its own stretch of k.
        cut: whether tiles are cut along k as it comes, so that clusters without a tile of their own have work as well.
    """

    def __init__(
        self,
        tiles_m: Int32,
        tiles_n: Int32,
        along_m: Int32,
        swizzle: Int32,
        serpentine: Int32,
        clusters: Int32,
        parts: int = 1,
        cut: bool = False,
    ) -> None:
        walk = cutlass.select_(along_m != 0, tiles_m, tiles_n)
        across = cutlass.select_(along_m != 0, tiles_n, tiles_m)
        width = cutlass.select_(swizzle < across, swizzle, across)
        self._parts = parts
        full_groups = across // width
        rest = across - full_groups * width
        self._values = [
            tiles_m * tiles_n,
            clusters if cut else cutlass.min(clusters, tiles_m * tiles_n * parts),
            along_m,
            full_groups,
            width,
            cutlass.select_(serpentine != 0, walk - 1, Int32(-1)),
            cute.FastDivmodDivisorV2(walk * width),
            cute.FastDivmodDivisorV2(width),
            cute.FastDivmodDivisorV2(cutlass.select_(rest > 0, rest, Int32(1))),
        ]

    @property
    def tiles(self) -> Int32:
        """Cluster tiles of the problem."""
        return self._values[0]

    @property
    def items(self) -> Int32:
        """What the clusters take one by one: cluster tiles, or parts of them, those of a tile one after the other."""
        return self.tiles * self._parts if self._parts > 1 else self.tiles

    @property
    def clusters(self) -> Int32:
        """Clusters of the launch, the stride of each one's walk.

        A launch argument costs no register; read from the grid's size it would live in one from end to end, and that
        one was spilled by the fullest shares.
        """
        return self._values[1]

    @cute.jit
    def tile(self, index: Int32) -> tuple[Int32, Int32]:
        """The cluster tile (m, n) at a place of the order; the place must be below :attr:`tiles`."""
        _, _, along_m, full_groups, width, turn, group_size, group_width, rest_width = self._values
        group, within = divmod(index, group_size)
        step, offset = divmod(within, group_width)
        rest_step, rest_offset = divmod(within, rest_width)
        in_rest = group == full_groups
        walked = cutlass.select_(in_rest, rest_step, step)
        walked = cutlass.select_((turn >= 0) & (group % 2 == 1), turn - walked, walked)
        crossed = group * width + cutlass.select_(in_rest, rest_offset, offset)
        return (
            cutlass.select_(along_m != 0, walked, crossed),
            cutlass.select_(along_m != 0, crossed, walked),
        )

    def __extract_mlir_values__(self) -> list:
        parts = [extract_mlir_values(value) for value in self._values]
        self._widths = [len(part) for part in parts]
        return [value for part in parts for value in part]

    def __new_from_mlir_values__(self, values: list) -> Raster:
        raster = object.__new__(Raster)
        raster._values, start = [], 0
        for value, width in zip(self._values, self._widths, strict=True):
            raster._values.append(new_from_mlir_values(value, values[start : start + width]))
            start += width
        raster._widths, raster._parts = self._widths, self._parts
        return raster
