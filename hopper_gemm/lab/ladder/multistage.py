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
    """A main loop whose warpgroup issues the loads for itself, some stages ahead of its math."""

    loads: Loads | None = None
    row: Int32 | int = 0
    column: Int32 | int = 0
    ahead: int = 0
    mine: Boolean | bool = False

    @cute.jit
    def load_first(self, state: RingState, k_tiles: Int32) -> None:
        """Load the first ``ahead`` stages before the main loop."""
        for i in cutlass.range_constexpr(self.ahead):
            if self.mine & (k_tiles > i):
                self._load(state.ahead(i), Int32(i))

    @cute.jit
    def load_ahead(self, state: RingState, k_tile: Int32, k_tiles: Int32) -> None:
        """Load ``ahead`` stages further, before the main loop waits for stage ``k_tile``."""
        if self.mine & (k_tile + self.ahead < k_tiles):
            self._load(state.ahead(self.ahead), k_tile + self.ahead)

    @cute.jit
    def _load(self, slot: RingState, k_tile: Int32) -> None:
        """Load a stage. The slot has a consumer's parity; the producer waits for the phase before it."""
        self.loads.ring.acquire(slot.index, slot.parity ^ 1)
        self.loads.issue(self.row, self.column, k_tile, slot.index)
