"""The operators ``torch.ops.hopper_gemm``: what compilers, autograd and autocast see of the public functions.

``from hopper_gemm import matmul`` registers them. :data:`SCHEMAS` declares each, :data:`GRADIENTS` what it keeps and
its backward pass; all else follows from the :class:`~hopper_gemm.serve.call.Call` that its arguments make. ``mm_out``
and ``linear_out`` write ``out``, return nothing and have no gradient.

On a Hopper GPU they run the kernel (:mod:`hopper_gemm.serve.launches`). On a CPU they run a reference, products and all
that follows in fp32, rounded once, with which a model and its gradients can be tested where there is no GPU. Fake
tensors, and so torch.compile and torch.export, see shapes and types; sizes may be symbolic.

The gradients are products of the kernel too, each read in place from the matrices as they lie: dA = dC Bt; dB, which
lies as B does, At dC or the transpose of dCt A. They have the operands' type, accumulated in fp32; the gradient of an
fp32 output is rounded to that type first. Those of a batch-invariant product follow the same rule: dA's rows depend on
no other row; dB adds up the rows of the batch, and has the same bits in every run with the same m. What is before a
layer's activation is computed once more, in fp32, instead of kept; the bias's gradient is summed in fp32. Within
``torch.autocast`` operands are cast to its type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import new_class
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling
from torch.library import Library

from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.serve.call import (
    Call,
    Maybe,
    autocast_call,
    cast,
    invariant,
    make,
    output_of,
)
from hopper_gemm.serve.checks import DTYPES, PLAIN, check_apart, check_call, check_rows, check_type, refuse_foreign
from hopper_gemm.serve.operands import folded
from hopper_gemm.serve.reference import activated, by_torch, falls_back, reference

NAMESPACE = "hopper_gemm"

_FOLLOWS = "Tensor? bias=None, str? activation=None, Tensor? residual=None, float? scale=None"

SCHEMAS = {
    "mm": "(Tensor a, Tensor b, ScalarType? out_dtype=None, bool? batch_invariant=None) -> Tensor",
    "mm_out": "(Tensor a, Tensor b, Tensor(a!) out, bool? batch_invariant=None) -> ()",
    "linear": f"(Tensor x, Tensor w, {_FOLLOWS}, ScalarType? out_dtype=None, bool? batch_invariant=None) -> Tensor",
    "linear_out": f"(Tensor x, Tensor w, Tensor(a!) out, {_FOLLOWS}, bool? batch_invariant=None) -> ()",
    "swiglu": "(Tensor x, Tensor w_gate_up, bool? batch_invariant=None) -> Tensor",
    "bmm": "(Tensor a, Tensor b, ScalarType? out_dtype=None, bool? batch_invariant=None) -> Tensor",
}
"""Arguments of each operator; they are fields of a call, the operands under the names of its kind."""

_FIELDS = {"x": "a", "w": "b", "w_gate_up": "b"}
"""Fields of a call by arguments of other names."""

OPERATORS = Library(NAMESPACE, "DEF")
for _name, _schema in SCHEMAS.items():
    OPERATORS.define(_name + _schema)

BY_NAME = {name: getattr(torch.ops.hopper_gemm, name).default for name in SCHEMAS}

mm, mm_out, linear_op, linear_out_op, swiglu_op, bmm_op = BY_NAME.values()

ARGUMENTS = {
    name: tuple(_FIELDS.get(argument.name, argument.name) for argument in operator._schema.arguments)
    for name, operator in BY_NAME.items()
}
"""Fields of a call in the order of an operator's arguments."""

_PLACES = {name: [Call._fields.index(field) for field in fields] for name, fields in ARGUMENTS.items()}

_DEFAULTS: tuple[Any, ...] = (None,) * (len(Call._fields) - 1)


def call_of(name: str, *given: Any, **named: Any) -> Call:
    """The call that the arguments of an operator make."""
    fields = [*_DEFAULTS, name.removesuffix("_out")]
    for at, value in zip(_PLACES[name], given, strict=False):
        fields[at] = value
    for field, value in named.items():
        fields[Call._fields.index(_FIELDS.get(field, field))] = value
    return make(fields)


def arguments_of(name: str, call: Call) -> tuple[Any, ...]:
    """The arguments of an operator that make a call."""
    return tuple([call[at] for at in _PLACES[name]])


# On a CPU, on fake tensors, within autocast -----------------------------------------------------


def _on_cpu(name: str, *given: Any, **named: Any) -> Maybe:
    call = call_of(name, *given, **named)
    check_call(call)
    check_type(call)
    if call.residual is not None:
        check_rows(call.residual)
    check_apart(call)
    result = reference(call)
    if call.out is None:
        return result
    call.out.copy_(result)
    return None


