"""``hopper_gemm.linear`` and ``swiglu``: a layer's product and what follows it, in one launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from hopper_gemm.model import hopper
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve.checks import DTYPES, PLAIN, UnsupportedError, check_supported, refuse_others
from hopper_gemm.serve.eager import recordable, recording
from hopper_gemm.serve.fallback import POLICY, have_memory, launch_torch_linear, torch_is_faster
from hopper_gemm.serve.kernels import MODE, default_config, kernel_for, pick_for
from hopper_gemm.serve.known import KNOWN
from hopper_gemm.serve.linear_ops import (
    Call,
    Maybe,
    autocast_call,
    check_apart,
    check_linear,
    check_rows,
    check_swiglu,
    finished,
    fitted,
    folded,
    halved,
    linear_backward,
    linear_op,
    linear_out_op,
    out_call,
    save_linear,
    save_swiglu,
    swiglu_backward,
    swiglu_op,
)
from hopper_gemm.serve.matmul import cast, loading_allowed, matmul, product, traced
from hopper_gemm.serve.operands import as_matrix, has_rows, reaches
from hopper_gemm.serve.ops import OPERATORS, implement, in_autocast

GATED = Finish(activation="silu", gated=True)

BIASED = Finish(bias=True)
"""What torch.addmm does too."""

_MISALIGNED = hopper.TMA_ALIGN_BYTES - 1
"""Bits of an address that must be 0."""

_KNOWN_MOST = 4096
"""Most launches kept in ``_known``; beyond it all are dropped."""

Known = tuple[Callable[..., None], int, tuple[int, int], torch.dtype]
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

    An ``out`` whose rows are contiguous and start at multiples of 16 bytes is written in place, from the second call of
    its kind on; any other from a buffer.

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
    if not is_dynamo_compiling() and (native := KNOWN.native) is not None:
        layer = native.linear(x, w, bias, activation, residual, scale, out_dtype, batch_invariant, out)
        if layer is not None:
            return layer
    call = Call(x, w, bias, activation, residual, scale, out_dtype, batch_invariant)
    if out is not None:
        return _into(out, call)
    if is_dynamo_compiling():
        return _by_operator(call)
    try:
        if torch.is_grad_enabled() and (
            x.requires_grad
            or w.requires_grad
            or (bias is not None and bias.requires_grad)
            or (residual is not None and residual.requires_grad)
        ):
            typed = autocast_call(call) if cast(x, w) else call
            if recordable(typed.x, typed.w, typed.bias) and (residual is None or type(residual) in PLAIN):
                return _recorded_linear(*typed)
            return _by_operator(call)
        decided = _decided(call)
        if KNOWN.launch is not None and KNOWN.native is None:
            repeated = _repeated(KNOWN.launch, call, decided)
            if repeated is not None:
                return repeated
        key = _key(call, decided)
        known = _known.get(key)
    except (AttributeError, TypeError):
        refuse_others(x=x, w=w, bias=bias, residual=residual)
        raise
    if known is None or _bits(x, w, bias, residual) & _MISALIGNED:
        return _first(call, key)
    return _launch(known, call)


def swiglu(x: torch.Tensor, w_gate_up: torch.Tensor, batch_invariant: bool | None = None) -> torch.Tensor:
    """``silu(x @ w_gate.t()) * (x @ w_up.t())`` in one launch, with both weights in one matrix as models stack them.

    A tile holds as many columns of the gate as of up and multiplies them in registers, in fp32, before the one
    rounding; no weight is moved.

    Args:
        x: (..., k), bf16 or fp16; leading axes are folded, without a copy where their strides allow that.
        w_gate_up: (2 f, k), same type and device, the gate's f rows first.
        batch_invariant: as of :func:`hopper_gemm.matmul`; by default as the thread's context says.

    Returns:
        (..., f), contiguous, of the operands' type, written on torch's current stream.

    One launch needs f and k in multiples of 8 and a weight contiguous along k, rows at multiples of 16 bytes. Else the
    product is :func:`hopper_gemm.matmul`'s in fp32, and torch does the rest.

    Raises:
        TypeError, ValueError, UnsupportedError: as :func:`linear`.

    Example:
        >>> hidden = hopper_gemm.swiglu(x, torch.cat((w_gate, w_up)))               # doctest: +SKIP
    """
    if not is_dynamo_compiling() and (native := KNOWN.native) is not None:
        layer = native.swiglu(x, w_gate_up, batch_invariant)
        if layer is not None:
            return layer
    if is_dynamo_compiling():
        return _by_gated_operator(x, w_gate_up, batch_invariant)
    try:
        if torch.is_grad_enabled() and (x.requires_grad or w_gate_up.requires_grad):
            left, right = in_autocast(x, w_gate_up) if cast(x, w_gate_up) else (x, w_gate_up)
            if recordable(left, right):
                return _recorded_swiglu(left, right, batch_invariant)
            return _by_gated_operator(x, w_gate_up, batch_invariant)
        call = Call(x, w_gate_up, batch_invariant=batch_invariant)
        decided = _decided(call._replace(activation="swiglu"))
        if KNOWN.launch is not None and KNOWN.native is None:
            repeated = _repeated(KNOWN.launch, call, decided)
            if repeated is not None:
                return repeated
        key = _key(call, decided)
        known = _known.get(key)
    except (AttributeError, TypeError):
        refuse_others(x=x, w_gate_up=w_gate_up)
        raise
    if known is None or _bits(x, w_gate_up) & _MISALIGNED:
        return _first_gated(x, w_gate_up, batch_invariant, key)
    return _launch(known, call)


def _invariant(asked: bool | None) -> bool:
    """Whether a call is batch-invariant."""
    return MODE.batch_invariant if asked is None else asked


def _decided(call: Call) -> tuple[Any, ...]:
    """What decides on the kernel of a layer, beside its tensors and the type of its output. The gated layer's
    activation is called swiglu."""
    return call.activation, MODE.context, _invariant(call.batch_invariant), POLICY.fallback


def _seen(one: Maybe) -> Any:
    """All of a tensor that decides how it is read, its address aside."""
    if one is None:
        return None
    return one.shape, one.stride(), one.dtype, one.get_device(), one.is_neg(), type(one)


def _key(call: Call, decided: tuple[Any, ...]) -> Any:
    """All of a call that the checks read, addresses aside."""
    tensors = map(_seen, (call.x, call.w, call.bias, call.residual))
    return *tensors, call.scale is None, call.out_dtype or call.x.dtype, decided


def _repeated(launch: Callable[..., int], call: Call, decided: tuple[Any, ...], into: Maybe = None) -> Maybe:
    """The layer, or the tensor into which it was written, by a launch that the library knows; None where it knows
    none."""
    x, w, bias, _, residual, scale, out_dtype, _ = call
    for one in (x, w, bias, residual, into):
        if one is not None and (type(one) not in PLAIN or one.is_neg()):
            return None
    if w.dim() != 2 or (KNOWN.several and x.get_device() != torch.cuda.current_device()):
        return None
    a, added = folded(x), None if residual is None else folded(residual)
    m, n = a.shape[0], w.shape[0] // 2 if decided[0] == "swiglu" else w.shape[0]
    if into is not None:
        out = as_matrix(into) if into.shape[:-1] == x.shape[:-1] else None
    else:
        out = a.new_empty(m, n) if out_dtype is None else a.new_empty((m, n), dtype=out_dtype)
    if out is None or not launch(KNOWN.setting(*decided), a, w, out, bias, added, scale):
        return None
    if into is not None:
        return into
    return out if x.dim() == 2 else out.view(*x.shape[:-1], n)


def _bits(*tensors: Maybe) -> int:
    """The bits that are set in the address of any of the tensors."""
    bits = 0
    for one in tensors:
        if one is not None:
            bits |= one.data_ptr()
    return bits


def _launch(known: Known, call: Call, setting: int | None = None, out: Maybe = None) -> torch.Tensor:
    """Launch what passed every check, into a matrix, and record it under a setting, if one is given."""
    kernel, device, size, dtype = known
    x, w, bias, _, residual, scale, _, _ = call
    if out is None:
        out = x.new_empty(size, dtype=dtype)
    a, added = folded(x), None if residual is None else folded(residual)
    if device == torch.cuda.current_device():
        kernel(a, w, out, bias, added, scale)
    else:
        with torch.cuda.device(device):
            kernel(a, w, out, bias, added, scale)
    if setting is not None:
        KNOWN.record(kernel, False, setting, a, w, out, bias, added, scale)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], size[1])


def _into(out: torch.Tensor, call: Call) -> torch.Tensor:
    """The layer, written to ``out``: by its launch once that is known and can store there, else from a buffer."""
    x, w, bias, activation, residual, scale, out_dtype, rule = call
    plain = out_dtype is None and type(out) in PLAIN and not (is_dynamo_compiling() or torch.is_grad_enabled())
    if plain and KNOWN.launch is not None and KNOWN.native is None:
        typed = call._replace(out_dtype=out.dtype)
        if _repeated(KNOWN.launch, typed, _decided(typed), out) is not None:
            return out
    if not traced(x, w):
        refuse_others(x=x, w=w, bias=bias, residual=residual, out=out)
    given = [one for one in (x, w, bias, residual, out) if one is not None]
    if torch.is_grad_enabled() and any(one.requires_grad for one in given):
        raise RuntimeError("out must be None where a gradient is recorded; use what is returned, or torch.no_grad()")
    call = fitted(out, call)
    if traced(x, w) and not falls_back(x, w, rule):
        linear_out_op(x, w, out, bias, activation, residual, scale, rule)
        return out
    if traced(x, w) or not have_memory(*given):
        return out.copy_(linear(*call))
    check_apart(out, call)
    written = as_matrix(out)
    if cast(x, w) or written is None or out.is_neg():
        return out.copy_(linear(*call))
    if bias is None and not activation and residual is None and scale is None:
        matmul(folded(x), w.t(), out=written, batch_invariant=rule)
        return out
    decided = _decided(call)
    setting, known = KNOWN.setting(*decided), _known.get(_key(call, decided))
    if known is None or not reaches(written) or _bits(x, w, bias, residual) & _MISALIGNED:
        return out.copy_(linear(*call))
    _launch(known, call, setting, written)
    return out


def _by_operator(call: Call) -> torch.Tensor:
    """The layer as an operator of torch's, for autograd and for tracing; or by torch alone where it falls back."""
    if not traced(call.x, call.w):
        refuse_others(x=call.x, w=call.w, bias=call.bias, residual=call.residual)
    return _by_torch(call) if falls_back(call.x, call.w, call.batch_invariant) else linear_op(*call)


