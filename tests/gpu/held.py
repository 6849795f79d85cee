"""An observer that holds consumers back, so that the ring is full when they begin."""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.place import Place
from hopper_gemm.lab.ladder.meter import Trace

NAPS = 100
"""Naps of a consumer before its first stage: tens of microseconds, in which the producer fills the ring."""


class HeldTrace(Trace):
    """The moments of a CTA whose consumers begin late."""

    def enter(self, readings: cute.Tensor | None) -> HeldTrace:
        """Take the clock before anything else."""
        return HeldTrace(readings, cute.arch.clock())

    def role(self, place: Place, number: Int32 | int) -> Trace:
        """One thread of the role, in the first CTA; a consumer, whose number is no constant, sleeps first."""
        if not isinstance(number, int):
            _sleep()
        return super().role(place, number)


@cute.jit
def _sleep() -> None:
    for _ in cutlass.range(NAPS, unroll=1):
        inline_ptx("nanosleep.u32 500;")
