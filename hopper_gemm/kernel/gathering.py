"""Adding up the parts of a tile through global memory: any number of parts, each from any cluster.

Every part leaves its sums in the workspace and counts itself in. When all parts of the tile are in, each adds up the
chunks that it owns (see :mod:`hopper_gemm.kernel.dealing`), in the order of the parts whatever the order of arrival:
the sum has the same bits in every run, and all CTAs share the work. Thread t of a consumer leaves its sums for thread t
of the same consumer, which holds the same elements, so that registers are written as they come.

A counter for each consumer of a tile turns its highest bit when all parts are in (:func:`weights`), so that no part has
to set it back and the next launch may find it either way. Parts of a tile are neighbours in the order of the launch,
and a CTA leaves its sums before it waits: with all clusters resident and no fewer of them than parts, whoever is waited
for either runs or waits for an earlier tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.dealing import add_in_order, of_others
from hopper_gemm.kernel.exchange import ROW_BYTES, VECTOR, VECTOR_BYTES, leave_vector, take_vector, wait_turned
from hopper_gemm.model import hopper

UNDER_WAY = 24
"""Vectors that a thread reads at a time: a read takes as long as one of many. They take the registers that the
accumulators leave."""


def weights(parts: int) -> tuple[int, int]:
    """What part 0 and every other part adds to the counter: 2^31 together, however many they are."""
    return 2**31 - (parts - 1), 1


@dataclass(frozen=True)
class Gathering:
    """One consumer thread's part in adding up one tile.

    Args:
        sums: global address of this thread's first vector of the tile's first part.
        counter: global address of this consumer's counter of the tile.
        step: bytes from part to part in ``sums``.
        parts: into which k is divided.
        rank: of this part.
        chunk: accumulator registers of a chunk.
        first: true in the thread that counts.
        barrier: id of the named barrier of this consumer's 128 threads.
    """

    sums: Int64
    counter: Int64
    step: int
    parts: int
    rank: Int32
    chunk: int
    first: Boolean
    barrier: Int32

    @staticmethod
    def of(
        sums: cute.Tensor,
        counters: cute.Tensor,
        tile: Int32,
        parts: int,
        rank: Int32,
        share: Int32,
        shares: int,
        size: int,
        chunk: int,
        thread: Int32,
        barrier: Int32,
    ) -> Gathering:
        """Of a thread.

        Args:
            sums: fp32, (cluster tiles, parts, shares, accumulators / 4, 128 threads, 4).
            counters: int32, (cluster tiles, shares).
            tile: the cluster tile.
            parts, rank, chunk, barrier: as above.
            share: number of its consumer among the ``shares`` of a cluster.
            size: its accumulators.
            thread: within its warpgroup.
        """
        each = size // VECTOR * ROW_BYTES
        step = shares * each
        own = Int64(tile) * (parts * step) + Int64(share) * each + Int64(thread) * VECTOR_BYTES
        counter = Int64(tile * shares + share) * (Int32.width // 8)
        return Gathering(
            sums.iterator.toint() + own,
            counters.iterator.toint() + counter,
            step,
            parts,
            rank,
            chunk,
            thread == 0,
            barrier,
        )

    def _sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=hopper.WARPGROUP_THREADS)

    def _offset(self, chunk: int, vector: int) -> int:
        """Bytes from a part's first vector to one of a chunk."""
        return (chunk * (self.chunk // VECTOR) + vector) * ROW_BYTES

    @cute.jit
    def send(self, accumulators: cute.Tensor) -> None:
        """Leave every chunk that another part owns, and wait until all parts have."""
        chunks = cute.size(accumulators) // self.chunk
        base = self.sums + Int64(self.rank) * self.step
        for j in cutlass.range_constexpr(chunks):
            if self.rank != j % self.parts:
                for vector in cutlass.range_constexpr(self.chunk // VECTOR):
                    leave_vector(base + self._offset(j, vector), accumulators, j * self.chunk + vector * VECTOR)
        self._sync()
        if self.first:  # what the barrier showed this thread, its release shows the other parts
            first, other = weights(self.parts)
            weight = cutlass.select_(self.rank == 0, Int32(first), Int32(other))
            before = inline_ptx(
                "atom.release.gpu.global.add.s32 {$w0}, [{$r0}], {$r1};",
                write_only_types=[Int32],
                read_only_args=[self.counter, weight],
            )
            wait_turned(self.counter, before)
        self._sync()

    @cute.jit
    def add(self, own: cute.Tensor, slot: cutlass.Constexpr[int]) -> None:
        """Turn this part of the chunk that it owns in a slot into the sum of all parts, in place.

        As many of the other parts are read at a time as make up :data:`UNDER_WAY` vectors. The compiler must not know
        how often, or it reads them all at once and runs out of registers.
        """
        vectors, others = self.chunk // VECTOR, self.parts - 1
        at_once = -(-others // -(-vectors * others // UNDER_WAY))
        times = Int32(-(-others // at_once)) + (self.rank >> 31)
        first = self.sums + Int64(self.rank + slot * self.parts) * self._offset(1, 0)
        total = cute.make_rmem_tensor(self.chunk, Float32)
        total.fill(0.0)
        for block in cutlass.range(times, unroll=1):
            numbers = [block * at_once + i for i in range(at_once)]
            sent = [self._sent(first, cutlass.min(number, others - 1), vectors) for number in numbers]
            for number, values in zip(numbers, sent, strict=True):
                there = number < others
                own_first = there & (self.rank == number)
                for i in cutlass.range_constexpr(self.chunk):
                    value = cutlass.select_(there, values[i], Float32(0.0))
                    total[i] = add_in_order(total[i], own[i], own_first, value)
        for i in cutlass.range_constexpr(self.chunk):
            own[i] = cutlass.select_(self.rank == others, total[i] + own[i], total[i])

    def _sent(self, first: Int64, number: Int32, vectors: int) -> list[Float32]:
        """What the ``number``-th of the other parts left of a chunk."""
        base = first + Int64(of_others(number, self.rank)) * self.step
        return [value for vector in range(vectors) for value in take_vector(base + self._offset(0, vector))]
