"""``hopper_gemm.linear`` and ``swiglu``: a layer's product and what follows it, in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.model import hopper
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.legality import problem_reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve.checks import DTYPES, check_device, refuse_others
from hopper_gemm.serve.kernels import MODE, kernel_for
from hopper_gemm.serve.linear_ops import (
    Maybe,
    check_linear,
    check_rows,
    check_swiglu,
    finished,
    folded,
    halved,
    linear_op,
    swiglu_op,
)
from hopper_gemm.serve.matmul import cast, loading_allowed, matmul, traced
from hopper_gemm.serve.operands import has_rows, reaches
from hopper_gemm.serve.ops import OPERATORS

GATED = Finish(activation="silu", gated=True)

_MISALIGNED = hopper.TMA_ALIGN_BYTES - 1
"""Bits of an address that must be 0."""

_KNOWN_MOST = 4096
"""Most launches kept in ``_known``; beyond it all are dropped."""

Known = tuple[LoadedKernel, int, tuple[int, int], torch.dtype]
"""A launch that passed every check: the kernel, the device, the output's size as a matrix, and its type."""

_known: dict[Any, Known] = {}
"""Launches by all that the checks read, addresses aside."""


def _forget() -> None:
    """Drop known launches after a change of the tuned tables; a call in progress records its launch in the old dict."""
    global _known
    _known = {}


CHANGES.watchers.append(_forget)


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    scale: float | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``activation(scale * (x @ w.t()) + bias) + residual`` in one launch: all of it in fp32, rounded once.

    The kernel's epilogue does what follows the product. The config is that of :func:`hopper_gemm.matmul` for the same
    product, unless the rules refuse it with what follows; the model then chooses among the others.

    Args:
        x: (..., k), bf16 or fp16; leading axes are folded, without a copy where their strides allow that.
        w: (n, k), same type and device, as ``torch.nn.Linear.weight``; contiguous along either axis.
        bias: (n,), same type.
        activation: ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"relu"`` or None.
        residual: (..., n), of the output's type, contiguous along n.
        scale: a number; it is no tensor and has no gradient.
        out_dtype: ``torch.float32`` or the operands' type, which is the default.

    Returns:
        (..., n), contiguous, written on torch's current stream.

    Where n or k is no multiple of 8, or rows do not start at multiples of 16 bytes, the product is
    :func:`hopper_gemm.matmul`'s in fp32, and torch does the rest in launches of its own; the result is the same but for
    the order of fp32 sums.

    Raises:
        TypeError: no plain torch tensors, an element type that is not supported, or types that differ.
        ValueError: shapes that do not fit, an unknown activation, or a residual that is not contiguous along n.
        RuntimeError: the tensors are not on a Hopper GPU.

    Example:
        >>> y = hopper_gemm.linear(x, layer.weight, layer.bias, "gelu")             # doctest: +SKIP
    """
    if is_dynamo_compiling():
        return linear_op(x, w, bias, activation, residual, scale, out_dtype)
    try:
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, w, bias, residual)):
            return _by_operator(x, w, bias, activation, residual, scale, out_dtype)
        key = (_seen(x), _seen(w), _seen(bias), _seen(residual), activation, scale is None, out_dtype, MODE.context)
        known = _known.get(key)
    except (AttributeError, TypeError):
        refuse_others(x=x, w=w, bias=bias, residual=residual)
        raise
    if known is None or _bits(x, w, bias, residual) & _MISALIGNED:
        return _first(x, w, bias, activation, residual, scale, out_dtype, key)
    return _launch(known, x, w, bias, residual, scale)


def swiglu(x: torch.Tensor, w_gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(x @ w_gate.t()) * (x @ w_up.t())`` in one launch, with both weights in one matrix as models stack them.

    A tile holds as many columns of the gate as of up and multiplies them in registers, in fp32, before the one
    rounding; no weight is moved.

    Args:
        x: (..., k), bf16 or fp16; leading axes are folded, without a copy where their strides allow that.
        w_gate_up: (2 f, k), same type and device, the gate's f rows first.

    Returns:
        (..., f), contiguous, of the operands' type, written on torch's current stream.

    One launch needs f and k in multiples of 8 and a weight contiguous along k, rows at multiples of 16 bytes. Else the
    product is :func:`hopper_gemm.matmul`'s in fp32, and torch does the rest.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`linear`.

    Example:
        >>> hidden = hopper_gemm.swiglu(x, torch.cat((w_gate, w_up)))               # doctest: +SKIP
    """
    if is_dynamo_compiling():
        return swiglu_op(x, w_gate_up)
    try:
        if torch.is_grad_enabled() and (x.requires_grad or w_gate_up.requires_grad):
            return _by_operator_gated(x, w_gate_up)
        key = _seen(x), _seen(w_gate_up), MODE.context
        known = _known.get(key)
    except (AttributeError, TypeError):
        refuse_others(x=x, w_gate_up=w_gate_up)
        raise
    if known is None or _bits(x, w_gate_up, None, None) & _MISALIGNED:
        return _first_gated(x, w_gate_up, key)
    return _launch(known, x, w_gate_up, None, None, None)


def _seen(one: Maybe) -> Any:
    """All of a tensor that decides how it is read, its address aside."""
    if one is None:
        return None
    return one.shape, one.stride(), one.dtype, one.get_device(), one.is_neg(), type(one)


def _bits(*tensors: Maybe) -> int:
    """The bits that are set in the address of any of the tensors."""
    bits = 0
    for one in tensors:
        if one is not None:
            bits |= one.data_ptr()
    return bits


