"""Counting inside the kernel: how often a role found its barrier ready, and how long it waited where it was not.

A metered kernel is another binary than the one that is timed: it reads the clock twice a stage. A kernel that is not
metered carries a meter that holds nothing and leaves no trace in the machine code.
"""

from __future__ import annotations

from typing import NamedTuple

from cutlass import Boolean, Int32, cute
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
