"""The operators ``torch.ops.hopper_gemm.linear``, ``linear_out`` and ``swiglu``: what compilers, autograd and autocast
see of :func:`hopper_gemm.linear` and :func:`hopper_gemm.swiglu`. ``linear_out`` has no gradient.

On a CPU they run a reference: products and all that follows in fp32, rounded once. The gradients are products of the
kernel: of x and of the weight, with what is before the activation computed once more, in fp32, instead of kept. The
bias's gradient is summed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch

from hopper_gemm.model.finish import ACTIVATIONS, Finish
from hopper_gemm.serve.checks import check_memory, check_out, check_type
from hopper_gemm.serve.kernels import MODE
from hopper_gemm.serve.operands import as_matrix
from hopper_gemm.serve.ops import NAMESPACE, OPERATORS, autocast_rule, mm

Maybe = torch.Tensor | None


class Call(NamedTuple):
    """Arguments of :func:`hopper_gemm.linear`."""

    x: torch.Tensor
    w: torch.Tensor
    bias: Maybe = None
    activation: str | None = None
    residual: Maybe = None
    scale: float | None = None
    out_dtype: torch.dtype | None = None
    batch_invariant: bool | None = None


OPERATORS.define(
    "linear(Tensor x, Tensor w, Tensor? bias=None, str? activation=None, Tensor? residual=None, float? scale=None, "
    "ScalarType? out_dtype=None, bool? batch_invariant=None) -> Tensor"
)
OPERATORS.define(
    "linear_out(Tensor x, Tensor w, Tensor(a!) out, Tensor? bias=None, str? activation=None, Tensor? residual=None, "
    "float? scale=None, bool? batch_invariant=None) -> ()"
)
OPERATORS.define("swiglu(Tensor x, Tensor w_gate_up, bool? batch_invariant=None) -> Tensor")

linear_op = torch.ops.hopper_gemm.linear.default
linear_out_op = torch.ops.hopper_gemm.linear_out.default
swiglu_op = torch.ops.hopper_gemm.swiglu.default


# Checks ---------------------------------------------------------------------------------------


def check_layer(x: torch.Tensor, w: torch.Tensor, name: str = "w") -> None:
    """Refuse an input and a weight that do not fit, on any device and of any type; they may be fake.

    Raises:
        TypeError, ValueError: as :func:`hopper_gemm.linear`.
    """
    if w.dim() != 2 or x.dim() < 1 or x.shape[-1] != w.shape[1]:
        raise ValueError(
            f"x and {name} must be (..., k) and (n, k) but got {tuple(x.shape)} and {tuple(w.shape)}; "
            f"give a weight (k, n) as {name}.t()"
        )
    if x.dtype != w.dtype:
        raise TypeError(f"x and {name} must have one type but got {x.dtype} and {w.dtype}; convert them with .to()")
    if x.device != w.device:
        raise ValueError(f"x and {name} must be on one device but are on {x.device} and {w.device}")


def check_linear(call: Call) -> None:
    """Refuse what :func:`hopper_gemm.linear` refuses on any device, of any type; tensors may be fake.

    Raises:
        TypeError, ValueError: as there.
    """
    x, w, bias, activation, residual, _, out_dtype, _ = call
    check_layer(x, w)
    Finish(activation=activation or "")
    if out_dtype not in (None, x.dtype, torch.float32):
        raise TypeError(f"out_dtype must be {x.dtype}, as the operands are, or torch.float32 but got {out_dtype}")
    out, n = out_dtype or x.dtype, w.shape[0]
    for name, one, shape, dtype in (("bias", bias, (n,), x.dtype), ("residual", residual, (*x.shape[:-1], n), out)):
        if one is None:
            continue
        if one.dim() != len(shape) or tuple(one.shape) != shape or one.dtype != dtype or one.device != x.device:
            raise ValueError(
                f"{name} must be {shape} {dtype} on {x.device} but is {tuple(one.shape)} {one.dtype} on {one.device}"
            )


def fitted(out: torch.Tensor, call: Call) -> Call:
    """A call whose output's type is that of ``out``, which fits it; tensors may be fake.

    Raises:
        TypeError, ValueError: as :func:`check_linear`, and for an ``out`` that does not fit.
    """
    check_layer(call.x, call.w)
    check_out(out, (*call.x.shape[:-1], call.w.shape[0]), call.x, call.out_dtype)
    call = call._replace(out_dtype=out.dtype)
    check_linear(call)
    return call


def check_apart(out: torch.Tensor, call: Call) -> None:
    """Refuse an ``out`` that shares memory with itself or with what is read. It may be the whole residual: the kernel
    reads each of its elements once, in the thread that holds the sum to which it is added, and what replaces it is
    stored once, after a barrier behind that read (``kernel/finished.py``, ``kernel/epilogue.py``).

    Raises:
        ValueError: it shares memory.
    """
    written, residual = as_matrix(out), call.residual
    if written is None:
        return  # written from a buffer
    replaced = residual is not None and (residual.data_ptr(), residual.stride()) == (out.data_ptr(), out.stride())
    tensors = call.x, call.w, call.bias, None if replaced else residual
    read = [as_matrix(one) for one in tensors if one is not None]
    check_memory(written, *(one for one in read if one is not None), names="x, w, bias or a part of residual")


def check_swiglu(x: torch.Tensor, w_gate_up: torch.Tensor) -> None:
    """Refuse what :func:`hopper_gemm.swiglu` refuses on any device, of any type; tensors may be fake.

    Raises:
        TypeError, ValueError: as there.
    """
    check_layer(x, w_gate_up, "w_gate_up")
    if w_gate_up.shape[0] % 2:
        raise ValueError(
            f"w_gate_up must have as many rows of the gate as of up but has {w_gate_up.shape[0]}; "
            "give torch.cat((w_gate, w_up))"
        )


def check_rows(residual: torch.Tensor) -> None:
    """Refuse a residual whose last axis is not contiguous.

    Raises:
        ValueError: it is not.
    """
    if residual.numel() and residual.shape[-1] > 1 and residual.stride(-1) != 1:
        raise ValueError(
            f"residual must be contiguous along its last axis but has strides {residual.stride()}; "
            "give it as .contiguous()"
        )


# References -----------------------------------------------------------------------------------


def activated(z: torch.Tensor, activation: str | None) -> torch.Tensor:
    """An activation by torch."""
    if not activation:
        return z
    known = ACTIVATIONS[activation]
    return getattr(torch.ops.aten, known.function)(z, **known.options)


def finished(product: torch.Tensor, call: Call) -> torch.Tensor:
    """What is done to a product before it is rounded, by torch, in the product's type."""
    z = product if call.scale is None else product * call.scale
    z = activated(z if call.bias is None else z + call.bias.to(z.dtype), call.activation)
    return z if call.residual is None else z + call.residual.to(z.dtype)


