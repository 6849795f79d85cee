"""Global memory through which the CTAs of a launch meet: sums that they leave for one another, and words that count.

A workspace is ``sums``, fp32, and ``words``, int32, all zero before the first launch: whoever is the last to touch a
word in a launch sets it back. The first words have fixed uses, the rest are ledgers, one for each thing that CTAs add
up together.

**The ledger.** ``parts`` CTAs bring sums for one thing. Nobody waits without a bound, so that progress never depends on
who is resident: a CTA that has waited in vain leaves its sums behind and goes on, and the last to arrive adds up alone.
One word keeps::

    arrived   bits 0..11    parts that have brought what others need of them
    filed     bits 12..23   parts that have left everything, their own share too
    alone     bit 24        set once somebody's patience ran out before all had arrived: from then on nobody adds up
                            but the last to file
    turn      bit 25        turned over by the last to arrive, which also sets the counts back to zero: so those who
                            wait see that all are there, and nobody has to clear the word. It is left as it is between
                            launches

The bit ``alone`` is set by a compare-and-swap that fails once all have arrived, so that every part sees the same of two
endings:

    together   all arrived before the bit was set: each part adds up its share
    alone      the bit came first: each part files everything, and the last to file adds it all up, in the order of the
               parts

Either way sums are added in the order of the parts: the result has the same bits in every run.

A model checker (docs/verification.md) runs the protocols in every order of events.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.model import hopper
from hopper_gemm.model.ledger import ALONE, ARRIVED, FILED, FILED_ONE, TURN

VECTOR = 4
"""Floats that one thread writes or reads at a time."""

VECTOR_BYTES = VECTOR * Float32.width // 8
ROW_BYTES = hopper.WARPGROUP_THREADS * VECTOR_BYTES
"""Bytes of a vector of every thread of a consumer, side by side."""

WORD_BYTES = 4
PACE_WORD, WORK_WORD, LEDGERS = 0, 1, 4
"""Which word producers meet at, which one hands out work, and the first ledger."""

LOOKS = 24
"""A thread looks so often at a word before it gives up, each a journey to the L2 and back of about 0.7 us. Parts of a
tile that run side by side differ by a few microseconds; a part that runs in a later wave is not worth waiting for."""


@dataclass(frozen=True)
class Workspace(Bundle):
    """A launch's workspace.

    Args:
        sums: fp32.
        words: int32, zero between launches.
    """

    sums: cute.Tensor
    words: cute.Tensor

    def word(self, number: Int32 | int) -> Int64:
        """Address of a word."""
        return self.words.iterator.toint() + Int64(number) * WORD_BYTES

    def sum(self, number: Int32 | Int64) -> Int64:
        """Address of a float."""
        return self.sums.iterator.toint() + Int64(number) * (Float32.width // 8)


@dataclass(frozen=True)
class Ledger:
    """One word on which parts meet, as a consumer's warpgroup uses it.

    Args:
        word: its address.
        parts: that meet.
        first: true in the thread that speaks for the warpgroup.
        barrier: id of the named barrier of its 128 threads.
    """

    word: Int64
    parts: Int32 | int
    first: Boolean
    barrier: Int32

    def sync(self) -> None:
        """A barrier of the warpgroup."""
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=hopper.WARPGROUP_THREADS)

    def any(self, condition: Boolean) -> Boolean:
        """The same as :meth:`sync`, and whether the condition holds in any thread."""
        found = inline_ptx(
            "{ .reg .pred p, q; setp.ne.s32 p, {$r0}, 0; bar.red.or.pred q, {$r1}, 128, p; selp.s32 {$w0}, 1, 0, q; }",
            write_only_types=[Int32],
            read_only_args=[Int32(condition), self.barrier],
        )
        return found != 0

    @cute.jit
    def arrive(self) -> Boolean:
        """Say that what others need of this part is there, and wait a while for all; whether they add up together."""
        self.sync()
        together = Boolean(False)
        if self.first:  # what the barrier showed this thread, its release shows the other parts
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
        """Whether neither ending has been reached yet: not all have arrived, and nobody has run out of patience."""
        return ((seen & ARRIVED) < self.parts) & ((seen & ALONE) == 0) & (((seen ^ came) & TURN) == 0)

    @cute.jit
    def file(self) -> Boolean:
        """Say that everything of this part is there; whether it is the last, which then adds up alone."""
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
    """Add to a thread's values what parts left of them, one part after the other.

    Args:
        values: fp32, a multiple of :data:`VECTOR`.
        base: address of part 0's first vector of this thread.
        step: bytes from part to part.
        first: part with which to begin.
        parts: number of the last one, plus 1.
        aside: bytes by which part 0 lies further on.
    """
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
    """Read four values that another CTA left, from the L2: an L1 knows nothing of it."""
    return inline_ptx(
        "ld.global.cg.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Float32] * VECTOR,
        read_only_args=[at],
    )


def acquired(word: Int64) -> Int32:
    """Read a word; what others wrote before they changed it is seen after."""
    return inline_ptx("ld.acquire.gpu.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[word])


def add_to(word: Int64, value: Int32) -> Int32:
    """Add to a word and return what it was; orders what was written before and what is read after."""
    return inline_ptx(
        "atom.acq_rel.gpu.global.add.s32 {$w0}, [{$r0}], {$r1};",
        write_only_types=[Int32],
        read_only_args=[word, value],
    )


def swap(word: Int64, expected: Int32, value: Int32) -> Int32:
    """Replace a word's value where it is the expected one; return what it was."""
    return inline_ptx(
        "atom.acq_rel.gpu.global.cas.b32 {$w0}, [{$r0}], {$r1}, {$r2};",
        write_only_types=[Int32],
        read_only_args=[word, expected, value],
    )


def put(word: Int64, value: Int32) -> None:
    """Set a word; what was written before is seen by who then acquires it."""
    inline_ptx("st.release.gpu.global.b32 [{$r0}], {$r1};", read_only_args=[word, value])
