"""A finished study's rows as Parquet: a fifth of the size, where there are thousands of them.

While a study runs its rows are CSV, which grows row by row and survives a kill; a Parquet file is written once. Readers
take either, so that nobody else need know.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from hopper_gemm.tune.study.files import read_text, write_whole
from hopper_gemm.tune.study.reader import ROWS, column_names, has_rows, packed, parquet_lines, read_study, whole_lines
from hopper_gemm.tune.study.row import SUM, ResultsError, as_text, values_of
from hopper_gemm.tune.study.schema import BY_NAME


def pack(folder: Path) -> dict[str, tuple[int, int]]:
    """Turn the rows of a study, and of the studies of a list in the folders below it, into Parquet, a file each.

    Each file is read back and must give every character of the CSV again; only then is the CSV removed. Killed at any
    moment it loses nothing, and the same call goes on.

    Args:
        folder: of a study or list that is finished: what is packed takes no more rows.

    Returns:
        For each file packed its name, from the folder on, its bytes as CSV and as Parquet.

    Raises:
        ResultsError: the folder is no study, a damaged one, is packed already, or a file would lose something.
    """
    studies = [path for path in (folder, *sorted(folder.glob("*"))) if (path / ROWS).is_file()]
    if not studies:
        if has_rows(folder):
            raise ResultsError(f"{folder} is packed already; hopper-gemm table {folder} reads it as it is")
        raise ResultsError(f"{folder / ROWS} does not exist; name a results folder such as results/h200/seed-table")
    made = {one: _parquet(one) for one in studies}
    found = {}
    for one, content in made.items():
        target, source = packed(one), one / ROWS
        write_whole(target, content)
        found[str(target.relative_to(folder))] = (source.stat().st_size, len(content))
        source.unlink()
    return found


def _parquet(folder: Path) -> bytes:
    """A study's rows as the content of a Parquet file that gives each of their lines again."""
    read_study(folder)
    path, lines = whole_lines(folder)
    names = column_names(path, lines)
    rows = [[*values_of(line, names), line.rpartition(",")[2]] for line in lines[1:]]
    columns = [_typed(name, [row[i] for row in rows]) for i, name in enumerate((*names, SUM))]
    table = pyarrow.table(columns, [*names, SUM])
    made, small = io.BytesIO(), {"compression": "zstd", "compression_level": 19, "use_dictionary": False}
    parquet.write_table(table, made, **small, write_statistics=False, store_schema=False)
    if parquet_lines(made) != read_text(path).split("\n")[:-1] or not read_text(path).endswith("\n"):
        raise ResultsError(
            f"{path} holds what Parquet would not give back to the letter, such as a torn last line; run the study "
            "again to complete it, or leave it as CSV"
        )
    return made.getvalue()


def _typed(name: str, texts: Sequence[str]) -> Any:
    """A column in its kind where that gives its texts back, else as text; nothing where the text is empty."""
    kind = "text" if name == SUM else BY_NAME[name].kind
    make, type_ = {"integer": (int, pyarrow.int64()), "number": (float, pyarrow.float64())}.get(
        kind, (str, pyarrow.string())
    )
    try:
        values = [make(text) if text else None for text in texts]
        if [as_text(value) for value in values] == list(texts):
            return pyarrow.array(values, type_)
    except (ValueError, OverflowError):
        pass
    return pyarrow.array([text or None for text in texts], pyarrow.string())
