"""The page of a comparison: our kernel beside every baseline, problem by problem, in each regime and context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from hopper_gemm.model.config import LEGEND
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CONTEXTS, results_root, slug
from hopper_gemm.tune.measure.verdict import mean_of, published
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.pooling import by_point, grouped, looks, pool
from hopper_gemm.tune.study.reader import Study, read_provenance, read_study, recorded_folders
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.study.spec import AGAINST
from hopper_gemm.tune.tables.pages.report import scope_line, source_line
from hopper_gemm.tune.tables.pivot import coded, escaped, interval, markdown, markdown_table, one_line, words

COMPARE_LEGEND = (
    "Cells: speedup over the baseline, above 1 we are faster, with the 95 % interval of its pairs; another process or "
    "board differs by more (docs/measuring), and the intervals of the means hold for both. Configs are tuned for this "
    "very problem unless the column says for which. Behind: the whole interval lies below 1. isolated: another kernel "
    f"runs between any two launches; chained: launches run back to back. Configs: {LEGEND}."
)


@dataclass(frozen=True)
class Mean:
    """Speedup over one baseline, summed up over all problems."""

    regime: str
    context: str
    against: str
    speedup: float  # geometric mean, with the 95 % interval that holds for other processes and boards
    low: float
    high: float
    problems: int  # number of problems with a figure
    total: int  # number of all problems
    worst: float  # the least speedup and its problem
    worst_on: str
    behind: tuple[str, ...]  # problems whose whole interval lies below 1

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name for JSON, ``total`` as ``asked``."""
        return {"asked" if name == "total" else name: value for name, value in vars(self).items()}

    @property
    def figure(self) -> str:
        """The mean with its interval, as the cells of a table have it."""
        return f"{self.speedup:.3f}x [{self.low:.3f}, {self.high:.3f}]"

    def __str__(self) -> str:
        over = self.problems if self.problems == self.total else f"{self.problems} of {self.total}"
        behind = f"behind on {len(self.behind)}: {', '.join(self.behind)}" if self.behind else "behind on none"
        return (
            f"{self.against}, {self.context}: {self.figure} over {over} problems, "
            f"least {self.worst:.3f}x on {self.worst_on}, {behind}"
        )


_compared = attrgetter("problem", "against", "regime", "context")


def recorded(
    names: Sequence[str],
    problems: Sequence[GemmProblem],
    against: Sequence[str] | None,
    mode: Sequence[str],
    folder: Path | None,
) -> Study:
    """Return the comparison in the folder, else the recorded one with most of the problems, then with most baselines:
    of studies with the given names, tuned and not archived, those of H100s before others, the newest first, then of
    folders with such a name. The first wins a tie; what the same kernels had on other boards of that kind is added.
    Rows of other problems, baselines (None: any), regimes and contexts (``mode``) are left out. ResultsError if no
    folder has a matching row."""
    by_name = [path for name in names for path in recorded_folders(name)]
    origins = {at: read_provenance(at) for at in recorded_folders() if results_root() / "archive" not in at.parents}
    tuned = [at for at, of in origins.items() if of["study"] in names and of["spec"].get("config") == "tuned"]
    newest = sorted(tuned, key=lambda at: str(origins[at]["created"]), reverse=True)
    by_study = sorted(newest, key=lambda at: slug(origins[at]["gpu"]["name"]) != "h100")
    names_against = AGAINST if against is None else against
    wanted = {(problem, name, *mode) for problem in problems for name in names_against}
    found: dict[Path, Study] = {}
    for path in [folder] if folder else dict.fromkeys([*by_study, *by_name]):
        if "config" not in read_provenance(path)["spec"]:
            continue  # a map, whose thousands of rows are no comparison
        study = read_study(path)
        rows = tuple(row for row in study.stage("compare") if _compared(row.point) in wanted)
        provenance = {**study.provenance, "source": "replayed", "replayed_from": shown(path)}
        found[path] = replace(study, rows=rows, provenance=provenance)
    compared = [{_compared(row.point) for row in study.rows} for study in found.values()]
    counts = [(len({problem for problem, *_ in pairs}), len(pairs)) for pairs in compared]
    if not any(compared):
        what = f"{len(problems)} problems" if len(problems) > 1 else problem_label(problems[0])
        what += f" with {', '.join(names_against)}" * (against is not None) + f" in {', '.join(mode)}"
        raise ResultsError(f"no comparison of {what} is recorded; measure it with --backend cuda")
    best = [*found.values()][counts.index(max(counts))]
    same = {at for at, of in found.items() if of is best or (at in tuned and _alike(of, best))}
    boards = [of for at, of in reversed(found.items()) if at in same and of.rows]
    rows = tuple(row for study in boards for row in study.rows)
    told: dict[str, Any] = {"replayed_from": ", ".join(study.provenance["replayed_from"] for study in boards)}
    told["boards"] = [*dict.fromkeys(board for row in rows if row.ok for board in row.board.split())]
    return replace(best, rows=rows, provenance={**best.provenance, **told})


def _alike(one: Study, other: Study) -> bool:
    """Return True if two comparisons differ in their boards or days alone, and not in their question, kind of GPU,
    configs, or the machine code of a config that ran in both."""
    codes, others = (
        {(row.point.problem, row.point.config): row.figures.get("code") for row in of.rows if row.ok}
        for of in (one, other)
    )
    return _setting(one) == _setting(other) and all(codes[at] == others[at] for at in codes.keys() & others.keys())


def _setting(study: Study) -> tuple[Any, ...]:
    told = study.provenance
    asked = {(row.point.problem, row.point.config) for row in study.rows}
    return told["study"], told["spec"], slug(told["gpu"]["name"]), asked


