"""Short tables of single studies for the pages that cite them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil
from operator import truediv
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

import pandas as pd

from benchmarks.fresh import KINDS, LAST_OF_FP8, LAST_SEEDS, drawn
from benchmarks.leave_one_out import entries, without
from benchmarks.walks import speeds
from docs.generate.measurements import measurement
from docs.generate.pages.depth import page_table, ran
from docs.generate.pages.means import mean_figure, of_row, over_faster, over_problems, pick_of, share_of_best
from docs.generate.pages.rings import rungs, stamps_of
from docs.generate.pages.sources import pairs_by, read, recorded, short_name
from docs.generate.pages.wording import cube, percent, reach, spread, wrapped
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.menu import by_model
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import recipe_of
from hopper_gemm.model.tuned import results_root
from hopper_gemm.model.walk import abreast
from hopper_gemm.tune.limits import CHIPS
from hopper_gemm.tune.study.pooling import grouped, pooled
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.mapped import Mapped, by_stratum, mapped
from hopper_gemm.tune.tables.pivot import interval, markdown

GROUP = ["problem", "regime"]
LATE = 3000
"""Clocks after which a traced first load is not the first of its CTA."""

LOAD_CLOCKS = 1800
"""Clocks that a load takes where the ring starves, rounded: notebook 4 fits 1,821 for 32 KiB beside another load."""

KIB = 1024

KINDS_OF_GROUPS = {
    "rows": "grouped_mm",
    "masked": "grouped_mm with counts",
    "depth": "gradients of weights",
    "batch": "bmm",
    "fp8 row": "scaled_grouped_mm by rows",
    "fp8 blocks": "scaled_grouped_mm by blocks",
}
"""Kinds of rows of benchmarks/groups.py, with the call."""

GROUPS_TUNED = (
    "Tuned on another {gpu} by `hopper-gemm tune M N K --groups G`, which times the model's best picks on groups of "
    "all sizes, and then measured with each routing. What is best on such groups may lose where all rows are in one: "
    "so did 64 groups of 64 rows, whose entry the recorded table leaves out:"
)
GROUPS_STUDY = (
    "Picks from 4 to 256 groups on an {gpu}, down to one row each; with `counts` half of the room routed, over "
    "torch.bmm of all of it; FP8 by rows over torch's scaled_grouped_mm, both with fast sums, by blocks over our dense "
    "product of as many rows:"
)


def seed_finals() -> str:
    """The finals of the seed table's best cells."""
    lines = []
    for row in pooled(recorded("seed-table").stage("final")):
        one, config = row.figures, row.point.config
        if row.ok and config is not None:
            steady = row.point.regime == "steady"
            energy = f"{one['pj_per_flop']:.3f} ({one['baseline_pj_per_flop']:.3f})" if steady else ""
            cell, place = f"{config.tile_m} x {config.k_depth}", cube(str(row.point.problem))
            lines.append((place, row.point.regime, cell, interval(one), energy, str(one["processes"])))
    columns = ("problem", "regime", "M tile x K depth", "over cuBLAS", "pJ/FLOP (cuBLAS)", "processes")
    return markdown(columns, lines)


def seed_idle() -> str:
    """Tensor-core activity in cells with no load ahead, and in the best cells of two rows."""
    rows = ran("seed-table").query("regime == 'burst'")
    busy = rows["tensor_active"].astype(float)
    none = busy[rows["stages"] - 1 - rows["stagger"] <= 0]
    four = {m: busy[(rows["tile_m"] == m) & (rows["k_depth"] == 4)] for m in (128, 256)}
    lines = [
        ("nothing loaded ahead", str(len(none)), f"{none.min():.0f} to {none.max():.0f} %"),
        *((f"{m} x 4", str(len(each)), f"{each.min():.0f} to {each.max():.0f} %") for m, each in four.items()),
    ]
    return markdown(("cells", "number", "tensor cores busy"), lines)


def clusters_of_four() -> str:
    """Cost of clusters of four CTAs in the ladder."""
    lines = [
        (name, cube(f"{one.group.m}x{one.group.n}x{one.group.k}"), one.group.regime, percent(1 + one.gain))
        for name in ("cluster 2x2", "cluster 4x1")
        for one in rungs("ladder")[name].results
        if one.gain is not None
    ]
    return markdown(("rung", "problem", "regime", "over `TMA store`"), lines)


def regimes() -> str:
    """The rate of cuBLAS in both regimes, over the seed table's rows."""
    rows = ran("seed-table")
    rates = 2.0 * rows["m"].astype(float) ** 3 / rows["baseline_us"].astype(float) / 1e6
    table = rates.groupby([rows["m"], rows["regime"]]).median().unstack("regime")
    shown = table.map(lambda one: f"{one:.0f} TFLOP/s").rename(index=lambda m: f"{m}^3")
    return page_table(shown, "cuBLAS")


def data() -> str:
    """Effect of other data: rates of ours and of cuBLAS over those on normal data, and our speedup."""
    rows = ran("data").copy()
    rows["cuBLAS"] = rows["baseline_us"].astype(float) ** -1
    lines = []
    for (problem, regime), part in rows.groupby(GROUP, sort=False):
        one = part.set_index("data")
        for word in ("zeros", "uniform"):
            rates = (percent(one.loc[word, name] / one.loc["normal", name]) for name in ("tflops", "cuBLAS"))
            ratios = (f"{one.loc[name, 'speedup']:.3f}x" for name in ("normal", word))
            lines.append((cube(problem), regime, word, *rates, *ratios))
    columns = ("problem", "regime", "data", "our rate", "cuBLAS's", "speedup on normal data", "on these")
    return markdown(columns, lines)


