"""The part of cuBLASLt's C interface that a matrix product needs, by ctypes on the library that torch brings.

Names, numbers and sizes are those of ``cublasLt.h`` (CUDA 12 and 13; enums by value). Every call is checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_float, c_int, c_int8, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")
SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")

COMPUTE_32F = 68
TYPES = {"fp32": 0, "fp16": 2, "bf16": 14, "e4m3": 28, "e5m2": 29}
"""``cudaDataType``."""

COLUMN_MAJOR, ROW_MAJOR = 0, 1
LAYOUT_ORDER = 1
DESC_TRANSA, DESC_TRANSB = 3, 4
DESC_SCALES, DESC_FAST_ACCUM, DESC_SCALE_MODES = (17, 18), 25, (31, 32)
PREFERENCE_WORKSPACE = 1

SCALE_MODES = {"tensor": (0, 0), "row": (3, 3), "blocks": (4, 5)}
"""``cublasLtMatmulMatrixScale_t`` of A and of B: one number; a vector; of each 1x128 and of each 128x128."""

ALGO_FIELDS: dict[str, tuple[int, type[ctypes._SimpleCData[int]]]] = {
    "id": (0, c_int32),
    "tile": (1, c_uint32),
    "split_k": (2, c_int32),
    "reduction": (3, c_uint32),
    "swizzle": (4, c_uint32),
    "custom": (5, c_uint32),
    "stages": (6, c_uint32),
    "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}
"""Attributes of an algorithm: ``cublasLtMatmulAlgoConfigAttributes_t`` and the type of each."""

CAPABILITIES = {"split_k": 0, "reduction": 1, "swizzle": 2, "tile": 6, "custom": 7, "stages": 13}
"""Values that the attributes may have: ``cublasLtMatmulAlgoCapAttributes_t``, 32 bits each. Of tiles and stages a list;
of custom options and swizzles the largest; whether k is split; the schemes of reduction as bits."""

CLUSTERS = (0, 2, 3, 5, 4, 8, 6)
"""``cublasLtClusterShape_t``: the library's choice, 1x1, 2x1, 1x2, 4x1, 1x4, 2x2."""

REDUCED_IN_FP32 = 2
"""``CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE``: what the heuristics take for a split k."""

IDS = 100
"""Ids of algorithms requested; the library may return fewer."""

STATUSES = {
    1: "not initialised",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    11: "mapping error",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
    16: "licence error",
}


