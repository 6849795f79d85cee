"""Tile scheduling: the order of the tiles, and the walks over them that all roles of a CTA share.

A *cluster tile* is the block of output tiles that one cluster computes together. The raster puts the cluster tiles in
an order: it walks along one axis, ``swizzle`` tiles of the other axis abreast. With raster m and swizzle 2, on 3 x 5
cluster tiles (rows m, columns n) the order is::

    0  1 |  6  7 | 12
    2  3 |  8  9 | 13
    4  5 | 10 11 | 14

The last group is narrower where the width does not divide. Neighbours in the order run at the same time and share
their panels of A and B in L2. A serpentine walk takes every other group in reverse (6 and 7 below, 10 and 11 above), so
that a group starts on the panels with which the last one ended. All of these are launch arguments: changing them
recompiles nothing.

An *item* is the unit of work of a cluster: a tile, or a split-K part of a tile. Three walks say which items a cluster
takes:

    Walk            cluster c of C takes items c, c + C, c + 2C ...; every role computes this itself
    DynamicWalk     the producer takes the next number from a counter in global memory (dynamic scheduler), and hands it
    ReceivedWalk    to the consumers through the ring, with the first stage of its item

All share an interface: ``start`` returns a place, ``more`` says whether the place holds an item, ``item`` returns the
item, ``ask`` requests the next item if the walk is dynamic, ``next`` returns the place after it. ``number`` is the
producer's message with an item, ``ending`` its message after the last; None in static walks.

:class:`TileScheduler` selects the walk of a role.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.kernel.place import Place
from hopper_gemm.kernel.sums.workspace import WORK_WORD, Workspace
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel

SLOTS = 2
NUMBER_BYTES = 4
"""Numbers that a mailbox holds, and the bytes of one."""

FAR = 2**31 - 1
"""A row or column beyond all tiles."""

NO_MORE = -1
"""Tag in place of an item's number when no item is left."""


@dataclass(frozen=True)
class Raster(Bundle):
    """The order of the cluster tiles, fixed for a launch. Made on the host; divisions on the device are by precomputed
    multipliers."""

    tiles: Int32  # cluster tiles of the problem
    # clusters of the launch, the stride of each walk. A launch argument costs no register; read from the grid's size it
    # would occupy a register throughout, which the largest shares spilled.
    clusters: Int32
    along_m: Int32  # 1 to walk along m, 0 to walk along n
    groups: Int32  # swizzle groups of full width
    width: Int32  # of a group, in tiles
    last: Int32  # the last step of a group, for a serpentine walk; -1 without
    # by_group, by_width, by_rest: divisors: tiles of a group, its width, the width of the last group
    by_group: Any
    by_width: Any
    by_rest: Any
    # split-K parts of a tile, where clusters take them one by one; else None, as all that follows
    parts: Int32 | None = None
    all_parts: Int32 | None = None  # of all tiles
    by_part: Int32 | None = None  # 1 to take the first parts of all tiles first, 0 to take all parts of a tile first
    by_fast: Any = None  # divisor: what is taken first, the tiles of a part or the parts of a tile
    # each, over: stages of a part, and parts that have one more
    each: Int32 | None = None
    over: Int32 | None = None

    @classmethod
    def of(
        cls,
        tiles_m: Int32,
        tiles_n: Int32,
        along_m: Int32,
        swizzle: Int32,
        serpentine: Int32,
        clusters: Int32,
        parts: Int32 | None = None,
        by_part: Int32 | None = None,
        k_tiles: Int32 | None = None,
    ) -> Self:
        """The order for a launch; ``along_m``, ``parts`` and ``by_part`` as in the class.

        Args:
            tiles_m, tiles_n: cluster tiles along m and n.
            swizzle: tiles of the other axis that advance together.
            serpentine: 1 to walk every other group in reverse, 0 not to.
            clusters: the most clusters that can be resident at once.
            k_tiles: stages of a tile.
        """
        walk = cutlass.select_(along_m != 0, tiles_m, tiles_n)
        across = cutlass.select_(along_m != 0, tiles_n, tiles_m)
        width = cutlass.select_(swizzle < across, swizzle, across)
        groups = across // width
        rest = across - groups * width
        tiles, of_parts = tiles_m * tiles_n, ()
        items = tiles
        if parts is not None:
            items, each = tiles * parts, k_tiles // parts
            by_fast = cute.FastDivmodDivisorV2(cutlass.select_(by_part != 0, tiles, parts))
            of_parts = parts, items, by_part, by_fast, each, k_tiles - each * parts
        return cls(
            tiles,
            cutlass.min(clusters, items),
            along_m,
            groups,
            width,
            cutlass.select_(serpentine != 0, walk - 1, Int32(-1)),
            cute.FastDivmodDivisorV2(walk * width),
            cute.FastDivmodDivisorV2(width),
            cute.FastDivmodDivisorV2(cutlass.select_(rest > 0, rest, Int32(1))),
            *of_parts,
        )

    @property
    def items(self) -> Int32:
        """Cluster tiles, or split-K parts of them."""
        return self.tiles if self.all_parts is None else self.all_parts

    @cute.jit
    def tile(self, index: Int32) -> tuple[Int32, Int32]:
        """The cluster tile (m, n) at a place of the order; the place must be below :attr:`tiles`."""
        group, within = divmod(index, self.by_group)
        step, offset = divmod(within, self.by_width)
        rest_step, rest_offset = divmod(within, self.by_rest)
        in_rest = group == self.groups
        walked = cutlass.select_(in_rest, rest_step, step)
        walked = cutlass.select_((self.last >= 0) & (group % 2 == 1), self.last - walked, walked)
        crossed = group * self.width + cutlass.select_(in_rest, rest_offset, offset)
        return (
            cutlass.select_(self.along_m != 0, walked, crossed),
            cutlass.select_(self.along_m != 0, crossed, walked),
        )

    def item(self, index: Int32, k_first: Int32 | int, k_tiles: Int32) -> Item:
        """The item number ``index``, below :attr:`items`, of tiles with these stages."""
        if self.parts is None:
            return Item(index, 0, k_first, k_tiles)
        slow, fast = divmod(index, self.by_fast)
        by_part = self.by_part != 0
        part = cutlass.select_(by_part, slow, fast)
        return Item(cutlass.select_(by_part, fast, slow), part, *self.stretch(part, self.each, self.over))

    @staticmethod
    def stretch(part: Int32, each: Int32, over: Int32) -> tuple[Int32, Int32]:
        """First stage and number of stages of a split-K part: ``each``, and one more for the first ``over`` parts."""
        return part * each + cutlass.min(part, over), each + Int32(part < over)


