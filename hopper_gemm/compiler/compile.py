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

from hopper_gemm.compiler.store import FUNCTION
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.threads.padding import pad
from hopper_gemm.model import hopper
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import types_of

FINISHED = "hopper_gemm.kernel.finished:FinishedGemm"
"""The class that builds a kernel with a finish."""

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
    """Compile for sm_90a, with sizes and pitches left open.

    Args:
        kernel: a legal kernel.
        dtype: a name of :data:`hopper_gemm.model.problem.DTYPES`.
        layouts: the contiguous axis of A, then of B.
        observer: class of an observer that writes into one more argument, as module:name; see
            :class:`hopper_gemm.kernel.observer.Observer`.
        finish: what the epilogue does before it rounds; the launcher then takes three more arguments, None for each
            that the finish lacks: see :class:`hopper_gemm.kernel.finished.FinishedGemm`.
        scattered: True if the rows of C may start anywhere; threads then store it.

    Raises:
        Exception: whatever the DSL or the assembler raises; its text is the reason.
    """
    element, out = (TYPES[name] for name in types_of(dtype))
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
    gated = finish is not None and finish.gated

    sums, words, readings = None, None, None
    if kernel.has_workspace:
        sums, words = (make_fake_tensor(kind, (cute.sym_int(),), (1,), assumed_align=16) for kind in (Float32, Int32))
    seen = _named(observer)() if observer else Observer()
    if seen.roles:
        shape = (cute.sym_int(), seen.roles, seen.words)
        strides = (shape[1] * shape[2], shape[2], 1)
        readings = make_fake_tensor(Int32, shape, strides, assumed_align=16)

    added: list[Any] = []
    if finish is None:
        built = _named(kernel.builder)(kernel, element, layouts, out, seen, scattered)
    else:
        built, added = _named(FINISHED)(kernel, element, layouts, out, finish), _added(finish, element, out, (m, n))
    return _compiled(
        built,
        _matrix(element, m, k, layouts[0] != "k"),
        _matrix(element, cute.sym_int() if gated else n, k, layouts[1] != "k"),
        _matrix(out, m, n, align=out.width // 8 if scattered else hopper.TMA_ALIGN_BYTES),
        Int32(0),
        Int32(0),
        Int32(0),
        Int32(0),
        make_fake_stream(use_tvm_ffi_env_stream=True),
        sums,
        words,
        readings,
        *added,
    )


def compile_padding() -> Compiled:
    """Compile :func:`hopper_gemm.kernel.threads.padding.pad`; raises as :func:`compile_kernel`."""
    room = make_fake_tensor(Int16, (cute.sym_int64(),), (1,), assumed_align=hopper.TMA_ALIGN_BYTES)
    operand = Int64(0), Int64(0), Int32(0), Int32(1)
    return _compiled(pad, room, *operand, *operand, make_fake_stream(use_tvm_ffi_env_stream=True))


def _compiled(function: Any, *arguments: Any) -> Compiled:
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        options = f"--enable-tvm-ffi --gpu-arch {hopper.ARCH} --keep-cubin --dump-dir {scratch}"
        launcher = cute.compile(function, *arguments, options=options)
        path = Path(scratch) / "kernel.o"
        launcher.export_to_c(object_file_path=str(path), function_name=FUNCTION)
        return Compiled(path.read_bytes(), launcher.__cubin__)


def _added(finish: Finish, element: Any, out: Any, size: tuple[Any, Any]) -> list[Any]:
    """Bias, residual and scale, None for each that a finish lacks."""
    bias = make_fake_tensor(element, (size[1],), (1,), assumed_align=hopper.TMA_ALIGN_BYTES) if finish.bias else None
    return [bias, _matrix(out, *size) if finish.residual else None, Float32(1.0) if finish.scale else None]


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
