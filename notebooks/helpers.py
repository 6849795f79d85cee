"""Helpers of the notebooks: studies to read, figures that follow from a config, comparisons, small pictures.

Names of the package are passed on; the functions below are used by notebooks alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from docs.generate.pages import depth, portability, rings, samplers
from docs.generate.pages.chapters import Window, timelines
from docs.generate.pages.counted import panels, tile_order, with_counters, with_derived
from docs.generate.pages.means import mean_figure, pick_of
from docs.generate.pages.pictures import patch, show_small
from docs.generate.pages.prices import invariant_published, invariant_rows
from docs.generate.pages.sources import before, recorded
from docs.generate.pages.wording import cube, short_label
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import resolve, swizzle_bytes
from hopper_gemm.model.predict import ModelConstants, predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import best_swizzle, cluster_tiles, clusters_at_once
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.limits import smem_reads_per_flop, waves
from hopper_gemm.tune.parameters import FIELDS, kernel_of
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.ladder import Result, ladder
from hopper_gemm.tune.tables.mapped import mapped
from hopper_gemm.tune.tables.pages.report import scope_line, source_line
from hopper_gemm.tune.tables.pivot import config_of, pivot, problem_of, rows_of

__all__ = [
    "BEFORE",
    "GemmProblem",
    "Result",
    "Window",
    "against",
    "before",
    "best_swizzle",
    "boards_of",
    "change",
    "cluster_tiles",
    "clusters_at_once",
    "compared",
    "config_of",
    "cube",
    "depth",
    "filled_up",
    "geometric_mean",
    "hopper",
    "invariance",
    "kernel_of",
    "ladder",
    "map_points",
    "named",
    "patch",
    "pivot",
    "portability",
    "predict",
    "prepared",
    "read_shapes",
    "read_study",
    "recorded",
    "resolve",
    "rings",
    "rows_of",
    "samplers",
    "scatter_about_a_curve",
    "scatters",
    "scope_line",
    "short_label",
    "show_small",
    "smem_reads_per_flop",
    "source_line",
    "speedups",
    "swizzle_bytes",
    "tile_order",
    "timelines",
    "twins",
    "waves",
    "with_counters",
    "with_derived",
    "with_panels",
]

BEFORE = ModelConstants(
    **dict.fromkeys(("off_lines", "off_sectors", "drift", "cluster", "counted", "balance"), 0.0),
    **dict.fromkeys(("beyond", "outside", "narrow", "away", "tail", "heat", "torn", "shred"), 0.0),
    **dict.fromkeys(("alone", "paired", "piece", "chunk", "lone", "turn"), 0.0),
    **dict.fromkeys(("l2_bytes", "scatter", "gather"), 71.6),
    l2_share=inf,
    half=0.752,
    quarter=0.342,
    dram_share=0.809,
    dram_rate=0.96,
    straight=0.098,
    latency=403.0,
    stage=49.8,
    write_share=0.214,
    drain=122.0,
    epilogue=13.4,
    direct=2.7,
    thread_loads=0.659,
    sharpness=7.06,
    launch=5510.0,
    meet=1500.0,
    apart=1500.0,
    fast_hz=1.81e9,
    knee=0.232,
    slope_hz=0.297e9,
)
"""The constants fitted to 1,200 bursts before the suite was measured; effects not known then are zero. With these the
notebooks show how well the model predicted unseen problems."""

SWITCHES = ("reverse_k", "evict_c", "swap_ab", "pdl")
"""Parameters that are on or off; older rows leave some empty."""

COMPARED = {
    "rounds": "rounds",
    "clocks": "clocks",
    "sm_mhz": "clock",
    "time_us": "time",
    "pj_per_flop": "recorded energy",
    "predicted": "predicted time",
}
"""Columns that :func:`change` compares, with the name of each change."""


def prepared(trials: pd.DataFrame) -> pd.DataFrame:
    """The rows with what follows from their config: clocks are those of the SM, for one stage of one CTA.

    ``reached`` is corrected for the k that a last, part-filled stage pads; ``math`` are the clocks that the tensor
    cores take for a stage, ``period`` those that it took, ``free`` the stages that no late release holds back.
    """
    rows = with_derived(trials)
    rows = rows.assign(depth=16.0 * rows["k_depth"])
    padding = np.ceil(rows["k"] / rows["depth"]) * rows["depth"] / rows["k"]
    rows["reached"] = (rows["reached"] * padding).astype(float)
    rows["math"] = (2 * rows["tile_m"] * rows["tile_n"] * rows["depth"] / hopper.FLOP_PER_CLOCK_PER_SM).astype(float)
    rows["period"] = 100 * rows["math"] / rows["reached"]
    rows["free"] = (rows["stages"] - rows["stagger"]).astype(float)
    rows["l2_kib"] = rows["l2_bytes_per_clock"] * rows["math"] / 1024
    return rows


def against(ours: pd.DataFrame, theirs: pd.DataFrame, noise: float) -> pd.DataFrame:
    """Quotients of two sets of rows that share an index: speed, reached, and the verdict.

    Two rows are even where the quotient's interval holds 1 or the difference is less than the noise.
    """
    both = ours.join(theirs.add_suffix("_0"), how="inner")
    gain = both["speedup"] / both["speedup_0"] - 1
    low, high = both["speedup_low"] / both["speedup_high_0"], both["speedup_high"] / both["speedup_low_0"]
    even = ((low <= 1) & (high >= 1)) | (gain.abs() < noise)
    verdict = np.where(even, "even", np.where(gain > 0, "faster", "slower"))
    return pd.DataFrame({"gain": gain, "reached": both["reached"] - both["reached_0"], "verdict": verdict})


def scatter_about_a_curve(x: pd.Series, y: pd.Series) -> float:
    """RMS distance of y from the best curve that never falls along x (pool adjacent violators)."""
    means = y.groupby(x).agg(["mean", "size"])
    blocks: list[tuple[float, int, int]] = []
    for value, size in means.itertuples(index=False):
        blocks.append((value, size, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (low, m, i), (high, n, j) = blocks[-2:]
            blocks[-2:] = [((low * m + high * n) / (m + n), m + n, i + j)]
    curve = np.repeat([value for value, _, _ in blocks], [count for _, _, count in blocks])
    return float(np.sqrt(np.mean((y - x.map(dict(zip(means.index, curve, strict=True)))) ** 2)))


def scatters(part: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """For each column: points of percent by which reached scatters about one curve, for all tiles or for each."""
    own = {
        n: (part.groupby("tile")[[n, "reached"]].apply(lambda p, n=n: scatter_about_a_curve(p[n], p["reached"])))
        for n in names
    }
    return pd.DataFrame(
        {n: {"all tiles": scatter_about_a_curve(part[n], part["reached"]), **own[n]} for n in names}
    ).round(1)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their switches as truth values."""
    switches = {name: rows[name].fillna(False).astype(bool) for name in SWITCHES}
    return rows.assign(**switches)


