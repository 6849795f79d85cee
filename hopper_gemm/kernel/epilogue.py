"""Accumulators to global memory: registers -> shared memory -> TMA store, in chunks; or straight from registers.

Through shared memory a consumer's share leaves in chunks of 64 rows by a few columns, one after the other through its
own small set of buffers; no other consumer is waited for. Converting and storing chunk j + 1 overlaps the copy engine's
reading of chunk j, and the last chunks of a tile drain while the next tile is being multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.dealing import own_chunks, slots_of
from hopper_gemm.kernel.gathering import Gathering
from hopper_gemm.kernel.reduction import Reduction
from hopper_gemm.model import hopper

EVICT_FIRST = 0x12F0000000000000
"""What ``createpolicy.fractional.L2::evict_first`` makes: lines of which the L2 lets go before any other."""


@dataclass(frozen=True)
class Epilogue:
    """The store role of one consumer warpgroup.

    Args:
        atom: the TMA store of one chunk.
        copy: registers to shared memory for one chunk, partitioned for a warpgroup.
        values: shape of one thread's part of a chunk, as the copy wants it.
        registers: this thread's view of the shared buffers, (copy..., buffer).
        shared: partitioned shared memory, (box, buffer).
        target: partitioned output, (box, row of boxes, chunk column).
        boxes: of a chunk, one below the other.
        buffers: buffers of this consumer.
        barrier: id of the named barrier of this consumer's 128 threads.
        stores: true in the warp that issues the stores.
        policy: of the L2 for what is stored, or None.
    """

    atom: cute.CopyAtom
    copy: cute.TiledCopy
    values: cute.Shape
    registers: cute.Tensor
    shared: cute.Tensor
    target: cute.Tensor
    boxes: int
    buffers: int
    barrier: Int32
    stores: Boolean
    policy: int | None = None

    def sync(self) -> None:
        """A barrier of this consumer's four warps."""
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=128)

    @cute.jit
    def wait_reads(self, pending: cutlass.Constexpr[int]) -> None:
        """In the storing warp: wait until at most ``pending`` stores still read their buffers."""
        if self.stores:
            cute.arch.cp_async_bulk_wait_group(pending, read=True)

    @cute.jit
    def store_tile(
        self,
        accumulators: cute.Tensor,
        rows: cutlass.Constexpr[int],
        columns: cutlass.Constexpr[int],
        row: Int32,
        column: Int32,
        reduction: Reduction | Gathering | None = None,
    ) -> None:
        """Store one share.

        With two or more buffers a chunk costs one barrier: before it, the storing warp has made sure that the buffer
        of the *next* chunk is free; after it, the buffer of this chunk is written.

        Args:
            accumulators: fp32 registers of the share.
            rows, columns: chunks of the share, down and across.
            row, column: the share's first chunk in the whole output.
            reduction: whose sums are stored, chunk by chunk of those that this CTA owns; None where the accumulators
                are the sums.
        """
        chunks = rows * columns
        size = cute.size(accumulators) // chunks
        flat = cute.make_tensor(accumulators.iterator, cute.make_layout((size, columns, rows)))
        self.wait_reads(0)
        self.sync()
        if cutlass.const_expr(reduction is None):
            for j in cutlass.range_constexpr(chunks):
                i, at = divmod(j, columns)
                self._store_chunk(flat[None, at, i], j, chunks, row, i, column, at)
        else:
            parts, slots = reduction.parts, slots_of(chunks, reduction.parts)
            own = own_chunks(accumulators, size, parts, reduction.rank)
            for slot in cutlass.range_constexpr(slots):
                chunk = reduction.rank + slot * parts
                if chunk < chunks:
                    reduction.add(own[None, slot], slot)
                    at_row, at_column = row + chunk // columns, column + chunk % columns
                    self._store_chunk(own[None, slot], slot, slots, at_row, 0, at_column, 0)

    @cute.jit
    def _store_chunk(
        self,
        values: cute.Tensor,
        number: cutlass.Constexpr[int],
        chunks: cutlass.Constexpr[int],
        row: Int32,
        i: cutlass.Constexpr[int],
        column: Int32,
        at: cutlass.Constexpr[int],
    ) -> None:
        """Store one chunk, the ``number``-th of so many, to its place in the output: (row + i, column + at)."""
        slot = number % self.buffers
        packed = cute.make_rmem_tensor(self.values, self.registers.element_type)
        packed.store(values.load().to(self.registers.element_type))
        cute.copy(self.copy, packed, self.registers[None, None, None, slot])
        cute.arch.fence_proxy("async.shared", space="cta")
        if cutlass.const_expr(self.buffers > 1 and self.buffers <= number + 1 < chunks):
            self.wait_reads(self.buffers - 2)
        self.sync()
        if self.stores:
            hint = {} if self.policy is None else {"cache_policy": Int64(self.policy)}
            if cutlass.const_expr(self.boxes == 1):
                cute.copy(self.atom, self.shared[None, (0, 0, slot)], self.target[None, (row + i, column + at)], **hint)
            else:
                for box in cutlass.range_constexpr(self.boxes):
                    at_row = (row + i) * self.boxes + box
                    target = self.target[None, (at_row, column + at)]
                    cute.copy(self.atom, self.shared[None, (box, 0, slot)], target, **hint)
            cute.arch.cp_async_bulk_commit_group()
        if cutlass.const_expr(self.buffers == 1 and number + 1 < chunks):
            self.wait_reads(0)
            self.sync()


