"""The kernel: host-side set-up, launch, and who plays which role."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, GridConstant, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync, warp, warpgroup
from cutlass.experimental.cuda.tensor_map import TensorMap
from cutlass.memory import SmemAllocator

from hopper_gemm.kernel.epilogue import DirectEpilogue, Epilogue
from hopper_gemm.kernel.loads import Loads, ThreadLoad, ThreadLoads
from hopper_gemm.kernel.mainloop import Ahead, Copying, Share, Turn, copies_landed, copy_tile, load_tile, multiply_tile
from hopper_gemm.kernel.meter import Meter
from hopper_gemm.kernel.operand import BY_DEPTH, BY_ROWS, Operand, smem_layout
from hopper_gemm.kernel.pipeline import STATES, Ring
from hopper_gemm.kernel.reduction import Reduction, meet
from hopper_gemm.kernel.stream_k import String, Workspace
from hopper_gemm.kernel.tile_scheduler import Raster
from hopper_gemm.model import hopper
from hopper_gemm.model.footprint import Footprint

BUFFER_ALIGN = 1024

FIRST_TURN = 4
"""Id of the first consumer's named barrier in pingpong; the lower ones belong to the CTA and the epilogues."""

COPIES_UNDER_WAY = 3
"""Stages that cp.async keeps under way, at most; those not yet announced cannot be multiplied."""


@dataclass(frozen=True)
class Place:
    """Where a thread is.

    Args:
        thread: within its CTA.
        lane: within its warp.
        warp: of its CTA.
        rank_m, rank_n: of its CTA within the cluster.
        cluster: of the grid.
        part: of its CTA among those that divide k; 0 where they do not.
    """

    thread: Int32
    lane: Int32
    warp: Int32
    rank_m: Int32
    rank_n: Int32
    cluster: Int32
    part: Int32 | int = 0


