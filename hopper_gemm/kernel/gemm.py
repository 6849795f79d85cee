"""The kernel: from the launch to the last store, as the story of one tile.

In reading order:

    __call__            host: tensor maps, grid, launch
    kernel              every CTA: shared memory, set-up, then one role a warpgroup
    _set_up             barriers of the ring, the cluster meets
    _produce, _fill     the producer: item after item, stage after stage
    _consume            a consumer: wait, multiply, release, item after item
    _store              the tile leaves: sums of split-K parts, epilogue

The methods behind these build what the roles use: each a few lines, read when its name comes up, and replaced by
overriding where a variant differs. The loops themselves are :meth:`hopper_gemm.kernel.producer.Fill.tile` and
:meth:`hopper_gemm.kernel.consumer.Mainloop.multiply_tile`, the barriers :mod:`hopper_gemm.kernel.pipeline`.
"""

from __future__ import annotations

from dataclasses import replace

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup

from hopper_gemm.kernel.blocks import BlockScales, SwappedScales
from hopper_gemm.kernel.consumer import FIRST_TURN, Mainloop, Order, Share, Turn, release_held
from hopper_gemm.kernel.cta import CtaTask, Memory, Operands, Output
from hopper_gemm.kernel.epilogue import Chunks, ConsumerEpilogue, Region
from hopper_gemm.kernel.groups import GroupRaster, GroupScheduler, behind, ragged, ragged_depth
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.operand import GatedOperand, InterleavedOperand, Loads, Operand
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.kernel.place import Place
from hopper_gemm.kernel.producer import Fill, Pace
from hopper_gemm.kernel.promotion import Promotion
from hopper_gemm.kernel.steps import NAMES, ActivationStep, Addend, Bias, Gate, Residual, Scale, Scales, Step
from hopper_gemm.kernel.sums.reduction import Parts, meet
from hopper_gemm.kernel.sums.workspace import PACE_WORD, Workspace
from hopper_gemm.kernel.threads.scatter import ThreadTarget
from hopper_gemm.kernel.work import FAR, DynamicWalk, Edge, Item, Raster, TileScheduler
from hopper_gemm.model import hopper
from hopper_gemm.model.finish import Epilogue, ordered_stages
from hopper_gemm.model.kernel import MOVED_FROM, Kernel
from hopper_gemm.model.problem import ELEMENT_BYTES

ALL_SHARED = 100
"""Shared-memory carveout, per cent."""

INIT_WARP = 1
"""Warp of a CTA that initialises the barriers, while the producer's first warp prepares its first load: worth 0.1
to 0.3 % of launches of 5 to 25 us (docs/ideas.md)."""

STEP = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES
"""Elements in which a tile is moved along a contiguous axis: with 8 columns of C, pairs that threads store stay whole.
"""

SET_UP = 0
"""Id of the named barrier of the initialisation of the ring's barriers. Those from 1 on belong to the consumers'
epilogues; a fourth consumer has that of FIRST_TURN, since turns exist between two consumers alone."""


