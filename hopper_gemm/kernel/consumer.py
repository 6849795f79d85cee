"""The consumer: multiplying stages as they become full, and releasing them a few wgmma groups late."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from hopper_gemm.kernel.ladder.multistage import Ahead
from hopper_gemm.kernel.meter import Meter, Trace
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.model import hopper

UNIFORM_WGMMA = 8
"""wgmma between two looks at the slot's index. Each wants four uniform registers of 63 for its descriptors; with more
than this in sight the compiler may compute all of them in vector registers and move each over, three instructions for
every wgmma: 173 a stage instead of 114 for 320x128, 155 instead of 95 for 256x128 at k_depth 8.
"""


@dataclass(frozen=True)
class Turn:
    """Whose turn it is in pingpong: one consumer feeds the tensor cores, the other stores.

    This is a matter of correctness and not only of order. Slots pass from tile to tile, so that one is read by either
    consumer in different rounds. A consumer that ran ahead would wait for round r of a slot still in round r - 1, see
    the parity of round r - 2, and read what is not there. It starts a tile once the other has seen its last stage full.

    Args:
        own, other: ids of the named barriers on which this consumer and the other one wait.
        waits: whether a tile goes before this one.
        passes: whether a tile comes after this one.
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
        """Pass it on."""
        if self.passes:
            cute.arch.barrier_arrive(barrier_id=self.other, number_of_threads=2 * hopper.WARPGROUP_THREADS)


@dataclass(frozen=True)
class Share:
    """What one consumer multiplies with, the same for all its tiles.

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
        """Give a slot back if it is due; None where that is certain."""
        known = [condition for condition in (self.arrives, due) if condition is not None]
        ring.release(index, self.target, known[0] & known[1] if len(known) == 2 else known[0] if known else None)


@cute.jit
def multiply_tile(
    ring: Ring,
    state: RingState,
    share: Share,
    k_tiles: Int32,
    stagger: cutlass.Constexpr[int],
    peek: cutlass.Constexpr[bool],
    unroll: cutlass.Constexpr[int],
    ahead: Ahead | None,
    turn: Turn | None,
    meter: Meter,
    trace: Trace | None,
    held: cutlass.Constexpr[int],
) -> tuple[RingState, Meter]:
    """The MMA role, for one share of one output tile: accumulators = sum over k_tiles of A @ B.

    Each stage is one wgmma group. After issuing stage i the warp waits until at most ``stagger`` groups are in
    flight, which ends group i - stagger, and releases that stage; see :mod:`hopper_gemm.kernel.pipeline` for why
    that is safe. The tensor cores so always have a group queued while the barriers are served. The first wgmma of
    the tile ignores what the accumulators held, which saves clearing them.

    Args:
        ring, state: where this consumer stands; the releases trail ``stagger`` slots behind.
        share: what it multiplies.
        k_tiles: stages of this tile, at least 1.
        stagger: groups in flight when an older stage is released.
        peek: probe the next stage while the tensor cores work, and block only if the probe failed.
        unroll: iterations of the loop to lay out one after the other.
        ahead: the loads that this warpgroup sees to itself, or None where a producer does.
        turn: taken before the first stage and given after the last is fed, or None where all work at once.
        meter: of this role.
        trace: where to note moments, or None.
        held: last stages of the tile that are not released; see :func:`release_held`.

    Returns:
        The state after the last stage, and the meter. No group is in flight and every stage but those held has been
        released.
    """
    k_blocks = cute.size(share.a, mode=[2])
    batch = max(1, UNIFORM_WGMMA // cute.size(share.a, mode=[1]))
    released = state.behind(stagger)
    passed = Boolean(False)
    if cutlass.const_expr(ahead is not None):
        ahead.fill(state, k_tiles)
    if cutlass.const_expr(turn is not None):
        turn.take()
    for k_tile in cutlass.range(k_tiles, unroll=unroll):
        if cutlass.const_expr(ahead is not None):
            ahead.step(state, k_tile, k_tiles)
        asked = meter.ask()
        _note(trace, k_tile, "asked")
        ring.wait(state.index, state.parity, passed)
        meter = meter.got(asked, passed)
        _note(trace, k_tile, "had")
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
        _note(trace, k_tile, "issued")
        state = state.next()
        if cutlass.const_expr(peek):
            passed = ring.peek_full(state.index, state.parity)
        warpgroup.wait_group(stagger)
        share.release(ring, released.index, _due(k_tile, k_tiles, stagger, held))
        _note(trace, k_tile, "released")
        released = released.next()
    if cutlass.const_expr(turn is not None):
        turn.give()
    warpgroup.wait_group(0)
    for i in cutlass.range_constexpr(stagger - held):
        share.release(ring, released.index, k_tiles + i >= stagger)
        released = released.next()
    return state, meter


def _due(k_tile: Int32, k_tiles: Int32, stagger: int, held: int) -> Boolean | None:
    """Whether a stage is released after stage ``k_tile`` is committed; None where that is certain."""
    begun = k_tile >= stagger if stagger else None
    if not held:
        return begun
    before_held = k_tile < k_tiles - held + stagger
    return before_held if begun is None else begun & before_held


@cute.jit
def release_held(ring: Ring, share: Share, first: Int32, held: cutlass.Constexpr[int]) -> None:
    """Give back the slots that were held for the epilogue, once it has been read out of them."""
    for i in cutlass.range_constexpr(held):
        slot = first + i
        share.release(ring, cutlass.select_(slot >= ring.stages, slot - ring.stages, slot), None)


def _note(trace: Trace | None, k_tile: Int32, moment: str) -> None:
    if trace is not None:
        trace.stage(k_tile, moment)