def twins(rows: pd.DataFrame, off: Mapping[str, Any], on: Mapping[str, Any]) -> pd.DataFrame:
    """Pairs of rows that differ in nothing but these, with the gain in percent."""
    same = ["problem", *(name for name in FIELDS if name not in on)]
    sides = [rows[np.logical_and.reduce([rows[name] == value for name, value in side.items()])] for side in (off, on)]
    pairs = sides[0].merge(sides[1], on=same, suffixes=("_off", "_on"))
    return pairs.assign(gain=100 * (pairs.speedup_on / pairs.speedup_off - 1))


def with_panels(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with GB of the distinct panels of all waves, and how many waves there are."""
    found = [panels(config_of(row), problem_of(row)) for row in rows.to_dict("records")]
    return rows.assign(panels=[size / 1e9 for size, _ in found], waves=[waves for _, waves in found])


def change(first: pd.Series, second: pd.Series) -> dict[str, float]:
    """From one row to another, %."""
    return {to: 100 * (second[name] / first[name] - 1) for name, to in COMPARED.items()}


def compared(name: str, context: str = "isolated") -> pd.DataFrame:
    """A comparison's rows that ran in a context, by baseline and problem."""
    study = recorded(name)
    print(f"{name}: {source_line(study.provenance)} {scope_line(study)}")
    rows = rows_of(study, "compare").query("status == 'ok' and context == @context")
    return rows.set_index(["against", "problem"]).astype({"speedup": float, "time_us": float})


def speedups(rows: pd.DataFrame) -> pd.DataFrame:
    """Speedups by problem, a column for each baseline, and over the faster of the two."""
    found = rows.speedup.unstack("against").reindex(rows.loc["cublas"].index)
    return found.assign(faster=found.min(axis=1))


def map_points(folder: str) -> pd.DataFrame:
    """The problems of a map by name: the time of torch.mm, the pick with its interval as published, the best that was
    timed, the pick's share of it, and whether TMA cannot reach the operands in place."""
    found = {}
    for point in mapped(read_study(results_root() / folder).stage("map")):
        pick = pick_of(point)
        found[problem_label(point.problem)] = {
            "torch_us": point.torch_us,
            "pick": pick.median,
            "low": pick.low,
            "high": pick.high,
            "best": point.best,
            "share": point.pick / point.best,
            "padded": bool(point.problem.out_of_reach),
            "kernel": short_label(point.kernel),
        }
    return pd.DataFrame(found).T.infer_objects().astype({"padded": bool})


def boards_of(folder: str) -> list[str]:
    """The boards of a study, by the first digits of their UUID."""
    return sorted({row.board[4:12] for row in read_study(results_root() / folder).rows})


def invariance(name: str) -> pd.DataFrame:
    """A list of the batch-invariant kernels by problem: speed over torch.mm and over ours without the condition, and
    the time of torch.mm; ``boards`` and ``means`` with intervals as attributes."""
    rows = invariant_rows(name)
    ratios = {arm: invariant_published(rows, "", arm, "ours") for arm in ("torch", "plain")}
    us = {
        str(GemmProblem(*row["problem"])): float(np.median(row["us"]["torch"]))
        for row in rows
        if "torch" in row["us"] and not row["workspace"]
    }
    table = pd.DataFrame({arm: {problem: one.median for problem, one in of.items()} for arm, of in ratios.items()})
    table["us"] = pd.Series(us)
    table.attrs["boards"] = sorted({f"{row['gpu']} {row['board'][4:12]}" for row in rows})
    table.attrs["means"] = {arm: mean_figure(of.values()) for arm, of in ratios.items()}
    return table
