"""An extension of torch in C++: compiled by the system's compiler for one torch and one Python, and loaded.

Compiling takes some twenty seconds, so that it is done ahead, never within a call. The library is kept in the user's
cache (:mod:`hopper_gemm.compiler.shared`), by the source, the build of torch, TVM-FFI and the Python. Neither torch nor
TVM-FFI is imported but to load it.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from hopper_gemm.compiler.shared import compiled, kept_library, library_name

COMPILERS = ("c++", "g++", "clang++")


def extension_name(source: Path) -> str | None:
    """Name of the file of a source's library for this Python and what is installed; None without torch or TVM-FFI."""
    try:
        built_for = (
            (_folder("torch") / "version.py").read_text(),
            version("apache-tvm-ffi"),
            sys.implementation.cache_tag,
        )
    except (OSError, PackageNotFoundError):
        return None
    return library_name(source, "\n".join(built_for))


def extension_of(source: Path, build: bool = False) -> Path | None:
    """The library of a source: that of the package, else that in the user's cache. None where there is neither, or
    where others may write to that cache.

    Args:
        source: one file, of C++.
        build: make it where there is none; it needs a C++ compiler and the headers of Python.
    """
    name = extension_name(source)
    return None if name is None else kept_library(name, lambda: built_extension(source) if build else None)


def built_extension(source: Path) -> bytes | None:
    """A source as an extension of this torch and this Python; None without a compiler, or where it fails."""
    try:
        torch, tvm_ffi = _folder("torch"), _folder("tvm_ffi")
    except OSError:
        return None
    headers = sysconfig.get_path("include"), torch / "include", tvm_ffi / "include"
    api = torch / "include/torch/csrc/api/include"
    libraries = f"-L{torch / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"
    flags = "-std=c++20", "-fvisibility=hidden", "-s", *(f"-I{folder}" for folder in (*headers, api))
    return compiled(COMPILERS, source, *flags, *libraries)


def load_extension(library: Path) -> ModuleType | None:
    """The module in a library; None where it cannot be loaded, as one made for another system. Imports torch and
    TVM-FFI, whose functions it calls."""
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    name = library.name.partition("-")[0]
    spec = spec_from_file_location(name, library, loader=ExtensionFileLoader(name, str(library)))
    assert spec is not None
    assert spec.loader is not None
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return module


def _folder(package: str) -> Path:
    """Where a package is installed, without importing it.

    Raises:
        FileNotFoundError: it is not.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    return Path(spec.origin).parent
