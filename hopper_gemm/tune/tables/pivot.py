"""Tables of text from rows: pivots in the published form, effects of choices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import problem_from, recipe_of
from hopper_gemm.tune.parameters import DEFAULTS, FIELDS, kernel_of
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.reader import Study, frame_of
from hopper_gemm.tune.study.row import PROBLEM, ResultsError, as_text
from hopper_gemm.tune.study.schema import BY_NAME, NAMES, PAIRS
from hopper_gemm.tune.study.space import place_of, problem_label

EXCEEDS = "exceeds smem"
FORMATS = {
    "speedup": "{:.2f}x",
    **dict.fromkeys(("time_us", "baseline_us", "tensor_active"), "{:.1f}"),
    **dict.fromkeys(("tflops", "sm_mhz", "watts"), "{:.0f}"),
}

NEAR = 0.9
"""Share of the best speedup that a config of each match reaches at least in :func:`effects`."""

SCALED = "torch's scaled_mm"
"""Name of the baseline of FP8."""


@dataclass(frozen=True)
class Group:
    """Rows whose figures may be compared: one problem, kind of data, regime, context and baseline."""

    m: int
    n: int
    k: int
    dtype: str
    layouts: str
    batch_invariant: bool
    promote: int
    scales: str
    data: str
    regime: str
    context: str
    against: str

    @property
    def problem(self) -> GemmProblem:
        return problem_of(vars(self))

    @property
    def over(self) -> str:
        """The name of torch's product, which is paired with."""
        return SCALED if self.problem.is_fp8 else "cuBLAS"

    @property
    def title(self) -> str:
        """Heading: problem, type, regime, context; the rest only where it is unusual."""
        usual = {"layouts": "kk", "data": "normal", "against": "cublas"}
        unusual = [getattr(self, name) for name, value in usual.items() if getattr(self, name) != value]
        unusual += filter(None, [recipe_of(self.problem), "batch-invariant" * self.batch_invariant])
        return ", ".join([f"{self.m} x {self.n} x {self.k} {self.dtype}", self.regime, self.context, *unusual])

    @property
    def key(self) -> str:
        """Key of the group's figures in provenance; also names its picture."""
        return place_of(Point(self.problem, self.against, self.regime, self.context, self.against, self.data))

    def noted(self, provenance: Mapping[str, Any], name: str) -> Any:
        """Return the group's value in provenance's mapping ``name``; None where there is none."""
        return (provenance.get(name) or {}).get(self.key)

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a frame that belong to the group."""
        return frame[(frame[list(GROUP)] == pd.Series(asdict(self))).all(axis=1)]


GROUP = tuple(field.name for field in fields(Group))


def rows_of(study: Study, *stages: str) -> pd.DataFrame:
    """Return the rows of some stages as a frame, with the columns of :func:`hopper_gemm.tune.study.reader.frame_of` and
    ``problem``, its label; the processes that measured a point are pooled."""
    rows = pooled(study.stage(*stages))
    return frame_of(rows).assign(problem=[problem_label(row.point.problem) for row in rows])


def groups(rows: pd.DataFrame) -> list[tuple[Group, pd.DataFrame]]:
    """Return the rows of each group: problems in the order of the frame, the groups of a problem side by side."""
    parts = [(Group(*map(plain, key)), part) for key, part in rows.groupby(list(GROUP), sort=False)]
    problems = list(dict.fromkeys(group.problem for group, _ in parts))
    return sorted(parts, key=lambda pair: problems.index(pair[0].problem))


def plain(value: Any) -> Any:
    """Return a value of a frame as a type of Python's own; None where it is missing."""
    return None if value is pd.NA or value != value else value.item() if hasattr(value, "item") else value


def config_of(row: Mapping[str, Any] | pd.Series) -> Kernel:
    """Return the kernel of a frame's row."""
    return kernel_of({name: plain(row[name]) for name in FIELDS})


def problem_of(row: Mapping[str, Any] | pd.Series) -> GemmProblem:
    """Return the problem of a frame's row."""
    return problem_from(**{name: plain(row[name]) for name in PROBLEM})


def pivot(
    frame: pd.DataFrame, rows: str = "tile_m", cols: str = "k_depth", value: str = "speedup", facets: Sequence[str] = ()
) -> pd.DataFrame:
    """Return a table of text of the rows of one group, with a cell for each (rows, cols): that of the fastest config
    there.

    A speedup comes with its number of stages. Values of ``facets``, further columns, stand before those of ``rows``: a
    row of the table for each combination. ResultsError if a name is no column, rows and cols are the same, or the value
    is no number."""
    for name in (rows, cols, value, *facets):
        if name not in NAMES and name not in PAIRS:
            raise ResultsError(f"{name!r} is not a column; choose among {', '.join([*NAMES, *PAIRS])}")
    if rows == cols:
        raise ResultsError(f"rows and cols must be two columns but both are {rows!r}; name another of them")
    if value not in BY_NAME or BY_NAME[value].kind not in ("number", "integer"):
        raise ResultsError(f"{value!r} holds no numbers; choose a figure such as speedup, tflops or time_us")
    best = fastest(frame, [*facets, rows, cols])
    cells = best.assign(cell=[cell_text(row, value) for _, row in best.iterrows()])
    down, across = in_order(cells[rows]), in_order(cells[cols])
    if facets:
        named = [tuple(map(plain, key)) for key in cells[[*facets, rows]].itertuples(index=False, name=None)]
        keys = sorted(dict.fromkeys(named), key=lambda key: [(isinstance(value, str), value) for value in key])
        labels = {key: ", ".join(map(as_text, key)) for key in keys}
        cells = cells.assign(**{rows: [labels[key] for key in named]})
        down = list(labels.values())
    return cells.pivot(index=rows, columns=cols, values="cell").fillna("").reindex(index=down, columns=across)


