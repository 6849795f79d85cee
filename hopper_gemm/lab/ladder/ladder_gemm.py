"""The kernel of the design study: :class:`HopperGemm` with the parts that never win in place of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import cutlass
from cutlass import Int32, cute

from hopper_gemm.kernel.consumer import Mainloop, Share
from hopper_gemm.kernel.cta import CtaTask, Operands
from hopper_gemm.kernel.epilogue import ConsumerEpilogue
from hopper_gemm.kernel.gemm import HopperGemm
from hopper_gemm.kernel.operand import Loads
from hopper_gemm.kernel.pipeline import Ring, RingState
from hopper_gemm.kernel.place import Place
from hopper_gemm.kernel.producer import Fill
from hopper_gemm.kernel.sums.reduction import Parts
from hopper_gemm.kernel.work import Item, Raster, TileScheduler
from hopper_gemm.lab.ladder.ladder_config import DEFAULTS, LadderKernel
from hopper_gemm.lab.ladder.ladder_operand import PromotedLoad, PromotedOperands, load_descriptor, prefetch
from hopper_gemm.lab.ladder.library_ring import LibraryRing, LibraryState
from hopper_gemm.lab.ladder.multistage import LoadingMainloop
from hopper_gemm.lab.ladder.packed_state import PackedState
from hopper_gemm.lab.ladder.ring import LadderRing
from hopper_gemm.lab.ladder.stream import StreamParts, StreamRaster, StreamScheduler
from hopper_gemm.lab.ladder.threads.thread_gemm import ThreadGemm
from hopper_gemm.model.problem import ELEMENT_BYTES

STARTS = 16
"""Places along k at which clusters begin where they begin apart."""

STATES = {"index_phase": RingState, "packed": PackedState}
"""Ways to keep a place in our own ring, by the name of the config's ``ring_state``."""


@dataclass(frozen=True)
class InterleavedRaster(Raster):
    """An order of tiles whose split-K parts are every so many stages, and not a run of them."""

    @staticmethod
    def stretch(part: Int32, each: Int32, over: Int32) -> tuple[Int32, Int32]:
        """Return the first stage and number of stages of a split-K part."""
        return part, each + Int32(part < over)


@dataclass(frozen=True)
class LadderFill(Fill):
    """Filling the ring in another order of k."""

    apart: int = 1
    rotate: int = 0

    @property
    def stride(self) -> int:
        """Return the distance between two stages of an item, in stages."""
        return self.apart

    def turn(self, item: Item) -> Int32 | int:
        """Return the stage of an item with which its loads begin."""
        if not self.rotate:
            return 0
        turn = ((item.tile + item.part) % STARTS) * self.rotate
        return cutlass.select_(turn < item.k_count, turn, Int32(0))

    def turned(self, k_tile: Int32, turn: Int32 | int, item: Item) -> Int32:
        """Return the stage of an item that is loaded as the ``k_tile``-th."""
        if not self.rotate:
            return k_tile
        turned = k_tile + turn
        return cutlass.select_(turned < item.k_count, turned, turned - item.k_count)