def tile_shapes() -> str:
    """The fastest tiles of 8192^3 in each regime."""
    rows = ran("tile-shape")
    lines = [
        (regime, row["tile"], f"{row['speedup']:.3f}x", f"{row['pj_per_flop']:.3f}" if regime == "steady" else "")
        for regime, part in rows.groupby("regime")
        for row in part.nlargest(3, "speedup").to_dict("records")
    ]
    return markdown(("regime", "tile", "over cuBLAS", "pJ/FLOP"), lines)


def tile_order() -> str:
    """A sentence on how much of the order of the tiles is the same in both regimes."""
    rates = ran("tile-shape").groupby(["tile", "regime"])["speedup"].max().unstack("regime")
    ranked = [rates[regime].sort_values(ascending=False).index for regime in ("burst", "steady")]
    same = next(i for i, (one, other) in enumerate(zip(*ranked, strict=True)) if one != other)
    alike = rates.rank().corr().loc["burst", "steady"]
    return wrapped(
        f"The {same} fastest tiles have the same order in both regimes, and the ranks of all {len(rates)} correlate by "
        f"{alike:.2f}; what moves is the ratio to cuBLAS of tiles that leave tensor cores idle."
    )


def bytes_ahead() -> str:
    """What tiles read in the time of a load, and the rings of whole stages that load as much ahead."""
    lines = []
    for tile_m, tile_n in ((256, 192), (256, 128), (128, 256)):
        block = (tile_m + tile_n) * hopper.WGMMA_K * 2
        clocks = 2 * tile_m * tile_n * hopper.WGMMA_K / hopper.FLOP_PER_CLOCK_PER_SM
        need = LOAD_CLOCKS * block / clocks
        rings = [depth * block * (1 + ceil(need / (depth * block))) / KIB for depth in (2, 4)]
        lines.append((f"{tile_m}x{tile_n}", f"{need / KIB:.0f} KiB", *(f"{ring:.0f} KiB" for ring in rings)))
    head = ("tile", f"reads in {LOAD_CLOCKS:,} clocks", "ring at `k_depth` 2", "ring at `k_depth` 4")
    return markdown(head, lines)


def shallow_rows() -> pd.DataFrame:
    """The best ring of each tile at depth 1 on long problems: ``rows`` of 32 bytes that an SM asks of the L2 in a
    clock, and the share of the tensor cores' peak."""
    parts = [ran(name).query("k_depth == 1 and k >= 4096") for name in ("stagger", "joint", "one-consumer")]
    found = pd.concat([part.loc[part.groupby(["problem", "tile"])["speedup"].idxmax()] for part in parts])
    tile_m, tile_n, across, down, busy = (
        found[name].astype(float) for name in ("tile_m", "tile_n", "cluster_n", "cluster_m", "tensor_active")
    )
    clocks = 2 * tile_m * tile_n * hopper.WGMMA_K / hopper.FLOP_PER_CLOCK_PER_SM / (busy / 100)
    return found.assign(rows=(tile_m / across + tile_n / down) / clocks, busy=busy)


def row_ceiling() -> str:
    """The rate at which SMs get short rows, of tiles that need them at different rates."""
    found = shallow_rows()
    return wrapped(
        "Depth 1 hits a ceiling of rows: in its fastest ring every tile gets "
        f"{found['rows'].min():.2f} to {found['rows'].max():.2f} rows of 32 bytes a clock and SM from the L2 (tiles "
        f"from 64x64 to 320x128, at 4096^3 and longer), while the tensor cores are busy {found['busy'].min():.0f} to "
        f"{found['busy'].max():.0f} % of the time."
    )


def early() -> str:
    """Gain of PDL, chained, with one CTA on an SM."""
    lines = []
    for name in ("early", "early-long"):
        pairs = pairs_by(ran(name).query("ctas_per_sm == 1"), "pdl", False, True)
        for problem, part in pairs.groupby("problem", sort=False):
            us = part["time_us"].min()
            lines.append((cube(problem), f"{us:.1f} us", spread(part["ratio"]), str(len(part))))
    return markdown(("problem", "fastest with it", "gain by PDL", "pairs"), lines)


def interleaved() -> str:
    """Gain of interleaved split-K parts over contiguous ones, by problem and cluster."""
    pairs = pairs_by(ran("deep-k"), "interleave_k", False, True)
    lines = [
        (problem, cluster, reach(part["ratio"]), percent(part["ratio"].median()), str(len(part)))
        for (problem, cluster), part in pairs.groupby(["problem", "cluster"], sort=False)
    ]
    return markdown(("problem", "cluster", "gain", "median", "pairs"), lines)


def ways_out() -> str:
    """The best time of each tile by its way out."""
    rows = ran("way-out").copy()
    rows["way"] = [
        "registers" if by == "direct" else way for way, by in zip(rows["staging"], rows["stores"], strict=True)
    ]
    best = rows.pivot_table(index=["problem", "tile"], columns="way", values="time_us", aggfunc="min")
    table = best[["own", "ring", "registers"]].map(lambda us: f"{us:.1f} us")
    table.index = [f"{problem}, {tile}" for problem, tile in table.index]
    names = {"own": "buffers of its own", "ring": "through the ring", "registers": "straight from registers"}
    return page_table(table.rename(columns=names), "problem, tile")


