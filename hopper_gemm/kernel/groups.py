"""Groups: products of several matrices in one launch.

    rows    C[rows of g] = A[rows of g] @ B[g]     rows of g: from the end of group g - 1 to ends[g], on the device
    batch   C[g] = A[g] @ B[g]                     matrices of one size
    depth   C[g] = A[:, k of g] @ B[k of g]        k of g: likewise; A contiguous along m, B along n

``masked`` and ``masked_depth`` are rows and depth whose groups begin at equal distances; a count on the device says how
many rows, or how much of k, a group has.

A, B and C of groups have a third mode, the group, and TMA tensors of rank 3; A and C of ``rows`` have none in memory. A
group of ``rows`` may end anywhere and may be empty. What a tile loads beyond its group belongs to the next one, and is
not stored: an element of C depends on its own row of A alone. The store goes through a TMA tensor whose rows end at
:data:`BEYOND` (:func:`ragged`): row r of a group that ends at row e is row ``BEYOND - e + r`` of plane e. In memory
that is row r of C, and rows from e on are outside, where TMA stores nothing.

What a stage of ``depth`` loads behind its group would be added: TMA reads zeros there, since the loads' depth ends at
:data:`DEEP` (:func:`ragged_depth`). A load, unlike a store, refuses a base outside of the memory: :data:`DEEP` times
:data:`WRAP` elements are 2^65 bytes, which wrap around to none. Depth i of a group of l that ends at e is depth
``DEEP - l + i`` of planes (DEEP, e). An empty group loads one stage of zeros.

Ends are data. They are clamped to the rows of C, and one that falls below an earlier one counts as that: whatever they
are, nothing outside is read or written, and no row is written by two groups. Rows behind the last end are not written.
Counts are clamped to the distance, and rows behind a count are not written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.epilogue import Region
from hopper_gemm.kernel.operand import Loads
from hopper_gemm.kernel.pipeline import RingState
from hopper_gemm.kernel.work import Asked, DynamicWalk, Item, Raster, ReceivedWalk, Static, TileScheduler, Walk
from hopper_gemm.model import hopper
from hopper_gemm.model.grouped import ROWS_MOST

BEYOND = ROWS_MOST
"""Rows and planes of C's ragged form."""

DEEP, WRAP = 1 << 30, 1 << 34
"""Depth and first plane of an operand's ragged form; elements between these planes, but for a pitch."""

LAST = 2**31 - 1
"""Number of a tile behind all others."""


def behind(tensor: cute.Tensor | None) -> cute.Tensor | None:
    """A tensor of groups with the group as its last mode; a matrix, a vector or None unchanged. On the host."""
    if tensor is None or cute.rank(tensor) < 3:
        return tensor
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[1, 2, 0]))


def ragged(c: cute.Tensor, swapped: bool) -> cute.Tensor:
    """C, (m, n) or swapped (n, m), in its ragged form; see the module. On the host."""
    pitch = Int64(c.stride[1 if swapped else 0])
    shape, stride = ((c.shape[0], BEYOND), (1, pitch)) if swapped else ((BEYOND, c.shape[1]), (pitch, 1))
    layout = cute.make_layout((*shape, BEYOND), stride=(*stride, pitch))
    return cute.make_tensor(c.iterator + (-BEYOND * pitch), layout)


def ragged_depth(operand: cute.Tensor) -> cute.Tensor:
    """An operand (rows, k), contiguous along its rows, in its ragged form; see the module. On the host."""
    pitch = Int64(operand.stride[1])
    layout = cute.make_layout((operand.shape[0], DEEP, LAST, LAST), stride=(1, pitch, WRAP - pitch, pitch))
    return cute.make_tensor(operand.iterator, layout)