class HopperGemm:
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
        named barrier 1+w   the 128 threads of consumer w, around its epilogue chunks
        named barrier 4+w   in pingpong, both consumers: one waits for its turn, the other gives it
        cluster barrier     all threads, after the barriers are initialised and before anyone leaves

    Every role walks the same sequence of output tiles. Ring state runs on across tiles.

    Args:
        footprint: the resolved config with its derived figures; it must be legal.
        dtype: element type of A, B and C.
        layouts: the contiguous axis of A, then of B.
    """

    metered = False
    """Whether the roles count their waits; see :class:`MeteredGemm`."""

    def __init__(self, footprint: Footprint, dtype: type[cutlass.Numeric], layouts: str = "kk") -> None:
        self.footprint = footprint
        self.config = config = footprint.config
        self.dtype = dtype
        self.cluster = (config.cluster_m, config.cluster_n)
        by_rows = [axis != "k" for axis in (reversed(layouts) if config.swap_ab else layouts)]
        depth = config.tile_k, config.stages
        self.a = Operand(dtype, config.tile_m, footprint.share_m, *depth, config.cluster_n, by_rows[0])
        self.b = Operand(dtype, config.tile_n, footprint.share_n, *depth, config.cluster_m, by_rows[1])

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
            chunk = (hopper.WGMMA_M, shares.chunk_n)
            kind = BY_ROWS[128] if config.swap_ab else BY_DEPTH[min(128, 2 * shares.chunk_n)]
            layout_c = smem_layout(self.dtype, kind, (*chunk, config.epi_buffers * config.consumers))
            store = cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(), c, smem_layout(self.dtype, kind, chunk), chunk
            )
            store_c, tensor_c = store.atom, store.tma_tensor
        threads_load = cutlass.const_expr(config.loads == "cp_async")
        mma = self._tiled_mma(shares.share_n)

        tiles_m = cute.ceil_div(cute.size(c, mode=[0]), config.tile_m * config.cluster_m)
        tiles_n = cute.ceil_div(cute.size(c, mode=[1]), config.tile_n * config.cluster_n)
        raster = Raster(tiles_m, tiles_n, along_m, swizzle, serpentine, clusters)
        k_tiles = cute.ceil_div(cute.size(a, mode=[1]), config.tile_k)

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
            grid=(config.cluster_m, config.cluster_n, raster.clusters * config.split_k),
            block=(shares.threads, 1, 1),
            cluster=(config.cluster_m, config.cluster_n, config.split_k),
            min_blocks_per_mp=1,
            stream=stream,
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
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        place = Place(thread, cute.arch.lane_idx(), warp_index, *cute.arch.block_idx())
        k_first = 0
        if cutlass.const_expr(config.split_k > 1):
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

        warpgroup_index = cute.arch.make_warp_uniform(thread // hopper.WARPGROUP_THREADS)
        registers = shares.registers

        if cutlass.const_expr(config.specialised):
            if warpgroup_index == 0:
                if cutlass.const_expr(registers.moved):
                    cute.arch.setmaxregister_decrease(registers.producer)
                if cutlass.const_expr(config.loads == "cp_async"):
                    loads = self._thread_loads(ring, place, storage, tensor_a, tensor_b)
                    self._copy(loads, place, raster, k_tiles)
                elif cutlass.const_expr(config.split_k > 1):
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
                        self._load(loads, place, raster, k_first, k_tiles, readings)
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
        each, over = k_tiles // parts, k_tiles % parts
        first = part * each + cutlass.min(part, over)
        return replace(place, cluster=cluster, part=part), first, each + Int32(part < over)

    # Roles ---------------------------------------------------------------------------------

    @cute.jit
    def _load(
        self,
        loads: Loads,
        place: Place,
        raster: Raster,
        k_first: Int32 | int,
        k_tiles: Int32,
        readings: cute.Tensor | None,
    ) -> None:
        """Producer by TMA. By one warp."""
        config = self.config
        state = STATES[config.ring_state].first(config.stages, phase=1)
        index = Int32(place.cluster)
        meter = Meter.start(self.metered)
        while index < raster.tiles:
            cluster_tile_m, cluster_tile_n = raster.tile(index)
            state, meter = load_tile(
                loads,
                state,
                cluster_tile_m * config.cluster_m + place.rank_m,
                cluster_tile_n * config.cluster_n + place.rank_n,
                k_first,
                k_tiles,
                config.peeks("producer"),
                self._unroll,
                meter,
            )
            index = index + raster.clusters
        if cutlass.const_expr(self.metered):
            if place.lane == 0:
                meter.write(readings, 0)

    @cute.jit
    def _load_parts(
        self, loads: Loads, place: Place, raster: Raster, k_first: Int32, k_tiles: Int32, readings: cute.Tensor | None
    ) -> None:
        """Producer of a cluster that divides k: all its warps meet the others three times a tile. By a warpgroup."""
        config = self.config
        state = STATES[config.ring_state].first(config.stages, phase=1)
        index = Int32(place.cluster)
        meter = Meter.start(self.metered)
        while index < raster.tiles:
            tile_m, tile_n = raster.tile(index)
            if place.warp == 0:
                state, meter = load_tile(
                    loads, state, tile_m, tile_n, k_first, k_tiles, config.peeks("producer"), self._unroll, meter
                )
            meet()
            meet()
            meet()
            index = index + raster.clusters
        if cutlass.const_expr(self.metered):
            if place.thread == 0:
                meter.write(readings, 0)

    @cute.jit
    def _copy(self, loads: ThreadLoads, place: Place, raster: Raster, k_tiles: Int32) -> None:
        """Producer by cp.async. By a warpgroup."""
        config = self.config
        lag = min(config.stages - 1, COPIES_UNDER_WAY)
        first = STATES[config.ring_state].first
        at = Copying(first(config.stages, phase=1), first(config.stages, phase=0), Int32(0))
        index = Int32(place.cluster)
        while index < raster.tiles:
            tile_m, tile_n = raster.tile(index)
            at = copy_tile(loads, at, tile_m, tile_n, k_tiles, lag, config.peeks("producer"))
            index = index + raster.clusters
        copies_landed(loads, at, lag)

    @cute.jit
    def _multiply(
        self,
        ring: Ring,
        place: Place,
        consumer: Int32,
        inputs: tuple[cute.TiledMma, cute.Tensor, cute.Tensor],
        outputs: tuple[cute.struct.MemRange, cute.ComposedLayout | None, cute.CopyAtom | None, cute.Tensor],
        raster: Raster,
        k_tiles: Int32,
        loads: Loads | None,
        readings: cute.Tensor | None,
        workspace: tuple[cute.Tensor | None, cute.Tensor | None] = (None, None),
    ) -> None:
        """Consumer, and its own loader where ``loads`` is given. By a warpgroup.

        Args:
            ring: of stages.
            place: of the thread.
            consumer: number of the warpgroup among the consumers.
            inputs: the wgmma, and the ring's memory for A and B.
            outputs: memory of the epilogue's chunks, its layout and the TMA store, which are None with direct stores;
                and C.
            raster: order of the tiles.
            k_tiles: stages of a tile.
            loads: what it loads by itself, or None.
            readings: where a metered kernel writes, or None.
            workspace: sums and flags of stream-K, or None.
        """
        config, shares = self.config, self.footprint
        mma, shared_a, shared_b = inputs
        storage_c, layout_c, atom_c, tensor_c = outputs
        rank_m, rank_n = place.rank_m, place.rank_n
        pingpong = config.schedule == "pingpong"
        consumer_m = consumer if cutlass.const_expr(config.split == "m" and not pingpong) else 0
        consumer_n = consumer if cutlass.const_expr(config.split == "n") else 0
        own_a = cute.logical_divide(shared_a, (shares.share_m, None, None))[(None, consumer_m), None, None]
        own_b = cute.logical_divide(shared_b, (shares.share_n, None, None))[(None, consumer_n), None, None]
        thread_mma = mma.get_slice(0)
        share = Share(
            mma,
            cute.make_rmem_tensor(thread_mma.partition_shape_C((shares.share_m, shares.share_n)), Float32),
            mma.make_fragment_A(thread_mma.partition_A(own_a)),
            mma.make_fragment_B(thread_mma.partition_B(own_b)),
            ring.release_target(place.lane, rank_m, rank_n),
            ring.arrives(place.lane),
        )
        if cutlass.const_expr(config.stores == "tma"):
            shared_c = storage_c.get_tensor(layout_c.outer, swizzle=layout_c.inner)
            epilogue = self._epilogue(atom_c, shared_c, tensor_c, consumer, place.thread % hopper.WARPGROUP_THREADS)
        else:
            epilogue = DirectEpilogue.of(place.thread % hopper.WARPGROUP_THREADS, tensor_c, shares.share_n, self.dtype)
        chunk_rows = shares.share_m // hopper.WGMMA_M
        chunk_columns = shares.share_n // shares.chunk_n
        if cutlass.const_expr(config.stream_k):
            at = consumer_m, consumer_n
            self._multiply_string(ring, place, consumer, at, share, epilogue, raster, k_tiles, *workspace)
            return
        state = STATES[config.ring_state].first(config.stages, phase=0)
        index = Int32(place.cluster)
        stride = raster.clusters
        meter = Meter.start(self.metered)
        if cutlass.const_expr(pingpong):
            state = state.advance(consumer * k_tiles)
            index = index + consumer * stride
            stride = stride * 2
        while index < raster.tiles:
            cluster_tile_m, cluster_tile_n = raster.tile(index)
            tile_m = cluster_tile_m * config.cluster_m + rank_m
            tile_n = cluster_tile_n * config.cluster_n + rank_n
            ahead = None
            if cutlass.const_expr(loads is not None):
                count = config.stages - 1 - config.stagger
                ahead = Ahead(loads, tile_m, tile_n, count, place.warp == 0)
            turn = None
            if cutlass.const_expr(pingpong):
                own, other = FIRST_TURN + consumer, FIRST_TURN + 1 - consumer
                turn = Turn(own, other, index >= raster.clusters, index + raster.clusters < raster.tiles)
            state, meter = multiply_tile(
                ring,
                state,
                share,
                k_tiles,
                config.stagger,
                config.peeks("consumer"),
                self._unroll,
                ahead,
                turn,
                meter,
            )
            reduction = None
            if cutlass.const_expr(config.split_k > 1):
                accumulators = cute.size(share.accumulators)
                reduction = Reduction.of(
                    shared_a.iterator,
                    config.split_k,
                    place.part,
                    consumer,
                    place.thread % hopper.WARPGROUP_THREADS,
                    accumulators,
                    accumulators // shares.chunks,
                )
                meet()
                reduction.send(share.accumulators)
                meet()
            row = tile_m * (config.tile_m // hopper.WGMMA_M)
            column = tile_n * (config.tile_n // shares.chunk_n)
            epilogue.store_tile(
                share.accumulators,
                chunk_rows,
                chunk_columns,
                row + consumer_m * chunk_rows,
                column + consumer_n * chunk_columns,
                reduction,
            )
            if cutlass.const_expr(config.split_k > 1):
                cute.arch.fence_proxy("async.shared", space="cta")
                meet()
            if cutlass.const_expr(pingpong):
                state = state.advance(k_tiles)
            index = index + stride
        epilogue.wait_reads(0)
        if cutlass.const_expr(self.metered):
            if (consumer == 0) & (place.thread % hopper.WARPGROUP_THREADS == 0):
                meter.write(readings, 1)

    @cute.jit
    def _load_string(self, loads: Loads, place: Place, raster: Raster, k_tiles: Int32) -> None:
        """Producer of stream-K. By one warp."""
        config = self.config
        string = String.of(raster, k_tiles)
        state = STATES[config.ring_state].first(config.stages, phase=1)
        index, at, end = Int32(place.cluster), string.start(place.cluster), string.start(place.cluster + 1)
        while string.more(index, at, end):
            tile, first, count = string.piece(index, at, end)
            at = cutlass.select_(index < string.whole, at, at + count)
            index = index + raster.clusters
            cluster_tile_m, cluster_tile_n = raster.tile(tile)
            tile_m = cluster_tile_m * config.cluster_m + place.rank_m
            tile_n = cluster_tile_n * config.cluster_n + place.rank_n
            peek = config.peeks("producer")
            state, _ = load_tile(loads, state, tile_m, tile_n, first, count, peek, self._unroll, Meter.start(False))

    @cute.jit
    def _multiply_string(
        self,
        ring: Ring,
        place: Place,
        consumer: Int32,
        at_consumer: tuple[Int32 | int, Int32 | int],
        share: Share,
        epilogue: Epilogue | DirectEpilogue,
        raster: Raster,
        k_tiles: Int32,
        sums: cute.Tensor,
        flags: cute.Tensor,
    ) -> None:
        """Consumer of stream-K. By a warpgroup."""
        config, shares = self.config, self.footprint
        chunk_rows, chunk_columns = shares.share_m // hopper.WGMMA_M, shares.share_n // shares.chunk_n
        flat = cute.make_tensor(share.accumulators.iterator, cute.make_layout(cute.size(share.accumulators)))
        cta = place.rank_m + place.rank_n * config.cluster_m
        workspace = Workspace.of(
            sums,
            flags,
            cute.size(share.accumulators),
            cta * config.consumers + consumer,
            config.cluster_size * config.consumers,
            place.thread % hopper.WARPGROUP_THREADS,
            consumer + 1,
        )
        string = String.of(raster, k_tiles)
        state = STATES[config.ring_state].first(config.stages, phase=0)
        index, at, end = Int32(place.cluster), string.start(place.cluster), string.start(place.cluster + 1)
        while string.more(index, at, end):
            tile, first, count = string.piece(index, at, end)
            at = cutlass.select_(index < string.whole, at, at + count)
            index = index + raster.clusters
            cluster_tile_m, cluster_tile_n = raster.tile(tile)
            tile_m = cluster_tile_m * config.cluster_m + place.rank_m
            tile_n = cluster_tile_n * config.cluster_n + place.rank_n
            peek = config.peeks("consumer")
            state, _ = multiply_tile(
                ring, state, share, count, config.stagger, peek, self._unroll, None, None, Meter.start(False)
            )
            if first > 0:
                workspace.leave(place.cluster, flat)
            else:
                other, added = place.cluster + 1, count
                while added < k_tiles:
                    workspace.add(other, flat)
                    added = added + cutlass.min(string.start(other + 1) - string.start(other), k_tiles - added)
                    other = other + 1
                row = tile_m * (config.tile_m // hopper.WGMMA_M) + at_consumer[0] * chunk_rows
                column = tile_n * (config.tile_n // shares.chunk_n) + at_consumer[1] * chunk_columns
                epilogue.store_tile(share.accumulators, chunk_rows, chunk_columns, row, column)
        epilogue.wait_reads(0)

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

    @property
    def _unroll(self) -> int:
        return self.config.stages if self.config.unroll else 1

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

        def buffer(layout: cute.ComposedLayout | None):
            size = cute.cosize(layout) if layout is not None else 0
            return cute.struct.Align[cute.struct.MemRange[self.dtype, size], BUFFER_ALIGN]

        barriers = cute.struct.MemRange[Int64, (1 + self.config.full_barriers) * self.config.stages]
        regions = {"A": buffer(layout_a), "B": buffer(layout_b), "C": buffer(layout_c), "barriers": barriers}
        fields = {name.lower(): regions[name] for name in self.footprint.smem_map}
        return cute.struct(type("Shared", (), {"__annotations__": fields}))

    def _tiled_mma(self, n: int) -> cute.TiledMma:
        op = warpgroup.MmaF16BF16Op(
            self.dtype,
            Float32,
            (hopper.WGMMA_M, n, hopper.WGMMA_K),
            warpgroup.OperandSource.SMEM,
            self.a.major,
            self.b.major,
        )
        return cute.make_tiled_mma(op)

    def _sync_cluster(self) -> None:
        if self.config.cluster_size > 1:
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def _epilogue(
        self, atom: cute.CopyAtom, shared: cute.Tensor, target: cute.Tensor, consumer: Int32, thread: Int32
    ) -> Epilogue:
        """The store role of one consumer: its buffers, and a copy shaped like one chunk of wgmma's accumulators."""
        shares = self.footprint
        buffers = self.config.epi_buffers
        matrices = 4 if shares.chunk_n % 16 == 0 else 2
        transpose = self.config.swap_ab
        copy = cute.make_tiled_copy_C(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=transpose, num_matrices=matrices), self.dtype),
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


class StreamKGemm(HopperGemm):
    """The same kernel with a workspace for sums that pass from cluster to cluster; see
    :mod:`hopper_gemm.kernel.stream_k`."""

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

        ``sums`` is fp32, (resident CTAs x tile_m x tile_n); ``flags`` is int32, (resident CTAs x consumers), zero
        before and after. Clusters must all be resident at once. The rest is as without stream-K.
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
