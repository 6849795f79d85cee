"""Loads by cp.async: the producer's threads copy sixteen bytes each, and announce a stage once it has landed.

Loads of A may come by TMA beside them. One full barrier then takes both: the bytes that the copy engine brings of A,
which one thread announces as with loads by TMA alone, and an arrival of each warp whose copies of B have landed.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.operand import OperandLoad
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.kernel.work import Item
from hopper_gemm.model import hopper
from hopper_gemm.model.problem import ELEMENT_BYTES

COPY_BYTES = 16
"""Bytes of one cp.async; the only size that bypasses the L1."""

COPIES_UNDER_WAY = 3
"""The most stages that cp.async keeps in flight: stages not yet announced cannot be multiplied. More of them than slots
that the consumers do not hold back would deadlock."""


@dataclass(frozen=True)
class ThreadLoad:
    """One operand's loads by cp.async: the copies of one of the producer's 128 threads.

    The threads lie side by side over the swizzle's rows, a pass being as many rows as they cover. Where a row or a
    column lies outside the matrix, zeros are written and nothing is read.

    Args:
        source: global address of this thread's first 16 bytes in the matrix's first tile.
        pitch: bytes from row to row.
        shared: shared address of this thread's first 16 bytes in stage 0, swizzled.
        row, column: this thread's place in a pass.
        span: elements of a row of the swizzle.
    """

    source: Int64
    pitch: Int64
    rows: Int32
    depth: Int32
    shared: Int32
    row: Int32
    column: Int32
    tile_rows: int
    tile_k: int
    span: int

    @staticmethod
    def of(
        thread: Int32, matrix: cute.Tensor, shared: cute.Pointer, tile_rows: int, tile_k: int, span: int
    ) -> ThreadLoad:
        """Return the copies of one of the producer's threads. ``matrix`` is (rows, depth), depth contiguous, 16-bit."""
        across = span * ELEMENT_BYTES // COPY_BYTES
        row, chunk = thread // across, thread % across
        pitch = Int64(matrix.stride[0]) * ELEMENT_BYTES
        offset = row * span * ELEMENT_BYTES + chunk * COPY_BYTES
        swizzled = offset ^ ((offset >> 3) & ((across - 1) * COPY_BYTES))
        column = chunk * (COPY_BYTES // ELEMENT_BYTES)
        source = matrix.iterator.toint() + Int64(row) * pitch + Int64(chunk) * COPY_BYTES
        rows, depth = cute.size(matrix, mode=[0]), cute.size(matrix, mode=[1])
        at = shared.toint() + swizzled
        return ThreadLoad(source, pitch, rows, depth, at, row, column, tile_rows, tile_k, span)

    @cute.jit
    def issue(self, first_row: Int32, k_tile: Int32, index: Int32) -> None:
        """Start this thread's copies of the tile from a row on into one stage."""
        pass_rows = hopper.WARPGROUP_THREADS * COPY_BYTES // (self.span * ELEMENT_BYTES)
        row_bytes = self.span * ELEMENT_BYTES
        stage = self.shared + index * (self.tile_rows * self.tile_k * ELEMENT_BYTES)
        row = first_row + self.row
        source = self.source + Int64(first_row) * self.pitch + Int64(k_tile) * (self.tile_k * ELEMENT_BYTES)
        for box in cutlass.range(self.tile_k // self.span, unroll=1):
            within = k_tile * self.tile_k + box * self.span + self.column < self.depth
            for step in cutlass.range_constexpr(-(-self.tile_rows // pass_rows)):
                inside = within & (row + step * pass_rows < self.rows)
                at = stage + box * (self.tile_rows * row_bytes) + step * pass_rows * row_bytes
                read = source + box * row_bytes + self.pitch * (step * pass_rows)
                inline_ptx(
                    "cp.async.cg.shared.global.L2::128B [{$r0}], [{$r1}], 16, {$r2};",
                    read_only_args=[
                        at,
                        cutlass.select_(inside, read, self.source),
                        cutlass.select_(inside, Int32(COPY_BYTES), Int32(0)),
                    ],
                    predicate=self._within_tile(step, pass_rows),
                )

    def _within_tile(self, step: int, pass_rows: int) -> Boolean | None:
        """Return True if this thread's row of a pass belongs to the tile; None if every thread's row does."""
        if (step + 1) * pass_rows <= self.tile_rows:
            return None
        return Boolean(self.row + step * pass_rows < self.tile_rows)


@dataclass(frozen=True)
class ThreadLoads:
    """Both operands' copies of one output tile's stages, by the producer's threads."""

    ring: Ring
    a: ThreadLoad | OperandLoad
    b: ThreadLoad
    first: Boolean

    @cute.jit
    def issue(self, row: Int32, column: Int32, k_tile: Int32, index: Int32) -> None:
        """Start copying one stage of the tile at a row and column of the output into an empty slot."""
        if cutlass.const_expr(isinstance(self.a, ThreadLoad)):
            self.a.issue(row, k_tile, index)
        elif self.first:
            self.ring.expect(index)
            self.a.issue(row, k_tile, index, self.ring.full() + index)
        self.b.issue(column, k_tile, index)

    @cute.jit
    def announce(self, index: Int32, ready: Boolean) -> None:
        """Tell the consumers that this warp's copies of a stage have landed.

        Copies by threads are writes of the generic proxy and wgmma reads by the async proxy: each thread fences its
        own writes before a lane arrives for the warp.
        """
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        if ready:
            self.ring.commit(index)


@dataclass(frozen=True)
class Copying(Bundle):
    """State of the producer's threads; a stage is announced once its copies have landed."""

    state: RingState
    landed: RingState
    issued: Int32
    seen: Observer


@dataclass(frozen=True)
class CopyFill:
    """Filling the ring by cp.async. By all threads of the producer.

    Each stage is one group of copies. A stage is announced ``lag`` stages later, when its group has landed: ``lag``
    stages are in flight at once.

    Args:
        landed: the first slot, in the consumers' phase.
    """

    loads: ThreadLoads
    lag: int
    peek: bool
    landed: RingState

    def start(self, state: RingState, seen: Observer) -> Copying:
        """Return the state before the first tile."""
        return Copying(state, self.landed, Int32(0), seen)

    @cute.jit
    def tile(self, at: Copying, row: Int32, column: Int32, item: Item, number: None) -> Copying:
        """Run the load role for the output tile at a row and column."""
        ring, state, landed, issued = self.loads.ring, at.state, at.landed, at.issued
        passed = Boolean(False)
        for k_tile in cutlass.range(item.k_count, unroll=1):
            ring.acquire(state.index, state.parity, passed)
            self.loads.issue(row, column, k_tile, state.index)
            state = state.next()
            if cutlass.const_expr(self.peek):
                passed = ring.peek_empty(state.index, state.parity)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(self.lag)
            self.loads.announce(landed.index, issued >= self.lag)
            if issued >= self.lag:
                landed = landed.next()
            issued = issued + 1
        return Copying(state, landed, issued, at.seen)

    @cute.jit
    def end(self, at: Copying, number: None, drain: cutlass.Constexpr[bool]) -> None:
        """Announce the stages still in flight, after the last tile."""
        cute.arch.cp_async_wait_group(0)
        landed = at.landed
        for i in cutlass.range_constexpr(self.lag):
            late = at.issued + i >= self.lag
            self.loads.announce(landed.index, late)
            if late:
                landed = landed.next()
