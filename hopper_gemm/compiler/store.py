"""Compiled kernels on disk: compiled once, loaded in milliseconds by every later process.

An entry's name is a digest of everything that shapes the machine code: the sources of the kernel, the resolved config
without its launch-time fields, element type and layouts, the versions of the DSL and of its calling convention, and the
architecture. Another GPU of that architecture, another driver and another Python load the same file.

An entry is machine code that runs with the rights of the process that loads it. Its report holds the SHA-256 of the
object file and of the shared library made of it, the digest of its kernel, and a sum of itself, all checked at every
look-up; an inconsistent entry counts as missing, and is compiled again.

A package may bring machine code too, trusted as its own code is: a folder for each kind of host, which
``.ci/machine-code`` makes for a wheel. The libraries of a config, for all types, layouts and finishes, are much alike:
packed into one file, beside a list of their reports, they take far less than each compressed alone. Names leave the
versions out: the sources fix the machine code and the launcher's arguments, and the folder's :data:`TESTED` says with
which versions of the packages its files run.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import io
import json
import os
import platform
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.trust import StoreError, opened_folder, read_in, read_trusted
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import finish_of
from hopper_gemm.model.sealed import sealed, sha256, unsealed
from hopper_gemm.model.tuned import replace_file

DSL = "nvidia-cutlass-dsl"
PACKAGES = (DSL, "apache-tvm-ffi")
SOURCES = (
    "kernel/**/*.py",
    "model/config.py",
    "model/kernel.py",
    "model/finish.py",
    "model/hopper.py",
    "model/problem.py",
    "model/grouped.py",
    "compiler/abi.py",
    "compiler/compile.py",
)
LOCK = ".lock"
LOCKING = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

FOLDER = Path(__file__).parents[1] / "machine_code" / platform.machine()
"""What the package brings for this kind of host."""

TESTED = "tested.json"
"""File of :data:`FOLDER`: of each of :data:`PACKAGES` the lowest and the highest version with which machine code of the
package was tested, as ``pyproject.toml`` states them."""

FUNCTION = "hopper_gemm"
"""Name of the launcher in an object file."""


class UnwritableError(OSError):
    """The store cannot be written. The message gives the fix."""


@dataclass(frozen=True)
class KernelId:
    """Key of one binary: a resolved kernel at default launch arguments, types, layouts, an observer as module:name, a
    finish, whether threads store C, whose rows then need not start at multiples of 16 bytes, the elements of k from one
    promotion of FP8 sums to the next, and the grouping of a product of groups."""

    config: Kernel
    dtype: str
    layouts: str
    observer: str = ""
    finish: Epilogue | None = None
    scattered: bool = False
    promote: int = 0
    grouping: str = ""

    @staticmethod
    def of(
        config: GemmConfig,
        problem: GemmProblem,
        observer: str = "",
        finish: Epilogue | None = None,
        scattered: bool | None = None,
    ) -> KernelId:
        """The binary of a config and a problem, as :func:`load` takes them; configs that differ at launch share it."""
        if scattered is None:
            scattered = "c" in problem.out_of_reach
        scattered = scattered or (config.stores == "direct" and problem.n % 2 == 1)  # else stored in pairs of columns
        names, grouping = (problem.dtype, problem.layouts), getattr(problem, "grouping", "")
        finish = finish or finish_of(problem)
        return KernelId(resolve(config).compiled(), *names, observer, finish, scattered, problem.promote, grouping)


@dataclass(frozen=True)
class PaddingId:
    """Key of the binary that pads operands; there is one."""

    def __str__(self) -> str:
        return "padding of operands"


def entry_digest(wanted: AnyId, among: Mapping[str, str]) -> str:
    """Name of a binary, by its sources and by versions of packages: in a package, of none."""
    kernel: object = "padding"
    classes: tuple[str, ...] = ()
    if isinstance(wanted, KernelId):
        classes = wanted.config.builder, wanted.observer
        kernel = {**asdict(wanted), "builder": wanted.config.builder}
    named = {"sources": source_digest(*classes), "kernel": kernel, "versions": among, "arch": hopper.ARCH}
    return sha256(json.dumps(named, sort_keys=True))[:32]


AnyId = KernelId | PaddingId


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that compile a kernel, by name."""
    return {name: version(name) for name in PACKAGES}


@cache
def source_digest(*classes: str) -> str:
    """Digest of the sources that shape the machine code, comments and docstrings aside: a name for the kernel. The
    packages of builders and observers, given as module:name, are sources too where they are not the kernel's own."""
    sources = sources_of(*classes)
    # parsing all sources takes 0.2 s, in every process that loads a kernel: the digest is kept, and a package brings it
    kept = default_store().parent / "sources" / sha256(repr(sources))
    for read, path in ((Path.read_bytes, FOLDER / kept.name), (read_trusted, kept)):
        with contextlib.suppress(OSError, ValueError):
            if re.fullmatch("[0-9a-f]{16}", digest := read(path).decode("ascii")):
                return digest
    digest = sha256("".join(name + bare_code(content.decode()) for name, content in sources))[:16]
    with contextlib.suppress(OSError), opened_folder(kept.parent, make=True):
        replace_file(kept, digest.encode(), 0o600)
    return digest


def sources_of(*classes: str) -> list[tuple[str, bytes]]:
    """Names and content of the sources of :func:`source_digest`."""
    root = Path(__file__).parents[1]
    modules = {root.parent.joinpath(*name.partition(":")[0].split(".")) for name in classes if name}
    folders = {module.parent for module in modules} - {root / "kernel"}
    own = [path for pattern in SOURCES for path in sorted(root.glob(pattern))]
    paths = (*own, *(path for folder in sorted(folders) for path in sorted(folder.rglob("*.py"))))
    return [(os.path.relpath(path, root), path.read_bytes()) for path in paths]


