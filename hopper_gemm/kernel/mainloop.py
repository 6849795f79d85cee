"""The two roles along k: loading stages, and multiplying them."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int16, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from hopper_gemm.kernel.pipeline import Ring, RingState

UNROLLED_BOXES = 4
"""More boxes than this are issued in a loop: unrolled, thirty loads a stage ran the producer out of registers."""


@dataclass(frozen=True)
class OperandLoad:
    """One operand's way into shared memory, in slices of rows that one TMA instruction can move.

    A tile is cut along its rows into equal slices. In a cluster, CTAs that share the tile load one part of the slices
    each and multicast them to all that share it.

    Args:
        atom: the TMA copy of one slice.
        shared: partitioned shared memory, (element, (slice, box, stage)).
        source: partitioned global tensor, (element, (slice, box) of the whole matrix).
        slices: slices of a tile.
        boxes: TMA boxes of a slice, side by side along k: one for each row of the swizzle.
        first: the first slice that this CTA loads.
        count: slices that this CTA loads.
        mask: CTAs of the cluster that receive them, one bit per rank; 0 without multicast.
    """

    atom: cute.CopyAtom
    shared: cute.Tensor
    source: cute.Tensor
    slices: int
    boxes: int
    first: Int32 | int
    count: int
    mask: Int16 | None

    @cute.jit
    def issue(self, tile: Int32, k_tile: Int32, stage: Int32, full: cute.Pointer) -> None:
        """Start the copies of this CTA's slices of one tile into one stage; they complete ``full`` by bytes."""
        for i in cutlass.range_constexpr(self.count):
            part = self.first + i
            for box in cutlass.range(self.boxes, unroll=self.boxes if self.boxes <= UNROLLED_BOXES else 1):
                cute.copy(
                    self.atom,
                    self.source[None, (tile * self.slices + part, k_tile * self.boxes + box)],
                    self.shared[None, (part, box, stage)],
                    tma_bar_ptr=full,
                    mcast_mask=self.mask,
                )


@cute.jit
def load_tile(
    ring: Ring,
    state: RingState,
    a: OperandLoad,
    b: OperandLoad,
    tile_m: Int32,
    tile_n: Int32,
    k_tiles: Int32,
    peek: cutlass.Constexpr[bool],
) -> RingState:
    """The load role, for one output tile: fill k_tiles stages. By one warp.

    Returns:
        The state after the last stage, for the next tile: the ring runs on across tiles, so that the loads of
        the next tile overlap the epilogue of this one.
    """
    passed = Boolean(False)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        ring.acquire(state, passed)
        full = ring.full + state.index
        a.issue(tile_m, k_tile, state.index, full)
        b.issue(tile_n, k_tile, state.index, full)
        state = state.next()
        if cutlass.const_expr(peek):
            passed = ring.peek_empty(state)
    return state


@cute.jit
def multiply_tile(
    ring: Ring,
    state: RingState,
    mma: cute.TiledMma,
    accumulators: cute.Tensor,
    fragment_a: cute.Tensor,
    fragment_b: cute.Tensor,
    k_tiles: Int32,
    stagger: cutlass.Constexpr[int],
    peek: cutlass.Constexpr[bool],
    target: Int32,
    arrives: Boolean,
) -> RingState:
    """The MMA role, for one share of one output tile: accumulators = sum over k_tiles of A @ B.

    Each stage is one wgmma group. After issuing stage i the warp waits until at most ``stagger`` groups are in
    flight, which ends group i - stagger, and releases that stage; see :mod:`hopper_gemm.kernel.pipeline` for why
    that is safe. The tensor cores so always have a group queued while the barriers are served. The first wgmma of
    the tile ignores what the accumulators held, which saves clearing them.

    Args:
        ring, state: where this consumer stands; the releases trail ``stagger`` slots behind.
        mma: the tiled wgmma of one warpgroup.
        accumulators: fp32 registers of the share.
        fragment_a, fragment_b: descriptors of the share's operands, (instruction, rows, k-block, stage).
        k_tiles: stages of this tile, at least 1.
        stagger: groups in flight when an older stage is released.
        peek: probe the next stage while the tensor cores work, and block only if the probe failed.
        target, arrives: this lane's part in a release; see :meth:`Ring.release`.

    Returns:
        The state after the last stage. No group is in flight and every stage has been released.
    """
    k_blocks = cute.size(fragment_a, mode=[2])
    released = state.behind(stagger)
    passed = Boolean(False)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        ring.wait(state, passed)
        warpgroup.fence()
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, k_tile != 0)
        for k_block in cutlass.range_constexpr(k_blocks):
            at = (None, None, k_block, state.index)
            cute.gemm(atom, accumulators, fragment_a[at], fragment_b[at], accumulators)
            atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        state = state.next()
        if cutlass.const_expr(peek):
            passed = ring.peek_full(state)
        warpgroup.wait_group(stagger)
        ring.release(released.index, target, arrives & (k_tile >= stagger))
        released = released.next()
    warpgroup.wait_group(0)
    for i in cutlass.range_constexpr(stagger):
        ring.release(released.index, target, arrives & (k_tiles + i >= stagger))
        released = released.next()
    return state
