"""A place in the ring kept in one integer instead of two."""

from __future__ import annotations

from cutlass import Int32
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values


class PackedState:
    """The same place in one integer, a step count: index = value % stages, parity = value // stages % 2.

    One register less to carry and one addition a step; a division by a constant, a multiplication and a shift, to read
    it. With one stage the value is the parity alone, a single xor.

    Args:
        stages: slots of the ring.
        value: steps taken since slot 0 of an even round.
    """

    def __init__(self, stages: int, value: Int32) -> None:
        self.stages = stages
        self.value = value

    @staticmethod
    def first(stages: int, phase: int) -> PackedState:
        """The first slot."""
        return PackedState(stages, Int32(phase * stages))

    @property
    def index(self) -> Int32:
        """Slot."""
        return self.value % self.stages if self.stages > 1 else self.value >> 31

    @property
    def parity(self) -> Int32:
        """The phase parity to wait for."""
        return self.value // self.stages & 1 if self.stages > 1 else self.value

    def next(self) -> PackedState:
        """The slot after this one."""
        return PackedState(self.stages, self.value + 1 if self.stages > 1 else self.value ^ 1)

    def advance(self, count: Int32) -> PackedState:
        """The slot ``count`` places on."""
        return PackedState(self.stages, self.value + count if self.stages > 1 else (self.value + count) & 1)

    def ahead(self, count: int) -> PackedState:
        """The slot ``count`` places on."""
        return self.advance(Int32(count)) if count else self

    def behind(self, count: int) -> PackedState:
        """The slot ``count`` places before this one; its phase is not kept before the first round."""
        return PackedState(self.stages, self.value + (self.stages - count)) if count else self

    def __extract_mlir_values__(self) -> list:
        return extract_mlir_values(self.value)

    def __new_from_mlir_values__(self, values: list) -> PackedState:
        return PackedState(self.stages, new_from_mlir_values(self.value, values))
