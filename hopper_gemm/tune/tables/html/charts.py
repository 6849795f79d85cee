"""Charts of a page as Vega-Lite specifications.

A chart reads the page's rows unless it has data of its own. The page sets its parameter ``place``: the problem, regime
and context to show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.tables.html.records import Record, compared, problems, roofline, table_cells, varied_of
from hopper_gemm.tune.tables.ladder import ladder
from hopper_gemm.tune.tables.pages.report import is_list
from hopper_gemm.tune.tables.pivot import rows_of
from hopper_gemm.tune.tables.style import EVEN, OURS, SERIES, THEIRS, label

Spec = dict[str, Any]

CHOSEN = {"filter": "datum.place === place"}
RAN = {"filter": "isValid(datum.trial)"}
WIDE = 1000
"""Letters of an axis: a title with a line break is no valid expression."""


SCATTERS = (
    (
        ("pj_per_flop", "energy, pJ/FLOP"),
        ("speedup", "speedup over the baseline"),
        ("Energy against speed", "Left is cheaper, up is faster; only regimes whose power was measured."),
    ),
    (
        ("sm_mhz", "SM clock, MHz"),
        ("watts", "power, W"),
        ("Clock and power", "Mean clock and power while a kernel ran; a burst is too short for the power counter."),
    ),
    (
        ("tensor_active", "tensor cores active, % of their peak at the clock"),
        ("sm_mhz", "SM clock, MHz"),
        ("Clock and tensor cores", "Busier tensor cores draw more power, and the clock gives way."),
    ),
)
"""Scatters of all rows: column and title of the horizontal axis, of the vertical axis, and title and note."""


@dataclass(frozen=True)
class Chart:
    """One chart."""

    title: str  # above it
    note: str  # a sentence below the title
    spec: Spec  # of Vega-Lite; without data it shows the page's rows
    places: tuple[str, ...] | None = None  # places with data for it; None for all


def charts(study: Study, rows: Sequence[Record]) -> list[Chart]:
    """Return the charts that a study has data for."""
    drawn: list[Chart | None] = []
    if study.stage("compare"):
        drawn.append(_forest(compared(study)))
    if study.stage("sweep"):
        if study.provenance.get("rungs"):
            drawn.append(_rungs(study))
        else:
            drawn += [_map(study), _history(rows), _slices(rows), _importance(study)]
    if study.stage("map"):
        drawn.append(_problems(study))
    drawn += [_roofline(study), *(_scatter(rows, *axes) for axes in SCATTERS)]
    return [chart for chart in drawn if chart is not None]


def _axis(field: str, title: str, **more: Any) -> Spec:
    """Return a quantitative axis that need not begin at zero."""
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}, **more}


def _tips(*names: str) -> list[Spec]:
    kinds = {"speedup", "speedup_low", "speedup_high", "best", "pj_per_flop", "tflops", "sm_mhz", "watts", "time_us"}
    kinds |= {"tensor_active", "gain", "intensity", "low", "high", "over_faster", "torch_us"}
    return [{"field": name, **({"type": "quantitative", "format": ".4~g"} if name in kinds else {})} for name in names]


def _even(axis: str) -> Spec:
    return {"mark": {"type": "rule", "color": EVEN, "strokeDash": [4, 3]}, "encoding": {axis: {"datum": 1}}}


def _of(values: Sequence[Record], **spec: Any) -> Spec:
    """Return the specification of a chart with data of its own, of which it shows those of the chosen place."""
    return {"data": {"values": list(values)}, "transform": [CHOSEN], **spec}


def _points(size: int, encoding: Spec, opacity: float = 1.0) -> Spec:
    mark = {"type": "point", "filled": True, "size": size, "opacity": opacity}
    return {"mark": mark, "encoding": encoding}


def _series(field: str, values: Sequence[Record], colours: Sequence[str] = SERIES, **legend: Any) -> Spec:
    """Return the colours of a field's words, in the order in which they come."""
    words = list(dict.fromkeys(value[field] for value in values))
    scale = {"domain": words, "range": list(colours)}
    return {"field": field, "type": "nominal", "title": None, "scale": scale, "legend": {"orient": "top", **legend}}


def _bars(category: str, category_order: Any, figure: str, title: str) -> Spec:
    y = {"field": category, "type": "nominal", "sort": category_order, "title": None}
    x = {"field": figure, "type": "quantitative", "title": title}
    return {"mark": {"type": "bar", "color": OURS}, "encoding": {"x": x, "y": y}}


