"""What each role of a CTA does, from tile to tile: producers that load, consumers that multiply and store."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import CopyUniversalOp, cpasync, warp, warpgroup

from hopper_gemm.kernel.epilogue import EVICT_FIRST, DirectEpilogue, Epilogue
from hopper_gemm.kernel.gathering import Gathering
from hopper_gemm.kernel.loads import Loads, ThreadLoads
from hopper_gemm.kernel.mainloop import Ahead, Copying, Share, Turn, copies_landed, copy_tile, load_tile, multiply_tile
from hopper_gemm.kernel.meter import Meter
from hopper_gemm.kernel.operand import BY_DEPTH, BY_ROWS, Kind, Operand, plain_layout, smem_layout
from hopper_gemm.kernel.pace import Pace
from hopper_gemm.kernel.pipeline import STATES, Ring
from hopper_gemm.kernel.reduction import Reduction, meet
from hopper_gemm.kernel.stream_k import String, Workspace
from hopper_gemm.kernel.tile_scheduler import Raster
from hopper_gemm.model import hopper
from hopper_gemm.model.footprint import Footprint

FIRST_TURN = 4
"""Id of the first consumer's named barrier in pingpong; the lower ones belong to the CTA and the epilogues."""

COPIES_UNDER_WAY = 3
"""Stages that cp.async keeps under way, at most: those not yet announced cannot be multiplied. Nor can there be more of
them than slots which the consumers do not hold back, or both wait for one another."""


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