@dataclass(frozen=True)
class GroupRaster(Raster):
    """The order of the tiles of a launch with groups: group after group. In a group of a batch it is the raster's; in
    one of rows, strips of ``abreast`` tiles across C, each from the first row to the last."""

    groups_in_all: Int32 | None = None  # their number
    # divisor: the tiles of a matrix of a batch, or of C of a group along k; None for groups of rows
    by_matrix: Any = None
    ends: Int64 | None = None  # address of the groups' ends; None for a batch
    most: Int32 | None = None  # rows of C, or k; of masked groups those of a group
    across: Int32 | None = None  # cluster tiles across C
    abreast: Int32 | None = None  # of them that advance together
    masked: bool = False  # True if ends are counts

    @staticmethod
    def of_batch(
        plain: Raster, clusters: Int32, count: Int32, ends: cute.Tensor | None, k: Int32, masked: bool
    ) -> GroupRaster:
        """The order of ``count`` matrices of C, each in a plain order; with ends of groups along k. On the host."""
        every = plain.tiles * count
        changed = vars(plain) | {"clusters": cutlass.min(clusters, every), "all_parts": every}
        by_matrix, deep = cute.FastDivmodDivisorV2(plain.tiles), ends is not None
        most = k // count if masked else k
        more = {"ends": ends.iterator.toint(), "most": most, "masked": masked} if deep else {}
        return GroupRaster(**_fields(changed), groups_in_all=count, by_matrix=by_matrix, **more)

    @staticmethod
    def of_rows(
        plain: Raster, clusters: Int32, ends: cute.Tensor, m: Int32, across: Int32, swizzle: Int32, masked: bool
    ) -> GroupRaster:
        """The order of groups of rows, in launches of at most as many clusters as there can be tiles: each group but
        one adds a row of tiles to those of all rows together, whose order is the plain one. On the host."""
        count = cute.size(ends)
        changed = vars(plain) | {"clusters": cutlass.min(clusters, plain.tiles + count * across)}
        walk = {"across": across, "abreast": cutlass.min(swizzle, across), "masked": masked}
        at, most = ends.iterator.toint(), m // count if masked else m
        return GroupRaster(**_fields(changed), groups_in_all=count, ends=at, most=most, **walk)

    def span(self, group: Int32) -> tuple[Int32, Int32]:
        """Where a masked group begins and ends."""
        start = group * self.most
        return start, start + cutlass.max(end_of(self, group), 0)


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "_widths"}


@dataclass(frozen=True)
class GroupItem(Item):
    """A tile of a group."""

    group: Int32  # its number
    # row, column: of C, with which the cluster tile of a group of rows begins
    row: Int32 | None = None
    column: Int32 | None = None
    end: Int32 | None = None  # of the group's rows; None for a batch

    def of_loads(self, loads: Loads, swapped: bool) -> Loads:
        """The loads of both operands in the item's group."""
        own = () if self.end is not None else (self.group,)
        planes = own, (self.group,)
        return loads.of_group(*(planes[::-1] if swapped else planes), 0)

    def region(self, region: Region) -> Region:
        """A region of C with what the TMA store needs of the group."""
        if self.end is None:
            return replace(region, plane=self.group)
        return replace(region, plane=self.end, shift=BEYOND - self.end)


@dataclass(frozen=True)
class DepthItem(GroupItem):
    """A tile of a group along k."""

    depth: Int32 | None = None  # elements of k of the group
    stop: Int32 | None = None  # where it ends

    def of_loads(self, loads: Loads, swapped: bool) -> Loads:
        planes = Int32(DEEP), self.stop
        return loads.of_group(planes, planes, DEEP - self.depth)


@dataclass(frozen=True)
class BatchWalk(Walk):
    """Cluster c of C takes tiles c, c + C, ... of all matrices, matrix after matrix."""

    def item(self, at: Int32) -> GroupItem:
        group, tile = divmod(at, self.raster.by_matrix)
        return GroupItem(tile, 0, self.k_first, self.k_tiles, group)

    def at(self, before: Int32, index: Int32) -> Int32:
        """The place of a number that follows another place's."""
        return index

    def neighbours(self, at: Int32) -> tuple[Boolean, Boolean]:
        return at >= self.raster.clusters, at + self.raster.clusters < self.raster.items


