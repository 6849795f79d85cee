"""Pivots in the published form: M tile down, K depth across, ``0.98x (4)`` for speedup and stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from hopper_gemm.tables.schema import COLUMNS, NAMES
from hopper_gemm.tables.trials import ResultsError

EXCEEDS = "exceeds smem"
_FORMATS = {
    "tflops": "{:.0f}",
    "time_us": "{:.1f}",
    "cublas_us": "{:.1f}",
    "sm_mhz": "{:.0f}",
    "watts": "{:.0f}",
    "tensor_active": "{:.1f}",
}
GROUP = ("m", "n", "k", "dtype", "regime")


def groups(trials: pd.DataFrame) -> list[tuple[tuple[int, int, int, str, str], pd.DataFrame]]:
    """The rows of each (m, n, k, dtype, regime), in the order of the file."""
    return [
        ((int(key[0]), int(key[1]), int(key[2]), key[3], key[4]), part)
        for key, part in trials.groupby(list(GROUP), sort=False)
    ]


def pivot(trials: pd.DataFrame, rows: str = "tile_m", cols: str = "k_depth", value: str = "speedup") -> pd.DataFrame:
    """A table of text, one cell per (rows, cols). Where several configs share a cell, the fastest stands in it.

    Args:
        trials: rows of one problem and regime, as :func:`hopper_gemm.tables.trials.read_trials` gives them.
        rows, cols: columns of the schema that span the table.
        value: column to show; ``speedup`` comes with its stages.

    Raises:
        ResultsError: a name that is no column, or a value that is no number.
    """
    for name in (rows, cols, value):
        if name not in NAMES:
            raise ResultsError(f"{name!r} is not a column; choose among {', '.join(NAMES)}")
    if next(column.kind for column in COLUMNS if column.name == value) not in ("number", "integer"):
        raise ResultsError(f"{value!r} holds no numbers; choose a figure such as speedup, tflops or time_us")
    ordered = trials.sort_values("speedup", ascending=False, na_position="last", kind="stable")
    best = ordered.drop_duplicates([rows, cols])
    cells = best.assign(cell=[cell_text(row, value) for _, row in best.iterrows()])
    table = cells.pivot(index=rows, columns=cols, values="cell").fillna("")
    return table.reindex(index=in_order(table.index), columns=in_order(table.columns))


def in_order(values: Iterable[Any]) -> list[Any]:
    """Distinct values as a table shows them: numbers and flags by size, then words."""
    return sorted(dict.fromkeys(values), key=lambda value: (isinstance(value, str), value))


def cell_text(row: pd.Series, value: str = "speedup") -> str:
    """One cell: the figure, or why there is none."""
    if row["status"] == "illegal":
        return EXCEEDS if EXCEEDS in row["reason"] else "illegal"
    if row["status"] != "ok":
        return str(row["status"]).replace("_", " ")
    if pd.isna(row[value]):
        return "-"
    if value == "speedup":
        return f"{row['speedup']:.2f}x ({row['stages']})"
    return _FORMATS.get(value, "{:.4g}").format(row[value])


def best_row(trials: pd.DataFrame) -> pd.Series | None:
    """The row with the highest speedup, or None where nothing ran."""
    ok = trials[trials["status"] == "ok"]
    return None if ok.empty else ok.loc[ok["speedup"].idxmax()]
