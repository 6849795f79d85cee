"""How far boards and processes lie apart in the recorded rows, and how often intervals and verdicts are right.

The components of :mod:`hopper_gemm.tune.measure.verdict` are estimated here, from finals and comparisons of the same
machine code, and checked on boards from which nothing was estimated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable
from functools import cache
from math import ceil, inf, sqrt

import numpy as np
import pandas as pd

from docs.generate.measurements import measurement
from docs.generate.pages.sources import read
from docs.generate.pages.wording import cube
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.measure.verdict import Component, Z, paired_verdict
from hopper_gemm.tune.statistics import CONFIDENCE, Ratio
from hopper_gemm.tune.study.reader import Study, read_provenance, recorded_folders
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.tables.pivot import markdown

SEEDS = range(50)
"""Seeds by which the boards are drawn into halves."""

SEVERAL = (9,)
"""Processes, board by board, of the narrower interval that the page shows."""


KIND = "NVIDIA H200"
"""Kind of GPU whose boards are compared."""


CLASSES = (8.0, 20.0, 150.0, inf)
"""Upper ends of the classes of duration, microseconds of a launch of the baseline."""

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t of a 95 % interval by degrees of freedom, from 1; see :func:`student`."""


def class_of(duration_us: float) -> float:
    """Return the upper end of the class of a duration."""
    return next(limit for limit in CLASSES if duration_us <= limit)


def student(freedom: int) -> float:
    """Return Student's t, the standard deviations in half of a 95 % interval, by degrees of freedom; beyond the table
    by the first term of its expansion, right to a hundredth."""
    return STUDENT[freedom - 1] if freedom <= len(STUDENT) else Z + (Z**3 + Z) / (4 * freedom)


@cache
def with_boards() -> tuple[Study, ...]:
    """Recorded studies whose rows name their board."""
    return tuple(read(folder) for folder in recorded_folders() if "boards" in read_provenance(folder))


def floors() -> list[Row]:
    """Noise floors (torch.mm beside itself) in bursts, of studies whose rows name their board."""
    rows = (row for study in with_boards() for row in study.stage("control"))
    return [row for row in rows if row.ok and row.point.regime == "burst"]


def same_code() -> pd.DataFrame:
    """Every final and comparison with torch.mm, in bursts, on an H200 that is known: boards of another kind differ by
    more.

    Returns:
        entry (equal in machine code, config, problem and context), board, us (of a launch of torch.mm) and log (of the
        speedup).
    """
    studies = [study for study in with_boards() if study.provenance["gpu"]["name"] == KIND]
    rows = (row for study in studies for row in (*study.stage("final"), *study.stage("compare")) if row.ok)
    found = [
        (f"{row.figures['code']} {row.point}", row.board, row.figures["baseline_us"], np.log(row.figures["speedup"]))
        for row in rows
        if row.board != "unknown" and "code" in row.figures and not row.point.is_baseline
        if (row.point.against, row.point.regime) == ("cublas", "burst")
    ]
    return pd.DataFrame(found, columns=["entry", "board", "us", "log"])


def components_of(measured: pd.DataFrame) -> dict[float, Component]:
    """The component of each class of duration in which an entry was measured on two boards or more, by its limit.

    An entry is of the class of its median duration. The standard deviations are moments of a one-way layout of random
    effects, pooled over entries: the mean squares between boards, less what the scatter within boards contributes to
    them. Where nothing was measured twice on a board, *within* is 0 and what it would be is part of *between*. Half of
    an interval is Student's t, with a degree of freedom for each independent difference between boards; or the 95 %
    quantile of the differences between two processes on different boards where that is more, as a conformal one, whose
    rank counts the difference to come.

    Args:
        measured: as :func:`same_code` gives it.
    """
    found = {}
    for most_us, part in measured.groupby(measured.groupby("entry")["us"].transform("median").map(class_of)):
        apart = pairs(part).query("board < board_other")
        if apart.empty:
            continue
        cells = part.groupby(["entry", "board"])["log"].agg(["mean", "var", "size"])
        repeats = cells["size"] - 1
        within = (repeats * cells["var"].fillna(0.0)).sum() / max(repeats.sum(), 1)
        several = cells[cells.index.get_level_values("entry").isin(apart["entry"])]
        means, others = several["mean"].groupby("entry"), several.groupby("entry").size() - 1
        shares = (1 / several["size"]).groupby("entry").mean()
        between = max(0.0, (others * (means.var() - within * shares)).sum()) / others.sum()
        ran = pd.get_dummies(several.index.get_level_values("board"), dtype=float).set_index(several.index)
        freedom = int(np.linalg.matrix_rank(ran - ran.groupby("entry").transform("mean")))
        rank = min(len(apart), ceil(CONFIDENCE * (len(apart) + 1)))
        widest = apart["apart"].sort_values().iloc[rank - 1] / sqrt(2 * (between + within))
        deviations = max(student(freedom), float(widest))
        found[most_us] = Component(most_us, sqrt(between), sqrt(within), deviations, len(others), len(ran.columns))
    return found


def pairs(measured: pd.DataFrame) -> pd.DataFrame:
    """Every measurement beside each of the same entry on another board (``_other``), and how far they lie ``apart``."""
    both = measured.merge(measured, on="entry", suffixes=("", "_other")).query("board != board_other")
    return both.assign(apart=(both["log"] - both["log_other"]).abs())


