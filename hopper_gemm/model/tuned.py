"""A tuned table: the best config of each problem that was tuned; read and written."""

from __future__ import annotations

import glob
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import problem_from, recipe_of
from hopper_gemm.model.sealed import SumError, check_sum, parsed, printable, sealed

FILE = "best_configs.json"

CLUSTER = "cluster"
"""Folder of entries tuned on workers of other hosts."""

REGIMES = ("burst", "steady")
"""``burst``: a rest, a short warm-up, some milliseconds timed. ``steady``: alone at the power cap until settled, energy
read over the same window."""

CONTEXTS = ("isolated", "chained")
"""``isolated``: another kernel runs between any two launches, as in a model. ``chained``: launches of one kernel back
to back, so that programmatic dependent launch overlaps a launch with its own predecessor."""

WARMUP = "warmup"
"""Study of an entry that no search found: the best of a few picks, each timed for some launches. An entry of a search
comes before it and replaces it; it replaces none."""

STALE_SECONDS = 3600.0
"""Age from which a half-written file counts as left by a killed writer: no write takes an hour."""


class TunedTableError(ValueError):
    """A tuned table cannot be read or written; the message names the file, the entry and the fix."""


@dataclass(frozen=True)
class TunedEntry:
    """One tuned problem, batch-invariant if it was tuned so, of FP8 with its recipe; the speedup of the final over
    cuBLAS, with the noise floor of that run; and figures of the compiled kernel."""

    problem: GemmProblem
    regime: str
    config: Kernel
    speedup: float
    speedup_low: float
    speedup_high: float
    noise: float
    registers: int
    wgmma: int
    instructions: int
    code: str  # digest of the machine code
    study: str  # where it was found; WARMUP for an entry of a warm-up
    gpu: str
    context: str = "chained"  # as entries older than the distinction are
    board: str = "unknown"  # UUID of the board on which the final ran

    @property
    def kind(self) -> str:
        """The kind of GPU, as :func:`slug` names it."""
        return slug(self.gpu)


def slug(name: str) -> str:
    """A folder name for a GPU: ``"NVIDIA H100 80GB HBM3"`` gives ``"h100"``."""
    words = re.findall("[a-z0-9]+", name.lower())
    return next((word for word in words if word[0] in "hg" and word[1:].isdigit()), "-".join(words) or "unknown")


_KINDS: dict[Any, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float)}
"""JSON types of an entry's fields, by annotation."""

RESTORE = "restore the file, or remove it and tune again"


def read_tuned(path: Path) -> list[TunedEntry]:
    """Read a tuned table. Parameters newer than an entry take their default. Raise a TunedTableError where there is no
    such file, it is not JSON, lacks its sum or has that of another content, or an entry is invalid."""
    try:
        text = path.read_text(encoding="utf-8")
        table = parsed(text)
        check_sum(text, path)
    except FileNotFoundError:
        raise TunedTableError(f"{path} does not exist; name a tuned table such as results/h200/{FILE}") from None
    except SumError as error:
        raise TunedTableError(str(error)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TunedTableError(f"{path} cannot be read as JSON ({error}); {RESTORE}") from None
    return entries_of(path, table)


def entries_of(path: Path, table: Any) -> list[TunedEntry]:
    """The entries of a table, each checked; a TunedTableError where it is no table, or an entry is invalid."""
    entries = table.get("entries") if isinstance(table, dict) else None
    if not isinstance(entries, list):
        raise TunedTableError(f"{path} must hold a list of entries but holds {type(table).__name__}; {RESTORE}")
    checked = []
    for number, raw in enumerate(entries):
        try:
            checked.append(_entry(raw))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            raise TunedTableError(f"{path}, entry {number}: {why}; {RESTORE}") from None
    return checked


def _entry(raw: Any) -> TunedEntry:
    if not isinstance(raw, dict):
        raise TypeError(f"must be an object but got {type(raw).__name__}")
    columns = fields(TunedEntry)
    unknown = set(raw) - {column.name for column in columns}
    if unknown:
        raise ValueError(f"{min(unknown)} is not a field of an entry")
    for column in columns:
        name, kind = column.name, _KINDS.get(column.type)
        value = raw[name] if column.default is MISSING else raw.get(name, column.default)
        if kind and (not isinstance(value, kind) or isinstance(value, bool)):
            raise TypeError(f"{name} has the wrong type: {value!r}")
        if column.type == "float" and not isfinite(value):
            raise ValueError(f"{name} must be finite but got {value}")
        if column.type == "str" and printable(value) != value:
            raise ValueError(f"{name} must be text without control characters but got {value!r}")
    for name in ("problem", "config"):
        if not isinstance(raw[name], dict):
            raise TypeError(f"{name} must be an object but got {type(raw[name]).__name__}")
    problem, config = problem_from(**raw["problem"]), resolve(GemmConfig.of(raw["config"]))
    entry = TunedEntry(**{**raw, "problem": problem, "config": config})
    for name, values in (("regime", REGIMES), ("context", CONTEXTS)):
        if getattr(entry, name) not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)} but got {getattr(entry, name)!r}")
    return entry


