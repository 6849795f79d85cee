"""Layout of matrices in memory: TMA's requirements, the axis along which an operand is read, overlaps."""

from __future__ import annotations

from math import prod

import torch

from hopper_gemm.compiler.padded import RowLayout
from hopper_gemm.model import hopper
from hopper_gemm.model.problem import padded_pitch

MISALIGNED = hopper.TMA_ALIGN_BYTES - 1
"""Bits of an address that must be 0."""


def has_rows(matrix: torch.Tensor) -> bool:
    """Return True if the matrix can be read as contiguous rows that do not overlap."""
    rows, columns = matrix.shape
    return (columns == 1 or matrix.stride(1) == 1) and (rows == 1 or matrix.stride(0) >= columns)


def reaches(matrix: torch.Tensor) -> bool:
    """Return True if TMA reaches the matrix, or the first of a batch: contiguous rows from multiples of 16 bytes, a
    valid pitch even of one."""
    (_, columns), (pitch, along) = matrix.shape[-2:], matrix.stride()[-2:]
    rows = (columns == 1 or along == 1) and pitch >= columns
    return rows and not (matrix.data_ptr() & MISALIGNED or pitch * matrix.element_size() & MISALIGNED)


def rows_of(operand: torch.Tensor) -> RowLayout | None:
    """How an operand (m or n, k) is read: along k or along the other axis, one along which TMA reaches it if there is
    such; None if it is contiguous along neither, or has more rows than a launch can count."""
    sides = (operand, True), (operand.t(), False)
    reached = [along_k for matrix, along_k in sides if reaches(matrix)]
    by_depth = reached or [along_k for matrix, along_k in sides if matrix.shape[1] == 1 or matrix.stride(1) == 1]
    if not by_depth:
        return None
    rows = RowLayout.of(operand.shape, operand.stride(), by_depth[0])
    countable = rows.rows * (rows.size // 8 + 1) < 2**31 - 2**20  # pieces of 16 bytes, which a launch numbers
    return rows if countable else None


def copied(operand: torch.Tensor) -> torch.Tensor:
    """A copy of an operand (m or n, k), contiguous along k and within TMA's reach."""
    rows, size = operand.shape
    return operand.new_empty(rows, padded_pitch(size))[:, :size].copy_(operand)


def as_matrix(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor as a matrix in place, leading axes folded, a vector as one row; None where strides do not allow that."""
    try:
        return tensor.view(prod(tensor.shape[:-1]), tensor.shape[-1])
    except RuntimeError:
        return None


def folded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a matrix, leading axes folded; a view where its strides allow that."""
    return tensor if tensor.dim() == 2 else tensor.reshape(prod(tensor.shape[:-1]), tensor.shape[-1])


def placed(*tensors: torch.Tensor | None) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the bytes that each tensor spans, 0 for None, and whether each is misaligned."""
    extents, misaligned = [0] * len(tensors), [False] * len(tensors)
    for number, tensor in enumerate(tensors):
        if tensor is not None:
            last = sum([(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)])
            extents[number] = (last + 1) * tensor.element_size()
            misaligned[number] = tensor.data_ptr() & MISALIGNED != 0
    return tuple(extents), tuple(misaligned)


def owns_its_elements(matrix: torch.Tensor) -> bool:
    """Return True if no two elements share an address: the larger stride exceeds the extent of the smaller one."""
    (near, few), (far, many) = sorted(zip(matrix.stride(), matrix.shape, strict=True))
    return few == 1 or (near > 0 and (many == 1 or far > near * (few - 1)))


def share_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return True if two matrices have an element in common: exact where both are rows of one pitch, such as two blocks
    of columns of one matrix; else if the ranges from first to last element overlap."""
    if second.data_ptr() < first.data_ptr():
        first, second = second, first
    apart, size = second.data_ptr() - first.data_ptr(), first.element_size()
    if apart >= placed(first)[0][0]:
        return False
    alike = size == second.element_size() and first.stride() == second.stride()
    if not (alike and has_rows(first) and has_rows(second)):
        return True
    pitch = first.stride(0) * size
    column = apart % pitch
    return column < first.shape[1] * size or column + second.shape[1] * size > pitch
