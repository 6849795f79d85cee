"""Rows of verification, one a line: each is appended and synced as its check ends, so that a run goes on where it
stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.store import bare_code
from hopper_gemm.model.sealed import parsed, printable, sha256
from hopper_gemm.tune.study.files import read_object, write_sealed
from hopper_gemm.tune.study.provenance import MOMENT
from hopper_gemm.tune.study.row import ResultsError

FILE, TOTAL = "rows.jsonl", "rows.json"
"""Rows, and beside them how many there are and the SHA-256 of their lines; the second is written after each row."""

CPU = "cpu"
"""The board of what needs none."""

WENT_WRONG = ("wrong_result", "timeout", "crash")
"""Statuses of a run on a GPU that gave no right result."""

NOT_BUILT = ("spilled", "compile_error")
"""Statuses of a kernel that was never launched."""

FAILED = (*WENT_WRONG, *NOT_BUILT)

FIXED = "fixed"
"""Status of a note that names a fix in its reason: of what it stands for, earlier rows no longer count."""

STATUSES = ("ok", "skipped", *FAILED, FIXED)


@dataclass(frozen=True)
class VerifyRow:
    """One thing verified.

    Args:
        kind: ``"pair"``; a circumstance and a kind of kernel, such as ``"busy SMs: stream-K"``; or, without a GPU,
            ``"protocol"``.
        subject: the pair as :meth:`tests.verify.drawing.Pair.as_dict` gives it; or, without a GPU, at least a
            ``name``.
        status: of :data:`STATUSES`.
        reason: one line where it is not ok.
        kernel: digest of the sources of the kernel, or of what else was verified.
        verifier: digest of the sources that judge it; empty in rows of before there was the field.
        code: digest of the machine code.
        bits: digest of the output; of a protocol the number of its moments.
        board: UUID of the GPU, or :data:`CPU`.
        gpu: its name.
        seconds: that it took.
        minimal: the smallest pair found that fails too; None before one was looked for.
        date: when it was verified; empty in rows of before there was the field.
    """

    kind: str
    subject: dict[str, Any]
    status: str
    reason: str = ""
    kernel: str = ""
    code: str = ""
    bits: str = ""
    board: str = ""
    gpu: str = ""
    seconds: float = 0.0
    minimal: dict[str, Any] | None = None
    verifier: str = ""
    date: str = field(default="", compare=False)

    @property
    def thing(self) -> str:
        """Key of the thing verified, whatever the sources."""
        return json.dumps([self.kind, self.subject], sort_keys=True)

    @property
    def sources(self) -> tuple[str, str]:
        """Digests of what was verified and of what judged it."""
        return self.kernel, self.verifier

    @property
    def key(self) -> str:
        """The thing together with its sources."""
        return json.dumps([self.thing, *self.sources])


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Args:
        reason: one line on what is wrong; empty where nothing is.
        bits: digest of the output of ordinary data: the same on every board and in every run.
        skipped: why it could not be checked here; empty where it was.
    """

    reason: str = ""
    bits: str = ""
    skipped: str = ""


class RowsError(ValueError):
    """A file of rows cannot be read; the message gives file and line."""


def read_rows(folder: Path) -> list[VerifyRow]:
    """The rows of a folder; none where there is no file. A line behind those that :data:`TOTAL` counts, which a kill
    left, does not count.

    Raises:
        RowsError: a line that is no row, or other lines than were written.
    """
    return [_row(line, number, folder / FILE) for number, line in enumerate(counted_lines(folder), 1)]


def counted_lines(folder: Path) -> list[bytes]:
    """The lines of a folder's rows that :data:`TOTAL` counts.

    Raises:
        RowsError: some are gone, or others than were written.
    """
    path, total = folder / FILE, folder / TOTAL
    if not path.exists() and not total.exists():
        return []
    try:
        said = read_object(total)
        lines = path.read_bytes().split(b"\n")[:-1][: said["rows"]]
        whole = len(lines) == said["rows"] and sha256(b"\n".join(lines)) == said["digest"]
    except (OSError, ResultsError, KeyError, TypeError) as error:
        raise RowsError(f"{path} cannot be checked ({error}); restore both files") from None
    if not whole:
        raise RowsError(f"{path} does not hold the {said['rows']} rows that were written; restore it and {TOTAL}")
    return lines


