"""Reading a results folder: its rows, whatever version of the schema they were recorded in, and its provenance.

A damaged file is refused with the place: the file, and the line of a text file. A torn last line, which a kill leaves
of an append, is no damage: it is passed over, and what it stood for is measured again.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study import version1
from hopper_gemm.tune.study.files import read_object, read_text
from hopper_gemm.tune.study.provenance import BEFORE, PROVENANCE, checked
from hopper_gemm.tune.study.row import SUM, ResultsError, Row, RowKey, RowParser, as_text, summed
from hopper_gemm.tune.study.schema import ALIASES, BY_NAME, NAMES, PAIRS

ROWS = "rows.csv"
SHARED = "studies-"
"""What the names of files that the studies of a list share begin with."""


@dataclass(frozen=True)
class Study:
    """A results folder that has been read.

    Args:
        path: the folder.
        rows: of all stages, in the order of the file.
        provenance: where the figures come from.
    """

    path: Path
    rows: tuple[Row, ...]
    provenance: dict[str, Any]

    def stage(self, *names: str) -> list[Row]:
        """The rows of some stages."""
        return [row for row in self.rows if row.stage in names]


def read_study(folder: Path) -> Study:
    """Read a results folder.

    Raises:
        ResultsError: it is none, a file in it is damaged, or its rows are not those with which its study was finished;
            the message says where.
    """
    if not folder.is_dir():
        raise ResultsError(f"{folder} is not a folder; name a results folder such as results/h200/seed-table")
    if not has_rows(folder):
        raise ResultsError(f"{folder} holds no {ROWS}; name a results folder such as results/h200/seed-table")
    about = read_provenance(folder)
    rows, digest = rows_and_digest(folder)
    if lost := lost_rows(folder, about, rows, digest):
        raise ResultsError(f"{lost}; restore it, or run the same command again to measure them again")
    return Study(folder, tuple(rows), about)


def lost_rows(folder: Path, about: Mapping[str, Any], rows: Sequence[Row], digest: str) -> str:
    """How many rows of a finished study are gone, in words; empty where none is, and of a study that is not finished.

    Args:
        folder: of the study.
        about: its provenance.
        rows: its rows.
        digest: their :func:`digest_of`.

    Raises:
        ResultsError: a row is of another study, or rows were added or exchanged since the study was finished.
    """
    path, version = folder / ROWS, about.get("schema_version", 1)
    known = (about.get("study"), *([""] if version == 1 else []))  # some files of version 1 have no such column
    foreign = [] if "study" not in about else [row.study for row in rows if row.study not in known]
    if foreign:
        raise ResultsError(
            f"{path}: {len(foreign)} of {len(rows)} rows are of the study {foreign[0][:40]!r}, not of "
            f"{about['study']!r}; restore it, or delete them"
        )
    said = about.get("finished") if version > 1 else None
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
    """Whether a folder holds rows of any version."""
    return any(there(folder / name) for name in (ROWS, *version1.FILES))


def recorded_folders(name: str = "*") -> list[Path]:
    """Folders of the recorded studies of a name, the archived ones last; without the searches of a list.

    Args:
        name: of the folder, for an archived one without its date; a glob pattern.
    """
    root = results_root()
    patterns = (f"*/{name}", f"*/*/{name}", f"archive/*/????-??-??-{name}")
    found = dict.fromkeys(path for pattern in patterns for path in sorted(root.glob(pattern)))
    named = [(path, path.relative_to(root).parts) for path in found if path.is_dir()]
    searches = [path for path, parts in named if len(parts) > 2 and path.name.startswith("tune-")]
    return [path for path, parts in named if parts[0] != "local" and path not in searches and has_rows(path)]


def read_provenance(folder: Path) -> dict[str, Any]:
    """Where a study's figures come from; of version 1 in the terms of now.

    Raises:
        ResultsError: no such file, or a key is missing or of the wrong type.
    """
    path = folder / PROVENANCE
    if path.is_file():
        return checked(read_object(path), path)
    for name in version1.ABOUT:
        if (folder / name).is_file():
            return checked(read_object(folder / name), folder / name, BEFORE)
    raise ResultsError(f"{path} does not exist; restore it, or name another results folder")


def read_rows(folder: Path) -> list[Row]:
    """The rows of a folder, those of version 1 as rows of now.

    Raises:
        ResultsError: a file is damaged, or holds a row twice.
    """
    return rows_and_digest(folder)[0]


def rows_and_digest(folder: Path) -> tuple[list[Row], str]:
    """The rows of a folder as :func:`read_rows` gives them, and the :func:`digest_of` their file, packed or not.

    Raises:
        ResultsError: a file is damaged, or holds a row twice.
    """
    path = folder / ROWS
    if not there(path):
        files = {name: records(folder / name) for name in version1.READ if there(folder / name)}
        return version1.read_rows(files, folder), digest_of([])
    found: dict[RowKey, str] = {}
    rows: list[Row] = []
    lines = records(path)
    names = next(lines, ("", []))[1]
    texts = [",".join(names)] if names else []
    parser = RowParser(names)
    for place, values in lines:
        texts.append(summed(values[:-1]))
        try:
            row = parser.row(values)
        except ValueError as error:
            raise ResultsError(f"{path}, {place}: {error}; {_FIX}") from None
        first = found.setdefault(row.key, place)
        if first is not place:
            raise ResultsError(f"{path}, {place}: the same row as {first}; delete one of them")
        rows.append(row)
    return rows, digest_of(texts)


def digest_of(lines: Iterable[str]) -> str:
    """SHA-256 of the whole lines of a rows file, whatever their order."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