def measured(name: str) -> pd.DataFrame:
    """A table that no sweep made."""
    return pd.read_csv(measurement(f"measurements/{name}.csv"))


def scaling() -> str:
    """Seconds and points a second of one sweep on one GPU and on two."""
    lines = []
    for row in measured("joint-scale").to_dict("records"):
        seconds = row["last_point_seconds"] - row["first_point_seconds"]
        told = f"{row['first_point_seconds']:.1f} s", f"{seconds:.1f} s", f"{row['points'] / seconds:.1f}"
        lines.append((str(row["gpus"]), *told, f"{row['command_seconds']:.0f} s"))
    return markdown(("GPUs", "start to first point", "first to last point", "points a second", "command"), lines)


def host_time() -> str:
    """Host time of a call by every way to call it, and over that of torch's way, problem by problem."""
    rows = measured("host-time").to_dict("records")
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    lines: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        own = lines.setdefault((row["call"], row["output"], row["gradient"]), [])
        own.append(f"{row['us']:.1f} us, {row['over torch']:.2f}x")
    ran = ", ".join(dict.fromkeys(f"{row['gpu']} with torch {row['torch']}" for row in rows))
    table = markdown(("call", "output", "gradient", *problems), [[*call, *times] for call, times in lines.items()])
    return f"{table}\n\nOn an {ran}."


def on_h100s(name: str) -> Study:
    """A study of untuned problems on H100s."""
    return read(results_root() / "h100/untuned" / name)


MAPS = {
    "part of the map": ("h200/map",),
    "other parts": ("h100/untuned/map", "h100/untuned/map-rest"),
    "held out": ("h200/map-held-out",),
    "the same": ("h100/untuned/map-held-out-again",),
}
"""Maps, each of one kind of GPU, with their folders of results."""

WORTH = ("problems", "pick", "over the faster", "least over torch.mm", "behind", "pick of best", "best of all")
"""Columns of :func:`_worth`."""


def maps() -> str:
    """Every map: what the picks were worth of all problems, and of those whose operands TMA reaches in place."""
    lines = []
    for name, folders in MAPS.items():
        runs = [read(results_root() / folder) for folder in folders]
        found = [one for run in runs for one in mapped(run.stage("map"))]
        links = " and ".join(f"[{folder.split('/')[-1]}](../results/{folder}/map.md)" for folder in folders)
        reached = [one for one in found if not one.problem.out_of_reach]
        gpu = short_name(runs[0].provenance["gpu"]["name"])
        lines.append((f"{name}: {links}", gpu, *_worth(found), str(len(reached)), mean_figure(map(pick_of, reached))))
    return markdown(("problems of", "GPU", *WORTH, "reached", "pick of these"), lines)


def map_answer() -> str:
    """What the map answers, in a sentence."""
    found = mapped(recorded("map").stage("map"))
    ahead, behind = sum(one.low > 1 for one in found), sum(one.high < 1 for one in found)
    share = by_stratum(found).loc["all", "pick of best"]
    far = [bool(one.problem.out_of_reach) for one in found]
    parts = found, *([one for one, out in zip(found, far, strict=True) if out is where] for where in (False, True))
    pick, reached, padded = (mean_figure(map(pick_of, part)) for part in parts)
    return wrapped(
        f"*Answer.* On {len(found)} problems of a map the model's pick runs at {pick} the speed of `torch.mm` in the "
        f"geometric mean: {reached} where TMA reaches the operands in place, {padded} on the {sum(far)} where it does "
        f"not, which is slow in `torch.mm` too. It is ahead by its whole interval on {ahead} and behind on {behind}, "
        f"and has {share} of the speed of the best kernel that was measured beside it."
    )


def fp8() -> str:
    """FP8 products as picked over torch's of the same recipe: each problem, and the means."""
    rows = pd.read_csv(measurement("measurements/fp8.csv"))
    names = {"tensor": "one scale, fast sums", "row:128": "by row, promoted at 128", "blocks": "by blocks, at 128"}
    names = {recipe: name for recipe, name in names.items() if recipe in set(rows.recipe)}
    lines = []
    for sizes, both in rows.groupby(["m", "n", "k"], sort=False):
        cells = [f"{row.speedup:.3f}x [{row.low:.3f}, {row.high:.3f}]" for row in both.itertuples()]
        lines.append(("x".join(map(str, sizes)), *cells, f"{both.tflops.max():,.0f}"))
    parts = [rows[rows.recipe == recipe] for recipe in names]
    lines.append(("geometric mean", *(mean_figure(map(of_row, part.itertuples())) for part in parts), ""))
    lines.append(("behind torch", *(f"{(part.high < 1).sum()} of {len(part)}" for part in parts), ""))
    return markdown(("m x n x k", *names.values(), "best TFLOP/s"), lines)


def fp8_drawn() -> str:
    """FP8 products that nobody chose, as picked: by recipe, over torch's of the same recipe."""
    rows = pd.read_csv(measurement("measurements/fp8-drawn.csv"))
    names = {"tensor": "one scale, fast sums", "row:128": "by row, promoted at 128", "blocks": "by blocks, at 128"}
    lines = []
    for recipe, name in names.items():
        tried = rows[rows.recipe == recipe].drop_duplicates(["m", "n", "k"])
        ran = tried[tried.status == "ok"]
        least = ran.loc[ran.speedup.idxmin()]
        mean = mean_figure(map(of_row, ran.itertuples()))
        refused = tried.status.str.contains("CUBLAS_STATUS_NOT_SUPPORTED").sum()
        lines.append((name, f"{len(ran)}", mean, f"{least.speedup:.3f}x {least.m}x{least.n}x{least.k}",
                      f"{(ran.high < 1).sum()}", f"{refused}"))  # fmt: skip
    return markdown(("scales", "problems", "over torch", "least", "behind", "that torch refused"), lines)