class LadderGemm(ThreadGemm):
    """:class:`HopperGemm` for a :class:`LadderKernel`."""

    config: LadderKernel

    # What the launch hands over --------------------------------------------------------------

    @property
    def raster(self) -> type[Raster]:
        """The order of the tiles."""
        return InterleavedRaster if self.config.interleave_k else StreamRaster if self.config.stream_k else Raster

    @property
    def scheduler(self) -> type[TileScheduler]:
        """The scheduler: which CTA takes which tile."""
        return StreamScheduler if self.config.stream_k else TileScheduler

    @property
    def sums(self) -> type[Parts]:
        """The reduction of a tile that several CTAs computed in parts."""
        return StreamParts if self.config.stream_k else Parts

    def _operands(self, a: cute.Tensor, b: cute.Tensor) -> Operands:
        operands, promotion = super()._operands(a, b), self.config.l2_promotion
        if promotion == DEFAULTS["l2_promotion"] or self.config.loads == "cp_async":
            return operands
        map_a = load_descriptor(a, self.a.box, self.a.by_rows, promotion)
        map_b = None
        if self.config.loads == "tma":
            map_b = load_descriptor(b, self.b.box, self.b.by_rows, promotion)
        given = {field.name: getattr(operands, field.name) for field in fields(Operands)}
        return PromotedOperands(**given, map_a=map_a, map_b=map_b)

    # The roles -------------------------------------------------------------------------------

    @cute.jit
    def _set_up(self, task: CtaTask) -> None:
        if cutlass.const_expr(self.config.prefetch > 0):
            if task.place.warp == 2:  # the second warp initialises the barriers
                self._prefetch(task, self._loads(task))
        HopperGemm._set_up(self, task)

    @cute.jit
    def _prefetch(self, task: CtaTask, loads: Loads) -> None:
        """Prefetch the first stages that this CTA will load into the L2, before the setup. By one warp.

        It does not pay: 1 to 1.8 us were lost on launches of 5 to 50 us, since the same rows pass through the TMA unit
        twice, the prefetched ones ahead of those that are waited for.
        """
        walk = task.scheduler.static()
        item = walk.item(walk.start(self._state(phase=1)))
        row, column = task.scheduler.origin(item)
        with cute.arch.elect_one():  # the DSL elects a thread for a copy, not for a prefetch
            for k_tile in cutlass.range(cutlass.min(self.config.prefetch, item.k_count), unroll=1):
                prefetch(loads, row, column, item.k_first + k_tile)

    @property
    def init_warp(self) -> int:
        """Warp that initialises the barriers."""
        return super().init_warp if self.config.specialised else 0

    @cute.jit
    def _await_barriers(self, position: Place) -> None:
        if cutlass.const_expr(self.config.specialised or self.config.cluster_size > 1):
            ThreadGemm._await_barriers(self, position)
        else:
            cute.arch.sync_threads()

    @cute.jit
    def _play(self, task: CtaTask) -> None:
        """Run one role in each warpgroup; without a producer all are consumers."""
        if cutlass.const_expr(self.config.specialised):
            HopperGemm._play(self, task)
        else:
            self._consume(task, task.place.warpgroup)
            if cutlass.const_expr(self.config.cluster_size > 1):
                cute.arch.cluster_arrive()
                cute.arch.cluster_wait()

    @cute.jit
    def _fall_behind(self, task: CtaTask, walk, at, consumer: Int32) -> None:
        if cutlass.const_expr(self.config.skew > 0):
            # only for a stage of the first item: a CTA may have no other, or, handed out dynamically, none at all
            if walk.more(at):
                if consumer * self.config.skew < walk.item(at).k_count:
                    task.ring.wait(consumer * self.config.skew, Int32(0))

    # What the roles use ----------------------------------------------------------------------

    def _state(self, phase: int) -> RingState:
        kind = LibraryState if self.config.ring == "library" else STATES[self.config.ring_state]
        return kind.first(self.config.stages, phase=phase)

    def _peeks(self, side: str) -> bool:
        return self.config.peeks(side)

    @property
    def _unroll(self) -> int:
        return self.config.stages if self.config.unroll else 1

    def _loads(self, task: CtaTask) -> Loads:
        loads, operands = super()._loads(task), task.operands
        if not isinstance(operands, PromotedOperands):
            return loads
        return replace(loads, a=PromotedLoad.of(loads.a, operands.map_a), b=PromotedLoad.of(loads.b, operands.map_b))

    def _filler(self, task: CtaTask, loads: Loads) -> Fill:
        fill, config = super()._filler(task, loads), self.config
        given = {field.name: getattr(fill, field.name) for field in fields(Fill)} | {"unroll": self._unroll}
        return LadderFill(**given, apart=config.split_k if config.interleave_k else 1, rotate=config.rotate_k)

    def _mainloop(self, task: CtaTask, share: Share, epilogue: ConsumerEpilogue) -> Mainloop:
        loop = replace(super()._mainloop(task, share, epilogue), unroll=self._unroll)
        if self.config.specialised:
            return loop
        given = {field.name: getattr(loop, field.name) for field in fields(Mainloop)}
        ahead = self.config.stages - 1 - self.config.stagger
        return LoadingMainloop(**given, loads=self._loads(task), ahead=ahead, mine=task.place.warp == 0)

    def _of_tile(self, loop: Mainloop, item: Item, row: Int32, column: Int32) -> Mainloop:
        loop = super()._of_tile(loop, item, row, column)
        return loop if self.config.specialised else replace(loop, row=row, column=column)

    def _ring(self, storage) -> Ring:
        config = self.config
        halves = tuple(ELEMENT_BYTES * tile * config.tile_k for tile in (config.tile_m, config.tile_n))
        ring = LadderRing.of(super()._ring(storage), config, halves)
        return LibraryRing.keeping(ring) if config.ring == "library" else ring
