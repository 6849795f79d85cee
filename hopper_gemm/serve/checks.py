"""Checks of :func:`hopper_gemm.matmul` and its operators; each error is one line with the fix."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.serve.operands import owns_its_elements, share_memory

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Types of the operands. The output has the same, or fp32."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensor whose memory holds their values."""


class UnsupportedError(Exception):
    """The kernel cannot multiply operands that torch.mm can."""


class UnsupportedTypeError(UnsupportedError, TypeError):
    """The kernel has no such element type, or the class of a tensor says nothing of its memory."""


class UnsupportedDeviceError(UnsupportedError, RuntimeError):
    """The operands are not on a Hopper GPU."""


def check_matrices(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None) -> None:
    """Refuse shapes and types that :func:`matmul` refuses on any device; tensors may be fake.

    Raises:
        TypeError, ValueError: as :func:`matmul`.
    """
    check_fit(a, b, out, out_dtype)
    check_type(a, b)


def check_fit(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None) -> None:
    """Refuse shapes, types and devices that do not fit each other: mistakes for torch.mm as well.

    Raises:
        TypeError, ValueError: as :func:`matmul`.
    """
    _check_pair(a, b)
    _check_out_dtype(a, out_dtype)
    if out is not None:
        check_out(out, (a.shape[0], b.shape[1]), a, out_dtype)


def check_batches(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None) -> None:
    """Refuse what :func:`hopper_gemm.bmm` refuses on any device, of any type; tensors may be fake.

    Raises:
        TypeError, ValueError: as there.
    """
    batches = a.dim() == 3 and (b.dim() == 2 or (b.dim() == 3 and a.shape[0] == b.shape[0]))
    if not batches or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a and b must be (batch, m, k) and (batch, k, n) or (k, n) but got {tuple(a.shape)} and {tuple(b.shape)}; "
            "give one of them as .mT, or the smaller batch as .expand()"
        )
    _check_alike(a, b)
    _check_out_dtype(a, out_dtype)


def refuse_others(**tensors: Any) -> None:
    """Refuse what is no tensor.

    Args:
        tensors: by name; each may be None but the first two.

    Raises:
        TypeError: the first that is refused, with the fix.
    """
    for number, (name, one) in enumerate(tensors.items()):
        if not isinstance(one, torch.Tensor) and (one is not None or number < 2):
            kind = "None" if one is None else f"a {type(one).__module__}.{type(one).__qualname__}"
            fix = "give one" if one is None else "convert it with torch.as_tensor"
            raise TypeError(f"{name} must be a plain torch tensor but is {kind}; {fix}")


def refuse_foreign(a: Any, b: Any, out: Any, config: Any) -> None:
    """Refuse what is no tensor, and what is no config."""
    refuse_others(a=a, b=b, out=out)
    if not isinstance(config, GemmConfig | None):
        raise TypeError(
            f"config must be a hopper_gemm.GemmConfig or None but is a {type(config).__name__}; "
            "leave it out for the tuned one, or give GemmConfig(tile_m=..., ...)"
        )


def check_supported(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> None:
    """Refuse tensors that torch.mm multiplies and the kernel cannot.

    Raises:
        UnsupportedError: their memory does not hold their values, an element type, or the device.
    """
    for name, one in (("a", a), ("b", b), ("out", out)):
        if one is not None and type(one) not in PLAIN:
            kind = f"a {type(one).__module__}.{type(one).__qualname__}"
            raise UnsupportedTypeError(f"{name} must be a plain torch tensor but is {kind}; take its plain tensor")
        if one is not None and one.layout != torch.strided:
            raise UnsupportedTypeError(f"{name} must be a dense tensor but is {one.layout}; take its .to_dense()")
    check_type(a, b)
    check_device(a.device)


def check_type(a: torch.Tensor, b: torch.Tensor) -> None:
    """Refuse an element type that the kernel does not have.

    Raises:
        UnsupportedTypeError: another one.
    """
    if a.dtype not in DTYPES:
        raise UnsupportedTypeError(_types(a, b))


def _types(a: torch.Tensor, b: torch.Tensor) -> str:
    both = "a and b must both be bfloat16 or both float16"
    return f"{both} but got {a.dtype} and {b.dtype}; convert them with .to()"


def _check_pair(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        fix = "give one of them as .t() or reshape it"
        if a.dim() > 2 or b.dim() > 2:
            fix = "hopper_gemm.bmm multiplies batches, hopper_gemm.linear(a, b.t()) takes leading axes of a"
        raise ValueError(f"a and b must be (m, k) and (k, n) but got {tuple(a.shape)} and {tuple(b.shape)}; {fix}")
    _check_alike(a, b)


def _check_alike(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dtype != b.dtype:
        raise TypeError(_types(a, b))
    if a.device != b.device:
        raise ValueError(f"a and b must be on one device but are on {a.device} and {b.device}")


def _check_out_dtype(a: torch.Tensor, out_dtype: torch.dtype | None) -> None:
    if out_dtype not in (None, a.dtype, torch.float32):
        raise TypeError(f"out_dtype must be {a.dtype}, as the operands are, or torch.float32 but got {out_dtype}")


def check_out(out: torch.Tensor, shape: tuple[int, ...], operand: torch.Tensor, out_dtype: torch.dtype | None) -> None:
    """Refuse an output of another shape, type or device than the product's.

    Raises:
        ValueError: another one.
    """
    allowed = (operand.dtype, torch.float32) if out_dtype is None else (out_dtype,)
    if tuple(out.shape) != shape or out.dtype not in allowed or out.device != operand.device:
        sizes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise ValueError(
            f"out must be ({sizes}) {' or '.join(map(str, allowed))} on {operand.device} "
            f"but is {tuple(out.shape)} {out.dtype} on {out.device}"
        )


def check_memory(out: torch.Tensor, *read: torch.Tensor, names: str = "a or b") -> None:
    """Refuse an output that shares memory with what is read or with itself.

    Args:
        out: a matrix.
        read: matrices.
        names: of what is read.

    Raises:
        ValueError: it shares memory.
    """
    if out.numel() and not owns_its_elements(out):
        raise ValueError(
            f"out must have a place in memory for each element but has strides {out.stride()} for {tuple(out.shape)}; "
            "give it as .contiguous()"
        )
    if any(one.numel() and out.numel() and share_memory(out, one) for one in read):
        fix = "which are read while it is written; give another one"
        raise ValueError(f"out must not share memory with {names}, {fix}")


@cache
def check_device(device: torch.device) -> None:
    """Refuse a device that is no Hopper GPU.

    Raises:
        UnsupportedDeviceError: another one.
    """
    if device.type != "cuda":
        raise UnsupportedDeviceError(
            f"a and b must be on a Hopper GPU but are on {device}; move them with .cuda(), or use torch.mm"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability != hopper.COMPUTE_CAPABILITY:
        major, minor = capability
        raise UnsupportedDeviceError(
            f"the kernel needs a Hopper GPU (sm_90) but {device} is sm_{major}{minor}; use torch.mm there"
        )
