"""Checks of calls and their operators; each error is one line with the fix."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn.parameter import is_lazy

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import ACTIVATIONS, Epilogue
from hopper_gemm.model.problem import shown
from hopper_gemm.serve.call import OPERANDS, Call, output_of, transformed
from hopper_gemm.serve.operands import as_matrix, owns_its_elements, share_memory

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Types of the operands. The output has the same, or fp32."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensor whose memory holds their values."""


class MisfitError(ValueError, RuntimeError):
    """Tensors do not fit each other; torch raises a RuntimeError."""


class MixedTypesError(TypeError, RuntimeError):
    """Element types do not fit each other; torch raises a RuntimeError."""


class UnsupportedError(Exception):
    """The kernel cannot multiply operands that torch.mm can."""


class UnsupportedTypeError(UnsupportedError, TypeError):
    """The kernel has no such element type, or the class of a tensor says nothing of its memory."""


class UnsupportedDeviceError(UnsupportedError, RuntimeError):
    """The operands are not on a Hopper GPU."""


def strided(tensor: torch.Tensor | None) -> bool:
    """Return True if a tensor has sizes and strides: it is neither sparse nor nested nor a lazy layer's parameter."""
    return tensor is None or not (tensor.layout != torch.strided or tensor.is_nested or is_lazy(tensor))


NAMES = {kind: (*operands, "bias", "residual", "out") for kind, operands in OPERANDS.items()}
"""What a call's public function calls its tensors: a, b, bias, residual and out."""