@dataclass(frozen=True)
class DirectEpilogue:
    """The store role of one consumer warpgroup without shared memory: each thread stores its pairs of columns.

    A warp's store covers 8 rows by 16 bytes of a 16-bit output: 8 sectors of 32 bytes, each half used; of fp32, whole.

    Args:
        target: global address of C's first element.
        pitch: bytes from row to row of C.
        m, n: of C.
        row, column: this thread's first row and column within 64 rows of the share.
        width: columns of the share.
        dtype: element type of C.
    """

    target: Int64
    pitch: Int64
    m: Int32
    n: Int32
    row: Int32
    column: Int32
    width: int
    dtype: type[cutlass.Numeric]

    @staticmethod
    def of(thread: Int32, matrix: cute.Tensor, width: int, dtype: type[cutlass.Numeric]) -> DirectEpilogue:
        """The part of one of a consumer's threads; rows and columns lie as wgmma leaves its accumulators."""
        warp, lane = thread // hopper.WARP_THREADS, thread % hopper.WARP_THREADS
        pitch = Int64(matrix.stride[0]) * (dtype.width // 8)
        m, n = cute.size(matrix, mode=[0]), cute.size(matrix, mode=[1])
        return DirectEpilogue(matrix.iterator.toint(), pitch, m, n, warp * 16 + lane // 4, lane % 4 * 2, width, dtype)

    def wait_reads(self, pending: int) -> None:
        """Nothing is read later."""

    @cute.jit
    def store_tile(
        self,
        accumulators: cute.Tensor,
        rows: cutlass.Constexpr[int],
        columns: cutlass.Constexpr[int],
        row: Int32,
        column: Int32,
        reduction: None = None,
    ) -> None:
        """Store one share; arguments as :meth:`Epilogue.store_tile`, a chunk being as wide as the share."""
        groups = self.width // 8
        parts = cute.make_tensor(accumulators.iterator, cute.make_layout((4, groups, rows)))
        first_column = column * self.width + self.column
        for i in cutlass.range_constexpr(rows):
            for j in cutlass.range_constexpr(groups):
                packed = cute.make_rmem_tensor(4, self.dtype)
                packed.store(parts[None, j, i].load().to(self.dtype))
                words = cute.recast_tensor(packed, Int32)
                at_column = first_column + j * 8
                for half in cutlass.range_constexpr(2):
                    at_row = (row + i) * hopper.WGMMA_M + self.row + half * 8
                    at = self.target + Int64(at_row) * self.pitch + Int64(at_column) * (self.dtype.width // 8)
                    inside = Boolean((at_row < self.m) & (at_column < self.n))
                    if cutlass.const_expr(self.dtype.width == 16):
                        inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[at, words[half]], predicate=inside)
                    else:
                        inline_ptx(
                            "st.global.v2.b32 [{$r0}], {{$r1}, {$r2}};",
                            read_only_args=[at, words[half * 2], words[half * 2 + 1]],
                            predicate=inside,
                        )