def _by_torch(call: Call) -> torch.Tensor:
    """The layer by torch, in the type of the output."""
    check_linear(call)
    dtype = call.out_dtype or call.x.dtype
    return finished(call.x.to(dtype) @ call.w.to(dtype).mT, call).to(dtype)


def falls_back(x: torch.Tensor, w: torch.Tensor, batch_invariant: bool | None) -> bool:
    """Return True if torch runs a call that the kernel cannot. What is traced falls back by its type alone: which
    device it will run on is not known.

    Raises:
        UnsupportedError: the kernel cannot, and torch may not.
    """
    ours = POLICY.fallback == "never" or _invariant(batch_invariant)
    if traced(x, w):
        return not ours and x.dtype not in DTYPES and not torch.is_autocast_enabled(x.device.type)
    if cast(x, w):
        return False
    try:
        check_supported(x, w, None)
    except UnsupportedError:
        if ours:
            raise
        return True
    return False


def _first(call: Call, key: Any) -> torch.Tensor:
    """A call that is not known: check everything, launch, and record the launch."""
    x, w, bias, activation, residual, scale, out_dtype, rule = call
    if traced(x, w) or cast(x, w):
        return _by_operator(call)
    remembered, setting = _known, KNOWN.setting(*key[-1])
    refuse_others(x=x, w=w, bias=bias, residual=residual)
    check_linear(call)
    if falls_back(x, w, rule):
        return _by_torch(call)
    if residual is not None:
        check_rows(residual)
    finish = Finish.of(
        scale=scale is not None, bias=bias is not None, activation=activation, residual=residual is not None
    )
    a, added, dtype = folded(x), None if residual is None else folded(residual), out_dtype or x.dtype
    size = a.shape[0], w.shape[0]
    problem = _problem(a, w, dtype, _invariant(rule))
    kernel: Callable[..., None] = launch_torch_linear
    if problem is None or finish != BIASED or dtype != x.dtype or not _torch_is_faster(problem, a.get_device()):
        if finish is None or problem is None or not _in_one_launch(problem, a, w, finish) or not _aligned(bias, added):
            product = matmul(a, w.t(), out_dtype=dtype if finish is None else torch.float32, batch_invariant=rule)
            return finished(product, call._replace(residual=added)).to(dtype).view(*x.shape[:-1], size[1])
        kernel = _loaded(problem, finish, a.get_device())
    return _launch(_recorded(remembered, key, kernel, size, dtype), call, setting)


