"""Adding up the parts of a tile that the CTAs of a cluster computed, each over its own stretch of k.

Every chunk of the tile has an owner, see :mod:`hopper_gemm.kernel.dealing`. Each CTA sends the parts of the chunks that
it does not own into their owners' shared memory, over the ring, which by then is empty everywhere. The
owner adds in the order of the CTAs whatever the order of arrival, so the sum has the same bits in every run, and stores
the chunk as any other. Thread t of a consumer sends to thread t of the same consumer: both hold the same elements.

The cluster meets three times for each tile: before the first part is sent (nobody reads a ring any more), before the
first is added (all parts have landed), and before the ring is loaded again (all parts have been read).
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.dealing import add_in_order, of_others
from hopper_gemm.model import hopper

VECTOR = 4
"""Floats that one thread sends or reads at a time."""


def meet() -> None:
    """A barrier of all threads of the cluster; what was written before it is seen after it."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@dataclass(frozen=True)
class Reduction:
    """One consumer thread's part in adding up.

    Args:
        landing: shared address, in every CTA the same, of this thread's first vector of its consumer's first part.
        parts: CTAs of the cluster.
        rank: of this CTA among them.
        chunk: accumulator registers of a chunk.
    """

    landing: Int32
    parts: int
    rank: Int32
    chunk: int

    @staticmethod
    def of(ring: cute.Pointer, parts: int, rank: Int32, consumer: Int32, thread: Int32, size: int, chunk: int):
        """The part of a consumer's thread; ``size`` is its accumulators, ``chunk`` those of one chunk."""
        vector = VECTOR * Float32.width // 8
        own = consumer * (size * hopper.WARPGROUP_THREADS * Float32.width // 8)
        return Reduction(ring.toint() + own + thread * vector, parts, rank, chunk)

    def _offset(self, slot: int, source: int | Int32, vector: int) -> int | Int32:
        """Bytes from ``landing`` to a vector of the part that a CTA sent of the owner's chunk ``slot``."""
        row = hopper.WARPGROUP_THREADS * VECTOR * Float32.width // 8
        return ((slot * self.parts + source) * (self.chunk // VECTOR) + vector) * row

    @cute.jit
    def send(self, accumulators: cute.Tensor) -> None:
        """Send every chunk that another CTA owns."""
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
