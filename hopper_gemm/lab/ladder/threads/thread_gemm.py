"""The kernel with operands copied, or C written, by threads instead of the copy engine."""

from __future__ import annotations

from dataclasses import replace

import cutlass
from cutlass import Int32, cute

from hopper_gemm.kernel.cta import CtaTask, Operands, Output
from hopper_gemm.kernel.epilogue import ConsumerEpilogue
from hopper_gemm.kernel.gemm import INIT_WARP, HopperGemm
from hopper_gemm.kernel.pipeline import Ring
from hopper_gemm.kernel.place import Place
from hopper_gemm.lab.ladder.ladder_config import LadderKernel
from hopper_gemm.lab.ladder.threads.cp_async import COPIES_UNDER_WAY, CopyFill, ThreadLoad, ThreadLoads
from hopper_gemm.lab.ladder.threads.direct_store import DirectEpilogue
from hopper_gemm.model import hopper
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.problem import ELEMENT_BYTES


class ThreadGemm(HopperGemm):
    """:class:`HopperGemm` for the config's ``loads`` cp_async (all four warps of the producer copy A and B) and mixed
    (A by TMA, B by cp.async), and ``stores`` direct (consumers write C from registers)."""

    config: LadderKernel

    def _operands(self, a: cute.Tensor, b: cute.Tensor) -> Operands:
        if self.config.loads == "tma":
            return super()._operands(a, b)
        if self.config.loads == "cp_async":
            return Operands(None, a, None, b)
        load_a = self.a.load_atom(a)
        return Operands(load_a.atom, load_a.tma_tensor, None, b)

    def _output(self, c: cute.Tensor) -> Output:
        return super()._output(c) if self.config.stores == "tma" else Output(None, c)

    @property
    def init_warp(self) -> int:
        """Warp that initialises the barriers: the first where all wait for it."""
        return INIT_WARP if self.config.loads == "tma" else 0

    @cute.jit
    def _await_barriers(self, position: Place) -> None:
        """All threads wait: every warp of the producer uses the barriers."""
        if cutlass.const_expr(self.config.loads == "tma" or self.config.cluster_size > 1):
            HopperGemm._await_barriers(self, position)
        else:
            cute.arch.sync_threads()

    @cute.jit
    def _produce(self, task: CtaTask) -> None:
        """Load every item of this CTA, by all threads of the warpgroup."""
        if cutlass.const_expr(self.config.loads == "tma"):
            HopperGemm._produce(self, task)
        else:
            self._await_launch()
            self._fill(task, self._copy_fill(task), self._state(phase=1))

    def _copy_fill(self, task: CtaTask) -> CopyFill:
        """Return the loads by the producer's threads: of both operands, or of B beside loads of A by TMA."""
        config, thread, operands = self.config, task.place.thread, task.operands
        storage, span = task.memory.storage, self.config.swizzle_bytes * 8 // self.dtype.width
        if config.loads == "mixed":
            a = self.a.load(operands.atom_a, task.memory.a, operands.a, 0, 0)
        else:
            a = ThreadLoad.of(thread, operands.a, storage.a.data_ptr(), config.tile_m, config.tile_k, span)
        b = ThreadLoad.of(thread, operands.b, storage.b.data_ptr(), config.tile_n, config.tile_k, span)
        loads = ThreadLoads(task.ring, a, b, task.place.warp == 0)
        lag = min(config.stages - 1 - config.stagger, COPIES_UNDER_WAY)
        return CopyFill(loads, lag, self._peeks("producer"), self._state(phase=0))

    def _epilogue(self, task: CtaTask, consumer: Int32, own: cute.Tensor) -> ConsumerEpilogue | DirectEpilogue:
        if self.config.stores == "tma":
            return super()._epilogue(task, consumer, own)
        assert self.finish == Epilogue(), "a rule refuses a finish with direct stores"
        thread, c = task.place.in_group, task.output.c
        return DirectEpilogue.of(thread, c, self.config.share_n, self.out_dtype, self.scattered)

    def _ring(self, storage) -> Ring:
        """Every copying warp arrives on a full barrier, beside the thread that announces the bytes of TMA loads."""
        ring, config = super()._ring(storage), self.config
        if config.loads == "cp_async":
            return replace(ring, load_bytes=0, loading=hopper.WARPGROUP_WARPS)
        if config.loads == "mixed":
            bytes_of_a = ELEMENT_BYTES * config.tile_m * config.tile_k
            return replace(ring, load_bytes=bytes_of_a, loading=1 + hopper.WARPGROUP_WARPS)
        return ring
