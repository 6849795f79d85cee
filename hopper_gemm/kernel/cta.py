"""Task of a CTA: its operands and output from the launch, its shared memory, its tile scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from hopper_gemm.kernel.bundle import Bundle
from hopper_gemm.kernel.epilogue import Chunks
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.operand import Operand
from hopper_gemm.kernel.pipeline import Ring
from hopper_gemm.kernel.place import Place
from hopper_gemm.kernel.work import SLOTS, TileScheduler
from hopper_gemm.model.kernel import Kernel

BUFFER_ALIGN = 1024
"""Bytes; what swizzled tiles need (PTX, tensor map swizzle modes)."""


@dataclass(frozen=True)
class Operands(Bundle):
    """The operands, each as TMA load and TMA tensor; as plain tensor, without a load, where threads copy."""

    atom_a: cute.CopyAtom | None
    a: cute.Tensor
    atom_b: cute.CopyAtom | None
    b: cute.Tensor


@dataclass(frozen=True)
class Output(Bundle):
    """The output: C as TMA store and TMA tensor; as plain tensor, without a store, where threads write. And what the
    epilogue reads for it: a bias (n,), a residual (m, n), a factor, scales of the tile's rows and of its columns; None
    for each that is absent."""

    atom: cute.CopyAtom | None
    c: cute.Tensor
    bias: cute.Tensor | None = None
    residual: cute.Tensor | None = None
    scale: Float32 | None = None
    row_scales: cute.Tensor | None = None
    column_scales: cute.Tensor | None = None


@dataclass(frozen=True)
class Memory:
    """The shared memory of a CTA: A and B as (rows, depth, stage); the layout of C's chunk buffers, or None."""

    storage: Any
    a: cute.Tensor
    b: cute.Tensor
    layout_c: cute.ComposedLayout | None

    @staticmethod
    def of(config: Kernel, a: Operand, b: Operand, chunks: Chunks) -> Memory:
        """Allocate it; with split-K in a cluster A and B are adjacent."""
        layout_a, layout_b, layout_c = a.layout(), b.layout(), None
        if config.epi_buffers:
            layout_c = chunks.layout(config.epi_buffers * config.consumers)
        regions = {
            "A": _buffer(layout_a, a.dtype),
            "B": _buffer(layout_b, b.dtype),
            "C": _buffer(layout_c, chunks.dtype),
            "barriers": cute.struct.MemRange[Int64, config.barriers],
            "mailbox": cute.struct.MemRange[Int64, 3 * SLOTS],
            "tags": cute.struct.MemRange[Int32, config.stages],
        }
        fields = {name.lower(): regions[name] for name in config.smem_map}
        storage = SmemAllocator().allocate(cute.struct(type("Shared", (), {"__annotations__": fields})))
        shared_a = storage.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
        return Memory(storage, shared_a, storage.b.get_tensor(layout_b.outer, swizzle=layout_b.inner), layout_c)


@dataclass(frozen=True)
class CtaTask:
    """Task of a CTA, shared by all of its roles."""

    scheduler: TileScheduler
    operands: Operands
    output: Output
    memory: Memory
    seen: Observer

    @property
    def place(self) -> Place:
        """The place of the thread."""
        return self.scheduler.place

    @property
    def ring(self) -> Ring:
        """The ring of stages."""
        return self.scheduler.ring


def _buffer(layout: cute.ComposedLayout | None, dtype: type[cutlass.Numeric]) -> Any:
    size = cute.cosize(layout) if layout is not None else 0
    return cute.struct.Align[cute.struct.MemRange[dtype, size], BUFFER_ALIGN]
