"""Derivatives of the operators, by products of the same operators.

Gradients: dA = dC Bt; dB, which lies as B does, At dC or the transpose of dCt A. They have the operands' type, and so
has the incoming gradient of an fp32 output. Tangents: dC = dA B + A dB, summed in fp32 and rounded once. What is before
an activation the operators compute once more, in fp32; the public functions keep it (``in_two``). All are
differentiable again. Those of a batch-invariant product follow the same rule: dA's rows depend on no other row; dB adds
up the rows of the batch, and has the same bits in every run with the same m. The bias's gradient is summed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.serve.call import Call, Maybe, invariant, output_of, transformed
from hopper_gemm.serve.operands import folded
from hopper_gemm.serve.reference import activated

OPS = torch.ops.hopper_gemm
"""The operators; they are defined after this module is loaded."""


class Ways(NamedTuple):
    """Products of a backward pass: functions that take the arguments of the operators of these names."""

    mm: Callable[..., torch.Tensor] = lambda *given: OPS.mm(*given)
    linear: Callable[..., torch.Tensor] = lambda *given: OPS.linear(*given)


def _save_product(ctx: Any, call: Call) -> None:
    wants_a, wants_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(call.a if wants_b else None, call.b if wants_a else None)
    ctx.dtype, ctx.one_matrix = call.a.dtype, call.b.dim() == 2
    ctx.by_columns = by_columns(call.b)


def by_columns(matrices: torch.Tensor) -> bool:
    """Return True if the columns of matrices are contiguous and their rows are not."""
    return matrices.stride(-2) == 1 and matrices.stride(-1) != 1


def _of_product(ctx: Any, gradient: torch.Tensor, ways: Ways) -> tuple[Maybe, ...]:
    """The gradients of products; that of ``b`` lies as ``b`` does, so that a layer's weight needs no copy."""
    a, b = ctx.saved_tensors
    gradient, rule = gradient.to(ctx.dtype), ctx.batch_invariant
    batches = gradient.dim() == 3
    of_a = None if b is None else (OPS.bmm if batches else ways.mm)(gradient, b.mT, None, rule)
    if a is None:
        return of_a, None
    if batches and not ctx.one_matrix:
        return of_a, OPS.bmm(gradient.mT, a, None, rule).mT if ctx.by_columns else OPS.bmm(a.mT, gradient, None, rule)
    if batches:
        a, gradient = folded(a), folded(gradient)
    if ctx.by_columns:
        return of_a, ways.mm(gradient.t(), a, None, rule).t()
    return of_a, ways.mm(a.t(), gradient, None, rule)


def _save_layer(ctx: Any, call: Call) -> None:
    again = call.activation is not None
    wants_x, wants_w = ctx.needs_input_grad[:2]
    ctx.activation, ctx.scale, ctx.dtype = call.activation, call.scale, call.a.dtype
    kept = call.a if wants_w or again else None, call.b if wants_x or again else None, call.bias if again else None
    ctx.save_for_backward(*kept)
    ctx.types = tuple(None if tensor is None else tensor.dtype for tensor in (call.bias, call.residual))


def _of_layer(ctx: Any, gradient: torch.Tensor, ways: Ways) -> tuple[Maybe, ...]:
    x, w, bias = ctx.saved_tensors
    wanted = (*ctx.needs_input_grad, False, False, False)  # torch counts no arguments that were left out
    bias_type, residual_type = ctx.types
    dz = folded(gradient)
    if ctx.activation:
        z = ways.linear(folded(x), w, bias, None, None, ctx.scale, torch.float32, ctx.batch_invariant)
        dz = slope(dz.float(), z, ctx.activation)
    of_bias = dz.sum(0, dtype=torch.float32).to(bias_type) if wanted[2] else None
    of_residual = gradient.to(residual_type) if wanted[4] else None
    scaled = (dz if ctx.scale is None else dz.float() * ctx.scale).to(ctx.dtype)
    return *_of_operands(ctx, scaled, gradient.shape[:-1], x, w, ways), of_bias, None, of_residual