def walks() -> str:
    """Speedups of single CTAs on H100s by the order of their tiles."""
    rows = pd.read_csv(measurement("measurements/walks.csv")).query("status == 'ok'")
    shown = (267, 2944, 128, 64), (267, 2944, 64, 128), (200, 8192, 64, 208), (640, 1536, 128, 64)
    widths = 1, 2, 3, 4, 5, 6, 8, 12
    lines = []
    for m, n, tile_m, tile_n in shown:
        tiles = rows[(rows.m == m) & (rows.n == n) & (rows.tile_m == tile_m) & (rows.tile_n == tile_n)]
        for raster, walked in tiles[tiles.swap_ab == tiles.swap_ab.max()].groupby("raster"):
            cells = walked.set_index("swizzle").speedup
            problem = f"{m}x{n}x{walked.k.iloc[0]}"
            lines.append((problem, f"{tile_m}x{tile_n}", raster, *(f"{cells[width]:.2f}" for width in widths)))
    return markdown(("problem", "tile", "raster", *map(str, widths)), lines)


def walks_worth() -> str:
    """A sentence on the walks that are picked, beside groups of four, and on picks whose walk changed."""
    shares = speeds()
    means = {name: geometric_mean(share[name] for share in shares) for name in shares[0]}
    least = {name: min(share[name] for share in shares) for name in means}
    timed = pd.read_csv(measurement("measurements/walks-drawn.csv"))
    times = timed.pivot_table(index=["m", "n", "k", "layouts"], columns="walk", values="time_us")
    gains = times["before"] / times["now"]
    return wrapped(
        f"Over all {len(shares)} problems and tiles ([rows](../results/measurements/walks.csv), by "
        f"[benchmarks/walks.py](../benchmarks/walks.py)) the walk that is picked stands at {means['picked']:.3f} of "
        f"the best, least {least['picked']:.3f}; groups of four tiles at {means['m']:.3f} along m and "
        f"{means['n']:.3f} along n, least {min(least['m'], least['n']):.3f}. Of 96 problems drawn at random (seed 101 "
        f"of [benchmarks/fresh.py](../benchmarks/fresh.py), 16 of each kind) {len(gains)} got another walk by this "
        f"choice, timed once each: {geometric_mean(gains):.3f}x as fast in the geometric mean, {gains.median():.3f}x "
        f"at the median, {gains.min():.3f}x to {gains.max():.3f}x, {(gains < 1).sum()} slower "
        f"([rows](../results/measurements/walks-drawn.csv))."
    )


def operators() -> str:
    """A sentence on the time of the provider's operators over that of matmul."""
    rows = pd.read_csv(measurement("measurements/operators.csv"))
    least, beyond = rows.loc[rows.speedup.idxmin()], ((rows.speedup - 1).abs() > 0.01).sum()
    sizes = f"{least.m}x{least.n}x{least.k}"
    return wrapped(
        f"{mean_figure(map(of_row, rows.itertuples()))} its speed, the geometric mean of {len(rows)} pairs of problem "
        f"and context, and at least {least.speedup:.3f}x ({sizes}, {least.context}). In {beyond or 'no'} pairs the two "
        f"are more than 1 % apart ([rows](../results/measurements/operators.csv), by "
        f"[benchmarks/operators.py](../benchmarks/operators.py))."
    )


def deep() -> str:
    """Deep and narrow problems: the pick over torch.mm, over the faster, and beside the best that was timed."""
    rows = pd.read_csv(measurement("measurements/deep.csv")).query("status == 'ok'")
    lines = []
    for (m, n, k, layouts), of in rows.groupby(["m", "n", "k", "layouts"], sort=False):
        picks = of[of.role == "pick"].set_index("against").speedup
        over_torch = of[of.against == "cublas"].groupby("role").speedup.max()
        best, named = over_torch.max(), over_torch.get("named")
        harder = f"{picks.min():.3f}x" if "heuristics" in picks else "not timed"
        cells = f"{picks['cublas']:.3f}x", harder, "" if named is None else f"{named:.3f}x"
        lines.append((f"{m}x{n}x{k} {layouts}", *cells, f"{best:.3f}x", f"{picks['cublas'] / best:.3f}"))
    names = "pick over torch.mm", "over the faster", "named tile", "best timed", "pick of best"
    return markdown(("m x n x k", *names), lines)


DECODE = ("decode-third", "decode-fourth")
"""Studies of decode by today's machine code."""


