"""The operators ``torch.ops.hopper_gemm``: what compilers, autograd and autocast see of the public functions.

``from hopper_gemm import matmul`` registers them. :data:`SCHEMAS` declares each; derivatives, batches and shards are
those of :mod:`hopper_gemm.serve.transforms`; all else follows from the :class:`~hopper_gemm.serve.call.Call` that its
arguments make. ``mm_out`` and ``linear_out`` write ``out``, return nothing and have no gradient.

On a Hopper GPU they run the kernel (:mod:`hopper_gemm.serve.launches`). On a CPU they run a reference, products and all
that follows in fp32, rounded once, with which a model and its gradients can be tested without a GPU. Fake tensors, and
so torch.compile and torch.export, see shapes and types; sizes may be symbolic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import prod
from types import new_class
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import Function, _SingleLevelFunction
from torch.compiler import is_dynamo_compiling
from torch.library import Library
from torch.utils.flop_counter import register_flop_formula

from hopper_gemm.serve.call import Call, Maybe, autocast_call, cast, invariant, keeps_product, needs_gradient, output_of
from hopper_gemm.serve.checks import PLAIN, check_apart, check_call, check_rows, check_types, recordable, refuse_foreign
from hopper_gemm.serve.reference import by_torch, falls_back, finished, reference
from hopper_gemm.serve.transforms import sharding
from hopper_gemm.serve.transforms.batching import batching_rule
from hopper_gemm.serve.transforms.gradients import DERIVATIVES, Ways

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

OPERATORS, TAGS = Library(NAMESPACE, "DEF"), (torch.Tag.pt2_compliant_tag,)

for _name, _schema in SCHEMAS.items():
    OPERATORS.define(_name + _schema, tags=TAGS)

BY_NAME = {name: getattr(torch.ops.hopper_gemm, name).default for name in SCHEMAS}

mm, mm_out, linear_op, linear_out_op, swiglu_op, bmm_op = BY_NAME.values()

ARGUMENTS = {
    name: tuple(_FIELDS.get(argument.name, argument.name) for argument in operator._schema.arguments)
    for name, operator in BY_NAME.items()
}
"""Fields of a call in the order of an operator's arguments."""

_INDICES = {name: [Call._fields.index(field) for field in fields] for name, fields in ARGUMENTS.items()}


def call_of(name: str, *given: Any, **named: Any) -> Call:
    """The call that the arguments of an operator make."""
    fields: list[Any] = [None] * len(Call._fields)
    fields[-1] = name.removesuffix("_out")
    for index, value in zip(_INDICES[name], given, strict=False):
        fields[index] = value
    for field, value in named.items():
        fields[Call._fields.index(_FIELDS.get(field, field))] = value
    return Call._make(fields)


def arguments_of(name: str, call: Call) -> tuple[Any, ...]:
    """The arguments of an operator that make a call."""
    return tuple([call[index] for index in _INDICES[name]])


