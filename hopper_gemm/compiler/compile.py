"""Compilation of one kernel to machine code, in this process. Needs the DSL, not a GPU."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass
from importlib import import_module
from math import prod
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
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import types_of

TYPES = {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16, "fp32": cutlass.Float32, "int32": Int32}
TYPES |= {"e4m3": cutlass.Float8E4M3FN, "e5m2": cutlass.Float8E5M2}


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
    finish: Epilogue | None = None,
    scattered: bool = False,
    promote: int = 0,
    grouping: str = "",
) -> Compiled:
    """Compile a legal kernel for sm_90a, with sizes and pitches left open; the launcher takes
    :data:`hopper_gemm.compiler.abi.ARGUMENTS`. Other arguments are as :class:`hopper_gemm.compiler.store.KernelId` has
    them; what the DSL or the assembler raises has the reason as its text."""
    element, out = (TYPES[name] for name in types_of(dtype))
    watching, finish = _named(observer)() if observer else Observer(), finish or Epilogue()
    built = _named(kernel.builder)(kernel, element, layouts, out, finish, watching, scattered, promote, grouping)
    parts = {"": True, "workspace": kernel.has_workspace, "observer": bool(watching.roles), **vars(finish)}
    parts["ends"] = grouping not in ("", "batch")
    sizes: dict[str, Any] = defaultdict(cute.sym_int, {"roles": watching.roles, "words of a role": watching.words})
    if not finish.gated:
        sizes["rows of b"] = sizes["n"]
    wide = element if element.width == 16 else out if out.width == 16 else cutlass.BFloat16
    types = TYPES | {"operand": element, "out": out, "bias": wide}
    ways: dict[str, dict[str, Any]] = {name: {"by_rows": axis != "k"} for name, axis in zip("ab", layouts, strict=True)}
    ways["c"] = {"align": out.width // 8} if scattered else {}
    ways |= {"scale_a": {"align": Float32.width // 8}, "scale_b": {"align": Float32.width // 8}, "residual": {}}
    of_groups = {"rows": ["b", "scale_b"], "batch": ["a", "b", "c", "residual"], "depth": ["c"]}
    for name in of_groups.get(grouping.replace("masked_", "").replace("masked", "rows"), ()):
        ways[name]["groups"] = sizes["groups"]

    def fake(argument: abi.Argument) -> Any:
        names = argument.blocks if finish.scales == "blocks" and argument.blocks else argument.shape
        if grouping and argument.name == "bias":
            names = ("n of all groups",)
        dtype, shape = types[argument.dtype], [sizes[name] for name in names]
        if len(shape) == 2:
            return _matrix(dtype, *shape, **ways.get(argument.name, {}))
        return _contiguous(dtype, *shape) if shape else dtype(0)

    return _compiled(built, *(fake(argument) if parts[argument.part] else None for argument in abi.ARGUMENTS))


def compile_padding() -> Compiled:
    """Compile :func:`hopper_gemm.kernel.threads.padding.pad`; raises as :func:`compile_kernel`."""
    room = _contiguous(Int16, cute.sym_int64())
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


def _contiguous(dtype: Any, *shape: Any) -> Any:
    """A contiguous tensor whose first size may be open."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return make_fake_tensor(dtype, shape, strides, assumed_align=hopper.TMA_ALIGN_BYTES)


def _matrix(
    dtype: Any,
    rows: Any,
    columns: Any,
    by_rows: bool = False,
    align: int = hopper.TMA_ALIGN_BYTES,
    groups: Any = None,
) -> Any:
    """A matrix of open sizes and pitch, contiguous along its columns, or ``by_rows`` along its rows, which start at
    multiples of ``align`` bytes; or as many of them as there are groups."""
    pitch, apart = (cute.sym_int64(divisibility=align * 8 // dtype.width) for _ in range(2))
    strides = (1, pitch) if by_rows else (pitch, 1)
    if groups is None:
        return make_fake_tensor(dtype, (rows, columns), strides, assumed_align=align)
    return make_fake_tensor(dtype, (groups, rows, columns), (apart, *strides), assumed_align=align)


def _named(name: str) -> Any:
    """A class by its module and name."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
