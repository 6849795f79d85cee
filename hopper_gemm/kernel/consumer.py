"""The consumer: multiplying stages as they become full, and releasing them a few wgmma groups late."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from hopper_gemm.kernel.epilogue import Epilogue
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.model import hopper

UNIFORM_WGMMA = 8
"""wgmma between two ``make_warp_uniform`` of the slot's index. Each wgmma needs four of 63 uniform registers for its
descriptors; with more wgmma than this the compiler may compute all of them in vector registers and move each over,
three instructions for every wgmma: 173 a stage instead of 114 for 320x128, 155 instead of 95 for 256x128 at k_depth 8.
"""


@dataclass(frozen=True)
class Turn:
    """The turn in pingpong: one consumer feeds the tensor cores, the other stores.

    Correctness depends on it. The ring runs on across tiles, so that both consumers read a slot, in different rounds. A
    consumer that ran ahead would wait for round r of a slot still in round r - 1, see the parity of round r - 2, and
    read stale data. A consumer starts a tile once the other consumer has seen the last stage of its own tile full.

    Args:
        own, other: ids of the named barriers on which this consumer and the other one wait.
        waits: True if a tile precedes this one.
        passes: True if a tile follows this one.
    """

    own: Int32
    other: Int32
    waits: Boolean
    passes: Boolean

    @cute.jit
    def take(self) -> None:
        """Wait for the turn."""
        if self.waits:
            cute.arch.barrier(barrier_id=self.own, number_of_threads=2 * hopper.WARPGROUP_THREADS)

    @cute.jit
    def give(self) -> None:
        """Pass the turn on."""
        if self.passes:
            cute.arch.barrier_arrive(barrier_id=self.other, number_of_threads=2 * hopper.WARPGROUP_THREADS)


@dataclass(frozen=True)
class Share:
    """Operands and registers of one consumer, the same for all its tiles.

    Args:
        mma: the tiled wgmma of one warpgroup.
        accumulators: fp32 registers of the share.
        a, b: descriptors of the share's operands, (instruction, rows, k-block, stage).
        target, arrives: this lane's part in a release; see :meth:`Ring.release`.
    """

    mma: cute.TiledMma
    accumulators: cute.Tensor
    a: cute.Tensor
    b: cute.Tensor
    target: Int32
    arrives: Boolean | None

    def release(self, ring: Ring, index: Int32, due: Boolean | None) -> None:
        """Release a slot if that is due; ``due`` is None if it always is."""
        known = [condition for condition in (self.arrives, due) if condition is not None]
        ring.release(index, self.target, known[0] & known[1] if len(known) == 2 else known[0] if known else None)


@dataclass(frozen=True)
class Mainloop:
    """The MMA role, for one share of one output tile after another.

    Args:
        ring: of stages.
        share: operands and registers of the consumer.
        epilogue: opened while the last wgmma groups run.
        stagger: groups in flight when an older stage is released.
        peek: probe the next stage while the tensor cores work, and block only if the probe failed.
        held: last stages of a tile that are not released; see :func:`release_held`.
        unroll: unroll factor of the loop.
    """

    ring: Ring
    share: Share
    epilogue: Epilogue
    stagger: int
    peek: bool
    held: int
    unroll: int = 1

    @cute.jit
    def multiply_tile(
        self, state: RingState, k_tiles: Int32, turn: Turn | None, seen: Observer
    ) -> tuple[RingState, Observer]:
        """Accumulators = sum over k_tiles of A @ B.

        Each stage is one wgmma group. After issuing stage i the warp waits until at most ``stagger`` groups are in
        flight, which ends group i - stagger, and releases that stage; see :mod:`hopper_gemm.kernel.pipeline` for why
        that is safe. So the tensor cores always have a group queued while the warp serves the barriers. The first wgmma
        of the tile ignores the accumulators' content, which saves clearing them.

        Args:
            state: this consumer's place in the ring; the releases trail ``stagger`` slots behind.
            k_tiles: stages of this tile, at least 1.
            turn: taken before the first stage and given after the last is issued; None without pingpong.
            seen: the observer.

        Returns:
            The state after the last stage, and the observer. No group is in flight and every stage but those held has
            been released.
        """
        ring, share, stagger = self.ring, self.share, self.stagger
        k_blocks = cute.size(share.a, mode=[2])
        batch = max(1, UNIFORM_WGMMA // cute.size(share.a, mode=[1]))
        released = state.behind(stagger)
        passed = Boolean(False)
        self.load_first(state, k_tiles)
        if cutlass.const_expr(turn is not None):
            turn.take()
        for k_tile in cutlass.range(k_tiles, unroll=self.unroll):
            self.load_ahead(state, k_tile, k_tiles)
            seen = seen.stage("asked", k_tile)
            ring.wait(state.index, state.parity, passed)
            seen = seen.stage("had", k_tile, passed)
            warpgroup.fence()
            atom = cute.make_mma_atom(share.mma.op)
            atom.set(warpgroup.Field.ACCUMULATE, k_tile != 0)
            index = state.index
            for k_block in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(k_block > 0 and k_block % batch == 0):
                    index = cute.arch.make_warp_uniform(index)
                at = (None, None, k_block, index)
                cute.gemm(atom, share.accumulators, share.a[at], share.b[at], share.accumulators)
                atom.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            seen = seen.stage("issued", k_tile)
            state = state.next()
            if cutlass.const_expr(self.peek):
                passed = ring.peek_full(state.index, state.parity)
            warpgroup.wait_group(stagger)
            share.release(ring, released.index, self._due(k_tile, k_tiles))
            seen = seen.stage("released", k_tile)
            released = released.next()
        if cutlass.const_expr(turn is not None):
            turn.give()
        self.epilogue.open()
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(stagger - self.held):
            share.release(ring, released.index, k_tiles + i >= stagger)
            released = released.next()
        return state, seen

    def load_first(self, state: RingState, k_tiles: Int32) -> None:
        """Issue the tile's first loads, in kernels whose consumers load; here the producer does."""

    def load_ahead(self, state: RingState, k_tile: Int32, k_tiles: Int32) -> None:
        """Issue loads before the wait for stage ``k_tile``, in kernels whose consumers load."""

    def _due(self, k_tile: Int32, k_tiles: Int32) -> Boolean | None:
        """Return True if a stage is released after stage ``k_tile`` is committed; None if a stage always is."""
        begun = k_tile >= self.stagger if self.stagger else None
        if not self.held:
            return begun
        before_held = k_tile < k_tiles - self.held + self.stagger
        return before_held if begun is None else begun & before_held


@cute.jit
def release_held(ring: Ring, share: Share, first: Int32, held: cutlass.Constexpr[int]) -> None:
    """Release the slots held for the epilogue, after its stores have read them."""
    for i in cutlass.range_constexpr(held):
        slot = first + i
        share.release(ring, cutlass.select_(slot >= ring.stages, slot - ring.stages, slot), None)