def _by_gated_operator(x: torch.Tensor, w_gate_up: torch.Tensor, batch_invariant: bool | None) -> torch.Tensor:
    """The gated layer as an operator of torch's, or by torch alone where it falls back."""
    if not traced(x, w_gate_up):
        refuse_others(x=x, w_gate_up=w_gate_up)
    if falls_back(x, w_gate_up, batch_invariant):
        return _gated_by_torch(x, w_gate_up)
    return swiglu_op(x, w_gate_up, batch_invariant)


def _gated_by_torch(x: torch.Tensor, w_gate_up: torch.Tensor) -> torch.Tensor:
    """The gated layer by torch, in its own type."""
    check_swiglu(x, w_gate_up)
    return halved(x @ w_gate_up.mT)


def _first_gated(x: torch.Tensor, w_gate_up: torch.Tensor, batch_invariant: bool | None, key: Any) -> torch.Tensor:
    """A gated call that is not known: check everything, launch, and record the launch."""
    if traced(x, w_gate_up) or cast(x, w_gate_up):
        return _by_gated_operator(x, w_gate_up, batch_invariant)
    remembered, setting = _known, KNOWN.setting(*key[-1])
    refuse_others(x=x, w_gate_up=w_gate_up)
    check_swiglu(x, w_gate_up)
    if falls_back(x, w_gate_up, batch_invariant):
        return _gated_by_torch(x, w_gate_up)
    a, f = folded(x), w_gate_up.shape[0] // 2
    problem = _problem(a, w_gate_up, x.dtype, _invariant(batch_invariant))
    if problem is None or not _in_one_launch(problem, a, w_gate_up, GATED):
        product = matmul(a, w_gate_up.t(), out_dtype=torch.float32, batch_invariant=batch_invariant)
        return halved(product).to(x.dtype).view(*x.shape[:-1], f)
    kernel = _loaded(problem, GATED, a.get_device())
    return _launch(_recorded(remembered, key, kernel, (a.shape[0], f), x.dtype), Call(x, w_gate_up), setting)


