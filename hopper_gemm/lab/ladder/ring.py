"""Other ways to arrive at the ring's barriers and to wait on them.

With arrivals by every thread of a side its count is 32 times as large. With arrivals by ``group`` one warp's lane
speaks for its consumer: a wgmma group belongs to the warpgroup and is complete as a whole (PTX, wgmma.commit_group), so
that one warp that has waited for it knows of all four. (The ring's model lets warps go apart, and leaves this one out.)

A relaxed wait orders nothing by PTX; of one in the scope of a CTA the assembler makes the instruction that it makes of
an acquire.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.pipeline import Ring
from hopper_gemm.lab.ladder.ladder_config import LadderKernel
from hopper_gemm.model import hopper

WAIT_NS = 10_000_000
"""Longest sleep of one try_wait, as in the DSL's own wait."""


@dataclass(frozen=True)
class LadderRing(Ring):
    """A :class:`Ring` with other arrivals and waits.

    Args:
        halves: bytes of A and of B, each of which completes a full barrier of its own; None where they share one.
        every: whether every thread of the producer's warps arrives, or one lane of each.
        releases: who arrives for the consumers: ``warp``, ``consumer`` (every thread), ``elected`` or ``group``.
        relaxed: whether waits have no acquire.
    """

    halves: tuple[int, int] | None = None
    every: bool = False
    releases: str = "warp"
    relaxed: bool = False

    @staticmethod
    def of(ring: Ring, config: LadderKernel, halves: tuple[int, int]) -> LadderRing:
        """Return the ring of a config from the kernel's own ring; ``halves`` are bytes of A and of B."""
        releases = config.arrivals if config.arrivals in ("elected", "group") else "warp"
        by_all, by_consumers = config.every_thread("producer"), config.every_thread("consumer")
        speaking = hopper.WARPGROUP_WARPS if config.arrivals == "group" else 1
        given = {field.name: getattr(ring, field.name) for field in fields(Ring)}
        given["loading"] *= hopper.WARP_THREADS if by_all else 1
        given["reading"] = given["reading"] // speaking * (hopper.WARP_THREADS if by_consumers else 1)
        return LadderRing(
            **given,
            halves=halves if config.full_barriers == 2 else None,
            every=by_all,
            releases="consumer" if by_consumers else releases,
            relaxed=config.waits == "relaxed",
        )

    @property
    def _announced(self) -> tuple[int, ...]:
        """Bytes that complete each of a slot's full barriers."""
        return self.halves or (self.load_bytes,)

    def full(self, load: int = 0) -> cute.Pointer:
        """The first full barrier of a load: 0 for A, 1 for B; they are the same where A and B share one."""
        return self.barriers + min(load, len(self._announced) - 1) * self.stages

    @property
    def empty(self) -> cute.Pointer:
        """The first empty barrier."""
        return self.barriers + len(self._announced) * self.stages

    def init(self) -> None:
        """Set the arrival counts. By one thread."""
        for stage in range(self.stages):
            for load in range(len(self._announced)):
                cute.arch.mbarrier_init(self.full(load) + stage, self.loading)
            cute.arch.mbarrier_init(self.empty + stage, self.reading * self.readers)
        cute.arch.mbarrier_init_fence()

    @cute.jit
    def acquire(self, index: Int32, parity: Int32, passed: Boolean | bool = False) -> None:
        """Wait until the slot is empty; ``passed`` is the result of an earlier :meth:`peek_empty`."""
        if not passed:
            self._wait(self.empty + index, parity)

    @cute.jit
    def expect(self, index: Int32, tag: Int32 | None = None) -> None:
        """Announce the bytes of the slot's loads on its full barriers. By one warp."""
        if cutlass.const_expr(self.every):
            lane = cute.arch.lane_idx()
            if lane == 0:
                self.put(index, tag)
            for load in cutlass.range_constexpr(len(self._announced)):
                if lane == 0:
                    cute.arch.mbarrier_arrive_and_expect_tx(self.full(load) + index, self._announced[load])
                else:
                    cute.arch.mbarrier_arrive(self.full(load) + index)
        else:
            with cute.arch.elect_one():
                self.put(index, tag)
                for load in cutlass.range_constexpr(len(self._announced)):
                    cute.arch.mbarrier_arrive_and_expect_tx(self.full(load) + index, self._announced[load])

    @cute.jit
    def finish(self, index: Int32, tag: Int32) -> None:
        """Fill a slot with its number alone. By one warp; the slot must be empty."""
        with cute.arch.elect_one():
            self.put(index, tag)
            for load in cutlass.range_constexpr(len(self._announced)):
                cute.arch.mbarrier_arrive(self.full(load) + index)

    @cute.jit
    def commit(self, index: Int32) -> None:
        """Tell the consumers that what a warp copied itself has landed in the slot. By the warp."""
        if cutlass.const_expr(self.every):
            cute.arch.mbarrier_arrive(self.full() + index)
        else:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(self.full() + index)

    @cute.jit
    def _wait(self, barrier: cute.Pointer, parity: Int32) -> None:
        if cutlass.const_expr(self.relaxed):
            wait_in(barrier, parity, "relaxed")
        else:
            cute.arch.mbarrier_wait(barrier, parity)

    @cute.jit
    def wait(self, index: Int32, parity: Int32, passed: Boolean | bool = False) -> None:
        """Wait until the slot is full; ``passed`` is the result of an earlier :meth:`peek_full`."""
        if not passed:
            for load in cutlass.range_constexpr(len(self._announced)):
                self._wait(self.full(load) + index, parity)

    def peek_full(self, index: Int32, parity: Int32) -> Boolean:
        """Return True if the slot is already full; never blocks for long."""
        passed = cute.arch.mbarrier_test_wait(self.full() + index, parity)
        for load in range(1, len(self._announced)):
            passed = passed & cute.arch.mbarrier_test_wait(self.full(load) + index, parity)
        return passed

    def release(self, index: Int32, target: Int32, arrives: Boolean | None) -> None:
        """Give a slot back. By every lane of a consumer warp; see :meth:`Ring.release`."""
        if self.releases == "elected":
            self._release_elected(index, arrives)
        else:
            super().release(index, target, arrives)

    @cute.jit
    def _release_elected(self, index: Int32, due: Boolean | None) -> None:
        """Release by one elected thread of the warp, behind a warp sync and a branch; in a CTA alone."""
        cute.arch.sync_warp()
        if Boolean(True) if cutlass.const_expr(due is None) else due:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(self.empty + index)

    def arrives(self, lane: Int32, warp: Int32) -> Boolean | None:
        """Return True if a lane takes part in releases; None where every lane does, or an elected one."""
        if self.releases in ("consumer", "elected"):
            return None
        speaks = super().arrives(lane, warp)
        return Boolean(speaks & (warp % hopper.WARPGROUP_WARPS == 0)) if self.releases == "group" else speaks


@cute.jit
def wait_in(barrier: cute.Pointer, parity: Int32, order: cutlass.Constexpr[str]) -> None:
    """Wait on a barrier of this CTA, in the memory order ``acquire`` or ``relaxed``."""
    passed = Boolean(False)
    while not passed:
        passed = inline_ptx(
            f"mbarrier.try_wait.parity.{order}.cta.shared::cta.b64 {{$w0}}, [{{$r0}}], {{$r1}}, {{$r2}};",
            write_only_types=[Boolean],
            read_only_args=[barrier.toint(), parity, Int32(WAIT_NS)],
        )
