"""The ring of shared-memory stages, guarded by pairs of mbarriers.

A stage is a slot of the ring. The producer fills it, the consumers read it, and two barriers per slot say whose turn
it is. A barrier's *phase* flips each time all its expected arrivals (and bytes) are in; waiting on parity ``p`` blocks
while the barrier is in phase ``p``. A role therefore carries (index, phase) and flips its phase when the index wraps.

    slot      producer acquire   producer expect    consumer wait      consumer release
              (waits on empty)   (arms full)        (waits on full)    (arrives on empty)
    empty     passes             -> wait            blocks             -
    wait      blocks             -                  blocks             -
    full      blocks             -                  passes             -> empty, with the last arrival

The producer starts one phase ahead, so its first round of acquires passes at once: every slot is empty.

Who arrives, how often, on a slot's barriers in one round:

    full      the one thread that issues the TMA loads, once, announcing the bytes of the whole stage; then the copy
              engine, by bytes. With multicast bytes come from other CTAs of the cluster, maybe before the announcement:
              the phase ends with the thread's arrival at the earliest. Loads by cp.async: every producer warp, once its
              copies have landed (:meth:`Ring.commit`); no bytes are counted.
    empty     one lane of every consumer warp of every CTA of this one's row and column of the cluster, this one
              included: 4 * consumers * (cluster_m + cluster_n - 1) arrivals, where consumers are those that read the
              stage: one in pingpong.

Why a slot is never overwritten while wgmma still reads it. A warp arrives on ``empty`` of stage i - s after
``wgmma.wait_group s`` that follows the commit of stage i: groups complete in order, so at most the s youngest groups
(stages i - s + 1 .. i) can still be running in that warp, and stage i - s has been read to the end. The producer passes
``acquire`` after the arrival of *every* consumer warp of *every* CTA that reads the slot, because the count asks for
each of them separately; no warp speaks for another. wgmma's reads and TMA's writes both belong to the async proxy, and
the mbarrier's release (arrive) and acquire (wait) order them; no further fence is needed.

A number may travel with a slot (:meth:`Ring.tag`): the thread that announces the slot's bytes writes it before it
arrives, consumers read it once they have found the slot full and before they release it, so it needs no barrier of its
own. :class:`hopper_gemm.kernel.work.ReceivedWalk` receives work this way.

:mod:`tests.protocols.ring_protocol` writes the same protocol out as values, and its tests run it in every
order: nothing is overwritten while read, nothing deadlocks, and releasing one group too early is found.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values

from hopper_gemm.model import hopper

TAG_BYTES = 4


class RingState:
    """Place of one role in the ring: slot index and phase parity.

    A value, not a cursor: :meth:`next` returns the successor, so a loop carries it as it carries an integer. The ring's
    methods take index and parity, so that a role may store these in another form.

    With one stage the round is counted instead and the index taken from the count's sign: always 0, but opaque to the
    compiler, which would otherwise take the descriptors of the only stage for loop constants, hold all of them in
    registers and spill.

    Args:
        stages: slots of the ring.
        index: slot; unused with one stage.
        phase: parity of the slot's phase; with one stage the number of the round.
    """

    def __init__(self, stages: int, index: Int32, phase: Int32) -> None:
        self.stages = stages
        self.index = index if stages > 1 else phase >> 31
        self.phase = phase

    @staticmethod
    def first(stages: int, phase: int) -> RingState:
        """The first slot."""
        return RingState(stages, Int32(0), Int32(phase))

    @property
    def parity(self) -> Int32:
        """The phase parity to wait for."""
        return self.phase if self.stages > 1 else self.phase & 1

    @cute.jit
    def next(self) -> RingState:
        """The slot after this one; the phase flips where the index wraps."""
        if cutlass.const_expr(self.stages == 1):
            return RingState(1, self.index, self.phase + 1)
        else:
            index = self.index + 1
            wraps = index == self.stages
            return RingState(
                self.stages,
                cutlass.select_(wraps, Int32(0), index),
                cutlass.select_(wraps, self.phase ^ 1, self.phase),
            )

    @cute.jit
    def advance(self, count: Int32) -> RingState:
        """The slot ``count`` places on, however many rounds that takes."""
        if cutlass.const_expr(self.stages == 1):
            return RingState(1, self.index, self.phase + count)
        else:
            steps = self.index + count
            rounds = steps // self.stages
            return RingState(self.stages, steps - rounds * self.stages, self.phase ^ (rounds & 1))

    @cute.jit
    def ahead(self, count: cutlass.Constexpr[int]) -> RingState:
        """The slot ``count`` places on, ``count`` being less than ``stages``."""
        if cutlass.const_expr(count == 0):
            return self
        else:
            index = self.index + count
            wraps = index >= self.stages
            return RingState(
                self.stages,
                cutlass.select_(wraps, index - self.stages, index),
                cutlass.select_(wraps, self.phase ^ 1, self.phase),
            )

    def behind(self, count: int) -> RingState:
        """The slot ``count`` places before this one, ``count`` being less than ``stages``; its phase is not kept."""
        index = self.index - count
        return RingState(self.stages, cutlass.select_(index < 0, index + self.stages, index), self.phase)

    def __extract_mlir_values__(self) -> list:
        return extract_mlir_values(self.index) + extract_mlir_values(self.phase)

    def __new_from_mlir_values__(self, values: list) -> RingState:
        return RingState(
            self.stages, new_from_mlir_values(self.index, values[:1]), new_from_mlir_values(self.phase, values[1:])
        )


@dataclass(frozen=True)
class Ring:
    """The barriers of the ring and what each role does with them."""

    barriers: cute.Pointer  # shared memory for the mbarriers: all full barriers, then all empty ones
    stages: int  # slots
    load_bytes: int  # bytes that complete a slot's full barrier, beside its arrivals
    loading: int  # arrivals on a full barrier in one round
    reading: int  # arrivals on an empty barrier in one round, by the consumers of one CTA
    cluster: tuple[int, int]  # CTAs of the cluster along m and along n
    tags: cute.Pointer | None = None  # shared memory for a number that travels with each slot, or None; see :meth:`tag`

    def full(self, load: int = 0) -> cute.Pointer:
        """The first full barrier of a load: 0 for A, 1 for B, which share it."""
        return self.barriers

    @property
    def empty(self) -> cute.Pointer:
        """The first empty barrier."""
        return self.barriers + self.stages

    @property
    def readers(self) -> int:
        """CTAs that must have read a slot before it is loaded anew."""
        return self.cluster[0] + self.cluster[1] - 1

    def init(self) -> None:
        """Set the arrival counts. By one thread, before any other thread of the cluster uses a barrier.

        Divided among lanes it takes longer: an mbarrier is initialised through a uniform register, so that the compiler
        makes a loop over the lanes, with a fence in each iteration.
        """
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.full() + stage, self.loading)
            cute.arch.mbarrier_init(self.empty + stage, self.reading * self.readers)
        cute.arch.mbarrier_init_fence()

    # Producer ------------------------------------------------------------------------------

    @cute.jit
    def acquire(self, index: Int32, parity: Int32, passed: Boolean | bool = False) -> None:
        """Wait until the slot is empty; ``passed`` is the answer of an earlier :meth:`peek_empty`."""
        if not passed:
            cute.arch.mbarrier_wait(self.empty + index, parity)

    @cute.jit
    def expect(self, index: Int32, tag: Int32 | None = None) -> None:
        """Announce the bytes of the slot's loads on its full barrier, before the first of them is issued, and write the
        slot's tag, if any. By one warp. Several loads may complete one barrier: it waits for the sum of their bytes."""
        with cute.arch.elect_one():
            self.put(index, tag)
            cute.arch.mbarrier_arrive_and_expect_tx(self.full() + index, self.load_bytes)

    @cute.jit
    def finish(self, index: Int32, tag: Int32) -> None:
        """Fill a slot with a number alone, the last one. By one warp; the slot must be empty, and nobody releases it.

        In a cluster of two axes a CTA may come here before one that is in neither its row nor its column has read the
        slot's last stage: a release, which does not say whose it is, would count for that round in CTAs between them.
        """
        with cute.arch.elect_one():
            self.put(index, tag)
            cute.arch.mbarrier_arrive(self.full() + index)

    @cute.jit
    def commit(self, index: Int32) -> None:
        """Tell the consumers that a warp's own copies by cp.async have landed in the slot. By the warp."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.full() + index)

    def put(self, index: Int32, tag: Int32 | None) -> None:
        """Write the number that goes with a slot, if there is one."""
        if tag is not None:
            assert self.tags is not None
            at = self.tags.toint() + index * TAG_BYTES
            inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[at, tag])

    @cute.jit
    def drain(self, state: RingState, slots: cutlass.Constexpr[int]) -> None:
        """Wait until so many slots, from the state's on, have been released. By the producer, at its end: a CTA may not
        exit while a peer will still arrive on its barriers. Data that peers multicast here has landed, since it was
        read."""
        for i in cutlass.range_constexpr(slots):
            slot = state.ahead(i)
            cute.arch.mbarrier_wait(self.empty + slot.index, slot.parity)

    def peek_empty(self, index: Int32, parity: Int32) -> Boolean:
        """Return True if the slot is already empty, without waiting."""
        return cute.arch.mbarrier_test_wait(self.empty + index, parity)

    # Consumer ------------------------------------------------------------------------------

    @cute.jit
    def wait(self, index: Int32, parity: Int32, passed: Boolean | bool = False) -> None:
        """Wait until the slot is full; ``passed`` is the answer of an earlier :meth:`peek_full`."""
        if not passed:
            cute.arch.mbarrier_wait(self.full() + index, parity)

    def peek_full(self, index: Int32, parity: Int32) -> Boolean:
        """Return True if the slot is already full, without waiting."""
        return cute.arch.mbarrier_test_wait(self.full() + index, parity)

    def tag(self, index: Int32) -> Int32:
        """The number that came with a slot. By a thread that has found the slot full and not released it."""
        assert self.tags is not None
        return inline_ptx(
            "ld.shared.b32 {$w0}, [{$r0}];",
            write_only_types=[Int32],
            read_only_args=[self.tags.toint() + index * TAG_BYTES],
        )

    def release(self, index: Int32, target: Int32, arrives: Boolean | None) -> None:
        """Release a slot that this warp has read to the end. By every lane of a consumer warp; the lanes for which
        ``arrives`` is true arrive (:meth:`arrives`), or all where it is None, each on its :meth:`release_target`.

        One predicated instruction: with a branch around it, the compiler moves the address of the peer's barrier into
        the branch and computes it anew for every stage, a tenth of all instructions of the main loop. The warp is
        converged here, since waiting for a wgmma group is an instruction of the whole warp: no other sync is needed.
        """
        space = "cta" if self.readers == 1 else "cluster"
        inline_ptx(
            f"mbarrier.arrive.shared::{space}.b64 _, [{{$r0}}];",
            read_only_args=[target + index * hopper.MBARRIER_BYTES],
            predicate=arrives,
        )

    def arrives(self, lane: Int32, warp: Int32) -> Boolean | None:
        """Return True if a lane releases slots: one of the warp for each CTA whose ring must know."""
        return Boolean(lane < self.readers)

    @cute.jit
    def release_target(self, lane: Int32, rank_m: Int32, rank_n: Int32) -> Int32:
        """Address of a CTA's first empty barrier, on which a lane arrives: lane by lane those of the CTAs of this one's
        column of the cluster, then of the rest of its row."""
        local = self.empty.toint()
        if cutlass.const_expr(self.readers == 1):
            return local
        else:
            cluster_m = self.cluster[0]
            other = lane - cluster_m
            other = other + Int32(other >= rank_n)
            peer = cutlass.select_(lane < cluster_m, lane + rank_n * cluster_m, rank_m + other * cluster_m)
            return inline_ptx(
                "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[local, peer]
            )
