"""The producer: filling the ring, tile after tile, and keeping in step with the producers of other CTAs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.operand import Loads
from hopper_gemm.kernel.pipeline import RingState
from hopper_gemm.kernel.sums.workspace import LOOKS, put
from hopper_gemm.kernel.work import Item, Raster


@dataclass(frozen=True)
class Patience(Bundle):
    """A producer's record of its meetings."""

    attended: Int32  # number of meetings
    looks: Int32  # reads of the counter that are left; 0 once a wait has failed


@dataclass(frozen=True)
class Pace:
    """Pacing of CTAs that share panels, so that panels that one CTA reads from DRAM are in the L2 for the others.

    CTAs of a persistent launch begin together and drift apart. After dozens of tiles the L2 has dropped a panel before
    the last of the CTAs that share it reads it: at 16384^3 every panel was read two and a half times. So producers meet
    at a counter every ``every`` stages of a tile: each adds 1, and waits until the count says that on average all have
    come to the previous meeting, while its consumers multiply the stages in the ring. A producer waits only when more
    than one interval ahead of the average; stragglers do not stall others. A producer less than one interval ahead
    reads the counter once, by its own addition.

    No result depends on it. A producer whose wait fails, because an SM is busy or not all CTAs are resident, does not
    wait again in this launch, but still adds to the counter. So every launch adds the same to the counter, and the
    producer that adds the last 1 resets it to zero.
    """

    word: Int64  # address of the counter
    every: int  # stages from meeting to meeting
    ctas: Int32  # of the launch
    meetings: Int32  # meetings within the tiles that every CTA has in a static walk; no CTA waits at later ones
    total: Int32  # additions to the counter in a launch

    @staticmethod
    def of(word: Int64, every: int, raster: Raster, cluster_size: int, k_tiles: Int32) -> Pace:
        """The pace of a launch whose tiles have ``k_tiles`` stages."""
        each = k_tiles // every
        return Pace(
            word,
            every,
            raster.clusters * cluster_size,
            raster.tiles // raster.clusters * each,
            raster.tiles * cluster_size * each,
        )

    @cute.jit
    def keep(self, loaded: Int32, patience: Patience) -> Patience:
        """After ``loaded`` stages of the tile: at a meeting, wait a bounded time for producers behind. By a warp."""
        attended, looks = patience.attended, patience.looks
        if loaded % self.every == 0:
            lane = cute.arch.lane_idx()
            before = inline_ptx(
                "atom.relaxed.gpu.global.add.s32 {$w0}, [{$r0}], 1;",
                write_only_types=[Int32],
                read_only_args=[self.word],
                predicate=Boolean(lane == 0),
            )
            if (lane == 0) & (before + 1 == self.total):
                put(self.word, Int32(0))
            seen = cute.arch.shuffle_sync(before, Int32(0)) + 1
            came = attended * self.ctas
            attended = attended + 1
            if attended <= self.meetings:
                while (seen < came) & (looks > 0):
                    seen = inline_ptx(
                        "ld.relaxed.gpu.global.b32 {$w0}, [{$r0}];",
                        write_only_types=[Int32],
                        read_only_args=[self.word],
                    )
                    looks = looks - 1
                if seen >= came:
                    looks = cutlass.select_(looks > 0, Int32(LOOKS), looks)
        return Patience(attended, looks)


@dataclass(frozen=True)
class Filling(Bundle):
    """State of a producer."""

    state: RingState  # the next slot to fill
    seen: Observer
    walked: Int32 | int  # tiles loaded so far, counted only if ``reverse`` needs it
    patience: Patience | None  # its record of meetings; None without pace


@dataclass(frozen=True)
class Fill:
    """Filling the ring by TMA. By one warp."""

    loads: Loads
    peek: bool  # probe the next slot while this one loads, and block only if the probe failed
    # load every other tile of a cluster from the end of k; with the dynamic scheduler, the tiles of every other round
    # of all clusters, since a tile's direction must not depend on the cluster that takes it
    reverse: bool
    pace: Pace | None
    tagged: bool  # True if stages carry the number of their item
    clusters: Int32  # of the launch
    unroll: int = 1  # unroll factor of the loop

    @property
    def stride(self) -> int:
        """Distance along k between consecutive stages of an item, in stages."""
        return 1

    def start(self, state: RingState, seen: Observer) -> Filling:
        """State before the first tile."""
        counted = self.reverse and not self.tagged
        patience = None if self.pace is None else Patience(Int32(0), Int32(LOOKS))
        return Filling(state, seen, Int32(0) if counted else 0, patience)

    @cute.jit
    def tile(self, at: Filling, row: Int32, column: Int32, item: Item, number: Any) -> Filling:
        """The load role, for the output tile at a row and column: fill as many stages as the item has.

        Returns:
            The state after the last stage: the ring runs on across tiles, so that the next tile's loads overlap this
            tile's epilogue.
        """
        ring = self.loads.ring
        state, seen, patience = at.state, at.seen, at.patience
        passed = Boolean(False)
        start, step = item.k_first, self.stride
        if cutlass.const_expr(self.reverse):
            back = (number // self.clusters if self.tagged else at.walked) & 1
            start = cutlass.select_(back != 0, item.k_first + (item.k_count - 1) * self.stride, Int32(item.k_first))
            step = cutlass.select_(back != 0, Int32(-self.stride), Int32(self.stride))
        turn = self.turn(item)
        for k_tile in cutlass.range(item.k_count, unroll=self.unroll):
            seen = seen.stage("asked", k_tile)
            ring.acquire(state.index, state.parity, passed)
            seen = seen.stage("had", k_tile, passed)
            k_at = start + self.turned(k_tile, turn, item) * step
            self.loads.issue(row, column, k_at, state.index, number if self.tagged else None)
            seen = seen.stage("issued", k_tile)
            state = state.next()
            if cutlass.const_expr(self.pace is not None):
                patience = self.pace.keep(k_tile + 1, patience)
            if cutlass.const_expr(self.peek):
                passed = ring.peek_empty(state.index, state.parity)
        walked = at.walked + 1 if cutlass.const_expr(self.reverse and not self.tagged) else at.walked
        return replace(at, state=state, seen=seen, patience=patience, walked=walked)

    def turn(self, item: Item) -> Int32 | int:
        """The stage of an item with which its loads begin: the first."""
        return 0

    def turned(self, k_tile: Int32, turn: Int32 | int, item: Item) -> Int32:
        """The stage of an item that is loaded as the ``k_tile``-th."""
        return k_tile

    @cute.jit
    def end(self, at: Filling, number: Int32 | None, drain: cutlass.Constexpr[bool]) -> None:
        """After the last tile: send ``number``, if any, to end the walk, and wait until all slots are released but the
        one that carries it, which nobody releases."""
        ring, state, slots = self.loads.ring, at.state, self.loads.ring.stages
        if cutlass.const_expr(number is not None):
            ring.acquire(state.index, state.parity)
            ring.finish(state.index, number)
            state, slots = state.next(), slots - 1
        if cutlass.const_expr(drain):
            ring.drain(state, slots)