def decode() -> str:
    """Share of the memory's peak at which products of few rows read their weight; the least and the most of the boards,
    and the time of one row over what it reads."""
    root, peak = results_root() / "h100", 2 * 5120 / 8 * 2.619e9  # bits of the bus, two a clock, and its clock
    shares, gained, times = (
        defaultdict[tuple[int, int], dict[int, list[float]]](dict),
        defaultdict[tuple[int, int], list[float]](list),
        [],
    )
    for name in DECODE:
        for row in read(root / name).stage("compare"):
            if not row.ok or row.point.against != "cublas":
                continue
            problem, seconds = row.point.problem, row.figures["time_us"] * 1e-6
            moved = 2 * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
            weight = problem.n, problem.k
            shares[weight].setdefault(problem.m, []).append(moved / seconds / peak)
            gained[weight].append(row.figures["speedup"])
            if problem.m == 1 and moved > 30e6:
                times.append((moved, seconds))
    lines = []
    for (n, k), of in sorted(shares.items(), key=lambda item: item[0][0] * item[0][1]):
        cells = (" to ".join(dict.fromkeys(f"{100 * end(of[m]):.0f}" for end in (min, max))) + " %" for m in sorted(of))
        least, most = min(gained[n, k]), max(gained[n, k])
        lines.append((f"{n} x {k}", f"{2 * n * k / 1e6:.1f}", *cells, f"{least:.3f}x to {most:.3f}x"))
    each, start = linear_regression(*zip(*times, strict=True))
    reading = each * 2 * 4096 * 4096
    counted = [row.figures for row in read(root / "decode-counted").stage("counters") if not row.point.is_baseline]
    loaded, active = (max(of[name] for of in counted) for name in ("dram_read_bytes", "tensor_active_hw"))
    about = wrapped(
        f"The {len(times)} times of one row through weights of 30 MB and more lie near a line: {1e6 * start:.1f} us, "
        f"and the bytes at {1e-12 / each:.2f} TB/s, {100 / each / peak:.0f} % of the peak. At 33.6 MB reading so is "
        f"{100 * reading / (reading + start):.0f} % of the time; the rest is the launch, the first load and the last "
        f"store. Nothing is read twice: for 4096 x 4096 at m = 1 and 4 the profiler counts {loaded / 1e6:.1f} MB from "
        f"DRAM in a launch, with tensor cores active for {active:.0f} % of it "
        f"([counters](../results/h100/decode-counted/rows.csv.xz))."
    )
    return f"{markdown(('n x k', 'MB of B', *(f'm = {m}' for m in (1, 4, 16, 64)), 'over torch.mm'), lines)}\n\n{about}"


def behind() -> str:
    """Counters of one launch each, of cuBLAS's kernel and of ours, on problems where none of ours is ahead; and the
    speed of ours in the studies that timed it."""
    root, lines = results_root() / "h100", []
    timed = {
        (row.point.problem, row.point.config): f"{row.figures['speedup']:.3f}x"
        for name in ("wider-last", "wider-again", "fresh-28", "fresh-29")
        for row in read(root / name).stage("map")
        if row.ok and row.point.against == "cublas"
    }
    for row in sorted(read(root / "behind").stage("counters"), key=lambda row: str(row.point.problem)):
        counted = row.figures
        if row.point.is_baseline:  # nvjet_sm90_tst_112x128_64x7_2x4_h_bz_TNN
            name, speed = "cuBLAS " + " ".join(counted["baseline_kernel"].split("_")[3:6:2]), ""
        else:
            kernel = row.point.config
            name = f"{kernel.tile_m}x{kernel.tile_n} {kernel.cluster_m}x{kernel.cluster_n}"
            name, speed = name + ", swapped" * kernel.swap_ab, timed[row.point.problem, kernel]
        loaded = (f"{counted[column] / 1e6:.0f}" for column in ("dram_read_bytes", "tma_load_bytes"))
        clocks, active = counted["duration_us"] * counted["sm_ghz"], f"{counted['tensor_active_hw']:.0f} %"
        problem = f"{row.point.problem} {row.point.problem.layouts}"
        lines.append((problem, name, speed, f"{clocks:.1f}", active, *loaded, f"{counted['l2_hit_pct']:.0f} %"))
    names = "thousand clocks", "tensor cores active", "MB from DRAM", "MB by TMA", "L2 hits"
    return markdown(("m x n x k", "tile and cluster", "over torch.mm", *names), lines)


def sources_on_h100s() -> str:
    """Return sentences on three grids of the sources, measured on an H100."""
    single, grid, chunks = ran("seed-table-single"), ran("tilus-multistage"), ran("tilus-grid-16")
    cells = single.pivot_table(index=["m", "tile_m", "k_depth"], columns="cluster_n", values="speedup").dropna()
    at_best = {size: of.loc[of[1].idxmax()] for size, of in cells.groupby(level="m")}
    alone = ", ".join(
        f"{_best_of(single, of.name, 1)} (cluster {_best_of(single, of.name, 2)}) at {size}^3"
        for size, of in at_best.items()
    )
    where = {of.name[1:] for of in at_best.values()}
    axes = ["tile_n", "k_depth", "stages"]
    ways = grid.pivot_table(index=[*axes, "consumers"], columns="schedule", values="speedup").dropna()
    best = {schedule: interval(of.loc[of.speedup.idxmax()]) for schedule, of in grid.groupby("schedule")}
    wide = chunks.pivot_table(index=[*axes, "swizzle"], columns="epi_n", values="speedup").dropna()
    return wrapped(
        f"C's table by single CTAs without a serpentine walk: the best cell is M tile and K depth "
        f"{' and '.join(f'{tile} x {depth}' for tile, depth in sorted(where))}, {alone}; of {len(cells)} cells "
        f"clusters of two are worth {spread(cells[2] / cells[1])}. B's grid without a producer, as there: at best "
        f"{best['multistage']}, with a producer {best['cooperative']}; a producer is worth "
        f"{spread(ways['cooperative'] / ways['multistage'])} in {len(ways)} pairs. D's grid: chunks of 64 columns "
        f"instead of its 16 are worth {spread(wide[64] / wide[16])} in {len(wide)} pairs."
    )