def _problem(a: torch.Tensor, w: torch.Tensor, dtype: torch.dtype, batch_invariant: bool) -> GemmProblem | None:
    """The product, by the axis along which each operand is read; None if there is nothing to multiply, or if an operand
    must be copied first."""
    (m, k), n = a.shape, w.shape[0]
    if 0 in (m, n, k) or a.is_neg() or w.is_neg():
        return None
    layouts = ("k" if has_rows(a) else "m") + ("n" if has_rows(w.t()) and not has_rows(w) else "k")
    name = DTYPES[a.dtype] + ("_fp32" if dtype == torch.float32 else "")
    return GemmProblem(m, n, k, name, layouts, batch_invariant)


def _torch_is_faster(problem: GemmProblem, device: int) -> bool:
    """Return True if torch.mm was measured to be faster, and may run."""
    may = POLICY.fallback == "faster" and not problem.batch_invariant
    return may and torch_is_faster(pick_for(problem, device))


def _in_one_launch(problem: GemmProblem, a: torch.Tensor, w: torch.Tensor, finish: Finish) -> bool:
    """Return True if the kernel can read and write the product in place, and some config can finish it."""
    if problem.out_of_reach or not all(reaches(one) or reaches(one.t()) for one in (a, w)):
        return False
    return not reasons(default_config(problem, a.get_device(), finish), problem, finish)


def _aligned(bias: Maybe, residual: Maybe) -> bool:
    """Return True if the kernel can read what is added in place."""
    plain = all(one is None or not one.is_neg() for one in (bias, residual))
    whole = bias is None or (bias.is_contiguous() and not bias.data_ptr() & _MISALIGNED)
    return plain and whole and (residual is None or reaches(residual))


def _loaded(problem: GemmProblem, finish: Finish, device: int) -> Callable[..., None]:
    """The kernel of a problem."""
    with torch.cuda.device(device), loading_allowed():
        return kernel_for(problem, device, None, finish)


def _recorded(
    remembered: dict[Any, Known], key: Any, kernel: Callable[..., None], size: tuple[int, int], dtype: torch.dtype
) -> Known:
    """A launch, recorded for later calls."""
    if len(remembered) >= _KNOWN_MOST:
        remembered.clear()
    known = remembered[key] = kernel, key[0][3], size, dtype
    return known


# Gradients of eager calls, and the operators on a GPU -----------------------------------------

_recorded_linear = recording(
    "hopper_gemm_linear", linear, save_linear, partial(linear_backward, product=product, layer=linear)
)
_recorded_swiglu = recording("hopper_gemm_swiglu", swiglu, save_swiglu, partial(swiglu_backward, product=product))


def _linear(*given: Any, **named: Any) -> torch.Tensor:
    with torch.no_grad():  # autograd has been here
        return linear(*given, **named)


def _linear_out(*given: Any, **named: Any) -> None:
    out, call = out_call(*given, **named)
    with torch.no_grad():
        linear(*call, out=out)


def _swiglu(x: torch.Tensor, w_gate_up: torch.Tensor, batch_invariant: bool | None = None) -> torch.Tensor:
    with torch.no_grad():
        return swiglu(x, w_gate_up, batch_invariant)


implement("linear", _linear)
OPERATORS.impl("linear_out", _linear_out, "CUDA")
implement("swiglu", _swiglu)
