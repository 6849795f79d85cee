"""Reading a results folder: its rows, whatever version of the schema they were recorded in, and its provenance.

A damaged file is refused with the place: the file, and the line of a text file. A torn last line, which a kill leaves
of an append, is no damage: it is passed over, and what it stood for is measured again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopper_gemm.model.config import DEFAULTS, FIELDS, GemmConfig
from hopper_gemm.study.row import ResultsError, Row, Sample, as_text, renamed, row_of
from hopper_gemm.study.schema import ALIASES, BY_NAME, NAMES, PAIRS

ROWS, PROVENANCE = "rows.csv", "provenance.json"
BEFORE_V2 = {"trials.csv": "sweep", "final.csv": "final", "compare.csv": "compare", "counters.csv": "counters"}
"""Files of version 1 that hold rows, with the stage of each."""
SAMPLES = {"samples.csv": ("sweep", "final", "control"), "compare-samples.csv": ("compare",)}
ABOUT_V1 = ("compare.json", "counters.json")
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
        ResultsError: it is none, or a file in it is damaged; the message says where.
    """
    if not folder.is_dir():
        raise ResultsError(f"{folder} is not a folder; name a results folder such as results/h200/seed-table")
    rows = tuple(read_rows(folder))
    if not rows and not has_rows(folder):
        raise ResultsError(f"{folder} holds no {ROWS}; name a results folder such as results/h200/seed-table")
    return Study(folder, rows, read_provenance(folder))


def has_rows(folder: Path) -> bool:
    """Whether a folder holds rows of any version."""
    return any(_there(folder / name) for name in (ROWS, *BEFORE_V2))


def read_provenance(folder: Path) -> dict[str, Any]:
    """Where a study's figures come from.

    Raises:
        ResultsError: no such file, or not an object of JSON.
    """
    for name in (PROVENANCE, *ABOUT_V1):
        if (folder / name).is_file():
            return read_object(folder / name)
    raise ResultsError(f"{folder / PROVENANCE} does not exist; restore it, or name another results folder")


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds one object of JSON.

    Raises:
        ResultsError: it does not.
    """
    found = read_json(path)
    if not isinstance(found, dict):
        raise ResultsError(f"{path} must hold an object of JSON but holds a {type(found).__name__}; restore it")
    return found


def read_json(path: Path) -> Any:
    """A file of JSON.

    Raises:
        ResultsError: no such file, or not JSON; with the line.
    """
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path}, line {error.lineno}, column {error.colno}: {error.msg}; restore the file") from None


def read_rows(folder: Path) -> list[Row]:
    """The rows of a folder, those of version 1 as rows of now.

    Raises:
        ResultsError: a file is damaged, or holds a row twice.
    """
    if _there(folder / ROWS):
        return _read_now(folder / ROWS)
    found: dict[tuple[str, ...], Row] = {}
    for name, stage in BEFORE_V2.items():
        if _there(folder / name):
            for _, record in _records(folder / name):
                row = _old(record, stage, folder / name)
                found[row.key] = row
    samples = _old_samples(folder)
    return [replace(row, samples=samples.get(_sample_key(row), ())) for row in found.values()]


def _read_now(path: Path) -> list[Row]:
    found: dict[tuple[str, ...], str] = {}
    rows = []
    for place, record in _records(path):
        try:
            row = row_of(record)
        except ValueError as error:
            raise ResultsError(f"{path}, {place}: {error}; restore the file, or delete this row to measure it again") from None
        if row.key in found:
            raise ResultsError(f"{path}, {place}: the same row as {found[row.key]}; delete one of them")
        found[row.key] = place
        rows.append(row)
    return rows


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the values of each row of a file, or of the Parquet that it was packed into."""
    if not path.is_file():
        place = packed(path) if packed(path).is_file() else shared(path)
        frame = read_parquet(place, path.parent.name if place == shared(path) else None)
        _check_columns(path, list(frame.columns))
        for number, record in enumerate(frame.to_dict("records"), 1):
            yield f"row {number}", {name: as_text(value) for name, value in record.items()}
        return
    text = _text(path)
    whole = text[: text.rfind("\n") + 1]
    reader = csv.reader(io.StringIO(whole), strict=True)
    names = next(reader, None)
    if names is None:
        return
    _check_columns(path, names)
    try:
        for values in reader:
            place = f"line {reader.line_num}"
            if len(values) != len(names):
                raise ResultsError(
                    f"{path}, {place}: {len(values)} values for {len(names)} columns; restore the file, or delete this "
                    "line to measure its row again"
                )
            yield place, dict(zip(names, values, strict=True))
    except csv.Error as error:
        raise ResultsError(f"{path}, line {reader.line_num}: {error}; restore the file") from None


def _check_columns(path: Path, names: list[str]) -> None:
    known = [ALIASES.get(name, name) for name in names]
    if path.stem in (Path(ROWS).stem, *(Path(name).stem for name in BEFORE_V2)):
        missing = [name for name in ("m", "n", "k") if name not in known]
        if missing or len(set(known)) < len(known):
            what = f"lacks the column {missing[0]}" if missing else "names a column twice"
            raise ResultsError(f"{path}, line 1: {what}; it is no file of rows, restore it")


