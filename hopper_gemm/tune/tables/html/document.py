"""The HTML document of a study: provenance and caveats on top, then charts, then the table of all rows.

One file without a link to anything: Vega, Vega-Lite and the data lie in it. Every text of a study is escaped, in the
markup here and in the data by the script, which writes text nodes only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.reader import Study, missing
from hopper_gemm.tune.tables.comparison import cells, means
from hopper_gemm.tune.tables.html.charts import Chart, charts
from hopper_gemm.tune.tables.html.records import FIGURES, Record, records
from hopper_gemm.tune.tables.mapped import by_stratum, mapped
from hopper_gemm.tune.tables.pages.report import best_lines, scope, source_line
from hopper_gemm.tune.tables.pivot import groups, rows_of

HERE = Path(__file__).parent
HEAD = ("problem", "speedup", "config", "regime", "context", "against", "stage")
"""Columns with which the table begins."""

ALWAYS = ("problem", "config", *FIGURES)
"""Columns that are shown although all rows have one value there."""

UNFOLDED = 4
"""Lines on the best of a study, at most, that are shown at first."""

VEGA_LITE = "6.4"
"""Version of Vega-Lite whose library is embedded."""


def write(study: Study, path: Path) -> None:
    """Write a study's page as one file.

    Args:
        study: that was read.
        path: of the file.

    Raises:
        ModuleNotFoundError: the extra ``tune`` is not installed.
    """
    write_whole(path, document(study))


def document(study: Study) -> str:
    """A study's page."""
    import vl_convert

    rows = records(study)
    shown, name = charts(study, rows), escape(str(study.provenance["study"]))
    data = {
        "places": list(dict.fromkeys(row["place"] for row in rows)),
        "fields": (fields := list(dict.fromkeys(name for row in rows for name in row))),
        "rows": [[row.get(name) for name in fields] for row in rows],
        "columns": _columns(rows),
        "charts": [{"spec": chart.spec, "places": chart.places} for chart in shown],
    }
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{name}</title>",
        f"<style>{(HERE / 'page.css').read_text()}</style>",
        *_top(study, name),
        '<div class="bar"><label>Show <select id="place"></select></label></div>',
        '<p class="note" id="elsewhere" hidden></p>',
        *(_section(at, chart) for at, chart in enumerate(shown)),
        *_table(),
        f'<script type="application/json" id="data">{_as_json(data)}</script>',
        f"<script>{library.replace('</script', '<' + chr(92) + '/script')}</script>",
        f'<script type="module">{(HERE / "page.js").read_text()}</script>',
        "</html>",
    ]
    return "\n".join([*parts, ""])


def caveats(study: Study) -> list[str]:
    """What a reader must know before comparing figures of a study."""
    about, told = study.provenance, scope(study)
    found = []
    if about.get("source") == "replayed":
        found.append("Replayed: the rows are recorded ones; nothing was measured for this page.")
    lacks = missing(study)
    if lacks and study.stage("map"):
        count = len({row.point.problem for row in study.stage("map")})
        found.append(f"A part of a list: {count} of its problems, in an order that a seed shuffled: a sample of it.")
    elif lacks:
        found.append(f"Unfinished: {lacks} missing.")
    found += [f"Without {name}: {reason}." for name, reason in (about.get("missing") or {}).items()]
    if told["board"] == "unknown":
        found.append("The rows do not name their board.")
    if study.stage("sweep"):
        best = "The best of a sweep is partly its luckiest sample; finals, where there are any, were measured afresh."
        found.append(best)
    pairs = "An interval is the 95 % interval of a row's pairs; another process or another board differs by more."
    found += [pairs, "Compare only rows of one problem, regime, context, baseline and kind of data."]
    if "chained" in told["context"]:
        found.append("Chained: launches back to back, as no model runs them.")
    return found


