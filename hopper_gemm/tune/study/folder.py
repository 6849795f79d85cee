"""A results folder that grows: one process at a time appends whole rows to it, and what is on disk stays.

Rows are the only truth. ``provenance.json`` says of which question, GPU and kernel they are, and, once a study is
finished, how many there were and a digest of them, so that rows that vanished or were swapped are noticed. The rows
of a finished study may be packed; readers take either.
"""

from __future__ import annotations

import lzma
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hopper_gemm.model.tuned import sync_folder
from hopper_gemm.tune.study.files import FileLock, write_sealed, write_whole
from hopper_gemm.tune.study.provenance import PROVENANCE
from hopper_gemm.tune.study.reader import (
    ROWS,
    column_names,
    digest_of,
    lost_rows,
    packed,
    read_provenance,
    read_study,
    rows_and_digest,
    whole_lines,
)
from hopper_gemm.tune.study.row import ResultsError, Row, RowKey, header
from hopper_gemm.tune.study.schema import NAMES

LOCK = ".lock"
ELSEWHERE = "name another folder with --out"


class StudyFolder:
    """The files of a study, in a folder that need not exist yet. The constructor reads and checks; it changes nothing.
    ResultsError if the folder takes no rows, or a file in it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[RowKey, Row] = {}
        self.provenance: dict[str, Any] | None = None
        self._names = NAMES
        self.remark = ""  # remark for the user on the rows that the folder holds
        if path.exists() and not path.is_dir():
            raise ResultsError(f"{path} is a file; name a folder with --out")
        if not path.is_dir():
            return
        if packed(path).is_file():
            raise ResultsError(f"{path} is packed and takes no more rows; {ELSEWHERE}")
        self._refuse_in_use(FileLock(path / LOCK).taken())
        self._read()

    def refuse_another(self, identity: Mapping[str, Any]) -> None:
        """Raise a ResultsError on an :func:`identity_of` another question, source, kind of GPU or kernel; it says
        which."""
        if self.provenance is None:
            return
        mine = identity_of(self.provenance)
        for name in mine:
            if identity.get(name, mine[name]) != mine[name]:
                values = "" if name == "question" else f" ({mine[name]}, now {identity[name]})"
                raise ResultsError(f"{self.path} was begun with another {name}{values}; {ELSEWHERE}")

    @contextmanager
    def held(self, fresh: Mapping[str, Any]) -> Iterator[None]:
        """Make and lock the folder: two processes would mix their rows. ``fresh`` is a new study's provenance.
        ResultsError if it cannot be written, another process holds it, or it is of another study."""
        self.refuse_another(identity_of(fresh))
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"{self.path} cannot be made ({error.strerror}); {ELSEWHERE}") from None
        if not os.access(self.path, os.W_OK):
            raise ResultsError(f"{self.path} cannot be written; {ELSEWHERE}")
        lock = FileLock(self.path / LOCK)
        try:
            since = time.strftime("%H:%M:%S", time.localtime())
            if not lock.take(f"process {os.getpid()} since {since}"):
                self._refuse_in_use(lock.taken() or "another process")
            self._read()  # what another process did since this one looked
            self.refuse_another(identity_of(fresh))
            self._cut()
            for part in self.path.glob(f".{PROVENANCE}.*.part"):  # of a killed holder: no other process writes it
                part.unlink(missing_ok=True)
            self.note(**(self.provenance or fresh))
            yield
        finally:
            lock.release()
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()  # only where nothing was written

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows and wait until they are on the disk; ResultsError if one is there already, or the file cannot take
        it."""
        if not rows:
            return
        path = self.path / ROWS
        if self._names != NAMES:
            raise ResultsError(f"{path} was begun with the columns of another version; {ELSEWHERE}")
        for row in rows:
            if row.key in self.rows:
                raise ResultsError(f"{path}: {row.stage} {row.point} has a row already; report this as a fault")
            self.rows[row.key] = row
        text = "".join(row.line() + "\n" for row in rows)
        try:
            with path.open("a", encoding="utf-8", newline="") as file:
                new = not file.tell()
                file.write((header() + "\n" if new else "") + text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ResultsError(f"{path} cannot be written ({error.strerror}); run the same command to go on") from None
        if new:
            sync_folder(self.path)

    def note(self, **changed: Any) -> None:
        """Write the provenance with some keys changed; None removes a key unless it may be null."""
        provenance = {**(self.provenance or {}), **changed}
        nullable = ("facet_rows", "facet_cols", "commit")
        self.provenance = {name: value for name, value in provenance.items() if value is not None or name in nullable}
        write_sealed(self.path / PROVENANCE, self.provenance)

    def finish(self, finished: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Note the end of the study (rows, digest and ``finished``, such as the budget), and other keys to change."""
        path = self.path / ROWS
        lines = whole_lines(self.path)[1] if path.is_file() else []
        rows = {"rows": len(self.rows), "digest": digest_of(lines)}
        self.note(**{**provenance, "finished": {**finished, **rows}})

    @property
    def finished(self) -> bool:
        """Return True if the rows are those with which the study was finished."""
        said = (self.provenance or {}).get("finished")
        return said is not None and said["rows"] == len(self.rows)

    def stage(self, *names: str) -> list[Row]:
        """Return the rows of some stages, in the order of the file."""
        return [row for row in self.rows.values() if row.stage in names]

    def _read(self) -> None:
        path = self.path
        there = (path / ROWS).is_file()
        if not (path / PROVENANCE).is_file():
            if there and (path / ROWS).stat().st_size:
                raise ResultsError(
                    f"{path} holds {ROWS} without {PROVENANCE}, which says of which question and kernel its rows are; "
                    f"restore it, or {ELSEWHERE}"
                )
            return
        self.provenance = read_provenance(path)
        rows, digest = rows_and_digest(path) if there else ([], digest_of([]))
        self.rows = {row.key: row for row in rows}
        self._names = column_names(*whole_lines(path)) if there else NAMES
        self.remark = lost_rows(path, self.provenance, rows, digest)

    def _cut(self) -> None:
        """Remove a torn last line, left by a kill or a full disk during an append."""
        path = self.path / ROWS
        if path.is_file():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                with path.open("r+b") as file:
                    file.truncate(whole)
                    os.fsync(file.fileno())

    def _refuse_in_use(self, holder: str | None) -> None:
        if holder is not None:
            raise ResultsError(f"another run ({holder}) is at work in {self.path}; wait for it, or {ELSEWHERE}")


def identity_of(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of provenance that must match for a folder to be continued; mismatches come in this order."""
    measured = provenance["source"] == "measured"
    return {
        "question": provenance.get("spec_digest"),
        "source": provenance["source"],
        **({"GPU": provenance["gpu"]["name"]} if provenance["gpu"].get("name") else {}),
        "kernel": provenance.get("kernel") if measured else None,
        "record": None if measured else provenance.get("record"),
    }


def pack(folder: Path) -> dict[str, tuple[int, int]]:
    """Compress the rows of a finished study, which takes no more rows then; return the bytes of its rows as CSV and
    packed, by the name of the packed file. Killed at any moment it loses nothing; the same call continues. ResultsError
    if the folder is no study, a damaged one, or is packed already; or its rows do not come back."""
    source, target = folder / ROWS, packed(folder)
    read_study(folder)
    if not source.is_file():
        raise ResultsError(f"{folder} is packed already; hopper-gemm table {folder} reads it as it is")
    plain = source.read_bytes()
    content = lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME)
    if lzma.decompress(content) != plain:
        raise ResultsError(f"{source} does not come back from its compressed form and stays; report it with the file")
    write_whole(target, content)
    source.unlink()
    return {target.name: (len(plain), len(content))}
