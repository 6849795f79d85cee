"""The page and picture of a map: where we are ahead by the time of torch.mm, by how much, and what wins."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.shapes import STRATA, stratum_of
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import escaped, markdown_table
from hopper_gemm.tune.tables.style import EVEN, OURS, STYLE, THEIRS, save

MAP_LEGEND = (
    "Speedups are geometric means over torch.mm. pick: what the model takes without timing anything; best of 8: of its "
    "eight best picks; best: of all that was measured of a problem, drawn kernels included; the best of several is "
    "their luckiest, by the noise of one measurement. Lists: the fastest of cuBLASLt's heuristic list. Ahead, behind: "
    "problems whose whole interval of the pick lies above, below 1."
)


@dataclass(frozen=True)
class Mapped:
    """What a map knows of a problem.

    Args:
        problem: what was multiplied.
        torch_us: time of torch.mm, microseconds.
        pick, low, high: speedup of the pick over torch.mm, with its interval.
        of_picks, best: speedups of the best of the picks and of all kernels.
        listed: speedup of cuBLASLt's heuristic list over torch.mm; None where it was not measured.
        drawn: median speedup of the drawn kernels; None without any.
        kernel: the best.
    """

    problem: GemmProblem
    torch_us: float
    pick: float
    low: float
    high: float
    of_picks: float
    best: float
    listed: float | None
    drawn: float | None
    kernel: Kernel

    @property
    def stratum(self) -> int:
        """Index of the stratum, by the measured time of torch.mm."""
        return stratum_of(self.torch_us * 1e-6)

    @property
    def over_faster(self) -> float:
        """Speedup of the pick over the faster of torch.mm and the heuristic list."""
        return self.pick / max(1.0, self.listed or 1.0)


def mapped(rows: Iterable[Row]) -> list[Mapped]:
    """The problems of a map whose pick was measured.

    Args:
        rows: of stage ``map``.
    """
    by_problem: dict[GemmProblem, list[Row]] = defaultdict(list)
    for row in rows:
        if row.ok:
            by_problem[row.point.problem].append(row)
    return [one for of in by_problem.values() if (one := _mapped(of)) is not None]


def _mapped(rows: Sequence[Row]) -> Mapped | None:
    ours = [row for row in rows if row.point.against == "cublas"]
    hows = [(str(row.figures["how"]).split(", "), float(row.figures["speedup"])) for row in ours]
    pick = next((row.figures for row in ours if "pick 1" in str(row.figures["how"]).split(", ")), None)
    if pick is None:
        return None
    speed = float(pick["speedup"])
    beside = next((float(row.figures["speedup"]) for row in rows if row.point.against != "cublas"), None)
    best = max(ours, key=lambda row: row.figures["speedup"])
    return Mapped(
        problem=best.point.problem,
        torch_us=median(float(row.figures["baseline_us"]) for row in ours),
        pick=speed,
        low=float(pick["speedup_low"]),
        high=float(pick["speedup_high"]),
        of_picks=max(value for how, value in hows if how[0] != "drawn"),
        best=float(best.figures["speedup"]),
        listed=None if beside is None else speed / beside,
        drawn=median(drawn) if (drawn := [value for how, value in hows if "drawn" in how]) else None,
        kernel=best.point.config,
    )


def stratum_name(stratum: int) -> str:
    """The times of torch.mm of a stratum in words.

    Example:
        >>> stratum_name(0), stratum_name(1)
        ('under 4 us', '4 to 8 us')
    """
    low, high = (0.0, *STRATA)[stratum] * 1e6, STRATA[stratum] * 1e6
    if not low:
        return f"under {high:.0f} us"
    return f"over {low:.0f} us" if high == float("inf") else f"{low:.0f} to {high:.0f} us"


def by_stratum(found: Sequence[Mapped]) -> pd.DataFrame:
    """Numbers by stratum, and of all: ready to be shown."""
    parts = {stratum_name(index): [one for one in found if one.stratum == index] for index in range(len(STRATA))}
    parts["all"] = list(found)
    return pd.DataFrame({name: _figures(of) for name, of in parts.items() if of}).T


def _figures(found: Sequence[Mapped]) -> dict[str, str]:
    def mean(values: Iterable[float]) -> str:
        return f"{geometric_mean(values):.3f}"

    worst = min(found, key=lambda one: one.pick)
    listed = [one for one in found if one.listed is not None]
    return {
        "problems": str(len(found)),
        "pick": mean(one.pick for one in found),
        "least": f"{worst.pick:.3f} {problem_label(worst.problem)}",
        "ahead": str(sum(one.low > 1 for one in found)),
        "behind": str(sum(one.high < 1 for one in found)),
        "pick over the faster of torch.mm and lists": mean(one.over_faster for one in listed) if listed else "",
        "best of 8": mean(one.of_picks for one in found),
        "best": mean(one.best for one in found),
        "pick of best": mean(one.pick / one.best for one in found),
        "wins": wins(found),
    }


def wins(found: Sequence[Mapped]) -> str:
    """The commonest techniques of the best kernels."""
    counts = Counter(technique_words(one.kernel) for one in found)
    return ", ".join(f"{words} {count}" for words, count in counts.most_common(3))


def technique_words(kernel: Kernel) -> str:
    """A kernel's technique in a few words.

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
    """Markdown: numbers by stratum."""
    about, found = escaped(study.provenance), mapped(study.stage("map"))
    lines = [f"# {about['study']}", "", escaped(source_line(study.provenance)), "", about.get("question", ""), ""]
    rows = study.stage("map")
    failed = Counter(row.status for row in rows if not row.ok)
    told = ", ".join(f"{status.replace('_', ' ')} {count}" for status, count in failed.most_common()) or "none"
    lines += [f"{len(found)} problems, {len(rows)} rows; not measured: {told}.", ""]
    if found:
        lines += [markdown_table(by_stratum(found), "torch.mm takes"), ""]
    return "\n".join([*lines, MAP_LEGEND, ""])


@plt.rc_context(STYLE)
def map_picture(found: Sequence[Mapped], path: Path, title: str) -> None:
    """Draw every problem over the time of torch.mm: the pick, and the best of all that was measured.

    Args:
        found: problems.
        path: file to write.
        title: above the picture.
    """
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    us = [one.torch_us for one in found]
    series: Mapping[str, tuple[list[float], str]] = {
        "best of what was measured": ([one.best for one in found], THEIRS),
        "pick": ([one.pick for one in found], OURS),
    }
    for name, (speeds, colour) in series.items():
        axes.scatter(us, speeds, s=6, color=colour, alpha=0.6, linewidths=0, label=name, rasterized=len(found) > 500)
    axes.axhline(1, color=EVEN, linewidth=0.8)
    for end in STRATA[:-1]:
        axes.axvline(end * 1e6, color=EVEN, linewidth=0.5, linestyle=":")
    axes.set(xscale="log", xlabel="time of torch.mm, us", ylabel="speedup over torch.mm")
    axes.legend(loc="upper right")
    save(figure, path, title)