def facts(study: Study) -> dict[str, str]:
    """The origin of a study's figures: names with values."""
    about, told = study.provenance, scope(study)
    gpu = about["gpu"]
    noise = ", ".join(f"{place}: {value:.2%}" for place, value in (about.get("noise") or {}).items())
    protocols = (
        " ".join(f"{name} {value}" for name, value in one.items() if name != "regime")
        for one in about.get("protocols", [])
    )
    regimes = (one["regime"] for one in about.get("protocols", []))
    limit = f", power limit {gpu['power_limit_watts']:.0f} W" if gpu.get("power_limit_watts") else ""
    found = {
        "GPU": f"{gpu['name']}{limit}",
        "driver, CUDA": f"{gpu.get('driver') or 'unknown'}, {gpu.get('cuda') or 'unknown'}",
        "boards": told["board"],
        "regime, context": f"{told['regime']}; {told['context']}",
        "measured": str(about.get("created", "")),
        "commit, kernel": f"{about.get('commit', 'unknown')}, {about.get('kernel', 'unknown')}",
        "versions": ", ".join(f"{name} {value}" for name, value in (about.get("versions") or {}).items()),
        "protocol, seconds": "; ".join(f"{one}: {told}" for one, told in zip(regimes, protocols, strict=True)),
        "noise floor": noise,
        "converted": str(about.get("converted", "")),
        "rows": ", ".join(f"{count} {status}" for status, count in _statuses(study).items()),
    }
    return {name: value for name, value in found.items() if value}


def _statuses(study: Study) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for row in study.rows:
        found[row.status] = found.get(row.status, 0) + 1
    return found


def best_of(study: Study) -> list[str]:
    """The best of each problem, regime and context; of a comparison the means; of a map what picks are worth."""
    if study.stage("compare"):
        return [str(mean) for mean in means(cells(study.stage("compare")))]
    if study.stage("map"):
        found = by_stratum(mapped(study.stage("map"))).drop(columns=["wins"]).to_dict("index")
        told = {
            name: ", ".join(f"{what} {cell}" for what, cell in line.items() if cell) for name, line in found.items()
        }
        return [f"{'' if name == 'all' else 'torch.mm takes '}{name}: {line}" for name, line in told.items()]
    finals = rows_of(study, "final")
    lines = []
    for group, part in groups(rows_of(study, "sweep")):
        best = best_lines(study, group, part, finals)
        lines += [f"{group.title}: {' '.join(best)}".replace("`", "").replace("**", "")] if best else []
    return lines


def _top(study: Study, name: str) -> list[str]:
    about = study.provenance
    lines = [f"<h1>{name}</h1>", f'<p class="source">{escape(source_line(about))}</p>']
    if question := str(about.get("question") or "").strip():
        lines.append(f"<p>{escape(question)}</p>")
    lines.append(f'<ul class="caveats">{"".join(f"<li>{escape(one)}</li>" for one in caveats(study))}</ul>')
    told = "".join(f"<dt>{escape(one)}</dt><dd>{escape(value)}</dd>" for one, value in facts(study).items())
    lines.append(f"<details><summary>Provenance</summary><dl>{told}</dl></details>")
    best = [f"<li>{escape(one)}</li>" for one in best_of(study)]
    opened = " open" if len(best) <= UNFOLDED else ""
    return [*lines, f"<details{opened}><summary>Best</summary><ul>{''.join(best)}</ul></details>"]


def _section(at: int, chart: Chart) -> str:
    title = f"<h2>{escape(chart.title)}</h2>"
    return f'<section>{title}<p class="note">{escape(chart.note)}</p><div class="chart" id="chart{at}"></div></section>'


def _table() -> list[str]:
    return [
        "<h2>Rows</h2>",
        '<p class="note">A click on a heading sorts, a second one the other way round. A box filters: a part of a '
        "word, or a comparison such as &gt; 1.02.</p>",
        '<p><label><input type="checkbox" id="only"> only what is chosen above</label></p><p id="count"></p>',
        '<div class="scroll"><table id="rows"></table></div>',
        '<p><button id="more" hidden>Show more rows</button></p>',
    ]


def _columns(rows: Sequence[Record]) -> list[str]:
    """Columns of the table: those in which anything stands, the speedup and where it holds before the parameters. What
    is the same in all rows is left out, unless it is a figure."""
    known = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "place"]
    values = {name: {row.get(name) for row in rows} - {None, ""} for name in known}
    used = [name for name in known if len(values[name]) > 1 or (values[name] and name in ALWAYS)]
    return [*(name for name in HEAD if name in used), *(name for name in used if name not in HEAD)]


def _as_json(data: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
