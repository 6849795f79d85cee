"""Workspace of a launch in global memory: partial sums that its CTAs exchange, and words by which they wait.

A workspace is ``sums``, fp32, and ``words``, int32, all zero before the first launch: the last CTA to use a word in a
launch resets it. The first words have fixed uses, the others are ledgers, one for each share of a tile that CTAs add up
together.

**The ledger.** ``parts`` CTAs bring partial sums of one share. Every wait is bounded, so that progress never depends on
residency: a CTA whose wait fails leaves its sums in the workspace and goes on, and the last part to do so adds up
alone. One word holds::

    arrived   bits 0..11    parts that have written their sums
    filed     bits 12..23   parts that have stopped waiting, or arrived after another has
    alone     bit 24        set when a wait fails before all parts have arrived: from then on only the last part to
                            file adds up
    turn      bit 25        flipped by the last part to arrive, which also resets the counts: parts that wait see that
                            all have arrived, and the word needs no clearing. It keeps its value between launches

The bit ``alone`` is set by a compare-and-swap that fails once all have arrived, so that every part sees the same of two
outcomes:

    together   all arrived before the bit was set: each part adds up its own chunks
    alone      the bit was set first: the last part to file adds up all chunks

Either way sums are added in the order of the parts: the result has the same bits in every run.

A model checker (docs/verification.md) runs the protocols in every order of events.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.sums.ledger import ALONE, ARRIVED, FILED, FILED_ONE, TURN
from hopper_gemm.model import hopper

VECTOR = 4
"""Floats that one thread writes or reads at a time."""

VECTOR_BYTES = VECTOR * Float32.width // 8
ROW_BYTES = hopper.WARPGROUP_THREADS * VECTOR_BYTES
"""Bytes of one vector of each thread of a consumer."""

WORD_BYTES = 4
PACE_WORD, WORK_WORD, LEDGERS = 0, 1, 4
"""Numbers of the word for pace, of the dynamic scheduler's counter, and of the first ledger."""

LOOKS = 24
"""Reads of a word before a wait fails, each a round trip to the L2 of about 0.7 us. Parts of a tile that run side by
side differ by a few microseconds; a part that runs in a later wave is not worth waiting for."""


@dataclass(frozen=True)
class Workspace(Bundle):
    """A launch's workspace."""

    sums: cute.Tensor  # fp32
    words: cute.Tensor  # int32, zero between launches

    def word(self, number: Int32 | int) -> Int64:
        """Address of a word."""
        return self.words.iterator.toint() + Int64(number) * WORD_BYTES

    def sum(self, number: Int32 | Int64) -> Int64:
        """Address of a float."""
        return self.sums.iterator.toint() + Int64(number) * (Float32.width // 8)


@dataclass(frozen=True)
class Ledger:
    """The word of a share, as a consumer's warpgroup uses it."""

    word: Int64  # its address
    parts: Int32 | int  # number of parts
    first: Boolean  # true in the thread that accesses the word for the warpgroup
    barrier: Int32  # id of the named barrier of its 128 threads

    def sync(self) -> None:
        """A barrier of the warpgroup."""
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=hopper.WARPGROUP_THREADS)

    def any(self, condition: Boolean) -> Boolean:
        """Synchronise as :meth:`sync`; return True if the condition holds in any thread.

        The compiler cannot know that ``bar.red`` answers all lanes alike. Told so, it keeps the ring's index, and the
        descriptors of every wgmma, in uniform registers: the main loop of 128x128 has 48 instructions instead of 64.
        """
        in_any = inline_ptx(
            "{ .reg .pred p, q; setp.ne.s32 p, {$r0}, 0; bar.red.or.pred q, {$r1}, 128, p; selp.s32 {$w0}, 1, 0, q; }",
            write_only_types=[Int32],
            read_only_args=[Int32(condition), self.barrier],
        )
        return cute.arch.make_warp_uniform(in_any) != 0

    @cute.jit
    def arrive(self) -> Boolean:
        """Count this part as arrived, and wait a bounded time for all; return True if the parts add up together."""
        self.sync()
        together = Boolean(False)
        if self.first:  # its release covers the writes before the barrier
            came = add_to(self.word, Int32(1)) + 1
            seen, looks = came, Int32(LOOKS)
            if ((came & ARRIVED) == self.parts) & ((came & ALONE) == 0):
                put(self.word, (came & TURN) ^ TURN)
                together = Boolean(True)
            else:
                while self._open(seen, came) & (looks > 0):
                    seen = acquired(self.word)
                    looks = looks - 1
                while self._open(seen, came):
                    before = swap(self.word, seen, seen | ALONE)
                    seen = cutlass.select_(before == seen, seen | ALONE, before)
                together = (seen & ALONE) == 0
        return self.any(together)

    def _open(self, seen: Int32, came: Int32) -> Boolean:
        """Return True if the outcome is open: not all parts have arrived, and no wait has failed."""
        return ((seen & ARRIVED) < self.parts) & ((seen & ALONE) == 0) & (((seen ^ came) & TURN) == 0)

    @cute.jit
    def file(self) -> Boolean:
        """Count this part as filed; return True if it is the last part, which then adds up alone."""
        self.sync()
        last = Boolean(False)
        if self.first:
            filed = add_to(self.word, Int32(FILED_ONE)) + FILED_ONE
            last = (filed & FILED) == self.parts * FILED_ONE
            if last:
                put(self.word, filed & TURN)
        return self.any(last)