def _on_fake(name: str, *given: Any, **named: Any) -> Maybe:
    call = call_of(name, *given, **named)
    check_call(call)
    check_type(call)
    shape, dtype = output_of(call)
    return call.a.new_empty(shape, dtype=dtype) if call.out is None else None


def _in_autocast(name: str, *given: Any, **named: Any) -> torch.Tensor:
    call = autocast_call(call_of(name, *given, **named))
    with torch.autocast(call.a.device.type, enabled=False):
        return BY_NAME[name](*arguments_of(name, call))


# Calls of the operators ------------------------------------------------------------------------


def by_operator(call: Call) -> torch.Tensor:
    """The output of a call by its operator, for autograd and for tracing, or by torch where it falls back.

    Raises:
        RuntimeError: a config or an output is given where there would be a gradient.
    """
    if not is_dynamo_compiling():
        refuse_foreign(call)
    if call.config is not None:
        raise RuntimeError("config must be None where gradients are recorded or a model is traced; use torch.no_grad()")
    out = call.out
    if out is not None:
        for tensor in (call.a, call.b, call.bias, call.residual, out):
            if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
                refused = "out must be None where a gradient is recorded"
                raise RuntimeError(f"{refused}; use what is returned, or torch.no_grad()")
        check_call(call)
    call = call._replace(batch_invariant=invariant(call))
    if falls_back(call):
        return by_torch(call)
    name = call.kind if out is None else f"{call.kind}_out"
    if out is not None and cast(call):
        return out.copy_(by_operator(call._replace(out=None, out_dtype=out.dtype)))
    result = BY_NAME[name](*arguments_of(name, call))
    return result if out is None else out


# Gradients --------------------------------------------------------------------------------------


class Ways(NamedTuple):
    """What multiplies in a backward pass: functions of the arguments of the operators of these names."""

    mm: Callable[..., torch.Tensor] = mm
    linear: Callable[..., torch.Tensor] = linear_op


def _save_product(ctx: Any, call: Call) -> None:
    wants_a, wants_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(call.a if wants_b else None, call.b if wants_a else None)
    ctx.dtype, ctx.by_columns = call.a.dtype, call.b.stride(0) == 1 and call.b.stride(-1) != 1


def _of_product(ctx: Any, gradient: torch.Tensor, ways: Ways) -> tuple[Maybe, ...]:
    """That of ``b`` lies as ``b`` does, so that the gradient of a layer's weight needs no copy."""
    a, b = ctx.saved_tensors
    gradient, rule = gradient.to(ctx.dtype), ctx.batch_invariant
    of_a = None if b is None else ways.mm(gradient, b.t(), None, rule)
    if a is None:
        return of_a, None
    if ctx.by_columns:
        return of_a, ways.mm(gradient.t(), a, None, rule).t()
    return of_a, ways.mm(a.t(), gradient, None, rule)


def _save_batches(ctx: Any, call: Call) -> None:
    _save_product(ctx, call)
    ctx.shared = call.b.dim() == 2


def _of_batches(ctx: Any, gradient: torch.Tensor, ways: Ways) -> tuple[Maybe, ...]:
    a, b = ctx.saved_tensors
    gradient, rule = gradient.to(ctx.dtype), ctx.batch_invariant
    of_a = None if b is None else bmm_op(gradient, b.mT, None, rule)
    if a is None:
        return of_a, None
    if ctx.shared:
        return of_a, ways.mm(folded(a).t(), folded(gradient), None, rule)
    return of_a, bmm_op(a.mT, gradient, None, rule)


def _save_layer(ctx: Any, call: Call) -> None:
    again = call.activation is not None
    wants_x, wants_w = ctx.needs_input_grad[:2]
    ctx.activation, ctx.scale, ctx.dtype = call.activation, call.scale, call.a.dtype
    ctx.save_for_backward(
        call.a if wants_w or again else None, call.b if wants_x or again else None, call.bias if again else None
    )
    ctx.types = tuple(None if tensor is None else tensor.dtype for tensor in (call.bias, call.residual))


def _of_layer(ctx: Any, gradient: torch.Tensor, ways: Ways) -> tuple[Maybe, ...]:
    x, w, bias = ctx.saved_tensors
    wanted = (*ctx.needs_input_grad, False, False, False)  # torch counts no arguments that were left out
    bias_type, residual_type = ctx.types
    dz = folded(gradient)
    if ctx.activation:
        z = ways.linear(folded(x), w, bias, None, None, ctx.scale, torch.float32, ctx.batch_invariant)
        dz = _slope(dz.float(), z, ctx.activation)
    of_bias = dz.sum(0, dtype=torch.float32).to(bias_type) if wanted[2] else None
    of_residual = gradient.to(residual_type) if wanted[4] else None
    scaled = (dz if ctx.scale is None else dz.float() * ctx.scale).to(ctx.dtype)
    return *_of_operands(ctx, scaled, gradient.shape[:-1], x, w, ways), of_bias, None, of_residual


