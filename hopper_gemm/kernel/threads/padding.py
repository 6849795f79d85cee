"""Copies of operands whose rows TMA cannot reach, to rows that it can: one launch for both.

TMA wants rows that start at multiples of 16 bytes. A thread writes 16 bytes of a row's copy. It reads the one or two
aligned pieces of 16 bytes that hold them, whatever the address, and shifts the words. The end of a copied row holds
whatever lay behind the row: TMA is told the size, and fills up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.model import hopper
from hopper_gemm.model.problem import ELEMENT_BYTES, padded_pitch

THREADS = 256
PIECES = 4
"""Threads of a CTA, and pieces of 16 bytes that each copies: the reads of all are under way at once."""

PIECE_BYTES = hopper.TMA_ALIGN_BYTES
WORDS = PIECE_BYTES // 4


@dataclass(frozen=True)
class Rows(Bundle):
    """Rows to copy, and where to; addresses and pitches in bytes."""

    # source, pitch: address of the first element, and from row to row
    source: Int64
    pitch: Int64
    # target, target_pitch: the same of the copy, both multiples of 16
    target: Int64
    target_pitch: Int64
    rows: Int32  # to copy; 0 for none
    size: Int64  # bytes of a row
    pieces: Int32  # of a copied row
    ctas: Int32  # that copy

    @staticmethod
    def of(source: Int64, pitch: Int64, target: Int64, rows: Int32, size: Int32) -> Rows:
        """Rows of ``size`` 16-bit elements, ``pitch`` elements apart."""
        pieces = cute.ceil_div(size * ELEMENT_BYTES, PIECE_BYTES)
        ctas = cute.ceil_div(rows * pieces, THREADS * PIECES)
        apart, to_apart = (Int64(one) * ELEMENT_BYTES for one in (pitch, padded_pitch(size)))
        return Rows(source, apart, target, to_apart, rows, Int64(size) * ELEMENT_BYTES, pieces, ctas)

    @cute.jit
    def copy(self, cta: Int32) -> None:
        """One thread's pieces of those of a CTA."""
        first = cta * (THREADS * PIECES) + cute.arch.thread_idx()[0]
        found = []
        for i in cutlass.range_constexpr(PIECES):
            number = first + i * THREADS
            row, piece = number // self.pieces, number % self.pieces
            begins = self.source + Int64(row) * self.pitch
            at = begins + Int64(piece) * PIECE_BYTES
            aligned = at & Int64(-PIECE_BYTES)
            inside = Boolean(row < self.rows)
            more = inside & (aligned < at) & (aligned + PIECE_BYTES < begins + self.size)
            words = (*_read(aligned, inside), *_read(aligned + PIECE_BYTES, more))
            target = self.target + Int64(row) * self.target_pitch + Int64(piece) * PIECE_BYTES
            found.append((target, inside, words, Int32(at - aligned)))
        for target, inside, words, shift in found:
            inline_ptx(
                "st.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                read_only_args=[target, *shifted(words, shift)],
                predicate=inside,
            )


def _read(address: Int64, predicate: Boolean) -> tuple[Int32, ...]:
    """Read 16 bytes; where the predicate is false, anything."""
    return inline_ptx(
        "ld.global.nc.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Int32] * WORDS,
        read_only_args=[address],
        predicate=predicate,
    )


def shifted(words: tuple[Int32, ...], shift: Int32) -> list[Int32]:
    """The 16 bytes that begin ``shift`` bytes, an even number below 16, after the first of eight words."""
    for step in (2, 1):
        skip = (shift & (4 * step)) != 0
        kept = len(words) - step
        words = tuple(cutlass.select_(skip, words[i + step], words[i]) for i in range(kept))
    half = (shift & 2) * 8
    return [
        inline_ptx(
            "shf.r.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};",
            write_only_types=[Int32],
            read_only_args=[words[i], words[i + 1], half],
        )
        for i in range(WORDS)
    ]


@cute.kernel
def _pad(a: Rows, b: Rows) -> None:
    cute.arch.griddepcontrol_launch_dependents()
    cta = cute.arch.block_idx()[0]
    if cta < a.ctas:
        a.copy(cta)
    else:
        b.copy(cta - a.ctas)


@cute.jit
def pad(
    room: cute.Tensor,
    a: Int64,
    a_pitch: Int64,
    a_rows: Int32,
    a_size: Int32,
    b: Int64,
    b_pitch: Int64,
    b_rows: Int32,
    b_size: Int32,
    stream: cuda.CUstream,
) -> None:
    """Copy rows of 16-bit elements, at any even address, to rows :func:`hopper_gemm.model.problem.padded_pitch` apart.

    The kernel lets a dependent launch (PDL) begin at once; that launch waits for this one before it reads.

    Args:
        room: 16-bit, for the rows of A's copy and then of B's.
        a, b: addresses of the first rows; what there is to copy may be one operand or both.
        a_pitch, b_pitch: elements from row to row, of any size or sign.
        a_rows, b_rows: rows; 0 for an operand that is not copied, whose size must be 1 or more all the same. An
            operand has fewer than 2^31 pieces of 16 bytes.
        a_size, b_size: elements of a row.
        stream: where to launch.
    """
    of_a = Rows.of(a, a_pitch, room.iterator.toint(), a_rows, a_size)
    of_b = Rows.of(b, b_pitch, of_a.target + Int64(a_rows) * of_a.target_pitch, b_rows, b_size)
    _pad(of_a, of_b).launch(grid=(of_a.ctas + of_b.ctas, 1, 1), block=(THREADS, 1, 1), stream=stream)
