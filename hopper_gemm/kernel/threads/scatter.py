"""Chunks of C from shared memory to global memory by threads: to rows that TMA cannot reach.

TMA stores rows that start at multiples of 16 bytes. Here a consumer stages a chunk in shared memory as for TMA, and its
128 threads then copy it out, neighbours side by side along a row of C: word by word, or, where rows of 16-bit elements
start within a word, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, Int64, Uint16, Uint32, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.epilogue import Chunks, Region
from hopper_gemm.model import hopper

UNROLL, UNROLL_REGISTERS = 4, 48
"""Stores of a thread under way at once, where its accumulators leave it so many registers; else one after the other.
Found by compiling: with 39 left beside 216 accumulators two stores at once spilled."""


@dataclass(frozen=True)
class ThreadTarget:
    """C by stores of a consumer's threads, from the buffers in which chunks are staged. A policy of the L2 is not
    heeded."""

    shared: cute.Tensor  # chunk buffers of the consumer, (rows, columns, buffer)
    address: Int64  # global address of C's first element
    pitch: Int64  # bytes from row to row of C
    # m, n: of C
    m: Int32
    n: Int32
    transposed: bool  # True if rows of a chunk are columns of C
    thread: Int32  # within the warpgroup
    unroll: int  # stores of a thread under way at once
    swizzle: cute.Swizzle  # of the shared buffers

    @staticmethod
    def of(chunks: Chunks, shared: cute.Tensor, c: cute.Tensor, thread: Int32) -> ThreadTarget:
        """The stores of one of a consumer's threads from its chunk buffers into C, rows of the tile first."""
        config, transposed = chunks.config, chunks.transposed
        free = config.registers.consumer - config.accumulators
        pitch = Int64(c.stride[1 if transposed else 0]) * (c.element_type.width // 8)
        rows, columns = (cute.size(c, mode=[i]) for i in range(2))
        m, n = (columns, rows) if transposed else (rows, columns)
        unroll, swizzle = UNROLL if free >= UNROLL_REGISTERS else 1, chunks.layout(1).inner
        return ThreadTarget(shared, c.iterator.toint(), pitch, m, n, transposed, thread, unroll, swizzle)

    def wait_reads(self, pending: int) -> None:
        """Nothing to wait for: a thread has read a chunk before it arrives at the next barrier."""

    @cute.jit
    def store(self, slot: int | tuple[int, Int32], region: Region, down: Int32 | int, across: Int32 | int) -> None:
        """Store a chunk from its buffer: by words if all rows of C start with one, else by its 16-bit elements."""
        rows, columns = (cute.size(self.shared, mode=[i]) for i in range(2))
        row, column = region.row + down * rows, region.column + across * columns
        if cutlass.const_expr(self.shared.element_type.width == 32):
            self._copy_out(Int32, slot, row, column)
        else:
            if Int32(self.address | self.pitch) & 2 == 0:
                self._copy_out(Int32, slot, row, column)
            else:
                self._copy_out(Uint16, slot, row, column)

    @cute.jit
    def _copy_out(
        self, kind: cutlass.Constexpr[type], slot: int | tuple[int, Int32], row: Int32, column: Int32
    ) -> None:
        """Copy a chunk, which begins at a row and column of the output, in units of a type, threads of a warp along a
        row of C; a word holds two 16-bit elements."""
        size, width = self.shared.element_type.width // 8, self.shared.element_type.width
        pointer = cute.recast_ptr(self.shared.iterator, swizzle_=self.swizzle, dtype=kind)  # it drops the pointer's own
        units = cute.make_tensor(pointer, cute.recast_layout(kind.width, width, self.shared.layout))
        rows, columns = (cute.size(self.shared, mode=[i]) for i in range(2))
        lines, length = (columns, rows) if cutlass.const_expr(self.transposed) else (rows, columns)
        line, first = (column, row) if cutlass.const_expr(self.transposed) else (row, column)
        elements = kind.width // 8 // size
        each = length // elements
        # a copy whose origin the compiler does not see: else it keeps every address that follows from it in registers
        thread = inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=[self.thread])
        for i in cutlass.range(lines * each // hopper.WARPGROUP_THREADS, unroll=self.unroll):
            number = Uint32(i * hopper.WARPGROUP_THREADS) + thread
            at, unit = Int32(number // each), Int32(number % each)
            last = first + unit * elements + (elements - 1)
            to = self.address + Int64(line + at) * self.pitch + Int64(last - (elements - 1)) * size
            bits = Int32(units[(unit, at, slot) if self.transposed else (at, unit, slot)])
            inside = Boolean(line + at < self.m)
            _store(kind.width, to, bits, inside & (last < self.n))
            if cutlass.const_expr(elements > 1):
                _store(16, to, bits, inside & (last == self.n))


def _store(width: int, address: Int64, bits: Int32, predicate: Boolean) -> None:
    inline_ptx(f"st.global.b{width} [{{$r0}}], {{$r1}};", read_only_args=[address, bits], predicate=predicate)