@cute.jit
def gather(
    values: cute.Tensor, base: Int64, step: Int64 | int, first: Int32 | int, parts: Int32 | int, aside: int = 0
) -> None:
    """Add the values of parts ``first`` to ``parts`` - 1 to a thread's fp32 values, a multiple of :data:`VECTOR`, one
    part after the other. A part's first vector of this thread is ``step`` bytes times its number behind ``base``; that
    of part 0 lies ``aside`` bytes further on."""
    for part in cutlass.range(Int32(first), Int32(parts), unroll=1):
        at = base + Int64(part) * step
        if cutlass.const_expr(aside > 0):
            at = at + cutlass.select_(part == 0, Int64(aside), Int64(0))
        for i in cutlass.range_constexpr(cute.size(values) // VECTOR):
            sent = take_vector(at + i * ROW_BYTES)
            for j in cutlass.range_constexpr(VECTOR):
                values[i * VECTOR + j] = values[i * VECTOR + j] + sent[j]


def leave_vector(at: Int64, values: cute.Tensor, first: int) -> None:
    """Write four values from the ``first`` on."""
    inline_ptx(
        "st.global.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[at, *(values[first + i] for i in range(VECTOR))],
    )


def take_vector(at: Int64) -> tuple[Float32, ...]:
    """Read four values that another CTA left, from the L2: the L1 is not coherent."""
    return inline_ptx(
        "ld.global.cg.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Float32] * VECTOR,
        read_only_args=[at],
    )


def take_if(condition: Boolean, at: Int64) -> tuple[Float32, ...]:
    """Read as :func:`take_vector` if a condition holds; else return zeros."""
    return inline_ptx(
        "{ .reg .pred p; setp.ne.s32 p, {$r1}, 0; "
        "mov.f32 {$w0}, 0f00000000; mov.f32 {$w1}, 0f00000000; mov.f32 {$w2}, 0f00000000; mov.f32 {$w3}, 0f00000000; "
        "@p ld.global.cg.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}]; }",
        write_only_types=[Float32] * VECTOR,
        read_only_args=[at, Int32(condition)],
    )


def acquired(word: Int64) -> Int32:
    """Read a word, with acquire semantics."""
    return inline_ptx("ld.acquire.gpu.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[word])


def add_to(word: Int64, value: Int32) -> Int32:
    """Add to a word and return its old value, with acquire and release semantics."""
    return inline_ptx(
        "atom.acq_rel.gpu.global.add.s32 {$w0}, [{$r0}], {$r1};",
        write_only_types=[Int32],
        read_only_args=[word, value],
    )


def swap(word: Int64, expected: Int32, value: Int32) -> Int32:
    """Replace a word's value if it is the expected one (compare-and-swap); return its old value."""
    return inline_ptx(
        "atom.acq_rel.gpu.global.cas.b32 {$w0}, [{$r0}], {$r1}, {$r2};",
        write_only_types=[Int32],
        read_only_args=[word, expected, value],
    )


def put(word: Int64, value: Int32) -> None:
    """Set a word, with release semantics."""
    inline_ptx("st.release.gpu.global.b32 [{$r0}], {$r1};", read_only_args=[word, value])
