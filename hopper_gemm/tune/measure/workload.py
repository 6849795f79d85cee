"""Matrices of a measurement: random or zero, more than the L2 holds, with a reference product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, prod
from typing import Any

import torch

from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import DATA, GemmProblem, types_of
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.tune.measure import scaling
from hopper_gemm.tune.measure.correctness import Correctness, check

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
L2_MULTIPLE = 3
"""Buffers that rotate hold this many times the L2, so that every launch finds it cold."""

MOST_SETS = 16384
"""The most sets of matrices: making a set takes host time whatever its size. Problems below 10 kB would need more; the
L2 holds part of their sets."""


@dataclass(frozen=True)
class MatrixSet:
    """A set of matrices. A, B and C of a batch, B of groups of rows and C of groups along k have one more axis, of the
    groups."""

    a: torch.Tensor  # (m, k), contiguous along the axis that the problem's layouts name
    b: torch.Tensor  # (n, k), the transpose of the right operand, contiguous along the axis that the layouts name
    ours: torch.Tensor  # (m, n), output of our kernel
    theirs: torch.Tensor  # (m, n), output of the baseline
    scales: scaling.Scales | None = None  # of A and B in torch's layouts; None where operands have 16 bits
    # arguments of our kernel by name: the scales as it takes them, where groups end
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def memory(self) -> torch.Tensor:
        """A's elements as they lie in memory: int16, in one row."""
        rows = self.a if self.a.is_contiguous() else self.a.mT
        return rows.view(-1).view(torch.int16)


@dataclass(frozen=True)
class Workload:
    """A problem's matrices, as many sets as it takes to exceed the L2, see :func:`sets_of`."""

    problem: GemmProblem
    sets: tuple[MatrixSet, ...]  # sets of matrices; launches rotate over them
    reference: torch.Tensor  # product of the first set in fp32, of operands times their scales
    seed: int  # of the random numbers
    data: str = "normal"  # one of DATA

    def check(self, out: torch.Tensor) -> Correctness:
        """Compare an output of the first set with the reference."""
        problem = self.problem
        depths = [end - start for start, end in spans_of(problem)] if self.reference.dim() == 3 else []
        return check(out, self.reference, max(depths, default=problem.k), problem.promote if problem.is_fp8 else None)


def make_workload(
    problem: GemmProblem, l2_bytes: int, seed: int = 0, data: str = "normal", device: str = "cuda"
) -> Workload:
    """Make matrices on a device, by default the current GPU, for an L2 of a size; the same seed gives the same ones.
    They are standard-normal by default, or another of :data:`hopper_gemm.model.problem.DATA`. Zeros or constants would
    run up to a fifth faster: the power of a tensor core grows with the bits that flip."""
    dtype, out_dtype = ((TYPES | scaling.TYPES)[name] for name in types_of(problem.dtype))
    generator, spans = torch.Generator(device).manual_seed(seed), spans_of(problem)
    m, of_a, of_b, of_c = problem.m, *[tuple[int, ...]()] * 3
    options: dict[str, Any] = {}
    if isinstance(problem, GroupedProblem):
        lead = (problem.groups,)
        batch, masked = problem.grouping == "batch", problem.grouping.startswith("masked")
        m, of_a = (problem.rows, lead) if batch else (m, ())
        of_b, of_c = lead * (not problem.deep), lead * (batch or problem.deep)
        ends = [end - start * masked for start, end in spans]
        options |= {} if batch else {"ends": torch.tensor(ends, device=device, dtype=torch.int32)}

    def operand(groups: tuple[int, ...], rows: int, axis: str) -> torch.Tensor:
        sides = (rows, problem.k) if axis == "k" else (problem.k, rows)
        matrices = filled(prod(groups) * sides[0], sides[1], data, generator).to(dtype).view(*groups, *sides)
        return matrices if axis == "k" else matrices.mT

    def empty() -> torch.Tensor:
        return torch.empty(*of_c, m, problem.n, device=device, dtype=out_dtype)

    def made() -> MatrixSet:
        sides = operand(of_a, m, problem.layouts[0]), operand(of_b, problem.n, problem.layouts[1])
        if not isinstance(problem, ScaledProblem):
            return MatrixSet(*sides, empty(), empty(), options=options)
        scales = scaling.drawn_scales(problem, problem.scales, generator)
        return MatrixSet(*sides, empty(), empty(), scales, {"scales": scaling.for_kernel(scales, problem.scales)})

    sets = tuple(made() for _ in range(sets_of(problem, l2_bytes)))
    first = sets[0]
    if isinstance(problem, ScaledProblem) and first.scales is not None:
        a, b = scaling.dequantised(first.a, first.b, first.scales, problem.scales)
        first = replace(first, a=a, b=b)
    return Workload(problem, sets, fp32_product(first, spans), seed, data)


def spans_of(problem: GemmProblem) -> list[tuple[int, int]]:
    """Return where each group begins and ends, in rows or along k; none of a dense problem or a batch. Groups grow from
    none to twice the mean, since a router gives no two of one size; masked ones are full.

    Example:
        >>> spans_of(GroupedProblem(64, 8, 8, groups=4))
        [(0, 4), (4, 16), (16, 36), (36, 64)]
    """
    if not isinstance(problem, GroupedProblem) or problem.grouping == "batch":
        return []
    size, power = problem.k if problem.deep else problem.m, 1 if problem.grouping.startswith("masked") else 2
    return list(pairwise(round(size * (at / problem.groups) ** power) for at in range(problem.groups + 1)))


def sets_of(problem: GemmProblem, l2_bytes: int) -> int:
    """Return the number of sets of matrices that exceed the L2: at least two, at most :data:`MOST_SETS`.

    Example:
        >>> [sets_of(GemmProblem(size, size, size), 50 << 20) for size in (8, 64, 4096)]
        [16384, 6400, 2]
    """
    return min(MOST_SETS, max(2, ceil(L2_MULTIPLE * l2_bytes / problem.bytes)))


def filled(rows: int, columns: int, data: str, generator: torch.Generator) -> torch.Tensor:
    """Make a (rows, columns) matrix of fp32 on the generator's device; ValueError if ``data`` is not in
    :data:`hopper_gemm.model.problem.DATA`."""
    if data == "normal":
        return torch.randn(rows, columns, device=generator.device, generator=generator)
    if data == "uniform":
        return 2 * torch.rand(rows, columns, device=generator.device, generator=generator) - 1
    if data == "zeros":
        return torch.zeros(rows, columns, device=generator.device)
    raise ValueError(f"data must be one of {', '.join(DATA)} but got {data!r}")


def fp32_product(operands: MatrixSet, spans: Sequence[tuple[int, int]] = ()) -> torch.Tensor:
    """Return the product, or those of groups with these spans, in fp32 arithmetic, tf32 off."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        a, b = operands.a.float(), operands.b.float().mT
        if spans and b.dim() == 2:
            return torch.stack([a[:, start:end] @ b[start:end] for start, end in spans])
        if spans:
            return torch.cat([a[start:end] @ matrix for matrix, (start, end) in zip(b, spans, strict=True)])
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
