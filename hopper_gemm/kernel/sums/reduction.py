"""Sums over the parts of a tile that several CTAs computed, each over its own stretch of k.

Split-K divides a tile's chunks among its parts: of a consumer's chunks, part p owns p, p + parts, ... and adds these
up, so that all share the work. The owner is known only at run time, when registers cannot be indexed. Thread t of a
consumer sends to thread t of the same consumer, which holds the same elements, so that registers are written in order.
Sums are added in the order of the parts whatever the order of arrival: the result has the same bits in every run.

In a cluster a part sends the chunks that it does not own and selects its own, after which the accumulators are free for
what it receives; the number of parts is compiled in. Through a workspace their number is an argument of the launch: a
part writes all its chunks and reads its own back with those of the others, chunk after chunk in a loop that is not
unrolled. To keep its first chunk in registers would save at most a fourth of the bytes, for 100 to 250 instructions
beside 780 to 870, and kernels of 96 accumulators and more spilled.

    Whole         nothing to add: the accumulators hold the whole tile
    ClusterSum    the parts, the CTAs of a cluster, add up in the shared memory of the ring, which by then is empty
    WorkspaceSum  the parts, any number of them and each from any cluster, add up through a workspace in global memory

Each has ``finish``: add the parts of other CTAs, and store the chunks or the tile that fall to this CTA.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.epilogue import ConsumerEpilogue, Region
from hopper_gemm.kernel.sums.workspace import (
    LEDGERS,
    ROW_BYTES,
    VECTOR,
    VECTOR_BYTES,
    Ledger,
    Workspace,
    leave_vector,
    take_if,
)
from hopper_gemm.kernel.work import Item, TileScheduler
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel

UNDER_WAY = 24
"""Vectors that a thread reads at a time: many reads take as long as one. These take the registers that the accumulators
leave."""


def meet() -> None:
    """A barrier of all threads of the cluster; writes before it are visible after it."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


def of_others(number: int, rank: Int32) -> Int32:
    """The rank of the ``number``-th of the other parts, in their order."""
    return Int32(number) + Int32(rank <= number)


def add_in_order(total: Float32, own: Float32, own_first: Boolean, other: Float32) -> Float32:
    """One step of a sum in the order of the parts: add another part's value, after ``own`` if ``own_first``."""
    return cutlass.select_(own_first, total + own, total) + other


@dataclass(frozen=True)
class Whole:
    """Nothing to add."""

    def finish(self, accumulators: cute.Tensor, epilogue: ConsumerEpilogue, region: Region) -> None:
        """Store the tile."""
        epilogue.store_tile(accumulators, region)


