"""The matrices of a measurement: random or zero, more than the L2 holds, and with a reference product."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch

from hopper_gemm.model.problem import DATA, GemmProblem, types_of

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
L2_MULTIPLE = 3
"""Buffers that rotate hold this many times the L2, so that every launch finds it cold."""

MOST_SETS = 16384
"""Sets of matrices at most, since each takes the host as long to make, whatever its size. Problems below 10 kB would
want more; of these the L2 holds some again."""


@dataclass(frozen=True)
class MatrixSet:
    """One set of matrices.

    Args:
        a: (m, k), contiguous along the axis that the problem's layouts name.
        b: (n, k), likewise: the transpose of the right operand.
        ours: (m, n) of the output's type, where our kernel writes.
        theirs: the same, where the baseline writes.
    """

    a: torch.Tensor
    b: torch.Tensor
    ours: torch.Tensor
    theirs: torch.Tensor

    @property
    def memory(self) -> torch.Tensor:
        """A's elements as they lie in memory: int16 (m * k,)."""
        rows = self.a if self.a.is_contiguous() else self.a.t()
        return rows.view(-1).view(torch.int16)


@dataclass(frozen=True)
class Workload:
    """A problem's matrices, as many sets as it takes to outgrow the L2, see :func:`sets_of`.

    Args:
        problem: what is multiplied.
        sets: the matrices; launches rotate over them.
        reference: the product of the first set in fp32.
        seed: of the random numbers.
        data: what the matrices hold.
    """

    problem: GemmProblem
    sets: tuple[MatrixSet, ...]
    reference: torch.Tensor
    seed: int
    data: str = "normal"


def make_workload(problem: GemmProblem, l2_bytes: int, seed: int = 0, data: str = "normal") -> Workload:
    """Matrices on the current device.

    Standard-normal numbers by default. Zeros or constants would run up to a fifth faster: a tensor core burns power by
    the bits that flip.

    Args:
        problem: sizes, element types, layouts.
        l2_bytes: of the GPU's L2.
        seed: for the generator; the same seed gives the same matrices.
        data: of :data:`hopper_gemm.model.problem.DATA`.
    """
    dtype, out_dtype = (TYPES[name] for name in types_of(problem.dtype))
    generator = torch.Generator("cuda").manual_seed(seed)

    def operand(rows: int, axis: str) -> torch.Tensor:
        if axis == "k":
            return filled(rows, problem.k, data, generator).to(dtype)
        return filled(problem.k, rows, data, generator).to(dtype).t()

    def empty() -> torch.Tensor:
        return torch.empty(problem.m, problem.n, device="cuda", dtype=out_dtype)

    sets = tuple(
        MatrixSet(operand(problem.m, problem.layouts[0]), operand(problem.n, problem.layouts[1]), empty(), empty())
        for _ in range(sets_of(problem, l2_bytes))
    )
    return Workload(problem, sets, fp32_product(sets[0]), seed, data)


def sets_of(problem: GemmProblem, l2_bytes: int) -> int:
    """Sets of matrices that outgrow the L2: at least two, at most :data:`MOST_SETS`.

    Example:
        >>> [sets_of(GemmProblem(size, size, size), 50 << 20) for size in (8, 64, 4096)]
        [16384, 6400, 2]
    """
    return min(MOST_SETS, max(2, ceil(L2_MULTIPLE * l2_bytes / problem.bytes)))


def filled(rows: int, columns: int, data: str, generator: torch.Generator) -> torch.Tensor:
    """A (rows, columns) matrix of fp32 on the generator's device.

    Raises:
        ValueError: ``data`` is none of :data:`hopper_gemm.model.problem.DATA`.
    """
    if data == "normal":
        return torch.randn(rows, columns, device=generator.device, generator=generator)
    if data == "uniform":
        return 2 * torch.rand(rows, columns, device=generator.device, generator=generator) - 1
    if data == "zeros":
        return torch.zeros(rows, columns, device=generator.device)
    raise ValueError(f"data must be one of {', '.join(DATA)} but got {data!r}")


def fp32_product(operands: MatrixSet) -> torch.Tensor:
    """The product in fp32 arithmetic, tf32 off."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return operands.a.float() @ operands.b.float().t()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
