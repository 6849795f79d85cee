"""Findings across the recorded comparisons: differences between boards, entries served today, untuned problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from textwrap import fill
from typing import Any

from hopper_gemm.lab.pages.sources import recorded
from hopper_gemm.model.tuned import pick, recorded_entries
from hopper_gemm.tune.measure.verdict import published
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.tables.comparison import cells, geometric_mean
from hopper_gemm.tune.tables.pivot import interval, markdown, short_label

Record = Mapping[str, Any]

WIDTH = 120
"""Columns of a page's text."""

FAR = 0.012
"""Difference between two boards from which a pair of them is counted."""


def speedups(name: str, context: str = "isolated", against: str = "cublas") -> dict[str, float]:
    """The speedups of a comparison by problem, boards pooled as its page pools them."""
    return {
        str(row.point.problem): float(row.figures["speedup"])
        for row in pooled(recorded(name).stage("compare"))
        if row.ok and row.point.against == against and row.point.context == context
    }


def kernel_of(*names: str) -> str:
    """Digest of the kernel's sources with which studies were measured, its first digits, and the day."""
    told = [recorded(name).provenance for name in names]
    digests = dict.fromkeys(f"`{about['kernel'][:6]}`" for about in told)
    return ", ".join((*digests, *dict.fromkeys(about["created"][:10] for about in told)))


def no_longer_served(name: str = "suite") -> list[str]:
    """The problems of a comparison for which the recorded table has another config than it ran."""
    entries = recorded_entries()
    rows = [row for row in recorded(name).stage("compare") if row.point.against == "cublas"]
    served = ((row.point, pick(entries, row.point.problem, row.point.regime, row.point.context)) for row in rows)
    return [str(point.problem) for point, now in served if now.config != point.config]


def served() -> str:
    """A sentence with the number of headline configs that `matmul` no longer serves."""
    gone, total = no_longer_served(), len(speedups("suite"))
    return fill(
        f"On {len(gone)} of the {total} problems `matmul` runs another config by now, which a later search found: "
        f"{', '.join(gone)}.",
        WIDTH,
    )


def widened(record: Record) -> Record:
    """A cell of a comparison with the interval that holds on other boards, as published."""
    if record["status"] != "ok":
        return record
    ratio = Ratio(*(record[name] for name in ("speedup", "speedup_low", "speedup_high", "pairs")))
    wide = published(ratio, record["baseline_us"], record["looks"])
    return {**record, "speedup_low": wide.low, "speedup_high": wide.high}


def behind() -> str:
    """Problems on which the suite is behind, by the interval of the run and by the published one."""
    told = {"cublas": "`torch.mm`", "cublaslt": "cuBLASLt"}
    by_run, ends = [], {}
    for record in cells(recorded("suite").stage("compare")):
        place = f"{record['problem']} ({told[record['against']]})"
        by_run += [place] if record["speedup_high"] < 1 else []
        ends[place] = widened(record)["speedup_high"]
    closest = min(ends, key=lambda place: ends[place])
    wide = [place for place, high in ends.items() if high < 1]
    return fill(
        f"Behind by the whole interval of its run: {', '.join(by_run)}. By the whole interval that holds on other "
        f"boards: {', '.join(wide) or 'none'}; the closest is {closest}, whose upper end is {ends[closest]:.4f}x.",
        WIDTH,
    )


def moved() -> str:
    """Problems of the suite that moved by more than boards usually do since the run before, up or down."""
    now, then = speedups("suite"), speedups("suite-isolated-second")
    far = [one for one in now if abs(now[one] / then[one] - 1) > FAR]
    lines = [
        (one, f"{then[one]:.3f}x", f"{now[one]:.3f}x") for one in sorted(far, key=lambda one: then[one] / now[one])
    ]
    return markdown(("problem", "was, over torch.mm", "is"), lines)


def two_boards() -> str:
    """The newest kernel on two boards beside the headline, over the problems that both have."""
    lines = []
    for against, what in (("cublas", "torch.mm"), ("cublaslt", "the best of cuBLASLt")):
        now, then = speedups("suite-two-boards", against=against), speedups("suite", against=against)
        common = [problem for problem in then if problem in now]
        means = (f"{geometric_mean([each[one] for one in common]):.3f}x" for each in (now, then))
        least = min(common, key=lambda problem: now[problem])
        lines.append((what, str(len(common)), *means, f"{now[least]:.3f}x on {least}"))
    columns = ("over", "problems", "on two boards", "the table above", "least on two boards")
    return markdown(columns, lines)


