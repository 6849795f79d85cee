"""View of a study: tables for a person, on a terminal or a page, and the rows behind their cells for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from hopper_gemm.tune.study.files import write_json, write_whole
from hopper_gemm.tune.study.provenance import PROVENANCE
from hopper_gemm.tune.study.reader import Study, frame_of
from hopper_gemm.tune.study.row import ResultsError, as_text
from hopper_gemm.tune.study.schema import BY_NAME, COUNTED, NAMES
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import cells, comparison, means
from hopper_gemm.tune.tables.ladder import ladder, rung_rows, rung_table
from hopper_gemm.tune.tables.mapped import FP8_LEGEND, MAP_LEGEND, by_stratum, mapped, of_fp8
from hopper_gemm.tune.tables.mapped import heading as map_heading
from hopper_gemm.tune.tables.pages.report import best_lines, source_line, spanning
from hopper_gemm.tune.tables.pivot import (
    GROUP,
    coded,
    config_of,
    escaped,
    fastest,
    groups,
    markdown_table,
    pivot,
    plain,
    rows_of,
)

FORMS = {"csv": ".csv", "json": ".json", "markdown": ".md", "html": ".html"}
"""Forms of a view as text, with the suffix of a file."""

DTYPES = {"string": "string", "integer": "Int64", "number": "float64", "boolean": "boolean"}
"""Pandas' type of a column in a typed file for each :attr:`hopper_gemm.tune.study.schema.Column.type`."""

LEFT_OUT = {"samples", *(column.name for column in COUNTED)}
"""Columns of the schema that :func:`tidy` leaves out: single pairs, and figures that are not timed."""

SHORT = 24
"""Characters of the longest cell of a column that a terminal aligns to the right."""

STYLE = "body{font-family:sans-serif}table{border-collapse:collapse}td,th{padding:.2em .6em;border:1px solid #999}"


@dataclass(frozen=True)
class TextTable:
    """One table of text."""

    title: str  # above it
    corner: str  # heading of its index
    cells: pd.DataFrame  # ready to be shown
    notes: tuple[str, ...] = ()  # sentences below it, in Markdown


@dataclass(frozen=True)
class View:
    """Tables of a study for a person, and their rows for a program."""

    study: Study
    tables: list[TextTable]  # for a person
    # for a program, numeric, one for each cell: the label of the problem and of the config, then the columns of the
    # schema without LEFT_OUT; what is missing is NaN or empty
    rows: pd.DataFrame
    more: Mapping[str, Any] = field(default_factory=dict)  # what the JSON has beside provenance and rows

    @property
    def source(self) -> str:
        return source_line(self.study.provenance)

    def text(self, form: str) -> str:
        """Return the view as text of one of :data:`FORMS`: CSV and JSON hold the rows, JSON with the provenance;
        Markdown and HTML the tables."""
        if form == "csv":
            return str(self.rows.to_csv(index=False))
        if form == "json":
            return json.dumps(self.as_dict()) + "\n"
        return self._markdown() if form == "markdown" else self._html()

    def as_dict(self) -> dict[str, Any]:
        """Return provenance and rows ready for JSON, null where a value is missing."""
        rows = [{name: plain(value) for name, value in row.items()} for row in self.rows.to_dict("records")]
        return {"provenance": self.study.provenance, "rows": rows, **self.more}

    def write(self, path: Path, form: str) -> list[Path]:
        """Write the view as a file of one of :data:`FORMS`, or ``parquet``; return the files. CSV and Parquet get their
        provenance beside them, as ``NAME-provenance.json``."""
        if form == "parquet":
            write_parquet(self.rows, path)
        else:
            write_whole(path, self.text(form))
        if form not in ("csv", "parquet"):
            return [path]
        beside = path.with_name(f"{path.stem}-{PROVENANCE}")
        write_json(beside, self.study.provenance)
        return [path, beside]

    def print(self, console: Console) -> None:
        """Print the tables on a terminal: cells are wrapped, and a table too wide even then continues below itself."""
        console.print(self.source)
        for table in self.tables:
            console.print("", table.title, sep="\n", style="bold")
            shown = table.cells.drop(columns=["config", "tuned on"], errors="ignore")  # too wide
            shown = shown.map(lambda text: text.replace(", ", ",") if "[" in text else text)  # keeps intervals whole
            notes = table.notes
            names = [str(name) for name in shown.index]
            if "tuned on" in table.cells and (table.cells["tuned on"] != "").any():
                stars = [" *" if problem else "" for problem in table.cells["tuned on"]]
                names = [name + star for name, star in zip(names, stars, strict=True)]
                where = "the column tuned_on of --format csv says for which"
                notes = (*notes, f"* not tuned for this very problem, regime and context: {where}")
            for part in _parts(shown.set_axis(names), table.corner, console.width):
                console.print(part)
            for note in notes:
                console.print(_plain(note))

    def _markdown(self) -> str:
        lines = [escaped(self.source), ""]
        for table in self.tables:
            lines += [table.title, "", markdown_table(coded(table.cells), table.corner), ""]
            lines += [*(f"- {note}" for note in table.notes), *[""] * bool(table.notes)]
        return "\n".join(lines)

    def _html(self) -> str:
        title = escape(self.study.provenance["study"])
        head = f'<meta charset="utf-8">\n<title>{title}</title>\n<style>{STYLE}</style>'
        body = [f"<h1>{title}</h1>", f"<p>{escape(self.source)}</p>"]
        for table in self.tables:
            named = table.cells.rename_axis(index=None, columns=table.corner)
            body += [f"<h2>{escape(table.title)}</h2>", named.to_html(border=0)]
            body += [f"<p>{escape(_plain(note))}</p>" for note in table.notes]
        return "\n".join(["<!doctype html>", '<html lang="en">', head, *body, "</html>", ""])


