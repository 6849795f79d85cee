"""Accumulators straight from registers to global memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.epilogue import Region
from hopper_gemm.model import hopper


@dataclass(frozen=True)
class DirectEpilogue:
    """The store role of one consumer warpgroup without shared memory: each thread stores its pairs of columns.

    A warp's store covers 8 rows by 16 bytes of a 16-bit output: 8 sectors of 32 bytes, each half used; of fp32, whole.

    Args:
        target: global address of C's first element.
        pitch: bytes from row to row of C.
        row, column: this thread's first row and column within 64 rows of the share.
        apart: True if rows of C may start anywhere, or end with half a pair: columns are then stored one by one.
    """

    target: Int64
    pitch: Int64
    m: Int32
    n: Int32
    row: Int32
    column: Int32
    width: int
    dtype: type[cutlass.Numeric]
    apart: bool

    @staticmethod
    def of(thread: Int32, matrix: cute.Tensor, width: int, dtype: type[cutlass.Numeric], apart: bool) -> DirectEpilogue:
        """Return the stores of one of a consumer's threads; rows and columns lie as wgmma leaves its accumulators."""
        warp, lane = thread // hopper.WARP_THREADS, thread % hopper.WARP_THREADS
        pitch = Int64(matrix.stride[0]) * (dtype.width // 8)
        m, n = cute.size(matrix, mode=[0]), cute.size(matrix, mode=[1])
        row, column = warp * 16 + lane // 4, lane % 4 * 2
        return DirectEpilogue(matrix.iterator.toint(), pitch, m, n, row, column, width, dtype, apart)

    def of_tile(self, column: Int32, group: Int32 | None) -> DirectEpilogue:
        """Return the epilogue unchanged: a tile needs no reads."""
        return self

    def wait_reads(self, pending: int) -> None:
        """Nothing to wait for: no store reads shared memory."""

    def open(self) -> None:
        """Nothing to open: no chunk is staged."""

    @cute.jit
    def store_tile(
        self,
        accumulators: cute.Tensor,
        region: Region,
        sums: None = None,
    ) -> None:
        """Store one share; arguments as :meth:`ConsumerEpilogue.store_tile`, a chunk being as wide as the share."""
        rows, row, column = region.rows, region.row, region.column
        groups = self.width // 8
        parts = cute.make_tensor(accumulators.iterator, cute.make_layout((4, groups, rows)))
        first_column = column + self.column
        for i in cutlass.range_constexpr(rows):
            for j in cutlass.range_constexpr(groups):
                packed = cute.make_rmem_tensor(4, self.dtype)
                packed.store(parts[None, j, i].load().to(self.dtype))
                words = cute.recast_tensor(packed, Int32)
                at_column = first_column + j * 8
                for half in cutlass.range_constexpr(2):
                    at_row = row + i * hopper.WGMMA_M + self.row + half * 8
                    at = self.target + Int64(at_row) * self.pitch + Int64(at_column) * (self.dtype.width // 8)
                    inside = Boolean((at_row < self.m) & (at_column < self.n))
                    if cutlass.const_expr(self.apart):
                        for offset in cutlass.range_constexpr(2):
                            self._store_column(at, offset, words, half, inside & (at_column + offset < self.n))
                    elif cutlass.const_expr(self.dtype.width == 16):
                        inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[at, words[half]], predicate=inside)
                    else:
                        inline_ptx(
                            "st.global.v2.b32 [{$r0}], {{$r1}, {$r2}};",
                            read_only_args=[at, words[half * 2], words[half * 2 + 1]],
                            predicate=inside,
                        )

    def _store_column(self, at: Int64, i: int, words: cute.Tensor, half: int, predicate: Boolean) -> None:
        """Store one of a pair of columns."""
        size = self.dtype.width // 8
        word = words[half] >> (16 * i) if size == 2 else words[half * 2 + i]
        inline_ptx(
            f"st.global.b{8 * size} [{{$r0}}], {{$r1}};", read_only_args=[at + i * size, word], predicate=predicate
        )
