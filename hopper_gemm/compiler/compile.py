"""Compilation of one kernel to machine code, in this process. Needs the DSL, not a GPU."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import cutlass
from cutlass import Float32, Int16, Int32, Int64, cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from hopper_gemm.compiler import abi
from hopper_gemm.compiler.store import FUNCTION
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.threads.padding import pad
from hopper_gemm.model import hopper
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import types_of

TYPES = {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16, "fp32": cutlass.Float32}


@dataclass(frozen=True)
class Compiled:
    """A host launcher with its device code inside (a relocatable object), and the device code alone."""

    object_file: bytes
    cubin: bytes


def compile_kernel(
    kernel: Kernel,
    dtype: str,
    layouts: str = "kk",
    observer: str = "",
    finish: Finish | None = None,
    scattered: bool = False,
) -> Compiled:
    """Compile for sm_90a, with sizes and pitches left open; the launcher takes
    :data:`hopper_gemm.compiler.abi.ARGUMENTS`.

    Args:
        kernel: a legal kernel.
        dtype: a name of :data:`hopper_gemm.model.problem.DTYPES`.
        layouts: the contiguous axis of A, then of B.
        observer: class of an observer that writes readings, as module:name; see
            :class:`hopper_gemm.kernel.observer.Observer`.
        finish: what the epilogue does before it rounds.
        scattered: True if the rows of C may start anywhere; threads then store it.

    Raises:
        Exception: whatever the DSL or the assembler raises; its text is the reason.
    """
    element, out = (TYPES[name] for name in types_of(dtype))
    watching, finish = _named(observer)() if observer else Observer(), finish or Finish()
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
    given: dict[str, Any] = {
        "a": _matrix(element, m, k, layouts[0] != "k"),
        "b": _matrix(element, cute.sym_int() if finish.gated else n, k, layouts[1] != "k"),
        "c": _matrix(out, m, n, align=out.width // 8 if scattered else hopper.TMA_ALIGN_BYTES),
    }
    given |= {argument.name: Int32(0) for argument in abi.ORDER}
    if kernel.has_workspace:
        given |= {"sums": _vector(Float32), "words": _vector(Int32)}
    if finish.bias:
        given["bias"] = _vector(element, n)
    if finish.residual:
        given["residual"] = _matrix(out, m, n)
    if finish.scale:
        given["scale"] = Float32(1.0)
    if watching.roles:
        strides = (watching.roles * watching.words, watching.words, 1)
        shape = (cute.sym_int(), watching.roles, watching.words)
        given["readings"] = make_fake_tensor(Int32, shape, strides, assumed_align=hopper.TMA_ALIGN_BYTES)
    built = _named(kernel.builder)(kernel, element, layouts, out, finish, watching, scattered)
    return _compiled(built, *(given.get(argument.name) for argument in abi.ARGUMENTS))


def compile_padding() -> Compiled:
    """Compile :func:`hopper_gemm.kernel.threads.padding.pad`; raises as :func:`compile_kernel`."""
    room = make_fake_tensor(Int16, (cute.sym_int64(),), (1,), assumed_align=hopper.TMA_ALIGN_BYTES)
    operand = Int64(0), Int64(0), Int32(0), Int32(1)
    return _compiled(pad, room, *operand, *operand)


def _compiled(function: Any, *arguments: Any) -> Compiled:
    """A host function and the kernel that it launches on TVM-FFI's stream, its last argument."""
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        options = f"--enable-tvm-ffi --gpu-arch {hopper.ARCH} --keep-cubin --dump-dir {scratch}"
        launcher = cute.compile(function, *arguments, stream, options=options)
        path = Path(scratch) / "kernel.o"
        launcher.export_to_c(object_file_path=str(path), function_name=FUNCTION)
        return Compiled(path.read_bytes(), launcher.__cubin__)


def _vector(dtype: Any, size: Any = None) -> Any:
    """A vector of a size, open if it is None."""
    return make_fake_tensor(dtype, (size or cute.sym_int(),), (1,), assumed_align=hopper.TMA_ALIGN_BYTES)


def _matrix(dtype: Any, rows: Any, columns: Any, by_rows: bool = False, align: int = hopper.TMA_ALIGN_BYTES) -> Any:
    """A matrix of open sizes and pitch, contiguous along its columns, or ``by_rows`` along its rows, which start at
    multiples of ``align`` bytes."""
    pitch = cute.sym_int64(divisibility=align * 8 // dtype.width)
    strides = (1, pitch) if by_rows else (pitch, 1)
    return make_fake_tensor(dtype, (rows, columns), strides, assumed_align=align)


def _named(name: str) -> Any:
    """A class by its module and name."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
