"""Known launches: products that passed every check are repeated by a small C library, without Python in between.

The library (``known.c``) finds a launch by what it sees of the tensors, and by the number of a setting, which stands
for all that the caller decided besides. What it does not know, Python launches, and records here if the kernel needs
its matrices alone: no workspace, no padding. It is made of TVM-FFI's C interface, which is stable: one binary serves
every Python and torch. A wheel brings it; else the system's C compiler makes it once, in a tenth of a second. Without
either, or with an older torch whose tensors TVM-FFI reads through Python, nothing is recorded.

An extension of torch (``native.cpp``), where it was built, stands before it: it looks at tensors, allocates the output,
asks the library, and records a gradient. It takes a compiler of C++ some twenty seconds, for one build of torch and one
Python, and is therefore made ahead: by :func:`hopper_gemm.prebuild` and :func:`hopper_gemm.warmup`. A wheel brings the
one for the torch with which it was made.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hopper_gemm.compiler.extension import extension_of, load_extension
from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.compiler.shared import library_of
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import EXTENSION

SOURCE = Path(__file__).with_name("known.c")

_NUMBERS = itertools.count()
"""Of settings; none is given twice, since all records of a process are in one table."""


class KnownLaunches:
    """The launches that the library knows. Thread-safe.

    Attributes:
        launch: a function of a setting, both operands, the output, and what is added (tensors, numbers, None): True if
            it launched on torch's current stream, on the device of the tensors, which must be current. None as long as
            nothing is recorded.
        several: True if this process sees several GPUs, so that the tensors' one may not be current.
        native: the extension, whose functions take the arguments of ours and return None where they know no launch;
            None as long as nothing is recorded, or where it was not built.

    Args:
        functions: gives the library's.
        extension: gives the extension.
    """

    def __init__(self, functions: Callable[[], Any] | None = None, extension: Callable[[], Any] | None = None) -> None:
        self.launch: Callable[..., int] | None = None
        self.several = False
        self.native: Any = None
        self._functions, self._extension = functions or library, extension or native
        self._settings: dict[Any, int] = {}
        self._lock = threading.Lock()
        self._kept: dict[int, Any] = {}
        CHANGES.watchers.append(self.forget)

    def setting(self, *decided: Any) -> int:
        """The number of a setting. After :meth:`forget` it has another one, so that a launch that was chosen before is
        not found.

        Args:
            decided: by the caller, beside the tensors: all that another kernel could follow from; hashable.
        """
        found = self._settings.get(decided)
        if found is None:
            with self._lock:
                found = self._settings.setdefault(decided, next(_NUMBERS))
        return found

    def record(self, kernel: Any, transposes: bool, setting: int, *given: Any) -> None:
        """Record what was launched, where it can be repeated.

        Args:
            kernel: what was launched; only a :class:`LoadedKernel` without a workspace can be repeated.
            transposes: True if it reads the second matrix as its transpose.
            setting: as it was when the kernel was chosen.
            given: the matrices and what is added, as ``launch`` will get them.
        """
        if not isinstance(kernel, LoadedKernel) or not kernel.repeatable:
            return
        functions = self._functions()
        if functions is not None:
            self._kept[id(kernel.launcher)] = kernel.launcher  # it is called by address
            recorded = functions["record"](kernel.launcher, transposes, *kernel.order, setting, *given)
            if recorded and self.launch is None:
                self._begin(functions["launch"])

    def _begin(self, launch: Any) -> None:
        """Let later calls look launches up, by the extension if there is one."""
        self.several, self.launch, extension = torch.cuda.device_count() > 1, launch, self._extension()
        if extension is not None:
            exchange = torch.Tensor.__dlpack_c_exchange_api__
            extension.connect(self._settings, launch.__chandle__(), exchange)
            self.native = extension

    def forget(self) -> None:
        """Drop all launches: the tuned tables have changed."""
        self._settings.clear()
        if self.launch is not None:
            self._functions()["forget"]()


@cache
def library() -> Any:
    """The library's functions; None where it cannot be made, or would be slower than Python."""
    import tvm_ffi  # gives an older torch the attribute, where it can

    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return None
    place = library_of(SOURCE, tvm_ffi.libinfo.find_include_path(), tvm_ffi.__version__)
    try:
        return None if place is None else tvm_ffi.load_module(str(place))
    except RuntimeError:  # such as one made for another system
        return None


@cache
def native() -> Any:
    """The extension; None where it was not built."""
    library = extension_of(EXTENSION)
    return None if library is None else load_extension(library)


KNOWN = KnownLaunches()
