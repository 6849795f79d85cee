"""The HTML document of a study: provenance and caveats on top, then charts, then the table of all rows.

The file has no links: Vega, Vega-Lite and the data are embedded. Texts of a study are escaped in the markup; those in
the data are written by the script as text nodes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from hopper_gemm.tune.study.reader import Study, missing
from hopper_gemm.tune.tables.comparison import cells, means
from hopper_gemm.tune.tables.html.charts import charts
from hopper_gemm.tune.tables.html.records import FIGURES, Record, records
from hopper_gemm.tune.tables.mapped import FASTEST, by_stratum, heading, mapped
from hopper_gemm.tune.tables.pages.report import best_lines, scope, source_line
from hopper_gemm.tune.tables.pivot import groups, rows_of

HERE = Path(__file__).parent
HEAD = ("problem", "speedup", "config", "regime", "context", "against", "stage")
"""First columns of the table."""

ALWAYS = ("problem", "config", *FIGURES)
"""Columns that are shown even if all rows have the same value."""

VEGA_LITE = "6.4"
"""Version of Vega-Lite whose library is embedded."""


def document(study: Study) -> str:
    """Return a study's page as one file."""
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
    # JSON that cannot close the script element around it
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    sections = (
        f'<section><h2>{escape(chart.title)}</h2><p class="note">{escape(chart.note)}</p>'
        f'<div class="chart" id="chart{i}"></div></section>\n'
        for i, chart in enumerate(shown)
    )
    return Template((HERE / "page.html").read_text()).substitute(
        name=name,
        css=(HERE / "page.css").read_text(),
        top="\n".join(_top(study, name)),
        charts="".join(sections),
        data=text,
        library=library.replace("</script", r"<\/script"),
        js=(HERE / "page.js").read_text(),
    )


def caveats(study: Study) -> list[str]:
    """Return what a reader must know before comparing figures of a study."""
    provenance, scopes = study.provenance, scope(study)
    sentences = []
    if provenance.get("source") == "replayed":
        sentences.append("Replayed: the rows are recorded ones; nothing was measured for this page.")
    lacks = missing(study)
    if lacks and study.stage("map"):
        count = len({row.point.problem for row in study.stage("map")})
        sentences.append(
            f"A part of a list: {count} of its problems, in an order that a seed shuffled: a sample of it."
        )
    elif lacks:
        sentences.append(f"Unfinished: {lacks} missing.")
    sentences += [f"Without {name}: {reason}." for name, reason in (provenance.get("missing") or {}).items()]
    if scopes["board"] == "unknown":
        sentences.append("The rows do not name their board.")
    if study.stage("sweep"):
        best = "The best of a sweep is partly its luckiest sample; finals, where there are any, were measured afresh."
        sentences.append(best)
    pairs = "An interval is the 95 % interval of a row's pairs; another process or another board differs by more."
    sentences += [pairs, "Compare only rows of one problem, regime, context, baseline and kind of data."]
    if "chained" in scopes["context"]:
        sentences.append("Chained: launches back to back, as no model runs them.")
    return sentences


def facts(study: Study) -> dict[str, str]:
    """Return the origin of a study's figures: names with values."""
    provenance, scopes = study.provenance, scope(study)
    gpu = provenance["gpu"]
    protocols = []
    for protocol in provenance.get("protocols", []):
        seconds = " ".join(f"{name} {value}" for name, value in protocol.items() if name != "regime")
        protocols.append(f"{protocol['regime']}: {seconds}")
    limit = f", power limit {gpu['power_limit_watts']:.0f} W" if gpu.get("power_limit_watts") else ""
    values = {
        "GPU": f"{gpu['name']}{limit}",
        "driver, CUDA": f"{gpu.get('driver') or 'unknown'}, {gpu.get('cuda') or 'unknown'}",
        "boards": scopes["board"],
        "regime, context": f"{scopes['regime']}; {scopes['context']}",
        "measured": str(provenance.get("created", "")),
        "commit, kernel": f"{provenance.get('commit', 'unknown')}, {provenance.get('kernel', 'unknown')}",
        "versions": ", ".join(f"{name} {value}" for name, value in (provenance.get("versions") or {}).items()),
        "protocol, seconds": "; ".join(protocols),
        "noise floor": ", ".join(f"{key}: {value:.2%}" for key, value in (provenance.get("noise") or {}).items()),
        "converted": str(provenance.get("converted", "")),
        "rows": ", ".join(f"{count} {status}" for status, count in Counter(row.status for row in study.rows).items()),
    }
    return {name: value for name, value in values.items() if value}


def best_of(study: Study) -> list[str]:
    """Return the best of each problem, regime and context; of a comparison its means; of a map its strata."""
    if study.stage("compare"):
        return [str(mean) for mean in means(cells(study.stage("compare")))]
    lines = []
    if study.stage("map"):
        problems = mapped(study.stage("map"))
        by = heading(problems)
        strata = by_stratum(problems).drop(columns=[FASTEST]).to_dict("index")
        for name, stratum in strata.items():
            figures = ", ".join(f"{column} {cell}" for column, cell in stratum.items() if cell)
            lines.append(f"{'' if name == 'all' else f'{by} '}{name}: {figures}")
        return lines
    finals = rows_of(study, "final")
    for group, part in groups(rows_of(study, "sweep")):
        best = best_lines(study, group, part, finals)
        lines += [f"{group.title}: {' '.join(best)}".replace("`", "").replace("**", "")] if best else []
    return lines


def _top(study: Study, name: str) -> list[str]:
    lines = [f"<h1>{name}</h1>", f'<p class="source">{escape(source_line(study.provenance))}</p>']
    if question := str(study.provenance.get("question") or "").strip():
        lines.append(f"<p>{escape(question)}</p>")
    lines.append(f'<ul class="caveats">{"".join(f"<li>{escape(text)}</li>" for text in caveats(study))}</ul>')
    items = "".join(f"<dt>{escape(term)}</dt><dd>{escape(value)}</dd>" for term, value in facts(study).items())
    lines.append(f"<details><summary>Provenance</summary><dl>{items}</dl></details>")
    best = [f"<li>{escape(text)}</li>" for text in best_of(study)]
    opened = " open" if len(best) <= 4 else ""
    return [*lines, f"<details{opened}><summary>Best</summary><ul>{''.join(best)}</ul></details>"]


def _columns(rows: Sequence[Record]) -> list[str]:
    """Return the columns of the table: :data:`HEAD`, then the others. A column with one value in all rows is left out,
    but for those of :data:`ALWAYS`."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "place"]
    values = {name: {row.get(name) for row in rows} - {None, ""} for name in names}
    used = [name for name in names if len(values[name]) > 1 or (values[name] and name in ALWAYS)]
    return [*(name for name in HEAD if name in used), *(name for name in used if name not in HEAD)]