def bare_code(source: str) -> str:
    """Python source without comments, docstrings and blank lines: by positions, alike in every version of Python."""
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
    """The default folder of compiled kernels, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hopper-gemm" / "kernels"


@cache
def _tested(folder: Path, installed: tuple[tuple[str, str], ...]) -> bool:
    """Return True if the machine code in a folder was tested with these versions; raise where it does not say so."""
    ends = json.loads((folder / TESTED).read_bytes())
    return all(
        numbers_of(ends[name][0]) <= numbers_of(number) <= numbers_of(ends[name][1]) for name, number in installed
    )


def numbers_of(version: str) -> list[int]:
    """The numbers of a version, by which versions are in order; a release candidate's makes it a later one."""
    return [*map(int, re.findall("[0-9]+", version))]


@dataclass(frozen=True)
class Shipped:
    """A kernel that the package brings: the report on its resources; the file of its config's libraries, one behind the
    other, compressed, and the digest of the file; the bytes of the libraries before its own, and of its own."""

    report: CubinReport
    pack: Path
    digest: str
    at: int
    size: int

    def library(self) -> bytes:
        """The shared library; a RuntimeError where the file is no longer what it was."""
        import lzma

        packed = self.pack.read_bytes()
        if sha256(packed) != self.digest:
            raise RuntimeError(f"{self.pack} was replaced; start the process again")
        return lzma.LZMADecompressor().decompress(packed, self.at + self.size)[self.at :]


def pack_of(kernel: AnyId) -> Path:
    """Return the path of the pack that a kernel is in if the package brings it; its list lies beside it (``.json``)."""
    alike = KernelId(kernel.config, "", "") if isinstance(kernel, KernelId) else kernel
    return FOLDER / f"{entry_digest(alike, {})}.xz"


def tested_here() -> bool:
    """Return True if what the package brings can be used: with the installed versions, which are :data:`TESTED`, and a
    Python that has lzma, which some lack."""
    try:
        return find_spec("_lzma") is not None and _tested(FOLDER, tuple(versions().items()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False


def shipped(kernel: AnyId) -> Shipped | None:
    """The kernel that the package brings; None where it is damaged, missing or not :func:`tested_here`."""
    if not tested_here():
        return None
    pack = pack_of(kernel)
    try:
        brought = unsealed(pack.with_suffix(".json").read_text(encoding="utf-8"))
        entry = brought["kernels"][entry_digest(kernel, {})]
        if brought["pack"] != sha256(pack.read_bytes()):
            return None
        at, size = entry.pop("at"), entry.pop("size")
        return Shipped(CubinReport(**entry), pack, brought["pack"], at, size)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def compiled_in(kernel: AnyId) -> Literal["store", "package"] | None:
    """Where a kernel is, in the user's store or else in the package; None if it must be compiled."""
    if KernelStore(default_store()).report(kernel) is not None:
        return "store"
    return "package" if shipped(kernel) is not None else None


@dataclass(frozen=True)
class KernelStore:
    """A folder of compiled kernels, made when the first entry is put. Safe for many processes: entries appear whole or
    not at all, and do not change until all are cleared."""

    root: Path

    def object_file(self, kernel: AnyId) -> Path:
        """The launcher with its device code; the path of an entry whether or not it exists. Its report lies beside it
        (``.json``), and the shared library made of it where there was a linker (``.so``)."""
        return self.root / f"{entry_digest(kernel, versions())}.o"

    def report(self, kernel: AnyId) -> CubinReport | None:
        """The resource report of an intact entry. None if the kernel has not been compiled, or its entry is damaged,
        unreadable or of another kernel: then compile it and :meth:`put` it. Raises a StoreError where another user owns
        the folder or a file of the entry, or may write to it."""
        file = self.object_file(kernel)
        try:
            with opened_folder(self.root) as folder:
                entry = unsealed(read_in(folder, file.with_suffix(".json")).decode())
                shared = entry.pop("shared")
                if (entry.pop("kernel"), entry.pop("object")) != (file.stem, sha256(read_in(folder, file))):
                    return None
                if shared is not None and shared != sha256(read_in(folder, file.with_suffix(".so"))):
                    return None
                return CubinReport(**entry)
        except StoreError:
            raise
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def prepare(self) -> None:
        """Make the folder, and see that files can be made there: an UnwritableError says that they cannot."""
        with self.locked():
            pass

    def put(self, kernel: AnyId, object_file: bytes, report: CubinReport, shared: bytes | None = None) -> None:
        """Add an entry, or replace a damaged one; an intact entry stays. The report is written last: an entry with a
        report has a whole object file, and the shared library made of it, if there is one."""
        file = self.object_file(kernel)
        with self.locked():
            if self.report(kernel) is None:
                digests = {"object": sha256(object_file), "shared": None if shared is None else sha256(shared)}
                replace_file(file, object_file, 0o600)
                if shared is not None:
                    replace_file(file.with_suffix(".so"), shared, 0o600)
                entry = {"kernel": file.stem, **digests, **asdict(report)}
                replace_file(file.with_suffix(".json"), sealed(entry).encode(), 0o600)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other writers; make it before."""
        try:
            with (
                opened_folder(self.root, make=True) as folder,
                open(os.open(LOCK, LOCKING, 0o600, dir_fd=folder), "rb+", buffering=0) as lock,
            ):
                # Without locks two writers may meet: an object file beside the other writer's report counts as damaged,
                # and is compiled again.
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except StoreError:
            raise
        except OSError as error:
            raise UnwritableError(
                f"compiled kernels must lie in a folder with write access and free space but {self.root} gives "
                f"{error.strerror or error}; free it, or set XDG_CACHE_HOME to another folder"
            ) from error