def fastest(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the row with the highest speedup for each combination of values; where none ran, the first that failed."""
    return rows.sort_values("speedup", ascending=False, na_position="last", kind="stable").drop_duplicates(by)


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values in the order of a table: numbers and flags by size, then words."""
    return sorted(dict.fromkeys(values), key=lambda value: (isinstance(value, str), value))


def cell_text(row: Mapping[str, Any] | pd.Series, value: str = "speedup") -> str:
    """Return the text of a cell: the figure, or why there is none."""
    if row["status"] == "illegal":
        return EXCEEDS if EXCEEDS in row["reason"] else "illegal"
    if row["status"] != "ok":
        return words(row["status"])
    if pd.isna(row[value]):
        return "-"
    return FORMATS.get(value, "{:.4g}").format(row[value]) + (f" ({row['stages']})" if value == "speedup" else "")


def best_row(rows: pd.DataFrame) -> pd.Series | None:
    """Return the row with the highest speedup; None where nothing ran."""
    ok = rows[rows["status"] == "ok"]
    return None if ok.empty else ok.loc[ok["speedup"].idxmax()]


def effects(rows: pd.DataFrame, varied: list[str], near: float = NEAR) -> pd.DataFrame:
    """Return the main effect of every varied parameter near the best: speedup relative to its first value.

    For each value, configs of a group are matched with those that differ from them in this parameter alone, and in
    what ``"auto"`` and ``"max"`` make of it where these are not varied, if the faster of a match reaches the share
    ``near`` of the best speedup of all rows; the effect is the geometric mean of the ratios of their speedups. Columns
    are parameter, value, effect, least, greatest, matches; there is one row for each value but the first.
    """
    ok = rows[rows["status"] == "ok"]
    least = near * ok["speedup"].max() if len(ok) else 0.0
    table, named = [], {field for name in varied for field in PAIRS.get(name, ())}
    # several grids may differ in parameters that none of them varies
    several = [field for field in FIELDS if field in ok and ok[field].nunique() > 1]
    apart = [field for field in several if DEFAULTS[field] not in ("auto", "max")]
    for name in varied:
        first_value, *values = dict.fromkeys(ok[name]) if len(ok) else [None]
        others = [other for other in dict.fromkeys([*varied, *apart]) if other != name and other not in named]
        join: dict[str, Any] = {"on": others} if others else {"how": "cross"}
        for value in values:
            pairs = ok[ok[name] == first_value].merge(ok[ok[name] == value], suffixes=("_first", "_second"), **join)
            pairs = pairs[pairs[["speedup_first", "speedup_second"]].max(axis="columns") >= least]
            ratios = pairs["speedup_second"] / pairs["speedup_first"]
            if not ratios.empty:
                mean = float(ratios.prod() ** (1 / len(ratios)))
                label = f"{value} against {first_value}"
                table.append((name, label, mean, float(ratios.min()), float(ratios.max()), len(ratios)))
    return pd.DataFrame(table, columns=["parameter", "value", "effect", "least", "greatest", "matches"])


def markdown(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a GitHub table; its cells are shown as they are."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def markdown_table(table: pd.DataFrame, corner: str) -> str:
    """Return a frame of text as a GitHub table; its index is the first column, headed ``corner``."""
    return markdown([corner, *table.columns], table.itertuples(name=None))


def coded(table: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of text for Markdown: no cell breaks its line, and configs stand as code."""
    table = table.map(one_line)
    if "config" not in table:
        return table
    return table.assign(config=[f"`{label}`" if label else "" for label in table["config"]])


def words(status: str) -> str:
    """Return a status as a person reads it."""
    return status.replace("_", " ")


def one_line(text: str) -> str:
    """Return text that may stand in a cell of Markdown, without a tag."""
    return str(escaped(" ".join(text.split()))).replace("|", "\\|")


def escaped(value: Any) -> Any:
    """Return text, or an object or list of texts, without tags of Markdown or HTML; ``n < 64`` is unchanged."""
    if isinstance(value, dict):
        return {escaped(name): escaped(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [escaped(entry) for entry in value]
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", value) if isinstance(value, str) else value


def interval(row: Mapping[str, Any] | pd.Series) -> str:
    """Return the speedup of a row with its 95 % interval."""
    return f"{row['speedup']:.3f}x [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}]"
