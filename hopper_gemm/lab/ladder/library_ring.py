"""The ring as cutlass.pipeline offers it: PipelineTmaAsync and its PipelineState, behind the interface of our own.

Differences: the slot's bytes are announced where it is acquired; who releases is found with a branch, and the address
of a peer's barrier worked out at each release; a state counts its steps beside slot and phase, and advances by a
branch; probing is a try_wait, which may sleep, where ours is a test_wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass.pipeline import (
    Agent,
    CooperativeGroup,
    PipelineAsync,
    PipelineState,
    PipelineTmaAsync,
    PipelineUserType,
    make_pipeline_state,
)

from hopper_gemm.lab.ladder.ring import LadderRing


class LibraryState:
    """A place in the ring, kept by the library's PipelineState."""

    def __init__(self, state: PipelineState) -> None:
        self.state = state

    @staticmethod
    def first(stages: int, phase: int) -> LibraryState:
        """The first slot."""
        user = PipelineUserType.Producer if phase else PipelineUserType.Consumer
        return LibraryState(make_pipeline_state(user, stages))

    @property
    def index(self) -> Int32:
        """Slot."""
        return self.state.index

    @property
    def parity(self) -> Int32:
        """The phase parity to wait for."""
        return self.state.phase

    def next(self) -> LibraryState:
        """The slot after this one."""
        return self.ahead(1)

    def advance(self, count: Int32 | int) -> LibraryState:
        """The slot ``count`` places on, however many rounds that takes."""
        state = self.state.clone()
        state.advance(count)
        return LibraryState(state)

    def ahead(self, count: int) -> LibraryState:
        """The slot ``count`` places on."""
        return self.advance(count) if count else self

    def behind(self, count: int) -> LibraryState:
        """The slot ``count`` places before this one; its phase and its count are not kept."""
        at = self.state
        index = at.index - count
        index = cutlass.select_(index < 0, index + at.stages, index)
        return LibraryState(PipelineState(at.stages, at.count, index, at.phase))

    def __extract_mlir_values__(self) -> list:
        return self.state.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values: list) -> LibraryState:
        return LibraryState(self.state.__new_from_mlir_values__(values))


@dataclass(frozen=True)
class LibraryRing(LadderRing):
    """A ring with the library's barriers, which lie where ours would."""

    pipe: PipelineTmaAsync | None = None

    @staticmethod
    def keeping(ring: LadderRing) -> LibraryRing:
        """Return the same ring, kept by the library. By all threads."""
        rows, columns = ring.cluster
        pipe = PipelineTmaAsync.create(
            barrier_storage=ring.barriers,
            num_stages=ring.stages,
            producer_group=CooperativeGroup(Agent.Thread, ring.loading),
            consumer_group=CooperativeGroup(Agent.Thread, ring.reading * ring.readers),
            tx_count=ring.load_bytes,
            cta_layout_vmnk=cute.make_layout((1, rows, columns, 1)),
            defer_sync=True,
        )
        return LibraryRing(**vars(ring), pipe=pipe)

    def init(self) -> None:
        """Make the initialised barriers visible; the library has initialised them."""
        cute.arch.mbarrier_init_fence()

    def acquire(self, index: Int32, parity: Int32, passed: Boolean | bool = False) -> None:
        """Wait until the slot is empty, and announce the bytes of its loads."""
        self._pipe.producer_acquire(self._at(index, parity), passed)

    def expect(self, index: Int32, tag: Int32 | None = None) -> None:
        """Do nothing: :meth:`acquire` announces the bytes."""

    @cute.jit
    def drain(self, state: LibraryState, slots: cutlass.Constexpr[int]) -> None:
        """Wait until every slot has been released; ``slots`` is all of them, because the ladder's walks are static."""
        self._pipe.producer_tail(state.state.clone())

    def peek_empty(self, index: Int32, parity: Int32) -> Boolean:
        """Return True if the slot is empty by the end of a sleep."""
        return self._pipe.producer_try_acquire(self._at(index, parity))

    def wait(self, index: Int32, parity: Int32, passed: Boolean | bool = False) -> None:
        """Wait until the slot is full."""
        self._pipe.consumer_wait(self._at(index, parity), passed)

    def peek_full(self, index: Int32, parity: Int32) -> Boolean:
        """Return True if the slot is full by the end of a sleep."""
        return self._pipe.consumer_try_wait(self._at(index, parity))

    @cute.jit
    def release(self, index: Int32, target: Int32, arrives: Boolean | None) -> None:
        """Give a slot back, if that is due. By every lane of a consumer warp; the library chooses those that arrive."""
        due = Boolean(True) if cutlass.const_expr(arrives is None) else arrives
        at = self._at(index, Int32(0))
        if due:
            if cutlass.const_expr(self.releases == "warp"):
                self._pipe.consumer_release(at)
            elif cutlass.const_expr(self.releases == "consumer"):
                PipelineAsync.consumer_release(self._pipe, at)
            else:
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    PipelineAsync.consumer_release(self._pipe, at)

    def arrives(self, lane: Int32, warp: Int32) -> None:
        """Return None: cutlass.pipeline selects the releasing lanes."""

    def release_target(self, lane: Int32, rank_m: Int32, rank_n: Int32) -> Int32:
        """Return 0: cutlass.pipeline works out the address at each release."""
        return Int32(0)

    @property
    def _pipe(self) -> PipelineTmaAsync:
        assert self.pipe is not None
        return self.pipe

    def _at(self, index: Int32, parity: Int32) -> PipelineState:
        return PipelineState(self.stages, Int32(0), index, parity)
