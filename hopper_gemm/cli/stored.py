"""Size, reports and removal of the kernels in the store, and names of those that the package brings."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from hopper_gemm.compiler import store
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import AnyId, KernelStore
from hopper_gemm.model.sealed import unsealed

ENTRY = re.compile(r"\.?[0-9a-f]{32}\.(json|o|so)")
"""Beginning of the name of an entry's file; a half-written file begins with a dot and has a further suffix."""


@dataclass(frozen=True)
class Usage:
    """Number of kernels in a store, and their size in bytes, reports included."""

    kernels: int
    bytes: int

    def __str__(self) -> str:
        return f"{counted(self.kernels, 'kernel')}, {self.bytes / 1e6:.1f} MB"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in ``1 kernel`` and ``2 kernels``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def usage(kernels: KernelStore) -> Usage:
    """Kernels in a store now; none where there is no folder."""
    sizes: dict[Path, int] = {}
    for path in _files(kernels):
        with contextlib.suppress(FileNotFoundError):  # cleared meanwhile
            sizes[path] = path.stat().st_size
    return Usage(sum(path.suffix == ".o" for path in sizes), sum(sizes.values()))


def report_of(kernel: AnyId) -> CubinReport | None:
    """Report of a kernel in the user's store, or else in the package; None if it must be compiled."""
    report, shipped = KernelStore(store.default_store()).report(kernel), store.shipped(kernel)
    return shipped.report if report is None and shipped is not None else report


def clear(kernels: KernelStore) -> Usage:
    """Remove every entry and half-written file; return what was removed. Other files stay. Safe beside other processes:
    no entry is written meanwhile, a loaded kernel no longer needs its file, and a process whose entry is gone compiles
    it again."""
    if not kernels.root.is_dir():
        return Usage(0, 0)
    with kernels.locked():
        removed = usage(kernels)
        for path in _files(kernels):
            path.unlink(missing_ok=True)
    return removed


def _files(kernels: KernelStore) -> list[Path]:
    """Files of entries; of each entry the report first, so that no report outlives its object file."""
    return sorted(path for path in kernels.root.glob("*") if ENTRY.match(path.name))


def names_shipped() -> set[str]:
    """Names of the kernels whose packs the package brings, whether or not they can be used here."""
    names: set[str] = set()
    for pack in store.FOLDER.glob("*.xz"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # a damaged list
            names |= unsealed(pack.with_suffix(".json").read_text(encoding="utf-8"))["kernels"].keys()
    return names