class Algo(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``: opaque, and valid in any process with the same version of the library."""

    _fields_ = (("data", c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``; the rest means something only where ``state`` is 0."""

    _fields_ = (
        ("algo", Algo),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasLtError(RuntimeError):
    """A call of the library failed; the message names it and its status."""


@dataclass(frozen=True)
class Layout:
    """A matrix in memory."""

    rows: int
    cols: int
    pitch: int  # elements from one column to the next, or from one row to the next in row-major order
    order: int  # COLUMN_MAJOR or ROW_MAJOR


class Library:
    """The loaded library, or a stand-in, with a handle on the current CUDA device once :meth:`plan` is first called."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared
        self._handle: c_void_p | None = None
        for name, arguments in _SIGNATURES.items():
            function = getattr(shared, name)
            function.restype, function.argtypes = c_int, list(arguments)

    def plan(self, dtypes: Sequence[str], layouts: Sequence[Layout], transposed: Sequence[bool]) -> Plan:
        """A product D = op(A) op(B) with fp32 accumulation; arguments are those of :class:`Plan`."""
        if self._handle is None:
            handle = c_void_p()
            self.call("cublasLtCreate", byref(handle))
            self._handle = handle
        return Plan(self, self._handle, dtypes, layouts, transposed)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raise a CublasLtError if it returns anything but success."""
        status = getattr(self._shared, name)(*arguments)
        if status:
            raise CublasLtError(f"{name}: {STATUSES.get(status, 'unknown status')} ({status})")

    def algo_fields(self, algo: Algo) -> dict[str, int]:
        """Return an algorithm's attributes by the names of :data:`ALGO_FIELDS`, without those that it does not
        report."""
        fields = {}
        for name, (attribute, kind) in ALGO_FIELDS.items():
            value, written = kind(), c_size_t()
            arguments = (byref(algo), attribute, byref(value), ctypes.sizeof(value), byref(written))
            if not self._shared.cublasLtMatmulAlgoConfigGetAttribute(*arguments):
                fields[name] = int(value.value)
        return fields

    def capability(self, algo: Algo, name: str) -> list[int]:
        """Return a capability of :data:`CAPABILITIES` of an algorithm's id; empty if the library does not report it."""
        get, size = self._shared.cublasLtMatmulAlgoCapGetAttribute, c_size_t()
        if get(byref(algo), CAPABILITIES[name], None, 0, byref(size)):
            return []
        values = (c_uint32 * (size.value // ctypes.sizeof(c_uint32)))()
        return [] if get(byref(algo), CAPABILITIES[name], values, size, byref(size)) else list(values)


class Plan:
    """A product's descriptors, which live as long as this object: types (names of :data:`TYPES`) and layouts of A, B
    and D, and True for A and B if they are transposed."""

    def __init__(
        self,
        library: Library,
        handle: c_void_p,
        dtypes: Sequence[str],
        layouts: Sequence[Layout],
        transposed: Sequence[bool],
    ) -> None:
        self._library, self._handle = library, handle
        self._freed_with_self: list[tuple[str, c_void_p]] = []
        weakref.finalize(self, _free, library, self._freed_with_self).atexit = False
        self._alpha, self._beta = c_float(1.0), c_float(0.0)
        left, right, out = (TYPES[dtype] for dtype in dtypes)
        self._types = COMPUTE_32F, TYPES["fp32"], left, right, out, out
        self._desc = self._made("cublasLtMatmulDesc", COMPUTE_32F, TYPES["fp32"])
        for attribute, flag in zip((DESC_TRANSA, DESC_TRANSB), transposed, strict=True):
            self._set("cublasLtMatmulDesc", self._desc, attribute, c_int32(int(flag)))
        self._layouts = [self._layout(dtype, layout) for dtype, layout in zip(dtypes, layouts, strict=True)]

    def scale(self, modes: Sequence[int], pointers: Sequence[int], fast: bool) -> None:
        """Multiply by scales of A and of B, by :data:`SCALE_MODES` and device addresses; with fast sums or not."""
        for attribute, mode in zip(DESC_SCALE_MODES, modes, strict=True):
            self._set("cublasLtMatmulDesc", self._desc, attribute, c_int32(mode))
        self._set("cublasLtMatmulDesc", self._desc, DESC_FAST_ACCUM, c_int8(int(fast)))
        self._point_to(pointers)

    def _point_to(self, pointers: Sequence[int]) -> None:
        for attribute, pointer in zip(DESC_SCALES, pointers, strict=False):
            self._set("cublasLtMatmulDesc", self._desc, attribute, c_void_p(pointer))

    def heuristics(self, workspace_bytes: int, count: int) -> list[HeuristicResult]:
        """Return at most ``count`` algorithms of the library's heuristic, as it ranks them, with at most this
        workspace."""
        preference = self._made("cublasLtMatmulPreference")
        self._set("cublasLtMatmulPreference", preference, PREFERENCE_WORKSPACE, c_uint64(workspace_bytes))
        results, returned = (HeuristicResult * count)(), c_int()
        a, b, d = self._layouts
        arguments = (self._handle, self._desc, a, b, d, d, preference, count, results, byref(returned))
        self._library.call("cublasLtMatmulAlgoGetHeuristic", *arguments)
        return [result for result in results[: returned.value] if result.state == 0]

    def ids(self) -> list[Algo]:
        """Return an algorithm of each id that the library has for these types, with default attributes."""
        numbers, count = (c_int * IDS)(), c_int()
        self._library.call("cublasLtMatmulAlgoGetIds", self._handle, *self._types, IDS, numbers, byref(count))
        made = []
        for number in numbers[: count.value]:
            algo = Algo()
            with contextlib.suppress(CublasLtError):
                self._library.call("cublasLtMatmulAlgoInit", self._handle, *self._types, number, byref(algo))
                made.append(algo)
        return made

    def legal(self, algo: Algo, choices: Mapping[str, Sequence[int]], workspace_bytes: int) -> Iterator[Algo]:
        """Yield an algorithm with every combination of choices, by the names of :data:`ALGO_FIELDS`, that the library
        accepts within a workspace; it keeps its other attributes."""
        a, b, d = self._layouts
        for values in product(*choices.values()):
            made, result = Algo.from_buffer_copy(algo), HeuristicResult()
            with contextlib.suppress(CublasLtError):
                for name, number in zip(choices, values, strict=True):
                    attribute, kind = ALGO_FIELDS[name]
                    arguments = (byref(made), attribute, byref(kind(number)), ctypes.sizeof(kind))
                    self._library.call("cublasLtMatmulAlgoConfigSetAttribute", *arguments)
                product_arguments = (self._handle, self._desc, a, b, d, d)
                self._library.call("cublasLtMatmulAlgoCheck", *product_arguments, byref(made), byref(result))
                if result.state == 0 and result.workspace_bytes <= workspace_bytes:
                    yield made

    def run(
        self, algo: Algo, a: int, b: int, d: int, workspace: int, workspace_bytes: int, stream: int, *scales: int
    ) -> None:
        """Launch an algorithm of :meth:`heuristics` or :meth:`legal` on a ``cudaStream_t``. Matrices, workspace,
        aligned to 256 bytes, and the scales of A and B, if there are any, are device addresses."""
        self._point_to(scales)
        layout_a, layout_b, layout_d = self._layouts
        sides = byref(self._alpha), a, layout_a, b, layout_b, byref(self._beta), d, layout_d, d, layout_d
        algo_arguments = byref(algo), workspace, workspace_bytes, stream
        self._library.call("cublasLtMatmul", self._handle, self._desc, *sides, *algo_arguments)

    def _layout(self, dtype: str, layout: Layout) -> c_void_p:
        made = self._made("cublasLtMatrixLayout", TYPES[dtype], layout.rows, layout.cols, layout.pitch)
        self._set("cublasLtMatrixLayout", made, LAYOUT_ORDER, c_int32(layout.order))
        return made

    def _made(self, name: str, *arguments: Any) -> c_void_p:
        made = c_void_p()
        self._library.call(f"{name}Create", byref(made), *arguments)
        self._freed_with_self.append((name, made))
        return made

    def _set(self, name: str, made: c_void_p, attribute: int, value: Any) -> None:
        self._library.call(f"{name}SetAttribute", made, attribute, byref(value), ctypes.sizeof(value))


def _free(library: Library, descriptors: list[tuple[str, c_void_p]]) -> None:
    for name, made in descriptors:
        library.call(f"{name}Destroy", made)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, POINTER(HeuristicResult), POINTER(c_int)),
    "cublasLtMatmulAlgoGetIds": (c_void_p, *(c_int,) * 7, POINTER(c_int), POINTER(c_int)),
    "cublasLtMatmulAlgoInit": (c_void_p, *(c_int,) * 7, POINTER(Algo)),
    "cublasLtMatmulAlgoCheck": (*(c_void_p,) * 6, POINTER(Algo), POINTER(HeuristicResult)),
    "cublasLtMatmulAlgoCapGetAttribute": (POINTER(Algo), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmulAlgoConfigSetAttribute": (POINTER(Algo), c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoConfigGetAttribute": (POINTER(Algo), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmul": (*(c_void_p,) * 12, POINTER(Algo), c_void_p, c_size_t, c_void_p),
}


@cache
def library() -> Library:
    """Return the library that torch uses in this process, else the one that the loader finds."""
    return Library(load(_mapped(MAPS.read_text() if MAPS.is_file() else "")))


def load(mapped: str | None, dll: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """Load the library: the file that the process has mapped already, or one of the known names; OSError if it can load
    none of them."""
    for name in filter(None, (mapped, *SONAMES)):
        try:
            return dll(name)
        except OSError:
            continue
    raise OSError(f"none of {', '.join(SONAMES)} can be loaded; install a torch with CUDA, which brings it")


def _mapped(maps: str) -> str | None:
    """Return the library's file among the files that a process has mapped, in the form of ``/proc/self/maps``."""
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libcublasLt.so" in line)
    return next((path for path in paths if not path.endswith("(deleted)")), None)