@dataclass(frozen=True)
class Item(Bundle):
    """One work item."""

    tile: Int32  # place of its cluster tile in the raster's order
    part: Int32 | int  # split-K part; 0 if items are whole tiles
    k_first: Int32 | int  # first stage along k
    k_count: Int32  # stages


@dataclass(frozen=True)
class Edge(Bundle):
    """Where the last tiles begin. Moved back to end with the matrix, they ask for no row outside of it, which TMA would
    fill with zeros and at a price (docs/neighbours.md); rows that two tiles have are computed and written twice, with
    the same bits."""

    # row, column: the last of C with which a tile begins
    row: Int32
    column: Int32

    @staticmethod
    def of(size: tuple[Int32, Int32], tile: tuple[int, int], steps: tuple[int, int]) -> Edge:
        """The edge of a matrix that tiles of a size cover, in multiples of steps along each axis. A matrix smaller than
        a tile has its tile at zero. On the host."""
        lasts = (
            (cutlass.max(whole - part, 0) + step - 1) // step * step
            for whole, part, step in zip(size, tile, steps, strict=True)
        )
        return Edge(*lasts)

    def unless(self, condition: Boolean) -> Edge:
        """The edge, or one that moves no tile if a condition holds. On the host."""
        return Edge(*(cutlass.select_(condition, Int32(FAR), last) for last in (self.row, self.column)))


class Static:
    """Base of static walks: every role computes the items itself, and the producer passes nothing on."""

    ending: Int32 | None = None
    """Message of the producer after the last item; None: consumers count for themselves."""

    def number(self, at: Any) -> Int32 | None:
        """Message of the producer with an item; None: consumers count for themselves."""
        return None

    def ask(self, at: Any) -> Any:
        """Return the place unchanged; static walks need no request."""
        return at

    def leave(self, at: Any) -> None:
        """Nothing is left to do after the last item, by the producer."""