def _best_of(rows: pd.DataFrame, cell: tuple[int, int, int], cluster: int) -> str:
    """Return the fastest row of a cell in a cluster of so many CTAs along n, with its interval."""
    own = rows[(rows.m == cell[0]) & (rows.tile_m == cell[1]) & (rows.k_depth == cell[2]) & (rows.cluster_n == cluster)]
    return interval(own.loc[own.speedup.idxmax()])


def worth_of_ideas() -> list[tuple[str, list[tuple[float, str]]]]:
    """Return of each idea, most first, the tuned configs' speed over that without it, and the problem."""
    rows = [row for row in recorded("leave-one-out").stage("sweep") if row.ok]
    timed = grouped(rows, lambda row: row.point.problem)
    worth = defaultdict[str, list[tuple[float, str]]](list)
    for entry in entries():
        speeds = {row.point.config: row.figures["speedup"] for row in timed[entry.problem]}
        for idea, other in without(entry.config):
            if other in speeds:
                worth[idea].append((speeds[entry.config] / speeds[other], str(entry.problem)))
    return sorted(worth.items(), key=lambda item: -geometric_mean([ratio for ratio, _ in item[1]]))


def leave_one_out() -> str:
    """Return the table of ideas: speed of the tuned configs over their speed without the idea."""
    lines = []
    for idea, of in worth_of_ideas():
        (least, _), (most, where) = min(of), max(of)
        figures = _gain(of), f"{least - 1:+.1%}", f"{most - 1:+.1%}, {where}"
        lines.append((f"`{idea}`", str(len(of)), *figures))
    return markdown(("idea", "problems", "worth, mean", "least", "most"), lines)


def _gain(of: Sequence[tuple[float, str]]) -> str:
    mean, low, high = over_problems(ratio for ratio, _ in of)
    return f"{mean - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}]" if len(of) > 1 else f"{mean - 1:+.1%}"


def ideas_answer() -> str:
    """In a sentence which ideas are worth something by their whole interval, and which are not."""
    several = [(idea, of) for idea, of in worth_of_ideas() if len(of) > 1]
    sure = [idea for idea, of in several if over_problems(ratio for ratio, _ in of)[1] > 1]
    worth = ", ".join(f"`{idea}` {_gain(of)} ({len(of)} problems)" for idea, of in several if idea in sure)
    others = ", ".join(f"`{idea}` {_gain(of)}" for idea, of in several if idea not in sure)
    alone = ", ".join(f"`{idea}` {_gain(of)} at {of[0][1]}" for idea, of in worth_of_ideas() if len(of) == 1)
    return wrapped(
        f"*Answer.* In the mean over the problems whose tuned config has it, by the whole interval: {worth}. Not sure "
        f"to gain in the mean: {others}. On one problem alone: {alone}."
    )


def groups(name: str = "groups", opening: str = "") -> str:
    """Groups and batches over torch's: a line for each problem, with all its routings; empty where no rows are."""
    if not (results_root() / f"measurements/{name}.csv").is_file():
        return ""
    rows, lines = pd.read_csv(measurement(f"measurements/{name}.csv")), []
    rows = rows[rows.status == "ok"]
    for (kind, *sizes), of in rows.groupby(["kind", "groups", "rows", "n", "k"], sort=False):
        name = "x".join(map(str, sizes[1:])) if kind == "batch" else f"{sizes[1]} rows each to {sizes[2]}x{sizes[3]}"
        least = of.loc[of.speedup.idxmin()]
        mean, worst = mean_figure(map(of_row, of.itertuples())), f"{least.speedup:.3f}x, {least.routing}"
        lines.append((KINDS_OF_GROUPS[kind], str(sizes[0]), name, mean, worst))
    means = [
        f"{name} {mean_figure(map(of_row, rows[rows.kind == kind].itertuples()))}"
        for kind, name in KINDS_OF_GROUPS.items()
        if kind in set(rows.kind)
    ]
    table = markdown(("call", "groups", "problem", "mean over torch", "least, routing"), lines)
    text = wrapped(opening.format(gpu=" ".join(rows.gpu.iloc[0].split()[:2]))) + "\n\n" * bool(opening)
    return f"{text}{table}\n\nGeometric means of all rows: {', '.join(means)}."


SEEDS = ("seed", "GPU", WORTH[0], "kernels of each, at most", *WORTH[1:])
"""Columns of :func:`_seeds`."""


def fresh() -> str:
    """The seeds that judge today's picks, all their problems and by kind; and which of these problems were among those
    of earlier seeds, to which the trees are fitted."""
    lines, by_kind = [], dict[str, list[Mapped]]()
    judging, fitted = list[list[Mapped]](), set[GemmProblem]()
    for folder in _seeds():
        found = mapped(read(folder).stage("map"))
        if folder.name not in LAST_SEEDS:
            fitted |= {point.problem for point in found}
            continue
        judging.append(found)
        lines.append(_of_seed(folder))
        kinds = {problem: kind for kind, problem in drawn(int(folder.name.removeprefix("fresh-")))}
        for point in found:
            by_kind.setdefault(kinds[point.problem], []).append(point)
    rows = [(kind, *_worth(by_kind[kind])[:-2]) for kind in KINDS]
    again = [problem_label(point.problem) for points in judging for point in points if point.problem in fitted]
    unseen = (mean_figure(pick_of(point) for point in points if point.problem not in fitted) for points in judging)
    seeds = " and ".join(name.removeprefix("fresh-") for name in LAST_SEEDS)
    repeated = wrapped(
        f"Of the {sum(map(len, judging))} problems of seeds {seeds}, {len(again)} had been drawn by earlier seeds too, "
        f"in the same layouts, and took part in the fit: {', '.join(again)}. Without them the picks have "
        f"{' and '.join(unseen)}."
    )
    tables = markdown(SEEDS, lines), markdown((f"kind, seeds {seeds}", *WORTH[:-2]), rows)
    return "\n\n".join([*tables, *[repeated] * bool(again)])


