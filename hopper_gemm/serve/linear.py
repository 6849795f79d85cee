"""``hopper_gemm.linear`` and ``swiglu``: a layer's product and what follows it, in one launch."""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from hopper_gemm.model.finish import ActivationName
from hopper_gemm.serve.launches import LAUNCHES, launch


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: ActivationName | None = None,
    residual: torch.Tensor | None = None,
    scale: float | None = None,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    *,
    out: torch.Tensor | None = None,
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
        out_dtype: ``torch.float32`` or the operands' type; by default that of ``out``, or of the operands where that is
            None.
        batch_invariant: as of :func:`hopper_gemm.matmul`; by default as the thread's context says.
        out: (..., n), the operands' type or fp32; made, contiguous, if None. It may be ``residual`` itself, to which
            the layer is then added in place. There is no gradient through it.

    Returns:
        ``out``, written on torch's current stream.

    Where a gradient is recorded and there is an activation, the product with scale and bias is rounded and kept for the
    backward pass, as by torch, which then does the rest in launches of its own.

    An ``out`` whose rows are contiguous and start at multiples of 16 bytes is written in place, and that of a product
    alone wherever its rows start; any other from a buffer.

    Where n or k is no multiple of 8, or rows do not start at multiples of 16 bytes, the product is
    :func:`hopper_gemm.matmul`'s in fp32, and torch does the rest in launches of its own; the result is the same but for
    the order of fp32 sums.

    What the kernel cannot run at all, such as tensors on a CPU or of fp32, torch runs in its own type, by the policy of
    :func:`hopper_gemm.fallback`.

    Raises:
        TypeError: no torch tensors, or types that differ.
        ValueError: shapes that do not fit, an unknown activation, a residual that is not contiguous along n, or an
            ``out`` that shares memory with itself, an operand, the bias, or a part of the residual.
        RuntimeError: ``out`` is given where a gradient is recorded.
        UnsupportedError: as of :func:`hopper_gemm.matmul`, where nothing falls back.

    Example:
        >>> y = hopper_gemm.linear(x, layer.weight, layer.bias, "gelu")             # doctest: +SKIP
    """
    if not is_dynamo_compiling() and (native := LAUNCHES.native) is not None:
        layer = native.linear(x, w, bias, activation, residual, scale, out_dtype, batch_invariant, out)
        if layer is not None:
            return layer
    return launch((x, w, bias, activation, residual, scale, out_dtype, batch_invariant, out, None, "linear"))


def swiglu(x: torch.Tensor, w_gate_up: torch.Tensor, batch_invariant: bool | None = None) -> torch.Tensor:
    """``silu(x @ w_gate.t()) * (x @ w_up.t())`` in one launch, with both weights in one matrix as models stack them.

    A tile holds as many columns of the gate as of up and multiplies them in registers, in fp32, before the rounding.

    Args:
        x: (..., k), bf16 or fp16; leading axes are folded, without a copy where their strides allow that.
        w_gate_up: (2 f, k), same type and device, the gate's f rows first.
        batch_invariant: as of :func:`hopper_gemm.matmul`; by default as the thread's context says.

    Returns:
        (..., f), contiguous, of the operands' type, written on torch's current stream.

    Where a gradient is recorded, the product is rounded and kept, and torch does the rest, as in :func:`linear`. One
    launch needs f and k in multiples of 8 and a weight contiguous along k, rows at multiples of 16 bytes. Else the
    product is :func:`hopper_gemm.matmul`'s in fp32, and torch does the rest.

    Raises:
        TypeError, ValueError, UnsupportedError: as :func:`linear`.

    Example:
        >>> hidden = hopper_gemm.swiglu(x, torch.cat((w_gate, w_up)))               # doctest: +SKIP
    """
    if not is_dynamo_compiling() and (native := LAUNCHES.native) is not None:
        layer = native.swiglu(x, w_gate_up, batch_invariant)
        if layer is not None:
            return layer
    return launch((x, w_gate_up, None, None, None, None, None, batch_invariant, None, None, "swiglu"))