@dataclass(frozen=True)
class DepthWalk(BatchWalk):
    """The same of groups along k, each with as many stages as it takes."""

    tile_k: int  # elements of k of a stage

    def item(self, at: Int32) -> DepthItem:
        """The item at a place: of an empty group one stage."""
        group, tile = divmod(at, self.raster.by_matrix)
        start, stop = self._span(group)
        depth = stop - start
        stages = cutlass.max((depth + (self.tile_k - 1)) // self.tile_k, Int32(1))
        return DepthItem(tile, 0, 0, stages, group, depth=depth, stop=stop)

    def _span(self, group: Int32) -> tuple[Int32, Int32]:
        if self.raster.masked:
            return self.raster.span(group)
        return self._reached(group - 1), self._reached(group)

    @cute.jit
    def _reached(self, last: Int32) -> Int32:
        """The largest end of the groups up to one, at least 0. By whole warps."""
        reached, first = Int32(0), cute.arch.lane_idx()
        while first - cute.arch.lane_idx() <= last:
            reached = cutlass.max(reached, end_of(self.raster, cutlass.min(first, last)))
            first = first + hopper.WARP_THREADS
        return cute.arch.warp_redux_sync(reached, "max")


@dataclass(frozen=True)
class GroupPlace(Bundle):
    """Place of a walk over groups of rows."""

    index: Int32  # number of the tile
    group: Int32  # to which it belongs; behind the last one if there is no such tile
    base: Int32  # number of the group's first tile
    # start, end: rows of the group
    start: Int32
    end: Int32
    total: Int32 | int = 0  # tiles of all groups, where it is needed


@dataclass(frozen=True)
class RowsWalk(Walk):
    """Cluster c of C takes tiles c, c + C, ... of all groups of rows. A warp looks at 32 groups at once."""

    # rows, columns: of C that a cluster tile covers
    rows: int
    columns: int
    counted: bool  # True if the number of all tiles is needed, as in pingpong

    def start(self, state: RingState) -> GroupPlace:
        return self._sought(replace(self._before, total=self.total() if self.counted else 0))

    def total(self) -> Int32:
        """Tiles of all groups."""
        return self._sought(replace(self._before, index=Int32(LAST))).base

    @property
    def _before(self) -> GroupPlace:
        zero = Int32(0)
        return GroupPlace(Int32(self.first), Int32(-1), zero, zero, zero)

    def more(self, at: GroupPlace) -> Boolean:
        return at.group < self.raster.groups_in_all

    def item(self, at: GroupPlace) -> GroupItem:
        raster, number = self.raster, at.index - at.base
        strip = self._down(at.end - at.start) * raster.abreast
        left = number // strip * raster.abreast
        width, within = cutlass.min(raster.abreast, raster.across - left), number % strip
        step = within // width
        row, column = at.start + step * self.rows, (left + within - step * width) * self.columns
        return GroupItem(Int32(0), 0, self.k_first, self.k_tiles, at.group, row, column, at.end)

    def next(self, at: GroupPlace, state: RingState) -> GroupPlace:
        return self.at(at, at.index + self.stride)

    def at(self, before: GroupPlace, index: Int32) -> GroupPlace:
        return self._sought(replace(before, index=index))

    def neighbours(self, at: GroupPlace) -> tuple[Boolean, Boolean]:
        return at.index >= self.raster.clusters, at.index + self.raster.clusters < at.total

    def _down(self, rows: Int32) -> Int32:
        return (rows + (self.rows - 1)) // self.rows

    @cute.jit
    def _sought(self, at: GroupPlace) -> GroupPlace:
        """The place with the group to which its number belongs, which does not precede the place's own. By whole warps:
        lane l looks at the l-th group behind, of which it needs the largest end and the sum of tiles so far."""
        raster, lane = self.raster, cute.arch.lane_idx()
        group, base, start, end = at.group, at.base, at.start, at.end
        tiles = self._down(end - start) * raster.across
        while (group < raster.groups_in_all) & (at.index >= base + tiles):
            group, base = group + 1, base + tiles
            own = cutlass.min(group + lane, raster.groups_in_all - 1)
            if cutlass.const_expr(raster.masked):
                own_start, own_end = raster.span(own)
                own_end = cutlass.select_(own == group + lane, own_end, own_start)
            else:
                own_end = cutlass.max(end_of(raster, own), end)
                for apart in cutlass.range_constexpr(5):
                    own_end = cutlass.max(own_end, cute.arch.shuffle_sync_up(own_end, 1 << apart))
                own_start = cutlass.select_(lane == 0, end, cute.arch.shuffle_sync_up(own_end, 1))
            own_tiles = self._down(own_end - own_start) * raster.across
            through = own_tiles
            for apart in cutlass.range_constexpr(5):
                before = cute.arch.shuffle_sync_up(through, 1 << apart)
                through = through + cutlass.select_(lane >= 1 << apart, before, Int32(0))
            past = Int32(cute.arch.popc(cute.arch.vote_ballot_sync(Boolean(base + through <= at.index))))
            hit = cutlass.min(past, Int32(hopper.WARP_THREADS - 1))
            group, base = group + hit, base + cute.arch.shuffle_sync(through - own_tiles, hit)
            tiles = cute.arch.shuffle_sync(own_tiles, hit)
            start, end = cute.arch.shuffle_sync(own_start, hit), cute.arch.shuffle_sync(own_end, hit)
        return GroupPlace(at.index, group, base, start, end, at.total)


def end_of(raster: GroupRaster, group: Int32) -> Int32:
    """Where a group ends, at most at the end of all; its count if groups are masked. Not through the read-only cache:
    with PDL the launch before may write it while this one runs."""
    at = raster.ends + Int64(group) * 4
    end = inline_ptx("ld.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[at])
    return cutlass.min(end, raster.most)


@dataclass(frozen=True)
class Taken(Bundle):
    """Place of a producer that takes numbers from a counter: the number, and the tile of that number."""

    taken: Asked
    tile: Any


@dataclass(frozen=True)
class DynamicGroups:
    """The dynamic scheduler over groups; its methods are those of :class:`hopper_gemm.kernel.work.DynamicWalk`."""

    numbers: DynamicWalk  # the walk over numbers
    tiles: Walk  # the static walk, which knows the tile of a number

    @property
    def ending(self) -> Int32:
        return self.numbers.ending

    def number(self, at: Taken) -> Int32:
        return at.taken.index

    def start(self, state: RingState) -> Taken:
        taken = self.numbers.start(state)
        return Taken(taken, self.tiles.at(self.tiles.start(state), taken.index))

    def more(self, at: Taken) -> Boolean:
        return self.numbers.more(at.taken)

    def item(self, at: Taken) -> GroupItem:
        return self.tiles.item(at.tile)

    def ask(self, at: Taken) -> Taken:
        return replace(at, taken=self.numbers.ask(at.taken))

    def next(self, at: Taken, state: RingState) -> Taken:
        taken = self.numbers.next(at.taken, state)
        return Taken(taken, self.tiles.at(at.tile, taken.index))

    def leave(self, at: Taken) -> None:
        self.numbers.leave(at.taken)


@dataclass(frozen=True)
class ReceivedTile(Bundle):
    """Place of a consumer: the number that it received, and its tile."""

    index: Int32
    tile: Any


@dataclass(frozen=True)
class ReceivedGroups(Static):
    """The consumer's side of :class:`DynamicGroups`."""

    numbers: ReceivedWalk  # the walk over numbers
    tiles: Walk  # the static walk, which knows the tile of a number

    def start(self, state: RingState) -> ReceivedTile:
        index = self.numbers.start(state)
        return ReceivedTile(index, self.tiles.at(self.tiles.start(state), index))

    def more(self, at: ReceivedTile) -> Boolean:
        return self.numbers.more(at.index)

    def item(self, at: ReceivedTile) -> GroupItem:
        return self.tiles.item(at.tile)

    def next(self, at: ReceivedTile, state: RingState) -> ReceivedTile:
        index = self.numbers.next(at.index, state)
        return ReceivedTile(index, self.tiles.at(at.tile, index))


@dataclass(frozen=True)
class GroupScheduler(TileScheduler):
    """The tiles of a CTA of a launch with groups."""

    def producer(self) -> Walk | DynamicGroups:
        if self.config.scheduler == "static":
            return self.static()
        tiles, numbers = self._from_zero(), super().producer()
        if self.raster.by_matrix is None:
            numbers = replace(numbers, raster=replace(self.raster, all_parts=tiles.total()))
        return DynamicGroups(numbers, tiles)

    def consumer(self, number: Int32 | None) -> Walk | ReceivedGroups:
        if self.config.scheduler == "static":
            return self.static(number)
        return ReceivedGroups(super().consumer(number), self._from_zero())

    def _from_zero(self) -> Walk:
        return replace(self.static(), first=Int32(0))

    def origin(self, item: GroupItem) -> tuple[Int32, Int32]:
        """Row and column of the output tile of the thread's CTA, as the tile counts them; in a matrix of a batch."""
        if item.end is None:
            return super().origin(item)
        row, column = (item.column, item.row) if self.config.swap_ab else (item.row, item.column)
        return row + self.place.rank_m * self.covers[0], column + self.place.rank_n * self.covers[1]

    def static(self, number: Int32 | None = None) -> Walk:
        plain = vars(super().static(number))
        if self.raster.by_matrix is not None:
            deep = self.raster.ends is not None
            return DepthWalk(**plain, tile_k=self.config.tile_k) if deep else BatchWalk(**plain)
        rows, columns = self.covers[0] * self.config.cluster_m, self.covers[1] * self.config.cluster_n
        if self.config.swap_ab:
            rows, columns = columns, rows
        return RowsWalk(**plain, rows=rows, columns=columns, counted=number is not None)
