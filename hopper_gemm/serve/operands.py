"""Layout of matrices in memory: TMA's requirements, the axis along which an operand is read, overlaps."""

from __future__ import annotations

from math import prod

import torch

from hopper_gemm.compiler.padding import Rows
from hopper_gemm.model import hopper
from hopper_gemm.model.problem import padded_pitch

MISALIGNED = hopper.TMA_ALIGN_BYTES - 1
"""Bits of an address that must be 0."""


def has_rows(matrix: torch.Tensor) -> bool:
    """Return True if the matrix can be read as contiguous rows that do not overlap."""
    rows, columns = matrix.shape
    return (columns == 1 or matrix.stride(1) == 1) and (rows == 1 or matrix.stride(0) >= columns)


def reaches(matrix: torch.Tensor) -> bool:
    """Return True if TMA reaches the matrix: contiguous rows that start at multiples of 16 bytes, with a valid pitch
    even if there is only one row."""
    step = hopper.TMA_ALIGN_BYTES
    pitch = matrix.stride(0) * matrix.element_size()
    return has_rows(matrix) and matrix.stride(0) >= matrix.shape[1] and not (matrix.data_ptr() % step or pitch % step)


def reads_along_k(operand: torch.Tensor) -> bool | None:
    """The axis along which an operand (m or n, k) is read: True for k, False for the other, None if it is contiguous
    along neither. One along which TMA reaches it is preferred."""
    for matrix, along_k in ((operand, True), (operand.t(), False)):
        if reaches(matrix):
            return along_k
    for matrix, along_k in ((operand, True), (operand.t(), False)):
        if matrix.shape[1] == 1 or matrix.stride(1) == 1:
            return along_k
    return None


def rows_of(operand: torch.Tensor) -> Rows | None:
    """How an operand (m or n, k) lies; None if it cannot be read as rows."""
    along_k = reads_along_k(operand)
    if along_k is None:
        return None
    rows = Rows.of(operand.shape, operand.stride(), along_k)
    return rows if rows.countable else None


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


def extent(tensor: torch.Tensor) -> int:
    """Bytes from its first element to the end of its last."""
    last = 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * stride
    return (last + 1) * tensor.element_size()


def extents(*tensors: torch.Tensor | None) -> tuple[int, ...]:
    """The extent of each tensor; 0 for None."""
    return tuple([0 if tensor is None else extent(tensor) for tensor in tensors])


def misaligned(*tensors: torch.Tensor | None) -> tuple[bool, ...]:
    """Whether each tensor begins off a multiple of 16 bytes."""
    return tuple([tensor is not None and tensor.data_ptr() & MISALIGNED != 0 for tensor in tensors])


def owns_its_elements(matrix: torch.Tensor) -> bool:
    """Return True if no two elements share an address: the larger stride exceeds the extent of the smaller one."""
    (near, few), (far, many) = sorted(zip(matrix.stride(), matrix.shape, strict=True))
    return few == 1 or (near > 0 and (many == 1 or far > near * (few - 1)))


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two matrices have an element in common: exact where both are rows of one pitch, such as two blocks
    of columns of one matrix; else if the ranges from first to last element overlap."""
    apart = other.data_ptr() - one.data_ptr()
    if apart >= extent(one) or -apart >= extent(other):
        return False
    size = one.element_size()
    pitch = one.stride(0) * size
    if size != other.element_size() or one.stride() != other.stride() or not (has_rows(one) and has_rows(other)):
        return True
    if apart < 0:
        one, other, apart = other, one, -apart
    column = apart % pitch
    return column < one.shape[1] * size or column + other.shape[1] * size > pitch
