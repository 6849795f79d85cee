"""A call of a public function: its operands, what follows the product, and its settings."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch._C import (
    _are_functorch_transforms_active,
    _get_tracing_state,
    _is_any_autocast_enabled,
    _is_torch_function_mode_enabled,
    _len_torch_dispatch_stack,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_exporting

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.serve.kernels import MODE

Maybe = torch.Tensor | None

GATED = Epilogue(activation="silu", gated=True)

OPERANDS = {"mm": ("a", "b"), "bmm": ("a", "b"), "linear": ("x", "w"), "swiglu": ("x", "w_gate_up")}
"""Kinds of call, which are the names of their operators, with what each calls its operands."""


class Call(NamedTuple):
    """Arguments of a public function or an operator, as :func:`hopper_gemm.matmul` and :func:`hopper_gemm.linear` say.
    The context and the fallback policy are the thread's. ``a`` is (m, k), with any leading axes of a layer, (batch, m,
    k) of a batched product; ``b`` is (k, n), or batches of it, and (n, k) of a layer; ``kind`` of :data:`OPERANDS`."""

    a: torch.Tensor
    b: torch.Tensor
    bias: Maybe = None
    activation: str | None = None
    residual: Maybe = None
    scale: float | None = None
    out_dtype: torch.dtype | None = None
    batch_invariant: bool | None = None
    out: Maybe = None
    config: GemmConfig | None = None
    kind: str = "linear"


make = partial(tuple.__new__, Call)
"""Makes a call of a tuple of all its fields, in a third of the time that its class takes."""


def needs_gradient(call: Call) -> bool:
    """Return True if a gradient of a call is recorded."""
    tensors = (call.a, call.b, call.bias, call.residual, call.out)
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def keeps_product(call: Call) -> bool:
    """Return True if a gradient is recorded through an activation, for which the product is kept. An exported graph has
    the one operator; torch's gradients of activations have no tangents."""
    activated = call.kind == "swiglu" or call.activation is not None
    return activated and needs_gradient(call) and forward_ad._current_level < 0 and not is_exporting()


def invariant(call: Call) -> bool:
    """Return True if the call is batch-invariant."""
    return MODE.batch_invariant if call.batch_invariant is None else call.batch_invariant


def finish_of(call: Call) -> Epilogue | None:
    """What the epilogue does before it rounds; None for a product alone."""
    if call.kind == "swiglu":
        return GATED
    added = {"bias": call.bias is not None, "residual": call.residual is not None, "scale": call.scale is not None}
    return Epilogue.of(activation=call.activation, **added)


def output_of(call: Call) -> tuple[tuple[int, ...], torch.dtype]:
    """Sizes and type of the output."""
    dtype = call.out.dtype if call.out is not None else call.out_dtype or call.a.dtype
    if call.kind in ("mm", "bmm"):
        return (*call.a.shape[:-1], call.b.shape[-1]), dtype
    n = call.b.shape[0]
    return (*call.a.shape[:-1], n // 2 if call.kind == "swiglu" else n), dtype


def traced(call: Call) -> bool:
    """Return True if a call is being traced, for torch.compile or torch.export or by fake tensors alone."""
    traced_types = (FakeTensor, FunctionalTensor)
    return is_compiling() or isinstance(call.a, traced_types) or isinstance(call.b, traced_types)


def transformed() -> bool:
    """Return True within a transform of torch.func or a dispatch mode, such as selective checkpointing's."""
    return bool(_are_functorch_transforms_active()) or _len_torch_dispatch_stack() > 0


def watched(call: Call) -> bool:
    """Return True if something looks at the operators of this thread: a transform of torch.func, a level of
    forward-mode AD, a dispatch or function mode, or a tracer. Such a call is its operator's, even where its launch is
    kept. The extension asks the same (``native.cpp``).

    A config is no argument of the operators; such a call is seen by dispatch modes alone, which refuse it."""
    return (
        traced(call)
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack() > 0
        or (_is_torch_function_mode_enabled() and call.config is None)
        or _get_tracing_state() is not None
    )


def autocast_type(tensor: torch.Tensor) -> torch.dtype | None:
    """The type to which autocast casts on a tensor's device, a GPU or a CPU; None outside of it."""
    if not _is_any_autocast_enabled():
        return None
    device = tensor.device.type
    enabled = device in ("cuda", "cpu") and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if enabled else None


def cast(call: Call) -> bool:
    """Return True if autocast changes the type of a tensor: with an ``out`` only fp32, which the kernel cannot read."""
    dtype = autocast_type(call.a) if _is_any_autocast_enabled() else None
    if dtype is None or call.out is not None:
        return dtype is not None and torch.float32 in (call.a.dtype, call.b.dtype)
    return any(tensor is not None and _cast_to(dtype, tensor) != tensor.dtype for tensor in call[:3])


def _cast_to(dtype: torch.dtype, tensor: torch.Tensor) -> torch.dtype:
    """The type that a tensor has for an autocast to a type: torch casts every floating-point type but fp64."""
    return dtype if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor.dtype


def autocast_call(call: Call) -> Call:
    """A call with its tensors in the types to which autocast casts them."""
    dtype = torch.get_autocast_dtype(call.a.device.type)
    types = {"a": dtype, "b": dtype, "bias": dtype, "residual": call.out_dtype or dtype}
    given = {field: tensor for field in types if (tensor := getattr(call, field)) is not None}
    return call._replace(**{field: tensor.to(_cast_to(types[field], tensor)) for field, tensor in given.items()})
