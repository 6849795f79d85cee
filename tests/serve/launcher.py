"""A kernel's host function without a GPU: called through TVM-FFI as a compiled one is, on matrices of the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
import tvm_ffi

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class DLTensor(ctypes.Structure):
    """dlpack.h's, whose device and type nobody reads here."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("axes", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class AnyValue(ctypes.Structure):
    """TVMFFIAny of TVM-FFI's c_api.h: a number, or the address of a tensor or an object."""

    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_int64))


INT, DLTENSOR_POINTER = 1, 7
"""kTVMFFIInt and kTVMFFIDLTensorPtr of c_api.h."""
OBJECT_BYTES = 24
"""sizeof(TVMFFIObject), behind which an object that is a tensor has its DLTensor."""


@ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(AnyValue), ctypes.c_int32, ctypes.POINTER(AnyValue)),
)
def _address(_handle: Any, arguments: Any, _count: int, result: Any) -> int:
    argument = arguments[0]
    start = argument.value + (0 if argument.type_index == DLTENSOR_POINTER else OBJECT_BYTES)
    matrix = DLTensor.from_address(start)
    result[0] = AnyValue(INT, 0, (matrix.data or 0) + matrix.byte_offset)
    return 0


address = tvm_ffi.Function.__from_extern_c__(ctypes.cast(_address, ctypes.c_void_p).value, keep_alive_object=_address)
"""Address of a tensor's first element, by the C interface: TVM-FFI 0.1.11 has no ``Tensor.data_ptr``."""


def tensor(argument: Any) -> Any:
    """What a function of TVM-FFI got, as a tensor of torch's in the same memory; what is no tensor, as it is.

    Not by DLPack: C passes tensors that are no objects, which TVM-FFI cannot export.
    """
    if not isinstance(argument, tvm_ffi.Tensor):
        return argument
    shape, strides, dtype = tuple(argument.shape), tuple(argument.strides), TYPES[str(argument.dtype)]
    size = 1 + sum((many - 1) * step for many, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address(argument))
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def launcher(launch: Callable[..., None]) -> Any:
    """A function of TVM-FFI that calls another with its arguments, tensors as torch's."""
    return tvm_ffi.convert(lambda *arguments: launch(*map(tensor, arguments)))