@dataclass(frozen=True)
class Walk(Static):
    """Cluster c of C takes items c, c + C, c + 2C ..."""

    raster: Raster
    # k_first, k_tiles: first stage and stages of every tile; with split-K in a cluster those of this CTA's part
    k_first: Int32 | int
    k_tiles: Int32
    first: Int32  # of this cluster, or of a pingpong consumer
    stride: Int32  # from item to item

    def start(self, state: RingState) -> Int32:
        return Int32(self.first)

    def more(self, at: Int32) -> Boolean:
        return at < self.raster.items

    def item(self, at: Int32) -> Item:
        return self.raster.item(at, self.k_first, self.k_tiles)

    def next(self, at: Int32, state: RingState) -> Int32:
        return at + self.stride

    def neighbours(self, at: Any) -> tuple[Boolean, Boolean]:
        """Return whether the other consumer's tile precedes, and follows, the one at a place. In pingpong."""
        return at >= self.raster.clusters, at + self.raster.clusters < self.raster.tiles


@dataclass(frozen=True)
class Asked(Bundle):
    """Place of a producer that takes numbers from a counter."""

    index: Int32  # number of the current item
    taken: Int32  # last answer of the counter; in one lane, and not read before it is needed
    turn: Int32  # numbers passed between the CTAs of the cluster so far


