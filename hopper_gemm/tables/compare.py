"""``compare.csv``: our kernel beside every baseline, problem by problem; and the page that sums it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from hopper_gemm.model.config import FIELDS
from hopper_gemm.tables import schema
from hopper_gemm.tables.report import markdown_table
from hopper_gemm.tables.schema import Column
from hopper_gemm.tables.trials import AppendFile, ResultsError, config_of, whole_rows, with_kinds

FILE, SAMPLES, ABOUT, PAGE = "compare.csv", "compare-samples.csv", "compare.json", "compare.md"

AGAINST = {
    "cublas": "torch.mm",
    "cublaslt": "the fastest of cuBLASLt's heuristic lists, by our clock",
    "triton": "torch.compile's Triton templates, tuned by it",
    "quack": "quack-kernels, tuned by its autotuner",
}
"""What a row may hold our kernel against."""

NO_BASELINE = "no_baseline"
STATUSES = {**schema.STATUSES, NO_BASELINE: "the baseline cannot run the problem"}

PASSING = ("timeout", "crash", "unstable")
"""Statuses that another run may do better at: such rows are measured again."""

_PARAMETERS = tuple(column for column in schema.COLUMNS if column.name in FIELDS)

COLUMNS = (
    *(column for column in schema.COLUMNS if column.name in ("m", "n", "k", "dtype", "layouts", "regime")),
    Column("against", "text", "; ".join(f"{name}: {meaning}" for name, meaning in AGAINST.items())),
    Column("process", "integer", "fresh processes before the one that took the row"),
    Column(
        "how",
        "text",
        "tuned: for this problem and regime; other regime: for this problem; model: chosen by the analytic model",
    ),
    Column("tuned_on", "text", "problem and regime that the config was tuned for"),
    *_PARAMETERS,
    Column("code", "text", "digest of our machine code"),
    Column("status", "text", "; ".join(f"{name}: {meaning}" for name, meaning in STATUSES.items())),
    Column("reason", "text", "why the status is not ok; empty otherwise"),
    Column("speedup", "number", "the baseline's time over ours, median of the pairs; above 1 we are faster"),
    Column("speedup_low", "number", "lower end of the 95 % bootstrap interval"),
    Column("speedup_high", "number", "upper end of the 95 % bootstrap interval"),
    Column("pairs", "integer", "pairs of times behind the speedup"),
    Column("noise", "number", "noise floor: how far torch.mm against itself strays from 1"),
    Column("time_us", "number", "our median time of a launch, microseconds"),
    Column("theirs_us", "number", "the baseline's"),
    Column("tflops", "number", "our rate, 10^12 FLOP/s"),
    Column("theirs_tflops", "number", "the baseline's"),
    Column("sm_mhz", "number", "mean SM clock while ours ran"),
    Column("theirs_sm_mhz", "number", "the same while the baseline ran"),
    Column("watts", "number", "mean power while ours ran; empty in a burst"),
    Column("theirs_watts", "number", "the same while the baseline ran"),
    Column("pj_per_flop", "number", "our energy per operation, picojoules"),
    Column("theirs_pj_per_flop", "number", "the baseline's"),
    Column("tensor_active", "number", "percent of the tensor cores' peak at sm_mhz"),
    Column("rel_err", "number", "relative Frobenius error of ours against fp32"),
    Column("theirs_rel_err", "number", "of the baseline's"),
    Column("candidates", "integer", "ways to run the problem that the baseline offered"),
    Column("choice", "text", "the one that our clock took, in the baseline's words"),
    Column("kernel", "text", "name of the kernel that the baseline ran"),
    Column("gpu", "text", "name of the GPU"),
)
_MEND = "name another folder with --out"
NAMES = tuple(column.name for column in COLUMNS)

CELL = ("m", "n", "k", "dtype", "layouts", "regime", "against")
"""Columns that name a cell of the table."""

KEY = (*CELL, "process", *FIELDS, "code")
"""Columns that tell one row from another: another config, or other machine code of it, is measured anew."""

SAMPLE_NAMES = (*CELL, "process", "code", "ours_us", "theirs_us")


@dataclass(frozen=True)
class Mean:
    """How we stand against one baseline over all problems.

    Args:
        regime: burst or steady.
        against: the baseline.
        speedup: geometric mean.
        problems: over how many.
        asked: how many there are; those without a figure are missing from the mean.
        worst: the least speedup.
        worst_on: the problem it is of.
        behind: problems whose whole interval lies below 1.
    """

    regime: str
    against: str
    speedup: float
    problems: int
    asked: int
    worst: float
    worst_on: str
    behind: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def write_rows(folder: Path, rows: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]] = ()) -> None:
    """Add rows and the pairs of times behind them; they are on the disk when this returns.

    Args:
        folder: made if need be.
        rows: with the names of :data:`NAMES`; what is missing stays empty.
        samples: with the names of :data:`SAMPLE_NAMES`.

    Raises:
        ResultsError: the folder cannot be made, or its file has other columns.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"{folder} cannot be made ({error.strerror}); name another folder with --out") from None
    samples = list(samples)
    if samples:
        AppendFile(folder / SAMPLES, SAMPLE_NAMES).append(samples)
    AppendFile(folder / FILE, NAMES).append(rows)