def fresh_before() -> str:
    """The seeds of earlier picks, in order; their rows take part in the fit of today's."""
    return markdown(SEEDS, [_of_seed(folder) for folder in _seeds() if folder.name not in LAST_SEEDS])


def _seeds() -> list[Path]:
    found = results_root().glob("*/fresh-[0-9]*")
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("fresh-")))


def _of_seed(folder: Path) -> tuple[str, ...]:
    study = read(folder)
    problems, *worth = _worth(mapped(study.stage("map")))
    link = f"[{folder.name.removeprefix('fresh-')}](../results/{folder.parent.name}/{folder.name}/map.md)"
    timed = str(study.provenance["spec"]["picks"] + study.provenance["spec"]["drawn"])
    return link, short_name(study.provenance["gpu"]["name"]), problems, timed, *worth


def trees() -> str:
    """Picks by the model alone and by the trees, of the last draws and of the suite, on problems where both were
    timed."""
    lines = []
    named = {name: f"seed {name.removeprefix('fresh-')}" for name in LAST_SEEDS}
    named |= {"untuned/suite-picks-on-h100": "the suite, 20 problems of it fitted to", LAST_OF_FP8: "FP8, {}"}
    for folder, words in named.items():
        study = read(results_root() / "h100" / folder)
        for recipe, of in grouped(study.stage("map"), lambda row: recipe_of(row.point.problem)).items():
            rows = grouped(
                (row for row in of if row.ok and row.point.against == "cublas"), lambda row: row.point.problem
            )
            pairs = [pair for problem, some in rows.items() if (pair := _with_and_without(problem, some)) is not None]
            ours, alone, best = zip(*pairs, strict=True)
            changed = sum(one.config != other.config for one, other in zip(ours, alone, strict=True))
            cells = [_in_words([one.speed for one in each], best) for each in (alone, ours)]
            count = f"{len(pairs)}{f' of {len(rows)}' * (len(pairs) < len(rows))}"
            lines.append((words.format(recipe), count, *cells, str(changed)))
    header = ("NVIDIA H100", "problems", "by the model: over torch, least, of the best", "by the trees", "other kernel")
    return markdown(header, lines)


def _in_words(speeds: Sequence[float], best: Sequence[float]) -> str:
    share = geometric_mean(map(truediv, speeds, best))
    return f"{geometric_mean(speeds):.3f}x, {min(speeds):.3f}x, {share:.3f}"


class _Timed(NamedTuple):
    config: Kernel
    speed: float


def _with_and_without(problem: GemmProblem, rows: Sequence[Row]) -> tuple[_Timed, _Timed, float] | None:
    """The pick, the model's own first choice, and the speed of the best; None if one of them was not timed."""
    timed = {row.point.config: float(row.figures["speedup"]) for row in rows}
    pick = next((row.point.config for row in rows if "pick 1" in row.figures["how"].split(", ")), None)
    ((_, _, fixed, _),) = by_model(problem, 1, CHIPS["h100"])
    alone = abreast(fixed.kernel, problem, CHIPS["h100"])
    if pick is None or alone not in timed:
        return None
    return _Timed(pick, timed[pick]), _Timed(alone, timed[alone]), max(timed.values())


def _worth(points: Sequence[Mapped]) -> tuple[str, ...]:
    means = mean_figure(map(pick_of, points)), mean_figure(map(over_faster, points))
    shares = by_stratum(points).loc["all", ["pick of best", "best"]]
    least, behind = min(one.pick for one in points), sum(one.high < 1 for one in points)
    return str(len(points)), *means, f"{least:.3f}x", str(behind), *shares


def shares() -> str:
    """Held-out problems: what share of the best the pick and what a warm-up keeps have; the best is theirs, or that of
    a search of the whole space."""
    pick, warm = ({row.point.problem: row for row in on_h100s(name).stage("compare")} for name in ("pick", "warm"))
    finals: dict[GemmProblem, dict[Kernel, list[float]]] = {}
    for row in on_h100s("tune").stage("final"):
        if row.ok:
            speeds = finals.setdefault(row.point.problem, {}).setdefault(row.point.config, [])
            speeds.append(row.figures["speedup"])
    found = list[tuple[float, float, float]]()
    for problem, row in pick.items():
        if problem in finals:
            speeds = [one[problem].figures["speedup"] for one in (pick, warm)]
            best = max(*speeds, *(median(of) for of in finals[problem].values()))
            found.append((row.figures["baseline_us"], *(one / best for one in speeds)))
    parts = {
        "under 30 us": [one for one in found if one[0] < 30],
        "over 30 us": [one for one in found if one[0] >= 30],
        "all that were searched": found,
    }
    columns = "torch.mm takes", "problems", "share of the best: pick, least", "after warm-up, least"
    told = []
    for name, of in parts.items():
        _, *each = zip(*of, strict=True)
        told.append([name, str(len(of)), *(f"{share_of_best(share)}, {min(share):.2f}" for share in each)])
    return markdown(columns, told)


