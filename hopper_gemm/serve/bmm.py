"""``hopper_gemm.bmm``: torch.bmm by matmul's kernel, one launch for each matrix of a batch.

``torch.ops.hopper_gemm.bmm`` is what compilers, autograd and autocast see of it. On a CPU it runs a reference, an fp32
product rounded once. The gradients are products of the kernel too, each read in place from the matrices as they lie.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from hopper_gemm.serve.checks import check_batches, check_type, refuse_others
from hopper_gemm.serve.kernels import MODE
from hopper_gemm.serve.linear import falls_back
from hopper_gemm.serve.linear_ops import folded
from hopper_gemm.serve.matmul import matmul
from hopper_gemm.serve.ops import NAMESPACE, OPERATORS, autocast_rule, mm

OPERATORS.define("bmm(Tensor a, Tensor b, ScalarType? out_dtype=None, bool? batch_invariant=None) -> Tensor")

bmm_op = torch.ops.hopper_gemm.bmm.default


def bmm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
) -> torch.Tensor:
    """``a @ b`` of batches of matrices on a Hopper GPU, fp32 accumulation, as :func:`torch.bmm`, with gradients.

    :func:`hopper_gemm.matmul`'s kernel is launched once for each matrix of the batch, one launch after the other. That
    suits few large matrices. Many small ones are the case of :func:`torch.bmm`, which multiplies all in one launch.

    Args:
        a: (batch, m, k), bf16 or fp16; each matrix as ``matmul`` takes it, read in place.
        b: (batch, k, n), same type and device. One matrix for the whole batch, given as (k, n) or expanded with a
            stride of 0, is multiplied in one launch by all rows of ``a`` together, without a copy where the strides of
            ``a`` allow that. Given as (k, n), its gradient is one product too.
        out_dtype: ``torch.float32`` or the operands' type, which is the default.
        batch_invariant: as of ``matmul``; by default as the thread's context says.

    Returns:
        (batch, m, n), contiguous, written on torch's current stream.

    What the kernel cannot run goes to torch, by the policy of :func:`hopper_gemm.fallback`.

    Raises:
        TypeError, ValueError: no torch tensors, types that differ, or shapes that do not fit.
        UnsupportedError: as of ``matmul``, where nothing falls back.

    Example:
        >>> y = hopper_gemm.bmm(x, experts)                                         # doctest: +SKIP
    """
    rule = MODE.batch_invariant if batch_invariant is None else batch_invariant
    if not is_dynamo_compiling():
        refuse_others(a=a, b=b)
    if not falls_back(a, b, rule):
        return bmm_op(a, b, out_dtype, rule)
    check_batches(a, b, out_dtype)
    dtype = out_dtype or a.dtype
    return torch.matmul(a.to(dtype), b.to(dtype)).to(dtype)


def _bmm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    """The operator on a GPU."""
    check_batches(a, b, out_dtype)
    batch, m, n = *a.shape[:2], b.shape[-1]
    how: Any = {"batch_invariant": batch_invariant}
    with torch.no_grad():  # autograd has been here
        if b.dim() == 2 or (batch and b.stride(0) == 0):
            shared = b if b.dim() == 2 else b[0]
            return matmul(folded(a), shared, out_dtype=out_dtype, **how).view(batch, m, n)
        out = a.new_empty((batch, m, n), dtype=out_dtype or a.dtype)
        for one, other, product in zip(a, b, out, strict=True):
            matmul(one, other, out=product, **how)
    return out


def _bmm_cpu(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    check_batches(a, b, out_dtype)
    check_type(a, b)
    return (a.float() @ b.float()).to(out_dtype or a.dtype)


def _bmm_fake(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    check_batches(a, b, out_dtype)
    check_type(a, b)
    return a.new_empty((*a.shape[:2], b.shape[-1]), dtype=out_dtype or a.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, _, rule = inputs
    wants_a, wants_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if wants_b else None, b if wants_a else None)
    ctx.dtype, ctx.shared = a.dtype, b.dim() == 2
    ctx.batch_invariant = MODE.batch_invariant if rule is None else rule


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    a, b = ctx.saved_tensors
    gradient, rule = gradient.to(ctx.dtype), ctx.batch_invariant
    of_a = None if b is None else bmm_op(gradient, b.mT, None, rule)
    if a is None:
        return of_a, None, None, None
    if ctx.shared:
        return of_a, mm(folded(a).t(), folded(gradient), None, rule), None, None
    return of_a, bmm_op(a.mT, gradient, None, rule), None, None


OPERATORS.impl("bmm", _bmm, "CUDA")
OPERATORS.impl("bmm", _bmm_cpu, "CPU")
for _key in ("AutocastCUDA", "AutocastCPU"):
    OPERATORS.impl("bmm", autocast_rule(bmm_op), _key)
torch.library.register_fake(f"{NAMESPACE}::bmm", _bmm_fake, lib=OPERATORS)
torch.library.register_autograd(f"{NAMESPACE}::bmm", _backward, setup_context=_save, lib=OPERATORS)
