"""What a page shows of a study, as plain data: rows, cells of the table, a roofline, cells of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.roofline import POWER_LIMITED_FLOPS
from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.schema import PAIRS
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import cells
from hopper_gemm.tune.tables.forest import launches, series
from hopper_gemm.tune.tables.mapped import mapped
from hopper_gemm.tune.tables.pages.report import spanning
from hopper_gemm.tune.tables.pivot import (
    GROUP,
    Group,
    best_row,
    cell_text,
    config_of,
    fastest,
    groups,
    plain,
    rows_of,
)

FIGURES = (
    *("speedup", "speedup_low", "speedup_high", "time_us", "baseline_us", "tflops", "sm_mhz", "baseline_sm_mhz"),
    *("watts", "baseline_watts", "pj_per_flop", "baseline_pj_per_flop", "tensor_active", "pairs", "processes"),
    *("registers", "smem_bytes"),
)
"""Figures of a row that a page shows."""

DIGITS = 5
"""Significant digits of a figure on a page."""

SHOWN_STAGES = ("sweep", "final", "compare", "map")
"""Stages whose rows a page shows."""

Record = dict[str, Any]


def place_of(swept: bool, group: Group) -> str:
    """What a page shows at a time: of a sweep a problem, regime, context and kind of data; of a comparison or a map a
    regime and context."""
    return group.place if swept else f"{group.regime} {group.context}"


def records(study: Study) -> list[Record]:
    """The rows of a study's sweep, finals and comparison, one record each; what a row lacks is None.

    ``place`` is that of :func:`place_of`, ``trial`` the number of a row that ran in the sweep of its place, ``best``
    the best speedup until then. Parameters in which no two rows differ are left out.

    Raises:
        ResultsError: the study has no such rows.
    """
    if not study.stage(*SHOWN_STAGES):
        raise ResultsError(f"{study.path} has no rows of a sweep, a comparison or a map; name another results folder")
    frame = rows_of(study, *SHOWN_STAGES)
    varied = [name for name in (*FIELDS, *PAIRS) if frame[name].nunique() > 1]
    found: list[Record] = []
    trials: dict[str, tuple[int, float]] = {}
    swept = bool(study.stage("sweep"))
    for row in frame.to_dict("records"):
        place = place_of(swept, Group(*(plain(row[name]) for name in GROUP)))
        config = None if plain(row["tile_m"]) is None else config_of(row)
        record: Record = {
            "place": place,
            **{name: row[name] for name in ("stage", "problem", "regime", "context", "against")},
            "config": "" if config is None else str(config),
            **{name: plain(row[name]) for name in varied},
            **{name: rounded(row[name]) for name in FIGURES},
            **{name: row[name] for name in ("status", "reason", "board")},
        }
        if row["stage"] == "sweep" and row["status"] == "ok":
            trial, best = trials.get(place, (0, 0.0))
            trials[place] = trial + 1, max(best, row["speedup"])
            record |= {"trial": trial + 1, "best": rounded(max(best, row["speedup"]))}
        found.append(record)
    return found


def rounded(value: Any) -> Any:
    """A figure with :data:`DIGITS` significant digits; None where it is missing."""
    known = plain(value)
    return float(f"{known:.{DIGITS}g}") if isinstance(known, float) else known


def varied_of(rows: Sequence[Record]) -> list[str]:
    """Parameters in which rows of a sweep differ."""
    ran = [row for row in rows if "trial" in row]
    names = [name for name in (*FIELDS, *PAIRS) if ran and name in ran[0]]
    return [name for name in names if len({row[name] for row in ran}) > 1]


def table_cells(study: Study) -> tuple[str, str, list[Record]]:
    """The columns that span a study's table, down and across, and its cells; the fastest config stands in a cell."""
    down, across = spanning(study.provenance)
    found = []
    for group, part in groups(rows_of(study, "sweep")):
        place = place_of(True, group)
        for row in fastest(part, [down, across]).to_dict("records"):
            figures = {name: rounded(row[name]) for name in ("speedup", "tflops", "time_us")}
            config = {"config": str(config_of(row)), "stages": plain(row["stages"]), "reason": row["reason"]}
            ends = {down: plain(row[down]), across: plain(row[across])}
            found.append({"place": place, **ends, **figures, **config, "text": cell_text(row).replace("x (", " (")})
    return down, across, found


def roofline(study: Study) -> tuple[list[Record], list[Record]]:
    """The best of each problem beside the ceilings of the chip.

    Returns:
        Points (intensity in FLOP for each byte of A, B and C, rate in TFLOP/s, ours and the baseline's), and ceilings:
        each the two ends of a line with its name. The ceiling of the tensor cores is the fastest burst that the model
        knows, or that of the study where it is faster.
    """
    points = []
    stage = next(one for one in ("sweep", "compare", "map") if study.stage(one))
    for group, part in groups(rows_of(study, stage)):
        best = best_row(part)
        if best is None:
            continue
        problem = group.problem
        about = {"place": group.place, "intensity": rounded(problem.flop / problem.bytes)}
        points.append({**about, "who": "ours", "tflops": rounded(best["tflops"])})
        theirs = problem.flop / best["baseline_us"] / 1e6
        points.append({**about, "who": str(best["against"]), "tflops": rounded(float(theirs))})
    if not points:
        return [], []
    least = min(0.5 * min(point["intensity"] for point in points), 50.0)
    most = 2 * max(point["intensity"] for point in points)
    fastest = 1e12 * max(point["tflops"] for point in points)
    memory, flops = hopper.HBM_BYTES_PER_SECOND, max(POWER_LIMITED_FLOPS, fastest)
    ridge = flops / memory
    lines = {
        f"DRAM, a copy: {memory / 1e12:.1f} TB/s": [least, ridge],
        f"tensor cores, fastest burst: {flops / 1e12:.0f} TFLOP/s": [min(ridge, most), most],
    }
    ceilings = [
        {"ceiling": name, "intensity": at, "tflops": min(at * memory, flops) / 1e12}
        for name, ends in lines.items()
        for at in ends
    ]
    return points, ceilings


def problems(study: Study) -> list[Record]:
    """Points of a map for a scatter: of each problem the model's pick and the best kernel measured, over torch.mm."""
    by_place: dict[str, list[Row]] = {}
    for row in study.stage("map"):
        by_place.setdefault(f"{row.point.regime} {row.point.context}", []).append(row)
    found: list[Record] = []
    for place, rows in by_place.items():
        for one in mapped(rows):
            about = {"place": place, "problem": problem_label(one.problem), "torch_us": rounded(one.torch_us)}
            about |= {"low": rounded(one.low), "high": rounded(one.high), "over_faster": rounded(one.over_faster)}
            about["config"] = str(one.kernel)
            speeds = {"the model's pick": one.pick, "the best measured": one.best}
            found += [{**about, "who": who, "speedup": rounded(speed)} for who, speed in speeds.items()]
    return found


def compared(study: Study) -> list[Record]:
    """Cells of a comparison for a forest plot: a record for each problem, series, regime and context."""
    found = []
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in cells(study.stage("compare")):
        by_place.setdefault((record["regime"], record["context"]), []).append(record)
    for (regime, context), part in by_place.items():
        order = list(launches(part))
        for name, of in series(part).items():
            for problem, cell in of.items():
                ends = {end: rounded(cell[end]) for end in ("speedup", "speedup_low", "speedup_high", "time_us")}
                about = {"place": f"{regime} {context}", "problem": problem, "order": order.index(problem)}
                found.append({**about, "over": name, "config": cell["config"], **ends})
    return found