def refuse_foreign(call: Call) -> None:
    """Refuse the first argument of a class that the public functions do not take, and a scale of more than 64 bits."""
    tensors = (call.a, call.b, call.bias, call.residual, call.out)
    for name, tensor in zip(NAMES[call.kind], tensors, strict=True):
        if tensor is None and name in OPERANDS[call.kind]:
            raise TypeError(f"{name} must be a plain torch tensor but is None; give one")
        if not isinstance(tensor, torch.Tensor | None):
            kind = f"a {type(tensor).__module__}.{type(tensor).__qualname__}"
            raise TypeError(f"{name} must be a plain torch tensor but is {kind}; convert it with torch.as_tensor")
    if not isinstance(call.config, GemmConfig | None):
        raise TypeError(
            f"config must be a hopper_gemm.GemmConfig or None but is a {type(call.config).__name__}; "
            "leave it out for the tuned one, or give GemmConfig(tile_m=..., ...)"
        )
    if not isinstance(call.activation, str | None):
        given = shown(call.activation)
        raise TypeError(f"activation must be None or one of {', '.join(ACTIVATIONS)} but is {given}; give its name")
    if call.out_dtype is not None and not isinstance(call.out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype but is {shown(call.out_dtype)}; give torch.float32 or None")
    if not isinstance(call.batch_invariant, bool | None):
        given = shown(call.batch_invariant)
        raise TypeError(f"batch_invariant must be True, False or None but is {given}; None is the thread's setting")
    if isinstance(call.scale, bool) or not isinstance(call.scale, int | float | torch.SymInt | torch.SymFloat | None):
        fix = "multiply by a tensor after the call" if isinstance(call.scale, torch.Tensor) else "give a float"
        raise TypeError(f"scale must be a float, an int or None but is {shown(call.scale)}; {fix}")
    if isinstance(call.scale, int) and call.scale.bit_length() > 63:
        raise ValueError("scale must fit in 64 bits but is a larger int; give a float")


def check_call(call: Call) -> None:
    """Refuse shapes, types and devices that do not fit each other: mistakes for torch as well. Tensors may be fake."""
    a, b, kind = call.a, call.b, call.kind
    if kind == "mm":
        fit = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    elif kind == "bmm":
        fit = a.dim() == 3 and (b.dim() == 2 or (b.dim() == 3 and a.shape[0] == b.shape[0]))
        fit = fit and a.shape[-1] == b.shape[-2]
    else:
        fit = b.dim() == 2 and a.dim() >= 1 and a.shape[-1] == b.shape[1]
    if not fit:
        raise MisfitError(_unfit(call))
    if kind == "swiglu" and b.shape[0] % 2:
        rows = "w_gate_up must have as many rows of the gate as of up"
        raise ValueError(f"{rows} but has {b.shape[0]}; give torch.cat((w_gate, w_up))")
    if a.dtype != b.dtype:
        raise MixedTypesError(wrong_types(call))
    if a.device != b.device:
        both = " and ".join(OPERANDS[kind])
        raise MisfitError(f"{both} must be on one device but are on {a.device} and {b.device}")
    if call.out_dtype not in (None, a.dtype, torch.float32):
        raise TypeError(f"out_dtype must be {a.dtype}, as the operands are, or torch.float32 but got {call.out_dtype}")
    if call.activation:
        Epilogue(activation=call.activation)  # refuses another name
    if call.out is not None or call.bias is not None or call.residual is not None:
        _check_given(call)


def _unfit(call: Call) -> str:
    """What is wrong with the shapes of operands, and the fix."""
    a, b, (left, right) = call.a, call.b, OPERANDS[call.kind]
    wanted, fix = "(..., k) and (n, k)", f"give a weight (k, n) as {right}.t()"
    if call.kind == "bmm":
        wanted = "(batch, m, k) and (batch, k, n) or (k, n)"
        fix = "give one of them as .mT, or the smaller batch as .expand()"
    elif call.kind == "mm":
        wanted, fix = "(m, k) and (k, n)", "give one of them as .t() or reshape it"
        if a.dim() > 2 or b.dim() > 2:
            fix = "hopper_gemm.bmm multiplies batches, hopper_gemm.linear(a, b.t()) takes leading axes of a"
    return f"{left} and {right} must be {wanted} but got {tuple(a.shape)} and {tuple(b.shape)}; {fix}"


def _check_given(call: Call) -> None:
    """Refuse an output, a bias or a residual that does not fit the product."""
    x, (shape, dtype) = call.a, output_of(call)
    out_types = (x.dtype, torch.float32) if call.out_dtype is None else (call.out_dtype,)
    for name, tensor, sizes, types in (
        ("out", call.out, shape, out_types),
        ("bias", call.bias, shape[-1:], (x.dtype,)),
        ("residual", call.residual, shape, (dtype,)),
    ):
        if tensor is None:
            continue
        fits = tensor.dim() == len(sizes) and tensor.dtype in types and tensor.device == x.device
        if not fits or tuple(tensor.shape) != sizes:
            raise MisfitError(misfit(name, tensor, sizes, x.device, *types))


def misfit(name: str, tensor: torch.Tensor, sizes: tuple[int, ...], device: torch.device, *types: torch.dtype) -> str:
    """What is wrong with a tensor that must have these sizes, one of these types, and this device."""
    wanted = f"{sizes} {' or '.join(map(str, types))} on {device}"
    return f"{name} must be {wanted} but is {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"


def check_rows(residual: torch.Tensor) -> None:
    """Refuse a residual whose last axis is not contiguous."""
    if residual.numel() and residual.shape[-1] > 1 and residual.stride(-1) != 1:
        text = f"residual must be contiguous along its last axis but has strides {residual.stride()}"
        raise ValueError(f"{text}; give it as .contiguous()")


def check_apart(call: Call) -> None:
    """Refuse an ``out`` that shares memory with itself or with what is read. It may be the whole residual: the kernel
    reads each of its elements once, in the thread that holds the sum to which it is added, and what replaces it is
    stored once, after a barrier behind that read (``kernel/epilogue.py``)."""
    out, residual = call.out, call.residual
    written = None if out is None else as_matrix(out)
    if out is None or written is None:
        return  # made, or written from a buffer
    if written.numel() and not owns_its_elements(written):
        raise ValueError(
            f"out must have a place in memory for each element but has strides {written.stride()} for "
            f"{tuple(written.shape)}; give it as .contiguous()"
        )
    replaced = residual is not None and (residual.data_ptr(), residual.stride()) == (out.data_ptr(), out.stride())
    for tensor in (call.a, call.b, call.bias, None if replaced else residual):
        read = None if tensor is None else as_matrix(tensor)
        if read is not None and read.numel() and written.numel() and share_memory(written, read):
            names = "a or b" if call.kind == "mm" else "x, w, bias or a part of residual"
            fix = "which are read while it is written; give another one"
            raise ValueError(f"out must not share memory with {names}, {fix}")


def check_supported(call: Call) -> None:
    """Refuse a class, layout, element type or device that torch.mm multiplies and the kernel cannot."""
    tensors = (call.a, call.b, call.bias, call.residual, call.out)
    for name, tensor in zip(NAMES[call.kind], tensors, strict=True):
        if tensor is None:
            continue
        if type(tensor) not in PLAIN:
            kind = f"a {type(tensor).__module__}.{type(tensor).__qualname__}"
            raise UnsupportedTypeError(f"{name} must be a plain torch tensor but is {kind}; take its plain tensor")
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise UnsupportedTypeError(f"{name} must be a dense tensor but is {kind}; take its .to_dense()")
    check_types(call)
    check_device(call.a.device)


def check_types(call: Call) -> None:
    """Refuse an element type that the kernel does not multiply."""
    if call.a.dtype not in DTYPES:
        raise UnsupportedTypeError(wrong_types(call))


def recordable(call: Call) -> bool:
    """Return True if a call with gradients needs no operator: plain tensors, which nothing watches."""
    if transformed():
        return False
    for tensor in (call.a, call.b, call.bias):  # quicker than a generator
        if tensor is not None and (
            type(tensor) not in PLAIN or tensor.dtype not in DTYPES or tensor.layout is not torch.strided
        ):
            return False
    return call.residual is None or type(call.residual) in PLAIN


def wrong_types(call: Call) -> str:
    """What is wrong with the types of operands, and the fix."""
    both = "a and b must both be bfloat16 or both float16"
    if call.kind not in ("mm", "bmm") and call.a.dtype != call.b.dtype:
        both = f"{' and '.join(OPERANDS[call.kind])} must have one type"
    return f"{both} but got {call.a.dtype} and {call.b.dtype}; convert them with .to()"


@cache
def check_device(device: torch.device) -> None:
    """Refuse a device that is no Hopper GPU."""
    if device.type != "cuda":
        raise UnsupportedDeviceError(
            f"a and b must be on a Hopper GPU but are on {device}; move them with .cuda(), or use torch.mm"
        )
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) != hopper.COMPUTE_CAPABILITY:
        raise UnsupportedDeviceError(
            f"the kernel needs a Hopper GPU (sm_90) but {device} is sm_{major}{minor}; use torch.mm there"
        )