_FIX = "restore the file, or delete this row to measure it again"


def records(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The place and the values of each line of a file, or of the Parquet that it was packed into; the names first.

    Raises:
        ResultsError: the file is damaged; with the line.
    """
    if path.is_file():
        yield from _lines(path)
        return
    whole = packed(path).is_file()
    found = read_parquet(packed(path) if whole else shared(path), None if whole else path.parent.name)
    names = list(found)
    yield "row 0", _checked_names(packed(path), "row 0", names)
    columns = [[as_text(value) for value in values] for values in found.values()]
    for number, values in enumerate(zip(*columns, strict=True), 1):
        place, line = f"row {number}", list(values)
        if names[-1] == SUM and summed(line[:-1])[-8:] != line[-1]:
            raise ResultsError(f"{packed(path)}, {place}: the row was changed since it was written; restore the file")
        yield place, line


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The lines of a text file. Each is one row: no value holds a line break."""
    text = read_text(path)
    lines = text[: text.rfind("\n") + 1].split("\n")[:-1]
    if not lines:
        return
    names = _checked_names(path, "line 1", lines[0].split(","))
    yield "line 1", names
    with_sums = names[-1] == SUM
    for number, line in enumerate(lines[1:], 2):
        try:
            values = next(csv.reader([line], strict=True)) if '"' in line else line.split(",")
        except (csv.Error, StopIteration) as error:
            raise ResultsError(f"{path}, line {number}: {error}; {_FIX}") from None
        if len(values) != len(names):
            raise ResultsError(f"{path}, line {number}: {len(values)} values for {len(names)} columns; {_FIX}")
        if with_sums and summed(values[:-1]) != line:
            raise ResultsError(f"{path}, line {number}: the row was changed since it was written; {_FIX}")
        yield f"line {number}", values


def _checked_names(path: Path, place: str, names: list[str]) -> list[str]:
    if path.stem not in {Path(name).stem for name in (ROWS, *version1.FILES)}:
        return names
    known = [ALIASES.get(name, name) for name in names]
    now = path.stem == Path(ROWS).stem
    missing = [name for name in ("m", "n", "k", *([SUM] if now else [])) if name not in known]
    strange = [name for name in known if now and name not in (*NAMES, SUM)]
    if missing or strange or len(set(known)) < len(known):
        what = f"names the unknown column {strange[0][:40]!r}" if strange else "names a column twice"
        what = f"lacks the column {missing[0]}" if missing else what
        raise ResultsError(f"{path}, {place}: {what}; it is no file of rows, restore it")
    return names


def packed(path: Path) -> Path:
    """Where a file's Parquet lies once it is packed."""
    return path.with_suffix(".parquet")


def shared(path: Path) -> Path:
    """Where a file's rows lie once the studies of a list are packed together: in a Parquet beside their folders, whose
    column ``study`` names the folder."""
    return path.parent.parent / f"{SHARED}{path.stem}.parquet"


def there(path: Path) -> bool:
    """Whether a file is there, or its Parquet, or its part of a shared Parquet."""
    if path.is_file() or packed(path).is_file():
        return True
    return shared(path).is_file() and bool(read_parquet(shared(path), path.parent.name)["study"])


def read_parquet(path: Path | BytesIO, study: str | None = None) -> dict[str, list[Any]]:
    """The columns of a packed file; of a shared one the rows of one study.

    Raises:
        ResultsError: it is not Parquet.
    """
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, filters=None if study is None else [("study", "==", study)])
        return {name: table.column(name).to_pylist() for name in table.column_names}
    except (OSError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ResultsError(f"{path} is not a Parquet file ({why}); restore it, or run the sweep again") from None


def frame_of(rows: Sequence[Row]) -> Any:
    """Rows as a frame: every column of the schema with its kind, and those of
    :data:`hopper_gemm.tune.study.schema.PAIRS`.

    Integers stay integers where they are missing in other rows; flags stay true or false, or a word.
    """
    import pandas as pd

    found = [row.as_dict() for row in rows]
    columns = {}
    for name in NAMES:
        values, kind = [record.get(name) for record in found], BY_NAME[name].kind
        if kind == "text":
            values = ["" if value is None else str(value) for value in values]
        columns[name] = pd.Series(values, dtype={"integer": "Int64", "number": "float64"}.get(kind, "object"))
    frame = pd.DataFrame(columns)
    return frame.assign(**{name: frame[m].astype(str) + "x" + frame[n].astype(str) for name, (m, n) in PAIRS.items()})