def view(
    study: Study,
    only: Mapping[str, str | None] | None = None,
    rows: str | None = None,
    cols: str | None = None,
    value: str = "speedup",
) -> View:
    """Return the view of a study: baselines of a comparison, rungs of a ladder, pivots of any other sweep.

    ``only`` are ``problem`` (as MxNxK), ``regime`` and ``context`` of the rows to show, None for any; ``rows`` and
    ``cols`` span the pivots, by default what the study names, and its facets; ``value`` is the figure in their cells.
    ResultsError if no row is left, or a name is no column."""
    stage = next((name for name in ("sweep", "compare") if study.stage(name)), "map")
    every = study.stage(stage)
    wanted = {name: word for name, word in (only or {}).items() if word is not None}
    kept = [row for row in every if all(str(getattr(row.point, name)) == word for name, word in wanted.items())]
    if not kept:
        keys = [group.key for group, _ in groups(rows_of(study, stage))] if every else ["no rows of a sweep"]
        raise ResultsError(
            f"{study.path} has no such problem, regime and context; it has {', '.join(dict.fromkeys(keys))}"
        )
    pivoted = (rows, cols, value) != (None, None, "speedup")
    frame = rows_of(replace(study, rows=tuple(kept)), stage)
    if stage != "sweep":
        if pivoted:
            own = f"is a {'comparison' if stage == 'compare' else 'map'}, with a table of its own"
            raise ResultsError(f"{study.path} {own}; leave out --rows, --cols and --value")
        if stage == "map":
            problems = mapped(kept)
            title = "by recipe" if of_fp8(problems) else "by the time of torch.mm"
            legends = (MAP_LEGEND, FP8_LEGEND)[: 1 + of_fp8(problems)]
            table = TextTable(title, map_heading(problems), by_stratum(problems), legends)
            return View(study, [table], tidy(frame), {"map": table.cells.to_dict("index")})
        records = cells(kept)
        conditions = dict.fromkeys((record["regime"], record["context"]) for record in records)
        tables = []
        for regime, context in conditions:
            part = [record for record in records if (record["regime"], record["context"]) == (regime, context)]
            title = f"{regime}, {context}: speedup over each baseline [95 % of its pairs]"
            shown = comparison(part).drop(columns="context")
            tables.append(TextTable(title, "problem", shown, tuple(map(str, means(part)))))
        last = frame.drop_duplicates(list(GROUP), keep="last")
        return View(study, tables, tidy(last), {"means": [mean.as_dict() for mean in means(records)]})
    if study.provenance.get("rungs") and not pivoted:
        steps = ladder(frame, study.provenance["rungs"])
        tables = [TextTable(group.key, "rung", rung_table(steps, group)) for group, _ in groups(frame)]
        return View(study, tables, rung_rows(steps, tidy(frame)))
    down, across = (named or usual for named, usual in zip((rows, cols), spanning(study.provenance), strict=True))
    facets = [] if rows or cols else list(filter(None, spanning(study.provenance, "facet_rows", "facet_cols")))
    spans = list(dict.fromkeys([*facets, down, across]))
    finals, heading = rows_of(study, "final"), f"{', '.join(spans[:-1])} \\ {across}"
    tables = []
    for group, part in groups(frame):
        notes = tuple(best_lines(study, group, part, finals))
        shown = f"speedup over {group.over} (stages)" if value == "speedup" else value
        tables.append(TextTable(f"{group.key}: {shown}", heading, pivot(part, down, across, value, facets), notes))
    return View(study, tables, pd.concat([tidy(fastest(part, spans), spans) for _, part in groups(frame)]))