def halved(product: torch.Tensor) -> torch.Tensor:
    """silu of the gate's columns times those of up, by torch."""
    gate, up = product.chunk(2, -1)
    return activated(gate, "silu") * up


def _linear_cpu(*given: Any, **named: Any) -> torch.Tensor:
    call = Call(*given, **named)
    check_linear(call)
    check_type(call.x, call.w)
    if call.residual is not None:
        check_rows(call.residual)
    return finished(call.x.float() @ call.w.float().t(), call).to(call.out_dtype or call.x.dtype)


def out_call(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    bias: Maybe = None,
    activation: str | None = None,
    residual: Maybe = None,
    scale: float | None = None,
    batch_invariant: bool | None = None,
) -> tuple[torch.Tensor, Call]:
    """The output and the call of ``linear_out``."""
    return out, Call(x, w, bias, activation, residual, scale, None, batch_invariant)


def _linear_out_cpu(*given: Any, **named: Any) -> None:
    out, call = out_call(*given, **named)
    call = fitted(out, call)
    check_apart(out, call)
    out.copy_(_linear_cpu(*call))


def _linear_out_fake(*given: Any, **named: Any) -> None:
    call = fitted(*out_call(*given, **named))
    check_type(call.x, call.w)


def _swiglu_cpu(x: torch.Tensor, w_gate_up: torch.Tensor, batch_invariant: bool | None = None) -> torch.Tensor:
    check_swiglu(x, w_gate_up)
    check_type(x, w_gate_up)
    return halved(x.float() @ w_gate_up.float().t()).to(x.dtype)


def _linear_fake(*given: Any, **named: Any) -> torch.Tensor:
    call = Call(*given, **named)
    check_linear(call)
    check_type(call.x, call.w)
    return call.x.new_empty((*call.x.shape[:-1], call.w.shape[0]), dtype=call.out_dtype or call.x.dtype)


