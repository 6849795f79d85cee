"""Accumulators to global memory: registers -> shared memory -> TMA store, in chunks.

A consumer stores its share in chunks of 64 rows by a few columns, one after the other through its own small set of
buffers, without waiting for other consumers. Converting and storing chunk j + 1 overlaps the copy engine's reading of
chunk j, and the last chunks of a tile drain while the next tile is being multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.nvgpu import CopyUniversalOp, cpasync, warp

from hopper_gemm.kernel.operand import BY_DEPTH, BY_ROWS, Kind, plain_layout, smem_layout
from hopper_gemm.kernel.sums.reduction import ClusterSum, WorkspaceSum, own_chunks, slots_of
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel

EVICT_FIRST = 0x12F0000000000000
"""The policy that ``createpolicy.fractional.L2::evict_first`` makes: the L2 evicts these lines first."""


@dataclass(frozen=True)
class Region:
    """Place of one consumer's share in the output.

    Args:
        rows, columns: of the share, in chunks, down and across.
        row, column: of the output, with which the share begins.
    """

    rows: int
    columns: int
    row: Int32
    column: Int32


@dataclass(frozen=True)
class Chunks:
    """The shape of an epilogue's chunks, and their layout in shared memory.

    Args:
        config: the resolved kernel.
        dtype: element type of C.
    """

    config: Kernel
    dtype: type[cutlass.Numeric]

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
        stores, two adjacent columns of a thread at once unless the chunk is transposed.

        Args:
            mma: a wgmma as wide as a chunk.
        """
        if self.dtype.width > 16:
            bits = self.dtype.width * (1 if self.transposed else 2)
            atom = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=bits)
        else:
            op = warp.StMatrix8x8x16bOp(transpose=self.transposed, num_matrices=4 if self.n % 16 == 0 else 2)
            atom = cute.make_copy_atom(op, self.dtype)
        return cute.make_tiled_copy_C(atom, mma)

    def in_ring(self, slots: cute.Tensor) -> cute.Tensor:
        """A consumer's part of the ring as chunk buffers, (rows, columns, buffer).

        Args:
            slots: the rows of an operand that no other consumer reads, (rows, depth, stage), of 128 bytes each.
        """
        config, one = self.config, self.layout(1)
        rows = config.tile_m if config.split == "m" else config.tile_n
        stage = rows * config.tile_k * slots.element_type.width // self.dtype.width
        buffers = (config.slot_chunks, config.stages)
        outer = cute.make_layout(
            (*one.outer.shape[:2], buffers), stride=(*one.outer.stride[:2], (cute.cosize(one), stage))
        )
        pointer = cute.recast_ptr(slots.iterator, swizzle_=one.inner, dtype=self.dtype)
        return cute.make_tensor(pointer, outer)

    def epilogue(
        self,
        atom: cute.CopyAtom | None,
        shared: cute.Tensor,
        target: cute.Tensor,
        mma: cute.TiledMma,
        consumer: Int32,
        thread: Int32,
    ) -> Epilogue:
        """The store role of one consumer.

        Args:
            atom: the TMA store; None where threads store the staged chunks.
            shared: buffers of all consumers; staged in the ring, those of this consumer.
            target: C, as TMA sees it; as plain tensor without a TMA store.
            mma: a wgmma as wide as a chunk.
            consumer: number of the warpgroup among the consumers.
            thread: within the warpgroup.
        """
        config, held = self.config, self.config.held_slots(self.dtype.width // 8)
        copy, buffers = self.copy(mma), config.epi_buffers
        assert isinstance(buffers, int)
        own = shared if held else cute.logical_divide(shared, (None, None, buffers))[None, None, (None, consumer)]
        thread_copy = copy.get_slice(thread)
        boxes, global_boxes = own, target
        if atom is not None:
            boxes, global_boxes = cpasync.tma_partition(
                atom, 0, cute.make_layout(1), cute.zipped_divide(own, self.box), cute.zipped_divide(target, self.box)
            )
        return Epilogue(
            atom,
            copy,
            cute.shape(thread_copy.partition_S(own))[:3],
            thread_copy.partition_D(own),
            boxes,
            global_boxes,
            self.transposed,
            hopper.WGMMA_M // self.box[0],
            buffers,
            consumer + 1,
            thread // hopper.WARP_THREADS == 0,
            EVICT_FIRST if config.evict_c else None,
            held,
            config.slot_chunks if held else 0,
            config.stages,
            config.stagger > 0 and not held and config.split_k == 1,
        )


@dataclass(frozen=True)
class Epilogue:
    """The store role of one consumer warpgroup.

    Args:
        atom: the TMA store of one chunk; None where threads store.
        copy: registers to shared memory for one chunk, partitioned for a warpgroup.
        values: shape of one thread's part of a chunk, for the copy.
        registers: this thread's view of the shared buffers, (copy..., buffer).
        shared: partitioned shared memory, (box, buffer); (row, column, buffer) where threads store.
        target: partitioned output, (box, row of boxes, chunk column); C itself where threads store.
        transposed: True if rows of the tile are columns of C.
        boxes: of a chunk, one below the other.
        buffers: buffers of this consumer.
        barrier: id of the named barrier of this consumer's 128 threads.
        stores: true in the warp that issues the stores.
        policy: of the L2 for what is stored, or None.
        held: slots of the ring in which a tile is staged; 0 if it has buffers of its own.
        each: chunks in a slot.
        stages: slots of the ring.
        early: True if it is opened while a tile's last wgmma groups run, which needs a stagger (docs/ideas.md). Not
            with split-K: a tile of 192 x 112 then spilled 216 bytes.
    """

    atom: cute.CopyAtom | None
    copy: cute.TiledCopy
    values: cute.Shape
    registers: cute.Tensor
    shared: cute.Tensor
    target: cute.Tensor
    transposed: bool
    boxes: int
    buffers: int
    barrier: Int32
    stores: Boolean
    policy: int | None
    held: int
    each: int
    stages: int
    early: bool

    def sync(self) -> None:
        """A barrier of this consumer's four warps."""
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=128)

    @cute.jit
    def wait_reads(self, pending: cutlass.Constexpr[int]) -> None:
        """In the storing warp: wait until at most ``pending`` stores still read their buffers."""
        if self.stores:
            cute.arch.cp_async_bulk_wait_group(pending, read=True)

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
        reduction: ClusterSum | WorkspaceSum | None = None,
        first: Int32 | None = None,
    ) -> None:
        """Store one share.

        With two or more buffers a chunk costs one barrier: before it, the storing warp has made sure that the buffer
        of the *next* chunk is free; after it, the buffer of this chunk is written.

        Args:
            accumulators: fp32 registers of the share.
            region: where the share lies in the output.
            reduction: adds up and stores the chunks that this CTA owns; None if the accumulators are the sums.
            first: the first slot of the ring in which to stage; the stores have then read all slots on return.
        """
        rows, columns = region.rows, region.columns
        chunks = rows * columns
        flat = self.chunked(accumulators, columns, rows)
        if cutlass.const_expr(self.held > 0):
            self.sync()
        elif cutlass.const_expr(not self.early):
            self._claim()
        if cutlass.const_expr(reduction is None):
            for j in cutlass.range_constexpr(chunks):
                down, across = divmod(j, columns)
                self._store_chunk(flat[None, across, down], j, chunks, region, down, across, first)
            if cutlass.const_expr(self.held > 0):
                self.wait_reads(0)
                self.sync()
        else:
            parts, slots = reduction.parts, slots_of(chunks, reduction.parts)
            own = own_chunks(accumulators, cute.size(flat, mode=[0]), parts, reduction.rank)
            for slot in cutlass.range_constexpr(slots):
                chunk = reduction.rank + slot * parts
                if chunk < chunks:
                    reduction.add(own[None, slot], slot)
                    self._store_chunk(own[None, slot], slot, slots, region, chunk // columns, chunk % columns)

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
        packed = cute.make_rmem_tensor(self.values, self.registers.element_type)
        packed.store(self.finished(values, region, down, across).to(self.registers.element_type))
        cute.copy(self.copy, packed, self.registers[None, None, None, slot])
        cute.arch.fence_proxy("async.shared", space="cta")
        if cutlass.const_expr(self.buffers > 1 and self.buffers <= number + 1 < chunks):
            self.wait_reads(self.buffers - 2)
        self.sync()
        self._send(slot, region, down, across)
        if cutlass.const_expr(self.buffers == 1 and number + 1 < chunks):
            self.wait_reads(0)
            self.sync()

    @cute.jit
    def _send(self, slot: int | tuple[int, Int32], region: Region, down: Int32 | int, across: Int32 | int) -> None:
        """Start storing the chunk in a buffer to its place in the region, in chunks. In the storing warp."""
        if self.stores:
            target = self.target_from(region)
            hint = {} if self.policy is None else {"cache_policy": Int64(self.policy)}
            if cutlass.const_expr(self.boxes == 1):
                cute.copy(self.atom, self.shared[None, (0, 0, slot)], target[None, (down, across)], **hint)
            else:
                for box in cutlass.range_constexpr(self.boxes):
                    place = target[None, (down * self.boxes + box, across)]
                    cute.copy(self.atom, self.shared[None, (box, 0, slot)], place, **hint)
            cute.arch.cp_async_bulk_commit_group()

    def target_from(self, region: Region) -> cute.Tensor:
        """The output from a region on, whose first chunk begins there."""
        within = (region.row, region.column) if self.transposed else (region.column, region.row)
        return cute.domain_offset(((within, 0), (0, 0)), self.target)

    def chunked(self, accumulators: cute.Tensor, columns: int, rows: int) -> cute.Tensor:
        """The accumulators chunk by chunk: (values of a chunk, columns, rows)."""
        size = cute.size(accumulators) // (rows * columns)
        return cute.make_tensor(accumulators.iterator, cute.make_layout((size, columns, rows)))

    def finished(self, values: cute.Tensor, region: Region, down: Int32 | int, across: Int32 | int):
        """The values of a chunk of a region before they are rounded; here the accumulators."""
        return values.load()

    def _slot(self, number: int, first: Int32 | None) -> int | tuple[int, Int32]:
        """The buffer of a chunk: its number, or its place in a slot of the ring and the slot."""
        if first is None:
            return number % self.buffers
        stage = first + number // self.each
        return number % self.each, cutlass.select_(stage >= self.stages, stage - self.stages, stage)
