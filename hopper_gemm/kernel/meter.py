"""Counting inside the kernel: how often a role found its barrier ready, and how long it waited where it was not.

A metered kernel is another binary than the one that is timed: it reads the clock twice a stage. A kernel that is not
metered carries a meter that holds nothing and leaves no trace in the machine code. A traced kernel writes down when its
first CTA did what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values


class Reading(NamedTuple):
    """What one role of one CTA writes down, in this order, 32 bits each.

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


class Meter:
    """One role's running sums, carried through its loops like the ring state.

    Args:
        values: stages, hits, waited and the clock at the start; empty where nothing is counted.
    """

    def __init__(self, values: tuple[Int32, ...]) -> None:
        self.values = values

    @staticmethod
    def start(on: bool) -> Meter:
        """Nothing counted yet."""
        return Meter((Int32(0), Int32(0), Int32(0), cute.arch.clock()) if on else ())

    def ask(self) -> Int32 | None:
        """The moment at which a role asks for a stage."""
        return cute.arch.clock() if self.values else None

    def got(self, asked: Int32 | None, passed: Boolean | bool) -> Meter:
        """The moment at which it has it; ``passed`` is what its probe said."""
        if asked is None:
            return self
        stages, hits, waited, started = self.values
        hit = passed.to(Int32) if isinstance(passed, Boolean) else Int32(passed)
        return Meter((stages + 1, hits + hit, waited + (cute.arch.clock() - asked), started))

    def write(self, readings: cute.Tensor, role: int) -> None:
        """Write the sums down. By one thread."""
        grid, block = cute.arch.grid_dim(), cute.arch.block_idx()
        cta = block[0] + grid[0] * (block[1] + grid[1] * block[2])
        stages, hits, waited, started = self.values
        for field, value in enumerate((stages, hits, waited, cute.arch.clock() - started)):
            readings[cta, role, field] = value

    def __extract_mlir_values__(self) -> list:
        return [value for part in self.values for value in extract_mlir_values(part)]

    def __new_from_mlir_values__(self, values: list) -> Meter:
        return Meter(
            tuple(new_from_mlir_values(part, [value]) for part, value in zip(self.values, values, strict=True))
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


class StageStamp(NamedTuple):
    """Moments of one stage: asked for; had; loads issued, or wgmma committed; released."""

    asked: int
    had: int
    issued: int
    released: int


ROLES_TRACED = 5
"""The producer, and up to four consumers."""

TRACED_STAGES = 128
"""Stages of the first tile that are traced."""

TRACE_WORDS = 8 + len(StageStamp._fields) * TRACED_STAGES
"""32-bit words of a role."""


@dataclass(frozen=True)
class Trace:
    """Time stamps of the first CTA's first tile, straight to global memory.

    Args:
        readings: (CTAs, roles, words) of 32 bits.
        role: row of it.
        speaks: true in the one thread that writes.
    """

    readings: cute.Tensor
    role: Int32 | int
    speaks: Boolean

    def mark(self, moment: str, clock: Int32 | None = None) -> None:
        """Note a moment of the role, of :class:`Stamp`: now, or an earlier one."""
        self._put(Stamp._fields.index(moment), self.speaks, clock)

    def stage(self, number: Int32, moment: str) -> None:
        """Note a moment of a stage, of :class:`StageStamp`."""
        at = 8 + number * len(StageStamp._fields) + StageStamp._fields.index(moment)
        self._put(at, Boolean(self.speaks & (number < TRACED_STAGES)))

    def _put(self, at: Int32 | int, writes: Boolean, clock: Int32 | None = None) -> None:
        address = self.readings.iterator.toint() + Int64(self.role * TRACE_WORDS + at) * 4
        now = cute.arch.clock() if clock is None else clock
        inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[address, now], predicate=writes)
