"""The worth of a kernel that is the best on one kind of GPU on the other kind, beside what another board of the same
kind and another day change."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import exp, hypot, log

import pandas as pd

from docs.generate.pages.comparisons import ON_H100S, over
from docs.generate.pages.means import mean_figure, share_of_best
from docs.generate.pages.sources import read, recorded
from docs.generate.pages.wording import short_label, wrapped
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.measure.verdict import mean_of
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.reader import recorded_folders
from hopper_gemm.tune.study.shapes import STRATA, stratum_of
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import as_published
from hopper_gemm.tune.tables.mapped import stratum_name
from hopper_gemm.tune.tables.pivot import markdown

RUNS = {
    "H200": "h200/map-held-out",
    "H200, earlier": "archive/h200/2026-11-25-map-held-out",
    "H100": "h100/untuned/map-held-out-again",
    "H100, earlier": "archive/h100/2026-11-25-map-held-out",
}
"""Runs of the held-out problems, each on boards of its own."""

ACROSS = (("H200", "H100"), ("H100", "H200"))
ALIKE = (("H200, earlier", "H200"), ("H100, earlier", "H100"))

FROM_H200S = ("suite-on-h100", "suite-on-h100-second")
"""The suite on two boards of NVIDIA H100s, by entries that were tuned on an H200."""

LEAST_SHARED = 4
"""Fewest kernels that both runs measured of a problem."""


@cache
def speeds(run: str) -> pd.DataFrame:
    """The speedup over torch.mm of every problem and kernel of a run, with the label of the kernel and the time of
    torch.mm."""
    rows = [
        (
            problem_label(row.point.problem),
            str(row.point.config),
            row.figures["speedup"],
            row.figures["baseline_us"],
            row.point,
        )
        for row in pooled(read(results_root() / RUNS[run]).stage("map"))
        if row.ok and row.point.against == "cublas"
    ]
    columns = ["problem", "kernel", "speedup", "torch_us", "point"]
    return pd.DataFrame(rows, columns=columns).drop_duplicates(["problem", "kernel"]).set_index(["problem", "kernel"])


@cache
def kept(tuned: str, run: str) -> pd.DataFrame:
    """By problem: the share of the best speedup on one run that the best kernel of another has there, among the kernels
    that both measured; both kernels, and the time of torch.mm."""
    both = speeds(tuned).add_suffix("_tuned").join(speeds(run), how="inner")
    found = []
    for problem, part in both.groupby(level="problem"):
        if len(part) >= LEAST_SHARED:
            own, best = part.loc[part["speedup_tuned"].idxmax()], part.loc[part["speedup"].idxmax()]
            share = own["speedup"] / best["speedup"]
            names = short_label(own["point"].config), short_label(best["point"].config)
            found.append((problem, len(part), share, *names, part["torch_us"].median()))
    columns = ["problem", "kernels", "kept", "tuned", "best", "torch_us"]
    return pd.DataFrame(found, columns=columns).set_index("problem")


def _worth(part: pd.DataFrame) -> tuple[str, ...]:
    least = part["kept"].idxmin()
    same = (part["kept"] == 1).mean()
    return str(len(part)), share_of_best(part["kept"]), f"{part['kept'].min():.3f} on {least}", f"{same:.0%}"


def table() -> str:
    """The share that is kept across kinds of GPU, beside boards of one kind; then by the time of torch.mm."""
    lines = [(tuned, run, *_worth(kept(tuned, run))) for tuned, run in (*ACROSS, *ALIKE)]
    names = "problems", "kept", "least", "the same kernel is the best"
    first = markdown(("the best of", "run on", *names), lines)
    lines = []
    for stratum in range(len(STRATA)):
        parts = [kept(*pair) for pair in ACROSS]
        parts = [part[[stratum_of(us * 1e-6) == stratum for us in part["torch_us"]]] for part in parts]
        if all(map(len, parts)):
            cells = (f"{share_of_best(part['kept'])}, least {part['kept'].min():.3f}" for part in parts)
            lines.append((stratum_name(stratum), str(len(parts[0])), *cells))
    heads = (f"{tuned}'s best on the {run}" for tuned, run in ACROSS)
    return f"{first}\n\n{markdown(('torch.mm takes', 'problems', *heads), lines)}"


def furthest() -> str:
    """The problems that keep least, both ways, with both kernels."""
    lines = []
    for tuned, run in ACROSS:
        for problem, row in kept(tuned, run).nsmallest(5, "kept").iterrows():
            us = f"{row['torch_us']:.1f}"
            kernels = f"`{row['tuned']}`", f"`{row['best']}`"
            lines.append((f"{tuned} to {run}", str(problem), us, f"{row['kept']:.3f}", *kernels))
    return markdown(
        ("from, to", "problem", "torch.mm, us", "kept", "the best where tuned", "the best where run"), lines
    )


def reason() -> str:
    """In a sentence how the tiles differ where less than 97 % is kept."""
    told = []
    for tuned, run in ACROSS:
        part = kept(tuned, run).query("kept < 0.97")
        areas = [[_area(label) for label in part[column]] for column in ("tuned", "best")]
        larger = sum(best > own for own, best in zip(*areas, strict=True))
        smaller = sum(best < own for own, best in zip(*areas, strict=True))
        told.append(f"on an {run} the best tile is the larger one on {larger} of {len(part)}, the smaller on {smaller}")
    return wrapped(
        f"Of the problems that keep less than 97 %, {told[0]}; {told[1]}. An H100 has two thirds of an H200's memory "
        "rate, and a larger tile reads fewer bytes for each operation."
    )


def _area(label: str) -> int:
    tile_m, tile_n = label.split()[0].split("x")
    return int(tile_m) * int(tile_n)


def suite_configs(name: str) -> dict[str, Kernel]:
    """Return the configs of a comparison by problem."""
    return {str(row.point.problem): row.point.config for row in recorded(name).stage("compare") if not row.process}


@cache
def kept_entries() -> dict[str, Ratio]:
    """Return by problem the speed of an H200's entry of the suite over that of an H100's, both on H100s: of each the
    mean over torch.mm of all boards, no board twice."""
    kept = {}
    for problem in over(ON_H100S[0]):
        there, own = (
            mean_of([as_published(over(name)[problem]["cublas"]) for name in names]) for names in (FROM_H200S, ON_H100S)
        )
        share = there.median / own.median
        half = hypot(*(log(side.high / side.low) / 2 for side in (there, own)))
        kept[problem] = Ratio(share, share * exp(-half), share * exp(half), own.pairs)
    return kept


@cache
def kept_back() -> dict[str, float]:
    """Return by problem the speed of an H100's entry over the best that an H200's study measured beside it, finals
    before sweeps, the newest study first; only where an H200 measured it."""
    entries, kept = suite_configs(ON_H100S[0]), dict[str, tuple[tuple[bool, str], float]]()
    for folder in recorded_folders():
        study = read(folder)
        if study.provenance["gpu"]["name"] != "NVIDIA H200":
            continue
        for stage in ("final", "sweep"):
            speeds: dict[str, dict[Kernel, float]] = {}
            for row in pooled(study.stage(stage)):
                conditions = row.point.regime, row.point.context, row.point.against, row.point.data
                if row.ok and not row.point.is_baseline and conditions == ("burst", "isolated", "cublas", "normal"):
                    speeds.setdefault(str(row.point.problem), {})[row.point.config] = row.figures["speedup"]
            for problem, of in speeds.items():
                if (config := entries.get(problem)) in of:
                    best = (stage == "final", study.provenance["created"]), of[config] / max(of.values())
                    kept[problem] = max(kept.get(problem, best), best)
    return {problem: share for problem, (_, share) in kept.items()}


def entries() -> str:
    """The suite problem by problem: what an entry of the other GPU keeps, both ways, and means with intervals."""
    there, here = suite_configs(FROM_H200S[0]), suite_configs(ON_H100S[0])
    lines = []
    for problem, ratio in sorted(kept_entries().items(), key=lambda item: item[1].median):
        same = there[problem] == here[problem]
        back = "the same" if same else f"{kept_back()[problem]:.3f}" if problem in kept_back() else "not measured"
        labels = f"`{short_label(there[problem])}`", "the same" if same else f"`{short_label(here[problem])}`"
        lines.append((problem, f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]", back, *labels))
    heads = "problem", "H200's entry on H100s", "H100's entry on an H200", "H200's entry", "H100's entry"
    return f"{markdown(heads, lines)}\n\n{entries_sentence()}"


def entries_sentence() -> str:
    """In sentences what the entries of the suite keep on the other GPU, and where not."""
    there, here = suite_configs(FROM_H200S[0]), suite_configs(ON_H100S[0])
    equal = [ratio for problem, ratio in kept_entries().items() if there[problem] == here[problem]]
    other = {problem: ratio for problem, ratio in kept_entries().items() if there[problem] != here[problem]}
    behind = [problem for problem, ratio in other.items() if ratio.high < 1]
    ahead = [problem for problem, ratio in other.items() if ratio.low > 1]
    back = [share for problem, share in kept_back().items() if problem in other]
    return wrapped(
        f"Of the suite's {len(kept_entries())} entries the searches of both GPUs chose the same config on "
        f"{len(equal)}; the other {len(other)} of the H200 keep {_share(other.values())} of the speed of the H100's on "
        f"H100s. That is what other boards and days alone change: the {len(equal)} equal ones have {_share(equal)}. By "
        f"its whole interval an H200's entry is slower on {len(behind)} ({', '.join(behind)}) and faster on "
        f"{len(ahead)} ({', '.join(ahead)}), where the search of the H100 fell short. Back, {len(back)} of the "
        f"{len(other)} were measured on an H200, by earlier kernels beside hundreds of others: {share_of_best(back)} "
        f"of the best, least {min(back):.3f}."
    )


def _share(ratios: Iterable[Ratio]) -> str:
    return mean_figure(ratios).replace("x", "")


def answer() -> str:
    """In a sentence what is kept."""
    texts, alike = ([share_of_best(kept(*pair)["kept"]) for pair in pairs] for pairs in (ACROSS, ALIKE))
    least = [kept(*pair)["kept"].min() for pair in ACROSS]
    return wrapped(
        f"*Answer.* Nearly all. On the held-out problems an H200's best kernel has {texts[0]} of the speed of the "
        f"best on an H100 (least {least[0]:.3f}), an H100's {texts[1]} on an H200 (least {least[1]:.3f}). On another "
        f"board of the same kind, on another day, {alike[0]} and {alike[1]} are kept: so much is lost by "
        "choosing from one measurement."
    )
