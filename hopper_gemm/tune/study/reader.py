"""Reading a results folder: its rows and its provenance.

A damaged file is refused with the place: the file, and the line of the rows. A torn last line, which a kill leaves of
an append, is no damage: it is passed over, and what it stood for is measured again. Every row is checked against the
sum that was written with it, which covers the column names too: names that were swapped, renamed or left out are told
as line 1. Packed rows are the same lines, compressed, and are checked alike.
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hopper_gemm.model.sealed import sha256
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.limits import CHIPS, least_seconds
from hopper_gemm.tune.study.files import read_object, read_text
from hopper_gemm.tune.study.provenance import PROVENANCE, checked
from hopper_gemm.tune.study.row import SUM, ResultsError, Row, RowKey, RowParser, values_of
from hopper_gemm.tune.study.schema import BY_NAME, NAMES, PAIRS, REQUIRED

ROWS = "rows.csv"

UNPACKED_BYTES_MAX = 2**28
"""Bytes to which packed rows may unpack, thirty times the largest recorded study; 100 kB can unpack to 1.5 GB."""


@dataclass(frozen=True)
class Study:
    """A results folder that has been read."""

    path: Path
    rows: tuple[Row, ...]
    provenance: dict[str, Any]

    def stage(self, *names: str) -> list[Row]:
        return [row for row in self.rows if row.stage in names]


def read_study(folder: Path) -> Study:
    """Read a results folder. A ResultsError says where: it is none, a file in it is damaged, or its rows are not those
    with which its study was finished."""
    if not folder.is_dir():
        raise ResultsError(f"{folder} is not a folder; name a results folder such as results/h200/seed-table")
    if not has_rows(folder):
        raise ResultsError(f"{folder} holds no {ROWS}; name a results folder such as results/h200/seed-table")
    provenance = read_provenance(folder)
    rows, digest = rows_and_digest(folder)
    if lost := lost_rows(folder, provenance, rows, digest):
        raise ResultsError(f"{lost}; restore it, or run the same command again to measure them again")
    if too_short := _too_short(rows, provenance.get("gpu") or {}):
        raise ResultsError(f"{folder / ROWS}: {too_short}; delete the rows to measure them again")
    return Study(folder, tuple(rows), provenance)


def _too_short(rows: Iterable[Row], gpu: Mapping[str, Any]) -> str:
    """Return in words what no GPU of the kind can do; empty if nothing, or if the kind is not known."""
    kind = CHIPS.get(str(gpu.get("slug")))
    if kind is None:
        return ""
    chip = replace(kind, memory_rate=max(kind.memory_rate, gpu.get("memory_rate", 0.0)))
    least = cache(lambda problem: 1e6 * least_seconds(problem, chip))
    for row in rows:
        for column in ("time_us", "baseline_us"):
            us = row.figures.get(column)
            if row.ok and us is not None and us < least(row.point.problem):
                return (
                    f"{row.point.problem} has a {column} of {us:.2f}, less than the {least(row.point.problem):.2f} in "
                    f"which an {gpu['name']} can read and multiply its operands"
                )
    return ""


def lost_rows(folder: Path, provenance: Mapping[str, Any], rows: Sequence[Row], digest: str) -> str:
    """Return in words how many rows a finished study lost; empty if none, or if the study is not finished. ``digest``
    is the :func:`digest_of` its lines. ResultsError if a row is of another study, or rows were added or exchanged since
    the study was finished."""
    path = folder / ROWS
    foreign = [row.study for row in rows if row.study != provenance["study"]]
    if foreign:
        raise ResultsError(
            f"{path}: {len(foreign)} of {len(rows)} rows are of the study {foreign[0][:40]!r}, not of "
            f"{provenance['study']!r}; restore it, or delete them"
        )
    said = provenance.get("finished")
    if said is None:
        return ""
    lost = said["rows"] - len(rows)
    if lost > 0:
        return f"{lost} of the {said['rows']} rows of the finished study are gone from {path}"
    if lost < 0 or digest != said["digest"]:
        raise ResultsError(
            f"{path} does not hold the {said['rows']} rows with which the study was finished; restore it, or name "
            "another folder"
        )
    return ""


def has_rows(folder: Path) -> bool:
    """Return True if a folder holds rows, packed or not."""
    return (folder / ROWS).is_file() or packed(folder).is_file()


def packed(folder: Path) -> Path:
    """Return the path of a folder's packed rows."""
    return folder / f"{ROWS}.xz"


def recorded_folders(name: str = "*") -> list[Path]:
    """Return the folders of the recorded studies of a name, for an archived one without its date, or of a glob pattern;
    the archived ones last."""
    root = results_root()
    patterns = (f"*/{name}", f"*/*/{name}", f"archive/*/????-??-??-{name}", f"archive/*/*/{name}")
    paths = dict.fromkeys(path for pattern in patterns for path in sorted(root.glob(pattern)))
    named = [(path, path.relative_to(root).parts) for path in paths if path.is_dir()]
    return [path for path, parts in named if parts[0] != "local" and has_rows(path)]


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the origin of a study's figures. ResultsError if there is no such file, or a key is missing or of the
    wrong type."""
    path = folder / PROVENANCE
    if path.is_file():
        return checked(read_object(path), path)
    raise ResultsError(f"{path} does not exist; restore it, or name another results folder")


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of a folder."""
    return rows_and_digest(folder)[0]