def write_tuned(path: Path, entries: Iterable[TunedEntry], beside: Collection[GemmConfig | None] = ()) -> None:
    """Merge entries into a tuned table: one per problem, regime, context and kind of GPU. A new entry of the same study
    or of the same config replaces the old entry, since the better of two measurements of one config is only the
    luckier; so does an entry measured beside the old entry's config. Any other entry replaces it only if faster. An
    entry of a search replaces one of a warm-up, never the other way round. ``beside`` are the configs that the study of
    the entries, then of one place, measured too. Several processes may write one table: each waits for the lock.
    A TunedTableError where the table is damaged, or cannot be written."""
    try:
        with table_lock(path):
            best = {_key(entry): entry for entry in (read_tuned(path) if path.is_file() else [])}
            for entry in entries:
                old = best.get(_key(entry))
                if old is None or _replaces(entry, old, beside):
                    best[_key(entry)] = entry
            merged = [{**asdict(best[key]), "problem": best[key].problem.as_dict()} for key in sorted(best)]
            entries_of(path, {"entries": merged})
            replace_file(path, sealed({"entries": merged}).encode())
    except OSError as error:
        raise TunedTableError(
            f"{path} cannot be written ({error.strerror}); free the disk, or name another folder"
        ) from None
    CHANGES.happened()


def _replaces(entry: TunedEntry, old: TunedEntry, beside: Collection[GemmConfig | None]) -> bool:
    if (entry.study == WARMUP) != (old.study == WARMUP):
        return old.study == WARMUP
    same = old.study == entry.study or old.config in (entry.config, *beside)
    return same or entry.speedup > old.speedup


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file so that at every moment it holds the old content or the new, also after a power cut; the old
    content stays where it cannot be written. Remove the half-written files that killed writers left."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > STALE_SECONDS:
                part.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can tell."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def table_lock(path: Path) -> Iterator[None]:
    """Wait for the lock of a table and hold it. The operating system frees it when the process ends, however it ends;
    the file stays, since two processes could lock one name whose file was removed in between."""
    import fcntl  # no such module on Windows, where tables are still read

    with path.with_name(f".{path.name}.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _key(entry: TunedEntry) -> tuple[Any, ...]:
    problem = entry.problem
    sizes = problem.m, problem.n, problem.k
    types = problem.dtype, problem.layouts, problem.batch_invariant, recipe_of(problem)
    groups = (problem.groups, problem.grouping) if isinstance(problem, GroupedProblem) else (0, "")
    return *sizes, *types, *groups, entry.regime, entry.context, entry.kind


class Changes:
    """Changes of the tuned tables, upon which look-ups are forgotten: their number, and what is called after each."""

    def __init__(self) -> None:
        self.count = 0
        self.watchers: list[Callable[[], None]] = []

    def happened(self) -> None:
        """Count a change and tell the watchers."""
        self.count += 1
        for watcher in self.watchers:
            watcher()


CHANGES = Changes()


def results_root() -> Path:
    """The recorded results: beside the package in a checkout, inside it where it was installed from a wheel."""
    package = Path(__file__).parents[1]
    checkout = package.parent
    return (checkout if (checkout / "pyproject.toml").is_file() else package) / "results"


def local_root() -> Path:
    """Folder of studies and tuned tables made here: beside the recorded ones in a checkout, else the user's data
    folder, ``$XDG_DATA_HOME/hopper-gemm`` or ``~/.local/share/hopper-gemm``."""
    recorded = results_root()
    if not recorded.is_relative_to(Path(__file__).parents[1]):
        return recorded / "local"
    named = Path(os.environ.get("XDG_DATA_HOME", ""))  # the XDG specification: ignore a relative path
    return (named if named.is_absolute() else Path.home() / ".local" / "share") / "hopper-gemm"


def own_paths(kind: str) -> list[Path]:
    """Tables of the user's own entries for a kind of GPU: tuned on this host, and on workers elsewhere."""
    return [local_root() / folder / FILE for folder in (kind, CLUSTER)]


def recorded_tables() -> dict[str, Path]:
    """Tuned tables by GPU slug, such as ``"h200"``."""
    return {path.parent.name: path for path in sorted(results_root().glob(f"*/{FILE}"))}
