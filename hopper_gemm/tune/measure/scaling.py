"""Scales of FP8 operands: drawn in torch's layouts, as the kernel takes them, and multiplied into the operands."""

from __future__ import annotations

import torch

from hopper_gemm.model.problem import BLOCK, GemmProblem
from hopper_gemm.serve.scaled import OPERANDS, spread

Scales = tuple[torch.Tensor, torch.Tensor]
"""Of A and of B, as torch.nn.functional.scaled_mm takes them."""

TYPES = {name: dtype for dtype, name in OPERANDS.items()}
"""Types of FP8 operands by their names."""


def drawn_scales(problem: GemmProblem, kind: str, generator: torch.Generator) -> Scales:
    """Return scales from 0.5 to 1.5 of a kind of :data:`hopper_gemm.model.finish.SCALES`. Rows of B's scales of blocks
    that only fill up are NaN: none of them may be read."""
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
    """Return scales as a kernel takes them."""
    first, second = ((side.t() if kind == "blocks" else side.reshape(-1)) for side in scales)
    return first, second


def dequantised(a: torch.Tensor, b: torch.Tensor, scales: Scales, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands (m, k) and (n, k) times their scales, in fp32."""
    first, second = scales
    if kind == "blocks":
        return a.float() * spread(first, 1, *a.shape), b.float() * spread(second.t(), BLOCK, *b.shape)
    return a.float() * first.reshape(-1, 1), b.float() * second.reshape(-1, 1)