def _row(line: bytes, number: int, path: Path) -> VerifyRow:
    try:
        values = parsed(line.decode())
        names = {one.name for one in fields(VerifyRow)}
        if not isinstance(values, dict) or not {"kind", "subject", "status"} <= set(values) <= names:
            raise ValueError("it is no row of this version")
        row = VerifyRow(**values)
        if row.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)} but got {row.status!r:.40}")
        for name, value in asdict(row).items():
            kinds = KINDS.get(name, str)
            if not isinstance(value, kinds) or (isinstance(value, str) and printable(value) != value):
                raise ValueError(f"{name} has a value of another kind: {value!r:.40}")
    except (ValueError, RecursionError) as error:
        raise RowsError(f"{path}, line {number}: {error}; restore or remove it") from None
    return row


KINDS: dict[str, Any] = {"subject": dict, "seconds": (int, float), "minimal": (dict, type(None))}
"""Types of the fields of a row that are not text."""


def write_total(folder: Path, lines: Sequence[bytes]) -> None:
    """Note how many rows a folder has, and which."""
    write_sealed(folder / TOTAL, {"rows": len(lines), "digest": sha256(b"\n".join(lines))})


@dataclass(frozen=True)
class Judgement:
    """A thing judged on all its runs with the same sources: one failure outweighs any number of right results.

    Args:
        past: rows up to the last note that names a fix, the note included.
        rows: those since.
    """

    past: tuple[VerifyRow, ...]
    rows: tuple[VerifyRow, ...]

    @property
    def runs(self) -> list[VerifyRow]:
        """Rows of a run each; a failure that is written again with its smallest pair counts once."""
        return [row for row in self.rows if row.minimal is None or replace(row, minimal=None) not in self.rows]

    @property
    def failed(self) -> bool:
        """Return True if a run failed."""
        return any(row.status in FAILED for row in self.rows)

    @property
    def row(self) -> VerifyRow:
        """The last failure; the last run where none failed."""
        return next((row for row in reversed(self.rows) if row.status in FAILED), self.rows[-1])

    @property
    def tally(self) -> str:
        """Number of runs that failed, in words."""
        return f"failed {sum(row.status in FAILED for row in self.runs)} of {len(self.runs)} runs"


def judged(rows: Iterable[VerifyRow]) -> dict[str, Judgement]:
    """Runs of each thing since its last fix, by key."""
    found: dict[str, Judgement] = {}
    for row in rows:
        past, since = (found[row.key].past, found[row.key].rows) if row.key in found else ((), ())
        fixed = row.status == FIXED
        found[row.key] = Judgement((*past, *since, row), ()) if fixed else Judgement(past, (*since, row))
    return found


def failed_before(rows: Iterable[VerifyRow], today: Collection[tuple[str, str]]) -> dict[str, VerifyRow]:
    """Failures with other sources than today's, or before a fix was named: the last of each thing, by thing.

    Args:
        rows: of any sources.
        today: sources of which failures stand.
    """
    found: dict[str, VerifyRow] = {}
    for one in judged(rows).values():
        for row in (*one.past, *one.rows):
            if row.status in FAILED and (row in one.past or row.sources not in today):
                found[row.thing] = row
    return found


@cache
def verifier_digest(*modules: str) -> str:
    """A name for the sources of modules, comments and docstrings aside."""
    found = hashlib.sha256()
    for module in modules:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        found.update(bare_code(Path(spec.origin).read_text()).encode())
    return found.hexdigest()[:16]


class Rows:
    """A folder's file of rows, open to be added to."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rows, self._lines, self._folder = read_rows(folder), counted_lines(folder), folder
        self._path = folder / FILE
        self._path.touch()
        os.truncate(self._path, sum(len(line) + 1 for line in self._lines))
        write_total(folder, self._lines)

    def add(self, row: VerifyRow) -> None:
        """Append a row with today's date; it is on the disk when this returns."""
        row = replace(row, date=row.date or datetime.now(UTC).strftime(MOMENT))
        self.rows.append(row)
        self._lines.append(json.dumps(asdict(row), sort_keys=True).encode())
        with self._path.open("ab") as file:
            file.write(self._lines[-1] + b"\n")
            file.flush()
            os.fsync(file.fileno())
        write_total(self._folder, self._lines)