def _swiglu_fake(x: torch.Tensor, w_gate_up: torch.Tensor, batch_invariant: bool | None = None) -> torch.Tensor:
    check_swiglu(x, w_gate_up)
    check_type(x, w_gate_up)
    return x.new_empty((*x.shape[:-1], w_gate_up.shape[0] // 2))


for _name, _on_cpu, _fake in (
    ("linear", _linear_cpu, _linear_fake),
    ("linear_out", _linear_out_cpu, _linear_out_fake),
    ("swiglu", _swiglu_cpu, _swiglu_fake),
):
    OPERATORS.impl(_name, _on_cpu, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=OPERATORS)


# Gradients ------------------------------------------------------------------------------------


def folded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a matrix, leading axes folded; a view where its strides allow that."""
    return tensor if tensor.dim() == 2 else tensor.reshape(prod(tensor.shape[:-1]), tensor.shape[-1])


def _slope(incoming: torch.Tensor, z: torch.Tensor, activation: str) -> torch.Tensor:
    """The gradient through an activation, both in fp32."""
    known = ACTIVATIONS[activation]
    return getattr(torch.ops.aten, known.gradient)(incoming, z, **known.constants)


def _products(
    ctx: Any, dz: torch.Tensor, x: torch.Tensor, w: torch.Tensor, product: Callable[..., torch.Tensor]
) -> tuple[Maybe, Maybe]:
    """The gradients of x and of w, each if wanted, from that of the product."""
    to_x, to_w = ctx.needs_input_grad[:2]
    of_x = product(dz, w, None, ctx.batch_invariant).reshape(x.shape) if to_x else None
    return of_x, product(dz.t(), folded(x), None, ctx.batch_invariant) if to_w else None


def save_linear(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradients of a layer need, of its arguments."""
    call = Call(*inputs)
    ctx.activation, ctx.scale = call.activation, call.scale
    ctx.batch_invariant = MODE.batch_invariant if call.batch_invariant is None else call.batch_invariant
    ctx.save_for_backward(call.x, call.w, call.bias if call.activation else None)
    ctx.types = tuple(None if one is None else one.dtype for one in (call.bias, call.residual))


def linear_backward(
    ctx: Any,
    gradient: torch.Tensor,
    product: Callable[..., torch.Tensor] = mm,
    layer: Callable[..., torch.Tensor] = linear_op,
) -> tuple[Maybe, ...]:
    """The gradients of a layer by calls with the arguments of ``mm`` and ``linear``."""
    x, w, bias = ctx.saved_tensors
    wanted = (*ctx.needs_input_grad, False, False, False)  # torch counts no arguments that were left out
    bias_type, residual_type = ctx.types
    dz = folded(gradient)
    if ctx.activation:
        z = layer(folded(x), w, bias, None, None, ctx.scale, torch.float32, ctx.batch_invariant)
        dz = _slope(dz.float(), z, ctx.activation)
    to_bias = dz.sum(0, dtype=torch.float32).to(bias_type) if wanted[2] else None
    to_residual = gradient.to(residual_type) if wanted[4] else None
    scaled = (dz if ctx.scale is None else dz.float() * ctx.scale).to(x.dtype)
    return *_products(ctx, scaled, x, w, product), to_bias, None, to_residual, None, None, None


def save_swiglu(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradients of a gated layer need, of its arguments."""
    x, w, rule = inputs
    ctx.save_for_backward(x, w)
    ctx.batch_invariant = MODE.batch_invariant if rule is None else rule


def swiglu_backward(
    ctx: Any, gradient: torch.Tensor, product: Callable[..., torch.Tensor] = mm
) -> tuple[Maybe, Maybe, None]:
    """The gradients of a gated layer by calls with the arguments of ``mm``."""
    x, w = ctx.saved_tensors
    gate, up = product(folded(x), w.t(), torch.float32, ctx.batch_invariant).chunk(2, -1)
    incoming = folded(gradient).float()
    dz = torch.cat((_slope(incoming * up, gate, "silu"), incoming * activated(gate, "silu")), -1)
    return *_products(ctx, dz.to(x.dtype), x, w, product), None


torch.library.register_autograd(f"{NAMESPACE}::linear", linear_backward, setup_context=save_linear, lib=OPERATORS)
torch.library.register_autograd(f"{NAMESPACE}::swiglu", swiglu_backward, setup_context=save_swiglu, lib=OPERATORS)


# Autocast -------------------------------------------------------------------------------------


def autocast_call(call: Call) -> Call:
    """A layer with its tensors in the types to which autocast casts them."""
    dtype = torch.get_autocast_dtype(call.x.device.type)
    bias = None if call.bias is None else call.bias.to(dtype)
    residual = None if call.residual is None else call.residual.to(call.out_dtype or dtype)
    return call._replace(x=call.x.to(dtype), w=call.w.to(dtype), bias=bias, residual=residual)


def _linear_autocast(*given: Any, **named: Any) -> torch.Tensor:
    call = autocast_call(Call(*given, **named))
    with torch.autocast(call.x.device.type, enabled=False):
        return linear_op(*call)


for _key in ("AutocastCUDA", "AutocastCPU"):
    OPERATORS.impl("linear", _linear_autocast, _key)
    OPERATORS.impl("swiglu", autocast_rule(swiglu_op), _key)
