"""Launches without a GPU: host functions called through TVM-FFI as compiled ones are, on matrices of the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import tvm_ffi
from torch.utils._python_dispatch import _disable_current_modes

from hopper_gemm.compiler.abi import ARGUMENTS, FINISH
from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import checks, grouped_mm, kernels, launches, operands
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.reference import finished, launch_torch

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

ORDER = (132, True, 8, True, 1, False)
"""Launch arguments of the stand-in's kernels that are the same every time."""


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
    """A function of TVM-FFI that calls another with its arguments, tensors as torch's. No dispatch mode sees what it
    does, as with a kernel."""

    def called(*arguments: Any) -> None:
        with _disable_current_modes():
            launch(*map(tensor, arguments))

    return tvm_ffi.convert(called)


def padded(operand, rows):
    """What the padding's launch leaves: rows, read at their pitch from an address, at the pitch of a workspace whose
    other elements are not zero."""
    source = operand.as_strided((rows.rows, rows.size), (rows.pitch, 1))
    view = rows.view(torch.full((rows.elements,), float("nan"), dtype=operand.dtype))
    (view if rows.by_depth else view.t()).copy_(source)
    return view


class Launches:
    """Stands in for a GPU: every check but that of the device is made, and launches are noted. Nothing is known.

    Args:
        monkeypatch: undoes it.
        devices: GPUs of the process.
        current: number of the current one.
        native: the extension, if it repeats launches; else Python does.

    Attributes:
        loaded, finishes, scattered: of each kernel that was loaded its config and problem, its finish, and whether
            rows of C may start anywhere.
        made, names, read: of each launch its problem, the shape of B and the address of C; its finish, ``product``, or
            ``torch``; and its operands as they were read.
        entered: GPUs that were made current.
    """

    def __init__(self, monkeypatch, devices: int = 1, current: int = -1, native: Any = None) -> None:
        self.made, self.names, self.entered, self.loaded, self.read = [], [], [], [], []
        self.scattered, self.finishes = [], []
        self.current, self.native = current, native
        monkeypatch.setattr(LAUNCHES, "native", None)
        monkeypatch.setattr(LAUNCHES, "table", {})
        LAUNCHES.use(native)
        monkeypatch.setattr(checks, "check_device", lambda device: None)
        monkeypatch.setattr(kernels, "_loaded", {})
        monkeypatch.setattr(launches.BACKGROUND, "compiles", lambda problem, kernels: False)
        monkeypatch.setattr(launches, "kernel_for", self.kernel)
        grouped_mm.kernel_of_groups.cache_clear()
        monkeypatch.setattr(launches, "load_padded", self._padded)
        monkeypatch.setattr(launches, "launch_torch", self._torch)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "device", self._device)

    def kernel(self, problem, device, config=None, finish=None, scattered=None):
        """What loads a kernel."""
        self.loaded.append((config, problem))
        self.finishes.append(finish)
        scattered = "c" in problem.out_of_reach if scattered is None else scattered
        self.scattered.append(scattered)

        def launch(a, b, out, *rest):
            passed = dict(zip((argument.name for argument in ARGUMENTS[3:]), rest, strict=True))
            assert [*passed.values()][: len(ORDER)] == [*ORDER]
            added = [passed.pop(argument.name) for argument in FINISH]
            assert [*passed.values()][len(ORDER) :] == [None] * (len(passed) - len(ORDER))
            assert operands.reaches(out if out.dim() == 2 else out[0]) or scattered
            for operand, axis in zip((a, b), problem.layouts, strict=True):
                matrix = operand if operand.dim() == 2 else operand[0]
                assert operands.reaches(matrix if axis == "k" else matrix.t())
            if finish is None:
                assert added == [None] * len(FINISH)
                out.copy_(a @ b.mT if out.dtype == a.dtype else a.float() @ b.float().mT)
            else:
                bias, residual, scale = added
                kind = "swiglu" if finish.gated else "linear"
                call = Call(a, b, bias, finish.activation or None, residual, scale, kind=kind)
                out.copy_(finished(a.float() @ b.float().mT, call))
            self.made.append((problem, b.shape, out.data_ptr()))
            self.names.append(str(finish or "product"))
            self.read.append((a, b))

        return LoadedKernel(resolve(GemmConfig()), None, launcher(launch), ORDER[0])

    def _torch(self, *given):
        self.names.append("torch")
        launch_torch(*given)

    def _padded(self, kernel, a, b):
        def launch(left, right, out):
            kernel(*(one if rows is None else padded(one, rows) for one, rows in ((left, a), (right, b))), out)

        return launch

    @contextmanager
    def _device(self, index):
        self.entered.append(index)
        yield


def in_threads_while_tables_change(work: Callable[[int], None]) -> None:
    """Run ``work`` in four threads, each with its number, while a fifth drops the launches again and again."""
    done = threading.Event()

    def drop() -> None:
        while not done.wait(0.005):
            CHANGES.happened()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    dropping = threading.Thread(target=drop)
    for thread in (*workers, dropping):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    dropping.join()
