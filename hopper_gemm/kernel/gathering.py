"""Adding up the parts of a tile through global memory: any number of parts, each from any cluster.

Every part leaves its sums in the workspace and counts itself in. When all parts of the tile are in, each adds up the
chunks that it owns, a consumer's chunk j belonging to part ``j % parts``, in the order of the parts whatever the order
of arrival: the sum has the same bits in every run, and all CTAs share the work. Thread t of a consumer leaves its sums
for thread t of the same consumer, which holds the same elements, so that registers are written as they come.

A counter for each consumer of a tile goes from 0 to ``parts`` as they come in and to twice that as they leave; the last
to leave sets it back, so that the next launch finds it as this one did. Parts of a tile are neighbours in the order of
the launch, and a CTA leaves its sums before it waits: with all clusters resident and no fewer of them than parts,
whoever is waited for either runs or waits for an earlier tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.exchange import ROW_BYTES, VECTOR, VECTOR_BYTES, leave_vector, lower, take_vector, wait_until
from hopper_gemm.model import hopper

UNDER_WAY = 8
"""Vectors that a thread reads at a time."""


@dataclass(frozen=True)
class Gathering:
    """One consumer thread's part in adding up one tile.

    Args:
        sums: global address of this thread's first vector of the tile's first part.
        counter: global address of this consumer's counter of the tile; 0 between launches.
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
        cute.arch.fence_acq_rel_gpu()
        self._sync()
        if self.first:
            inline_ptx(
                "red.release.gpu.global.add.s32 [{$r0}], {$r1};",
                read_only_args=[self.counter, Int32(1)],
            )
            wait_until(self.counter, self.parts)
        self._sync()

    @cute.jit
    def add(self, own: cute.Tensor, chunk: cutlass.Constexpr[int]) -> None:
        """Turn this part of a chunk that it owns into the sum of all parts, in place.

        :data:`UNDER_WAY` vectors are read at a time, with a barrier after them: it keeps the compiler from reading so
        many ahead that registers run out.
        """
        vectors = self.chunk // VECTOR
        at_once = max(1, UNDER_WAY // self.parts)
        for first in cutlass.range_constexpr(0, vectors, at_once):
            group = range(first, min(first + at_once, vectors))
            total = cute.make_rmem_tensor(len(group) * VECTOR, Float32)
            total.fill(0.0)
            whole = self.parts // UNDER_WAY
            for block in cutlass.range(whole, unroll=1):
                self._add_parts(total, own, chunk, group, block * UNDER_WAY, UNDER_WAY)
            if cutlass.const_expr(self.parts % UNDER_WAY > 0):
                self._add_parts(total, own, chunk, group, whole * UNDER_WAY, self.parts % UNDER_WAY)
            for i in cutlass.range_constexpr(len(group) * VECTOR):
                own[first * VECTOR + i] = total[i]

    @cute.jit
    def _add_parts(
        self,
        total: cute.Tensor,
        own: cute.Tensor,
        chunk: cutlass.Constexpr[int],
        group: cutlass.Constexpr[range],
        first: Int32 | int,
        count: cutlass.Constexpr[int],
    ) -> None:
        """Add to the totals of some vectors what so many parts left of them."""
        for i in cutlass.range_constexpr(count):
            source = first + i
            base = self.sums + Int64(source) * self.step
            for slot in cutlass.range_constexpr(len(group)):
                part = take_vector(base + self._offset(chunk, group[slot]))
                for j in cutlass.range_constexpr(VECTOR):
                    mine = own[group[slot] * VECTOR + j]
                    at = slot * VECTOR + j
                    total[at] = total[at] + cutlass.select_(self.rank == source, mine, part[j])
        self._sync()

    @cute.jit
    def leave(self) -> None:
        """Count this part out, once it has read the others'; the last one sets the counter back."""
        self._sync()
        if self.first:
            before = inline_ptx(
                "atom.acq_rel.gpu.global.add.s32 {$w0}, [{$r0}], {$r1};",
                write_only_types=[Int32],
                read_only_args=[self.counter, Int32(1)],
            )
            if before == 2 * self.parts - 1:
                lower(self.counter)
