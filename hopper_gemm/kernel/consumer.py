"""The consumer: multiplying stages as they become full, and releasing them a few wgmma groups late."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from hopper_gemm.kernel.epilogue import ConsumerEpilogue
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.kernel.promotion import Promotion
from hopper_gemm.model import hopper

FIRST_TURN = 4
"""Id of the named barrier on which the first of two consumers waits for its turn; the second waits on the next one."""

UNIFORM_WGMMA = 8
"""wgmma between two ``make_warp_uniform`` of the slot's index. Each wgmma needs four of 63 uniform registers for its
descriptors; with more wgmma than this the compiler may compute all of them in vector registers and move each over,
three instructions for every wgmma: 173 a stage instead of 114 for 320x128, 155 instead of 95 for 256x128 at k_depth 8.
"""


@dataclass(frozen=True)
class Turn:
    """The turn between two consumers, also of :class:`Order`. In pingpong one feeds the tensor cores, the other stores.

    Correctness of pingpong depends on it. The ring runs on across tiles, so that both consumers read a slot, in
    different rounds. A consumer that ran ahead would wait for round r of a slot still in round r - 1, see the parity of
    round r - 2, and read stale data. A consumer starts a tile once the other consumer has seen the last stage of its
    own tile full.
    """

    # own, other: ids of the named barriers on which this consumer and the other one wait
    own: Int32
    other: Int32
    waits: Boolean  # True if the turn must be taken: in pingpong if a tile precedes this one
    passes: Boolean  # True if it is given: in pingpong if a tile follows this one

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
class Order:
    """The order in which two consumers that share tiles end each: one multiplies while the other runs its epilogue.

    The second consumer holds back before a tile's last ``stages``, until the first has issued all of its own. The
    second then multiplies alone while the first runs its epilogue, and the first multiplies the next tile's first
    stages, as many as the ring holds, while the second runs its own. Without an order both end a tile simultaneously.

    For each tile the second consumer gives the turn as it begins, and the first takes it as it ends: neither gives two
    turns for one that the other takes.

    No deadlock, if ``stages`` and the stagger together fit the ring:

    1. The second consumer waits only for the first to issue its last stage.
    2. To load that stage the producer needs the slot of the stage that lies a ring before it.
    3. The second consumer has released that slot before it holds back, since it holds back at most ``stages`` and the
       stagger behind the last stage that it has multiplied.
    """

    consumer: Int32  # 0 or 1
    stages: int  # the last ones of a tile that the first consumer multiplies before the second

    def _turn(self, taken: Boolean, given: Boolean) -> Turn:
        return Turn(FIRST_TURN + self.consumer, FIRST_TURN + 1 - self.consumer, taken, given)

    def begin(self) -> None:
        """Before a tile's first stage."""
        self._turn(Boolean(False), Boolean(self.consumer == 1)).give()

    def before(self, k_tile: Int32, k_tiles: Int32) -> None:
        """Before the wait for a stage."""
        last = k_tiles - self.stages
        due = k_tile == cutlass.select_(last > 0, last, Int32(0))
        self._turn(Boolean((self.consumer == 1) & due), Boolean(False)).take()

    def issued(self, k_tile: Int32, k_tiles: Int32) -> None:
        """Once a stage's wgmma group is committed."""
        ends = Boolean((self.consumer == 0) & (k_tile == k_tiles - 1))
        turn = self._turn(ends, ends)
        turn.take()
        turn.give()


@dataclass(frozen=True)
class Share:
    """Operands and registers of one consumer, the same for all its tiles."""

    mma: cute.TiledMma  # the tiled wgmma of one warpgroup
    accumulators: cute.Tensor  # fp32 registers of the share
    # a, b: descriptors of the share's operands, (instruction, rows, k-block, stage)
    a: cute.Tensor
    b: cute.Tensor
    # target, arrives: this lane's part in a release; see :meth:`Ring.release`
    target: Int32
    arrives: Boolean | None

    def release(self, ring: Ring, index: Int32, due: Boolean | None) -> None:
        """Release a slot if that is due; ``due`` is None if it always is."""
        known = [condition for condition in (self.arrives, due) if condition is not None]
        ring.release(index, self.target, known[0] & known[1] if len(known) == 2 else known[0] if known else None)


