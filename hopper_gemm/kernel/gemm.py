"""The kernel: host-side set-up, launch, and who plays which role."""

from __future__ import annotations

from dataclasses import replace

import cuda.bindings.driver as cuda
import cutlass
from cutlass import GridConstant, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental.cuda.tensor_map import TensorMap
from cutlass.memory import SmemAllocator

from hopper_gemm.kernel.loads import Loads, ThreadLoad, ThreadLoads
from hopper_gemm.kernel.pipeline import Ring
from hopper_gemm.kernel.roles import Place, Roles
from hopper_gemm.kernel.tile_scheduler import Raster
from hopper_gemm.model import hopper

BUFFER_ALIGN = 1024

ALL_SHARED = 100
"""Per cent of the memory that an SM divides between L1 and shared."""


class HopperGemm(Roles):
    """C = A @ B on the tensor cores of Hopper.

    Roles of a CTA (threads 0..127 are warpgroup 0):

        warpgroup 0         producer    warp 0 loads A and B into the ring by TMA, the other warps only give up
                                        registers; by cp.async, all four load
        warpgroup 1 .. c    consumers   wgmma on their share of the tile, then their share's epilogue; in pingpong each
                                        takes every other tile whole

    In the schedule ``multistage`` there is no producer, consumers are warpgroups 0 .. c - 1, and warp 0 issues the
    loads between its wgmmas.

    Synchronisation, and who arrives where:

        full[stage]         the loading thread, with the stage's bytes; then TMA (also the peers' multicast)
        empty[stage]        every consumer warp of every CTA that the slot's loads serve
        named barrier 1+w   the 128 threads of consumer w, around its epilogue chunks and the parts that it adds up
        named barrier 4+w   in pingpong, both consumers: one waits for its turn, the other gives it
        cluster barrier     all threads, after the barriers are initialised and before anyone leaves

    Every role walks the same sequence of output tiles. Ring state runs on across tiles.

    Args:
        footprint: the resolved config with its derived figures; it must be legal.
        dtype: element type of A and B.
        layouts: the contiguous axis of A, then of B.
        out_dtype: element type of C: theirs or fp32.
    """

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
            a: (m, k), contiguous along one of them.
            b: (n, k), the transpose of the right operand, contiguous along one of them.
            c: (m, n), n contiguous.
            clusters: the most clusters that can be resident at once, or any larger number for one cluster a tile.
            along_m: 1 to raster along m, 0 along n.
            swizzle: raster group.
            serpentine: 1 to walk every other group backwards.
            stream: where to launch.
        """
        self._launch(a, b, c, clusters, along_m, swizzle, serpentine, stream)

    @cute.jit
    def _launch(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        clusters: Int32,
        along_m: Int32,
        swizzle: Int32,
        serpentine: Int32,
        stream: cuda.CUstream,
        readings: cute.Tensor | None = None,
        sums: cute.Tensor | None = None,
        flags: cute.Tensor | None = None,
    ) -> None:
        config, shares = self.config, self.footprint
        if cutlass.const_expr(config.swap_ab):
            a, b = b, a
            c = cute.make_tensor(c.iterator, cute.select(c.layout, mode=[1, 0]))
        layout_a, layout_b = self.a.layout(), self.b.layout()
        load_a, load_b = self.a.load_atom(a), self.b.load_atom(b)
        map_a, map_b = self.a.descriptor(a, config.l2_promotion), self.b.descriptor(b, config.l2_promotion)
        layout_c, store_c, tensor_c = None, None, c
        if cutlass.const_expr(config.stores == "tma"):
            layout_c = self.chunk_layout(config.epi_buffers * config.consumers)
            store = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), c, self.box_layout(), self.box)
            store_c, tensor_c = store.atom, store.tma_tensor
        threads_load = cutlass.const_expr(config.loads == "cp_async")
        mma = self._tiled_mma(shares.share_n)

        tiles_m = cute.ceil_div(cute.size(c, mode=[0]), config.tile_m * config.cluster_m)
        tiles_n = cute.ceil_div(cute.size(c, mode=[1]), config.tile_n * config.cluster_n)
        order = along_m, swizzle, serpentine
        raster = Raster(tiles_m, tiles_n, *order, clusters, config.work_items, config.stream_k)
        k_tiles = cute.ceil_div(cute.size(a, mode=[1]), config.tile_k)

        parts = config.split_k if shares.parts_meet else 1
        self.kernel(
            None if threads_load else load_a.atom,
            a if threads_load else load_a.tma_tensor,
            None if threads_load else load_b.atom,
            b if threads_load else load_b.tma_tensor,
            store_c,
            tensor_c,
            mma,
            layout_a,
            layout_b,
            layout_c,
            raster,
            k_tiles,
            map_a,
            map_b,
            readings,
            sums,
            flags,
        ).launch(
            grid=(config.cluster_m, config.cluster_n, raster.clusters * parts),
            block=(shares.threads, 1, 1),
            cluster=(config.cluster_m, config.cluster_n, parts),
            min_blocks_per_mp=config.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED if config.ctas_per_sm > 1 else None,
            stream=stream,
            use_pdl=config.pdl,
        )

    @cute.kernel
    def kernel(
        self,
        atom_a: cute.CopyAtom | None,
        tensor_a: cute.Tensor,
        atom_b: cute.CopyAtom | None,
        tensor_b: cute.Tensor,
        atom_c: cute.CopyAtom | None,
        tensor_c: cute.Tensor,
        mma: cute.TiledMma,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        layout_c: cute.ComposedLayout | None,
        raster: Raster,
        k_tiles: Int32,
        map_a: GridConstant[TensorMap],
        map_b: GridConstant[TensorMap],
        readings: cute.Tensor | None,
        sums: cute.Tensor | None,
        flags: cute.Tensor | None,
    ) -> None:
        """The device side; see the class."""
        config, shares = self.config, self.footprint
        if cutlass.const_expr(config.pdl):
            cute.arch.griddepcontrol_launch_dependents()
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        place = Place(thread, cute.arch.lane_idx(), warp_index, *cute.arch.block_idx())
        k_first = 0
        if cutlass.const_expr(shares.parts_meet):
            place, k_first, k_tiles = self._part_of_k(place, k_tiles)

        if warp_index == 0:
            if cutlass.const_expr(atom_a is not None):
                cpasync.prefetch_descriptor(atom_a)
                cpasync.prefetch_descriptor(atom_b)
            if cutlass.const_expr(atom_c is not None):
                cpasync.prefetch_descriptor(atom_c)

        storage = SmemAllocator().allocate(self._shared(layout_a, layout_b, layout_c))
        shared_a = storage.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
        shared_b = storage.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
        ring = self._ring(storage.barriers.data_ptr())

        if thread == 0:
            ring.init()
        self._sync_cluster()
        if cutlass.const_expr(config.pdl):
            if cutlass.const_expr(config.prefetch > 0):
                if warp_index == 0:
                    loads = self._tma_loads(
                        ring, place, atom_a, shared_a, tensor_a, map_a, atom_b, shared_b, tensor_b, map_b
                    )
                    self._prefetch(loads, place, raster, k_first, k_tiles)
            cute.arch.griddepcontrol_wait()

        warpgroup_index = cute.arch.make_warp_uniform(thread // hopper.WARPGROUP_THREADS)
        registers = shares.registers

        if cutlass.const_expr(config.specialised):
            if warpgroup_index == 0:
                if cutlass.const_expr(registers.moved):
                    cute.arch.setmaxregister_decrease(registers.producer)
                if cutlass.const_expr(config.loads == "cp_async"):
                    loads = self._thread_loads(ring, place, storage, tensor_a, tensor_b)
                    self._copy(loads, place, raster, k_tiles)
                elif cutlass.const_expr(shares.parts_meet):
                    loads = self._tma_loads(
                        ring, place, atom_a, shared_a, tensor_a, map_a, atom_b, shared_b, tensor_b, map_b
                    )
                    self._load_parts(loads, place, raster, k_first, k_tiles, readings)
                elif warp_index == 0:
                    loads = self._tma_loads(
                        ring, place, atom_a, shared_a, tensor_a, map_a, atom_b, shared_b, tensor_b, map_b
                    )
                    if cutlass.const_expr(config.stream_k):
                        self._load_string(loads, place, raster, k_tiles)
                    else:
                        self._load(loads, place, raster, k_first, k_tiles, readings, flags)
            else:
                if cutlass.const_expr(registers.moved):
                    cute.arch.setmaxregister_increase(registers.consumer)
                consumer = warpgroup_index - 1
                inputs = mma, shared_a, shared_b
                outputs = storage.c, layout_c, atom_c, tensor_c
                workspace = sums, flags
                self._multiply(ring, place, consumer, inputs, outputs, raster, k_tiles, None, readings, workspace)
        else:
            loads = self._tma_loads(ring, place, atom_a, shared_a, tensor_a, map_a, atom_b, shared_b, tensor_b, map_b)
            inputs = mma, shared_a, shared_b
            outputs = storage.c, layout_c, atom_c, tensor_c
            self._multiply(ring, place, warpgroup_index, inputs, outputs, raster, k_tiles, loads, readings)

        if cutlass.const_expr(config.cluster_size > 1):
            # A peer may still multicast into this CTA's memory or arrive on its barriers.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    def _part_of_k(self, place: Place, k_tiles: Int32) -> tuple[Place, Int32, Int32]:
        """The place with cluster and part told apart, and the part's first stage and number of stages."""
        parts = self.config.split_k
        cluster, part = place.cluster // parts, place.cluster % parts
        return replace(place, cluster=cluster, part=part), *self._stretch(part, k_tiles)

    def _tma_loads(
        self,
        ring: Ring,
        place: Place,
        atom_a: cute.CopyAtom,
        shared_a: cute.Tensor,
        tensor_a: cute.Tensor,
        map_a: TensorMap | None,
        atom_b: cute.CopyAtom,
        shared_b: cute.Tensor,
        tensor_b: cute.Tensor,
        map_b: TensorMap | None,
    ) -> Loads:
        """Both operands' loads; CTAs of a row of the cluster share A, those of a column B."""
        rank_m, rank_n = place.rank_m, place.rank_n
        row, column = _mask_row(self.cluster, rank_m), _mask_column(self.cluster, rank_n)
        return Loads(
            ring,
            self.a.load(atom_a, shared_a, tensor_a, rank_n, row, map_a),
            self.b.load(atom_b, shared_b, tensor_b, rank_m, column, map_b),
        )

    def _thread_loads(
        self, ring: Ring, place: Place, storage, tensor_a: cute.Tensor, tensor_b: cute.Tensor
    ) -> ThreadLoads:
        config = self.config
        span = self.footprint.swizzle_bytes * 8 // self.dtype.width
        return ThreadLoads(
            ring,
            ThreadLoad.of(place.thread, tensor_a, storage.a.data_ptr(), config.tile_m, config.tile_k, span),
            ThreadLoad.of(place.thread, tensor_b, storage.b.data_ptr(), config.tile_n, config.tile_k, span),
        )

    def _ring(self, barriers: cute.Pointer) -> Ring:
        config, shares = self.config, self.footprint
        by_tma = config.loads == "tma"
        each = tuple(tile * config.tile_k * self.dtype.width // 8 for tile in (config.tile_m, config.tile_n))
        return Ring(
            barriers,
            config.stages,
            (0,) if not by_tma else each if config.full_barriers == 2 else (shares.stage_bytes,),
            1 if by_tma else hopper.WARPGROUP_WARPS,
            hopper.WARPGROUP_WARPS * shares.readers,
            config.arrivals == "thread",
            self.cluster,
        )

    # Set-up --------------------------------------------------------------------------------

    def _shared(
        self, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout, layout_c: cute.ComposedLayout | None
    ) -> type:
        """The shared memory of a CTA; where parts of a tile meet in the ring, its A and B lie side by side."""

        def buffer(layout: cute.ComposedLayout | None, dtype: type[cutlass.Numeric] = self.dtype):
            size = cute.cosize(layout) if layout is not None else 0
            return cute.struct.Align[cute.struct.MemRange[dtype, size], BUFFER_ALIGN]

        barriers = cute.struct.MemRange[Int64, (1 + self.config.full_barriers) * self.config.stages]
        buffer_c = buffer(layout_c, self.out_dtype)
        regions = {"A": buffer(layout_a), "B": buffer(layout_b), "C": buffer_c, "barriers": barriers}
        fields = {name.lower(): regions[name] for name in self.footprint.smem_map}
        return cute.struct(type("Shared", (), {"__annotations__": fields}))

    def _sync_cluster(self) -> None:
        if self.config.cluster_size > 1:
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()


class WorkspaceGemm(HopperGemm):
    """The same kernel with a workspace for sums that pass from cluster to cluster; see
    :mod:`hopper_gemm.kernel.stream_k` and :mod:`hopper_gemm.kernel.gathering`."""

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
        sums: cute.Tensor,
        flags: cute.Tensor,
    ) -> None:
        """Launch.

        ``sums`` is fp32, room for one tile in stream-K for each resident CTA, else for each part of each tile;
        ``flags`` is int32, one for each consumer of each resident CTA, else of each tile, and with pace a last one on
        which producers meet; zero before the first launch, and left as a launch leaves it.
        Clusters must all be resident at once. The rest is as without a workspace.
        """
        self._launch(a, b, c, clusters, along_m, swizzle, serpentine, stream, None, sums, flags)


class MeteredGemm(HopperGemm):
    """The same kernel with roles that count their waits; see :mod:`hopper_gemm.kernel.meter`."""

    metered = True

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
        readings: cute.Tensor,
    ) -> None:
        """Launch; ``readings`` is (CTAs, roles, fields) of 32 bits, the rest as without a meter."""
        self._launch(a, b, c, clusters, along_m, swizzle, serpentine, stream, readings)


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
