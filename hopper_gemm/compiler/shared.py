"""Shared libraries of compiled kernels, loaded in a quarter of a millisecond without importing the DSL.

The DSL links an object file in memory at each load, and importing it takes a second. A shared library made once by the
system's linker needs only TVM-FFI and the DSL's runtime library, whose path it holds.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RUNTIME = "libcute_dsl_runtime.so"


def link(object_file: bytes, portable: bool = False) -> bytes | None:
    """The shared library of an object file; None without a linker or the DSL's runtime library. Imports the DSL.
    ``portable``: leave out where this host's runtime library is."""
    from cutlass.runtime import find_runtime_libraries

    linker = shutil.which("ld")
    runtime = next((Path(path) for path in find_runtime_libraries() if path.endswith(RUNTIME)), None)
    if linker is None or runtime is None:
        return None
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        source, made = Path(scratch) / "kernel.o", Path(scratch) / "kernel.so"
        source.write_bytes(object_file)
        path = [] if portable else ["-rpath", str(runtime.parent)]
        command = [linker, "-shared", "-Bsymbolic", *path, "-o", str(made), str(source), str(runtime)]
        run = subprocess.run(command, capture_output=True, check=False)
        return made.read_bytes() if run.returncode == 0 else None


def load_shared(library: Path, function: str) -> Any:
    """The launcher of a shared library; a RuntimeError where it cannot be loaded, such as one for another processor.
    Where it does not know the DSL's runtime library, that is loaded before."""
    import tvm_ffi

    try:
        return tvm_ffi.load_module(str(library))[function]
    except RuntimeError:
        spec = find_spec("nvidia_cutlass_dsl")
        roots = [] if spec is None else spec.submodule_search_locations or []
        paths = (Path(root) / cuda / "lib" / RUNTIME for root in roots for cuda in ("cu13", "cu12"))
        runtime = next((path for path in paths if path.is_file()), None)
        if runtime is None:
            raise
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)  # a library that needs it by name finds it now
        return tvm_ffi.load_module(str(library))[function]
