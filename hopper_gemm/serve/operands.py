"""Layout of matrices in memory: TMA's requirements, copies that meet them, overlaps."""

from __future__ import annotations

import torch

from hopper_gemm.model import hopper
from hopper_gemm.model.rules.problem import reachable


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


def copied(matrix: torch.Tensor, rows: int, depth: int) -> torch.Tensor:
    """An operand as (rows, depth) within TMA's reach, copied and padded if necessary; it keeps its contiguous axis.

    Padding along k is zero; padding rows are uninitialised, since they reach only rows and columns of the product that
    are cut off.
    """
    if tuple(matrix.shape) == (rows, depth) and (reaches(matrix) or reaches(matrix.t())):
        return matrix
    own_rows, own_depth = matrix.shape
    lies = has_rows(matrix.t()) and not has_rows(matrix)
    copy = matrix.new_empty(depth, rows).t() if lies else matrix.new_empty(rows, depth)
    if own_depth == depth or lies:
        copy[:own_rows, :own_depth] = matrix
        copy[:, own_depth:] = 0
    else:  # one launch fewer: launches are the whole cost of copying a small matrix
        torch.cat((matrix, matrix.new_zeros(own_rows, depth - own_depth)), 1, out=copy[:own_rows])
    return copy


def copied_pair(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands (m, k) and (k, n) as :func:`copied`, padded to multiples of 8."""
    (m, k), n = a.shape, b.shape[1]
    rows = reachable(m) if has_rows(a.t()) and not has_rows(a) else m
    return copied(a, rows, reachable(k)), copied(b.t(), reachable(n), reachable(k)).t()


def extent(matrix: torch.Tensor) -> int:
    """Bytes from its first element to the end of its last."""
    (rows, columns), (down, along) = matrix.shape, matrix.stride()
    return ((rows - 1) * down + (columns - 1) * along + 1) * matrix.element_size()


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