@dataclass(frozen=True)
class DynamicWalk:
    """The dynamic scheduler: a CTA that is late, since its SM was busy or is slow, takes fewer items.

    The producer of a cluster's first CTA takes numbers from a counter in global memory, one ahead: it requests the
    number of the next item before the loads of this item, which hides the round trip to the L2. Producers of the other
    CTAs get the number through a mailbox in shared memory. The first item comes from the counter as well: with a fixed
    first item, a CTA that starts late would delay the launch.

    Every cluster takes numbers until a number is beyond the items, so that items + clusters numbers are taken in all;
    the producer that takes the last number resets the counter to zero for the next launch.
    """

    raster: Raster
    # k_first, k_tiles: stages of every tile
    k_first: Int32 | int
    k_tiles: Int32
    word: Int64  # address of the counter
    lane: Int32  # within the producer's warp
    rank: Int32  # of the CTA in its cluster
    size: int  # CTAs of the cluster
    # shared memory, or None without a cluster: :data:`SLOTS` numbers, then barriers that say that a slot is full, then
    # (used in the first CTA) that it is empty
    mailbox: cute.Pointer | None

    @property
    def ending(self) -> Int32:
        """Message of the producer after the last item: no more work."""
        return Int32(NO_MORE)

    def number(self, at: Asked) -> Int32:
        return at.index

    def start(self, state: RingState) -> Asked:
        """Ask for the first item, and wait for it."""
        return self.next(self.ask(Asked(Int32(0), Int32(0), Int32(0))), state)

    def more(self, at: Asked) -> Boolean:
        return at.index < self.raster.items

    def item(self, at: Asked) -> Item:
        return self.raster.item(at.index, self.k_first, self.k_tiles)

    def ask(self, at: Asked) -> Asked:
        """Ask for the next number. By a warp."""
        taken = inline_ptx(
            "atom.relaxed.gpu.global.add.s32 {$w0}, [{$r0}], 1;",
            write_only_types=[Int32],
            read_only_args=[self.word],
            predicate=Boolean((self.lane == 0) & (self.rank == 0)),
        )
        return Asked(at.index, taken, at.turn)

    @cute.jit
    def next(self, at: Asked, state: RingState) -> Asked:
        """Wait for the requested number, and pass it on. By a warp."""
        index = cute.arch.shuffle_sync(at.taken, Int32(0))
        if (self.lane == 0) & (self.rank == 0) & (index == self.raster.items + self.raster.clusters - 1):
            inline_ptx("st.relaxed.gpu.global.b32 [{$r0}], {$r1};", read_only_args=[self.word, Int32(0)])
        turn = at.turn
        if cutlass.const_expr(self.size > 1):
            slot, parity = turn % SLOTS, turn // SLOTS & 1
            full, empty = self._full + slot, self._empty + slot
            if self.rank == 0:
                cute.arch.mbarrier_wait(empty, parity ^ 1)
                if (self.lane > 0) & (self.lane < self.size):
                    cute.arch.store_async_dsmem(self._slot(slot), index, full, self.lane)
            else:
                if self.lane == 0:
                    cute.arch.mbarrier_arrive_and_expect_tx(full, NUMBER_BYTES)
                cute.arch.mbarrier_wait(full, parity)
                index = inline_ptx(
                    "ld.shared.b32 {$w0}, [{$r0}];",
                    write_only_types=[Int32],
                    read_only_args=[self._slot(slot).toint()],
                )
                cute.arch.sync_warp()
                if self.lane == 0:
                    cute.arch.mbarrier_arrive(empty, peer_cta_rank_in_cluster=Int32(0))
            turn = turn + 1
        return Asked(index, at.taken, turn)

    @cute.jit
    def leave(self, at: Asked) -> None:
        """Wait until every number has been taken out of the mailboxes: no peer may arrive here once this CTA has
        exited."""
        if cutlass.const_expr(self.size > 1):
            if self.rank == 0:
                for i in cutlass.range_constexpr(SLOTS):
                    turn = at.turn + i
                    cute.arch.mbarrier_wait(self._empty + turn % SLOTS, (turn // SLOTS & 1) ^ 1)

    @staticmethod
    def init(mailbox: cute.Pointer, size: int) -> None:
        """Set the arrival counts of a mailbox. By one thread, before any other thread of the cluster uses it."""
        barriers = _barriers(mailbox)
        for slot in range(SLOTS):
            cute.arch.mbarrier_init(barriers + slot, 1)
            cute.arch.mbarrier_init(barriers + SLOTS + slot, size - 1)
        cute.arch.mbarrier_init_fence()

    def _slot(self, slot: Int32) -> cute.Pointer:
        return cute.recast_ptr(self.mailbox, dtype=Int32) + slot

    @property
    def _full(self) -> cute.Pointer:
        return _barriers(self.mailbox)

    @property
    def _empty(self) -> cute.Pointer:
        return _barriers(self.mailbox) + SLOTS


def _barriers(mailbox: cute.Pointer) -> cute.Pointer:
    return mailbox + SLOTS * NUMBER_BYTES // hopper.MBARRIER_BYTES


@dataclass(frozen=True)
class ReceivedWalk(Static):
    """The consumer's side of :class:`DynamicWalk`: an item's number stands in the ring beside its first stage."""

    raster: Raster
    # k_first, k_tiles: stages of every tile
    k_first: Int32 | int
    k_tiles: Int32
    ring: Ring

    def start(self, state: RingState) -> Int32:
        return self.next(Int32(0), state)

    def more(self, at: Int32) -> Boolean:
        return at != NO_MORE

    def item(self, at: Int32) -> Item:
        return self.raster.item(at, self.k_first, self.k_tiles)

    def next(self, at: Int32, state: RingState) -> Int32:
        """Wait for the next stage, and read the number of its item."""
        self.ring.wait(state.index, state.parity)
        return self.ring.tag(state.index)


@dataclass(frozen=True)
class TileScheduler:
    """The tiles of a CTA, the same for all of its roles."""

    config: Kernel
    raster: Raster
    place: Place
    ring: Ring
    # k_first, k_tiles: stages of every tile that this CTA multiplies
    k_first: Int32 | int
    k_tiles: Int32
    workspace: Workspace | None
    mailbox: cute.Pointer | None  # shared memory of a cluster's dynamic scheduler, or None
    covers: tuple[int, int]  # rows and columns of C that a tile covers
    edge: Edge | None  # where the last tiles begin; None if no tile is moved

    def origin(self, item: Item) -> tuple[Int32, Int32]:
        """Row and column of C with which the output tile of the thread's CTA in an item begins."""
        (height, width), (cluster_tile_m, cluster_tile_n) = self.covers, self.raster.tile(item.tile)
        row = (cluster_tile_m * self.config.cluster_m + self.place.rank_m) * height
        column = (cluster_tile_n * self.config.cluster_n + self.place.rank_n) * width
        if self.edge is None:
            return row, column
        return cutlass.min(row, self.edge.row), cutlass.min(column, self.edge.column)

    def producer(self) -> Walk | DynamicWalk:
        """The producer's walk."""
        if self.config.scheduler == "static":
            return self.static()
        place, word = self.place, self.workspace.word(WORK_WORD)
        size = self.config.cluster_size
        return DynamicWalk(self.raster, self.k_first, self.k_tiles, word, place.lane, place.rank, size, self.mailbox)

    def consumer(self, number: Int32 | None) -> Walk | ReceivedWalk:
        """A consumer's walk; in pingpong that of consumer ``number``, else that of every consumer (None)."""
        if self.config.scheduler == "static":
            return self.static(number)
        return ReceivedWalk(self.raster, self.k_first, self.k_tiles, self.ring)

    def static(self, number: Int32 | None = None) -> Walk:
        """The static walk; for a pingpong consumer every other item."""
        first, stride = self.place.cluster, self.raster.clusters
        if number is not None:
            first, stride = first + number * stride, stride * 2
        return Walk(self.raster, self.k_first, self.k_tiles, first, stride)
