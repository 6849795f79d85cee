"""Accumulators to global memory, in chunks: a list of steps, then shared memory, then a target.

A consumer stores its share in chunks of 64 rows by a few columns, one after the other through its own small set of
buffers, without waiting for other consumers. Converting and storing chunk j + 1 overlaps the copy engine's reading of
chunk j, and the last chunks of a tile drain while the next tile is being multiplied.

    steps     what is done to the fp32 values of a chunk before they are rounded (:mod:`hopper_gemm.kernel.steps`)
    target    who takes a chunk from shared memory to C: TMA (:class:`TmaTarget`), or the consumer's threads
              (:class:`hopper_gemm.kernel.threads.scatter.ThreadTarget`)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import CopyUniversalOp, cpasync, warp

from hopper_gemm.kernel.operand import BY_DEPTH, BY_ROWS, Kind, plain_layout, smem_layout
from hopper_gemm.kernel.steps import PIECE, Chunk, Gate, Step, opaque
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import ELEMENT_BYTES

EVICT_FIRST = 0x12F0000000000000
"""The policy that ``createpolicy.fractional.L2::evict_first`` makes: the L2 evicts these lines first."""

Slot = int | Int32 | tuple[int, Int32]
"""A chunk buffer: its number, or its place in a slot of the ring and the slot."""


@dataclass(frozen=True)
class Region:
    """Place of one consumer's share in the output."""

    # rows, columns: of the share, in chunks, down and across
    rows: int
    columns: int
    # row, column: of the output, with which the share begins
    row: Int32
    column: Int32
    plane: Int32 | None = None  # third coordinate of an output of groups, or None
    shift: Int32 | int = 0  # from rows of C to rows of its ragged form, by which it is stored


