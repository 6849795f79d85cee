"""No producer: the consumers' first warp loads some stages ahead of its own math."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute

from hopper_gemm.kernel.operand import Loads
from hopper_gemm.kernel.pipeline import RingState


@dataclass(frozen=True)
class Ahead:
    """Loads that a multiplying warp issues for itself, some stages ahead of its math: no producer.

    Args:
        loads: of both operands.
        tile_m, tile_n: the output tile.
        count: stages ahead. The slot must have been released by then, so ``stages - 1 - stagger`` at most.
        mine: true in the warp that issues them.
    """

    loads: Loads
    tile_m: Int32
    tile_n: Int32
    count: int
    mine: Boolean

    @cute.jit
    def fill(self, state: RingState, k_tiles: Int32) -> None:
        """Before the main loop: the first ``count`` stages."""
        for i in cutlass.range_constexpr(self.count):
            if self.mine & (k_tiles > i):
                self._load(state.ahead(i), Int32(i))

    @cute.jit
    def step(self, state: RingState, k_tile: Int32, k_tiles: Int32) -> None:
        """In the main loop, before stage ``k_tile`` is waited for."""
        if self.mine & (k_tile + self.count < k_tiles):
            self._load(state.ahead(self.count), k_tile + self.count)

    @cute.jit
    def _load(self, slot: RingState, k_tile: Int32) -> None:
        """The slot's parity is a consumer's: what the producer waits for is the phase before."""
        self.loads.ring.acquire(slot.index, slot.parity ^ 1)
        self.loads.issue(self.tile_m, self.tile_n, k_tile, slot.index)
