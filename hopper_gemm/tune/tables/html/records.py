"""Data of a study's page: rows, cells of the table, a roofline, cells of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.tune.limits import POWER_LIMITED_FLOPS
from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.schema import PAIRS
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import cells
from hopper_gemm.tune.tables.forest import launches, series
from hopper_gemm.tune.tables.mapped import mapped
from hopper_gemm.tune.tables.pages.report import spanning
from hopper_gemm.tune.tables.pivot import GROUP, Group, best_row, cell_text, config_of, fastest, groups, plain, rows_of

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


def records(study: Study) -> list[Record]:
    """Return a record for each row of a study's sweep, finals, comparison and map; missing values are None.
    ResultsError if the study has no such rows.

    ``place`` is, of a sweep, problem, regime, context and kind of data, of a comparison or a map regime and context;
    ``trial`` the number of a row that ran in the sweep of its ``place``, ``best`` the best speedup until then.
    Parameters in which no two rows differ are left out."""
    if not study.stage(*SHOWN_STAGES):
        raise ResultsError(f"{study.path} has no rows of a sweep, a comparison or a map; name another results folder")
    frame = rows_of(study, *SHOWN_STAGES)
    varied = [name for name in (*FIELDS, *PAIRS) if frame[name].nunique() > 1]
    listed: list[Record] = []
    trials: dict[str, tuple[int, float]] = {}
    swept = bool(study.stage("sweep"))
    for row in frame.to_dict("records"):
        group = Group(*(plain(row[name]) for name in GROUP))
        selection = group.key if swept else f"{group.regime} {group.context}"
        config = None if plain(row["tile_m"]) is None else config_of(row)
        record: Record = {
            "place": selection,
            **{name: row[name] for name in ("stage", "problem", "regime", "context", "against")},
            "config": "" if config is None else str(config),
            **{name: plain(row[name]) for name in varied},
            **{name: rounded(row[name]) for name in FIGURES},
            **{name: row[name] for name in ("status", "reason", "board")},
        }
        if row["stage"] == "sweep" and row["status"] == "ok":
            trial, best = trials.get(selection, (0, 0.0))
            trials[selection] = trial + 1, max(best, row["speedup"])
            record |= {"trial": trial + 1, "best": rounded(max(best, row["speedup"]))}
        listed.append(record)
    return listed


def rounded(value: Any) -> Any:
    """Return a figure with :data:`DIGITS` significant digits; None where it is missing."""
    number = plain(value)
    return float(f"{number:.{DIGITS}g}") if isinstance(number, float) else number


def varied_of(rows: Sequence[Record]) -> list[str]:
    """Return the parameters in which rows of a sweep differ."""
    ran = [row for row in rows if "trial" in row]
    names = [name for name in (*FIELDS, *PAIRS) if ran and name in ran[0]]
    return [name for name in names if len({row[name] for row in ran}) > 1]


def table_cells(study: Study) -> tuple[str, str, list[Record]]:
    """Return the columns that span a study's table, down and across, and its cells with the fastest config each."""
    down, across = spanning(study.provenance)
    table = []
    for group, part in groups(rows_of(study, "sweep")):
        for row in fastest(part, [down, across]).to_dict("records"):
            figures = {name: rounded(row[name]) for name in ("speedup", "tflops", "time_us")}
            config = {"config": str(config_of(row)), "stages": plain(row["stages"]), "reason": row["reason"]}
            spans = {down: plain(row[down]), across: plain(row[across])}
            text = cell_text(row).replace("x (", " (")
            table.append({"place": group.key, **spans, **figures, **config, "text": text})
    return down, across, table


def roofline(study: Study) -> tuple[list[Record], list[Record]]:
    """Return the best of each problem, and the ceilings of the chip, as points of intensity (FLOP for each byte of A, B
    and C) and rate in TFLOP/s: ours and the baseline's, and the two ends of each ceiling. That of the tensor cores is
    the fastest burst that the model assumes, or that of the study where it is faster."""
    points = []
    stage = next(name for name in ("sweep", "compare", "map") if study.stage(name))
    for group, part in groups(rows_of(study, stage)):
        best = best_row(part)
        if best is None:
            continue
        problem = group.problem
        shared = {"place": group.key, "intensity": rounded(problem.flop / problem.bytes)}
        points.append({**shared, "who": "ours", "tflops": rounded(best["tflops"])})
        theirs = problem.flop / best["baseline_us"] / 1e6
        points.append({**shared, "who": str(best["against"]), "tflops": rounded(float(theirs))})
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
    """Return the points of a map's scatter: the model's pick and the best kernel of each problem, over torch.mm."""
    by_selection = grouped(study.stage("map"), lambda row: f"{row.point.regime} {row.point.context}")
    points: list[Record] = []
    for selection, rows in by_selection.items():
        for entry in mapped(rows):
            shared = {
                "place": selection,
                "problem": problem_label(entry.problem),
                **{name: rounded(getattr(entry, name)) for name in ("torch_us", "low", "high", "over_faster")},
                "config": str(entry.kernel),
            }
            speeds = {"the model's pick": entry.pick, "the best measured": entry.best}
            points += [{**shared, "who": who, "speedup": rounded(speed)} for who, speed in speeds.items()]
    return points


def compared(study: Study) -> list[Record]:
    """Return the cells of a comparison's forest plot: a record for each problem, series, regime and context."""
    by_selection = grouped(cells(study.stage("compare")), lambda record: f"{record['regime']} {record['context']}")
    points: list[Record] = []
    for selection, part in by_selection.items():
        order = list(launches(part))
        for name, cell_of in series(part).items():
            for problem, cell in cell_of.items():
                point: Record = {"place": selection, "problem": problem, "order": order.index(problem), "over": name}
                figures = ("speedup", "speedup_low", "speedup_high", "time_us")
                point |= {"config": cell["config"], **{figure: rounded(cell[figure]) for figure in figures}}
                points.append(point)
    return points
