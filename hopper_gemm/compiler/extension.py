"""An extension of torch in C++: compiled by the system's compiler for one torch and one Python, and loaded.

Compiling takes some twenty seconds, so that it is done ahead, never within a call. The library is kept in the user's
cache, by the source, the launch's arguments, the build of torch, TVM-FFI and the Python. Neither torch nor TVM-FFI is
imported but to load it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

from hopper_gemm.compiler.abi import DEFINITIONS
from hopper_gemm.compiler.store import FOLDER, default_store
from hopper_gemm.compiler.trust import opened_folder, read_trusted
from hopper_gemm.model.sealed import is_whole, sha256, with_sum
from hopper_gemm.model.tuned import replace_file

COMPILERS = ("c++", "g++", "clang++")


def extension_name(source: Path) -> str | None:
    """Name of the file of a source's library for this Python and what is installed; None without torch or TVM-FFI."""
    try:
        torch, tvm_ffi = (_folder("torch") / "version.py").read_text(), version("apache-tvm-ffi")
    except (OSError, PackageNotFoundError):
        return None
    built_for = "\n".join((*DEFINITIONS, torch, tvm_ffi, str(sys.implementation.cache_tag)))
    return f"{source.stem}-{sha256(built_for.encode() + source.read_bytes())[:32]}.so"


def extension_of(source: Path, build: bool = False) -> Path | None:
    """The library of a source, one file of C++: that of the package, else that in the user's cache; a damaged one is
    missing, since a cut one would end the process that loads it. None where there is neither, or where others may
    write to that cache. ``build``: make it where there is none, by a C++ compiler and the headers of Python."""
    name = extension_name(source)
    if name is None:
        return None
    with contextlib.suppress(OSError):
        if is_whole((FOLDER / name).read_bytes()):
            return FOLDER / name
    kept = kept_libraries() / name
    with contextlib.suppress(OSError):  # a StoreError too
        with contextlib.suppress(FileNotFoundError):
            if is_whole(read_trusted(kept)):
                return kept
        if build and (made := built_extension(source)) is not None:
            with opened_folder(kept.parent, make=True):
                replace_file(kept, made, 0o600)
            return kept
    return None


def kept_libraries() -> Path:
    """Folder of libraries in the user's cache."""
    return default_store().parent / "libraries"


def built_extension(source: Path) -> bytes | None:
    """A source as an extension of this torch and this Python, with its sum; None where it cannot be compiled."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    try:
        torch, tvm_ffi = _folder("torch"), _folder("tvm_ffi")
    except OSError:
        return None
    if compiler is None:
        return None
    api = torch / "include/torch/csrc/api/include"
    headers = [f"-I{folder}" for folder in (sysconfig.get_path("include"), torch / "include", tvm_ffi / "include", api)]
    flags = "-O2", "-shared", "-fPIC", "-std=c++20", "-fvisibility=hidden", "-s", *DEFINITIONS, *headers
    libraries = f"-L{torch / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        made = Path(scratch) / "made.so"
        command = [compiler, *flags, "-o", str(made), str(source), *libraries]
        run = subprocess.run(command, capture_output=True, check=False)
        return with_sum(made.read_bytes()) if run.returncode == 0 else None


def load_extension(library: Path) -> ModuleType | None:
    """The module in a library; None where it cannot be loaded, as one made for another system."""
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    name = library.name.partition("-")[0]
    loader = ExtensionFileLoader(name, str(library))
    try:
        module = module_from_spec(ModuleSpec(name, loader, origin=str(library)))
        loader.exec_module(module)
    except ImportError:
        return None
    return module


def _folder(package: str) -> Path:
    """Where a package is installed, without importing it; raise a FileNotFoundError where it is not."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    return Path(spec.origin).parent
