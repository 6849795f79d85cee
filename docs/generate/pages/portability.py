"""The worth of a kernel that is the best on one kind of GPU on the other kind, beside what another board of the same
kind and another day change."""

from __future__ import annotations

from functools import cache

import pandas as pd

from docs.generate.pages.means import over_problems
from docs.generate.pages.sources import read
from docs.generate.pages.wording import short_label, wrapped
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.shapes import STRATA, stratum_of
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import geometric_mean
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
    mean, low, high = over_problems(part["kept"])
    least = part["kept"].idxmin()
    same = (part["kept"] == 1).mean()
    return str(len(part)), f"{mean:.3f} [{low:.3f}, {high:.3f}]", f"{part['kept'].min():.3f} on {least}", f"{same:.0%}"


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
            means = (f"{geometric_mean(part['kept']):.3f}, least {part['kept'].min():.3f}" for part in parts)
            lines.append((stratum_name(stratum), str(len(parts[0])), *means))
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


def answer() -> str:
    """In a sentence what is kept."""
    (there, back), alike = ([over_problems(kept(*pair)["kept"]) for pair in pairs] for pairs in (ACROSS, ALIKE))
    texts = [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in (there, back)]
    least = [kept(*pair)["kept"].min() for pair in ACROSS]
    return wrapped(
        f"*Answer.* Nearly all. On the held-out problems an H200's best kernel has {texts[0]} of the speed of the "
        f"best on an H100 (least {least[0]:.3f}), an H100's {texts[1]} on an H200 (least {least[1]:.3f}). On another "
        f"board of the same kind, on another day, {alike[0][0]:.3f} and {alike[1][0]:.3f} are kept: so much is lost by "
        "choosing from one measurement."
    )