def _save_gated(ctx: Any, call: Call) -> None:
    ctx.save_for_backward(call.a, call.b)


def _of_gated(ctx: Any, gradient: torch.Tensor, ways: Ways) -> tuple[Maybe, ...]:
    x, w = ctx.saved_tensors
    gate, up = ways.mm(folded(x), w.t(), torch.float32, ctx.batch_invariant).chunk(2, -1)
    incoming = folded(gradient).float()
    dz = torch.cat((_slope(incoming * up, gate, "silu"), incoming * activated(gate, "silu")), -1)
    return _of_operands(ctx, dz.to(x.dtype), gradient.shape[:-1], x, w, ways)


def _slope(incoming: torch.Tensor, z: torch.Tensor, activation: str) -> torch.Tensor:
    """The gradient through an activation, both in fp32."""
    entry = ACTIVATIONS[activation]
    return getattr(torch.ops.aten, entry.gradient)(incoming, z, **entry.constants)


def _of_operands(
    ctx: Any, dz: torch.Tensor, leading: torch.Size, x: Maybe, w: Maybe, ways: Ways
) -> tuple[Maybe, Maybe]:
    """The gradients of x, with these leading axes, and of w, each if wanted, from that of the product."""
    to_x, to_w = ctx.needs_input_grad[:2]
    of_x = ways.mm(dz, w, None, ctx.batch_invariant).reshape(*leading, w.shape[1]) if to_x and w is not None else None
    return of_x, ways.mm(dz.t(), folded(x), None, ctx.batch_invariant) if to_w and x is not None else None


class Gradient(NamedTuple):
    """What an operator keeps of a call in a context, beside its rule of batch invariance; and the gradients of its
    first arguments, from that of its output."""

    save: Callable[[Any, Call], None]
    backward: Callable[[Any, torch.Tensor, Ways], tuple[Maybe, ...]]


GRADIENTS = {
    "mm": Gradient(_save_product, _of_product),
    "linear": Gradient(_save_layer, _of_layer),
    "swiglu": Gradient(_save_gated, _of_gated),
    "bmm": Gradient(_save_batches, _of_batches),
}


def _keep(ctx: Any, call: Call) -> None:
    ctx.batch_invariant = invariant(call)
    GRADIENTS[call.kind].save(ctx, call)


def _save(name: str, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _keep(ctx, call_of(name, *inputs))


def _backward(name: str, ways: Ways, ctx: Any, gradient: torch.Tensor) -> tuple[Maybe, ...]:
    gradients = GRADIENTS[name].backward(ctx, gradient, ways)
    return *gradients, *(None,) * (len(ARGUMENTS[name]) - len(gradients))


def recordable(call: Call) -> bool:
    """Return True if a call with gradients needs no operator: plain tensors of a supported type, and nothing that
    looks at operators, such as torch.func's transforms, fake tensors, or selective checkpointing."""
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return False
    for tensor in (call.a, call.b, call.bias):  # quicker than a generator
        if tensor is not None and (
            type(tensor) not in PLAIN or tensor.dtype not in DTYPES or tensor.layout is not torch.strided
        ):
            return False
    return call.residual is None or type(call.residual) in PLAIN


def recording(name: str, run: Callable[[Call], torch.Tensor], ways: Ways) -> Callable[..., torch.Tensor]:
    """Return a function with a gradient for eager calls, of an operator's arguments and the call that they make, by
    ``torch.autograd.Function``: an operator that Python implements costs several times a launch in the dispatcher.

    Args:
        name: of the operator; the node in autograd's graph, as profilers show it, is called after it.
        run: multiplies; it is called where no gradient is recorded.
        ways: multiply in the backward pass.
    """

    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        call = given[-1]
        _keep(ctx, call)
        out = run(call)
        # a caller could not change a view in place
        return torch.ops.aten._unsafe_view(out, out.shape) if out._is_view() else out

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Maybe, ...]:
        return *_backward(name, ways, ctx, gradient), None

    methods: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    node = f"{NAMESPACE}_{name}"
    made: Any = new_class(node, (torch.autograd.Function,), exec_body=lambda body: body.update(methods))
    return made.apply


for _name in SCHEMAS:
    OPERATORS.impl(_name, partial(_on_cpu, _name), "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", partial(_on_fake, _name), lib=OPERATORS)
for _name in GRADIENTS:
    for _key in ("AutocastCUDA", "AutocastCPU"):
        OPERATORS.impl(_name, partial(_in_autocast, _name), _key)
    torch.library.register_autograd(
        f"{NAMESPACE}::{_name}",
        partial(_backward, _name, Ways()),
        setup_context=partial(_save, _name),
        lib=OPERATORS,
    )
