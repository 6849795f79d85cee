"""What was verified, one row a line: appended and written through as each ends, so that a run goes on where it
stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

FILE = "rows.jsonl"
CPU = "cpu"
"""The board of what needs none."""

WENT_WRONG = ("wrong_result", "timeout", "crash")
"""What may come of a run on a GPU but a right result."""

NOT_BUILT = ("spilled", "compile_error")
"""Why a kernel was never launched."""

FAILED = (*WENT_WRONG, *NOT_BUILT)


@dataclass(frozen=True)
class Row:
    """One thing verified.

    Args:
        kind: ``"pair"``; a circumstance and a kind of kernel, such as ``"busy SMs: stream-K"``; or, without a GPU,
            ``"protocol"``.
        subject: the pair as :meth:`hopper_gemm.lab.verify.drawing.Pair.as_dict` gives it; or, without a GPU, at least a
            ``name``.
        status: ``"ok"``, ``"skipped"`` or one of :data:`FAILED`.
        reason: one line where it is not ok.
        kernel: digest of the sources of the kernel, or of what else was verified.
        code: digest of the machine code.
        bits: digest of the output; of a protocol the number of its moments.
        board: UUID of the GPU, or :data:`CPU`.
        gpu: its name.
        seconds: that it took.
        minimal: the smallest pair found that fails too; None before one was looked for.
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

    @property
    def key(self) -> str:
        """What tells one thing to verify from another."""
        return json.dumps([self.kind, self.subject, self.kernel], sort_keys=True)


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


def read_rows(folder: Path) -> list[Row]:
    """The rows of a folder; none where there is no file. A last line that was torn by a kill does not count.

    Raises:
        RowsError: a line that is no row.
    """
    path = folder / FILE
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    names = {one.name for one in fields(Row)}
    found = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            values = json.loads(line)
            if not isinstance(values, dict) or not {"kind", "subject", "status"} <= set(values) <= names:
                raise ValueError
            found.append(Row(**values))
        except ValueError:
            raise RowsError(f"{path}, line {number}: not a row of this version; restore or remove it") from None
    return found


def latest(rows: Iterable[Row]) -> dict[str, Row]:
    """The last row of each thing verified, by key: a failure is written again once its smallest pair is known."""
    return {row.key: row for row in rows}


class Rows:
    """A folder's file of rows, open to be added to."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = read_rows(folder)
        self._path = folder / FILE
        whole = self._path.read_bytes() if self._path.exists() else b""
        if not whole.endswith(b"\n"):
            os.truncate(self._path, whole.rfind(b"\n") + 1) if whole else self._path.touch()

    def add(self, row: Row) -> None:
        """Append a row; it is on the disk when this returns."""
        self.rows.append(row)
        with self._path.open("ab") as file:
            file.write(json.dumps(asdict(row), sort_keys=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