def cells(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one record for each problem, regime, context and baseline; processes are pooled, boards count alike. Where
    several configs were measured, the last one counts. A record has the columns of a row that are not missing, and
    ``problem``, ``config``, ``speedup`` and ``looks`` (processes, board by board) among them."""
    records: dict[tuple[Any, ...], dict[str, Any]] = {}
    for measured in by_point(rows):
        row, point = pool(measured), measured[0].point
        key = (point.problem, point.data, point.regime, point.context, point.against)
        labels = {"problem": problem_label(point.problem), "config": str(point.config), "looks": looks(measured)}
        records[key] = {**row.as_dict(), **labels}
    return list(records.values())


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers; NaN are left out."""
    return exp(fmean([log(value) for value in values if value == value]))


def as_published(record: Mapping[str, Any]) -> Ratio:
    """Return the speedup of a record of :func:`cells` with the interval that holds for other processes and boards."""
    ratio = Ratio(*(record[name] for name in ("speedup", "speedup_low", "speedup_high", "pairs")))
    return published(ratio, record["baseline_us"], record["looks"])


def means(records: Sequence[Mapping[str, Any]]) -> list[Mean]:
    """Return a mean of :func:`cells` for each regime, context and baseline with a figure; isolated, the headline, comes
    first."""
    parts = grouped(records, lambda record: (record["regime"], record["context"], record["against"]))
    averages = []
    for key in sorted(parts, key=lambda key: CONTEXTS.index(key[1])):
        ok = [record for record in parts[key] if record["status"] == "ok"]
        if ok:
            worst = min(ok, key=lambda record: record["speedup"])
            behind = tuple(record["problem"] for record in ok if record["speedup_high"] < 1)
            mean = mean_of([as_published(record) for record in ok])
            middle = mean.median, mean.low, mean.high
            averages.append(Mean(*key, *middle, len(ok), len(parts[key]), worst["speedup"], worst["problem"], behind))
    return averages


def compare_page(study: Study) -> str:
    """Return the page in Markdown: a table for each regime, the means below it, and what the baselines ran."""
    provenance, records = escaped(study.provenance), cells(study.stage("compare"))
    versions, named = provenance.get("versions", {}), ("torch", "cublaslt", "triton", "quack-kernels")
    libraries = [f"{name} {versions[name]}" for name in named if versions.get(name)]
    source = ", ".join([source_line(provenance).removesuffix("."), *libraries])
    lines = [f"# {provenance['study']}", "", f"**{source}.**", "", scope_line(study), ""]
    if provenance.get("question"):
        lines += [provenance["question"].strip(), ""]
    for name, reason in (provenance.get("missing") or {}).items():
        lines += [f"Without {name}: {reason}.", ""]
    earlier = Counter(source.split(": ")[0] for source in (provenance.get("finalists_from") or {}).values())
    for folder, count in earlier.items():
        lines += [f"Ways of a baseline that were not searched but chosen among the finalists of {folder}: {count}.", ""]
    for regime in dict.fromkeys(record["regime"] for record in records):
        part = [record for record in records if record["regime"] == regime]
        table = markdown_table(coded(comparison(part)), "problem")
        lines += [f"## {regime}", "", table, "", *(f"- {mean}" for mean in means(part)), ""]
        lines += ["What the baselines ran:", "", _kernels(part), ""]
    return "\n".join([*lines, COMPARE_LEGEND, ""])


def comparison(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the table of the :func:`cells` of one regime as text: a line for each problem and context, a column for
    each baseline, then the means. Its index is the problem."""
    names = [name for name in AGAINST if any(record["against"] == name for record in records)]
    by_line: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for record in records:
        by_line.setdefault((record["problem"], record["context"]), {})[record["against"]] = record
    problems = list(dict.fromkeys(problem for problem, _ in by_line))
    rows = []
    for problem, context in sorted(by_line, key=lambda line: (problems.index(line[0]), CONTEXTS.index(line[1]))):
        by_baseline = by_line[problem, context]
        ok = [record for record in by_baseline.values() if record["status"] == "ok"]
        first = next(iter(by_baseline.values()))
        tuned_on = {"model": "model", "tuned": ""}.get(first.get("how", "tuned"), first.get("tuned_on", ""))
        rates = ["", ""]
        if ok:
            rates = [f"{median(r['time_us'] for r in ok):.1f}", f"{median(r['tflops'] for r in ok):.0f}"]
        texts = {
            name: interval(record) if record["status"] == "ok" else words(record["status"])
            for name, record in by_baseline.items()
        }
        rows.append([problem, context, *rates, *(texts.get(name, "") for name in names), first["config"], tuned_on])
    speedups = {(mean.context, mean.against): mean.figure for mean in means(records)}
    for context in [name for name in CONTEXTS if any(record["context"] == name for record in records)]:
        rows.append(["geometric mean", context, "", "", *(speedups.get((context, n), "") for n in names), "", ""])
    columns = ["problem", "context", "us", "TFLOP/s", *names, "config", "tuned on"]
    return pd.DataFrame(rows, columns=columns).set_index("problem")


def _kernels(records: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for record in records:
        texts = ["", one_line(f"{words(record['status'])}: {record['reason']}"), "", ""]
        if record["status"] == "ok":
            kernel = record.get("baseline_kernel", "")
            texts = [f"{record['baseline_us']:.1f}", f"`{kernel}`" if kernel else ""]
            texts += [one_line(str(record.get(name) or "")) for name in ("candidates", "choice")]
        rows.append([record["problem"], record["context"], record["against"], *texts])
    columns = ["problem", "context", "baseline", "us", "kernel", "candidates", "choice"]
    return markdown(columns, rows)
