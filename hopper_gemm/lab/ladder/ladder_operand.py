"""TMA loads with another L2 promotion than the library's, and prefetches of operands into the L2."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import cutlass
from cutlass import Int32, Int64, cute
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as nvgpu_ir
from cutlass.experimental.cuda.tensor_map import (
    TensorMap,
    TensorMapL2Promotion,
    TensorMapSwizzle,
    create_tensor_map_tiled,
)

from hopper_gemm.kernel.cta import Operands
from hopper_gemm.kernel.operand import Loads, OperandLoad
from hopper_gemm.model import hopper
from hopper_gemm.model.problem import ELEMENT_BYTES

PROMOTIONS = {
    0: TensorMapL2Promotion.none,
    64: TensorMapL2Promotion.l2_64b,
    128: TensorMapL2Promotion.l2_128b,
    256: TensorMapL2Promotion.l2_256b,
}
SWIZZLES = {128: TensorMapSwizzle.s128b, 64: TensorMapSwizzle.s64b, 32: TensorMapSwizzle.s32b}
ALIGN = 64
"""Bytes; of a descriptor (CUDA driver API, cuTensorMapEncodeTiled)."""


@dataclass(frozen=True)
class PromotedOperands(Operands):
    """The operands with descriptors of another L2 promotion beside those of their TMA loads."""

    map_a: TensorMap | None = None
    map_b: TensorMap | None = None


@dataclass(frozen=True)
class PromotedLoad(OperandLoad):
    """An operand's load by another descriptor than its TMA copy's own."""

    descriptor: cute.Pointer | None = None

    @staticmethod
    def of(load: OperandLoad, descriptor: TensorMap | None) -> PromotedLoad:
        """Return the load by a descriptor."""
        given = {field.name: getattr(load, field.name) for field in fields(OperandLoad)}
        return PromotedLoad(**given, descriptor=None if descriptor is None else descriptor_pointer(descriptor))

    @property
    def options(self) -> dict[str, Any]:
        """Further options of a copy."""
        return {"tma_desc_ptr": self.descriptor}


@cute.jit
def prefetch(loads: Loads, row: Int32, column: Int32, k_tile: Int32) -> None:
    """Prefetch the operands of a stage of the output tile at a row and column into the L2."""
    for load, first_row in ((loads.a, row), (loads.b, column)):
        source = load.source_from(first_row)
        for i in cutlass.range_constexpr(load.count):
            part = load.first + i
            for box in cutlass.range(load.boxes, unroll=1):
                cute.prefetch(load.atom, source[None, (part, k_tile * load.boxes + box)])


def load_descriptor(matrix: cute.Tensor, box: tuple[int, int], by_rows: bool, l2_promotion: int) -> TensorMap:
    """Return the descriptor of a load of boxes of a matrix, with a chosen L2 promotion. On the host.

    Args:
        matrix: (rows, depth) in global memory.
        box: rows and columns of a box; its contiguous side is a row of the swizzle.
        by_rows: whether rows are contiguous, and not depth.
        l2_promotion: bytes, a key of :data:`PROMOTIONS`.
    """
    inner, outer = (0, 1) if by_rows else (1, 0)
    return create_tensor_map_tiled(
        matrix.iterator.toint(),
        matrix.element_type,
        [cute.size(matrix, mode=[inner]), cute.size(matrix, mode=[outer])],
        [Int64(matrix.stride[outer]) * ELEMENT_BYTES // hopper.TMA_ALIGN_BYTES],
        [box[inner], box[outer]],
        swizzle=SWIZZLES[box[inner] * ELEMENT_BYTES],
        l2_promotion=PROMOTIONS[l2_promotion],
    )


def descriptor_pointer(descriptor: TensorMap) -> cute.Pointer:
    """Return a descriptor's address as a TMA copy takes it. On the device, the descriptor being a grid constant."""
    address = cute_ir.assume(cute_ir.ConstrainedIntType.get(ALIGN, 64), Int64(descriptor.get_ptr().toint()).ir_value())
    kind = cute_ir.PtrType.get(nvgpu_ir.TmaDescriptorTiledType.get(), cute.AddressSpace.generic, ALIGN)
    return cute_ir.inttoptr(kind, address)