def rows_as_measured(study: Study) -> View:
    """Return a view of every row of all stages and processes, with every column of the schema, ``samples`` too."""
    labels = {
        "problem": [problem_label(row.point.problem) for row in study.rows],
        "config": ["" if row.point.is_baseline else str(row.point.config) for row in study.rows],
    }
    return View(study, [], frame_of(study.rows).assign(**labels)[[*labels, *NAMES]])


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write rows as Parquet: columns of the schema; others, such as labels, as text. ResultsError if pyarrow is missing
    or too old for pandas, or the file cannot be written."""
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


def tidy(frame: pd.DataFrame, more: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of a :class:`View` from those of :func:`rows_of`, with further columns such as ``cluster``."""
    names = [name for name in NAMES if name not in LEFT_OUT]
    labels = [str(config_of(row)) for row in frame.to_dict("records")]
    return frame.assign(config=labels)[list(dict.fromkeys(["problem", "config", *more, *names]))]


def _parts(cells: pd.DataFrame, corner: str, width: int) -> Iterator[RichTable]:
    """Yield a table for a terminal, in several parts, each with the index, where its longest words do not fit."""
    label = _Column(corner, [*cells.index])
    columns = [_Column(str(name), [*cells[name]]) for name in cells]
    while columns:
        reach = accumulate((1 + column.least for column in columns), initial=label.least)
        fitting = max(1, sum(end <= width for end in reach) - 1)
        shown, columns = [label, *columns[:fitting]], columns[fitting:]
        table = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=0)
        for column, wide in zip(shown, _widths(shown, width - fitting), strict=True):
            left = column is label or column.natural > SHORT
            table.add_column(column.heading, justify="left" if left else "right", width=wide)
        for line in zip(*(column.texts for column in shown), strict=True):
            table.add_row(*line)
        yield table


class _Column(NamedTuple):
    heading: str
    texts: list[str]

    @property
    def natural(self) -> int:
        """Width without a wrapped cell."""
        return max(map(len, [self.heading, *self.texts]))

    @property
    def least(self) -> int:
        """Width without a broken word."""
        return max(map(len, " ".join([self.heading, *self.texts]).split()))


def _widths(columns: Sequence[_Column], room: int) -> list[int]:
    """Return the widths of columns: the natural ones if they fit, else prose wraps, else every cell does."""
    taken = [column.natural if column.natural <= SHORT else column.least for column in columns]
    if sum(taken) > room:
        return [column.least for column in columns]
    prose = [column for column in columns if column.natural > SHORT]
    more = (room - sum(taken)) // max(1, len(prose))
    return [min(column.natural, wide + more) for column, wide in zip(columns, taken, strict=True)]


def _plain(note: str) -> str:
    """Return a note without Markdown's marks of code and bold."""
    return note.replace("`", "").replace("**", "")