@dataclass(frozen=True)
class ClusterSum:
    """One consumer thread's share of the sums within a cluster.

    The cluster meets three times for each tile: before the first part is sent (all reads of the ring have ended),
    before the first is added (all parts have landed), and before the ring is loaded again (all parts have been read).
    """

    landing: Int32  # shared address, in every CTA the same, of this thread's first vector of its consumer's first part
    parts: int  # CTAs of the cluster
    rank: Int32  # of this CTA among them
    chunk: int  # accumulator registers of a chunk

    @staticmethod
    def of(ring: cute.Pointer, parts: int, rank: Int32, consumer: Int32, thread: Int32, size: int, chunk: int):
        """The sums of a consumer's thread; ``size`` is its accumulators, ``chunk`` those of one chunk."""
        own = consumer * (size * hopper.WARPGROUP_THREADS * Float32.width // 8)
        return ClusterSum(ring.toint() + own + thread * VECTOR_BYTES, parts, rank, chunk)

    def _offset(self, slot: int, source: int | Int32, vector: int) -> int | Int32:
        """Bytes from ``landing`` to a vector of the part that a CTA sent of the owner's chunk ``slot``."""
        return ((slot * self.parts + source) * (self.chunk // VECTOR) + vector) * ROW_BYTES

    @cute.jit
    def send(self, accumulators: cute.Tensor) -> None:
        """Send every chunk that another CTA owns, after the last read of the ring, and wait until all have landed."""
        meet()
        chunks = cute.size(accumulators) // self.chunk
        flat = cute.make_tensor(accumulators.iterator, cute.make_layout((self.chunk, chunks)))
        for j in cutlass.range_constexpr(chunks):
            owner, slot = j % self.parts, j // self.parts
            if self.rank != owner:
                base = inline_ptx(
                    "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
                    write_only_types=[Int32],
                    read_only_args=[self.landing + self._offset(slot, self.rank, 0), Int32(owner)],
                )
                for vector in cutlass.range_constexpr(self.chunk // VECTOR):
                    at = base + self._offset(0, 0, vector)
                    inline_ptx(
                        "st.shared::cluster.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                        read_only_args=[at, *(flat[vector * VECTOR + i, j] for i in range(VECTOR))],
                    )
        meet()

    @cute.jit
    def add(self, own: cute.Tensor, slot: cutlass.Constexpr[int]) -> None:
        """Turn this CTA's part of the chunk that it owns in a slot into the sum of all parts, in place."""
        for vector in cutlass.range_constexpr(self.chunk // VECTOR):
            parts = [
                inline_ptx(
                    "ld.shared.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                    write_only_types=[Float32] * VECTOR,
                    read_only_args=[self.landing + self._offset(slot, of_others(number, self.rank), vector)],
                )
                for number in range(self.parts - 1)
            ]
            for i in cutlass.range_constexpr(VECTOR):
                at = vector * VECTOR + i
                total = Float32(0.0)
                for number in cutlass.range_constexpr(self.parts - 1):
                    total = add_in_order(total, own[at], self.rank == number, parts[number][i])
                own[at] = cutlass.select_(self.rank == self.parts - 1, total + own[at], total)

    @cute.jit
    def finish(self, accumulators: cute.Tensor, epilogue: ConsumerEpilogue, region: Region) -> None:
        """Store the sums of the chunks that this CTA owns."""
        self.send(accumulators)
        epilogue.store_tile(accumulators, region, self)
        self.leave()

    @staticmethod
    def leave() -> None:
        """Let the ring be loaded again, once all parts have been read everywhere."""
        cute.arch.fence_proxy("async.shared", space="cta")
        meet()


@dataclass(frozen=True)
class WorkspaceSum:
    """One consumer thread's share of the sums of one tile through a workspace."""

    sums: Int64  # global address of this thread's first vector of the tile's first part
    ledger: Ledger  # of this consumer's share
    step: int  # bytes from part to part in ``sums``
    parts: Int32  # into which k is divided
    rank: Int32  # of this part
    chunks: int  # of this consumer's share
    chunk: int  # accumulator registers of a chunk

    @staticmethod
    def of(
        workspace: Workspace,
        item: Item,
        parts: Int32,
        share: Int32,
        shares: int,
        size: int,
        chunk: int,
        thread: Int32,
        barrier: Int32,
    ) -> WorkspaceSum:
        """The sums of a thread, of the part of a tile that is ``item``. ``share`` is its consumer's number among the
        ``shares`` of a cluster, ``size`` its accumulators, ``barrier`` the named barrier of its consumer's 128 threads.
        ``workspace.sums`` is (cluster tiles, parts, shares, accumulators / 4, 128 threads, 4)."""
        each = size // VECTOR * ROW_BYTES
        step = shares * each
        own = Int64(item.tile * parts) * step + Int64(share) * each + Int64(thread) * VECTOR_BYTES
        word = workspace.word(item.tile * shares + share + LEDGERS)
        ledger = Ledger(word, parts, thread == 0, barrier)
        return WorkspaceSum(workspace.sum(0) + own, ledger, step, parts, item.part, size // chunk, chunk)

    @cute.jit
    def finish(self, accumulators: cute.Tensor, epilogue: ConsumerEpilogue, region: Region) -> None:
        """Store the sums of the chunks that this part owns, or of all chunks if it adds up alone."""
        self._leave(accumulators)
        first, step, adds = self.rank, self.parts, self.ledger.arrive()
        if not adds:
            first, step, adds = Int32(0), Int32(1), self.ledger.file()
        if adds:
            epilogue.store_sums(self, region, first, step)

    @cute.jit
    def _leave(self, accumulators: cute.Tensor) -> None:
        """Write all chunks, after which the accumulators are free."""
        base = self.sums + Int64(self.rank) * self.step
        for vector in cutlass.range_constexpr(cute.size(accumulators) // VECTOR):
            leave_vector(base + vector * ROW_BYTES, accumulators, vector * VECTOR)

    @cute.jit
    def total(self, values: cute.Tensor, chunk: Int32) -> None:
        """Read the sum of all parts of a chunk into ``values``, added in their order, about :data:`UNDER_WAY` vectors
        at a time. Past the last part zeros are added, which change no sum that begins with zero."""
        at_once = max(1, UNDER_WAY * VECTOR // self.chunk)
        base = self.sums + Int64(chunk) * (self.chunk // VECTOR * ROW_BYTES)
        values.fill(0.0)
        for part in cutlass.range(0, self.parts, at_once, unroll=1):
            sent = self._sent(base + Int64(part) * self.step, self.parts - part, at_once)
            for i in cutlass.range_constexpr(at_once * self.chunk):
                values[i % self.chunk] = values[i % self.chunk] + sent[i]

    def _sent(self, first: Int64, left: Int32, count: int) -> list[Float32]:
        """A chunk's values from ``count`` parts, one part after the other; zeros past those that are left."""
        vectors = [
            take_if(left > part, first + (part * self.step + vector * ROW_BYTES))
            for part in range(count)
            for vector in range(self.chunk // VECTOR)
        ]
        return [value for vector in vectors for value in vector]


Reduction = Whole | ClusterSum | WorkspaceSum


@dataclass(frozen=True)
class Parts:
    """One consumer's sums, the same for all its tiles."""

    config: Kernel
    scheduler: TileScheduler
    consumer: Int32  # number of the warpgroup among the consumers
    ring: cute.Pointer  # shared address of the ring's memory, in which the CTAs of a cluster add up

    def reduction(self, item: Item, size: int, chunk: int) -> Reduction:
        """The reduction of an item; ``size`` is a thread's accumulators, ``chunk`` those of one chunk."""
        config, scheduler, place = self.config, self.scheduler, self.scheduler.place
        share = place.rank * config.consumers + self.consumer
        shares = config.cluster_m * config.cluster_n * config.consumers
        thread, barrier = place.in_group, self.consumer + 1
        if config.parts_at_launch:
            parts = scheduler.raster.parts
            return WorkspaceSum.of(scheduler.workspace, item, parts, share, shares, size, chunk, thread, barrier)
        if config.parts_meet:
            return ClusterSum.of(self.ring, config.split_k, place.part, self.consumer, thread, size, chunk)
        return Whole()