def _old(record: Mapping[str, Any], stage: str, path: Path) -> Row:
    values = dict(renamed(record))
    values["stage"] = stage
    if values.get("arm") == "cublas":
        values["tile_m"] = ""
    try:
        return row_of(values)
    except ValueError as error:
        raise ResultsError(f"{path}: {error}; restore the file") from None


def _old_samples(folder: Path) -> dict[tuple[str, ...], tuple[Sample, ...]]:
    """Pairs of version 1, which stood in a file of their own under the label or the code of the config."""
    found: dict[tuple[str, ...], list[Sample]] = {}
    for name, stages in SAMPLES.items():
        if not _there(folder / name):
            continue
        for _, record in _records(folder / name):
            stage = record.get("stage", stages[0])
            config = record.get("config", record.get("code", ""))
            data = record.get("data") or "normal"
            against = record.get("against", "cublas")
            process = record["process"] if stage == "compare" else "0"
            key = (stage, record["m"], record["n"], record["k"], data, record["regime"], against, process, config)
            theirs = record.get("cublas_us", record.get("theirs_us"))
            found.setdefault(key, []).append(Sample(int(record["process"]), float(record["ours_us"]), float(str(theirs))))
    return {key: tuple(samples) for key, samples in found.items()}


def _sample_key(row: Row) -> tuple[str, ...]:
    point = row.point
    config = row.figures.get("code", "") if row.stage == "compare" else old_label(point.config)
    sizes = (str(point.problem.m), str(point.problem.n), str(point.problem.k))
    process = str(row.process) if row.stage == "compare" else "0"
    return (row.stage, *sizes, point.data, point.regime, point.against, process, config)


def old_label(config: GemmConfig | None) -> str:
    """The label under which version 1 kept a config's samples."""
    if config is None:
        return "cublas"
    walk = f"{config.raster}{config.swizzle}{'serp' if config.serpentine else ''}"
    peek = "" if config.peek is False else " peek" if config.peek is True else f" peek-{config.peek}"
    names = {"pdl": "early", "reverse_k": "zigzag"}
    words = {"alternate": "turns", "split": "rows"}
    later = "".join(
        f" {names.get(name, name)}={words.get(value, value) if name == 'multicast' else value}"
        for name in FIELDS[FIELDS.index("persistent") :]
        if (value := getattr(config, name)) != DEFAULTS[name]
    )
    return (
        f"{config.tile_m}x{config.tile_n}x{config.tile_k} s{config.stages} lag{config.stagger} "
        f"{config.consumers}{config.split} {config.schedule[:4]} {config.cluster_m}x{config.cluster_n} {walk} "
        f"epi{config.epi_n}x{config.epi_buffers}{peek}{later}"
    )


def packed(path: Path) -> Path:
    """Where a file's Parquet lies once it is packed."""
    return path.with_suffix(".parquet")


def shared(path: Path) -> Path:
    """Where a file's rows lie once the studies of a list were packed together: one Parquet beside their folders, whose
    column ``study`` names the folder."""
    return path.parent.parent / f"{SHARED}{path.stem}.parquet"


def read_parquet(path: Path, study: str | None = None) -> Any:
    """A packed file as a frame; of a shared one only the rows of one study.

    Raises:
        ResultsError: it is not Parquet, or there is nothing to read it with.
    """
    import pandas as pd

    chosen = {} if study is None else {"filters": [("study", "==", study)]}
    try:
        return pd.read_parquet(path, engine="pyarrow", **chosen)
    except ImportError:
        raise ResultsError(f"{path} needs pyarrow to be read; pip install pyarrow") from None
    except (OSError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ResultsError(f"{path} is not a Parquet file ({why}); restore it, or run the sweep again") from None


def frame_of(rows: list[Row] | tuple[Row, ...]) -> Any:
    """Rows as a frame: every column of the schema with its kind, and those of :data:`PAIRS`.

    Integers stay integers where they are missing in other rows; flags stay true or false, or a word.
    """
    import pandas as pd

    records = [row.as_dict() for row in rows]
    columns = {}
    for name in NAMES:
        values = [record.get(name) for record in records]
        kind = BY_NAME[name].kind
        if kind == "integer":
            columns[name] = pd.array(values, dtype="Int64")
        elif kind == "number":
            columns[name] = pd.array([float("nan") if v is None else float(v) for v in values], dtype="float64")
        elif kind == "text":
            columns[name] = pd.array(["" if v is None else str(v) for v in values], dtype=object)
        else:
            columns[name] = pd.array(values, dtype=object)
    frame = pd.DataFrame(columns)
    return frame.assign(**{name: frame[m].astype(str) + "x" + frame[n].astype(str) for name, (m, n) in PAIRS.items()})


def _there(path: Path) -> bool:
    if path.is_file() or packed(path).is_file():
        return True
    return shared(path).is_file() and len(read_parquet(shared(path), path.parent.name)) > 0


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ResultsError(f"{path} does not exist; name a results folder such as results/h200/seed-table") from None
    except OSError as error:
        raise ResultsError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ResultsError(f"{path}, line {line}: byte {error.object[error.start]:#04x} is not UTF-8; restore the file") from None
