"""Ways into shared memory: TMA, one thread for a whole box, and cp.async, sixteen bytes a thread."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int16, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.pipeline import Ring
from hopper_gemm.model import hopper
from hopper_gemm.model.problem import ELEMENT_BYTES

COPY_BYTES = 16
"""Bytes of one cp.async; the only size that passes by the L1."""

UNROLLED_BOXES = 4
"""More boxes than this are issued in a loop: unrolled, thirty loads a stage ran the producer out of registers."""


@dataclass(frozen=True)
class OperandLoad:
    """One operand's way into shared memory, in slices of rows that one TMA instruction can move.

    A tile is cut along its rows into equal slices. In a cluster, CTAs that share the tile load one part of the slices
    each, or all of them in turn, and multicast them to all that share it.

    Args:
        atom: the TMA copy of one slice.
        shared: partitioned shared memory, (element, (slice, box, stage)).
        source: partitioned global tensor, (element, (slice, box) of the whole matrix).
        slices: slices of a tile.
        boxes: TMA boxes of a slice, side by side along k: one for each row of the swizzle.
        first: the first slice that this CTA loads.
        count: slices that this CTA loads.
        turn: of which stages, by their place along k: this CTA's rank among so many that take turns; None: of all.
        mask: CTAs of the cluster that receive them, one bit per rank; 0 without multicast.
        descriptor: a TMA descriptor to take instead of the atom's own, or None.
    """

    atom: cute.CopyAtom
    shared: cute.Tensor
    source: cute.Tensor
    slices: int
    boxes: int
    first: Int32 | int
    count: int
    turn: tuple[Int32, int] | None
    mask: Int16 | None
    descriptor: cute.Pointer | None = None

    @cute.jit
    def issue(self, tile: Int32, k_tile: Int32, stage: Int32, full: cute.Pointer) -> None:
        """Start the copies of this CTA's slices of one tile into one stage; they complete ``full`` by bytes, here and
        wherever they land."""
        if cutlass.const_expr(self.turn is None):
            self._copy(tile, k_tile, stage, full)
        else:
            rank, ranks = self.turn
            if k_tile % ranks == rank:
                self._copy(tile, k_tile, stage, full)

    @cute.jit
    def _copy(self, tile: Int32, k_tile: Int32, stage: Int32, full: cute.Pointer) -> None:
        for i in cutlass.range_constexpr(self.count):
            part = self.first + i
            for box in cutlass.range(self.boxes, unroll=self.boxes if self.boxes <= UNROLLED_BOXES else 1):
                cute.copy(
                    self.atom,
                    self.source[None, (tile * self.slices + part, k_tile * self.boxes + box)],
                    self.shared[None, (part, box, stage)],
                    tma_bar_ptr=full,
                    mcast_mask=self.mask,
                    tma_desc_ptr=self.descriptor,
                )

    @cute.jit
    def prefetch(self, tile: Int32, k_tile: Int32) -> None:
        """Ask the same bytes into the L2."""
        for i in cutlass.range_constexpr(self.count):
            part = self.first + i
            for box in cutlass.range(self.boxes, unroll=1):
                cute.prefetch(self.atom, self.source[None, (tile * self.slices + part, k_tile * self.boxes + box)])


@dataclass(frozen=True)
class Loads:
    """Both operands' loads of one output tile's stages, by TMA. One warp issues them.

    Args:
        ring: what they fill.
        a, b: the operands' ways into shared memory.
    """

    ring: Ring
    a: OperandLoad
    b: OperandLoad

    @cute.jit
    def issue(self, tile_m: Int32, tile_n: Int32, k_tile: Int32, index: Int32) -> None:
        """Start loading one stage into an empty slot."""
        self.ring.expect(index)
        self.a.issue(tile_m, k_tile, index, self.ring.full(0) + index)
        self.b.issue(tile_n, k_tile, index, self.ring.full(1) + index)

    @cute.jit
    def prefetch(self, tile_m: Int32, tile_n: Int32, k_tile: Int32) -> None:
        """Ask what a stage needs into the L2."""
        self.a.prefetch(tile_m, k_tile)
        self.b.prefetch(tile_n, k_tile)


@dataclass(frozen=True)
class ThreadLoad:
    """One operand's way into shared memory by cp.async: what one of the producer's 128 threads copies.

    The threads lie side by side over the swizzle's rows, a pass being as many rows as they cover. Where a row or a
    column lies outside the matrix, zeros are written: nothing is read there.

    Args:
        source: global address of this thread's first 16 bytes in the matrix's first tile.
        pitch: bytes from row to row.
        rows, depth: of the matrix.
        shared: shared address of this thread's first 16 bytes in stage 0, swizzled.
        row, column: this thread's place in a pass.
        tile_rows, tile_k: of a tile.
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
        """The part of one of the producer's threads. ``matrix`` is (rows, depth), depth contiguous, 16-bit."""
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
    def issue(self, tile: Int32, k_tile: Int32, index: Int32) -> None:
        """Start this thread's copies of one tile into one stage."""
        pass_rows = hopper.WARPGROUP_THREADS * COPY_BYTES // (self.span * ELEMENT_BYTES)
        row_bytes = self.span * ELEMENT_BYTES
        stage = self.shared + index * (self.tile_rows * self.tile_k * ELEMENT_BYTES)
        row = tile * self.tile_rows + self.row
        source = self.source + Int64(tile * self.tile_rows) * self.pitch + Int64(k_tile) * (self.tile_k * ELEMENT_BYTES)
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
        """Whether this thread's row of a pass belongs to the tile; None where that is so for every thread."""
        if (step + 1) * pass_rows <= self.tile_rows:
            return None
        return Boolean(self.row + step * pass_rows < self.tile_rows)


@dataclass(frozen=True)
class ThreadLoads:
    """Both operands' copies of one output tile's stages, by the producer's threads.

    Args:
        ring: what they fill.
        a, b: the operands' ways into shared memory.
    """

    ring: Ring
    a: ThreadLoad
    b: ThreadLoad

    @cute.jit
    def issue(self, tile_m: Int32, tile_n: Int32, k_tile: Int32, index: Int32) -> None:
        """Start copying one stage into an empty slot."""
        self.a.issue(tile_m, k_tile, index)
        self.b.issue(tile_n, k_tile, index)

    @cute.jit
    def announce(self, index: Int32, ready: Boolean) -> None:
        """Tell the consumers that this warp's copies of a stage have landed.

        Copies by threads are writes of the generic proxy and wgmma reads by the async proxy: each thread fences its
        own writes before anyone arrives for it.
        """
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        if ready:
            if cutlass.const_expr(self.ring.every):
                cute.arch.mbarrier_arrive(self.ring.full() + index)
            else:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(self.ring.full() + index)
