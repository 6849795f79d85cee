"""The measurements of one point by several fresh processes, as one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hopper_gemm.tune.point import Sample
from hopper_gemm.tune.statistics import speedup
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.schema import BY_NAME, FIGURES

Item = TypeVar("Item")
Key = TypeVar("Key")

NUMBERS = tuple(name for name in FIGURES if BY_NAME[name].kind == "number")


def pooled(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each point and stage, in the order of their first rows; see :func:`pool`."""
    return [pool(of_point) for of_point in by_point(rows)]


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by their keys, both in the order in which they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_point(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each point and stage: those that ran, or the last if none ran."""
    groups = grouped(rows, lambda row: (row.stage, row.point))
    return [[row for row in of if row.ok] or of[-1:] for of in groups.values()]


def looks(rows: Iterable[Row]) -> tuple[int, ...]:
    """Return the number of processes that measured the rows of a point, board by board."""
    boards = grouped(rows, lambda row: row.board)
    return tuple(sum(int(row.figures.get("processes", 1)) for row in of) for of in boards.values())


def pool(rows: Sequence[Row]) -> Row:
    """Return the rows of a point, as :func:`by_point` gives them, as one, in which boards count alike, however many
    processes each had.

    A point measured once keeps its row. Else the speedup is that of :func:`hopper_gemm.tune.statistics.speedup`; on one
    board times are medians over all pairs, and other figures are means over processes; of several boards, both are
    means of the boards' figures.
    """
    boards = [_of_board(of) for of in grouped(rows, lambda row: row.board).values()]
    return boards[0] if len(boards) == 1 else _merged(boards, _speedup([board.samples for board in boards]))


def _of_board(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    samples, figures = [sample for row in rows for sample in row.samples], {}
    if samples:
        time_us, baseline_us = map(float, np.median([sample.bare_us for sample in samples], axis=0))
        figures = {"time_us": time_us, "baseline_us": baseline_us}
        figures |= {"tflops": rows[0].point.problem.flop / time_us / 1e6, **_speedup([samples])}
    return _merged(rows, figures)


def _speedup(boards: Sequence[Sequence[Sample]]) -> dict[str, float]:
    if not all(boards):
        return {}
    ratio = speedup(*boards)
    return {"speedup": ratio.median, "speedup_low": ratio.low, "speedup_high": ratio.high, "pairs": ratio.pairs}


def _merged(rows: Sequence[Row], figures: Mapping[str, Any]) -> Row:
    """Return rows as one, with these figures and the means of the others."""
    present = {name: [row.figures[name] for row in rows if row.figures.get(name) is not None] for name in NUMBERS}
    means = {name: float(np.mean(values)) for name, values in present.items() if values}
    samples, boards = tuple(sample for row in rows for sample in row.samples), dict.fromkeys(row.board for row in rows)
    own = {**rows[0].figures, **means, "processes": sum(looks(rows)), **figures}
    return replace(rows[0], figures=own, samples=samples, process=0, board=" ".join(boards))