def _forest(cells: Sequence[Record]) -> Chart | None:
    if not cells:
        return None
    names = list(dict.fromkeys(cell["over"] for cell in cells))
    x = _axis("speedup", "speedup: right of 1 we are faster", scale={"type": "log", "nice": False})
    x["axis"] = {"format": ".2f"}
    shared = {
        "y": {"field": "problem", "type": "nominal", "sort": {"field": "order", "op": "min"}, "title": None},
        "yOffset": {"field": "over", "sort": names},
        "color": {**_series("over", cells, columns=1, labelLimit=320), "title": "over"},
        "tooltip": _tips("problem", "over", "speedup", "speedup_low", "speedup_high", "time_us", "config"),
    }
    ends = {"x": {**x, "field": "speedup_low"}, "x2": {"field": "speedup_high"}}
    layers = [{"mark": {"type": "rule"}, "encoding": {**shared, **ends}}, _points(40, {"x": x, **shared}), _even("x")]
    height = 26 * len({cell["problem"] for cell in cells}) + 30
    note = "Speedup over each baseline with the 95 % interval of its pairs; shortest launch on top."
    return Chart("Forest plot", note, _of(cells, height=height, layer=layers))


def _rungs(study: Study) -> Chart:
    steps = ladder(rows_of(study, "sweep"), study.provenance["rungs"])
    values = [
        {
            "place": result.group.key,
            "order": i,
            "rung": step.name,
            "adds": step.adds,
            "from": step.start or "",
            "status": result.status,
            "tflops": result.tflops,
            "cuBLAS": result.baseline_tflops,
            "speedup": result.speedup,
            "gain": None if result.gain is None else 100 * result.gain,
        }
        for i, step in enumerate(steps)
        for result in step.results
    ]
    bars = _bars("rung", {"field": "order", "op": "min"}, "tflops", "TFLOP/s")
    ticks = {"x": {"field": "cuBLAS", "type": "quantitative"}, "y": bars["encoding"]["y"]}
    tips = [
        *_tips("rung", "adds", "from", "tflops", "speedup", "status"),
        {"field": "gain", "type": "quantitative", "title": "gain, %", "format": "+.2f"},
    ]
    layers = [bars, {"mark": {"type": "tick", "color": THEIRS, "thickness": 2}, "encoding": ticks}]
    spec = _of(values, height=16 * len(steps) + 20, layer=layers, encoding={"tooltip": tips})
    return Chart("Rungs", "TFLOP/s of each rung; the tick is cuBLAS, timed beside it.", spec)


def _map(study: Study) -> Chart | None:
    if is_list(study.provenance):
        return None
    down, across, cells = table_cells(study)
    most = max(Counter(cell["place"] for cell in cells).values(), default=0)
    if most < 2:
        return None
    x = {"field": across, "type": "ordinal", "title": label(across, WIDE), "axis": {"labelAngle": 0}}
    y = {"field": down, "type": "ordinal", "title": label(down, WIDE)}
    scale = {"type": "log", "scheme": "redblue", "domainMid": 1, "domain": [0.5, 2], "clamp": True}
    shown = _tips(down, across, "text", "speedup", "tflops", "time_us", "config", "reason")
    colour = {"field": "speedup", "type": "quantitative", "scale": scale, "legend": {"title": "speedup"}}
    layers: list[Spec] = [{"mark": {"type": "rect"}, "encoding": {"color": colour, "tooltip": shown}}]
    if most <= 80:  # else the texts overlap
        ink = {"condition": {"test": "datum.speedup < 0.62 || datum.speedup > 1.6", "value": "white"}, "value": "#222"}
        text = {"text": {"field": "speedup", "type": "quantitative", "format": ".2f"}, "color": ink, "tooltip": shown}
        layers.append({"mark": {"type": "text", "fontSize": 10}, "encoding": text})
    height = 26 * len({cell[down] for cell in cells}) + 20
    spec = _of(cells, height=height, encoding={"x": x, "y": y}, layer=layers)
    return Chart("Table", f"Speedup over cuBLAS: {down} down, {across} across; the fastest config of a cell.", spec)


def _history(rows: Sequence[Record]) -> Chart | None:
    if sum("trial" in row for row in rows) < 2:
        return None
    x = {"field": "trial", "type": "quantitative", "title": "trial that ran"}
    speedups, best = (_axis(name, "speedup over cuBLAS") for name in ("speedup", "best"))
    line = {"type": "line", "interpolate": "step-after", "color": THEIRS}
    tips = _tips("trial", "speedup", "best", "config")
    trials = _points(18, {"x": x, "y": speedups, "tooltip": tips}, 0.5)
    trials["mark"]["color"] = OURS
    spec = {"transform": [CHOSEN, RAN], "layer": [trials, {"mark": line, "encoding": {"x": x, "y": best}}]}
    note = "Each trial in the order of its measurement; the line is the best until then."
    return Chart("Best so far", note, spec, places_of([row for row in rows if "trial" in row]))


def _slices(rows: Sequence[Record]) -> Chart | None:
    names = varied_of(rows)
    if not names:
        return None
    along = {"name": "along", "value": names[0], "bind": {"input": "select", "options": names, "name": "along "}}
    spec = {
        "params": [along],
        "transform": [CHOSEN, RAN, {"calculate": "datum[along]", "as": "value"}],
        "mark": {"type": "tick", "color": OURS, "thickness": 2, "opacity": 0.6},
        "encoding": {
            "x": {"field": "value", "type": "ordinal", "title": "value of the parameter", "axis": {"labelAngle": 0}},
            "y": _axis("speedup", "speedup over cuBLAS"),
            "tooltip": _tips("value", "speedup", "config"),
        },
    }
    return Chart("Slices", "Speedups of all trials by the value of one parameter; choose it below the chart.", spec)


