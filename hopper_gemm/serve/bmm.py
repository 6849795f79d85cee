"""``hopper_gemm.bmm`` and ``baddbmm``: torch's by matmul's kernel, in one launch."""

from __future__ import annotations

from typing import Any

import torch

from hopper_gemm.model.problem import shown
from hopper_gemm.model.rules.invariance import parts_of
from hopper_gemm.serve.call import Call, Maybe, output_of
from hopper_gemm.serve.checks import DTYPES, MisfitError, check_call
from hopper_gemm.serve.grouped_mm import batched
from hopper_gemm.serve.kernels import MODE
from hopper_gemm.serve.launches import launch
from hopper_gemm.serve.operands import MISALIGNED, folded
from hopper_gemm.serve.ops import NAMESPACE, OPERATORS, TAGS, by_operator, flops_of, implement, untraced
from hopper_gemm.serve.reference import falls_back


def bmm(
    a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    """``a @ b`` of batches of matrices on a Hopper GPU, fp32 accumulation, as :func:`torch.bmm`, with gradients.

    :func:`hopper_gemm.matmul`'s kernel multiplies all matrices in one launch. It is launched once for each matrix where
    TMA cannot read or write one in place (rows or matrices that do not start at multiples of 16 bytes, a stride of 0),
    and where a batch-invariant product cuts k into parts.

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
    return by_operator(Call(a, b, out_dtype=out_dtype, batch_invariant=batch_invariant, kind="bmm"))


@untraced
def _bmm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    """The operator on a GPU."""
    check_call(Call(a, b, out_dtype=out_dtype, kind="bmm"))
    batch, m, n = *a.shape[:2], b.shape[-1]
    with torch.no_grad():  # autograd has been here
        if b.dim() == 2 or (batch and b.stride(0) == 0):
            rows = Call(folded(a), b if b.dim() == 2 else b[0], out_dtype=out_dtype, batch_invariant=batch_invariant)
            return launch(rows._replace(kind="mm")).view(batch, m, n)
        out = a.new_empty((batch, m, n), dtype=out_dtype or a.dtype)
        rule = MODE.batch_invariant if batch_invariant is None else batch_invariant
        whole = out.numel() and a.shape[-1] and not (rule and parts_of(n, a.shape[-1]) > 1)
        if whole and a.dtype in DTYPES and batched(a, b, out, invariant=rule):
            return out
        for left, right, product in zip(a, b, out, strict=True):
            launch(Call(left, right, out=product, batch_invariant=batch_invariant, kind="mm"))
    return out


OPERATORS.impl("bmm", _bmm, "CUDA")


def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``beta * input + alpha * (batch1 @ batch2)`` as :func:`torch.baddbmm`, in fp32 and rounded once, with gradients.

    One launch with a ``beta`` of 0 or 1, where :func:`bmm` is one. With another ``beta``, and elsewhere, torch adds to
    an fp32 product, or multiplies the input by ``beta`` first.

    Args:
        input: of the operands' type or the output's, of a shape that broadcasts to (batch, m, n); not read if ``beta``
            is 0.
        batch1, batch2: (batch, m, k) and (batch, k, n), as of ``bmm``.
        beta, alpha: numbers, without a gradient.
        out_dtype: as of ``bmm``.

    Raises:
        TypeError, ValueError, UnsupportedError: as of ``bmm``; an input that does not fit.

    Example:
        >>> y = hopper_gemm.baddbmm(bias, x, experts)                               # doctest: +SKIP
    """
    for name, given in (("input", input), ("batch1", batch1), ("batch2", batch2)):
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor but is {shown(type(given).__name__)}; give one")
    if falls_back(call := Call(batch1, batch2, out_dtype=out_dtype, kind="bmm")):
        return torch.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha).to(output_of(call)[1])
    return torch.ops.hopper_gemm.baddbmm(input, batch1, batch2, float(beta), float(alpha), out_dtype)


def _new_sum(
    addend: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A new output of ``beta * addend + alpha * (a @ b)``, of arguments that fit; tensors may be fake."""
    check_call(Call(a, b, out_dtype=out_dtype, kind="bmm"))
    if b.dim() != 3:
        raise MisfitError(f"batch2 must be (batch, k, n) but is {tuple(b.shape)}; give it as .expand()")
    shape, dtype = (*a.shape[:-1], b.shape[-1]), out_dtype or a.dtype
    if addend.dtype not in (a.dtype, dtype) or addend.device != a.device:
        raise MisfitError(f"input must be {dtype} on {a.device} but is {addend.dtype} on {addend.device}; use .to()")
    sides = zip(addend.shape[::-1], shape[::-1], strict=False)
    if addend.dim() > 3 or not all(own in (1, size) for own, size in sides):
        raise MisfitError(f"input must broadcast to {tuple(shape)} but is {tuple(addend.shape)}; reshape it")
    return a.new_empty(shape, dtype=dtype)


@untraced
def _sum_of(
    addend: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The operator: by the kernel on a GPU, else by torch, added to an fp32 product."""
    out = _new_sum(addend, a, b, beta, alpha, out_dtype)
    matrix = addend.expand(out.shape)
    if a.is_cuda and out.numel() and a.shape[-1] and a.dtype in DTYPES and not MODE.batch_invariant:
        plain = beta in (0, 1)
        target = out if plain else out.new_empty(out.shape, dtype=torch.float32)
        matrix = matrix.to(target.dtype) if plain else matrix.float() * beta
        pitches = (matrix.stride(0) | matrix.stride(1)) * matrix.element_size()
        if matrix.stride(-1) != 1 or (matrix.data_ptr() | pitches) & MISALIGNED:
            matrix = matrix.clone(memory_format=torch.contiguous_format)
        if batched(a, b, target, matrix if beta else None, None if alpha == 1 else alpha):
            return target.to(out.dtype)
    product = torch.ops.hopper_gemm.bmm(a, b, torch.float32) * alpha
    return out.copy_(product + matrix.float() * beta if beta else product)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    addend, a, b, ctx.beta, ctx.alpha, _ = inputs
    _, wants_a, wants_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if wants_b else None, b if wants_a else None)
    ctx.input, ctx.dtype = (addend.shape, addend.dtype), a.dtype


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Maybe, ...]:
    (shape, dtype), of_input = ctx.input, None
    if ctx.needs_input_grad[0]:
        of_input = (gradient.float() * ctx.beta).sum_to_size(shape).to(dtype)
    scaled = (gradient if ctx.alpha == 1 else gradient.float() * ctx.alpha).to(ctx.dtype)
    a, b = ctx.saved_tensors
    multiply = torch.ops.hopper_gemm.bmm
    of_a, of_b = None if b is None else multiply(scaled, b.mT), None if a is None else multiply(a.mT, scaled)
    return of_input, of_a, of_b, None, None, None


OPERATORS.define(
    "baddbmm(Tensor input, Tensor a, Tensor b, float beta=1, float alpha=1, ScalarType? out_dtype=None) -> Tensor",
    tags=TAGS,
)
implement("baddbmm", _new_sum, lambda _, a, b, *__, **___: flops_of(a, b), CUDA=_sum_of, CPU=_sum_of)
torch.library.register_autograd(f"{NAMESPACE}::baddbmm", _backward, setup_context=_save, lib=OPERATORS)
