"""Pivots in the published form: M tile down, K depth across, ``0.98x (4)`` for speedup and stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from hopper_gemm.tables.schema import COLUMNS, NAMES, PAIRS
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


@dataclass(frozen=True)
class Group:
    """Rows whose figures may be compared: one problem, one kind of data, one regime."""

    m: int
    n: int
    k: int
    dtype: str
    data: str
    regime: str

    @property
    def problem(self) -> str:
        """As ``4096x4096x4096``."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def title(self) -> str:
        """For a heading; normal data goes without saying."""
        return f"{self.m} x {self.n} x {self.k} {self.dtype}, {self.regime}{self._data(', ')}"

    @property
    def label(self) -> str:
        """For JSON and one-line headings."""
        return f"{self.problem} {self.dtype} {self.regime}{self._data(' ')}"

    @property
    def place(self) -> str:
        """In a few words; provenance notes the noise floor under them."""
        return f"{self.problem} {self.regime}{self._data(' ')}"

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The group's rows."""
        return frame[(frame[list(GROUP)] == pd.Series(asdict(self))).all(axis=1)]

    def _data(self, before: str) -> str:
        return "" if self.data == "normal" else before + self.data


GROUP = tuple(field.name for field in fields(Group))


def groups(trials: pd.DataFrame) -> list[tuple[Group, pd.DataFrame]]:
    """The rows of each group: problems in the order of the file, and the groups of one problem side by side."""
    found = [
        (Group(int(m), int(n), int(k), *rest), part)
        for (m, n, k, *rest), part in trials.groupby(list(GROUP), sort=False)
    ]
    problems = list(dict.fromkeys((group.problem, group.dtype) for group, _ in found))
    return sorted(found, key=lambda one: problems.index((one[0].problem, one[0].dtype)))


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
        if name not in NAMES and name not in PAIRS:
            raise ResultsError(f"{name!r} is not a column; choose among {', '.join([*NAMES, *PAIRS])}")
    if {column.name: column.kind for column in COLUMNS}.get(value) not in ("number", "integer"):
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
