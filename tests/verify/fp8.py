"""Products of FP8: scales, drawn in torch's layouts; the operands times them; torch's product of the same recipe; and
how far from exact a right product may be."""

from __future__ import annotations

from math import hypot
from typing import Any

import torch

from hopper_gemm.model.problem import BLOCK, GemmProblem
from hopper_gemm.serve.scaled import OPERANDS, RECIPES, spread

Scales = tuple[torch.Tensor, torch.Tensor]
"""Of A and of B, as torch.nn.functional.scaled_mm takes them."""

TYPES = {name: dtype for dtype, name in OPERANDS.items()}
"""Types of FP8 operands by their names."""

ROUNDED = {torch.bfloat16: 1.72e-3, torch.float16: 2.2e-4, torch.float32: 0.0}
"""Relative Frobenius error of the output's rounding alone."""

UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}

FAST_ERROR, PROMOTED_ERROR = 4e-5, {128: 2.6e-4, 256: 4.2e-4, 512: 7e-4}
"""Errors of the sums alone: of fast ones by the root of k, of promoted ones by the interval. Twice what a simulation of
13 bits gives: 1.3e-3 at k = 4096 and 3.1e-3 at 16384; 1.3e-4, 2.1e-4 and 3.5e-4."""

FEW, OF_FEW = 10_000, 1.5
"""Elements of an output that is small, and by what its error may be larger, since fewer of them make up its mean."""

ELEMENT_ERRORS = 10
"""Largest error of an element beside rounding, in relative errors of the output times the output's mean size and the
element's own: what tensor cores cut off grows with the sum. The largest of 3 million simulated sums of 13 bits was 18
times the relative error for the mean size alone, 7.5 times with both."""


def drawn_scales(problem: GemmProblem, kind: str, generator: torch.Generator) -> Scales:
    """Scales from 0.5 to 1.5 of a kind of :data:`hopper_gemm.model.finish.SCALES`. Rows of B's scales of blocks that
    only fill up are NaN: none of them may be read."""
    deep, wide = -(-problem.k // BLOCK), -(-problem.n // BLOCK)
    filled = -(-deep // 4) * 4
    sides: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "tensor": ((1,), (1,)),
        "row": ((problem.m, 1), (1, problem.n)),
        "blocks": ((deep, problem.m), (wide, filled)),
    }
    first, second = (torch.rand(*side, device=generator.device, generator=generator) + 0.5 for side in sides[kind])
    if kind == "blocks":
        second[:, deep:] = float("nan")
    return (first.t(), second.t()) if kind == "blocks" else (first, second)


def for_kernel(scales: Scales, kind: str) -> Scales:
    """The same as a kernel takes them."""
    first, second = ((side.t() if kind == "blocks" else side.reshape(-1)) for side in scales)
    return first, second


def dequantised(a: torch.Tensor, b: torch.Tensor, scales: Scales, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands (m, k) and (n, k) times their scales, in fp32."""
    first, second = scales
    if kind == "blocks":
        return a.float() * spread(first, 1, *a.shape), b.float() * spread(second.t(), BLOCK, *b.shape)
    return a.float() * first.reshape(-1, 1), b.float() * second.reshape(-1, 1)


def torch_product(a: torch.Tensor, b: torch.Tensor, scales: Scales, kind: str, fast: bool) -> torch.Tensor:
    """torch's product in bf16 of operands (m, k) and (n, k)."""
    functional: Any = torch.nn.functional
    names = next(names for names, its in RECIPES.items() if its == kind)
    first, second = (getattr(functional.ScalingType, name) for name in names)
    given = a, b.t(), scales[0], first, scales[1], second
    return functional.scaled_mm(*given, output_dtype=torch.bfloat16, use_fast_accum=fast)


def most_error(k: int, promote: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """The largest relative Frobenius error of a product's output."""
    return hypot(ROUNDED[dtype], PROMOTED_ERROR[promote] if promote else FAST_ERROR * k**0.5)


def mistake(out: torch.Tensor, exact: torch.Tensor, k: int, promote: int) -> str:
    """What is wrong with the output of a product; empty where nothing is."""
    most = most_error(k, promote, out.dtype) * (OF_FEW if out.numel() < FEW else 1.0)
    off, size = (out.float() - exact).abs(), torch.linalg.vector_norm(exact) / exact.numel() ** 0.5
    if unwritten := int(out.isnan().sum()):
        return f"{unwritten} of {out.numel()} elements were not written"
    wrong = int((off > UNIT_ROUNDOFF[out.dtype] * exact.abs() + ELEMENT_ERRORS * most * (size + exact.abs())).sum())
    error = float(torch.linalg.vector_norm(off) / (size * exact.numel() ** 0.5))
    if wrong:
        return f"{wrong} of {out.numel()} elements are off by more than rounding, relative error {error:.2e}"
    return f"relative error {error:.2e} exceeds {most:.1e}" if error > most else ""
