"""Counting inside the kernel: how often a role found its barrier ready, and the time it waited where it was not.

A metered kernel is another binary than the one that is timed: it reads the clock twice a stage. A traced kernel writes
down when its first CTA did what. Both are observers of the kernel (:mod:`hopper_gemm.kernel.observer`).
"""

from __future__ import annotations

from typing import NamedTuple

from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values

from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.place import Place


class Reading(NamedTuple):
    """Fields that one role of one CTA records, in this order, 32 bits each.

    Args:
        stages: stages that it went through.
        hits: probes that found the barrier ready; 0 where it does not peek.
        waited: SM cycles between asking for a stage and having it.
        cycles: SM cycles from its first stage to the end of its last tile.
    """

    stages: int
    hits: int
    waited: int
    cycles: int


ROLES = ("producer", "consumer")
"""Rows of a CTA's readings; of several consumers the first one reports. A multistage kernel has no producer."""


class Meter(Observer):
    """One role's running sums, carried through its loops like the ring state.

    Args:
        values: stages, hits, waited and the clock at the start; then the clock at the last request for a stage.
        readings: (CTAs, roles, fields) of 32 bits.
    """

    roles, words = len(ROLES), len(Reading._fields)

    def __init__(
        self,
        values: tuple[Int32, ...] = (),
        readings: cute.Tensor | None = None,
        number: Int32 | int = 0,
        speaks: Boolean | None = None,
    ) -> None:
        self.values, self.readings, self.number, self.speaks = values, readings, number, speaks

    def _with(self, *values: Int32) -> Meter:
        return Meter(values, self.readings, self.number, self.speaks)

    def enter(self, readings: cute.Tensor | None) -> Meter:
        """Keep the tensor to write to."""
        return Meter((), readings)

    def role(self, position: Place, number: Int32 | int) -> Meter:
        """Watch the producer's first lane, or the first consumer's first thread."""
        if isinstance(number, int):
            return Meter((), self.readings, 0, Boolean(position.lane == 0))
        return Meter((), self.readings, 1, Boolean((number == 1) & (position.in_group == 0)))

    def begin(self) -> Meter:
        """Return the meter with all sums at zero."""
        return self._with(Int32(0), Int32(0), Int32(0), cute.arch.clock())

    def stage(self, moment: str, number: Int32, passed: Boolean | bool = False) -> Meter:
        """Count a stage and the time that it was waited for."""
        if moment == "asked":
            return self._with(*self.values, cute.arch.clock())
        if moment != "had":
            return self
        stages, hits, waited, started, requested = self.values
        hit = passed.to(Int32) if isinstance(passed, Boolean) else Int32(passed)
        return self._with(stages + 1, hits + hit, waited + (cute.arch.clock() - requested), started)

    @cute.jit
    def leave(self) -> None:
        """Write the sums. By one thread."""
        if self.speaks:
            self._write()

    def _write(self) -> None:
        grid, block = cute.arch.grid_dim(), cute.arch.block_idx()
        cta = block[0] + grid[0] * (block[1] + grid[1] * block[2])
        stages, hits, waited, started = self.values
        for field, value in enumerate((stages, hits, waited, cute.arch.clock() - started)):
            self.readings[cta, self.number, field] = value

    def __extract_mlir_values__(self) -> list:
        return [value for part in self.values for value in extract_mlir_values(part)]

    def __new_from_mlir_values__(self, values: list) -> Meter:
        return self._with(
            *(new_from_mlir_values(part, [value]) for part, value in zip(self.values, values, strict=True))
        )


class Stamp(NamedTuple):
    """Moments of one CTA that a traced kernel writes down for each role, SM clock, 32 bits each: those of the role,
    then those of each stage of its first tile."""

    entry: int
    set_up: int
    first: int
    fed: int
    stored: int
    left: int


STAGE_MOMENTS = ("asked", "had", "issued", "released")
"""Moments of one stage: requested; ready; loads issued, or wgmma committed; released."""


ROLES_TRACED = 5
"""The producer, and up to four consumers."""

TRACED_STAGES = 128
"""Stages of the first tile that are traced."""

TRACE_WORDS = 8 + len(STAGE_MOMENTS) * TRACED_STAGES
"""32-bit words of a role."""


class Trace(Observer):
    """Time stamps of the first CTA's first tile, straight to global memory."""

    roles, words = ROLES_TRACED, TRACE_WORDS

    def __init__(
        self,
        readings: cute.Tensor | None = None,
        entered: Int32 | None = None,
        number: Int32 | int = 0,
        speaks: Boolean | None = None,
    ) -> None:
        self.readings, self.entered, self.number, self.speaks = readings, entered, number, speaks

    def enter(self, readings: cute.Tensor | None) -> Trace:
        """Take the clock before anything else."""
        return Trace(readings, cute.arch.clock())

    def role(self, position: Place, number: Int32 | int) -> Trace:
        """Return the trace of a role: one of its threads writes, in the first CTA."""
        first = (position.cluster == 0) & (position.rank_m == 0) & (position.rank_n == 0)
        trace = Trace(self.readings, self.entered, number, Boolean(first & (position.in_group == 0)))
        trace._put(Stamp._fields.index("entry"), trace.speaks, self.entered)
        return trace.at("set_up")

    def at(self, moment: str) -> Trace:
        """Note a moment of the role, of :class:`Stamp`."""
        self._put(Stamp._fields.index(moment), self.speaks)
        return self

    def stage(self, moment: str, number: Int32, passed: Boolean | bool = False) -> Trace:
        """Note a moment of a stage, of :data:`STAGE_MOMENTS`."""
        at = 8 + number * len(STAGE_MOMENTS) + STAGE_MOMENTS.index(moment)
        self._put(at, Boolean(self.speaks & (number < TRACED_STAGES)))
        return self

    def leave(self) -> None:
        """Note that the role is over."""
        self.at("left")

    def _put(self, at: Int32 | int, writes: Boolean, clock: Int32 | None = None) -> None:
        address = self.readings.iterator.toint() + Int64(self.number * TRACE_WORDS + at) * 4
        now = cute.arch.clock() if clock is None else clock
        inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[address, now], predicate=writes)