def coverage(measured: pd.DataFrame, left_out: Iterable[Collection[str]]) -> pd.DataFrame:
    """Check published intervals on boards from which nothing was estimated.

    The measurements of the boards that are left out are compared with those of the same entries on all other boards,
    each with the interval that follows from components estimated without these boards. Two intervals are right where
    the measurements differ by no more than the root of their summed squares, as two unbiased measurements do 95 times
    in a hundred.

    Args:
        measured: as :func:`same_code` gives it.
        left_out: boards that are left out together, one group after the other.

    Returns:
        By class of duration: ``mean``, the share that is right, and ``size``, of so many.
    """
    found, both = [], pairs(measured)
    for boards in left_out:
        known = components_of(measured[~measured["board"].isin(boards)])
        halves = {most_us: component.half_width() for most_us, component in known.items()}
        part = both[both["board"].isin(boards)]
        own, other = (part[us].map(class_of).map(halves) for us in ("us", "us_other"))
        limit = np.hypot(own, other)
        found.append((part["apart"] <= limit)[limit.notna()].groupby(part["us"].map(class_of)))
    counted = pd.concat([each.agg(["sum", "size"]) for each in found]).groupby(level=0).sum()
    return pd.DataFrame({"mean": counted["sum"] / counted["size"], "size": counted["size"]})


def in_halves(boards: Iterable[str]) -> list[list[str]]:
    """Halves of the boards, both of each drawing."""
    found = []
    for seed in SEEDS:
        drawn = random.Random(seed).sample(sorted(set(boards)), len(set(boards)))
        found += [drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]]
    return found


def spread() -> str:
    """Table of the components, of the intervals that follow, and of how often these are right on boards left out."""
    measured = same_code()
    boards = measured["board"].unique()
    alone, half = (coverage(measured, left_out) for left_out in ([[one] for one in boards], in_halves(boards)))
    runs, lines = controls(), []
    for most_us, one in components_of(measured).items():
        apart = f"{one.between:.2%}", f"{one.within:.2%}", f"{one.entries} on {one.boards} boards"
        wide = (f"{one.half_width(looks):.1%}" for looks in ((1,), SEVERAL))
        right = f"{alone['mean'][most_us]:.1%} of {alone['size'][most_us]}", f"{half['mean'][most_us]:.1%}"
        run = f"{runs['mean'][most_us]:.1%} of {runs['size'][most_us]}"
        lines.append((launch(most_us), *apart, *wide, *right, run))
    several = f"{SEVERAL[0]} processes"
    names = "between boards", "between processes", "entries", "1 process", several, "one board left out", "half of them"
    return markdown(("launch of torch.mm", *names, "of a run"), lines)


def launch(most_us: float) -> str:
    """A class of duration in words."""
    return "longer" if most_us == inf else f"up to {most_us:.0f} us"


def controls() -> pd.DataFrame:
    """The share, by class of duration, of noise floors (torch.mm beside itself, bursts) whose interval holds 1."""
    rows = [row.figures for row in floors()]
    held = pd.Series([one["speedup_low"] <= 1 <= one["speedup_high"] for one in rows])
    return held.groupby([class_of(one["baseline_us"]) for one in rows]).agg(["mean", "size"])


def guard() -> str:
    """Verdicts of the guard on equal machine code, and on the same ratios with one side 1.5 % slower: from its checks
    and from noise floors, in which cuBLAS runs beside itself."""
    (path,) = results_root().glob("*/checks.jsonl")
    checks = [json.loads(line) for line in measurement(path).read_text().splitlines()]
    distinct = {(row.board, str(row.point), row.samples): row.figures for row in floors()}
    known = [(of, one) for of, one in distinct.items() if of[0] != "unknown" and len(of[2]) >= 7]
    taken = {
        "checks": [(one["board"], one["noise"], one["ratio"], one["low"], one["high"]) for one in checks],
        "noise floors": [
            (board, 0.0, one["speedup"], one["speedup_low"], one["speedup_high"]) for (board, *_), one in known
        ],
    }
    lines = []
    for name, found in taken.items():
        for told, slower in (("equal", 1.0), ("one 1.5 % slower", 1.015)):
            said = [
                paired_verdict(Ratio(middle / slower, low / slower, high / slower, 0), noise).status
                for _, noise, middle, low, high in found
            ]
            boards = str(len({board for board, *_ in found}))
            counts = (str(said.count(word)) for word in ("held", "unsure", "fallen"))
            lines.append((name, told, str(len(found)), boards, *counts))
    return markdown(("pairs of", "sides", "measured", "boards", "held", "unsure", "fallen"), lines)


def placement() -> str:
    """Table of a problem's kernels on graphs that were captured anew, and on matrices that were allocated anew."""
    found = json.loads(measurement("measurements/placement.json").read_text())
    lines = [
        (
            name,
            *(
                f"{min(times):.1f} to {max(times):.1f}"
                for times in (found["captures"][name], found["placements"][name])
            ),
        )
        for name in found["captures"]
    ]
    many = (f"{len(found[kind]['torch.mm'])} {kind}, us" for kind in ("captures", "placements"))
    return markdown(("kernel", *many), lines)


def planted() -> str:
    """Table of kernels that were made slower on purpose: the guard's verdict, speed over the recorded binary, and where
    the guard warned that the speedup over cuBLAS is far from its record."""
    plants = json.loads(measurement("measurements/planted.json").read_text())
    problems = sorted(
        {one["problem"] for plant in plants for one in plant["checked"]}, key=lambda name: (len(name), name)
    )
    lines = []
    for plant in plants:
        said = {
            one["problem"]: f"{one['status']}, {one['ratio']:.4f}x{', warned' if one.get('warning') else ''}"
            for one in plant["checked"]
        }
        lines.append((plant["plant"], *(said.get(name, "") for name in problems), str(plant["exit"])))
    return markdown(("planted", *map(cube, problems), "exit code"), lines)
