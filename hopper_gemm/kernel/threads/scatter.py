"""Chunks of C from shared memory to global memory by threads: to rows that TMA cannot reach.

TMA stores rows that start at multiples of 16 bytes. Here a consumer stages a chunk in shared memory as for TMA, and its
128 threads then copy it out, neighbours side by side along a row of C. Of a 16-bit output a thread stores two columns
as one word. Rows of an odd pitch start in the middle of a word every other time: the pairs of such a row begin at
column 1, and the thread that would have had columns -1 and 0 stores the first and the last column on their own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import cutlass
from cutlass import Boolean, Int32, Int64, Uint16, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.epilogue import Epilogue
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel

UNROLL, UNROLL_REGISTERS = 4, 48
"""Stores of a thread under way at once, where its accumulators leave it so many registers; else one after the other.
Found by compiling: with 39 left beside 216 accumulators two stores at once spilled."""


@dataclass(frozen=True)
class ScatterEpilogue(Epilogue):
    """The store role of one consumer warpgroup by its threads, from the buffers in which chunks are staged for TMA. A
    policy of the L2 is not heeded.

    Args:
        address: global address of C's first element.
        pitch: bytes from row to row of C.
        m, n: of C.
        across: True if rows of a chunk are columns of C.
        thread: within the warpgroup.
        unroll: stores of a thread under way at once.
    """

    address: Int64
    pitch: Int64
    m: Int32
    n: Int32
    across: bool
    thread: Int32
    unroll: int

    def wait_reads(self, pending: int) -> None:
        """Nothing to wait for: a thread has read a chunk before it arrives at the next barrier."""

    @cute.jit
    def _send(self, slot: int | tuple[int, Int32], down: tuple[Int32, int], across: tuple[Int32, int]) -> None:
        """Store a chunk from its buffer; threads of a warp lie along rows of C."""
        rows, columns = (cute.size(self.shared, mode=[i]) for i in range(2))
        lines, length = (columns, rows) if cutlass.const_expr(self.across) else (rows, columns)
        line, first = sum(down) * rows, sum(across) * columns
        if cutlass.const_expr(self.across):
            line, first = first, line
        size = self.shared.element_type.width // 8
        each = length * size // 4  # words of a row
        # a copy whose origin the compiler does not see: else it keeps every address that follows from it in registers
        thread = inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[self.thread])
        for i in cutlass.range(lines * each // hopper.WARPGROUP_THREADS, unroll=self.unroll):
            number = i * hopper.WARPGROUP_THREADS + thread
            at, word = number // each, number % each
            start = self.address + Int64(line + at) * self.pitch + Int64(first) * size
            inside = Boolean(line + at < self.m)
            if cutlass.const_expr(size == 4):
                value = self._bits(at, word, slot)
                _store("b32", start + word * size, value, inside & (first + word < self.n))
            else:
                self._send_pair(slot, at, word * 2, length, start, inside, first)

    @cute.jit
    def _send_pair(
        self,
        slot,
        at: Int32,
        column: Int32,
        length: cutlass.Constexpr[int],
        start: Int64,
        inside: Boolean,
        first: Int32,
    ) -> None:
        """Store two 16-bit columns of a row of a chunk, as a word where its address allows.

        Args:
            slot: the buffer.
            at: the chunk's row of C.
            column: even; the first of the two where the row starts with a word.
            length: columns of the chunk's rows.
            start: address of the row's first column.
            inside: False below the last row of C.
            first: column of C that is the chunk's first.
        """
        off = Int32(start >> 1) & 1
        alone = Boolean((off == 1) & (column == 0))
        low = cutlass.select_(alone, Int32(length - 1), column - off)
        high = column + 1 - off
        bits = self._bits(at, low, slot) | (self._bits(at, high, slot) << 16)
        low_in, high_in = inside & (first + low < self.n), inside & (first + high < self.n)
        whole = high_in & (alone == False)  # noqa: E712 - a device value
        _store("b32", start + low * 2, bits, whole)
        _store("b16", start + low * 2, bits, low_in & (whole == False))  # noqa: E712
        _store("b16", start + high * 2, bits >> 16, high_in & alone)

    def _bits(self, at: Int32, column: Int32, slot) -> Int32:
        """An element of a chunk, its bits in the low part of a word."""
        element = self.shared[(column, at, slot) if self.across else (at, column, slot)]
        return Int32(element.bitcast(Uint16 if element.width == 16 else Int32))

    @staticmethod
    def of(staged: Epilogue, config: Kernel, thread: Int32) -> ScatterEpilogue:
        """The role of one of a consumer's threads, staged as given."""
        across, free = config.swap_ab, config.registers.consumer - config.accumulators
        c = staged.target
        pitch = Int64(c.stride[0 if not across else 1]) * (c.element_type.width // 8)
        rows, columns = (cute.size(c, mode=[i]) for i in range(2))
        m, n = (columns, rows) if across else (rows, columns)
        given = {one.name: getattr(staged, one.name) for one in fields(Epilogue)}
        place = {"address": c.iterator.toint(), "pitch": pitch, "m": m, "n": n, "across": across, "thread": thread}
        return ScatterEpilogue(**given, **place, unroll=UNROLL if free >= UNROLL_REGISTERS else 1)


def _store(kind: str, address: Int64, bits: Int32, predicate: Boolean) -> None:
    inline_ptx(f"st.global.{kind} [{{$r0}}], {{$r1}};", read_only_args=[address, bits], predicate=predicate)
