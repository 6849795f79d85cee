"""Machine code that the package brings: shared libraries of the menu's kernels, made when its wheel is built.

A folder for each kind of host holds for each kernel a library and its report, named after the kernel's digest as in
:mod:`hopper_gemm.compiler.store`: with other sources, or another DSL, nothing of it is found. It is trusted as the
package's own code is. A checkout has none, unless ``.ci/machine-code`` made it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import NamedTuple

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import AnyId

FOLDER = Path(__file__).parents[1] / "machine_code" / platform.machine()


class Shipped(NamedTuple):
    """A kernel that the package brings: its resources and its shared library."""

    report: CubinReport
    library: Path


def shipped(kernel: AnyId) -> Shipped | None:
    """The kernel that the package brings; None where it brings none, or where the file is damaged."""
    library = FOLDER / f"{kernel.digest}.so"
    try:
        entry = json.loads(library.with_suffix(".json").read_bytes())
        if entry.pop("shared") != hashlib.sha256(library.read_bytes()).hexdigest():
            return None
        return Shipped(CubinReport(**entry), library)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