EDGE = {"64x96x64 s10": "96 wide, single CTAs", "64x96x128 s5": "96 wide, pairs", "64x64x64": "64 high, single CTAs"}
"""How kernels of the study of rows outside are called here, by the beginning of their names."""


ENDS = {"edge": "reaches out", "edge-moved": "moves back"}
"""The two studies of rows that leave a part of the last tile empty, and where that tile ends in each."""


def edge() -> str:
    """Microseconds by the number of rows, for kernels whose tile has 64 or 96 of them, and how much longer two tiles
    take where one row lies in the second than where the rows fill both; where the last tile reaches out, and where it
    moves back."""
    times: dict[tuple[str, int, str], dict[int, float]] = {}
    for study, end in ENDS.items():
        for row in recorded(study).stage("sweep"):
            name = next((told for start, told in EDGE.items() if str(row.point.config).startswith(start)), None)
            if row.ok and name is not None:
                us = row.figures["baseline_us"] / row.figures["speedup"]
                times.setdefault((name, row.point.problem.k, end), {})[row.point.problem.m] = us
    rows = sorted({m for of in times.values() for m in of})
    lines = [
        [name, str(k), end, *(f"{of[m]:.1f}" for m in rows)]
        for (name, k, end), of in sorted(
            times.items(), key=lambda one: (*one[0][:2], list(ENDS.values()).index(one[0][2]))
        )
    ]
    out, back = ([_one_row(times, end, side) for side in (96, 64)] for end in ENDS.values())
    told = wrapped(
        f"Where the last tile reaches out, two tiles of 96 rows take {out[0]} for 97 rows as for 192, two of 64 rows "
        f"{out[1]} for 65 as for 128; where it moves back, {back[0]} and {back[1]}."
    )
    return f"{told}\n\n{markdown(('tile', 'k', 'the last tile', *(f'm = {m}' for m in rows)), lines)}"


def _one_row(times: Mapping[tuple[str, int, str], Mapping[int, float]], end: str, side: int) -> str:
    """How much longer two tiles take for one row more than one of them has than for all rows of both."""
    ratios = [
        of[side + 1] / of[2 * side] for (name, _, how), of in times.items() if how == end and name.startswith(str(side))
    ]
    return f"{min(ratios):.1f} to {max(ratios):.1f} times as long"


def rests() -> str:
    """Speedups of tiles near cuBLAS at 8192^3 by the rest before a burst."""
    rows = measured("rest").query("m == 8192 and speedup > 0.9")
    rows = rows.assign(tile=rows["tile_m"].astype(str) + "x" + rows["tile_n"].astype(str), rest=rows["rest_ms"])
    table = rows.pivot_table(index="tile", columns="rest", values="speedup").map(lambda one: f"{one:.4f}x")
    return page_table(table.rename(columns="{} ms".format), "tile")


def launch_gap() -> str:
    """The two lengths of a spacer in a graph: medians of the shorter and the longer, and how often each was seen."""
    us = measured("launch-gap")["spacer_us"].dropna()
    middle = (us.min() + us.max()) / 2
    parts = {"shorter": us[us < middle], "longer": us[us >= middle]}
    return markdown(
        ("spacer", "seen", "median", "least", "most"),
        [
            (name, str(len(each)), *(f"{one:.2f} us" for one in (each.median(), each.min(), each.max())))
            for name, each in parts.items()
        ],
    )


def busy() -> str:
    """Launches at 8192^3 alone and with 16 SMs held by another kernel."""
    rows = measured("busy-sms")
    alone = rows[rows["sms_held"] == 0].set_index("kernel")["median_ms"]
    held = rows[(rows["sms_held"] == 16) & (rows["flag_in"] == "device")].set_index("kernel")["median_ms"]
    lines = [(name, f"{alone[name]:.2f} ms", f"{ms:.2f} ms", f"{ms / alone[name]:.2f}") for name, ms in held.items()]
    return markdown(("kernel", "alone", "16 SMs held", "ratio"), lines)


def one_tile() -> str:
    """Clocks of a traced CTA: until its first load is issued, until that is there, and from the last wgmma to the end.

    Those that began with another tile, so that their first stages are not the first of the CTA, are left out.
    """
    moments = pd.read_csv(measurement(stamps_of("timeline-deep-k") / "moments.csv.gz"))
    problem = moments["m"].astype(str) + "x" + moments["n"].astype(str) + "x" + moments["k"].astype(str)
    lines = []
    for (place, rung), part in moments.assign(problem=problem).groupby(["problem", "rung"], sort=False):
        at = part.pivot_table(index=["role", "stage"], columns="moment", values="clocks", aggfunc="first")
        producer, consumers = at.loc["producer"], at.drop("producer", level="role")
        issued = producer.loc[0, "issued"] - producer.loc[-1, "entry"]
        had = consumers.xs(0, level="stage")["had"].min() - producer.loc[0, "issued"]
        ends = consumers.xs(-1, level="stage").max()
        if issued < LATE:
            lines.append((place, rung, f"{issued:,.0f}", f"{had:,.0f}", f"{ends['left'] - ends['fed']:,.0f}"))
    return markdown(("problem", "kernel", "first load issued", "there after", "last wgmma to the end"), lines)
