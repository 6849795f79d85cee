"""Shared libraries of compiled kernels: loaded in a quarter of a millisecond, and without importing the DSL.

The DSL links an object file in memory at each load, and importing it takes a second. A shared library made once by the
system's linker needs only TVM-FFI and the DSL's runtime library, whose path it holds.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

RUNTIME = "libcute_dsl_runtime.so"


def link(object_file: bytes) -> bytes | None:
    """The shared library of an object file; None without a linker or the DSL's runtime library. Imports the DSL."""
    from cutlass.runtime import find_runtime_libraries

    linker = shutil.which("ld")
    runtime = next((Path(path) for path in find_runtime_libraries() if path.endswith(RUNTIME)), None)
    if linker is None or runtime is None:
        return None
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        source, made = Path(scratch) / "kernel.o", Path(scratch) / "kernel.so"
        source.write_bytes(object_file)
        command = [linker, "-shared", "-Bsymbolic", "-rpath", str(runtime.parent), "-o", str(made), str(source)]
        run = subprocess.run([*command, str(runtime)], capture_output=True, check=False)
        return made.read_bytes() if run.returncode == 0 else None


def load_shared(library: Path, function: str) -> Any:
    """The launcher of a shared library.

    Raises:
        RuntimeError: the DSL's runtime library is no longer where it was.
    """
    import tvm_ffi

    return tvm_ffi.load_module(str(library))[function]