_NO_GRADIENT = "out must be None where a gradient is recorded"


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let dynamo run what an operator calls, and never trace it: where a frame of the user's is not compiled, dynamo
    tries each frame below it, and a traced tangent is None."""
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)
    return function


def _checked_call(name: str, *given: Any, **named: Any) -> Call:
    call = call_of(name, *given, **named)
    check_call(call)
    check_types(call)
    return call


@untraced
def _on_cpu(name: str, *given: Any, **named: Any) -> Maybe:
    call = _checked_call(name, *given, **named)
    if call.residual is not None:
        check_rows(call.residual)
    check_apart(call)
    result = reference(call)
    if call.out is None:
        return result
    call.out.copy_(result)
    return None


def _on_fake(name: str, *given: Any, **named: Any) -> Maybe:
    call = _checked_call(name, *given, **named)
    shape, dtype = output_of(call)
    return call.a.new_empty(shape, dtype=dtype) if call.out is None else None


@untraced
def _in_autocast(name: str, *given: Any, **named: Any) -> torch.Tensor:
    call = autocast_call(call_of(name, *given, **named))
    with torch.autocast(call.a.device.type, enabled=False):
        return _run(name, call)


def by_operator(call: Call) -> torch.Tensor:
    """The output of a call by its operator, for autograd and for tracing, or by torch where it falls back. Refuse a
    config, and an output where there would be a gradient."""
    if not is_dynamo_compiling():
        refuse_foreign(call)
    if call.config is not None:
        raise RuntimeError("config must be None where gradients are recorded or a model is traced; use torch.no_grad()")
    out = call.out
    if out is not None:
        if needs_gradient(call):
            raise RuntimeError(f"{_NO_GRADIENT}; use what is returned, or torch.no_grad()")
        check_call(call)
    call = call._replace(batch_invariant=invariant(call))
    if falls_back(call):
        return by_torch(call)
    if keeps_product(call):
        return in_two(call, by_operator)
    name = call.kind if out is None else f"{call.kind}_out"
    if out is not None and cast(call):
        return out.copy_(by_operator(call._replace(out=None, out_dtype=out.dtype)))
    result = _run(name, call)
    return result if out is None else out


def in_two(call: Call, run: Callable[[Call], torch.Tensor]) -> torch.Tensor:
    """The output of a call with an activation and a gradient: the product, rounded, which autograd keeps, then the rest
    by torch. To compute the product once more in the backward pass would take longer."""
    typed = autocast_call(call) if cast(call) else call
    check_call(typed)
    if typed.residual is not None:
        check_rows(typed.residual)
    operands = typed if recordable(typed) else call  # a tensor of another class is cast by its operator
    product = run(operands._replace(activation=None, residual=None, kind="linear"))
    return finished(product, typed._replace(bias=None, scale=None))


def recording(
    name: str, run: Callable[..., torch.Tensor], ways: Ways, base: type = Function
) -> Callable[..., torch.Tensor]:
    """Return a function with a gradient, of an operator's arguments and the call that they make, by a class of
    ``torch.autograd``. Eager calls take it instead of the operator, which, if Python implements it, costs several times
    a launch in the dispatcher. ``run`` multiplies, given the call and what follows it, with no gradient recorded;
    ``ways`` multiply in the backward pass."""
    arguments, derivative = len(ARGUMENTS[name]), DERIVATIVES[name]

    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        call, *more = given[arguments:]
        ctx.batch_invariant = invariant(call)
        derivative.save(ctx, call)
        out = run(call, *more)
        # a caller could not change a view in place
        return torch.ops.aten._unsafe_view(out, out.shape) if out._is_view() else out

    @untraced
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Maybe, ...]:
        gradients = derivative.backward(ctx, gradient, ways)
        return *gradients, *(None,) * (arguments + 2 - len(gradients))

    methods: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    node = f"{NAMESPACE}_{name}"
    made: Any = new_class(node, (base,), exec_body=lambda body: body.update(methods))
    return made.apply


def _below(call: Call, keys: Any) -> Maybe:
    """Run an operator below autograd."""
    name = call.kind if call.out is None else f"{call.kind}_out"
    with torch._C._AutoDispatchBelowAutograd():
        return BY_NAME[name].redispatch(keys & torch._C._after_autograd_keyset, *arguments_of(name, call))


def _below_recorded(call: Call, keys: Any) -> Any:
    """The same within a function of autograd, which stops recording, also by the transforms around this one."""
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        return _below(call, keys)


_RECORDED = {name: recording(name, _below_recorded, Ways(), _SingleLevelFunction) for name in DERIVATIVES}


@untraced
def _by_autograd(name: str, keys: Any, *given: Any, **named: Any) -> Maybe:
    """An operator with its derivatives. torch.library.register_autograd has no tangents, and no transforms of
    torch.func: each of their levels calls this with its tensors, and one level of autograd records them."""
    # to ask a tensor for its tangent takes 3 us; what torch.compile makes of a forward-mode level sets no current level
    duals = forward_ad._current_level >= 0 or "torch._dynamo" in sys.modules
    recorded, dual, plain, gradients = False, False, True, torch.is_grad_enabled()
    for tensor in (*given, *named.values()):
        if isinstance(tensor, torch.Tensor):
            recorded = recorded or (gradients and tensor.requires_grad)
            dual = dual or (duals and forward_ad.unpack_dual(tensor, level=0)[1] is not None)
            plain = plain and type(tensor) in PLAIN
    if plain and not (recorded or dual):
        with torch._C._AutoDispatchBelowAutograd():
            return BY_NAME[name].redispatch(keys & torch._C._after_autograd_keyset, *given, **named)
    call = call_of(name, *given, **named)
    if not (type(call.a) in PLAIN and type(call.b) in PLAIN):  # perhaps the first DTensor
        sharding.register({name: BY_NAME[name] for name in DERIVATIVES}, ARGUMENTS, call_of)
    tangent = _tangent(call) if dual else None
    if call.out is not None and (recorded or tangent is not None):
        raise RuntimeError(f"{_NO_GRADIENT} or a tangent computed; use what is returned, or torch.no_grad()")
    if recorded:  # dual tensors are kept as they are, since gradients have tangents too
        with enable_single_level_autograd_function(), forward_ad._set_fwd_grad_enabled(False):
            out: Maybe = _RECORDED[name](*arguments_of(name, call), call, keys)
    else:
        out = _below(call, keys)
    return out if tangent is None or out is None else forward_ad.make_dual(out, tangent, level=0)


def _tangent(call: Call) -> torch.Tensor:
    """The tangent of an output, from those of the tensors, of which some has one."""
    if call.out is not None:
        return call.out
    given = {field: value for field, value in call._asdict().items() if isinstance(value, torch.Tensor)}
    duals = {field: forward_ad.unpack_dual(tensor, level=0) for field, tensor in given.items()}
    primal = call._replace(**{field: dual.primal for field, dual in duals.items()})
    tangents = call._replace(**{field: dual.tangent for field, dual in duals.items()})
    return DERIVATIVES[call.kind].tangent(primal, tangents).to(output_of(call)[1])


def _run(name: str, call: Call) -> Any:
    return BY_NAME[name](*arguments_of(name, call))


def flops_of(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a product of these shapes, (..., k) and (..., k, n): 2 m n k, as torch counts its own."""
    return 2 * prod(a) * b[-1]


def implement(
    name: str, fake: Callable[..., Any], flops: Callable[..., int] = flops_of, **runs: Callable[..., Any]
) -> None:
    """Implement an operator: on fake tensors, its FLOPs from the shapes of its tensors, and by dispatch key."""
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=OPERATORS)
    register_flop_formula(getattr(torch.ops.hopper_gemm, name))(flops)
    for key, run in runs.items():
        OPERATORS.impl(name, run, key, with_keyset=key == "Autograd")


for _name in SCHEMAS:
    _keys = {"CPU": partial(_on_cpu, _name), "Autograd": partial(_by_autograd, _name)}
    if _name in DERIVATIVES:
        _keys |= dict.fromkeys(("AutocastCUDA", "AutocastCPU"), partial(_in_autocast, _name))
    _flops = flops_of if _name in ("mm", "mm_out", "bmm") else lambda x, w, *_, **__: flops_of(x, w[::-1])
    implement(_name, partial(_on_fake, _name), _flops, **_keys)
    _rule = partial(batching_rule, partial(call_of, _name), partial(_run, _name))
    torch.library.register_vmap(f"{NAMESPACE}::{_name}", _rule, lib=OPERATORS)
