"""A finished study's rows as Parquet: a fifth of the size, where there are thousands of them.

While a sweep runs its files are CSV, which grow row by row and survive a kill; a Parquet file is written once. Readers
take either, so that nobody else need know.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pandas as pd

from hopper_gemm.tables.schema import COLUMNS
from hopper_gemm.tables.trials import (
    PROVENANCE,
    SAMPLES,
    TRIALS,
    ResultsError,
    as_text,
    is_there,
    packed,
    read_json,
    read_parquet,
    read_trials,
)

_KINDS = {column.name: column.kind for column in COLUMNS} | {
    "process": "integer",
    "ours_us": "number",
    "cublas_us": "number",
}


def pack(folder: Path) -> dict[str, tuple[int, int]]:
    """Turn a study's ``trials.csv`` and ``samples.csv`` into Parquet; the few rows of ``final.csv`` stay.

    Each is read back and must give every character of the CSV again; only then are the CSV files removed. Killed at any
    moment it loses nothing, and the same call goes on.

    Args:
        folder: of a study that is finished: what is packed takes no more rows.

    Returns:
        For each file packed its name, its bytes as CSV and as Parquet.

    Raises:
        ResultsError: the folder is no study, is packed already, or a file would lose something.
    """
    read_json(folder / PROVENANCE)
    present = [folder / name for name in (SAMPLES, TRIALS) if (folder / name).is_file()]
    if not present:
        if is_there(folder / TRIALS):
            raise ResultsError(f"{folder} is packed already; hopper-gemm table {folder} reads it as it is")
        raise ResultsError(f"{folder / TRIALS} does not exist; name a results folder such as results/h200/seed-table")
    if folder / TRIALS in present:
        read_trials(folder / TRIALS)
    found = {}
    for path in present:
        _write(path)
        found[packed(path).name] = (path.stat().st_size, packed(path).stat().st_size)
    for path in present:  # the trials last: what is left of a kill is packed by the next call
        path.unlink()
    return found


def _write(path: Path) -> None:
    """One file's Parquet, whole at every moment, equal to its CSV."""
    text = path.read_text()
    names = tuple(text[: text.find("\n")].split(","))
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    typed = pd.DataFrame({name: _typed(frame[name], _KINDS.get(name, "text")) for name in names})
    part = packed(path).with_name(packed(path).name + ".part")
    try:
        typed.to_parquet(part, engine="pyarrow", index=False, compression="zstd")
    except ImportError:
        raise ResultsError("packing needs pyarrow; pip install pyarrow") from None
    if _as_csv(read_parquet(part), names) != text:
        part.unlink()
        raise ResultsError(
            f"{path} holds what Parquet would not give back to the letter, such as a torn last line or figures of more "
            "than six digits; run its sweep again to mend it, or leave it as CSV"
        )
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, packed(path))


def _typed(texts: pd.Series, kind: str) -> pd.Series:
    """A column in its kind; nothing where the text is empty. A flag may be a word, and stays text."""
    if kind in ("integer", "number"):
        return pd.to_numeric(texts.where(texts != "", None)).astype("Int64" if kind == "integer" else "Float64")
    return texts.where(texts != "", None).astype("string")


def _as_csv(frame: pd.DataFrame, names: tuple[str, ...]) -> str:
    """As :class:`hopper_gemm.tables.trials.AppendFile` would have written it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*([as_text(value) for value in frame[name]] for name in names), strict=True))
    return text.getvalue()
