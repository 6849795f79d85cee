"""No producer: the consumers' first warp loads some stages ahead of its own math."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute

from hopper_gemm.kernel.consumer import Mainloop
from hopper_gemm.kernel.operand import Loads
from hopper_gemm.kernel.pipeline import RingState


@dataclass(frozen=True)
class LoadingMainloop(Mainloop):
    """A main loop whose warpgroup issues the loads for itself, some stages ahead of its math.

    Args:
        loads: of both operands.
        row, column: of C, with which the output tile begins.
        ahead: stages ahead. The slot must have been released by then, so ``stages - 1 - stagger`` at most.
        mine: true in the warp that issues the loads.
    """

    loads: Loads | None = None
    row: Int32 | int = 0
    column: Int32 | int = 0
    ahead: int = 0
    mine: Boolean | bool = False

    @cute.jit
    def load_first(self, state: RingState, k_tiles: Int32) -> None:
        """Before the main loop: the first ``ahead`` stages."""
        for i in cutlass.range_constexpr(self.ahead):
            if self.mine & (k_tiles > i):
                self._load(state.ahead(i), Int32(i))

    @cute.jit
    def load_ahead(self, state: RingState, k_tile: Int32, k_tiles: Int32) -> None:
        """In the main loop, before stage ``k_tile`` is waited for."""
        if self.mine & (k_tile + self.ahead < k_tiles):
            self._load(state.ahead(self.ahead), k_tile + self.ahead)

    @cute.jit
    def _load(self, slot: RingState, k_tile: Int32) -> None:
        """The slot's parity is a consumer's: what the producer waits for is the phase before."""
        self.loads.ring.acquire(slot.index, slot.parity ^ 1)
        self.loads.issue(self.row, self.column, k_tile, slot.index)