def _importance(study: Study) -> Chart | None:
    noted = study.provenance.get("importance") or {}
    if not noted and study.provenance.get("spec", {}).get("sampler") == "exhaustive":  # no search noted it
        from hopper_gemm.tune.search.trials import importances

        noted = importances(study.stage("sweep"))
    values = [
        {"place": group, "parameter": name, "share": share, "evaluator": entry["evaluator"]}
        for group, entry in noted.items()
        for name, share in entry["parameters"].items()
    ]
    if not values:
        return None
    bars = _bars("parameter", "-x", "share", "share of importance")
    bars["encoding"]["tooltip"] = _tips("parameter", "share", "evaluator")
    spec = _of(values, height=16 * len({value["parameter"] for value in values}) + 20, **bars)
    names = ", ".join(dict.fromkeys(entry["evaluator"] for entry in noted.values()))
    note = f"Share of each parameter in the scatter of the speedups, by {names}."
    return Chart("Importance", note, spec, places_of(values))


def _roofline(study: Study) -> Chart | None:
    points, ceilings = roofline(study)
    if not points:
        return None
    logarithmic: Spec = {"type": "log", "nice": False}
    x = _axis("intensity", "FLOP for each byte of A, B and C", scale=logarithmic, axis={"format": "~s"})
    y = _axis("tflops", "TFLOP/s", scale=logarithmic, axis={"format": "~s"})
    named = {"orient": "top", "columns": 1, "labelLimit": 360}
    line = {"field": "ceiling", "type": "nominal", "title": None, "legend": named}
    ends = {"x": x, "y": y, "strokeDash": line, "tooltip": _tips("ceiling")}
    rates = {"x": x, "y": y, "color": _series("who", points), "tooltip": _tips("place", "who", "tflops", "intensity")}
    spec = {
        "layer": [
            {"data": {"values": ceilings}, "mark": {"type": "line", "color": EVEN}, "encoding": ends},
            {"data": {"values": points}, **_points(45, rates)},
        ]
    }
    note = "The best of each problem, all places. Both ceilings were measured on an NVIDIA H200: a copy; and the "
    note += "fastest burst that is known, at the power cap, or that of this study where it is faster."
    return Chart("Roofline", note, spec)


def _problems(study: Study) -> Chart | None:
    """Return the chart of the pick and the best kernel of each problem of a map."""
    values = problems(study)
    if not values:
        return None
    x = _axis("torch_us", "time of torch.mm, us", scale={"type": "log"}, axis={"format": "~s"})
    y = _axis("speedup", "speedup over torch.mm", scale={"type": "log", "nice": False}, axis={"format": ".2f"})
    tips = _tips("problem", "who", "speedup", "low", "high", "over_faster", "torch_us", "config")
    encoding = {"x": x, "y": y, "color": _series("who", values, (OURS, THEIRS)), "tooltip": tips}
    spec = _of(values, layer=[_points(25, encoding, 0.7), _even("y")])
    note = "Of each problem the kernel that the model picks, and the best of all that were measured. Low, high: the "
    note += "95 % interval of the pick. over_faster: it over the faster of torch.mm and cuBLASLt's heuristic list."
    return Chart("Problems", note, spec, places_of(values))


def _scatter(
    rows: Sequence[Record], across: tuple[str, str], up: tuple[str, str], texts: tuple[str, str]
) -> Chart | None:
    """Return the scatter of two figures, each a column with its title, under a title and a note."""
    measured = [row for row in rows if row[across[0]] is not None and row[up[0]] is not None]
    if len(measured) < 2:
        return None
    names = list(dict.fromkeys(["problem", "speedup", across[0], up[0], "tflops", "stage", "config"]))
    speeds = sorted(float(row["speedup"]) for row in measured)
    ends = [speeds[len(speeds) // 20], speeds[-1 - len(speeds) // 20]]  # a few outliers do not set the colours
    shades = {"scheme": "viridis", "domain": ends, "clamp": True}
    colour = {"field": "speedup", "type": "quantitative", "scale": shades}
    encoding = {"x": _axis(*across), "y": _axis(*up), "color": colour, "tooltip": _tips(*names)}
    spec = {
        "transform": [CHOSEN, {"filter": f"isValid(datum.{across[0]}) && isValid(datum.{up[0]})"}],
        **_points(30, encoding, 0.6),
    }
    return Chart(*texts, spec, places_of(measured))


def places_of(values: Sequence[Record]) -> tuple[str, ...]:
    """Return the places of records, each once."""
    return tuple(dict.fromkeys(record["place"] for record in values))
