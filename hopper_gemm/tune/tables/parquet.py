"""Rows as Parquet: each column of the schema in its own type, null where a value is missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.row import ResultsError, as_text
from hopper_gemm.tune.study.schema import BY_NAME

DTYPES = {"string": "string", "integer": "Int64", "number": "float64", "boolean": "boolean"}
"""Pandas' type for each :attr:`hopper_gemm.tune.study.schema.Column.type`."""


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write rows as Parquet.

    Args:
        frame: columns of the schema; others, such as labels, are text.
        path: the file.

    Raises:
        ResultsError: pyarrow is missing or too old for pandas, or the file cannot be written.
    """
    types = {name: BY_NAME[name].type if name in BY_NAME else "string" for name in frame}
    texts = {name: frame[name].map(lambda value: as_text(value) or None) for name in frame if types[name] == "string"}
    typed = frame.assign(**texts).astype({name: DTYPES[kind] for name, kind in types.items()})
    try:
        content = typed.to_parquet(None, engine="pyarrow", index=False)
    except ImportError:
        raise ResultsError(
            "Parquet needs pyarrow, which is missing or too old; pip install --upgrade pyarrow, or take --format csv"
        ) from None
    write_whole(path, content)