def _launch(
    known: Known, x: torch.Tensor, w: torch.Tensor, bias: Maybe, residual: Maybe, scale: float | None
) -> torch.Tensor:
    """Launch what passed every check."""
    kernel, device, size, dtype = known
    out = x.new_empty(size, dtype=dtype)
    added = None if residual is None else folded(residual)
    if device == torch.cuda.current_device():
        kernel(folded(x), w, out, None, bias, added, scale)
    else:
        with torch.cuda.device(device):
            kernel(folded(x), w, out, None, bias, added, scale)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], size[1])


def _by_operator(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: Maybe,
    activation: str | None,
    residual: Maybe,
    scale: float | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """The layer as an operator of torch's, for autograd and for tracing."""
    if not traced(x, w):
        refuse_others(x=x, w=w, bias=bias, residual=residual)
        check_device(x.device)
    return linear_op(x, w, bias, activation, residual, scale, out_dtype)


def _first(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: Maybe,
    activation: str | None,
    residual: Maybe,
    scale: float | None,
    out_dtype: torch.dtype | None,
    key: Any,
) -> torch.Tensor:
    """A call that is not known: check everything, launch, and record the launch."""
    if traced(x, w) or cast(x):
        return _by_operator(x, w, bias, activation, residual, scale, out_dtype)
    refuse_others(x=x, w=w, bias=bias, residual=residual)
    check_linear(x, w, bias, activation, residual, out_dtype)
    if residual is not None:
        check_rows(residual)
    check_device(x.device)
    finish = Finish.of(
        scale=scale is not None, bias=bias is not None, activation=activation, residual=residual is not None
    )
    a, added, dtype = folded(x), None if residual is None else folded(residual), out_dtype or x.dtype
    problem = _problem(a, w, w.shape[0], dtype)
    if finish is None or problem is None or not _aligned(bias, added):
        product = matmul(a, w.t(), out_dtype=dtype if finish is None else torch.float32)
        product = finished(product, bias, activation, added, scale).to(dtype)
        return product.view(*x.shape[:-1], w.shape[0])
    return _launch(_prepared(problem, finish, (a.shape[0], w.shape[0]), a, key), x, w, bias, residual, scale)


def _by_operator_gated(x: torch.Tensor, w_gate_up: torch.Tensor) -> torch.Tensor:
    """The gated layer as an operator of torch's."""
    if not traced(x, w_gate_up):
        refuse_others(x=x, w_gate_up=w_gate_up)
        check_device(x.device)
    return swiglu_op(x, w_gate_up)


def _first_gated(x: torch.Tensor, w_gate_up: torch.Tensor, key: Any) -> torch.Tensor:
    """A gated call that is not known: check everything, launch, and record the launch."""
    if traced(x, w_gate_up) or cast(x):
        return _by_operator_gated(x, w_gate_up)
    refuse_others(x=x, w_gate_up=w_gate_up)
    check_swiglu(x, w_gate_up)
    check_device(x.device)
    a, f = folded(x), w_gate_up.shape[0] // 2
    problem = _problem(a, w_gate_up, f, x.dtype)
    if problem is None or problem.layouts[1] != "k":
        product = halved(matmul(a, w_gate_up.t(), out_dtype=torch.float32)).to(x.dtype)
        return product.view(*x.shape[:-1], f)
    return _launch(_prepared(problem, GATED, (a.shape[0], f), a, key), x, w_gate_up, None, None, None)


def _problem(a: torch.Tensor, w: torch.Tensor, columns: int, dtype: torch.dtype) -> GemmProblem | None:
    """The product, by the axis along which each operand is read; None if the kernel cannot read or write it in place,
    or if there is nothing to multiply."""
    (m, k), n = a.shape, w.shape[0]
    if 0 in (m, n, k) or a.is_neg() or w.is_neg() or columns % (hopper.TMA_ALIGN_BYTES // w.element_size()):
        return None
    layouts = ("k" if has_rows(a) else "m") + ("n" if has_rows(w.t()) and not has_rows(w) else "k")
    name = DTYPES[a.dtype] + ("_fp32" if dtype == torch.float32 else "")
    problem = GemmProblem(m, n, k, name, layouts)
    direct = not problem_reasons(problem) and all(reaches(one) or reaches(one.t()) for one in (a, w))
    return problem if direct else None


def _aligned(bias: Maybe, residual: Maybe) -> bool:
    """Return True if the kernel can read what is added in place."""
    plain = all(one is None or not one.is_neg() for one in (bias, residual))
    whole = bias is None or (bias.is_contiguous() and not bias.data_ptr() & _MISALIGNED)
    return plain and whole and (residual is None or reaches(residual))


def _prepared(problem: GemmProblem, finish: Finish, size: tuple[int, int], a: torch.Tensor, key: Any) -> Known:
    """The launch of a problem, recorded for later calls."""
    remembered, device = _known, a.get_device()
    with torch.cuda.device(device), loading_allowed():
        kernel = kernel_for(problem, device, None, finish)
    if len(remembered) >= _KNOWN_MOST:
        remembered.clear()
    dtype = torch.float32 if problem.out_bytes == torch.float32.itemsize else a.dtype
    known = remembered[key] = kernel, device, size, dtype
    return known


# The operators on a GPU -----------------------------------------------------------------------


def _linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: Maybe = None,
    activation: str | None = None,
    residual: Maybe = None,
    scale: float | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    with torch.no_grad():  # autograd has been here
        return linear(x, w, bias, activation, residual, scale, out_dtype)


def _swiglu(x: torch.Tensor, w_gate_up: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return swiglu(x, w_gate_up)


OPERATORS.impl("linear", _linear, "CUDA")
OPERATORS.impl("swiglu", _swiglu, "CUDA")