@dataclass(frozen=True)
class Chunks:
    """The shape of an epilogue's chunks, and their layout in shared memory."""

    config: Kernel
    dtype: type[cutlass.Numeric]  # element type of C

    @property
    def n(self) -> int:
        """Columns of a chunk."""
        return self.config.chunk_columns(self.dtype.width // 8)

    @property
    def box(self) -> tuple[int, int]:
        """Rows and columns of the box in which TMA stores a chunk, or a part of it."""
        return self.config.box_rows(self.dtype.width // 8), self.n

    @property
    def transposed(self) -> bool:
        """True if rows of the tile are columns of C."""
        return self.config.swap_ab

    @property
    def held(self) -> int:
        """Slots of the ring in which a tile is staged; 0 if chunks have buffers of their own."""
        return self.config.held_slots(self.dtype.width // 8)

    @property
    def _kind(self) -> Kind:
        return BY_ROWS[128] if self.transposed else BY_DEPTH[min(128, self.dtype.width // 8 * self.n)]

    def layout(self, buffers: int) -> cute.ComposedLayout:
        """Shared-memory layout of chunk buffers: (rows, columns, buffer). A chunk's boxes lie one after the other."""
        shape = hopper.WGMMA_M, self.n, buffers
        if not self.config.chunk_swizzled:
            return plain_layout(*shape)
        return smem_layout(self.dtype, self._kind, shape, self.box[0] == hopper.WGMMA_M)

    def box_layout(self) -> cute.ComposedLayout:
        """Shared-memory layout of one box of a chunk: (rows, columns)."""
        if not self.config.chunk_swizzled:
            return cute.slice_(plain_layout(*self.box), (None, None, 0))
        return smem_layout(self.dtype, self._kind, self.box)

    def store_atom(self, c: cute.Tensor) -> cpasync.TmaInfo:
        """The TMA store of one box. On the host."""
        return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), c, self.box_layout(), self.box)

    def copy(self, mma: cute.TiledMma) -> cute.TiledCopy:
        """A warpgroup's accumulators to a chunk: by stmatrix, which moves 16-bit elements only; wider elements by plain
        stores, two adjacent columns of a thread at once unless the chunk is transposed. ``mma`` is as wide as a
        chunk."""
        if self.dtype.width > 16:
            bits = self.dtype.width * (1 if self.transposed else 2)
            atom = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=bits)
        else:
            op = warp.StMatrix8x8x16bOp(transpose=self.transposed, num_matrices=4 if self.n % 16 == 0 else 2)
            atom = cute.make_copy_atom(op, self.dtype)
        return cute.make_tiled_copy_C(atom, mma)

    def in_ring(self, slots: cute.Tensor) -> cute.Tensor:
        """A consumer's part of the ring as chunk buffers, (rows, columns, buffer). ``slots`` are the rows of an operand
        that no other consumer reads, (rows, depth, stage), of 128 bytes each."""
        config, one = self.config, self.layout(1)
        rows = config.tile_m if config.split == "m" else config.tile_n
        stage = rows * config.tile_k * ELEMENT_BYTES * 8 // self.dtype.width
        buffers = (config.slot_chunks, config.stages)
        outer = cute.make_layout(
            (*one.outer.shape[:2], buffers), stride=(*one.outer.stride[:2], (cute.cosize(one), stage))
        )
        pointer = cute.recast_ptr(slots.iterator, swizzle_=one.inner, dtype=self.dtype)
        return cute.make_tensor(pointer, outer)

    def paired(self, buffers: cute.Tensor) -> cute.Tensor:
        """Chunk buffers, (rows, columns, buffer), as a thread's rows r and r + 8 of a gated chunk with swapped operands
        lie in them: these come of two blocks of 64 rows of the tile, one below the other, of which each makes 32 rows
        of the chunk."""
        eight, warps = hopper.WGMMA_N_STEP, hopper.WARPGROUP_WARPS
        rows = cute.make_layout((eight, 2, warps), stride=(1, eight * warps, eight))
        return cute.composition(buffers, (rows, None, None))

    def staging(
        self, own: cute.Tensor, mma: cute.TiledMma, thread: Int32
    ) -> tuple[cute.TiledCopy, cute.Shape, cute.Tensor]:
        """The copy of a chunk from registers to shared memory, the shape of one thread's part of it, and the thread's
        view of its consumer's ``own`` chunk buffers, (rows, columns, buffer). ``mma`` is as wide as a chunk."""
        copy = self.copy(mma)
        part = copy.get_slice(thread)
        return copy, cute.shape(part.partition_S(own))[:3], part.partition_D(own)

    def target(self, atom: cute.CopyAtom, shared: cute.Tensor, c: cute.Tensor, thread: Int32) -> TmaTarget:
        """The TMA stores of one consumer, by an atom that stores one box, from its ``shared`` chunk buffers, (rows,
        columns, buffer), to C as TMA sees it."""
        boxes, output = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.zipped_divide(shared, self.box), cute.zipped_divide(c, self.box)
        )
        stores, policy = thread // hopper.WARP_THREADS == 0, EVICT_FIRST if self.config.evict_c else None
        return TmaTarget(atom, boxes, output, self.transposed, hopper.WGMMA_M // self.box[0], stores, policy)


@dataclass(frozen=True)
class TmaTarget:
    """C by TMA stores, which one warp of the consumer issues. Another target has the same two methods."""

    atom: cute.CopyAtom  # the TMA store of one box
    shared: cute.Tensor  # partitioned chunk buffers, (box, buffer)
    output: cute.Tensor  # partitioned C, (box, row of boxes, chunk column)
    transposed: bool  # True if rows of the tile are columns of C
    boxes: int  # of a chunk, one below the other
    stores: Boolean  # true in the warp that issues the stores
    policy: int | None  # of the L2 for what is stored, or None

    @cute.jit
    def wait_reads(self, pending: cutlass.Constexpr[int]) -> None:
        """In the storing warp: wait until at most ``pending`` stores still read their buffers."""
        if self.stores:
            cute.arch.cp_async_bulk_wait_group(pending, read=True)

    @cute.jit
    def store(self, slot: Slot, region: Region, down: Int32 | int, across: Int32 | int) -> None:
        """Start storing the chunk in a buffer to its place in the region. In the storing warp."""
        if self.stores:
            output = self.output_from(region)
            hint = {} if self.policy is None else {"cache_policy": Int64(self.policy)}
            plane = () if region.plane is None else (0,)
            if cutlass.const_expr(self.boxes == 1):
                cute.copy(self.atom, self.shared[None, (0, 0, slot)], output[None, (down, across, *plane)], **hint)
            else:
                for box in cutlass.range_constexpr(self.boxes):
                    place = output[None, (down * self.boxes + box, across, *plane)]
                    cute.copy(self.atom, self.shared[None, (box, 0, slot)], place, **hint)
            cute.arch.cp_async_bulk_commit_group()

    def output_from(self, region: Region) -> cute.Tensor:
        """The output from a region on, whose first chunk begins there."""
        row, column, shift = region.row, region.column, region.shift
        within = (row, column + shift) if self.transposed else (column, row + shift)
        plane = () if region.plane is None else (region.plane,)
        return cute.domain_offset(((within, 0), (0, 0, *plane)), self.output)


def slots_of(chunks: int, parts: int) -> int:
    """The most chunks that a part owns."""
    return -(-chunks // parts)


@cute.jit
def own_chunks(accumulators: cute.Tensor, size: cutlass.Constexpr[int], parts: int, rank: Int32) -> cute.Tensor:
    """The chunks that a part owns, of ``size`` registers each: (size, slots). Slots past the last chunk are unused."""
    chunks = cute.size(accumulators) // size
    slots = slots_of(chunks, parts)
    flat = cute.make_tensor(accumulators.iterator, cute.make_layout((size, chunks)))
    own = cute.make_rmem_tensor((size, slots), Float32)
    for slot in cutlass.range_constexpr(slots):
        for i in cutlass.range_constexpr(size):
            value = flat[i, slot * parts]
            for other in cutlass.range_constexpr(1, min(parts, chunks - slot * parts)):
                value = cutlass.select_(rank == other, flat[i, slot * parts + other], value)
            own[i, slot] = value
    return own


@dataclass(frozen=True)
class ConsumerEpilogue:
    """The store role of one consumer warpgroup."""

    chunks: Chunks
    target: Any  # takes staged chunks to C
    steps: tuple[Step, ...]  # what is done to a chunk before it is rounded, in this order
    copy: cute.TiledCopy  # registers to shared memory for one chunk, partitioned for a warpgroup
    values: cute.Shape  # shape of one thread's part of a chunk, for the copy
    registers: cute.Tensor  # this thread's view of the shared buffers, (copy..., buffer)
    thread: Int32  # within the warpgroup
    barrier: Int32  # id of the named barrier of this consumer's 128 threads

    @property
    def buffers(self) -> int:
        """Buffers of this consumer."""
        return self.chunks.config.epi_buffers

    @property
    def held(self) -> int:
        """Slots of the ring in which a tile is staged; 0 if it has buffers of its own."""
        return self.chunks.held

    @property
    def early(self) -> bool:
        """True if it is opened while a tile's last wgmma groups run, which needs a stagger (docs/ideas.md). Not with
        split-K: a tile of 192 x 112 then spilled 216 bytes."""
        config = self.chunks.config
        return config.stagger > 0 and not self.held and config.split_k == 1

    @property
    def gated(self) -> bool:
        """True if a step multiplies columns by others."""
        return any(isinstance(step, Gate) for step in self.steps)

    def of_tile(self, column: Int32, group: Int32 | None) -> ConsumerEpilogue:
        """The epilogue of the tile of C, or of a group, that begins with a column, whose bias is read before its main
        loop."""
        return replace(self, steps=tuple(step.of_tile(column, group) for step in self.steps))

    def sync(self) -> None:
        """A barrier of this consumer's four warps."""
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=128)

    def wait_reads(self, pending: int) -> None:
        """Wait until at most ``pending`` stores still read their buffers; the barrier that follows tells all warps."""
        self.target.wait_reads(pending)

    @cute.jit
    def open(self) -> None:
        """If ``early``, wait until no store reads a buffer, and tell all four warps; :meth:`store_tile` follows
        in all of them, or in none."""
        if cutlass.const_expr(self.early):
            self._claim()

    @cute.jit
    def _claim(self) -> None:
        self.wait_reads(0)
        self.sync()

    @cute.jit
    def store_tile(
        self,
        accumulators: cute.Tensor,
        region: Region,
        sums: Any = None,
        first: Int32 | None = None,
    ) -> None:
        """Store one share, the accumulators, to its region of the output.

        With two or more buffers a chunk costs one barrier: before it, the storing warp has made sure that the buffer
        of the *next* chunk is free; after it, the buffer of this chunk is written.

        ``sums`` adds up the chunks that this CTA owns (:mod:`hopper_gemm.kernel.sums.reduction`); None if the
        accumulators are the sums. ``first`` is the first slot of the ring in which to stage; the stores have then read
        all slots on return.
        """
        rows, columns = region.rows, region.columns
        chunks = rows * columns
        flat = self.chunked(accumulators, columns, rows)
        if cutlass.const_expr(self.held > 0):
            self.sync()
        elif cutlass.const_expr(not self.early):
            self._claim()
        if cutlass.const_expr(sums is None):
            for j in cutlass.range_constexpr(chunks):
                down, across = divmod(j, columns)
                self._store_chunk(flat[None, across, down], j, chunks, region, down, across, first)
            if cutlass.const_expr(self.held > 0):
                self.wait_reads(0)
                self.sync()
        else:
            parts, slots = sums.parts, slots_of(chunks, sums.parts)
            own = own_chunks(accumulators, cute.size(flat, mode=[0]), parts, sums.rank)
            for slot in cutlass.range_constexpr(slots):
                chunk = sums.rank + slot * parts
                if chunk < chunks:
                    sums.add(own[None, slot], slot)
                    self._store_chunk(own[None, slot], slot, slots, region, chunk // columns, chunk % columns)

    @cute.jit
    def store_sums(self, sums: Any, region: Region, first: Int32, step: Int32) -> None:
        """Store every ``step``-th chunk of a share from the ``first`` on, added up by ``sums``, a
        :class:`hopper_gemm.kernel.sums.reduction.WorkspaceSum`. The rolled loop serves any number of parts."""
        slot = Int32(0)
        self._claim()
        for chunk in cutlass.range(first, sums.chunks, step, unroll=1):
            values = cute.make_rmem_tensor(sums.chunk, Float32)
            sums.total(values, chunk)
            down, across = chunk // region.columns, chunk % region.columns
            self._stage(values, slot, region, down, across)
            if cutlass.const_expr(self.buffers > 1):
                self.wait_reads(self.buffers - 2)
            self.sync()
            self.target.store(slot, region, down, across)
            if cutlass.const_expr(self.buffers == 1):
                self._claim()
            slot = cutlass.select_(slot + 1 == self.buffers, Int32(0), slot + 1)

    @cute.jit
    def _stage(self, values: cute.Tensor, slot: Slot, region: Region, down: Int32 | int, across: Int32 | int) -> None:
        """Write a chunk, after all steps, to a buffer."""
        packed = cute.make_rmem_tensor(self.values, self.registers.element_type)
        packed.store(self.finished(values, region, down, across).to(self.registers.element_type))
        cute.copy(self.copy, packed, self.registers[None, None, None, slot])
        cute.arch.fence_proxy("async.shared", space="cta")

    @cute.jit
    def _store_chunk(
        self,
        values: cute.Tensor,
        number: cutlass.Constexpr[int],
        chunks: cutlass.Constexpr[int],
        region: Region,
        down: Int32 | int,
        across: Int32 | int,
        first: Int32 | None = None,
    ) -> None:
        """Store chunk ``number`` of ``chunks`` to its place in the region, some chunks down and across."""
        slot = self._slot(number, first)
        self._stage(values, slot, region, down, across)
        if cutlass.const_expr(self.buffers > 1 and self.buffers <= number + 1 < chunks):
            self.wait_reads(self.buffers - 2)
        self.sync()
        self.target.store(slot, region, down, across)
        if cutlass.const_expr(self.buffers == 1 and number + 1 < chunks):
            self.wait_reads(0)
            self.sync()

    def chunked(self, accumulators: cute.Tensor, columns: int, rows: int) -> cute.Tensor:
        """The accumulators chunk by chunk: (values of a chunk, columns, rows). With a gate they are the gate's values;
        those of up lie half a tile's columns further. With swapped operands a chunk's rows come of two blocks of 64
        rows of the tile, and those of up lie two registers further."""
        halves = 2 if self.gated else 1
        size = cute.size(accumulators) // (halves * rows * columns)
        shape, stride = (size, columns, rows), (1, size, halves * columns * size)
        if self.gated and self.chunks.transposed:
            shape, stride = ((2, 2, size // 4), columns, rows), ((1, columns * size, 4), size, 2 * columns * size)
        return cute.make_tensor(accumulators.iterator, cute.make_layout(shape, stride=stride))

    def finished(self, values: cute.Tensor, region: Region, down: Int32 | int, across: Int32 | int):
        """The values of a chunk of a region after all steps."""
        if not self.steps:
            return values.load()
        chunk = self._chunk(values, region, down, across)
        steps, groups = [step.of_chunk(chunk) for step in self.steps], self.chunks.n // hopper.WGMMA_N_STEP
        made = cute.make_rmem_tensor(4 * groups, Float32)
        piece = groups if self.gated else PIECE
        for first in range(0, groups, piece):
            count = min(piece, groups - first)
            own = chunk.piece(first, count).load()
            for step in steps:
                own = step.value(own, chunk, first, count)
            cute.make_tensor(made.iterator + 4 * first, cute.make_layout(4 * count)).store(own)
        return made.load()

    def _chunk(self, values: cute.Tensor, region: Region, down: Int32 | int, across: Int32 | int) -> Chunk:
        """A chunk of a region as this thread holds it; gated without its place in C, where no step reads."""
        if self.gated:
            return Chunk(values)
        thread = opaque(self.thread)
        lane, before = thread % hopper.WARP_THREADS, across * self.chunks.n
        row = region.row + down * hopper.WGMMA_M + thread // hopper.WARP_THREADS * 16 + lane // 4
        return Chunk(values, row, region.column + before, lane, before, self.chunks.n)

    def _slot(self, number: int, first: Int32 | None) -> Slot:
        """The buffer of a chunk."""
        if first is None:
            return number % self.buffers
        each, stages = self.chunks.config.slot_chunks, self.chunks.config.stages
        stage = first + number // each
        return number % each, cutlass.select_(stage >= stages, stage - stages, stage)