class Roles:
    """The roles of one kernel, its parameters bound.

    Args:
        footprint: the resolved config with its derived figures; it must be legal.
        dtype: element type of A and B.
        layouts: the contiguous axis of A, then of B.
        out_dtype: element type of C: theirs or fp32.
    """

    metered = False
    """Whether the roles count their waits; see :class:`MeteredGemm`."""

    def __init__(
        self, footprint: Footprint, dtype: type[cutlass.Numeric], layouts: str, out_dtype: type[cutlass.Numeric]
    ) -> None:
        self.footprint = footprint
        self.config = config = footprint.config
        self.dtype = dtype
        self.out_dtype = out_dtype
        self.out_bytes = out_dtype.width // 8
        self.chunk_n = footprint.chunk_columns(self.out_bytes)
        self.box = footprint.box_rows(self.out_bytes), self.chunk_n
        self.cluster = (config.cluster_m, config.cluster_n)
        by_rows = [axis != "k" for axis in (reversed(layouts) if config.swap_ab else layouts)]
        depth, turns = (config.tile_k, config.stages), config.multicast == "alternate"
        self.a = Operand(dtype, config.tile_m, footprint.share_m, *depth, config.cluster_n, turns, by_rows[0])
        self.b = Operand(dtype, config.tile_n, footprint.share_n, *depth, config.cluster_m, turns, by_rows[1])

    @cute.jit
    def _load(
        self,
        loads: Loads,
        place: Place,
        raster: Raster,
        k_first: Int32 | int,
        k_tiles: Int32,
        readings: cute.Tensor | None,
        flags: cute.Tensor | None = None,
    ) -> None:
        """Producer by TMA. By one warp."""
        config = self.config
        state = STATES[config.ring_state].first(config.stages, phase=1)
        index = Int32(place.cluster)
        meter = Meter.start(self.metered)
        walked = self._walked()
        while index < raster.items:
            tile, _, first, count = self._item(index, k_first, k_tiles)
            tile_m, tile_n = self._tile(place, raster, tile)
            state, meter = load_tile(
                loads,
                state,
                tile_m,
                tile_n,
                first,
                count,
                config.peeks("producer"),
                self._unroll,
                meter,
                self._backwards(walked),
                self._pace(walked, raster, k_tiles, flags),
            )
            index = index + raster.clusters
            walked = self._walked(walked)
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
        lag = min(config.stages - 1 - config.stagger, COPIES_UNDER_WAY)
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
            workspace: sums and flags of stream-K or of parts of k, or None.
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
            epilogue = DirectEpilogue.of(
                place.thread % hopper.WARPGROUP_THREADS, tensor_c, shares.share_n, self.out_dtype
            )
        chunk_rows = shares.share_m // hopper.WGMMA_M
        chunk_columns = shares.share_n // self.chunk_n
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
        while index < raster.items:
            tile, part, _, count = self._item(index, 0, k_tiles)
            tile_m, tile_n = self._tile(place, raster, tile)
            ahead = None
            if cutlass.const_expr(loads is not None):
                stages_ahead = config.stages - 1 - config.stagger
                ahead = Ahead(loads, tile_m, tile_n, stages_ahead, place.warp == 0)
            turn = None
            if cutlass.const_expr(pingpong):
                own, other = FIRST_TURN + consumer, FIRST_TURN + 1 - consumer
                turn = Turn(own, other, index >= raster.clusters, index + raster.clusters < raster.tiles)
            state, meter = multiply_tile(
                ring,
                state,
                share,
                count,
                config.stagger,
                config.peeks("consumer"),
                self._unroll,
                ahead,
                turn,
                meter,
            )
            reduction = None
            accumulators = cute.size(share.accumulators)
            if cutlass.const_expr(config.work_items > 1):
                reduction = Gathering.of(
                    *workspace,
                    tile,
                    config.split_k,
                    part,
                    (rank_m + rank_n * config.cluster_m) * config.consumers + consumer,
                    config.cluster_size * config.consumers,
                    accumulators,
                    accumulators // (chunk_rows * chunk_columns),
                    place.thread % hopper.WARPGROUP_THREADS,
                    consumer + 1,
                )
                reduction.send(share.accumulators)
            elif cutlass.const_expr(shares.parts_meet):
                reduction = Reduction.of(
                    shared_a.iterator,
                    config.split_k,
                    place.part,
                    consumer,
                    place.thread % hopper.WARPGROUP_THREADS,
                    accumulators,
                    accumulators // (chunk_rows * chunk_columns),
                )
                meet()
                reduction.send(share.accumulators)
                meet()
            row = tile_m * (config.tile_m // hopper.WGMMA_M)
            column = tile_n * (config.tile_n // self.chunk_n)
            epilogue.store_tile(
                share.accumulators,
                chunk_rows,
                chunk_columns,
                row + consumer_m * chunk_rows,
                column + consumer_n * chunk_columns,
                reduction,
            )
            if cutlass.const_expr(shares.parts_meet):
                cute.arch.fence_proxy("async.shared", space="cta")
                meet()
            if cutlass.const_expr(pingpong):
                state = state.advance(k_tiles)
            index = index + stride
        epilogue.wait_reads(0)
        if cutlass.const_expr(self.metered):
            if (consumer == 0) & (place.thread % hopper.WARPGROUP_THREADS == 0):
                meter.write(readings, 1)

    def _tile(self, place: Place, raster: Raster, index: Int32) -> tuple[Int32, Int32]:
        """The tile (m, n) of the thread's CTA at a place of the order."""
        cluster_tile_m, cluster_tile_n = raster.tile(index)
        return (
            cluster_tile_m * self.config.cluster_m + place.rank_m,
            cluster_tile_n * self.config.cluster_n + place.rank_n,
        )

    def _item(
        self, index: Int32, k_first: Int32 | int, k_tiles: Int32
    ) -> tuple[Int32, Int32 | int, Int32 | int, Int32]:
        """What an item of work is: place of the cluster tile in the order, part of k, first stage, stages."""
        if self.config.work_items == 1:
            return index, 0, k_first, k_tiles
        parts = self.config.split_k
        part = index % parts
        return index // parts, part, *self._stretch(part, k_tiles)

    def _stretch(self, part: Int32, k_tiles: Int32) -> tuple[Int32, Int32]:
        """First stage and number of stages of a part of k; the first parts get one more where they differ."""
        parts = self.config.split_k
        each, over = k_tiles // parts, k_tiles % parts
        return part * each + cutlass.min(part, over), each + Int32(part < over)

    @cute.jit
    def _prefetch(self, loads: Loads, place: Place, raster: Raster, k_first: Int32 | int, k_tiles: Int32) -> None:
        """Ask the first stages that this CTA will load into the L2. By one warp."""
        index = Int32(place.cluster)
        tile, _, first, count = self._item(index, k_first, k_tiles)
        if cutlass.const_expr(self.config.stream_k):
            string = String.of(raster, k_tiles)
            tile, first, count = string.piece(index, string.start(index), string.start(index + 1))
        tile_m, tile_n = self._tile(place, raster, tile)
        with cute.arch.elect_one():  # the DSL does so for a copy, not for this
            for k_tile in cutlass.range(cutlass.min(self.config.prefetch, count), unroll=1):
                loads.prefetch(tile_m, tile_n, first + k_tile)

    @cute.jit
    def _load_string(self, loads: Loads, place: Place, raster: Raster, k_tiles: Int32) -> None:
        """Producer of stream-K. By one warp."""
        config = self.config
        string = String.of(raster, k_tiles)
        state = STATES[config.ring_state].first(config.stages, phase=1)
        index, at, end = Int32(place.cluster), string.start(place.cluster), string.start(place.cluster + 1)
        walked = self._walked()
        while string.more(index, at, end):
            tile, first, count = string.piece(index, at, end)
            at = cutlass.select_(index < string.whole, at, at + count)
            index = index + raster.clusters
            tile_m, tile_n = self._tile(place, raster, tile)
            peek = config.peeks("producer")
            meter, back = Meter.start(False), self._backwards(walked)
            state, _ = load_tile(loads, state, tile_m, tile_n, first, count, peek, self._unroll, meter, back)
            walked = self._walked(walked)

    # Parts of the producer -----------------------------------------------------------------

    def _walked(self, before: Int32 | int = -1) -> Int32 | int:
        """Tiles that a producer has behind it, where anything depends on their number: one more than before."""
        return Int32(before + 1) if self.config.reverse_k or self.config.pace else 0

    def _backwards(self, walked: Int32 | int) -> Int32 | None:
        """Whether the next tile is loaded from the end of k: every other one, or none."""
        return walked & 1 if self.config.reverse_k else None

    def _pace(self, walked: Int32 | int, raster: Raster, k_tiles: Int32, flags: cute.Tensor | None) -> Pace | None:
        """With whom the next tile is loaded in step, or None."""
        if self.config.pace == 0:
            return None
        return Pace.of(flags, self.config.pace, raster, self.config.cluster_size, k_tiles, walked)

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
        chunk_rows, chunk_columns = shares.share_m // hopper.WGMMA_M, shares.share_n // self.chunk_n
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
            tile_m, tile_n = self._tile(place, raster, tile)
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
                column = tile_n * (config.tile_n // self.chunk_n) + at_consumer[1] * chunk_columns
                epilogue.store_tile(share.accumulators, chunk_rows, chunk_columns, row, column)
        epilogue.wait_reads(0)

    # Parts of the consumer -----------------------------------------------------------------

    @property
    def _unroll(self) -> int:
        return self.config.stages if self.config.unroll else 1

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

    def _epilogue(
        self, atom: cute.CopyAtom, shared: cute.Tensor, target: cute.Tensor, consumer: Int32, thread: Int32
    ) -> Epilogue:
        """The store role of one consumer: its buffers, and a copy shaped like one chunk of wgmma's accumulators."""
        buffers = self.config.epi_buffers
        copy = self.copy_of_chunk()
        own = cute.logical_divide(shared, (None, None, buffers))[None, None, (None, consumer)]
        thread_copy = copy.get_slice(thread)
        values = cute.shape(thread_copy.partition_S(own))[:3]
        registers = thread_copy.partition_D(own)
        boxes, global_boxes = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.zipped_divide(own, self.box), cute.zipped_divide(target, self.box)
        )
        stores = thread // hopper.WARP_THREADS == 0
        parts = hopper.WGMMA_M // self.box[0]
        policy = EVICT_FIRST if self.config.evict_c else None
        return Epilogue(
            atom, copy, values, registers, boxes, global_boxes, parts, buffers, consumer + 1, stores, policy
        )

    def copy_of_chunk(self) -> cute.TiledCopy:
        """A warpgroup's accumulators to a chunk: by stmatrix, which moves 16-bit elements only; wider ones by plain
        stores, the two adjacent columns that a thread holds at once unless the chunk is transposed."""
        transposed = self.config.swap_ab
        if self.out_dtype.width > 16:
            bits = self.out_dtype.width * (1 if transposed else 2)
            atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=bits)
        else:
            matrices = 4 if self.chunk_n % 16 == 0 else 2
            op = warp.StMatrix8x8x16bOp(transpose=transposed, num_matrices=matrices)
            atom = cute.make_copy_atom(op, self.out_dtype)
        return cute.make_tiled_copy_C(atom, self._tiled_mma(self.chunk_n))

    def chunk_layout(self, buffers: int) -> cute.ComposedLayout:
        """Of chunk buffers in shared memory: (rows, columns, buffer). The boxes of a chunk lie one after the other."""
        shape = hopper.WGMMA_M, self.chunk_n, buffers
        if not self.footprint.chunk_swizzled:
            return plain_layout(*shape)
        return smem_layout(self.out_dtype, self._chunk_kind, shape, self.box[0] == hopper.WGMMA_M)

    def box_layout(self) -> cute.ComposedLayout:
        """Of one box of a chunk: (rows, columns)."""
        if not self.footprint.chunk_swizzled:
            return cute.slice_(plain_layout(*self.box), (None, None, 0))
        return smem_layout(self.out_dtype, self._chunk_kind, self.box)

    @property
    def _chunk_kind(self) -> Kind:
        return BY_ROWS[128] if self.config.swap_ab else BY_DEPTH[min(128, self.out_bytes * self.chunk_n)]