def rows_and_digest(folder: Path) -> tuple[list[Row], str]:
    """Return the rows of a folder, packed or not, and the :func:`digest_of` their lines. ResultsError if a file is
    damaged, or holds a row twice."""
    path, lines = whole_lines(folder)
    names = column_names(path, lines)
    first_lines: dict[RowKey, int] = {}
    rows: list[Row] = []
    parser = RowParser(names)
    for number, line in enumerate(lines[1:], 2):
        try:
            row = parser.row(values_of(line, names))
        except ValueError as error:
            fault = f"line {number}: {error}; restore the file, or delete this row to measure it again"
            agreeing = 0
            for other in lines[1:]:
                with suppress(ValueError):
                    agreeing += bool(values_of(other, names))
            if not agreeing:
                fault = "line 1: no row was written under these column names; restore the file"
            raise ResultsError(f"{path}, {fault}") from None
        first = first_lines.setdefault(row.key, number)
        if first != number:
            raise ResultsError(f"{path}, line {number}: the same row as line {first}; delete one of them")
        rows.append(row)
    return rows, digest_of(lines)


def digest_of(lines: Iterable[str]) -> str:
    """Return the SHA-256 of the whole lines of a rows file, in their order: the ends of intervals depend on it."""
    return sha256("\n".join(lines))


def whole_lines(folder: Path) -> tuple[Path, list[str]]:
    """Return the file of a folder's rows, and its lines, the column names first; packed or not. ResultsError if it is
    no text, or cannot be unpacked."""
    path = folder / ROWS
    if path.is_file():
        text = read_text(path)
    else:
        path = packed(folder)
        try:
            unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=UNPACKED_BYTES_MAX)
            content = unpacker.decompress(path.read_bytes(), UNPACKED_BYTES_MAX)
            if not unpacker.eof or unpacker.unused_data:
                raise ValueError("it is cut, or has more behind its end, or unpacks to more than 256 MiB")
            text = content.decode()
        except (OSError, ValueError, lzma.LZMAError) as error:
            raise ResultsError(f"{path} cannot be unpacked ({error}); restore it, or run the sweep again") from None
    return path, text[: text.rfind("\n") + 1].split("\n")[:-1]


def column_names(path: Path, lines: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a file's first line names, without its sum; the present ones for an empty file.
    ResultsError if it names an unknown column, one twice, or not all of :data:`REQUIRED`."""
    *names, last = lines[0].split(",") if lines else (*NAMES, SUM)
    missing = [name for name in REQUIRED if name not in names] or [SUM] * (last != SUM)
    strange = [name for name in names if name not in NAMES]
    if not (missing or strange or len(set(names)) < len(names)):
        return tuple(names)
    what = f"names the unknown column {strange[0][:40]!r}" if strange else "names a column twice"
    what = f"lacks the column {missing[0]}" if missing else what
    raise ResultsError(f"{path}, line 1: {what}; it is no file of rows, restore it")


def frame_of(rows: Sequence[Row]) -> Any:
    """Return rows as a frame: every column of the schema with its kind, and those of
    :data:`hopper_gemm.tune.study.schema.PAIRS`. Integers stay integers where they are missing in other rows; flags stay
    true or false, or a word."""
    import pandas as pd

    records = [row.as_dict() for row in rows]
    columns = {}
    for name in NAMES:
        values, kind = [record.get(name) for record in records], BY_NAME[name].kind
        if kind == "text":
            values = ["" if value is None else str(value) for value in values]
        columns[name] = pd.Series(values, dtype={"integer": "Int64", "number": "float64"}.get(kind, "object"))
    frame = pd.DataFrame(columns)
    return frame.assign(**{name: frame[m].astype(str) + "x" + frame[n].astype(str) for name, (m, n) in PAIRS.items()})


def missing(study: Study) -> str:
    """Return the rows that a study lacks by its provenance, in words: finals that its spec wants, or, if its run never
    ended, some of its rows; empty for a study that ended. The rows of such a study may have been counted afterwards
    (``finished.counted``); it lacks the same."""
    provenance = study.provenance
    if "counted" not in provenance.get("finished", {"counted": ""}):
        return ""
    finals = provenance.get("spec", {}).get("final", {}).get("best", 0)
    subjects = ({row.point for row in study.stage(stage) if row.ok} for stage in ("sweep", "final"))
    ran, had = (Counter(point.control for point in points) for points in subjects)
    wanted = {control: min(finals, count) for control, count in ran.items()}
    if lacking := sum(max(0, count - had[control]) for control, count in wanted.items()):
        return f"{lacking} of {sum(wanted.values())} finals"
    return "rows"