class HopperGemm:
    """C = A @ B on the tensor cores of Hopper.

    Roles of a CTA (threads 0..127 are warpgroup 0):

        warpgroup 0         producer    warp 0 loads A and B into the ring by TMA, the other warps only give up
                                        registers
        warpgroup 1 .. c    consumers   wgmma on their share of the tile, then their share's epilogue; in pingpong each
                                        takes every other tile whole

    Synchronisation, and who arrives where:

        full[stage]         the loading thread, with the stage's bytes; then TMA (also the peers' multicast)
        empty[stage]        every consumer warp of every CTA that the slot's loads serve
        named barrier 0     the producer's second warp, which initialises the barriers; its first and the consumers wait
        named barrier 1+w   the 128 threads of consumer w, around its epilogue chunks and split-K sums
        named barrier 4+w   in pingpong, and where two consumers end their tile in order: one waits for its turn, the
                            other gives it
        cluster barrier     all threads, once the barriers are initialised; with split-K in a cluster three times a tile
        mailbox             dynamic scheduler: the producers of a cluster (:class:`hopper_gemm.kernel.work.DynamicWalk`)

    Parts that are handed in; any two work together, or a rule names why not (tests/kernel/pairs.py):

        steps               of the epilogue, in order: scales, scale, bias, activation, gate, residual
        target              who stores C: TMA, or the consumers' threads
        promotion           of FP8 sums to fp32 registers, every few stages
        sums                of split-K parts: none, in a cluster, through a workspace
        walk                over the items: static, alternating (pingpong), dynamic
        grouping            none, rows, batch, depth, masked; whole tiles (:mod:`hopper_gemm.kernel.groups`)
        observer            of every role: a meter, a trace

    Every role walks the same sequence of items. Ring state runs on across items. In a cluster the producer waits at its
    end until every slot has come back, so that no peer arrives on barriers of a CTA that has exited.

    Words here and in CUTLASS: the ring is the mainloop pipeline, its slots are stages, :class:`RingState` is the
    PipelineState; an item is a work tile, a walk the tile scheduler's sequence of them; a share is what one consumer
    computes of a CTA's tile; a chunk is an epilogue subtile; a panel is what CTAs of a row or column share of A or B;
    :func:`meet` is cluster_arrive and cluster_wait.

    Args:
        config: the resolved kernel; it must be legal.
        dtype: element type of A and B.
        layouts: the contiguous axis of A, then of B.
        out_dtype: element type of C: that of A and B, or fp32.
        finish: what the epilogue does before it rounds; None for nothing. Gated, B is (2 f, k), gate rows first, and C
            is (m, f).
        observer: of the roles; None for an observer that does nothing.
        scattered: True if threads store C, whose rows need not start at multiples of 16 bytes.
        promote: elements of k from one promotion of FP8 sums to the next; 0 for none.
        grouping: of a product of groups (:mod:`hopper_gemm.kernel.groups`); empty for one product.
    """

    def __init__(
        self,
        config: Kernel,
        dtype: type[cutlass.Numeric],
        layouts: str,
        out_dtype: type[cutlass.Numeric],
        finish: Epilogue | None = None,
        observer: Observer | None = None,
        scattered: bool = False,
        promote: int = 0,
        grouping: str = "",
    ) -> None:
        self.config, self.promote, self.grouping = config, promote, grouping
        self.finish = finish or Epilogue()
        self.scattered = scattered
        self.observer = observer or Observer()
        self.dtype, self.out_dtype = dtype, out_dtype
        self.chunks = Chunks(config, out_dtype)
        self.cluster = (config.cluster_m, config.cluster_n)
        self.parts = config.split_k if config.parts_meet else 1
        left, right = Operand, Operand
        self.out_m, self.out_n = config.tile_m, config.tile_n
        if self.finish.gated and config.swap_ab:
            left, self.out_m = InterleavedOperand, config.tile_m // 2
        elif self.finish.gated:
            right, self.out_n = GatedOperand, config.tile_n // 2
        by_rows = [axis != "k" for axis in (reversed(layouts) if config.swap_ab else layouts)]
        self.tile_k = config.tile_k * ELEMENT_BYTES * 8 // dtype.width
        depth, alternate = (self.tile_k, config.stages), config.multicast == "alternate"
        self.a = left(dtype, config.tile_m, config.share_m, *depth, config.cluster_n, alternate, by_rows[0])
        self.b = right(dtype, config.tile_n, config.share_n, *depth, config.cluster_m, alternate, by_rows[1])

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
        parts: Int32,
        by_part: Int32,
        sums: cute.Tensor | None,
        words: cute.Tensor | None,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        scale: Float32 | None,
        readings: cute.Tensor | None,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        ends: cute.Tensor | None,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on a stream; :mod:`hopper_gemm.compiler.abi` declares the other arguments."""
        config = self.config
        if cutlass.const_expr(self.grouping != ""):
            a, b, c, residual, scale_b = (behind(tensor) for tensor in (a, b, c, residual, scale_b))
        if cutlass.const_expr(config.swap_ab):
            a, b, scale_a, scale_b = b, a, scale_b, scale_a
            c = cute.make_tensor(c.iterator, cute.select(c.layout, mode=[1, 0, 2] if cute.rank(c) == 3 else [1, 0]))
        read = {"bias": bias, "residual": residual, "scale": scale, "row_scales": scale_a, "column_scales": scale_b}
        operands, output = self._operands(a, b), replace(self._output(c), **read)
        tiles_m = cute.ceil_div(cute.size(c, mode=[0]), self.out_m * config.cluster_m)
        tiles_n = cute.ceil_div(cute.size(c, mode=[1]), self.out_n * config.cluster_n)
        order = along_m, swizzle, serpentine
        k_tiles = cute.ceil_div(cute.size(a, mode=[1]), self.tile_k)
        of_parts = (parts, by_part, k_tiles) if cutlass.const_expr(config.parts_at_launch) else ()
        raster = self.raster.of(tiles_m, tiles_n, *order, clusters, *of_parts)
        masked = self.grouping.startswith("masked")
        if cutlass.const_expr(self.groups_rows):
            m, across = (cute.size(c, mode=[1]), tiles_m) if config.swap_ab else (cute.size(c, mode=[0]), tiles_n)
            raster = GroupRaster.of_rows(raster, clusters, ends, m, across, swizzle, masked)
        elif cutlass.const_expr(self.grouping != ""):
            k = cute.size(a, mode=[1])
            raster = GroupRaster.of_batch(raster, clusters, cute.size(c, mode=[2]), ends, k, masked)
        edge = self._edge(a, c, residual) if cutlass.const_expr(self._moves_back) else None
        workspace = Workspace(sums, words) if cutlass.const_expr(config.has_workspace) else None
        self.kernel(raster, k_tiles, edge, workspace, operands, output, readings).launch(
            grid=(config.cluster_m * raster.clusters, config.cluster_n, self.parts),
            block=(config.threads, 1, 1),
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
        raster: Raster,
        k_tiles: Int32,
        edge: Edge | None,
        workspace: Workspace | None,
        operands: Operands,
        output: Output,
        readings: cute.Tensor | None,
    ) -> None:
        """Set up, then run the warpgroup's role; see the class. Arguments that the first load needs come first: they
        then lie in the first 256 bytes of the constant bank, before the descriptors."""
        config = self.config
        seen = self.observer.enter(readings)
        if cutlass.const_expr(config.pdl):
            cute.arch.griddepcontrol_launch_dependents()
        place = Place.here(self.cluster, self.parts)
        memory = Memory.of(self.config, self.a, self.b, self.chunks)
        ring = self._ring(memory.storage)
        k_first = 0
        if cutlass.const_expr(self.parts > 1):
            k_first, k_tiles = raster.stretch(place.part, k_tiles // self.parts, k_tiles % self.parts)
        mailbox = memory.storage.mailbox.data_ptr() if cutlass.const_expr(self._has_mailbox) else None
        covers = self.out_m, self.out_n
        scheduler = self._scheduler(config, raster, place, ring, k_first, k_tiles, workspace, mailbox, covers, edge)
        task = CtaTask(scheduler, operands, output, memory, seen)
        self._set_up(task)
        self._play(task)

    @cute.jit
    def _set_up(self, task: CtaTask) -> None:
        """Initialise the barriers; no thread uses a barrier before that."""
        scheduler = task.scheduler
        if task.place.warp == 0:
            self._prefetch_descriptors(task)
        if task.place.warp == self.init_warp:
            with cute.arch.elect_one():
                task.ring.init()
                if cutlass.const_expr(self._has_mailbox):
                    DynamicWalk.init(scheduler.mailbox, self.config.cluster_size)
            cute.arch.sync_warp()
        self._await_barriers(task.place)

    @cute.jit
    def _await_barriers(self, place: Place) -> None:
        """Wait until the barriers are initialised. In a cluster of one CTA the warp that initialised them only
        arrives."""
        if cutlass.const_expr(self.config.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            threads = self.config.threads - hopper.WARPGROUP_THREADS + 2 * hopper.WARP_THREADS
            if place.warp == self.init_warp:
                cute.arch.barrier_arrive(barrier_id=SET_UP, number_of_threads=threads)
            elif (place.warp == 0) | (place.warpgroup > 0):
                cute.arch.barrier(barrier_id=SET_UP, number_of_threads=threads)

    @cute.jit
    def _play(self, task: CtaTask) -> None:
        """Run one role a warpgroup."""
        registers = self.config.registers
        if task.place.warpgroup == 0:
            if cutlass.const_expr(registers.moved):
                cute.arch.setmaxregister_decrease(registers.producer)
            self._produce(task)
        else:
            if cutlass.const_expr(registers.moved):
                cute.arch.setmaxregister_increase(registers.consumer)
            self._consume(task, task.place.warpgroup - 1)

    # The producer ----------------------------------------------------------------------------

    @cute.jit
    def _produce(self, task: CtaTask) -> None:
        """Load every item of this CTA. By a warpgroup: one warp issues TMA; with split-K in a cluster the others arrive
        at the cluster's barriers."""
        state = self._state(phase=1)
        if task.place.warp == 0:
            loads = self._loads(task)
            self._await_launch()
            self._fill(task, self._filler(task, loads), state)
        elif cutlass.const_expr(self.parts > 1):
            self._await_launch()
            walk = task.scheduler.producer()
            at = walk.start(state)
            while walk.more(at):
                meet()
                meet()
                meet()
                at = walk.next(at, state)

    @cute.jit
    def _fill(self, task: CtaTask, fill: Fill, state: RingState) -> None:
        """Fill the ring with every item."""
        scheduler, seen = task.scheduler, task.seen.role(task.place, 0)
        walk = scheduler.producer()
        at, filling = walk.start(state), fill.start(state, seen.begin())
        while walk.more(at):
            item, number = walk.item(at), walk.number(at)
            at = walk.ask(at)
            row, column = scheduler.origin(item)
            filling = self._of_group(fill, item).tile(filling, row, column, item, number)
            if cutlass.const_expr(self.parts > 1):
                meet()
                meet()
                meet()
            at = walk.next(at, filling.state)
        fill.end(filling, walk.ending, self.config.cluster_size > 1)
        walk.leave(at)
        filling.seen.leave()

    def _await_launch(self) -> None:
        """With PDL, wait for the previous launch."""
        if self.config.pdl:
            cute.arch.griddepcontrol_wait()

    # The consumers ---------------------------------------------------------------------------

    @cute.jit
    def _consume(self, task: CtaTask, consumer: Int32) -> None:
        """Multiply and store every item of this consumer, by a warpgroup: with split m its own rows of A and all of B,
        with split n the reverse; in pingpong, which divides no tile, whole ones."""
        config, scheduler = self.config, task.scheduler
        pingpong = config.schedule == "pingpong"
        consumer_m = consumer if cutlass.const_expr(config.split == "m" and not pingpong) else 0
        consumer_n = consumer if cutlass.const_expr(config.split == "n") else 0
        own_a, own_b = self._own(task.memory, consumer_m, consumer_n)
        share = self._share(task, own_a, own_b)
        epilogue = self._epilogue(task, consumer, own_a if cutlass.const_expr(config.split == "m") else own_b)
        loop = self._mainloop(task, share, epilogue)
        parts = self.sums(config, scheduler, consumer, task.memory.a.iterator)
        height, width = config.share_m * self.out_m // config.tile_m, config.share_n * self.out_n // config.tile_n
        rows, columns = height // hopper.WGMMA_M, width // self.chunks.n
        self._await_launch()

        state = self._state(phase=0)
        walk = scheduler.consumer(consumer if pingpong else None)
        if cutlass.const_expr(pingpong):
            state = state.advance(consumer * scheduler.k_tiles)
        seen = task.seen.role(task.place, consumer + 1).begin()
        at = walk.start(state)
        self._fall_behind(task, walk, at, consumer)
        while walk.more(at):
            item = walk.item(at)
            row, column = scheduler.origin(item)
            seen = seen.at("first")
            turn = None
            if cutlass.const_expr(pingpong):
                turn = Turn(FIRST_TURN + consumer, FIRST_TURN + 1 - consumer, *walk.neighbours(at))
            tile_loop = self._of_tile(loop, item, row, column)
            state, seen = tile_loop.multiply_tile(state, item.k_count, turn, seen)
            seen = seen.at("fed")
            row, column = row + consumer_m * height, column + consumer_n * width
            region = Region(rows, columns, row, column)
            if cutlass.const_expr(self.grouping != ""):
                region = item.region(region)
            self._store(tile_loop, state, item, parts, region)
            seen = seen.at("stored")
            if cutlass.const_expr(pingpong):
                state = state.advance(scheduler.k_tiles)
            at = walk.next(at, state)
        epilogue.wait_reads(0)  # the CTA's shared memory must not go while TMA reads it
        seen.leave()

    @cute.jit
    def _store(self, loop: Mainloop, state: RingState, item: Item, parts: Parts, region: Region) -> None:
        """Store a tile: staged in the ring's last slots, or added up with the split-K parts of other CTAs."""
        share, epilogue, held = loop.share, loop.epilogue, loop.held
        if cutlass.const_expr(held > 0):
            first = state.behind(held).index
            epilogue.store_tile(share.accumulators, region, None, first)
            release_held(loop.ring, share, first, held)
        else:
            size = cute.size(share.accumulators)
            accumulators = cute.make_tensor(share.accumulators.iterator, cute.make_layout(size))
            reduction = parts.reduction(item, size, size // (region.rows * region.columns))
            reduction.finish(accumulators, epilogue, region)

    # Arguments of the launch -----------------------------------------------------------------

    raster, scheduler, sums = Raster, TileScheduler, Parts
    """Classes of the tile order, of the tile scheduler and of the sums over split-K parts."""

    init_warp = INIT_WARP

    @property
    def _scheduler(self) -> type[TileScheduler]:
        return GroupScheduler if self.grouping else self.scheduler

    @property
    def groups_rows(self) -> bool:
        """True if groups are rows of one C."""
        return self.grouping in ("rows", "masked")

    @property
    def _moves_back(self) -> bool:
        """True if last tiles may move back; in groups of rows each group has its own."""
        return self.config.may_move_back and not self.groups_rows

    def _of_group(self, fill: Fill, item: Item) -> Fill:
        """The producer's loop for an item, in whose group it loads."""
        return replace(fill, loads=item.of_loads(fill.loads, self.config.swap_ab)) if self.grouping else fill

    def _edge(self, a: cute.Tensor, c: cute.Tensor, residual: cute.Tensor | None) -> Edge:
        """Where the last tiles begin; at multiples of 16 bytes along axes that are contiguous in memory. No tile moves
        where C is its own residual: rows that two tiles write would have it added twice. On the host."""
        swapped = self.config.swap_ab
        contiguous = self.a.by_rows or swapped, self.b.by_rows or not swapped
        size = cute.size(c, mode=[0]), cute.size(c, mode=[1])
        steps = tuple(STEP if one else 1 for one in contiguous)
        least = MOVED_FROM * self.tile_k // self.config.tile_k
        edge = Edge.of(size, (self.out_m, self.out_n), steps).unless(cute.size(a, mode=[1]) < least)
        if self.finish.scales == "blocks":  # 64 rows or columns of a tile have one block of B
            edge = replace(edge, **{"row" if swapped else "column": Int32(FAR)})
        return edge if residual is None else edge.unless(residual.iterator.toint() == c.iterator.toint())

    def _operands(self, a: cute.Tensor, b: cute.Tensor) -> Operands:
        """Both operands with their TMA loads. On the host."""
        if self.grouping.endswith("depth"):
            a, b = ragged_depth(a), ragged_depth(b)
        load_a, load_b = self.a.load_atom(a), self.b.load_atom(b)
        return Operands(load_a.atom, load_a.tma_tensor, load_b.atom, load_b.tma_tensor)

    def _output(self, c: cute.Tensor) -> Output:
        """C with its TMA store, if TMA stores it. On the host."""
        if self.scattered:
            return Output(None, c)
        store = self.chunks.store_atom(ragged(c, self.config.swap_ab) if self.groups_rows else c)
        return Output(store.atom, store.tma_tensor)

    # What the roles use ----------------------------------------------------------------------

    def _prefetch_descriptors(self, task: CtaTask) -> None:
        """Prefetch the TMA descriptors."""
        for atom in (task.operands.atom_a, task.operands.atom_b, task.output.atom):
            if atom is not None:
                cpasync.prefetch_descriptor(atom)

    @property
    def _has_mailbox(self) -> bool:
        return self.config.scheduler == "dynamic" and self.config.cluster_size > 1

    def _state(self, phase: int) -> RingState:
        """A role's place in the ring, before its first slot."""
        return RingState.first(self.config.stages, phase=phase)

    def _peeks(self, side: str) -> bool:
        """Return True if a side of the ring probes ahead; a ring of one stage has no next slot to probe."""
        return self.config.stages != 1

    def _loads(self, task: CtaTask) -> Loads:
        """Both operands' loads; CTAs of a row of the cluster share A, those of a column B."""
        place, operands, memory = task.place, task.operands, task.memory
        return Loads(
            task.ring,
            self.a.load(operands.atom_a, memory.a, operands.a, place.rank_n, place.row_mask),
            self.b.load(operands.atom_b, memory.b, operands.b, place.rank_m, place.column_mask),
        )

    def _filler(self, task: CtaTask, loads: Loads) -> Fill:
        """The producer's loop."""
        config, scheduler, pace = self.config, task.scheduler, None
        if config.pace > 0:
            word = scheduler.workspace.word(PACE_WORD)
            pace = Pace.of(word, config.pace, scheduler.raster, config.cluster_size, scheduler.k_tiles)
        tagged, clusters = config.scheduler == "dynamic", scheduler.raster.clusters
        return Fill(loads, self._peeks("producer"), config.reverse_k, pace, tagged, clusters)

    def _own(self, memory: Memory, consumer_m: Int32 | int, consumer_n: Int32 | int) -> tuple[cute.Tensor, cute.Tensor]:
        """The rows of both operands that one consumer reads, (rows, depth, stage)."""
        config = self.config
        own_a = cute.logical_divide(memory.a, (config.share_m, None, None))[(None, consumer_m), None, None]
        own_b = cute.logical_divide(memory.b, (config.share_n, None, None))[(None, consumer_n), None, None]
        return own_a, own_b

    def _tiled_mma(self, n: int) -> cute.TiledMma:
        smem, majors = warpgroup.OperandSource.SMEM, (self.a.major, self.b.major)
        if self.dtype.width == 8:
            shape = hopper.WGMMA_M, n, 2 * hopper.WGMMA_K
            return cute.make_tiled_mma(warpgroup.MmaF8Op(self.dtype, self.dtype, Float32, shape, smem, *majors))
        shape = hopper.WGMMA_M, n, hopper.WGMMA_K
        return cute.make_tiled_mma(warpgroup.MmaF16BF16Op(self.dtype, Float32, shape, smem, *majors))

    def _share(self, task: CtaTask, own_a: cute.Tensor, own_b: cute.Tensor) -> Share:
        """Operands and registers of one consumer."""
        config, place, ring = self.config, task.place, task.ring
        mma = self._tiled_mma(config.share_n)
        thread_mma = mma.get_slice(0)
        return Share(
            mma,
            cute.make_rmem_tensor(thread_mma.partition_shape_C((config.share_m, config.share_n)), Float32),
            mma.make_fragment_A(thread_mma.partition_A(own_a)),
            mma.make_fragment_B(thread_mma.partition_B(own_b)),
            ring.release_target(place.lane, place.rank_m, place.rank_n),
            ring.arrives(place.lane, place.warp),
        )

    def _mainloop(self, task: CtaTask, share: Share, epilogue: ConsumerEpilogue) -> Mainloop:
        """The main loop of one consumer; peeled where steps need the accumulators' registers. Not behind a scale alone:
        with more registers free the compiler begins with so many elements that it spills."""
        config, peeled = self.config, self.finish != Epilogue() and not self.finish.scaled_alone
        stages, peek = ordered_stages(config) if peeled and not self.promote else 0, self._peeks("consumer")
        order = Order(task.place.warpgroup - 1, stages) if stages else None
        loop = Mainloop(task.ring, share, epilogue, config.stagger, peek, self.chunks.held, peeled=peeled, order=order)
        if self.promote:
            shape = share.mma.get_slice(0).partition_shape_C((hopper.WGMMA_M, config.share_n))
            partial = cute.make_rmem_tensor(shape, Float32)
            scales = self._block_scales(task) if self.finish.scales == "blocks" else None
            loop = replace(loop, promotion=Promotion(partial, self.promote // self.tile_k, scales))
        return loop

    def _block_scales(self, task: CtaTask) -> BlockScales:
        """The scales of blocks of one consumer."""
        config, consumer, before = self.config, task.place.warpgroup - 1, [0, 0]
        if config.schedule != "pingpong":
            side = "mn".index(config.split)
            before[side] = consumer * (config.share_m, config.share_n)[side]
        kind, sides = BlockScales, (task.output.row_scales, task.output.column_scales)
        if config.swap_ab:
            kind, sides = SwappedScales, sides[::-1]
        return kind.of(config, *sides, before, task.place.in_group)

    def _of_tile(self, loop: Mainloop, item: Item, row: Int32, column: Int32) -> Mainloop:
        """The main loop for an item, whose output tile is at a row and column."""
        group = item.group if self.grouping else None
        if loop.promotion is not None:
            loop = replace(loop, promotion=loop.promotion.of_tile(row, column, item.k_first, group))
        return replace(loop, epilogue=loop.epilogue.of_tile(column, group))

    def _fall_behind(self, task: CtaTask, walk, at, consumer: Int32) -> None:
        """Wait, in kernels whose consumers start one behind the other."""

    def _epilogue(self, task: CtaTask, consumer: Int32, own: cute.Tensor) -> ConsumerEpilogue:
        """The epilogue of one consumer: through chunk buffers, or through its ``own`` rows of the ring."""
        config, output, layout, chunks = self.config, task.output, task.memory.layout_c, self.chunks
        steps, thread = self._steps(task, consumer), task.place.in_group
        if layout is None:
            shared = chunks.in_ring(own)
        else:
            buffers = task.memory.storage.c.get_tensor(layout.outer, swizzle=layout.inner)
            shared = cute.logical_divide(buffers, (None, None, config.epi_buffers))[None, None, (None, consumer)]
        staged = chunks.paired(shared) if self.finish.gated and config.swap_ab else shared
        staging = chunks.staging(staged, self._tiled_mma(chunks.n), thread)
        if self.scattered:
            target = ThreadTarget.of(chunks, shared, output.c, thread)
        else:
            target = chunks.target(output.atom, shared, output.c, thread)
        return ConsumerEpilogue(chunks, target, steps, *staging, thread, consumer + 1)

    def _steps(self, task: CtaTask, consumer: Int32) -> tuple[Step, ...]:
        """The steps of the finish for one thread of a consumer."""
        config, finish, output, swapped = self.config, self.finish, task.output, self.config.swap_ab
        size = [cute.size(output.c, mode=[mode]) for mode in ((1, 0) if swapped else (0, 1))]
        bias, residual = (None if one is None else Addend.of(one, *size) for one in (output.bias, output.residual))
        steps: list[Step] = []
        if finish.scales in ("tensor", "row"):
            sides = output.row_scales, output.column_scales
            sizes = [cute.size(side) for side in sides]
            if self.grouping:  # the scales of B follow one another group by group
                sizes[0 if swapped else 1] = size[1]
            down, across = (Addend.of(side, Int32(1), length) for side, length in zip(sides, sizes, strict=True))
            steps.append(Scales(down, across, finish.scales == "tensor", swapped))
        if finish.scale:
            steps.append(Scale(output.scale))
        if finish.bias:
            side = consumer * config.share_n if config.split == "n" else 0
            ahead = 0 if swapped or config.split_k > 1 else config.share_n
            steps.append(Bias(bias, swapped, task.place.in_group, side, ahead))
        if finish.activation:
            steps.append(ActivationStep(finish.activation, NAMES[self.out_dtype]))
        if finish.gated:
            steps.append(Gate(2 if swapped else hopper.WGMMA_M * self.out_n // hopper.WARPGROUP_THREADS))
        if finish.residual:
            steps.append(Residual(residual, swapped))
        return tuple(steps)

    def _ring(self, storage) -> Ring:
        """The ring's barriers."""
        config = self.config
        return Ring(
            storage.barriers.data_ptr(),
            config.stages,
            config.stage_bytes,
            1,
            hopper.WARPGROUP_WARPS * config.readers,
            self.cluster,
            storage.tags.data_ptr() if config.scheduler == "dynamic" else None,
        )
