"""The kernel: from the launch to the last store, as the story of one tile.

In reading order:

    __call__            host: tensor maps, grid, launch
    kernel              every CTA: shared memory, set-up, then one role a warpgroup
    _set_up             barriers of the ring, the cluster meets
    _produce, _fill     the producer: item after item, stage after stage
    _consume            a consumer: wait, multiply, release, item after item
    _store              the tile leaves: reduction of split-K parts, epilogue
    _tile, _walk        which item is next, and where it lies

The methods behind these build what the roles use: each a few lines, read when its name comes up. The loops themselves
are in :mod:`hopper_gemm.kernel.producer` and :func:`hopper_gemm.kernel.consumer.multiply_tile`, the barriers in
:mod:`hopper_gemm.kernel.pipeline`.
"""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.experimental.cuda.tensor_map import TensorMap
from cutlass.memory import SmemAllocator

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.consumer import Share, Turn, multiply_tile, release_held
from hopper_gemm.kernel.epilogue import Chunks, Epilogue
from hopper_gemm.kernel.ladder.cp_async import COPIES_UNDER_WAY, CopyFill, ThreadLoad, ThreadLoads
from hopper_gemm.kernel.ladder.direct_store import DirectEpilogue
from hopper_gemm.kernel.ladder.library_ring import LibraryRing, LibraryState
from hopper_gemm.kernel.ladder.multistage import Ahead
from hopper_gemm.kernel.ladder.packed_state import PackedState
from hopper_gemm.kernel.meter import Meter, Trace
from hopper_gemm.kernel.operand import Loads, Operand
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.kernel.producer import Fill, Pace
from hopper_gemm.kernel.reduction import ClusterSum, StreamSum, WorkspaceSum, meet
from hopper_gemm.kernel.work import NO_MORE, SLOTS, Counter, Handed, Item, Raster, StreamWalk, Walk, stretch
from hopper_gemm.kernel.workspace import PACE_WORD, WORK_WORD, Workspace
from hopper_gemm.model import hopper
from hopper_gemm.model.footprint import Footprint

STATES = {"index_phase": RingState, "packed": PackedState}
"""Ways to keep a place in our own ring, by the name of the config's ``ring_state``."""

BUFFER_ALIGN = 1024

ALL_SHARED = 100
"""Per cent of the memory that an SM divides between L1 and shared."""

SET_UP, FIRST_TURN = 0, 4
"""Ids of named barriers: the one that says that the ring's barriers are initialised, and that of the first consumer's
turn in pingpong. Those in between belong to the consumers' epilogues."""


@dataclass(frozen=True)
class Operands(Bundle):
    """The operands: for each its TMA load, the tensor as that sees it, and a descriptor with another L2
    promotion, or None. With loads by cp.async there is no TMA load, and the tensors are plain."""

    atom_a: cute.CopyAtom | None
    a: cute.Tensor
    map_a: TensorMap | None
    atom_b: cute.CopyAtom | None
    b: cute.Tensor
    map_b: TensorMap | None


@dataclass(frozen=True)
class Output(Bundle):
    """The output: C as the TMA store sees it; with direct stores there is no such store, and C is plain."""

    atom: cute.CopyAtom | None
    c: cute.Tensor


