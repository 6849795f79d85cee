"""Findings across the recorded comparisons: differences between boards, entries served today, untuned problems."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from math import inf
from statistics import median
from textwrap import fill

from hopper_gemm.lab.pages.sources import recorded
from hopper_gemm.model.tuned import pick, recorded_entries
from hopper_gemm.tune.measure.verdict import CLASSES, published
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.pivot import interval, markdown, short_label

ISOLATED = (
    *("suite", "suite-two-boards", "suite-isolated-again", "suite-isolated-second", "suite-isolated-first"),
    *("short", "short-again", "drawn"),
)
"""Comparisons between other kernels."""

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


def behind() -> str:
    """Problems on which the suite is behind, by the interval of the run and by the published one."""
    rows = [row for row in recorded("suite").stage("compare") if row.ok]
    named = {"cublas": "`torch.mm`", "cublaslt": "cuBLASLt"}
    by_run, ends = [], {}
    for row in rows:
        one = row.figures
        ratio = Ratio(one["speedup"], one["speedup_low"], one["speedup_high"], one["pairs"])
        place = f"{row.point.problem} ({named[row.point.against]})"
        by_run += [place] if one["speedup_high"] < 1 else []
        ends[place] = published(ratio, one["baseline_us"], looks=one["processes"]).high
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


def boards() -> str:
    """Table of the spread between two boards of isolated comparisons of equal machine code, by duration."""
    entries: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    durations: dict[str, list[float]] = defaultdict(list)
    for row in (row for name in ISOLATED for row in recorded(name).stage("compare")):
        known = row.ok and row.board != "unknown" and "code" in row.figures
        if known and row.point.against == "cublas" and row.point.context == "isolated":
            entry = f"{row.figures['code']} {row.point}"
            entries[entry][row.board].append(float(row.figures["speedup"]))
            durations[entry].append(float(row.figures["baseline_us"]))
    apart: dict[float, list[float]] = defaultdict(list)
    for entry, by_board in entries.items():
        limit = next(most for most in CLASSES if median(durations[entry]) <= most)
        apart[limit] += [abs(a / b - 1) for a, b in combinations(map(median, by_board.values()), 2)]
    lines = []
    for limit, ratios in sorted(apart.items()):
        launch = "longer" if limit == inf else f"up to {limit:.0f} us"
        far = str(sum(ratio > FAR for ratio in ratios))
        lines.append((launch, str(len(ratios)), f"{median(ratios):.1%}", far, f"{max(ratios):.1%}"))
    return markdown(("launch of torch.mm", "pairs of boards", "median difference", f"over {FAR:.1%}", "largest"), lines)


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
