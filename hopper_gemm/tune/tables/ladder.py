"""A ladder of configs, rung by rung: the rate of each, and its gain over the rung it starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from hopper_gemm.tune.parameters import all_values, kernel_of
from hopper_gemm.tune.tables.pivot import GROUP, Group, config_of, groups, one_line, words

LADDER_LEGEND = (
    "Cells: TFLOP/s (speedup over cuBLAS, gain over the rung it starts from). A gain is the ratio of the two speedups, "
    "so that a drifting clock does not count."
)


@dataclass(frozen=True)
class Result:
    """One rung in one group of rows."""

    group: Group  # problem, data, regime and context
    status: str  # of its row, or "not measured"
    reason: str = ""  # why the status is not ok
    tflops: float | None = None  # None where the status is not ok, as the figures below
    baseline_tflops: float | None = None  # of cuBLAS, timed beside it
    speedup: float | None = None  # over cuBLAS
    # over the rung it starts from, as the ratio of their speedups less 1: each was paired with cuBLAS, so that a clock
    # that drifts from rung to rung cancels. None where one of the two did not run.
    gain: float | None = None


@dataclass(frozen=True)
class MeasuredRung:
    """A rung with its results."""

    name: str
    adds: str  # what it adds
    start: str | None  # name of the rung it starts from; None for the first
    config: dict[str, Any]  # its parameters, resolved
    results: tuple[Result, ...]  # one for each group, in the order of the rows

    @property
    def reasons(self) -> list[str]:
        """Reasons why the rung did not run, each once."""
        return list(dict.fromkeys(f"{words(r.status)}: {r.reason}" for r in self.results if r.reason))

    def as_dict(self) -> dict[str, Any]:
        """Return the rung ready for JSON, the fields of a group among those of its result."""
        results = [{**vars(result), **vars(result.group)} for result in self.results]
        for result in results:
            del result["group"]
        return {"name": self.name, "adds": self.adds, "from": self.start, "config": self.config, "results": results}


def ladder(rows: pd.DataFrame, rungs: Sequence[Mapping[str, Any]]) -> list[MeasuredRung]:
    """Return the rungs, as provenance notes them (name, adds, from, config), each with its row of every group of a
    sweep; rungs with the same config share the row."""
    parts = [(group, {config_of(row): row for row in part.to_dict("records")}) for group, part in groups(rows)]
    steps: dict[str | None, MeasuredRung] = {}
    for rung in rungs:
        config = kernel_of(rung["config"])
        start = steps.get(rung["from"])
        results = tuple(
            _result(group, by_config.get(config), None if start is None else start.results[i])
            for i, (group, by_config) in enumerate(parts)
        )
        steps[rung["name"]] = MeasuredRung(rung["name"], rung["adds"], rung["from"], all_values(config), results)
    return list(steps.values())


def ladder_table(steps: Sequence[MeasuredRung]) -> pd.DataFrame:
    """Return a line for each rung: what it adds, and its cell for each group."""
    before = [None, *(step.name for step in steps)]
    columns = {"adds": [_adds(step, previous) for step, previous in zip(steps, before, strict=False)]}
    for i, result in enumerate(steps[0].results if steps else ()):
        columns[result.group.title] = [_cell(step.results[i]) for step in steps]
    return pd.DataFrame(columns, index=[step.name for step in steps]).map(one_line)


def rung_table(steps: Sequence[MeasuredRung], group: Group) -> pd.DataFrame:
    """Return a line for each rung in a group: what it adds, its rate, its speedup over cuBLAS, its gain."""
    lines = {}
    for step, previous in zip(steps, [None, *(step.name for step in steps)], strict=False):
        (result,) = (result for result in step.results if result.group == group)
        figures = [words(result.status), "", ""]
        if result.tflops is not None:
            gain = "" if result.gain is None else f"{result.gain:+.1%}"
            figures = [f"{result.tflops:.0f}", f"{result.speedup:.3f}x", gain]
        lines[step.name] = [_adds(step, previous), *figures]
    return pd.DataFrame.from_dict(lines, orient="index", columns=["adds", "TFLOP/s", "speedup", "gain"])


def rung_rows(steps: Sequence[MeasuredRung], rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each rung and group: the rung, the rung it starts from, its gain, and the row of its config,
    which has the columns of a group and ``config``, the label."""
    rungs = [
        {"rung": step.name, "starts_from": step.start, "gain": result.gain, "config": label, **asdict(result.group)}
        for step in steps
        for label in [str(kernel_of(step.config))]
        for result in step.results
    ]
    return pd.DataFrame(rungs).merge(rows, on=["config", *GROUP], how="left")


def _result(group: Group, row: Mapping[str, Any] | None, start: Result | None) -> Result:
    if row is None:
        return Result(group, "not measured")
    if row["status"] != "ok":
        return Result(group, row["status"], row["reason"])
    gain = None if start is None or start.speedup is None else row["speedup"] / start.speedup - 1
    theirs = 2 * group.m * group.n * group.k / row["baseline_us"] / 1e6
    return Result(group, "ok", "", row["tflops"], theirs, row["speedup"], gain)


def _adds(step: MeasuredRung, previous: str | None) -> str:
    branch = f" (from {step.start})" if step.start != previous else ""
    return "; ".join([step.adds + branch, *step.reasons])


def _cell(result: Result) -> str:
    if result.tflops is None:
        return words(result.status)
    gain = "" if result.gain is None else f", {result.gain:+.1%}"
    return f"{result.tflops:.0f} ({result.speedup:.3f}x{gain})"
