"""Stream-K: cut the tiles of the last, partly filled wave along k, so that all clusters have work to the end.

Where the kernel's model takes it among untuned problems (11 of 512 drawn), its best plain kernel was 1.9 % faster
(docs/ideas.md).

The cluster that begins a tile owns it: the others only file their sums in the tile's ledger, described at
:mod:`hopper_gemm.kernel.sums.workspace`, and the owner waits for them; ``alone`` then means that the owner has filed as
well and left, and the last of the others adds up. Whoever adds up clears the word.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.epilogue import ConsumerEpilogue, Region
from hopper_gemm.kernel.pipeline import RingState
from hopper_gemm.kernel.sums.ledger import ALONE, ARRIVED
from hopper_gemm.kernel.sums.reduction import Parts, Reduction
from hopper_gemm.kernel.sums.workspace import (
    LEDGERS,
    LOOKS,
    ROW_BYTES,
    VECTOR,
    VECTOR_BYTES,
    WORD_BYTES,
    Ledger,
    Workspace,
    acquired,
    add_to,
    gather,
    leave_vector,
    put,
    swap,
)
from hopper_gemm.kernel.work import Item, Raster, Static, TileScheduler, Walk

LEAST_STAGES = 8
"""A stretch of stream-K is at least this long, if need be for fewer clusters: shorter ones cost more to add up than
they save."""


@dataclass(frozen=True)
class StreamRaster(Raster):
    """An order of tiles that are cut along k as it comes, so that clusters without a tile of their own have work."""

    @classmethod
    def of(cls, tiles_m: Int32, tiles_n: Int32, *order: Any) -> Self:
        """Return the order for a launch of as many clusters as can be resident."""
        return replace(super().of(tiles_m, tiles_n, *order), clusters=order[3])


@dataclass(frozen=True)
class StreamPlace(Bundle):
    """Place of a cluster in stream-K: the next tile of whole waves, the next stage of its stretch, and its end."""

    index: Int32
    at: Int32
    end: Int32


@dataclass(frozen=True)
class StreamWalk(Static):
    """Stream-K: whole waves, if any, are walked as by a static scheduler. The remaining tiles form a string of stages,
    cut into one stretch for each cluster, of equal length; a stretch may end one tile and begin the next.

    Args:
        k_tiles: stages of a tile.
        whole: tiles of whole waves, which lie before the string in the raster's order.
        each, over: stages of a stretch; the first ``over`` stretches have one more.
    """

    raster: Raster
    k_tiles: Int32
    cluster: Int32
    whole: Int32
    clusters: Int32
    each: Int32
    over: Int32

    @staticmethod
    def of(raster: Raster, k_tiles: Int32, cluster: Int32) -> StreamWalk:
        """Return the walk of one cluster."""
        rest = raster.tiles % raster.clusters
        length = rest * k_tiles
        clusters = cutlass.min(raster.clusters, cutlass.max(length // LEAST_STAGES, 1))
        whole = raster.tiles - rest
        return StreamWalk(raster, k_tiles, cluster, whole, clusters, length // clusters, length % clusters)

    def begin(self, cluster: Int32) -> Int32:
        """Return the first stage of a cluster's stretch; the end of the string for a cluster without a stretch."""
        most = cutlass.min(cluster, self.clusters)
        return most * self.each + cutlass.min(most, self.over)

    def start(self, state: RingState) -> StreamPlace:
        """Return the first position."""
        return StreamPlace(Int32(self.cluster), self.begin(self.cluster), self.begin(self.cluster + 1))

    def more(self, position: StreamPlace) -> Boolean:
        """Return True if there is an item at a position."""
        return (position.index < self.whole) | (position.at < position.end)

    def item(self, position: StreamPlace) -> Item:
        """Return the item at a position: a whole tile, then the next piece of the stretch."""
        before = position.index < self.whole
        first = position.at % self.k_tiles
        count = cutlass.min(self.k_tiles - first, position.end - position.at)
        return Item(
            cutlass.select_(before, position.index, self.whole + position.at // self.k_tiles),
            0,
            cutlass.select_(before, Int32(0), first),
            cutlass.select_(before, self.k_tiles, count),
        )

    def next(self, position: StreamPlace, state: RingState) -> StreamPlace:
        """Return the next position."""
        at = cutlass.select_(position.index < self.whole, position.at, position.at + self.item(position).k_count)
        return StreamPlace(position.index + self.raster.clusters, at, position.end)

    def pieces(self, tile: Int32) -> tuple[Int32, Int32]:
        """Return the cluster that begins a tile of the string, and the number of clusters with a piece of it."""
        first = (tile - self.whole) * self.k_tiles
        head, tail = self._owner(first), self._owner(first + self.k_tiles - 1)
        return head, tail - head + 1

    def _owner(self, stage: Int32) -> Int32:
        """Return the cluster whose stretch holds a stage of the string."""
        longer = self.over * (self.each + 1)
        in_longer = stage < longer
        each = cutlass.select_(in_longer, self.each + 1, self.each)
        return (
            cutlass.select_(in_longer, Int32(0), self.over) + cutlass.select_(in_longer, stage, stage - longer) // each
        )


@dataclass(frozen=True)
class PieceLedger(Ledger):
    """A ledger on which the pieces of one tile meet."""

    @cute.jit
    def file_piece(self) -> Boolean:
        """File the sums of a piece; return True if the owner has left and this piece is the last, which adds up."""
        self.sync()
        last = Boolean(False)
        if self.first:
            seen = add_to(self.word, Int32(1)) + 1
            last = ((seen & ALONE) != 0) & ((seen & ARRIVED) == self.parts - 1)
            if last:
                put(self.word, Int32(0))
        return self.any(last)

    @cute.jit
    def wait_pieces(self) -> Boolean:
        """Wait a bounded while for all other pieces; return whether they have arrived. Called by the owner."""
        there = Boolean(False)
        if self.first:
            seen, looks = acquired(self.word), Int32(LOOKS)
            while ((seen & ARRIVED) < self.parts - 1) & (looks > 0):
                seen = acquired(self.word)
                looks = looks - 1
            there = (seen & ARRIVED) == self.parts - 1
            if there:
                put(self.word, Int32(0))
        return self.any(there)

    @cute.jit
    def give_up(self) -> Boolean:
        """Leave the tile to the last of the other pieces, unless all have arrived meanwhile; return whether they have.

        Called by the owner, once its own sums are filed."""
        self.sync()
        there = Boolean(False)
        if self.first:
            seen = acquired(self.word)
            while ((seen & ARRIVED) < self.parts - 1) & ((seen & ALONE) == 0):
                before = swap(self.word, seen, seen | ALONE)
                seen = cutlass.select_(before == seen, seen | ALONE, before)
            there = (seen & ALONE) == 0
            if there:
                put(self.word, Int32(0))
        return self.any(there)


@dataclass(frozen=True)
class StreamSum:
    """One consumer thread's part in adding up the pieces into which stream-K cuts a tile.

    The cluster that begins a tile owns it: the others leave their sums, and it adds them in the order of k. A piece
    that is left for another is the first thing its cluster does in the string, a tile that is finished the last. A
    cluster leaves sums twice at most: of the piece with which its stretch begins, and, where it does not wait for the
    others, of the piece with which it ends.

    Args:
        sums: global address of this thread's first vector of cluster 0.
        step: bytes from cluster to cluster in ``sums``, two pieces.
        piece: bytes of a piece.
        words: address of this consumer's ledger of the first tile of the string.
        word_step: bytes from tile to tile in ``words``.
        first: true in the thread that speaks for the warpgroup.
    """

    item: Item
    sums: Int64
    step: int
    piece: int
    words: Int64
    word_step: int
    walk: StreamWalk
    first: Boolean
    barrier: Int32

    @staticmethod
    def of(
        workspace: Workspace,
        walk: StreamWalk,
        item: Item,
        size: int,
        share: Int32,
        shares: int,
        thread: Int32,
        barrier: Int32,
    ) -> StreamSum:
        """Return a thread's part. ``workspace.sums`` is (clusters, shares, 2, accumulators / 4, 128 threads, 4)."""
        piece = size // VECTOR * ROW_BYTES
        own = workspace.sum(0) + Int64(share) * (2 * piece) + Int64(thread) * VECTOR_BYTES
        words = workspace.word(share + LEDGERS)
        return StreamSum(item, own, shares * 2 * piece, piece, words, shares * WORD_BYTES, walk, thread == 0, barrier)

    @cute.jit
    def finish(self, accumulators: cute.Tensor, epilogue: ConsumerEpilogue, region: Region) -> None:
        """Store the tile if :meth:`settle` leaves it to this cluster."""
        if self.settle(accumulators):
            epilogue.store_tile(accumulators, region)

    @cute.jit
    def settle(self, accumulators: cute.Tensor) -> Boolean:
        """Add up the pieces of a tile; return True if this cluster stores it and its accumulators hold the sum.

        The owner waits a bounded time for the other pieces. If they do not arrive it files its own sums too, and the
        last of the other clusters adds up.
        """
        stores, item = Boolean(True), self.item
        if item.k_count < self.walk.k_tiles:
            head, pieces = self.walk.pieces(item.tile)
            word = self.words + Int64(item.tile - self.walk.whole) * self.word_step
            ledger = PieceLedger(word, pieces, self.first, self.barrier)
            begin = Int32(1)
            offset = Int64(self.walk.cluster) * self.step
            if item.k_first > 0:
                self._leave(accumulators, offset)
                stores = ledger.file_piece()
                if stores:
                    accumulators.fill(0.0)
                    begin = Int32(0)
            else:
                stores = ledger.wait_pieces()
                if not stores:
                    self._leave(accumulators, offset + self.piece)
                    stores = ledger.give_up()
            if stores:
                gather(accumulators, self.sums + Int64(head) * self.step, self.step, begin, pieces, self.piece)
        return stores

    @cute.jit
    def _leave(self, accumulators: cute.Tensor, offset: Int64) -> None:
        for i in cutlass.range_constexpr(cute.size(accumulators) // VECTOR):
            leave_vector(self.sums + offset + i * ROW_BYTES, accumulators, i * VECTOR)


@dataclass(frozen=True)
class StreamScheduler(TileScheduler):
    """A tile scheduler whose static walk is stream-K's."""

    def static(self, number: Int32 | None = None) -> Walk | StreamWalk:
        """Return the walk that every role computes by itself."""
        return StreamWalk.of(self.raster, self.k_tiles, self.place.cluster)


@dataclass(frozen=True)
class StreamParts(Parts):
    """One consumer's part in adding up pieces."""

    def reduction(self, item: Item, size: int, chunk: int) -> Reduction | StreamSum:
        """Return the reduction of a tile from its pieces."""
        config, scheduler, position = self.config, self.scheduler, self.scheduler.place
        share = position.rank * config.consumers + self.consumer
        shares = config.cluster_m * config.cluster_n * config.consumers
        walk, thread = scheduler.static(), position.in_group
        return StreamSum.of(scheduler.workspace, walk, item, size, share, shares, thread, self.consumer + 1)