def _of_gated(ctx: Any, gradient: torch.Tensor, ways: Ways) -> tuple[Maybe, ...]:
    x, w = ctx.saved_tensors
    gate, up = ways.mm(folded(x), w.t(), torch.float32, ctx.batch_invariant).chunk(2, -1)
    incoming = folded(gradient).float()
    dz = torch.cat((slope(incoming * up, gate, "silu"), incoming * activated(gate, "silu")), -1)
    return _of_operands(ctx, dz.to(x.dtype), gradient.shape[:-1], x, w, ways)


def slope(incoming: torch.Tensor, z: torch.Tensor, activation: str) -> torch.Tensor:
    """The gradient through an activation, both in fp32; also its tangent, since it acts on each element."""
    derived = torch.is_grad_enabled() or transformed() or forward_ad._current_level >= 0
    if activation == "silu" and derived:  # aten's silu_backward has no derivative
        part = z.sigmoid()
        return incoming * part * (1 + z * (1 - part))
    entry = ACTIVATIONS[activation]
    return getattr(torch.ops.aten, entry.gradient)(incoming, z, **entry.constants)


def _of_operands(
    ctx: Any, dz: torch.Tensor, leading: torch.Size, x: Maybe, w: Maybe, ways: Ways
) -> tuple[Maybe, Maybe]:
    """The gradients of x, with these leading axes, and of w, each if wanted, from that of the product."""
    to_x, to_w = ctx.needs_input_grad[:2]
    of_x = ways.mm(dz, w, None, ctx.batch_invariant).reshape(*leading, w.shape[1]) if to_x and w is not None else None
    return of_x, ways.mm(dz.t(), folded(x), None, ctx.batch_invariant) if to_w and x is not None else None


def _products(multiply: Callable[..., torch.Tensor], call: Call, tangents: Call) -> torch.Tensor:
    """The tangent of a product, in fp32."""
    pairs = (tangents.a, call.b), (call.a, tangents.b)
    parts = [multiply(a, b, torch.float32, invariant(call)) for a, b in pairs if a is not None and b is not None]
    if not parts:
        return call.a.new_zeros((*call.a.shape[:-1], call.b.shape[-1]), dtype=torch.float32)
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _folded_product(call: Call) -> Call:
    """The product of a layer, of what is given of its operands."""
    a, b = (None if call.a is None else folded(call.a)), (None if call.b is None else call.b.t())
    return call._replace(a=a, b=b)


def _tangent_of_layer(call: Call, tangents: Call) -> torch.Tensor:
    dz = _products(OPS.mm, _folded_product(call), _folded_product(tangents))
    if call.scale is not None:
        dz = dz * call.scale
    if tangents.bias is not None:
        dz = dz + tangents.bias.float()
    if call.activation:
        given = folded(call.a), call.b, call.bias, None, None, call.scale, torch.float32, invariant(call)
        dz = slope(dz, OPS.linear(*given), call.activation)
    dz = dz.reshape(output_of(call)[0])
    return dz if tangents.residual is None else dz + tangents.residual.float()


def _tangent_of_gated(call: Call, tangents: Call) -> torch.Tensor:
    product = _folded_product(call)
    gate, up = OPS.mm(product.a, product.b, torch.float32, invariant(call)).chunk(2, -1)
    of_gate, of_up = _products(OPS.mm, product, _folded_product(tangents)).chunk(2, -1)
    tangent = slope(of_gate * up, gate, "silu") + activated(gate, "silu") * of_up
    return tangent.reshape(output_of(call)[0])


class Derivative(NamedTuple):
    """Derivatives of an operator: keeping tensors of a call in a context, the gradients of the first arguments from the
    output's, and the output's tangent, of any type, from those of the tensors."""

    save: Callable[[Any, Call], None]
    backward: Callable[[Any, torch.Tensor, Ways], tuple[Maybe, ...]]
    tangent: Callable[[Call, Call], torch.Tensor]


DERIVATIVES = {
    "mm": Derivative(_save_product, _of_product, lambda *given: _products(OPS.mm, *given)),
    "linear": Derivative(_save_layer, _of_layer, _tangent_of_layer),
    "swiglu": Derivative(lambda ctx, call: ctx.save_for_backward(call.a, call.b), _of_gated, _tangent_of_gated),
    "bmm": Derivative(_save_product, _of_product, lambda *given: _products(OPS.bmm, *given)),
}
