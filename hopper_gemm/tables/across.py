"""One config for several problems: how those do that were measured on all of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hopper_gemm.tables.trials import config_of

JUDGED = {"worst": "worst", "mean": "geometric mean"}
"""Ways to judge a config by all problems, with the heading of their column."""


def serving_all(rows: pd.DataFrame, across: str) -> pd.DataFrame:
    """Speedups of each config that ran on every problem, the best first.

    Args:
        rows: of one regime and kind of data.
        across: of :data:`JUDGED`.

    Returns:
        A line for each config: its speedup on each problem, the least of them, and their geometric mean.
    """
    if rows.empty:
        return rows
    ran = rows[rows["status"] == "ok"]
    sizes = ran[["m", "n", "k"]].astype(str).agg("x".join, axis=1)
    labels = [str(config_of(row)) for row in ran.to_dict("records")]
    table = (
        ran.assign(problem=sizes, config=labels)
        .drop_duplicates(["config", "problem"])
        .pivot(index="config", columns="problem", values="speedup")
        .astype(float)
    )
    table = table[list(dict.fromkeys(sizes))].dropna()
    worst, mean = table.min(axis=1), np.exp(np.log(table).mean(axis=1))
    table = table.assign(**{JUDGED["worst"]: worst, JUDGED["mean"]: mean})
    return table.sort_values(JUDGED[across], ascending=False, kind="stable")
