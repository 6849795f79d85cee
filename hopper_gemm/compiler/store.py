"""Compiled kernels on disk: compiled once, loaded in milliseconds by every later process.

An entry's name is a digest of everything that shapes the machine code: the sources of ``kernel/`` and of the model
behind it, the resolved config without its launch-time fields, element type and layouts, the versions of the DSL and of
its calling convention, and the architecture. Nothing else: another GPU of the same architecture, another driver and
another Python load the same file.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import tempfile
import tokenize
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.model import hopper
from hopper_gemm.model.config import LAUNCH_FIELDS, GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.problem import GemmProblem

PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
SOURCES = (
    "kernel/*.py",
    "model/config.py",
    "model/footprint.py",
    "model/hopper.py",
    "model/problem.py",
    "compiler/compile.py",
)


@dataclass(frozen=True)
class KernelId:
    """What one binary is compiled for: a resolved config at default launch values, a type and a layout; and whether its
    roles count their waits, which makes it another binary."""

    config: GemmConfig
    dtype: str
    layouts: str
    metered: bool = False

    @staticmethod
    def of(config: GemmConfig, problem: GemmProblem, metered: bool = False) -> KernelId:
        """The binary that serves a config on a problem; configs that differ only at launch share it."""
        default = GemmConfig()
        launch = {name: getattr(default, name) for name in LAUNCH_FIELDS}
        return KernelId(replace(resolve(config), **launch), problem.dtype, problem.layouts, metered)

    @property
    def digest(self) -> str:
        """Name of the entry in a store; ``metered`` is no part of it where it is false."""
        kernel = asdict(self)
        if not self.metered:
            del kernel["metered"]
        parts = {
            "sources": source_digest(),
            "kernel": kernel,
            "versions": dict(_versions()),
            "arch": hopper.ARCH,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """What compiled the kernel. Each is read from a file."""
    return tuple((name, version(name)) for name in PACKAGES)


@cache
def source_digest() -> str:
    """Digest of the sources that shape the machine code, comments and docstrings aside: a name for the kernel."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(bare_code(path.read_text()).encode())
    return digest.hexdigest()[:16]


def bare_code(source: str) -> str:
    """Python source without comments, docstrings and blank lines. Works on positions in the text, so that every
    version of Python gives the same answer."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def default_store() -> Path:
    """Where kernels are kept when nobody says otherwise: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hopper-gemm" / "kernels"


@dataclass(frozen=True)
class KernelStore:
    """A folder of compiled kernels. Safe for many processes: entries appear whole or not at all."""

    root: Path

    def object_file(self, kernel: KernelId) -> Path:
        """The launcher with its device code; the path of an entry whether or not it exists."""
        return self.root / f"{kernel.digest}.o"

    def report(self, kernel: KernelId) -> CubinReport | None:
        """The entry's resource report, or None where the kernel has not been compiled."""
        path = self._report_file(kernel)
        try:
            return CubinReport(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            path.unlink(missing_ok=True)
            return None

    def put(self, kernel: KernelId, object_file: bytes, report: CubinReport) -> None:
        """Add an entry. The report is written last: where it stands, the object file stands whole."""
        self.root.mkdir(parents=True, exist_ok=True)
        _write(self.object_file(kernel), object_file)
        _write(self._report_file(kernel), json.dumps(report.as_dict()).encode())

    def _report_file(self, kernel: KernelId) -> Path:
        return self.root / f"{kernel.digest}.json"


def _write(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