@dataclass(frozen=True)
class Place:
    """Where a thread is.

    Args:
        thread: within its CTA.
        lane: within its warp.
        warp: of its CTA.
        warpgroup: of its CTA.
        rank_m, rank_n: of its CTA within the cluster.
        cluster: of the grid.
        part: of its CTA among those that divide k; 0 where they do not.
    """

    thread: Int32
    lane: Int32
    warp: Int32
    warpgroup: Int32
    rank_m: Int32 | int
    rank_n: Int32 | int
    cluster: Int32
    part: Int32 | int

    @staticmethod
    def here(cluster_m: int, cluster_n: int, parts: int) -> Place:
        """The place of this thread in a cluster of so many CTAs along m, along n, and along k."""
        thread, _, _ = cute.arch.thread_idx()
        x, rank_n, part = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = cute.arch.make_warp_uniform(thread // hopper.WARPGROUP_THREADS)
        return Place(
            thread,
            cute.arch.lane_idx(),
            warp,
            group,
            x % cluster_m if cluster_m > 1 else 0,
            rank_n if cluster_n > 1 else 0,
            x // cluster_m if cluster_m > 1 else x,
            part if parts > 1 else 0,
        )

    @property
    def in_group(self) -> Int32:
        """Thread within its warpgroup."""
        return self.thread % hopper.WARPGROUP_THREADS


@dataclass(frozen=True)
class Task:
    """What a CTA works on, the same for all of its roles.

    Args:
        place: of the thread.
        ring: of stages.
        raster: order of the tiles.
        k_first, k_tiles: stages of every tile that this CTA multiplies.
        workspace: of the launch, or None.
        readings: where a metered kernel writes, or None.
    """

    place: Place
    ring: Ring
    raster: Raster
    k_first: Int32 | int
    k_tiles: Int32
    workspace: Workspace | None
    readings: cute.Tensor | None


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
        named barrier 0     the producer's first warp, which initialises the barriers and goes on; consumers wait
        named barrier 1+w   the 128 threads of consumer w, around its epilogue chunks and the parts that it adds up
        named barrier 4+w   in pingpong, both consumers: one waits for its turn, the other gives it
        cluster barrier     all threads, once the barriers are initialised; where a cluster divides k thrice a tile
        mailbox             dynamic scheduler: the producers of a cluster (:class:`hopper_gemm.kernel.work.Counter`)

    Every role walks the same sequence of items. Ring state runs on across items. The producer leaves last: it waits
    until every slot has come back, so that no peer arrives on barriers of a CTA that is gone.

    Args:
        footprint: the resolved config with its derived figures; it must be legal.
        dtype: element type of A and B.
        layouts: the contiguous axis of A, then of B.
        out_dtype: element type of C: theirs or fp32.
        metered: whether the roles count their waits; see :mod:`hopper_gemm.kernel.meter`.
        traced: whether the first CTA notes when it did what.
    """

    def __init__(
        self,
        footprint: Footprint,
        dtype: type[cutlass.Numeric],
        layouts: str,
        out_dtype: type[cutlass.Numeric],
        metered: bool = False,
        traced: bool = False,
    ) -> None:
        self.footprint, self.config = footprint, footprint.config
        self.metered, self.traced = metered, traced
        self.dtype, self.out_dtype = dtype, out_dtype
        config = footprint.config
        self.chunks = Chunks(footprint, out_dtype)
        self.cluster = (config.cluster_m, config.cluster_n)
        self.parts = config.split_k if footprint.parts_meet else 1
        by_rows = [axis != "k" for axis in (reversed(layouts) if config.swap_ab else layouts)]
        depth, alternate = (config.tile_k, config.stages), config.multicast == "alternate"
        self.a = Operand(dtype, config.tile_m, footprint.share_m, *depth, config.cluster_n, alternate, by_rows[0])
        self.b = Operand(dtype, config.tile_n, footprint.share_n, *depth, config.cluster_m, alternate, by_rows[1])

    # Launch ----------------------------------------------------------------------------------

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
        sums: cute.Tensor | None,
        words: cute.Tensor | None,
        readings: cute.Tensor | None,
    ) -> None:
        """Launch.

        Args:
            a: (m, k), contiguous along one of them.
            b: (n, k), the transpose of the right operand, contiguous along one of them.
            c: (m, n), n contiguous.
            clusters: the most clusters that can be resident at once, or any larger number for one cluster a tile.
            along_m: 1 to raster along m, 0 along n.
            swizzle: raster group.
            serpentine: 1 to walk every other group in reverse.
            stream: where to launch.
            sums, words: a workspace, fp32 and int32; see :mod:`hopper_gemm.kernel.workspace`. None without one.
            readings: (CTAs, roles, fields) of 32 bits, where a metered kernel writes; None without a meter.
        """
        config, shares = self.config, self.footprint
        if cutlass.const_expr(config.swap_ab):
            a, b = b, a
            c = cute.make_tensor(c.iterator, cute.select(c.layout, mode=[1, 0]))
        if cutlass.const_expr(config.loads == "tma"):
            load_a, load_b = self.a.load_atom(a), self.b.load_atom(b)
            map_a, map_b = (one.descriptor(x, config.l2_promotion) for one, x in ((self.a, a), (self.b, b)))
            operands = Operands(load_a.atom, load_a.tma_tensor, map_a, load_b.atom, load_b.tma_tensor, map_b)
        elif cutlass.const_expr(config.loads == "mixed"):
            load_a = self.a.load_atom(a)
            map_a = self.a.descriptor(a, config.l2_promotion)
            operands = Operands(load_a.atom, load_a.tma_tensor, map_a, None, b, None)
        else:
            operands = Operands(None, a, None, None, b, None)
        output = Output(None, c)
        if cutlass.const_expr(config.stores == "tma"):
            store = self.chunks.store_atom(c)
            output = Output(store.atom, store.tma_tensor)

        tiles_m = cute.ceil_div(cute.size(c, mode=[0]), config.tile_m * config.cluster_m)
        tiles_n = cute.ceil_div(cute.size(c, mode=[1]), config.tile_n * config.cluster_n)
        order = along_m, swizzle, serpentine
        parts = config.work_items, config.stream_k, config.interleave_k, config.part_order == "part"
        raster = Raster.of(tiles_m, tiles_n, *order, clusters, *parts)
        k_tiles = cute.ceil_div(cute.size(a, mode=[1]), config.tile_k)
        workspace = Workspace(sums, words) if cutlass.const_expr(config.has_workspace) else None
        self.kernel(operands, output, raster, k_tiles, workspace, readings).launch(
            grid=(config.cluster_m * raster.clusters, config.cluster_n, self.parts),
            block=(shares.threads, 1, 1),
            # a launch with the attribute costs 0.4 to 1 us more, also where the cluster is one CTA
            cluster=(config.cluster_m, config.cluster_n, self.parts) if config.cluster_size > 1 else None,
            min_blocks_per_mp=config.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED if config.ctas_per_sm > 1 else None,
            stream=stream,
            use_pdl=config.pdl,
        )

    # The device side -------------------------------------------------------------------------

    @cute.kernel
    def kernel(
        self,
        operands: Operands,
        output: Output,
        raster: Raster,
        k_tiles: Int32,
        workspace: Workspace | None,
        readings: cute.Tensor | None,
    ) -> None:
        """Set up, then play the warpgroup's role; see the class."""
        config, registers = self.config, self.footprint.registers
        entry = cute.arch.clock() if cutlass.const_expr(self.traced) else None
        if cutlass.const_expr(config.pdl):
            cute.arch.griddepcontrol_launch_dependents()
        place = Place.here(*self.cluster, self.parts)
        layout_a, layout_b = self.a.layout(), self.b.layout()
        layout_c = None
        if cutlass.const_expr(config.stores == "tma" and config.staging == "own"):
            layout_c = self.chunks.layout(config.epi_buffers * config.consumers)
        storage = SmemAllocator().allocate(self._shared(layout_a, layout_b, layout_c))
        shared_a = storage.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
        shared_b = storage.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
        ring = self._ring(storage)
        k_first = 0
        if cutlass.const_expr(self.parts > 1):
            k_first, k_tiles = stretch(place.part, self.parts, k_tiles, config.interleave_k)
        task = Task(place, ring, raster, k_first, k_tiles, workspace, readings)

        if cutlass.const_expr(config.prefetch > 0):
            if place.warp == 1:
                self._prefetch(task, self._tma_loads(task, operands, shared_a, shared_b))
        if place.warp == 0:
            for atom in (operands.atom_a, operands.atom_b, output.atom):
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                ring.init()
                if cutlass.const_expr(self._has_mailbox):
                    Counter.init(storage.mailbox.data_ptr(), config.cluster_size)
            cute.arch.sync_warp()
        self._set_up(place)
        if cutlass.const_expr(self.traced):
            self._trace(task, place.warpgroup).mark("entry", entry)

        if cutlass.const_expr(config.specialised):
            if place.warpgroup == 0:
                if cutlass.const_expr(registers.moved):
                    cute.arch.setmaxregister_decrease(registers.producer)
                self._produce(task, operands, storage, shared_a, shared_b)
            else:
                if cutlass.const_expr(registers.moved):
                    cute.arch.setmaxregister_increase(registers.consumer)
                self._consume(task, place.warpgroup - 1, shared_a, shared_b, storage, layout_c, output, None)
        else:
            loads = self._tma_loads(task, operands, shared_a, shared_b)
            self._consume(task, place.warpgroup, shared_a, shared_b, storage, layout_c, output, loads)
            if cutlass.const_expr(config.cluster_size > 1):
                meet()

    @cute.jit
    def _set_up(self, place: Place) -> None:
        """Let nobody use a barrier before it is initialised. Alone in its cluster, the producer need not wait for
        anyone: it initialised them itself."""
        config, shares = self.config, self.footprint
        if cutlass.const_expr(config.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        elif cutlass.const_expr(config.specialised and config.loads == "tma"):
            threads = shares.threads - hopper.WARPGROUP_THREADS + hopper.WARP_THREADS
            if place.warp == 0:
                cute.arch.barrier_arrive(barrier_id=SET_UP, number_of_threads=threads)
            elif place.warpgroup > 0:
                cute.arch.barrier(barrier_id=SET_UP, number_of_threads=threads)
        else:
            cute.arch.sync_threads()

    # The producer ----------------------------------------------------------------------------

    @cute.jit
    def _produce(self, task: Task, operands: Operands, storage, shared_a: cute.Tensor, shared_b: cute.Tensor) -> None:
        """Load every item of this CTA. By a warpgroup: one warp issues TMA, and the others arrive at the cluster's
        barriers where it adds up split-K parts."""
        config, place = self.config, task.place
        state = self._state(phase=1)
        if cutlass.const_expr(config.loads != "tma"):
            self._await_launch()
            self._fill(task, self._copy_fill(task, operands, storage, shared_a), state, self._walk(task, storage))
        elif place.warp == 0:
            loads = self._tma_loads(task, operands, shared_a, shared_b)
            self._await_launch()
            pace = None
            if cutlass.const_expr(config.pace > 0):
                word = task.workspace.word(PACE_WORD)
                pace = Pace.of(word, config.pace, task.raster, config.cluster_size, task.k_tiles)
            peek, tagged = config.peeks("producer"), config.scheduler == "dynamic"
            trace = self._trace(task, 0) if cutlass.const_expr(self.traced) else None
            clusters = task.raster.clusters
            stride = config.split_k if config.interleave_k else 1
            steps = config.reverse_k, stride, config.rotate_k
            fill = Fill(loads, peek, self._unroll, *steps, pace, self.metered, tagged, clusters, trace)
            self._fill(task, fill, state, self._walk(task, storage))
        elif cutlass.const_expr(self.parts > 1):
            self._await_launch()
            walk = self._walk(task, storage)
            at = walk.start(state)
            while walk.more(at):
                meet()
                meet()
                meet()
                at = walk.next(at, state)

    @cute.jit
    def _fill(self, task: Task, fill: Fill | CopyFill, state: RingState, walk: Walk | StreamWalk | Counter) -> None:
        self._note(task, 0, "set_up")
        at, filling = walk.start(state), fill.start(state)
        while walk.more(at):
            item = walk.item(at)
            number = at.index if cutlass.const_expr(self.config.scheduler == "dynamic") else None
            at = walk.ask(at)
            tile_m, tile_n = self._tile(task, item)
            filling = fill.tile(filling, tile_m, tile_n, item, number)
            if cutlass.const_expr(self.parts > 1):
                meet()
                meet()
                meet()
            at = walk.next(at, filling.state)
        if cutlass.const_expr(self.config.scheduler == "dynamic"):
            fill.end(filling, Int32(NO_MORE), self.config.cluster_size > 1)
            walk.leave(at)
        else:
            fill.end(filling, None, self.config.cluster_size > 1)
        if cutlass.const_expr(self.metered):
            if task.place.lane == 0:
                filling.meter.write(task.readings, 0)
        self._note(task, 0, "left")

    def _await_launch(self) -> None:
        """Where the launch may be ahead of the one before it, wait for that."""
        if self.config.pdl:
            cute.arch.griddepcontrol_wait()

    @cute.jit
    def _prefetch(self, task: Task, loads: Loads) -> None:
        """Ask the first stages that this CTA will load into the L2, before anything else is done. By one warp.

        It does not pay: 1 to 1.8 us were lost on launches of 5 to 50 us, since the same rows pass through the TMA unit
        twice, the prefetched ones ahead of those that are waited for.
        """
        walk = self._static_walk(task)
        item = walk.item(walk.start(self._state(phase=1)))
        tile_m, tile_n = self._tile(task, item)
        with cute.arch.elect_one():  # the DSL does so for a copy, not for this
            for k_tile in cutlass.range(cutlass.min(self.config.prefetch, item.k_count), unroll=1):
                loads.prefetch(tile_m, tile_n, item.k_first + k_tile)

    # The consumers ---------------------------------------------------------------------------

    @cute.jit
    def _consume(
        self,
        task: Task,
        consumer: Int32,
        shared_a: cute.Tensor,
        shared_b: cute.Tensor,
        storage,
        layout_c: cute.ComposedLayout | None,
        output: Output,
        loads: Loads | None,
    ) -> None:
        """Multiply and store every item of this consumer; load them too where there is no producer. By a warpgroup."""
        config, shares, place, ring = self.config, self.footprint, task.place, task.ring
        pingpong = config.schedule == "pingpong"
        consumer_m = consumer if cutlass.const_expr(config.split == "m" and not pingpong) else 0
        consumer_n = consumer if cutlass.const_expr(config.split == "n") else 0
        own_a, own_b = self._own(shared_a, shared_b, consumer_m, consumer_n)
        share = self._share(task, own_a, own_b)
        own = own_a if cutlass.const_expr(config.split == "m") else own_b
        epilogue = self._epilogue(task, consumer, storage, layout_c, output, own)
        held = shares.held_slots(self.out_dtype.width // 8)
        rows, columns = shares.share_m // hopper.WGMMA_M, shares.share_n // self.chunks.n
        self._await_launch()

        state = self._state(phase=0)
        if cutlass.const_expr(config.scheduler == "dynamic"):
            walk = Handed(task.raster, task.k_first, task.k_tiles, ring)
        else:
            walk = self._static_walk(task, consumer if pingpong else None)
        if cutlass.const_expr(pingpong):
            state = state.advance(consumer * task.k_tiles)
        meter = Meter.start(self.metered)
        self._note(task, consumer + 1, "set_up")
        trace = self._trace(task, consumer + 1) if cutlass.const_expr(self.traced) else None
        at = walk.start(state)
        if cutlass.const_expr(config.skew > 0):
            # only for a stage of the first item: a CTA may have no other, or, handed out dynamically, none at all
            if walk.more(at):
                if consumer * config.skew < walk.item(at).k_count:
                    ring.wait(consumer * config.skew, Int32(0))
        while walk.more(at):
            item = walk.item(at)
            tile_m, tile_n = self._tile(task, item)
            self._note(task, consumer + 1, "first")
            ahead = None
            if cutlass.const_expr(loads is not None):
                stages_ahead = config.stages - 1 - config.stagger
                ahead = Ahead(loads, tile_m, tile_n, stages_ahead, place.warp == 0)
            turn = None
            if cutlass.const_expr(pingpong):
                mine, other = FIRST_TURN + consumer, FIRST_TURN + 1 - consumer
                clusters = task.raster.clusters
                turn = Turn(mine, other, at >= clusters, at + clusters < task.raster.tiles)
            state, meter = multiply_tile(
                ring,
                state,
                share,
                item.k_count,
                config.stagger,
                config.peeks("consumer"),
                self._unroll,
                ahead,
                turn,
                meter,
                trace,
                held,
            )
            self._note(task, consumer + 1, "fed")
            row = tile_m * (config.tile_m // hopper.WGMMA_M) + consumer_m * rows
            column = tile_n * (config.tile_n // self.chunks.n) + consumer_n * columns
            if cutlass.const_expr(held > 0):
                first = state.behind(held).index
                epilogue.store_tile(share.accumulators, rows, columns, row, column, None, first)
                release_held(ring, share, first, held)
            else:
                self._store(task, item, consumer, share, shared_a, epilogue, (rows, columns), (row, column))
            self._note(task, consumer + 1, "stored")
            if cutlass.const_expr(pingpong):
                state = state.advance(task.k_tiles)
            at = walk.next(at, state)
        if cutlass.const_expr(config.scheduler == "dynamic"):
            share.release(ring, state.index, None)
        epilogue.wait_reads(0)
        self._note(task, consumer + 1, "left")
        if cutlass.const_expr(self.metered):
            if (consumer == 0) & (place.in_group == 0):
                meter.write(task.readings, 1)

    @cute.jit
    def _store(
        self,
        task: Task,
        item: Item,
        consumer: Int32,
        share: Share,
        shared_a: cute.Tensor,
        epilogue: Epilogue | DirectEpilogue,
        chunks: tuple[int, int],
        at: tuple[Int32, Int32],
    ) -> None:
        """Add up what other CTAs computed of the tile, if they did, and store it, if that falls to this one."""
        config, place = self.config, task.place
        accumulators = cute.make_tensor(share.accumulators.iterator, cute.make_layout(cute.size(share.accumulators)))
        size = cute.size(accumulators)
        chunk = size // (chunks[0] * chunks[1])
        number = (place.rank_m + place.rank_n * config.cluster_m) * config.consumers + consumer
        numbers = config.cluster_m * config.cluster_n * config.consumers
        meeting = number, numbers
        if cutlass.const_expr(config.stream_k):
            walk = self._static_walk(task)
            pieces = StreamSum.of(task.workspace, walk, size, *meeting, place.in_group, consumer + 1)
            if pieces.settle(accumulators, item):
                epilogue.store_tile(accumulators, *chunks, *at)
        elif cutlass.const_expr(config.work_items > 1):
            parts = config.split_k
            total = WorkspaceSum.of(task.workspace, item, parts, *meeting, size, chunk, place.in_group, consumer + 1)
            if total.send(accumulators):
                epilogue.store_tile(accumulators, *chunks, *at, total)
            elif total.finish_alone(accumulators):
                epilogue.store_tile(accumulators, *chunks, *at)
        elif cutlass.const_expr(self.parts > 1):
            thread, part = place.in_group, place.part
            total = ClusterSum.of(shared_a.iterator, self.parts, part, consumer, thread, size, chunk)
            total.send(accumulators)
            epilogue.store_tile(accumulators, *chunks, *at, total)
            total.leave()
        else:
            epilogue.store_tile(accumulators, *chunks, *at)

    # What the roles share --------------------------------------------------------------------

    def _tile(self, task: Task, item: Item) -> tuple[Int32, Int32]:
        """The output tile (m, n) of the thread's CTA in an item."""
        cluster_tile_m, cluster_tile_n = task.raster.tile(item.tile)
        return (
            cluster_tile_m * self.config.cluster_m + task.place.rank_m,
            cluster_tile_n * self.config.cluster_n + task.place.rank_n,
        )

    def _walk(self, task: Task, storage) -> Walk | StreamWalk | Counter:
        """The producer's walk over items."""
        config, place = self.config, task.place
        if config.scheduler == "static":
            return self._static_walk(task)
        rank = place.rank_m + place.rank_n * config.cluster_m
        mailbox = storage.mailbox.data_ptr() if self._has_mailbox else None
        word = task.workspace.word(WORK_WORD)
        return Counter(task.raster, task.k_first, task.k_tiles, word, place.lane, rank, config.cluster_size, mailbox)

    def _static_walk(self, task: Task, consumer: Int32 | None = None) -> Walk | StreamWalk:
        """The walk that every role works out by itself; of a consumer in pingpong every other item."""
        raster, cluster = task.raster, task.place.cluster
        if self.config.stream_k:
            return StreamWalk.of(raster, task.k_tiles, cluster)
        first, stride = cluster, raster.clusters
        if consumer is not None:
            first, stride = cluster + consumer * stride, stride * 2
        return Walk(raster, task.k_first, task.k_tiles, first, stride)

    def _trace(self, task: Task, role: Int32 | int) -> Trace:
        """Where a role of a traced kernel notes moments: one thread of the first CTA."""
        place = task.place
        first = (place.cluster == 0) & (place.rank_m == 0) & (place.rank_n == 0)
        return Trace(task.readings, role, Boolean(first & (place.in_group == 0)))

    def _note(self, task: Task, role: Int32 | int, moment: str) -> None:
        if self.traced:
            self._trace(task, role).mark(moment)

    @property
    def _has_mailbox(self) -> bool:
        return self.config.scheduler == "dynamic" and self.config.cluster_size > 1

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

    def _own(
        self, shared_a: cute.Tensor, shared_b: cute.Tensor, consumer_m: Int32 | int, consumer_n: Int32 | int
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """The rows of both operands that one consumer reads, (rows, depth, stage)."""
        shares = self.footprint
        own_a = cute.logical_divide(shared_a, (shares.share_m, None, None))[(None, consumer_m), None, None]
        own_b = cute.logical_divide(shared_b, (shares.share_n, None, None))[(None, consumer_n), None, None]
        return own_a, own_b

    def _share(self, task: Task, own_a: cute.Tensor, own_b: cute.Tensor) -> Share:
        """What one consumer multiplies with."""
        shares, place, ring = self.footprint, task.place, task.ring
        mma = self._tiled_mma(shares.share_n)
        thread_mma = mma.get_slice(0)
        return Share(
            mma,
            cute.make_rmem_tensor(thread_mma.partition_shape_C((shares.share_m, shares.share_n)), Float32),
            mma.make_fragment_A(thread_mma.partition_A(own_a)),
            mma.make_fragment_B(thread_mma.partition_B(own_b)),
            ring.release_target(place.lane, place.rank_m, place.rank_n),
            ring.arrives(place.lane, place.warp),
        )

    def _epilogue(
        self,
        task: Task,
        consumer: Int32,
        storage,
        layout_c: cute.ComposedLayout | None,
        output: Output,
        own: cute.Tensor,
    ) -> Epilogue | DirectEpilogue:
        """How one consumer's share leaves."""
        thread = task.place.in_group
        if self.config.stores == "direct":
            return DirectEpilogue.of(thread, output.c, self.footprint.share_n, self.out_dtype)
        if layout_c is None:
            shared = self.chunks.in_ring(own)
        else:
            shared = storage.c.get_tensor(layout_c.outer, swizzle=layout_c.inner)
        return self.chunks.epilogue(output.atom, shared, output.c, self._tiled_mma(self.chunks.n), consumer, thread)

    def _tma_loads(self, task: Task, operands: Operands, shared_a: cute.Tensor, shared_b: cute.Tensor) -> Loads:
        """Both operands' loads; CTAs of a row of the cluster share A, those of a column B."""
        rank_m, rank_n = task.place.rank_m, task.place.rank_n
        row, column = _mask_row(self.cluster, rank_m), _mask_column(self.cluster, rank_n)
        return Loads(
            task.ring,
            self.a.load(operands.atom_a, shared_a, operands.a, rank_n, row, operands.map_a),
            self.b.load(operands.atom_b, shared_b, operands.b, rank_m, column, operands.map_b),
        )

    def _copy_fill(self, task: Task, operands: Operands, storage, shared_a: cute.Tensor) -> CopyFill:
        """Both operands' loads by the producer's threads, or those of B beside A's by TMA."""
        config, thread = self.config, task.place.thread
        span = self.footprint.swizzle_bytes * 8 // self.dtype.width
        if config.loads == "mixed":
            a = self.a.load(operands.atom_a, shared_a, operands.a, 0, 0, operands.map_a)
        else:
            a = ThreadLoad.of(thread, operands.a, storage.a.data_ptr(), config.tile_m, config.tile_k, span)
        b = ThreadLoad.of(thread, operands.b, storage.b.data_ptr(), config.tile_n, config.tile_k, span)
        lag = min(config.stages - 1 - config.stagger, COPIES_UNDER_WAY)
        return CopyFill(
            ThreadLoads(task.ring, a, b, task.place.warp == 0), lag, config.peeks("producer"), self._state(phase=0)
        )

    def _state(self, phase: int) -> RingState:
        """A role's place in the ring, before its first slot."""
        kind = LibraryState if self.config.ring == "library" else STATES[self.config.ring_state]
        return kind.first(self.config.stages, phase=phase)

    def _ring(self, storage) -> Ring:
        config, shares = self.config, self.footprint
        each = tuple(tile * config.tile_k * self.dtype.width // 8 for tile in (config.tile_m, config.tile_n))
        announced = {"tma": each if config.full_barriers == 2 else (sum(each),), "mixed": each[:1], "cp_async": (0,)}
        by_all, by_consumers = config.every_thread("producer"), config.every_thread("consumer")
        warps = {"tma": 1, "mixed": 1 + hopper.WARPGROUP_WARPS, "cp_async": hopper.WARPGROUP_WARPS}[config.loads]
        speaking = 1 if config.arrivals == "group" else hopper.WARPGROUP_WARPS
        ring = Ring(
            storage.barriers.data_ptr(),
            config.stages,
            announced[config.loads],
            warps * (hopper.WARP_THREADS if by_all else 1),
            speaking * (hopper.WARP_THREADS if by_consumers else 1) * shares.readers,
            by_all,
            "consumer" if by_consumers else config.arrivals if config.arrivals in ("elected", "group") else "warp",
            config.waits == "relaxed",
            self.cluster,
            storage.tags.data_ptr() if config.scheduler == "dynamic" else None,
        )
        return LibraryRing.of(ring) if config.ring == "library" else ring

    def _shared(
        self, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout, layout_c: cute.ComposedLayout | None
    ) -> type:
        """The shared memory of a CTA; where parts of a tile meet in the ring, its A and B lie side by side."""

        def buffer(layout: cute.ComposedLayout | None, dtype: type[cutlass.Numeric] = self.dtype):
            size = cute.cosize(layout) if layout is not None else 0
            return cute.struct.Align[cute.struct.MemRange[dtype, size], BUFFER_ALIGN]

        config = self.config
        regions = {
            "A": buffer(layout_a),
            "B": buffer(layout_b),
            "C": buffer(layout_c, self.out_dtype),
            "barriers": cute.struct.MemRange[Int64, (1 + config.full_barriers) * config.stages],
            "mailbox": cute.struct.MemRange[Int64, 3 * SLOTS],
            "tags": cute.struct.MemRange[Int32, config.stages],
        }
        fields = {name.lower(): regions[name] for name in self.footprint.smem_map}
        return cute.struct(type("Shared", (), {"__annotations__": fields}))


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