def behind_on_a_board() -> str:
    """Problems on which the newest kernel was behind on a board, with both boards."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in recorded("suite-two-boards").stage("compare"):
        if row.ok and row.point.context == "isolated":
            found[str(row.point.problem), row.point.against].append(row)
    lines = [
        (problem, against, *(interval(row.figures) for row in sorted(rows, key=lambda row: row.board)))
        for (problem, against), rows in found.items()
        if any(row.figures["speedup_high"] < 1 for row in rows)
    ]
    return markdown(("problem", "baseline", "a board", "the other"), lines)


def untuned() -> str:
    """Comparisons that ran what the model picks."""
    lines = []
    for name, what in (("suite-auto", "the 24 of the suite"), ("short-again", "short problems")):
        rows = [row for row in recorded(name).stage("compare") if row.ok and row.figures.get("how") == "model"]
        rates = {str(row.point.problem): float(row.figures["speedup"]) for row in rows}
        least = min(rates, key=lambda problem: rates[problem])
        figures = f"{geometric_mean(list(rates.values())):.3f}x", f"{rates[least]:.3f}x on {least}"
        lines.append((f"{len(rates)}, {what}", rows[0].point.context, *figures, kernel_of(name)))
    return markdown(("problems", "context", "over torch.mm", "least", "kernel, measured"), lines)


def short_again() -> str:
    """The short problems that were searched again, beside their first search."""
    again = {
        str(row.point.problem): float(row.figures["speedup"])
        for row in recorded("short-again").stage("compare")
        if row.ok and row.figures.get("how") == "tuned"
    }
    first = speedups("short")
    common = [problem for problem in again if problem in first]
    means = (geometric_mean([each[problem] for problem in common]) for each in (again, first))
    moved = {problem: again[problem] / first[problem] for problem in common}
    least, most = min(moved, key=lambda one: moved[one]), max(moved, key=lambda one: moved[one])
    now, then = means
    return fill(
        f"{len(common)} of the problems were searched again without it, on another host, and the outcome is about the "
        f"same: {now:.3f}x, against {then:.3f}x on the same problems before. The best of a few hundred configs is a "
        f"matter of luck at this length: {least} moved by {100 * (moved[least] - 1):+.1f} %, {most} by "
        f"{100 * (moved[most] - 1):+.1f} %.",
        WIDTH,
    )


def steady() -> str:
    """Finals and comparisons at the power cap, isolated: the best config of each problem, board by board."""
    lines: list[tuple[str, ...]] = []
    for name in ("steady-i", "alone-steady", "suite-steady", "steady-j", "steady-layers", "steady-k"):
        study = recorded(name)
        stage = "final" if study.stage("final") else "compare"
        rows = [row for row in pooled(study.stage(stage)) if row.ok and not row.point.is_baseline]
        best = {str(row.point.problem): row for row in sorted(rows, key=lambda row: row.figures["speedup"])}
        page = study.path.relative_to(study.path.parents[2])
        link = f"[{name}](../results/{page}/{'table' if stage == 'final' else 'compare'}.md)"
        for problem, row in best.items():
            one = row.figures
            energy = f"{one['pj_per_flop']:.3f} ({one['baseline_pj_per_flop']:.3f})"
            config = f"`{short_label(row.point.config)}`"
            lines.append((problem, interval(one), energy, str(one["processes"]), row.board[4:8], config, link))
    columns = ("problem", "over torch.mm", "pJ/FLOP (torch.mm)", "processes", "board", "config", "study")
    return markdown(columns, sorted(lines))


def steady_rows(name: str, stage: str) -> str:
    """Every config of a study at the power cap."""
    lines = [
        (
            str(row.point.problem),
            f"`{short_label(row.point.config)}`",
            interval(row.figures),
            f"{row.figures['pj_per_flop']:.3f} ({row.figures['baseline_pj_per_flop']:.3f})",
            f"{row.figures['watts']:.0f}",
        )
        for row in pooled(recorded(name).stage(stage))
        if row.ok and not row.point.is_baseline
    ]
    return markdown(("problem", "config", "over torch.mm", "pJ/FLOP (torch.mm)", "watts"), lines)


def steady_chained() -> str:
    """Finals at the power cap that were measured chained, the best of each study and problem."""
    lines = []
    for name in ("steady-d", "steady-f", "steady-g", "steady-h"):
        for row in pooled(recorded(name).stage("final")):
            if row.ok and not row.point.is_baseline:
                energy = f"{row.figures['pj_per_flop']:.3f} ({row.figures['baseline_pj_per_flop']:.3f})"
                folder = recorded(name).path
                link = f"[{name}](../results/{folder.relative_to(folder.parents[2])})"
                lines.append((str(row.point.problem), interval(row.figures), energy, link))
    return markdown(("problem", "over torch.mm", "pJ/FLOP (torch.mm)", "study"), sorted(lines))
