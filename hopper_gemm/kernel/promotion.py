"""Promotion: partial sums of FP8 products, added to fp32 registers every few stages.

The tensor cores add products of FP8 to a sum of about 13 bits. With promotion they add up no more than a few stages, to
the registers of a partial sum that ordinary additions in fp32 then add to the accumulators. The tensor cores multiply
for the other consumer meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from hopper_gemm.kernel.blocks import BlockScales
from hopper_gemm.kernel.pipeline import RingState


def _places(state: RingState, stages: int) -> list[RingState]:
    """The places of so many stages, and the one behind them."""
    places = [state]
    for _ in range(stages):
        places.append(places[-1].next())
    return places


@dataclass(frozen=True)
class Promotion:
    """The sums of a tile by promotion, in place of the stages of :class:`hopper_gemm.kernel.consumer.Mainloop`.

    The blocks of 64 rows of a share are multiplied one after the other into one partial sum, since two whole sets of
    accumulators are more than a thread's registers. So the stages of an interval stay in the ring until the last block
    has read them.
    """

    partial: cute.Tensor  # fp32 registers of 64 rows of the share
    # from one promotion to the next; what is left of a tile after whole intervals is promoted stage by stage
    stages: int
    # of blocks, one of each stage, which is promoted alone; None where the epilogue scales the sums, if any
    scales: BlockScales | None = None

    def of_tile(self, row: Int32, column: Int32, k_first: Int32 | int, group: Int32 | None) -> Promotion:
        """The promotion for the output tile at a row and column, of a group if there are some, from a stage on."""
        if self.scales is None:
            return self
        return replace(self, scales=replace(self.scales.of_tile(row, column, k_first), group=group))

    @cute.jit
    def multiply_tile(self, loop: Any, state: RingState, k_tiles: Int32, turn: Any) -> RingState:
        """Accumulators = sum over k_tiles of A @ B; arguments as of the method of ``loop``, a main loop, of this name.

        Returns:
            The state after the last stage. No group is in flight and every stage has been released.
        """
        loop.share.accumulators.fill(0.0)
        if cutlass.const_expr(self.scales is not None):
            self.scales.begin(k_tiles)
        if cutlass.const_expr(turn is not None):
            turn.take()
        left, passed = k_tiles, Boolean(False)
        if cutlass.const_expr(self.stages > 1):
            for _ in cutlass.range(k_tiles // self.stages, unroll=1):
                state, passed = self._interval(loop, state, passed, self.stages)
            left = k_tiles % self.stages
        unroll = 1 + self.scales.places if self.scales is not None else 1
        for k_tile in cutlass.range(left, unroll=unroll):
            if cutlass.const_expr(self.scales is not None):
                self.scales.turn(k_tile, left)
            state, passed = self._interval(loop, state, passed, 1)
        if cutlass.const_expr(turn is not None):
            turn.give()
        loop.epilogue.open()
        return state

    @cute.jit
    def _interval(
        self, loop: Any, state: RingState, passed: Boolean, stages: cutlass.Constexpr[int]
    ) -> tuple[RingState, Boolean]:
        """Multiply, release and promote ``stages``; ``passed`` is the result of a probe for the first, and returned is
        that for the next. Unrolled: with a loop over stages kernels of two blocks spilled, or wgmma were serialised."""
        share, ring = loop.share, loop.ring
        blocks, slots = cute.size(share.a, mode=[1]), _places(state, stages)
        for block in cutlass.range_constexpr(blocks):
            for stage in cutlass.range_constexpr(stages):
                if cutlass.const_expr(block == 0):
                    ring.wait(slots[stage].index, slots[stage].parity, passed if stage == 0 else False)
                self._multiply(loop, block, slots[stage].index, stage > 0)
                if cutlass.const_expr(block == blocks - 1 and stage > 0):
                    warpgroup.wait_group(1)
                    share.release(ring, slots[stage - 1].index, None)
            warpgroup.wait_group(0)
            if cutlass.const_expr(block == blocks - 1):
                share.release(ring, slots[stages - 1].index, None)
                if cutlass.const_expr(loop.peek):
                    passed = ring.peek_full(slots[stages].index, slots[stages].parity)
            self._add(loop, block)
        return slots[stages], passed

    @cute.jit
    def _multiply(self, loop: Any, block: cutlass.Constexpr[int], index: Int32, more: cutlass.Constexpr[bool]) -> None:
        """Start multiplying a block of a stage into the partial sum; add to it if ``more``."""
        share = loop.share
        warpgroup.fence()
        atom = cute.make_mma_atom(share.mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, more)
        rows = cute.logical_divide(share.a, (None, 1, None, None))[None, (None, block), None, None]
        for k_block in cutlass.range_constexpr(cute.size(share.a, mode=[2])):
            at = (None, None, k_block, index)
            cute.gemm(atom, self.partial, rows[at], share.b[at], self.partial)
            atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    @cute.jit
    def _add(self, loop: Any, block: cutlass.Constexpr[int]) -> None:
        """Add the partial sum, scaled if there are scales, to a block of the accumulators."""
        row = cute.make_layout(cute.size(self.partial))
        sums = cute.make_tensor(loop.share.accumulators.iterator + block * cute.size(row), row)
        partial = cute.make_tensor(self.partial.iterator, row).load()
        if cutlass.const_expr(self.scales is not None):
            partial = self.scales.factors(block).load() * partial
        sums.store(sums.load() + partial)
