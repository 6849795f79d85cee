"""The page and picture of a map: where we are ahead by the time of torch.mm, by how much, and the fastest kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import recipe_of
from hopper_gemm.tune.measure.verdict import mean_of, published
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.shapes import STRATA, stratum_of
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import escaped, markdown_table
from hopper_gemm.tune.tables.style import EVEN, OURS, STYLE, THEIRS, save

MAP_LEGEND = (
    "Speedups are geometric means over torch.mm. pick: what the model takes without timing anything; best of 8: of "
    "its eight best picks; best: of all that was measured of a problem, drawn kernels included; the best of several "
    "is their luckiest, by the noise of one measurement. Lists: the fastest of cuBLASLt's heuristic list. Ahead: the "
    "number of problems on which the pick is faster than torch.mm by its whole interval, which lies above 1; behind: "
    "on which it is slower, the whole interval below 1; on the others 1 lies within. That interval is of a problem's "
    "own repetitions: pairs of times, ours and torch.mm's, taken in turn in one process on one board; of 100 medians "
    "of pairs drawn from them again, 95 lie within. Intervals in the table are wider: 95 %, for other processes and "
    "boards too, of each figure relative to it as wide as that of the pick. Fastest kernels: the three most frequent "
    "ways in which the fastest measured kernel of a problem is built, and of how many problems; narrow: a side of its "
    "tile is under 64; small: m of its tile is under 128; wide: neither; swapped: it computes the transpose; dynamic: "
    "a CTA takes its next tile when it is free."
)

FASTEST = "fastest kernels"
"""Column of :func:`by_stratum` with the techniques of the fastest measured kernels."""

FP8_LEGEND = (
    "Of FP8, torch.mm stands for torch's scaled_mm by the same recipe: scales, and elements of k to a promotion."
)


@dataclass(frozen=True)
class Mapped:
    """The measurements of one problem of a map."""

    problem: GemmProblem
    torch_us: float  # time of torch.mm, microseconds
    pick: float  # speedup of the pick over torch.mm, with its interval
    low: float
    high: float
    of_picks: float  # speedup of the best of the picks
    best: float  # of all kernels
    listed: float | None  # speedup of cuBLASLt's heuristic list over torch.mm; None where it was not measured
    kernel: Kernel  # the best

    @property
    def stratum(self) -> int:
        """Index of the stratum, by the measured time of torch.mm."""
        return stratum_of(self.torch_us * 1e-6)

    @property
    def over_faster(self) -> float:
        """Speedup of the pick over the faster of torch.mm and the heuristic list."""
        return self.pick / max(1.0, self.listed or 1.0)


def mapped(rows: Iterable[Row]) -> list[Mapped]:
    """Return the problems of a map whose pick was measured."""
    by_problem = grouped((row for row in rows if row.ok), lambda row: row.point.problem)
    return [problem for part in by_problem.values() if (problem := _mapped(part)) is not None]


def _mapped(rows: Sequence[Row]) -> Mapped | None:
    """Return the measurements from the rows of a problem; None where its pick was not measured."""
    ours = [(row, str(row.figures["how"]).split(", ")) for row in rows if row.point.against == "cublas"]
    pick = next((row.figures for row, origins in ours if "pick 1" in origins), None)
    if pick is None:
        return None
    speedup = float(pick["speedup"])
    over_list = next((float(row.figures["speedup"]) for row in rows if row.point.against != "cublas"), None)
    best = max((row for row, _ in ours), key=lambda row: row.figures["speedup"])
    return Mapped(
        problem=best.point.problem,
        torch_us=median(float(row.figures["baseline_us"]) for row, _ in ours),
        pick=speedup,
        low=float(pick["speedup_low"]),
        high=float(pick["speedup_high"]),
        of_picks=max(float(row.figures["speedup"]) for row, origins in ours if origins[0] != "drawn"),
        best=float(best.figures["speedup"]),
        listed=None if over_list is None else speedup / over_list,
        kernel=best.point.config,
    )


def stratum_name(stratum: int) -> str:
    """Return the times of torch.mm of a stratum in words.

    Example:
        >>> stratum_name(0), stratum_name(1)
        ('under 4 us', '4 to 8 us')
    """
    low, high = (0.0, *STRATA)[stratum] * 1e6, STRATA[stratum] * 1e6
    if not low:
        return f"under {high:.0f} us"
    return f"over {low:.0f} us" if high == float("inf") else f"{low:.0f} to {high:.0f} us"


def of_fp8(problems: Sequence[Mapped]) -> bool:
    """Return True for problems of FP8, which :func:`by_stratum` has by recipe."""
    return any(problem.problem.is_fp8 for problem in problems)


def heading(problems: Sequence[Mapped]) -> str:
    """Return the heading of what :func:`by_stratum` has rows of."""
    return "recipe" if of_fp8(problems) else "torch.mm takes"


def by_stratum(problems: Sequence[Mapped]) -> pd.DataFrame:
    """Return the figures of each stratum, then of all problems, as text; of FP8 those of each recipe, which are not
    comparable."""
    if of_fp8(problems):
        by_recipe = grouped(problems, lambda problem: recipe_of(problem.problem))
        return pd.DataFrame({name: _figures(part) for name, part in by_recipe.items()}).T
    parts = {
        stratum_name(index): [problem for problem in problems if problem.stratum == index]
        for index in range(len(STRATA))
    }
    parts["all"] = list(problems)
    return pd.DataFrame({name: _figures(part) for name, part in parts.items() if part}).T


def _figures(problems: Sequence[Mapped]) -> dict[str, str]:
    def mean(part: Sequence[Mapped], figure: Callable[[Mapped], float]) -> str:
        """Return the geometric mean of a figure, whose interval is relative to it as wide as that of the picks."""
        scaled = ((problem, figure(problem) / problem.pick) for problem in part)
        ends = ((Ratio(one.pick * x, one.low * x, one.high * x, 1), one.torch_us) for one, x in scaled)
        ratio = mean_of([published(*end) for end in ends])
        return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"

    techniques = Counter(technique_words(problem.kernel) for problem in problems)
    worst = min(problems, key=lambda problem: problem.pick)
    listed = [problem for problem in problems if problem.listed is not None]
    over_faster = mean(listed, lambda problem: problem.over_faster) if listed else ""
    return {
        "problems": str(len(problems)),
        "pick": mean(problems, lambda problem: problem.pick),
        "least": f"{worst.pick:.3f} {problem_label(worst.problem)}",
        "ahead": str(sum(problem.low > 1 for problem in problems)),
        "behind": str(sum(problem.high < 1 for problem in problems)),
        "pick over the faster of torch.mm and lists": over_faster,
        "best of 8": mean(problems, lambda problem: problem.of_picks),
        "best": mean(problems, lambda problem: problem.best),
        "pick of best": mean(problems, lambda problem: problem.pick / problem.best),
        FASTEST: "; ".join(f"{words} {count}" for words, count in techniques.most_common(3)),
    }


def technique_words(kernel: Kernel) -> str:
    """Return a kernel's technique in a few words.

    Example:
        >>> from hopper_gemm.model.kernel import resolve
        >>> from hopper_gemm.model.config import GemmConfig
        >>> technique_words(resolve(GemmConfig(tile_m=64, tile_n=16, swap_ab=True)))
        'narrow, swapped'
    """
    if kernel.split_k > 1:
        words = [f"split-K by {kernel.reduction}"]
    elif kernel.schedule == "pingpong":
        words = ["pingpong"]
    else:
        words = ["narrow" if min(kernel.tile_m, kernel.tile_n) < 64 else "small" if kernel.tile_m < 128 else "wide"]
    words += ["swapped"] * kernel.swap_ab + ["dynamic"] * (kernel.scheduler == "dynamic")
    return ", ".join(words)


def map_page(study: Study) -> str:
    """Return the page of a map in Markdown: figures by stratum."""
    provenance, rows = escaped(study.provenance), study.stage("map")
    problems, failed = mapped(rows), Counter(row.status for row in rows if not row.ok)
    lines = [f"# {provenance['study']}", "", escaped(source_line(study.provenance)), ""]
    lines += [provenance.get("question", ""), ""]
    failures = ", ".join(f"{status.replace('_', ' ')} {count}" for status, count in failed.most_common()) or "none"
    lines += [f"{len(problems)} problems, {len(rows)} rows; not measured: {failures}.", ""]
    if problems:
        lines += [markdown_table(by_stratum(problems), heading(problems)), ""]
    fp8 = [FP8_LEGEND, ""] if of_fp8(problems) else []
    return "\n".join([*lines, MAP_LEGEND, "", *fp8])


@plt.rc_context(STYLE)
def map_picture(problems: Sequence[Mapped], path: Path, title: str) -> None:
    """Draw every problem over the time of torch.mm: its pick, and its best measured kernel."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    us = [problem.torch_us for problem in problems]
    series: Mapping[str, tuple[list[float], str]] = {
        "best of what was measured": ([problem.best for problem in problems], THEIRS),
        "pick": ([problem.pick for problem in problems], OURS),
    }
    for name, (speeds, colour) in series.items():
        axes.scatter(us, speeds, s=6, color=colour, alpha=0.6, linewidths=0, label=name, rasterized=len(problems) > 500)
    axes.axhline(1, color=EVEN, linewidth=0.8)
    for end in STRATA[:-1]:
        axes.axvline(end * 1e6, color=EVEN, linewidth=0.5, linestyle=":")
    axes.set(xscale="log", xlabel="time of torch.mm, us", ylabel="speedup over torch.mm")
    axes.legend(loc="upper right")
    save(figure, path, title)