@dataclass(frozen=True)
class Mainloop:
    """The MMA role, for one share of one output tile after another: :meth:`multiply_tile`, stage by stage
    :meth:`multiply_stage`.

    **Peeled**, a tile's first stage stands before the loop, where a constant tells its first wgmma to ignore what the
    accumulators hold, not a predicate. The compiler then knows that they are free once the epilogue has read them. With
    a predicate it kept all of them to the end of the epilogue, had few registers left for the steps, and computed one
    element after the other: gelu beside 176 accumulators took a lone warp 41 clocks an element instead of 18, by the
    stalls in the machine code.
    """

    ring: Ring
    share: Share
    epilogue: ConsumerEpilogue  # opened while the last wgmma groups run
    stagger: int  # groups in flight when an older stage is released
    peek: bool  # probe the next stage while the tensor cores work, and block only if the probe failed
    held: int  # last stages of a tile that are not released; see :func:`release_held`
    unroll: int = 1  # unroll factor of the loop
    peeled: bool = False  # the first stage of a tile stands before the loop
    order: Order | None = None  # of two consumers that share tiles; None where they end a tile as they come
    promotion: Promotion | None = None  # multiplies in place of the stages below; None without

    @cute.jit
    def multiply_tile(
        self, state: RingState, k_tiles: Int32, turn: Turn | None, seen: Observer
    ) -> tuple[RingState, Observer]:
        """Accumulators = sum over k_tiles of A @ B.

        Each stage is one wgmma group. After issuing stage i the warp waits until at most ``stagger`` groups are in
        flight, which ends group i - stagger, and releases that stage; see :mod:`hopper_gemm.kernel.pipeline` for why
        that is safe. With a stagger of 1 or more the tensor cores have a group queued while the warp serves the
        barriers. The first wgmma of the tile ignores the accumulators' content, which saves clearing them.

        Args:
            state: this consumer's place in the ring; the releases trail ``stagger`` slots behind.
            k_tiles: stages of this tile, at least 1.
            turn: taken before the first stage and given after the last is issued; None without pingpong.
            seen: the observer.

        Returns:
            The state after the last stage, and the observer. No group is in flight and every stage but those held has
            been released.
        """
        if cutlass.const_expr(self.promotion is not None):
            return self.promotion.multiply_tile(self, state, k_tiles, turn), seen
        released, passed = state.behind(self.stagger), Boolean(False)
        self.load_first(state, k_tiles)
        if cutlass.const_expr(self.order is not None):
            self.order.begin()
        if cutlass.const_expr(turn is not None):
            turn.take()
        if cutlass.const_expr(self.peeled):
            state, passed, seen = self.multiply_stage(state, released, passed, Int32(0), k_tiles, seen, True)
            released = released.next()
            for k_tile in cutlass.range(1, k_tiles, unroll=self.unroll):
                state, passed, seen = self.multiply_stage(state, released, passed, k_tile, k_tiles, seen, False)
                released = released.next()
        else:
            for k_tile in cutlass.range(k_tiles, unroll=self.unroll):
                state, passed, seen = self.multiply_stage(state, released, passed, k_tile, k_tiles, seen, None)
                released = released.next()
        if cutlass.const_expr(turn is not None):
            turn.give()
        self.epilogue.open()
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(self.stagger - self.held):
            self.share.release(self.ring, released.index, k_tiles + i >= self.stagger)
            released = released.next()
        return state, seen

    @cute.jit
    def multiply_stage(
        self,
        state: RingState,
        released: RingState,
        passed: Boolean,
        k_tile: Int32,
        k_tiles: Int32,
        seen: Observer,
        first: cutlass.Constexpr[bool | None],
    ) -> tuple[RingState, Boolean, Observer]:
        """Multiply one stage, number ``k_tile`` of ``k_tiles``, and release the one that lies ``stagger`` before it.
        ``passed`` is the result of an earlier probe for the stage. ``first`` is True in a tile's first stage, False in
        a later one; None where the stage's number says so. Return the place of the next stage, the result of a probe
        for it, and the observer."""
        ring, share = self.ring, self.share
        batch = max(1, UNIFORM_WGMMA // cute.size(share.a, mode=[1]))
        self.load_ahead(state, k_tile, k_tiles)
        if cutlass.const_expr(self.order is not None):
            self.order.before(k_tile, k_tiles)
        seen = seen.stage("asked", k_tile)
        ring.wait(state.index, state.parity, passed)
        seen = seen.stage("had", k_tile, passed)
        warpgroup.fence()
        atom = cute.make_mma_atom(share.mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, k_tile != 0 if cutlass.const_expr(first is None) else not first)
        index = state.index
        for k_block in cutlass.range_constexpr(cute.size(share.a, mode=[2])):
            if cutlass.const_expr(k_block > 0 and k_block % batch == 0):
                index = cute.arch.make_warp_uniform(index)
            at = (None, None, k_block, index)
            cute.gemm(atom, share.accumulators, share.a[at], share.b[at], share.accumulators)
            atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        if cutlass.const_expr(self.order is not None):
            self.order.issued(k_tile, k_tiles)
        seen = seen.stage("issued", k_tile)
        state = state.next()
        if cutlass.const_expr(self.peek):
            passed = ring.peek_full(state.index, state.parity)
        warpgroup.wait_group(self.stagger)
        if cutlass.const_expr(not first or self.stagger == 0):
            share.release(ring, released.index, self._due(k_tile, k_tiles))
        seen = seen.stage("released", k_tile)
        return state, passed, seen

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
