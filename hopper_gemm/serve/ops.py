"""The operators ``torch.ops.hopper_gemm``: what compilers, autograd and autocast see of :func:`hopper_gemm.matmul`.

``from hopper_gemm import matmul`` registers them. ``mm(a, b, out_dtype=None, batch_invariant=None)`` returns a new
(m, n) matrix, contiguous along n; ``mm_out(a, b, out, batch_invariant=None)`` writes ``out`` and returns nothing. Both
take what ``matmul`` takes.

On a Hopper GPU they run the kernel (:mod:`hopper_gemm.serve.matmul`). On a CPU they run a reference, an fp32 product
rounded once, with which a model and its gradients can be tested where there is no GPU. Fake tensors, and so
torch.compile and torch.export, see shapes and types; sizes may be symbolic.

The gradients are products of the kernel too, each read in place from the matrices as they lie: dA = dC Bt; dB, which
lies as B does, At dC or the transpose of dCt A. They have the operands' type, accumulated in fp32; the gradient of an
fp32 output is rounded to that type first. Those of a batch-invariant product follow the same rule: dA's rows depend on
no other row; dB adds up the rows of the batch, and has the same bits in every run with the same m. Within
``torch.autocast`` fp32 operands are cast to its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from hopper_gemm.serve.checks import check_matrices, check_memory
from hopper_gemm.serve.kernels import MODE
from hopper_gemm.serve.known import native

NAMESPACE = "hopper_gemm"

OPERATORS = Library(NAMESPACE, "DEF")
OPERATORS.define("mm(Tensor a, Tensor b, ScalarType? out_dtype=None, bool? batch_invariant=None) -> Tensor")
OPERATORS.define("mm_out(Tensor a, Tensor b, Tensor(a!) out, bool? batch_invariant=None) -> ()")

mm = torch.ops.hopper_gemm.mm.default
mm_out = torch.ops.hopper_gemm.mm_out.default


_NATIVE: list[Any] = []
"""Handles of the operators that the extension implements."""


def implement(name: str, function: Callable[..., Any]) -> None:
    """Register an operator on a GPU: by the extension, which calls the function where it knows no launch, or by the
    function alone."""
    extension = native()
    if extension is None:
        OPERATORS.impl(name, function, "CUDA")
    else:
        _NATIVE.append(extension.implement(name, function, "CUDA"))


# A product ------------------------------------------------------------------------------------


def _mm_cpu(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    check_matrices(a, b, None, out_dtype)
    return (a.float() @ b.float()).to(out_dtype or a.dtype)


def _mm_out_cpu(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, batch_invariant: bool | None = None) -> None:
    check_matrices(a, b, out, None)
    check_memory(out, a, b)
    out.copy_(a.float() @ b.float())


def _mm_fake(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    check_matrices(a, b, None, out_dtype)
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)


def _mm_out_fake(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, batch_invariant: bool | None = None) -> None:
    check_matrices(a, b, out, None)


for _name, _on_cpu, _fake in (("mm", _mm_cpu, _mm_fake), ("mm_out", _mm_out_cpu, _mm_out_fake)):
    OPERATORS.impl(_name, _on_cpu, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=OPERATORS)


# Its gradients --------------------------------------------------------------------------------


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradients of a product need, of the arguments of ``mm``."""
    a, b, _, batch_invariant = inputs
    wants_a, wants_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if wants_b else None, b if wants_a else None)
    ctx.dtype, ctx.by_columns = a.dtype, b.stride(0) == 1 and b.stride(1) != 1
    ctx.batch_invariant = MODE.batch_invariant if batch_invariant is None else batch_invariant


def backward(
    ctx: Any, gradient: torch.Tensor, product: Callable[..., torch.Tensor] = mm
) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    """The gradients of a product by two products, each called as ``mm`` is. That of ``b`` lies as ``b`` does, so that
    the gradient of a layer's weight needs no copy."""
    a, b = ctx.saved_tensors
    gradient, rule = gradient.to(ctx.dtype), ctx.batch_invariant
    of_a = None if b is None else product(gradient, b.t(), None, rule)
    if a is None:
        return of_a, None, None, None
    if ctx.by_columns:
        return of_a, product(gradient.t(), a, None, rule).t(), None, None
    return of_a, product(a.t(), gradient, None, rule), None, None


torch.library.register_autograd(f"{NAMESPACE}::mm", backward, setup_context=save, lib=OPERATORS)


# Autocast -------------------------------------------------------------------------------------


def in_autocast(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Operands in the type to which autocast casts them."""
    dtype = torch.get_autocast_dtype(operands[0].device.type)
    return tuple(one.to(dtype) for one in operands)


def autocast_rule(operator: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return an operator whose first two tensors autocast casts."""

    def call(a: torch.Tensor, b: torch.Tensor, *rest: Any) -> torch.Tensor:
        operands = in_autocast(a, b)
        with torch.autocast(a.device.type, enabled=False):
            return operator(*operands, *rest)

    return call


for _key in ("AutocastCUDA", "AutocastCPU"):
    OPERATORS.impl("mm", autocast_rule(mm), _key)
