"""A finished study's rows as Parquet: a fifth of the size, where there are thousands of them.

While a study runs its rows are CSV, which grows row by row and survives a kill; a Parquet file is written once. Readers
take either, so that nobody else need know.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
from pyarrow import parquet

from hopper_gemm.tune.study.files import read_text, write_whole
from hopper_gemm.tune.study.reader import ROWS, SHARED, has_rows, packed, read_parquet, read_study, shared
from hopper_gemm.tune.study.row import ResultsError, as_text
from hopper_gemm.tune.study.schema import ALIASES, BY_NAME

FILES = ("samples.csv", "compare-samples.csv", "trials.csv", ROWS)
"""What is packed, samples first: what is left of a kill is packed by the next call. The other files of version 1 hold
few rows and stay."""


def pack(folder: Path) -> dict[str, tuple[int, int]]:
    """Turn a study's rows into Parquet; those of a list's studies, in folders below it, into one that they share.

    Each file is read back and must give every character of the CSV again; only then is the CSV removed. Killed at any
    moment it loses nothing, and the same call goes on.

    Args:
        folder: of a study or list that is finished: what is packed takes no more rows.

    Returns:
        For each file packed its name, its bytes as CSV and as Parquet.

    Raises:
        ResultsError: the folder is no study, a damaged one, is packed already, or a file would lose something.
    """
    studies = [path for path in sorted(folder.glob("*")) if path.is_dir() and has_rows(path)]
    own = [[folder / name] for name in FILES if (folder / name).is_file()]
    below = [[one / name for one in studies if (one / name).is_file()] for name in (*FILES[:-1], "final.csv", ROWS)]
    parts = [*own, *(paths for paths in below if paths)]
    if not parts:
        if has_rows(folder):
            raise ResultsError(f"{folder} is packed already; hopper-gemm table {folder} reads it as it is")
        raise ResultsError(f"{folder / ROWS} does not exist; name a results folder such as results/h200/seed-table")
    for one in {path.parent for paths in parts for path in paths}:
        read_study(one)
    found = {}
    for paths in parts:
        target = packed(paths[0]) if paths in own else shared(paths[0])
        if target.is_file() and target == shared(paths[0]):
            raise ResultsError(f"{target} holds studies already; move {paths[0].parent} out of {folder}")
        _write(target, {path: read_text(path) for path in paths})
        found[target.name] = (sum(path.stat().st_size for path in paths), target.stat().st_size)
    for paths in parts:
        for path in paths:
            path.unlink()
    return found


def _write(target: Path, texts: Mapping[Path, str]) -> None:
    """One Parquet of one or several CSV files, whole at every moment, equal to each of them."""
    several, frames = target.name.startswith(SHARED), {}
    for path, text in texts.items():
        frames[path] = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    joined = pd.concat([frame.assign(study=path.parent.name) if several else frame for path, frame in frames.items()])
    table = pyarrow.table({name: _typed(name, of.tolist()) for name, of in joined.fillna("").items()})
    made, small = io.BytesIO(), {"compression": "zstd", "compression_level": 19}
    parquet.write_table(table, made, **small, write_statistics=False, store_schema=False)
    for path, text in texts.items():
        columns = read_parquet(made, path.parent.name if several else None)
        back = pd.DataFrame({name: [as_text(value) for value in columns[name]] for name in frames[path]})
        if back.to_csv(index=False, lineterminator="\n") != text:
            raise ResultsError(
                f"{path} holds what Parquet would not give back to the letter, such as a torn last line; run the study "
                "again to complete it, or leave it as CSV"
            )
    write_whole(target, made.getvalue())


def _typed(name: str, texts: Sequence[str]) -> Any:
    """A column in its kind where that gives its texts back, else as text; nothing where the text is empty."""
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
