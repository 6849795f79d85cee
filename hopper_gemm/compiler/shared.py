"""Shared libraries: of compiled kernels, loaded in a quarter of a millisecond without importing the DSL, and of C++.

The DSL links an object file in memory at each load, and importing it takes a second. A shared library made once by the
system's linker needs only TVM-FFI and the DSL's runtime library, whose path it holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.abi import DEFINITIONS
from hopper_gemm.compiler.store import FOLDER, default_store
from hopper_gemm.compiler.trust import opened_folder, read_trusted
from hopper_gemm.model.sealed import is_whole, with_sum
from hopper_gemm.model.tuned import replace_file

RUNTIME = "libcute_dsl_runtime.so"


def link(object_file: bytes, portable: bool = False) -> bytes | None:
    """The shared library of an object file; None without a linker or the DSL's runtime library. Imports the DSL.

    Args:
        object_file: of a kernel.
        portable: leave out where this host's runtime library is.
    """
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
    """The launcher of a shared library. Where it does not know the DSL's runtime library, that is loaded before.

    Raises:
        RuntimeError: it cannot be loaded, such as one for another processor, or without the DSL.
    """
    import tvm_ffi

    try:
        return tvm_ffi.load_module(str(library))[function]
    except RuntimeError:
        if not _runtime_loaded():
            raise
        return tvm_ffi.load_module(str(library))[function]


@cache
def _runtime_loaded() -> bool:
    """Load the DSL's runtime library, that for CUDA 13 before that for 12, without importing the DSL; return True if
    there is one. A library that needs it by name finds it by then."""
    spec = find_spec("nvidia_cutlass_dsl")
    roots = [] if spec is None else spec.submodule_search_locations or []
    places = (Path(root) / cuda / "lib" / RUNTIME for root in roots for cuda in ("cu13", "cu12"))
    runtime = next((path for path in places if path.is_file()), None)
    if runtime is None:
        return False
    ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    return True


def kept_library(name: str, make: Callable[[], bytes | None]) -> Path | None:
    """A shared library by its name: that of the package, else that in the user's cache, else made now; a damaged one
    counts as missing, since a cut one would end the process that loads it. None where there is none of these, or where
    others may write to that cache.

    Args:
        name: of the file.
        make: makes it; None where it cannot.
    """
    kept = kept_libraries() / name
    with contextlib.suppress(OSError):
        if is_whole((FOLDER / name).read_bytes()):
            return FOLDER / name
    with contextlib.suppress(OSError):  # a StoreError too
        with contextlib.suppress(FileNotFoundError):
            if is_whole(read_trusted(kept)):
                return kept
        made = make()
        if made is None:
            return None
        with opened_folder(kept.parent, make=True):
            replace_file(kept, made)
        return kept
    return None


def kept_libraries() -> Path:
    """Return the folder of libraries in the user's cache."""
    return default_store().parent / "libraries"


def clear_libraries() -> None:
    """Remove the libraries in the user's cache."""
    for path in kept_libraries().glob("*"):
        path.unlink(missing_ok=True)


def library_name(source: Path, version: str) -> str:
    """Name of the file of a source's library, by its content, the launch's arguments and the version of what it is
    compiled for."""
    parts = " ".join(DEFINITIONS).encode() + version.encode() + source.read_bytes()
    return f"{source.stem}-{hashlib.sha256(parts).hexdigest()[:32]}.so"


def compiled(compilers: Sequence[str], source: Path, *options: str) -> bytes | None:
    """A source as a shared library with its sum, by the first compiler that there is; None without one, or where it
    fails."""
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        made = Path(scratch) / "made.so"
        command = [compiler, "-O2", "-shared", "-fPIC", *DEFINITIONS, "-o", str(made), str(source), *options]
        run = subprocess.run(command, capture_output=True, check=False)
        return with_sum(made.read_bytes()) if run.returncode == 0 else None
