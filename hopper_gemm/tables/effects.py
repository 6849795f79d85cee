"""What each choice of a sweep is worth, all else equal."""

from __future__ import annotations

import pandas as pd

NEAR = 0.9
"""Of the best speedup: matches of which neither comes so close say nothing of a choice that anyone would make."""


def effects(trials: pd.DataFrame, varied: list[str], near: float = NEAR) -> pd.DataFrame:
    """The main effect of every varied parameter near the best: speedup relative to its first value.

    For each value, configs are matched with those that differ from them in this parameter alone; the figure is the
    geometric mean of the ratios of their speedups, and the range is from the least to the greatest ratio.

    Args:
        trials: rows of one problem and regime.
        varied: columns whose parameters take several values, pairs such as ``cluster`` among them.
        near: the faster of a match reaches at least so much of the best speedup of all rows.

    Returns:
        Columns parameter, value, effect, least, greatest, matches; one row for each value but the first.
    """
    ok = trials[trials["status"] == "ok"]
    least = near * ok["speedup"].max() if len(ok) else 0.0
    found = []
    for name in varied:
        others = [other for other in varied if other != name]
        values = list(dict.fromkeys(ok[name]))
        first = ok[ok[name] == values[0]] if values else ok
        for value in values[1:]:
            second = ok[ok[name] == value]
            if others:
                pairs = first.merge(second, on=others, suffixes=("_first", "_second"))
            else:
                pairs = first.merge(second, how="cross", suffixes=("_first", "_second"))
            pairs = pairs[pairs[["speedup_first", "speedup_second"]].max(axis="columns") >= least]
            ratios = pairs["speedup_second"] / pairs["speedup_first"]
            if ratios.empty:
                continue
            mean = float((ratios.prod()) ** (1 / len(ratios)))
            found.append(
                (name, f"{value} against {values[0]}", mean, float(ratios.min()), float(ratios.max()), len(ratios))
            )
    return pd.DataFrame(found, columns=["parameter", "value", "effect", "least", "greatest", "matches"])
