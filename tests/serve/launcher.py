"""A kernel's host function without a GPU: called through TVM-FFI as a compiled one is, on matrices of the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
import tvm_ffi

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def tensor(argument: Any) -> Any:
    """What a function of TVM-FFI got, as a tensor of torch's in the same memory; what is no tensor, as it is."""
    if not isinstance(argument, tvm_ffi.Tensor):
        return argument
    shape, strides, dtype = tuple(argument.shape), tuple(argument.strides), TYPES[str(argument.dtype)]
    size = 1 + sum((many - 1) * step for many, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(argument.data_ptr())
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def launcher(launch: Callable[..., None]) -> Any:
    """A function of TVM-FFI that calls another with its arguments, tensors as torch's."""
    return tvm_ffi.convert(lambda *arguments: launch(*map(tensor, arguments)))
