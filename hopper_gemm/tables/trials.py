"""Reading and writing rows: whole on disk when a trial ends, readable after any kill."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.tables.schema import BEFORE, COLUMNS, KEY, NAMES, PAIRS, STATUSES, Column

TRIALS, FINALS, SAMPLES, PROVENANCE = "trials.csv", "final.csv", "samples.csv", "provenance.json"
SAMPLE_NAMES = ("m", "n", "k", "data", "regime", "config", "stage", "process", "ours_us", "cublas_us")
"""Columns of ``samples.csv``: every pair of times, ``stage`` being sweep, final or control."""

FLAGS = {"true": True, "false": False}


class ResultsError(ValueError):
    """A results folder or file is not what it should be; the message says what and the mend."""


@dataclass(frozen=True)
class AppendFile:
    """A CSV file that only grows: every row is flushed to the disk before the next trial starts.

    Args:
        path: of the file; made with its header at the first row.
        names: columns.
    """

    path: Path
    names: tuple[str, ...]

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows and wait until they are on the disk. A torn last line, left by a kill, is cut off first.

        Raises:
            ResultsError: the file has other columns.
        """
        self._mend()
        text = io.StringIO()
        writer = csv.DictWriter(text, self.names, lineterminator="\n")
        if not self.path.exists() or self.path.stat().st_size == 0:
            writer.writeheader()
        for row in rows:
            writer.writerow({name: as_text(row.get(name)) for name in self.names})
        with self.path.open("a", newline="") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())

    def fill(self, name: str, value: Callable[[Mapping[str, str]], str]) -> None:
        """Give the rows that lack a column's value one; every other character stays. The file is whole at every moment.

        Args:
            name: of the column.
            value: of a row, which is given as text.
        """
        if not self.path.is_file():
            return
        rows = whole_rows(self.path, self.names, "name another folder with --out")
        found = [{**row, name: row[name] or value(row)} for row in rows]
        if found == rows:
            return
        text = io.StringIO()
        writer = csv.DictWriter(text, self.names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        part = self.path.with_name(self.path.name + ".part")
        with part.open("w", newline="") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path)

    def _mend(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            with self.path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
        header = content[: content.find(b"\n") + 1].decode().strip()
        if header and header != ",".join(self.names):
            raise ResultsError(f"{self.path} has the columns of another version; name another folder with --out")


def read_trials(path: Path) -> pd.DataFrame:
    """A trials file with its kinds: integers stay integers where they are missing in other rows. Where the file is not
    there but was packed, as ``trials.parquet`` beside where it was, that is read.

    A column that came after the file was written holds what held before there was one; see
    :data:`hopper_gemm.tables.schema.BEFORE`.

    Raises:
        ResultsError: no such file, not this schema, or a status nobody knows.
    """
    frame = _texts(path)
    absent = [name for name in NAMES if name not in frame.columns]
    missing = [name for name in absent if name not in BEFORE]
    if missing:
        raise ResultsError(f"{path} lacks the columns {', '.join(missing)}; it is not a trials file of this version")
    frame = frame.assign(**{name: as_text(BEFORE[name]) for name in absent})
    for column in COLUMNS:
        if column.kind == "integer":
            frame[column.name] = pd.to_numeric(frame[column.name]).astype("Int64")
        elif column.kind == "number":
            frame[column.name] = pd.to_numeric(frame[column.name])
        elif column.kind == "flag":
            frame[column.name] = frame[column.name].map(lambda text: FLAGS.get(text, text)).infer_objects()
        else:
            frame[column.name] = frame[column.name].fillna("")
    frame = frame[[*NAMES, *(name for name in frame.columns if name not in NAMES)]]
    strange = sorted(set(frame["status"]) - set(STATUSES))
    if strange:
        raise ResultsError(f"{path} has the unknown status {strange[0]!r}; known are {', '.join(STATUSES)}")
    return with_pairs(frame.reset_index(drop=True))


def packed(path: Path) -> Path:
    """Where a CSV file's Parquet lies once :func:`hopper_gemm.tables.pack.pack` has put it there."""
    return path.with_suffix(".parquet")


def is_there(path: Path) -> bool:
    """Whether a CSV file is there, or its Parquet instead."""
    return path.is_file() or packed(path).is_file()


def read_parquet(path: Path) -> pd.DataFrame:
    """A packed file.

    Raises:
        ResultsError: it is not Parquet, or there is nothing to read it with.
    """
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except ImportError:
        raise ResultsError(f"{path} needs pyarrow to be read; pip install pyarrow") from None
    except (OSError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ResultsError(f"{path} is not a Parquet file ({why}); restore it, or run the sweep again") from None


def read_samples(folder: Path) -> pd.DataFrame:
    """Every pair of times of a study, with the columns :data:`SAMPLE_NAMES`; no rows where none were kept. Samples that
    are older than the column ``data`` have it too.

    Raises:
        ResultsError: the file is not what it should be.
    """
    path = folder / SAMPLES
    if path.is_file():
        frame = pd.read_csv(path)
    elif packed(path).is_file():
        frame = read_parquet(packed(path))
    else:
        return pd.DataFrame({name: [] for name in SAMPLE_NAMES})
    return frame if "data" in frame.columns else frame.assign(data=BEFORE["data"])


def _texts(path: Path) -> pd.DataFrame:
    """A trials file, or its Parquet, as text; nothing where a value is missing."""
    if not path.is_file() and packed(path).is_file():
        frame = read_parquet(packed(path))
        return pd.DataFrame({name: [as_text(one) or None for one in frame[name]] for name in frame.columns}, dtype=str)
    if not path.is_file():
        raise ResultsError(
            f"{path} does not exist; name a results folder that holds {path.name}, such as results/h200/seed-table"
        )
    content = path.read_text()
    whole = content[: content.rfind("\n") + 1]
    if not whole:
        raise ResultsError(f"{path} is empty; run the sweep again")
    return pd.read_csv(io.StringIO(whole), dtype=str, keep_default_na=False, na_values=[""])


def whole_rows(path: Path, names: tuple[str, ...], mend: str, *, older: bool = False) -> list[dict[str, str]]:
    """The whole lines of a file as text; a torn last one is passed over.

    Args:
        path: the file.
        names: its columns.
        mend: what to do about a file that has others.
        older: whether it may lack columns that came later: a row with a config then holds what held before there was
            one; see :data:`hopper_gemm.tables.schema.BEFORE`. No rows can be added to such a file.

    Raises:
        ResultsError: its columns are not ``names``.
    """
    content = path.read_text()
    whole = content[: content.rfind("\n") + 1]
    if not whole:
        return []
    reader = csv.DictReader(io.StringIO(whole))
    found = tuple(reader.fieldnames or ())
    later = [name for name in names if name not in found and name in BEFORE] if older else []
    if found != tuple(name for name in names if name not in later):
        raise ResultsError(f"{path} has the columns of another version; {mend}")
    rows = list(reader)
    if not later:
        return rows
    filled = {name: as_text(BEFORE[name]) for name in later}
    return [{**row, **(filled if row["tile_m"] else dict.fromkeys(later, ""))} for row in rows]


def with_kinds(frame: pd.DataFrame, columns: Iterable[Column]) -> pd.DataFrame:
    """Columns of text turned into their kinds, an empty text into a missing value; a flag may be a word."""
    for column in columns:
        texts = frame[column.name]
        if column.kind in ("integer", "number"):
            kind = "Int64" if column.kind == "integer" else "Float64"
            frame[column.name] = pd.to_numeric(texts.where(texts != "", None)).astype(kind)
        elif column.kind == "flag":
            frame[column.name] = texts.map(lambda text: FLAGS.get(text, text or None)).astype(object)
        else:
            frame[column.name] = texts.astype(str)
    return frame


def with_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with the columns of :data:`hopper_gemm.tables.schema.PAIRS`."""
    return frame.assign(**{name: frame[m].astype(str) + "x" + frame[n].astype(str) for name, (m, n) in PAIRS.items()})


def row_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells a row from another, as text: the same for a row read back and for one about to be written."""
    return tuple(as_text(row[name]) for name in KEY)


def config_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The part of :func:`row_key` that tells configs apart."""
    return tuple(as_text(row[name]) for name in FIELDS)


def config_of(row: Mapping[str, Any]) -> GemmConfig:
    """The config of a row."""
    return GemmConfig(**{name: _plain(row[name]) for name in FIELDS})


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that the file is whole at every moment."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    os.replace(part, path)


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        ResultsError: no such file, or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ResultsError(f"{path} does not exist; name a results folder, such as results/h200/seed-table") from None
    except ValueError as error:
        raise ResultsError(f"{path} is not valid JSON ({error}); restore it or run the sweep again") from None


def as_text(value: Any) -> str:
    """A value as a CSV file holds it: six digits of a figure, nothing for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