def row_text(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells a row from another, as text: the same for a row read back and for one about to be written."""
    return tuple(_text(row.get(name)) for name in KEY)


def recorded_keys(folder: Path) -> set[tuple[str, ...]]:
    """The keys of the rows that need not be measured again; none where there is no file.

    Raises:
        ResultsError: the file is not of this version: rows could not be added to it.
    """
    rows = whole_rows(folder / FILE, NAMES, _MEND) if (folder / FILE).is_file() else []
    return {row_text(row) for row in rows if row["status"] not in PASSING}


def read_compare(folder: Path) -> pd.DataFrame:
    """The folder's rows with their kinds: of each cell only those of the config and the machine code measured last.

    Raises:
        ResultsError: there are none, or the file is not of this version.
    """
    path = folder / FILE
    if not path.is_file():
        raise ResultsError(f"{path} does not exist; run hopper-gemm compare on a Hopper GPU first")
    latest: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    codes: dict[tuple[str, ...], tuple[str, ...]] = {}
    for row in whole_rows(path, NAMES, _MEND, older=True):
        cell, config = tuple(row[name] for name in CELL), tuple(row[name] for name in (*FIELDS, "code"))
        if codes.get(cell) != config:
            codes[cell], latest[cell] = config, {}
        latest[cell][row["process"]] = row
    frame = pd.DataFrame([row for rows in latest.values() for row in rows.values()], columns=list(NAMES), dtype=object)
    return with_kinds(frame, COLUMNS)


def cells(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One record for each cell: its processes' figures pooled.

    The speedup is the median of the processes', its interval spans theirs; a cell is ok where any process was, and
    otherwise as its last one.

    Args:
        frame: as :func:`read_compare` gives it.
    """
    found = []
    for _, part in frame.groupby(list(CELL), sort=False):
        ok = part[part["status"] == "ok"]
        record = {name: _plain(value) for name, value in (part if ok.empty else ok).iloc[-1].items()}
        record["processes"] = len(ok)
        if not ok.empty:
            record["speedup"] = median(ok["speedup"])
            record["speedup_low"], record["speedup_high"] = (
                float(ok["speedup_low"].min()),
                float(ok["speedup_high"].max()),
            )
            record["pairs"] = int(ok["pairs"].sum())
            for name in ("time_us", "theirs_us", "tflops", "theirs_tflops"):
                record[name] = median(ok[name])
        found.append(record)
    return found


def means(records: Sequence[Mapping[str, Any]]) -> list[Mean]:
    """A mean for each regime and baseline that has a figure.

    Args:
        records: of :func:`cells`.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["regime"], record["against"]), []).append(record)
    found = []
    for (regime, against), part in groups.items():
        ok = [record for record in part if record["status"] == "ok"]
        if not ok:
            continue
        worst = min(ok, key=lambda record: record["speedup"])
        found.append(
            Mean(
                regime,
                against,
                exp(sum(log(record["speedup"]) for record in ok) / len(ok)),
                len(ok),
                len(part),
                worst["speedup"],
                problem_of(worst),
                tuple(problem_of(record) for record in ok if record["speedup_high"] < 1),
            )
        )
    return found


def compare_page(frame: pd.DataFrame, about: Mapping[str, Any]) -> str:
    """Markdown: a table for each regime, the means below it, and what the baselines ran.

    Args:
        frame: as :func:`read_compare` gives it.
        about: the content of ``compare.json``.
    """
    records = cells(frame)
    lines = [f"# {about['name']}", "", f"**{_source(about)}**", ""]
    if about.get("question"):
        lines += [about["question"], ""]
    for name, reason in about.get("missing", {}).items():
        lines += [f"Without {name}: {reason}.", ""]
    for regime in dict.fromkeys(record["regime"] for record in records):
        part = [record for record in records if record["regime"] == regime]
        lines += [f"## {regime}", "", _table(part), "", *map(_sentence, means(part)), ""]
        lines += ["What the baselines ran:", "", _kernels(part), ""]
    lines += [LEGEND, ""]
    return "\n".join(lines)


LEGEND = (
    "Cells: speedup over the baseline with its 95 % interval; above 1 we are faster. Config: tuned for this very "
    "problem unless it says for which. Behind are problems whose whole interval lies below 1."
)


def problem_of(record: Mapping[str, Any]) -> str:
    """As ``4096x4096x4096``; type and layouts are named where they are not bf16 and ``kk``."""
    sizes = f"{record['m']}x{record['n']}x{record['k']}"
    others = [record[name] for name, usual in (("dtype", "bf16"), ("layouts", "kk")) if record[name] != usual]
    return " ".join([sizes, *others])


def _table(records: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in AGAINST if any(record["against"] == name for record in records)]
    by_problem: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        by_problem.setdefault(problem_of(record), {})[record["against"]] = record
    rows = {}
    for problem, cell in by_problem.items():
        any_one = next(iter(cell.values()))
        ok = [record for record in cell.values() if record["status"] == "ok"]
        rows[problem] = [
            f"{median(record['time_us'] for record in ok):.1f}" if ok else "",
            f"{median(record['tflops'] for record in ok):.0f}" if ok else "",
            *(_cell(cell.get(name)) for name in names),
            str(config_of(any_one)),
            any_one["how"] if any_one["how"] == "model" else "" if any_one["how"] == "tuned" else any_one["tuned_on"],
        ]
    found = {mean.against: mean for mean in means(records)}
    rows["geometric mean"] = ["", "", *(f"{found[n].speedup:.3f}x" if n in found else "" for n in names), "", ""]
    columns = ["us", "TFLOP/s", *names, "config", "tuned on"]
    return markdown_table(pd.DataFrame.from_dict(rows, orient="index", columns=columns), "problem")


def _cell(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return ""
    if record["status"] != "ok":
        return str(record["status"]).replace("_", " ")
    return f"{record['speedup']:.3f}x [{record['speedup_low']:.3f}, {record['speedup_high']:.3f}]"


def _sentence(mean: Mean) -> str:
    over = f"{mean.problems} problems" if mean.problems == mean.asked else f"{mean.problems} of {mean.asked} problems"
    behind = f"behind on {len(mean.behind)}: {', '.join(mean.behind)}" if mean.behind else "behind on none"
    return f"- {mean.against}: {mean.speedup:.3f}x over {over}, least {mean.worst:.3f}x on {mean.worst_on}, {behind}"


def _kernels(records: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| problem | baseline | us | kernel | candidates | choice |", "| --- | --- | --- | --- | --- | --- |"]
    for record in records:
        start = f"| {problem_of(record)} | {record['against']} |"
        if record["status"] == "ok":
            kernel = f"`{record['kernel']}`" if record["kernel"] else ""
            shown = f"{record['theirs_us']:.1f} | {kernel} | {record['candidates'] or ''} | {record['choice']}"
        else:
            shown = f" | {_one_line(record['status'].replace('_', ' ') + ': ' + record['reason'])} | | "
        lines.append(f"{start} {shown} |")
    return "\n".join(lines)


def _source(about: Mapping[str, Any]) -> str:
    gpu, versions = about["gpu"], about.get("versions", {})
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items() if version and name in _NAMED)
    return f"Measured on an {gpu['name']}, driver {gpu['driver']}, {about['created']}. {libraries}."


_NAMED = ("torch", "cublaslt", "triton", "quack-kernels")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    if value is pd.NA:
        return None
    return value.item() if hasattr(value, "item") else value


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
