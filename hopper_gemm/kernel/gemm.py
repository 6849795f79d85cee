"""The kernel: host-side set-up, launch, and who plays which role."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Boolean, Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup
from cutlass.memory import SmemAllocator

from hopper_gemm.kernel.epilogue import Epilogue
from hopper_gemm.kernel.mainloop import OperandLoad, load_tile, multiply_tile
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.kernel.tile_scheduler import Raster
from hopper_gemm.model import hopper
from hopper_gemm.model.footprint import Footprint

BUFFER_ALIGN = 1024
SWIZZLE_KINDS = {
    128: warpgroup.SmemLayoutAtomKind.K_SW128,
    64: warpgroup.SmemLayoutAtomKind.K_SW64,
    32: warpgroup.SmemLayoutAtomKind.K_SW32,
    16: warpgroup.SmemLayoutAtomKind.K_INTER,
}


class HopperGemm:
    """C = A @ B on the tensor cores of Hopper: persistent, warp-specialised, fed by TMA.

    Roles of a CTA (threads 0..127 are warpgroup 0):

        warpgroup 0         producer    warp 0 loads A and B into the ring; the other warps only give up registers
        warpgroup 1 .. c    consumers   wgmma on their share of the tile, then their share's epilogue

    Synchronisation, and who arrives where:

        full[stage]         the loading thread, with the stage's bytes; then TMA (also the peers' multicast)
        empty[stage]        every consumer warp of every CTA that the slot's loads serve
        named barrier 1+w   the 128 threads of consumer w, around its epilogue chunks
        cluster barrier     all threads, after the barriers are initialised and before anyone leaves

    Every role walks the same sequence of output tiles. Ring state runs on across tiles.

    Args:
        footprint: the resolved config with its derived figures; it must be legal.
        dtype: element type of A, B and C.
    """

    def __init__(self, footprint: Footprint, dtype: type[cutlass.Numeric]) -> None:
        self.footprint = footprint
        self.config = footprint.config
        self.dtype = dtype
        self.cluster = (self.config.cluster_m, self.config.cluster_n)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        clusters: Int32,
        along_m: Int32,
        swizzle: Int32,
        serpentine: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Launch.

        Args:
            a: (m, k), k contiguous.
            b: (n, k), k contiguous: the transpose of the right operand.
            c: (m, n), n contiguous.
            clusters: the most clusters that can be resident at once.
            along_m: 1 to raster along m, 0 along n.
            swizzle: raster group.
            serpentine: 1 to walk every other group backwards.
            stream: where to launch.
        """
        config, shares = self.config, self.footprint
        kind = SWIZZLE_KINDS[shares.swizzle_bytes]
        chunk_kind = SWIZZLE_KINDS[min(128, 2 * shares.chunk_n)]
        chunk = (hopper.WGMMA_M, shares.chunk_n)
        layout_a = self._smem_layout(kind, (config.tile_m, config.tile_k, config.stages))
        layout_b = self._smem_layout(kind, (config.tile_n, config.tile_k, config.stages))
        layout_c = self._smem_layout(chunk_kind, (*chunk, config.epi_buffers * config.consumers))
        load_a = self._load_atom(a, kind, config.tile_m, config.cluster_n)
        load_b = self._load_atom(b, kind, config.tile_n, config.cluster_m)
        store_c = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), c, self._smem_layout(chunk_kind, chunk), chunk
        )
        mma = self._tiled_mma(shares.share_n)

        tiles_m = cute.ceil_div(cute.size(c, mode=[0]), config.tile_m * config.cluster_m)
        tiles_n = cute.ceil_div(cute.size(c, mode=[1]), config.tile_n * config.cluster_n)
        raster = Raster(tiles_m, tiles_n, along_m, swizzle, serpentine, clusters)
        k_tiles = cute.ceil_div(cute.size(a, mode=[1]), config.tile_k)

        self.kernel(
            load_a.atom,
            load_a.tma_tensor,
            load_b.atom,
            load_b.tma_tensor,
            store_c.atom,
            store_c.tma_tensor,
            mma,
            layout_a,
            layout_b,
            layout_c,
            raster,
            k_tiles,
        ).launch(
            grid=(config.cluster_m, config.cluster_n, raster.clusters),
            block=(shares.threads, 1, 1),
            cluster=(config.cluster_m, config.cluster_n, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        atom_a: cute.CopyAtom,
        tensor_a: cute.Tensor,
        atom_b: cute.CopyAtom,
        tensor_b: cute.Tensor,
        atom_c: cute.CopyAtom,
        tensor_c: cute.Tensor,
        mma: cute.TiledMma,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        layout_c: cute.ComposedLayout,
        raster: Raster,
        k_tiles: Int32,
    ) -> None:
        """The device side; see the class."""
        config, shares = self.config, self.footprint
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        rank_m, rank_n, cluster_index = cute.arch.block_idx()

        if warp_index == 0:
            cpasync.prefetch_descriptor(atom_a)
            cpasync.prefetch_descriptor(atom_b)
            cpasync.prefetch_descriptor(atom_c)

        @cute.struct
        class Shared:
            a: cute.struct.Align[cute.struct.MemRange[self.dtype, cute.cosize(layout_a)], BUFFER_ALIGN]
            c: cute.struct.Align[cute.struct.MemRange[self.dtype, cute.cosize(layout_c)], BUFFER_ALIGN]
            b: cute.struct.Align[cute.struct.MemRange[self.dtype, cute.cosize(layout_b)], BUFFER_ALIGN]
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * config.stages]

        storage = SmemAllocator().allocate(Shared)
        shared_a = storage.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
        shared_b = storage.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
        shared_c = storage.c.get_tensor(layout_c.outer, swizzle=layout_c.inner)
        ring = Ring(
            storage.barriers.data_ptr(),
            config.stages,
            shares.stage_bytes,
            hopper.WARPGROUP_WARPS * config.consumers,
            self.cluster,
        )

        if thread == 0:
            ring.init()
        self._sync_cluster()

        warpgroup_index = cute.arch.make_warp_uniform(thread // hopper.WARPGROUP_THREADS)
        registers = shares.registers

        if warpgroup_index == 0:
            if cutlass.const_expr(registers.moved):
                cute.arch.setmaxregister_decrease(registers.producer)
            if warp_index == 0:
                load_a = self._operand_load(
                    atom_a, shared_a, tensor_a, rank_n, config.cluster_n, _mask_row(self.cluster, rank_m)
                )
                load_b = self._operand_load(
                    atom_b, shared_b, tensor_b, rank_m, config.cluster_m, _mask_column(self.cluster, rank_n)
                )
                state = RingState.producer(config.stages)
                index = Int32(cluster_index)
                while index < raster.tiles:
                    cluster_tile_m, cluster_tile_n = raster.tile(index)
                    state = load_tile(
                        ring,
                        state,
                        load_a,
                        load_b,
                        cluster_tile_m * config.cluster_m + rank_m,
                        cluster_tile_n * config.cluster_n + rank_n,
                        k_tiles,
                        config.peek,
                    )
                    index = index + raster.clusters
        else:
            if cutlass.const_expr(registers.moved):
                cute.arch.setmaxregister_increase(registers.consumer)
            consumer = warpgroup_index - 1
            consumer_m = consumer if cutlass.const_expr(config.split == "m") else 0
            consumer_n = consumer if cutlass.const_expr(config.split == "n") else 0
            own_a = cute.logical_divide(shared_a, (shares.share_m, None, None))[(None, consumer_m), None, None]
            own_b = cute.logical_divide(shared_b, (shares.share_n, None, None))[(None, consumer_n), None, None]
            thread_mma = mma.get_slice(0)
            fragment_a = mma.make_fragment_A(thread_mma.partition_A(own_a))
            fragment_b = mma.make_fragment_B(thread_mma.partition_B(own_b))
            accumulators = cute.make_rmem_tensor(
                thread_mma.partition_shape_C((shares.share_m, shares.share_n)), Float32
            )
            epilogue = self._epilogue(atom_c, shared_c, tensor_c, consumer, thread % hopper.WARPGROUP_THREADS)
            chunk_rows = shares.share_m // hopper.WGMMA_M
            chunk_columns = shares.share_n // shares.chunk_n
            arrives = Boolean(lane < ring.readers)
            target = ring.release_target(lane, rank_m, rank_n)
            state = RingState.consumer(config.stages)
            index = Int32(cluster_index)
            while index < raster.tiles:
                cluster_tile_m, cluster_tile_n = raster.tile(index)
                state = multiply_tile(
                    ring,
                    state,
                    mma,
                    accumulators,
                    fragment_a,
                    fragment_b,
                    k_tiles,
                    config.stagger,
                    config.peek,
                    target,
                    arrives,
                )
                row = (cluster_tile_m * config.cluster_m + rank_m) * (config.tile_m // hopper.WGMMA_M)
                column = (cluster_tile_n * config.cluster_n + rank_n) * (config.tile_n // shares.chunk_n)
                epilogue.store_tile(
                    accumulators,
                    chunk_rows,
                    chunk_columns,
                    row + consumer_m * chunk_rows,
                    column + consumer_n * chunk_columns,
                )
                index = index + raster.clusters
            epilogue.wait_reads(0)

        if cutlass.const_expr(config.cluster_size > 1):
            # A peer may still multicast into this CTA's memory or arrive on its barriers.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    # Set-up --------------------------------------------------------------------------------

    def _smem_layout(self, kind, shape: tuple[int, ...]) -> cute.ComposedLayout:
        """A swizzled shared-memory layout (rows, columns[, stage]), rows stacked first."""
        atom = warpgroup.make_smem_layout_atom(kind, self.dtype)
        return cute.tile_to_shape(atom, shape, order=tuple(range(len(shape))))

    def _load_atom(self, tensor: cute.Tensor, kind, tile: int, sharers: int) -> cpasync.TmaInfo:
        """The TMA load of one box: a slice of a tile's rows, as deep as the swizzle; multicast where CTAs share it."""
        op = cpasync.CopyBulkTensorTileG2SOp() if sharers == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        box = self._box(tile, sharers)
        stage = self._smem_layout(kind, (tile, self.config.tile_k))
        affine = cute.slice_(cute.logical_divide(stage.outer, box), ((None, 0), (None, 0)))
        return cpasync.make_tiled_tma_atom(op, tensor, cute.make_composed_layout(stage.inner, 0, affine), box)

    def _box(self, tile: int, sharers: int) -> tuple[int, int]:
        """Rows and columns of one TMA box of an operand's tile."""
        return tile // _slices(tile, sharers), self.footprint.swizzle_bytes * 8 // self.dtype.width

    def _tiled_mma(self, n: int) -> cute.TiledMma:
        op = warpgroup.MmaF16BF16Op(
            self.dtype,
            Float32,
            (hopper.WGMMA_M, n, hopper.WGMMA_K),
            warpgroup.OperandSource.SMEM,
            OperandMajorMode.K,
            OperandMajorMode.K,
        )
        return cute.make_tiled_mma(op)

    def _sync_cluster(self) -> None:
        if self.config.cluster_size > 1:
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def _operand_load(
        self,
        atom: cute.CopyAtom,
        shared: cute.Tensor,
        source: cute.Tensor,
        rank: Int32,
        sharers: int,
        mask: Int32 | int,
    ) -> OperandLoad:
        """Partition one operand into slices; ``rank`` is this CTA's place among those that share the tile."""
        tile = cute.size(shared, mode=[0])
        slices = _slices(tile, sharers)
        box = self._box(tile, sharers)
        parts, global_parts = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.zipped_divide(shared, box), cute.zipped_divide(source, box)
        )
        boxes = self.config.tile_k // box[1]
        count = slices // sharers
        first = rank * count if sharers > 1 else 0
        return OperandLoad(atom, parts, global_parts, slices, boxes, first, count, mask)

    def _epilogue(
        self, atom: cute.CopyAtom, shared: cute.Tensor, target: cute.Tensor, consumer: Int32, thread: Int32
    ) -> Epilogue:
        """The store role of one consumer: its buffers, and a copy shaped like one chunk of wgmma's accumulators."""
        shares = self.footprint
        buffers = self.config.epi_buffers
        matrices = 4 if shares.chunk_n % 16 == 0 else 2
        copy = cute.make_tiled_copy_C(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=matrices), self.dtype),
            self._tiled_mma(shares.chunk_n),
        )
        own = cute.logical_divide(shared, (None, None, buffers))[None, None, (None, consumer)]
        thread_copy = copy.get_slice(thread)
        values = cute.shape(thread_copy.partition_S(own))[:3]
        registers = thread_copy.partition_D(own)
        shape = (hopper.WGMMA_M, shares.chunk_n)
        boxes, global_boxes = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.zipped_divide(own, shape), cute.zipped_divide(target, shape)
        )
        stores = thread // hopper.WARP_THREADS == 0
        return Epilogue(atom, copy, values, registers, boxes, global_boxes, buffers, consumer + 1, stores)


def _slices(rows: int, sharers: int) -> int:
    """Slices in which a tile is loaded: one for each CTA that shares it, more where a TMA box would be too long."""
    slices = sharers
    while rows // slices > hopper.TMA_BOX_MAX:
        slices += sharers
    return slices


def _mask_row(cluster: tuple[int, int], rank_m: Int32) -> Int32 | int:
    """Multicast mask of the CTAs with the same place along m: they share a tile of A."""
    if cluster[1] == 1:
        return 0
    return cutlass.Int16(sum(1 << (cluster[0] * j) for j in range(cluster[1])) << rank_m)


def _mask_column(cluster: tuple[int, int], rank_n: Int32) -> Int32 | int:
    """Multicast mask of the CTAs with the same place along n: they share a tile of B."""
    if cluster[0] == 1:
        return 0
    return cutlass.Int16(((1 << cluster[0]) - 1) << (rank_n * cluster[0]))
