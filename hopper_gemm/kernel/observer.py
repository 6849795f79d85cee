"""Hooks that each role calls as it works; they do nothing unless a study replaces them."""

from __future__ import annotations

from typing import ClassVar, Self

from cutlass import Boolean, Int32, cute

from hopper_gemm.kernel.place import Place


class Observer:
    """Observer that does nothing and adds no machine code. A subclass counts events, or records the clock.

    A value that a role carries through its loops: each method returns its successor.
    """

    roles: ClassVar[int] = 0
    words: ClassVar[int] = 0
    """Roles of a CTA that the observer records, and 32-bit words for each."""

    def enter(self, readings: cute.Tensor | None) -> Self:
        """The kernel begins; the observer may write to the readings of the launch."""
        return self

    def role(self, place: Place, number: Int32 | int) -> Self:
        """The set-up is over; the observer watches one role from here on: 0 the producer, 1 ... the consumers."""
        return self

    def begin(self) -> Self:
        """The role comes to its first stage."""
        return self

    def at(self, moment: str) -> Self:
        """The role reached a moment of a work tile, or of its life."""
        return self

    def stage(self, moment: str, number: Int32, passed: Boolean | bool = False) -> Self:
        """The role reached a moment of a stage: ``asked`` for it, ``had`` it (``passed`` is the answer of its probe),
        ``issued`` loads or wgmma, ``released`` it."""
        return self

    def leave(self) -> None:
        """The role is over."""

    def __extract_mlir_values__(self) -> list:
        return []

    def __new_from_mlir_values__(self, values: list) -> Self:
        return self
