"""A finished study's rows as Parquet: a fifth of the size, where there are thousands of them.

While a study runs its rows are CSV, which grows row by row and survives a kill; a Parquet file is written once. Readers
take either, so that nobody else need know.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from hopper_gemm.study.files import read_text
from hopper_gemm.study.reader import ROWS, packed, read_parquet, read_provenance, read_rows, there
from hopper_gemm.study.row import ResultsError, as_text
from hopper_gemm.study.schema import ALIASES, BY_NAME

FILES = ("samples.csv", "trials.csv", ROWS)
"""What is packed, samples first: what is left of a kill is packed by the next call. The other files of version 1 hold
few rows and stay."""


def pack(folder: Path) -> dict[str, tuple[int, int]]:
    """Turn a study's rows into Parquet.

    Each file is read back and must give every character of the CSV again; only then is the CSV removed. Killed at any
    moment it loses nothing, and the same call goes on.

    Args:
        folder: of a study that is finished: what is packed takes no more rows.

    Returns:
        For each file packed its name, its bytes as CSV and as Parquet.

    Raises:
        ResultsError: the folder is no study, is packed already, or a file would lose something.
    """
    read_provenance(folder)
    present = [folder / name for name in FILES if (folder / name).is_file()]
    if not present:
        if any(there(folder / name) for name in FILES):
            raise ResultsError(f"{folder} is packed already; hopper-gemm table {folder} reads it as it is")
        raise ResultsError(f"{folder / ROWS} does not exist; name a results folder such as results/h200/seed-table")
    read_rows(folder)
    found = {}
    for path in present:
        _write(path)
        found[packed(path).name] = (path.stat().st_size, packed(path).stat().st_size)
    for path in present:
        path.unlink()
    return found


def _write(path: Path) -> None:
    """One file's Parquet, whole at every moment, equal to its CSV."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ResultsError("packing needs pyarrow; pip install pyarrow") from None
    text = read_text(path)
    names, *lines = csv.reader(text.splitlines())
    columns = dict(zip(names, zip(*lines, strict=True), strict=True)) if lines else dict.fromkeys(names, ())
    table = pyarrow.table({name: _typed(name, values) for name, values in columns.items()})
    part = packed(path).with_name(packed(path).name + ".part")
    parquet.write_table(table, part, compression="zstd")
    if _as_csv(read_parquet(part)) != text:
        part.unlink()
        raise ResultsError(
            f"{path} holds what Parquet would not give back to the letter, such as a torn last line; run the study "
            "again to complete it, or leave it as CSV"
        )
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, packed(path))


def _typed(name: str, texts: tuple[str, ...]) -> Any:
    """A column in its kind where that gives its texts back, else as text; nothing where the text is empty."""
    import pyarrow

    column = BY_NAME.get(ALIASES.get(name, name))
    make, kind = {"integer": (int, pyarrow.int64()), "number": (float, pyarrow.float64())}.get(
        column.kind if column else "number" if name.endswith("_us") else "text", (str, pyarrow.string())
    )
    try:
        values = [make(text) if text else None for text in texts]
        if [as_text(value) for value in values] == list(texts):
            return pyarrow.array(values, kind)
    except (ValueError, OverflowError):
        pass
    return pyarrow.array([text or None for text in texts], pyarrow.string())


def _as_csv(columns: dict[str, list[Any]]) -> str:
    """As it stood before it was packed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*([as_text(value) for value in values] for values in columns.values()), strict=True))
    return text.getvalue()
