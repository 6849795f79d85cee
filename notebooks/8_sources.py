# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The sources, claim by claim
#
# Four texts stand at the beginning of this project:
#
# - A: "[CuTeDSL] Pipeline Abstraction for GPU Kernel Synchronization", on the pipeline classes of CuTe DSL and
#   FlashAttention; no figures;
# - B: "2. Multi-Stage Software Pipelining", a page of the tilus examples: B200, fp16, 8192^3;
# - C: "Pipelining", on depth in an H100 GEMM: a table of M tile x K depth, bf16, tile_n = 128. It states neither
#   problem size, cluster, regime, clocks, cuBLAS version, consumers of a row nor stagger of a row;
# - D: "4. Tile Rasterization and Pipeline Abstraction", another tilus page: B200, fp16, 8192^3.
#
# Each claim that a Hopper GPU can answer is met here with rows of `results/`, measured on an NVIDIA H200. No GPU
# is needed to run this again. Every timing here is chained (launches of one kernel back to back), in bursts where
# nothing else is said.

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown, display

from hopper_gemm.lab.counters.table import panels, with_counters, with_derived
from hopper_gemm.lab.ladder.config import LadderConfig
from hopper_gemm.lab.pages.index import DATED
from hopper_gemm.lab.pages.sources import beside, pairs_by, published, recorded, share, spans, unique_panels
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve, swizzle_bytes
from hopper_gemm.model.roofline import tile_order
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.search.importance import importances
from hopper_gemm.tune.study.reader import has_rows, read_study
from hopper_gemm.tune.study.spec import checked
from hopper_gemm.tune.tables.ladder import ladder
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import config_of, markdown_table, one_line, pivot, problem_of, rows_of
from hopper_gemm.tune.tables.plots import patch, show_small, timeline

show_small()
results = results_root()
verdicts: list[tuple[str, str, str]] = []
NEW = {
    *("seed-table-stagger-0", "seed-table-stagger-0-steady", "joint", "joint-two", "one-consumer", "peek"),
    *("naive-320", "consumers", "tilus-grid", "fp16", "ring", "ladder-again"),
}
"""The studies that answer this notebook's questions; the others were recorded before."""
SWEET = "the sweet spot is at about four stages and a K depth of four, since too many stages pay a high barrier cost"


def asked(name: str):
    """A study, named where it is used."""
    study = recorded(name)
    print(source_line(study.provenance))
    return study


def ran(study) -> pd.DataFrame:
    """The rows of a sweep that ran."""
    return rows_of(study, "sweep").query("status == 'ok'")


def verdict(source: str, claim: str, text: str) -> None:
    """Note what became of a claim."""
    verdicts.append((source, claim, text))
    display(Markdown(f"**{claim}** ({source}): {text}."))


def page(name: str, table: pd.DataFrame, first: str) -> None:
    """Show a table that `docs/sources.md` shows too."""
    display(Markdown(f"<!-- {name} -->\n{markdown_table(table.map(one_line), first)}"))


def cube(problem: str) -> str:
    """A cube by its side, any other problem by its sizes."""
    sides = problem.split("x")
    return f"{sides[0]}^3" if len(set(sides)) == 1 else problem


def percent(ratio: float, digits: int = 1) -> str:
    """A ratio as a gain."""
    return f"{100 * (ratio - 1):+.{digits}f} %"


def reach(ratios: pd.Series) -> str:
    """Ratios as gains: from the least to the greatest."""
    return f"{percent(ratios.min())} to {percent(ratios.max())}"


def spread(ratios: pd.Series) -> str:
    """Ratios as gains: their median and how far they reach."""
    return f"{percent(ratios.median())} at the median ({reach(ratios)})"


# %% [markdown]
# ## 1. All 39 cells beside ours
#
# C's figure, ours, their ratio, and the ranks of both among the 39 cells. The ratio compares two kernels on two GPUs
# against two versions of cuBLAS, on problems of which one is unknown; the order of the cells says more than the
# figures.

# %%
seed = recorded("seed-table-first")
late = ran(seed).query("regime == 'burst'")
print(source_line(seed.provenance))
compared = {m: beside(late[late.m == m]) for m in (4096, 8192)}
pd.concat({f"{m}^3": table.round(2) for m, table in compared.items()}, axis=1).drop(
    columns=[("8192^3", name) for name in ("theirs", "theirs rank", "stages", "our stages")]
)

# %%
figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharey=True)
for axis, (m, table) in zip(axes, compared.items(), strict=True):
    for tile_m, part in table.groupby(level="tile_m"):
        axis.scatter(part["ours"], part["theirs"], label=f"tile_m {tile_m}")
    axis.plot([0.1, 1.05], [0.1, 1.05], color="grey", linewidth=1)
    axis.set_title(f"{m}^3, stagger 1")
    axis.set_xlabel("ours, H200")
axes[0].set_ylabel("C, H100")
axes[0].legend(fontsize=8)
plt.show()

# %%
agree = {m: table["ours rank"].corr(table["theirs rank"]) for m, table in compared.items()}
without = {
    m: table.drop(320, level="tile_m")[["ours", "theirs"]].rank().corr().iloc[0, 1] for m, table in compared.items()
}
first = {m: table["ours"].idxmax() for m, table in compared.items()}
same = all(cell == published()["speedup"].idxmax() for cell in first.values())
verdict(
    "C",
    "256 x 4 is the best cell of the table",
    f"{'confirmed' if same else 'not confirmed'}: ours is {' and '.join(f'{a} x {b}' for a, b in first.values())}; "
    f"ranks of all cells correlate by {agree[4096]:.2f} and {agree[8192]:.2f}, without the 320 row by "
    f"{without[4096]:.2f} and {without[8192]:.2f}",
)

# %% [markdown]
# ## 2. The whole grid at stagger 0
#
# Two stages of which a stagger of one holds one back have no load ahead. So cells with few stages say more of the
# stagger than of the stages. The second table beside the first: stagger 1, then every stage released as soon as its own
# group has ended, and the stages.

# %%
prompt_study = asked("seed-table-stagger-0")
prompt = ran(prompt_study)
columns = ["m", "tile_m", "k_depth", "stages", "stagger", "speedup"]
both = late[columns].merge(prompt[columns], on=["m", "tile_m", "k_depth", "stages"], how="left", suffixes=("_1", "_0"))
both[["speedup_1", "speedup_0"]] = both[["speedup_1", "speedup_0"]].astype(float)
both["gain"] = both["speedup_0"] / both["speedup_1"]
for m, part in both.groupby("m"):
    shown = part.assign(
        cell=[f"{one.speedup_1:.2f} to {one.speedup_0:.2f} ({one.stages})" for one in part.itertuples()]
    )
    page(f"stagger-{m}", shown.pivot(index="tile_m", columns="k_depth", values="cell").fillna(""), "M tile \\ K depth")
measured = both.dropna(subset=["speedup_0"])
print("cells at stagger 0:", ", ".join(f"{m}^3 {len(part)} of 39" for m, part in measured.groupby("m")))
summary = measured.assign(gain=100 * (measured["gain"] - 1)).groupby(["m", "stages"])["gain"]
summary.agg(["count", "min", "median", "max"]).round(1)

# %% [markdown]
# The tables are of two kernels on two days. Cells of one stage have nothing to hold back and are the same config in
# both: what they differ by is what kernel, board and day are worth. Of the rest, the part of a cell's distance to the
# best of its row that a prompt release makes good:

# %%
control = measured.query("stages == 1")["gain"]
print(f"{len(control)} cells of one stage, both tables: {spread(control)}")
measured["top"] = measured.groupby(["m", "tile_m"])[["speedup_1", "speedup_0"]].transform("max").max(axis=1)
few = measured.query("stages in (2, 3) and tile_m > 64").copy()  # 64 rows have one consumer: section 4
few["lost, stagger 1"] = 100 * (1 - few["speedup_1"] / few["top"])
few["lost, stagger 0"] = 100 * (1 - few["speedup_0"] / few["top"])
few["made good"] = 100 * (few["speedup_0"] - few["speedup_1"]) / (few["top"] - few["speedup_1"])
few["clocks ahead"] = (few["stages"] - 1) * few["tile_m"] * few["k_depth"]  # 128 columns: a clock each row of a step
few["row, bytes"] = [swizzle_bytes(16 * depth) for depth in few["k_depth"]]
shown = ["lost, stagger 1", "lost, stagger 0", "made good", "clocks ahead", "row, bytes"]
few.set_index(["m", "tile_m", "k_depth", "stages"])[shown].astype(float).round(0).astype(int)

# %% [markdown]
# What remains is look-ahead again, in time: a load takes some 1,800 clocks, and what is loaded ahead must last as long.
# 256 x 8 with two stages has one load ahead that lasts 2,048 clocks, 128 x 12 one of 1,536. Every cell of both tables
# with two consumers or three, by how long its loads ahead last:

# %%
points = both.melt(["m", "tile_m", "k_depth", "stages"], ["speedup_1", "speedup_0"], value_name="speedup").dropna()
points["stagger"] = points["variable"].str[-1].astype(int).where(points["stages"] > 1, 0)
points["lasts"] = (points["stages"] - 1 - points["stagger"]) * points["tile_m"] * points["k_depth"]
points["share"] = 100 * points["speedup"] / points.groupby(["m", "tile_m"])["speedup"].transform("max")
points["bytes"] = [swizzle_bytes(16 * depth) for depth in points["k_depth"]]
figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
for axis, m in zip(axes, (4096, 8192), strict=True):
    for (stagger, wide), part in points[(points["m"] == m) & (points["tile_m"] > 64)].groupby(["stagger", "bytes"]):
        colour, mark = ("#1f5f9f", "o") if wide == 128 else ("#c0652a", "s")
        axis.scatter(
            part["lasts"],
            part["share"],
            marker=mark,
            edgecolors=colour,
            facecolors=colour if stagger == 0 else "none",
            label=f"stagger {stagger}, rows of {wide} bytes",
        )
    axis.axvline(1800, color="grey", linewidth=1)
    axis.set_title(f"{m}^3")
    axis.set_xlabel("clocks that the loads ahead last")
axes[0].set_ylabel("speed, % of the best of its M tile")
axes[1].legend(fontsize=8, loc="lower right")
plt.show()

# %% [markdown]
# C's reading of its table is a sweet spot at about four stages and a K depth of four, "too many stages pay a high
# barrier cost". At stagger 0 that can be tried: cells whose loads ahead last 2,000 clocks or more differ in barriers
# and in the length of the rows that TMA writes. Depth 8 has half of the barriers of depth 4 and the same rows of 128
# bytes; depth 6 a third of those of depth 2 and the same rows of 64 bytes; depth 6 fewer than depth 4, and shorter
# rows. The number of stages alone, at one depth, is in the stagger study: 256x128 at 8192^3, all stage counts.

# %%
ample = points[(points["stagger"] == 0) & (points["lasts"] >= 2000) & (points["tile_m"] > 64)]
by_depth = ample.pivot_table(index=["m", "tile_m"], columns="k_depth", values="speedup")
against = {"8 over 4": (8, 4), "6 over 2": (6, 2), "6 over 4": (6, 4), "2 over 4": (2, 4)}
steps_of = {name: (by_depth[a] / by_depth[b]).dropna() for name, (a, b) in against.items()}
display(pd.DataFrame(steps_of).round(3))
prompts = {m: part.set_index(["tile_m", "k_depth"])["speedup"] for m, part in prompt.groupby("m")}
top = prompts[4096].idxmax()
near = prompts[4096][256, 8] / prompts[4096].max()
pair_study = recorded("stagger")
deep = rows_of(pair_study, "sweep").query("tile == '256x128' and k == 8192 and stagger == 0 and status == 'ok'")
by_count = deep.pivot(index="k_depth", columns="stages", values="speedup").astype(float)
fullest = by_count.apply(lambda line: line.dropna().iloc[-1], axis=1)
lost = 100 * (1 - fullest / by_count.max(axis=1)).max()
display(by_count.round(3))
sweet = (
    f"at stagger 0 too {top[0]} x {top[1]} is the best cell of 4096^3, though 256 x 8 with two stages "
    f"comes within {100 * (1 - near):.1f} %. The cause is not barriers but look-ahead and the length of rows: depth 8, "
    f"half the barriers of depth 4, is at {reach(steps_of['8 over 4'])} of it where loads ahead last; depth 6, fewer "
    f"barriers but rows of 64 bytes, at {reach(steps_of['6 over 4'])}, as depth 2 is "
    f"({reach(steps_of['2 over 4'])}); all stages that fit are at most {lost:.1f} % behind the best number of them "
    f"(256x128, 8192^3)"
)

# %%
starved, scarce = (measured.query("stages == @n")["gain"] for n in (2, 3))
rest = measured.query("stages > 3 and tile_m > 64")["gain"]
worst_two = few[few["stages"] == 2]
old = both.set_index(["m", "tile_m", "k_depth"])["speedup_1"]
verdict(
    "C",
    "too few stages do not hide latency",
    f"for the most part it was the stagger: released at once, {len(starved)} cells with two stages gain "
    f"{reach(starved)} (256 x 8 at 4096^3: {old[4096, 256, 8]:.2f}x to {prompts[4096][256, 8]:.2f}x), "
    f"{worst_two['made good'].median():.0f} % of their distance to the best of their row at the median; with three "
    f"{reach(scarce)}, with more {reach(rest)}. The tables are of two kernels, whose cells of one stage differ by "
    f"{reach(control)}. What remains is a load ahead that lasts less than a load takes, some 1,800 clocks",
)

# %% [markdown]
# In steady state, the second table in whole but for 320 x 4 and 320 x 6 at 4096^3; cells of one stage, the same config
# in both, from the first one. Below it what a prompt release is worth there.

# %%
steady_study = asked("seed-table-stagger-0-steady")
slow_1 = ran(seed).query("regime == 'steady'")
slow_0 = pd.concat([ran(steady_study), slow_1.query("stages == 1")])
for m, part in slow_0.groupby("m"):
    display(Markdown(f"{m}^3, stagger 0, steady"), pivot(part))
steady_both = slow_1[columns].merge(
    ran(steady_study)[columns], on=["m", "tile_m", "k_depth", "stages"], suffixes=("_1", "_0")
)
steady_both["gain"] = (steady_both["speedup_0"] / steady_both["speedup_1"]).astype(float)
steady_both.groupby(["m", steady_both["stages"].clip(upper=4)])["gain"].agg(["count", "min", "median", "max"]).round(3)

# %% [markdown]
# The same from one kernel and one day: recorded rows that differ in the stagger alone, of the stagger study (8192^3,
# five tiles) and of the space (4096^3 too), for clusters of two along n.

# %%
FOLDERS = {
    DATED.sub("", str(path.relative_to(root))): path
    for root in (results / "h200", results / "archive/h200")
    for path in sorted(root.rglob("*"))
    if path.is_dir() and has_rows(path)
}
studies = {name: read_study(folder) for name, folder in FOLDERS.items() if name not in NEW}
everything = pd.concat(
    [rows_of(study, "sweep").assign(study=name) for name, study in studies.items() if study.stage("sweep")],
    ignore_index=True,
).query("context == 'chained'")
staggered = pairs_by(everything, "stagger", 0, 1)
cells = staggered.query("study in ['stagger', 'space'] and tile_n == 128 and cluster == '1x2' and k == m")
cells = cells.query("raster == 'm' and swizzle == 8")
first = cells.sort_values("study", ascending=False).drop_duplicates(["m", "tile_m", "k_depth", "stages"])
table = first.pivot_table(index=["tile_m", "k_depth", "stages"], columns="m", values=["speedup_first", "speedup"])
display(table.rename(columns={"speedup_first": "stagger 0", "speedup": "stagger 1"}).astype(float).round(2))
first.assign(gain=1 / first["ratio"]).groupby(first["stages"].clip(upper=4))["gain"].agg(["count", "min", "max"]).round(
    3
)

# %% [markdown]
# ## 3. M tile, K depth and stages jointly; look-ahead or barriers?
#
# In C's table more stages mean shallower ones, since the memory is the same: the number of stages and the number of
# barriers cannot be told apart. In the joint space they can. At one depth more stages cost no barrier more; at one
# size of the ring shallower stages do, and nothing else but the swizzle changes.

# %%
joint_study = asked("joint")
joint = with_derived(rows_of(joint_study, "sweep"))
joint["bytes"] = joint["stages"].astype(int) * joint["k_depth"].astype(int)
best = joint.loc[joint.groupby("problem")["speedup"].idxmax()]
display(best[["problem", "tile_m", "k_depth", "stages", "stagger", "speedup", "tensor_active"]].round(3))
flat = joint.query("stagger == 0")
tops = flat.groupby(["problem", "tile_m", "k_depth"])["speedup"]
fullest = flat.loc[flat.groupby(["problem", "tile_m", "k_depth"])["stages"].idxmax()]
lost = 1 - fullest.set_index(["problem", "tile_m", "k_depth"])["speedup"] / tops.max()
big = lost.drop(64, level="tile_m")
display((100 * lost).groupby(level="k_depth").agg(["median", "max"]).round(1).T)
enough = flat[flat["speedup"] >= 0.99 * flat.groupby(["problem", "tile_m", "k_depth"])["speedup"].transform("max")]
display(enough.groupby(["problem", "tile_m", "k_depth"])["stages"].min().unstack("k_depth"))
four = flat[flat["k_depth"] == 4].set_index(["problem", "tile_m", "bytes"])["speedup"]
ratios = flat.set_index(["problem", "tile_m", "bytes", "k_depth"])["speedup"].unstack("k_depth").div(four, axis=0)
ample = ratios[ratios.index.get_level_values("bytes") >= 16]
display(ample[[1, 2, 3, 6, 8]].agg(["count", "median", "min", "max"]).round(3))
spec = checked(joint_study.provenance["spec"], "joint")
shares = {place: one["parameters"] for place, one in importances(spec, joint_study.stage("sweep")).items()}
display(pd.DataFrame(shares).T.round(3))
places = joint["problem"].unique()
figure, axes = plt.subplots(len(places), 5, figsize=(13, 2.6 * len(places)), layout="constrained", squeeze=False)
for line, place in zip(axes, places, strict=True):
    for axis, (tile_m, part) in zip(line, flat[flat["problem"] == place].groupby("tile_m"), strict=True):
        grid = part.pivot(index="stages", columns="k_depth", values="speedup").astype(float)
        axis.set_facecolor("#dddddd")
        image = axis.imshow(np.ma.masked_invalid(grid), vmin=0, vmax=1.1, aspect="auto", origin="lower")
        axis.set_title(f"{place}, tile_m {tile_m}", fontsize=8)
        axis.set_xticks(range(0, len(grid.columns), 3), grid.columns[::3], fontsize=6)
        axis.set_yticks(range(0, len(grid), 4), grid.index[::4], fontsize=6)
figure.colorbar(image, ax=axes, label="speedup over cuBLAS, stagger 0", aspect=40)
figure.supxlabel("k_depth")
figure.supylabel("stages")
plt.show()
at_four = (best["stages"].between(3, 6) & (best["k_depth"] == 4)).sum()
verdict(
    "C",
    SWEET,
    f"the place confirmed: {at_four} of {len(best)} problems of the joint sweep have their best at depth 4 with three "
    f"to six stages; {sweet}. In the joint sweep the fullest ring of a depth loses {100 * lost.median():.1f} % to "
    f"the best of that depth at the median, {100 * big.max():.1f} % at most with two or three consumers; at one size "
    f"of the ring depth 1 runs at {ample[1].median():.2f}, depth 2 at {ample[2].median():.2f} and depth 8 at "
    f"{ample[8].median():.2f} of depth 4",
)

# %% [markdown]
# ## 4. Stagger with one consumer
#
# C releases a stage one group late so that the tensor cores always have work, and shows it with one consumer. This
# project found that a late release does not pay. First all rows recorded before that differ in the stagger alone, 1
# against 0, by who feeds the tensor cores at a time. With one consumer they are mostly trials of searches on short
# problems, narrow tiles and deep rings, and not drawn evenly.

# %%
staggered["feeding"] = np.where(staggered["schedule"] == "pingpong", "one in turn", staggered["consumers"].astype(str))
by_feeding = staggered.groupby("feeding")["ratio"].agg(["count", "median", "mean", "min", "max"])
earlier = staggered[staggered["feeding"] == "1"]
spare = (earlier["stages"] - 1 - earlier["stagger"]).median()
print(f"one consumer: {earlier['problem'].nunique()} problems, {spare:.0f} loads ahead at the median")
by_feeding.round(3)

# %%
figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
kinds = ["1", "one in turn", "2", "3"]
axis.boxplot(
    [staggered[staggered["feeding"] == kind]["ratio"] for kind in kinds],
    tick_labels=[f"{kind}\n{by_feeding['count'][kind]:.0f} pairs" for kind in kinds],
    whis=(5, 95),
    showfliers=False,
)
axis.axhline(1, color="grey", linewidth=1)
axis.set_xlabel("consumers that feed the tensor cores at a time")
axis.set_ylabel("speed, stagger 1 over 0")
plt.show()

# %% [markdown]
# The clean sweep, one consumer: five tiles, depths 1 to 8, two stages to all that fit, stagger 0 to 3, five problems. A
# late release costs a load ahead, so what it is worth depends on what one pairs it with:
#
# - the same number of stages, as the searches do: the gain less the load;
# - the same look-ahead, one stage more: the load given back;
# - the best of each tile, any depth and stages: what a tuner sees.

# %%
one_study = asked("one-consumer")
ones = ran(one_study).copy()
ones["speedup"] = ones["speedup"].astype(float)
ones["ahead"] = ones["stages"] - 1 - ones["stagger"]
ones["lasts"] = (ones["ahead"] * ones["tile_m"] * ones["tile_n"] * ones["k_depth"] // 128).astype(int)
whole = list(ones["problem"].unique())
same_stages = pd.concat([pairs_by(ones, "stagger", 0, stagger) for stagger in (1, 2, 3)])
keys = ["problem", "tile", "k_depth", "ahead"]
ahead = {stagger: part.set_index(keys)["speedup"] for stagger, part in ones.groupby("stagger")}
same_ahead = pd.concat(
    [
        (ahead[stagger] / ahead[0]).dropna().rename("ratio").reset_index().assign(stagger=stagger)
        for stagger in (1, 2, 3)
    ]
)
tops = ones.groupby(["problem", "tile", "stagger"])["speedup"].max().unstack("stagger")
by_pairing = {
    "same stages": same_stages[same_stages["stagger"] == 1].set_index(["problem", "tile"])["ratio"],
    "same stages, 900 clocks ahead or more": same_stages.query("stagger == 1 and lasts >= 900").set_index(
        ["problem", "tile"]
    )["ratio"],
    "same look-ahead": same_ahead[same_ahead["stagger"] == 1].set_index(["problem", "tile"])["ratio"],
    "best of each tile": tops[1] / tops[0],
}
table = pd.DataFrame(
    {
        problem: {
            f"{name}": f"{spread(part.loc[problem])}, {len(part.loc[problem])} pairs"
            for name, part in by_pairing.items()
        }
        for problem in whole
    }
)
page("one-consumer", table, "stagger 1 over 0, one consumer")

# %%
details = same_stages.query("stagger == 1")
display(details.pivot_table(index=["problem", "tile"], columns="k_depth", values="ratio", aggfunc="median").round(3))
display(details.pivot_table(index=["problem", "tile"], columns="stages", values="ratio", aggfunc="median").round(3))
display(
    same_stages.groupby(["problem", "stagger"])["ratio"].agg(["count", "median", "min", "max"]).round(3),
    same_ahead.groupby(["problem", "stagger"])["ratio"].agg(["count", "median", "min", "max"]).round(3),
    tops.round(3),
)

# %%
figure, axes = plt.subplots(1, len(whole), figsize=(15, 3.6), layout="constrained", sharey=True)
for axis, problem in zip(axes, whole, strict=True):
    for tile, part in details[details["problem"] == problem].groupby("tile"):
        axis.scatter(part["lasts"].clip(lower=50), part["ratio"], s=20, label=tile)
    axis.axhline(1, color="grey", linewidth=1)
    axis.set_xscale("log")
    axis.set_title(problem)
axes[0].set_ylabel("speed, stagger 1 over 0, same stages")
figure.supxlabel("clocks that the loads left ahead last (50: none)", fontsize=9)
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# Where the ring is ample, 128x128 at depth 4 with six stages, the late release gains 7 to 9 % on all five problems: the
# group that is queued fills the time in which the one consumer waits, releases and asks for the next stage. At the same
# number of stages it takes a load away, and pays only where those that stay last some 900 clocks. The searches' rings
# were deep, so that they seldom paid that price. At the same look-ahead it gains nearly everywhere; but these are
# mostly rings that starve, with one to three loads ahead, in which a late release shortens a slot's round and helps two
# consumers as well (`4_stagger.ipynb`).
#
# Tiles of 64 rows do not fit this on long problems: with more loads in flight they get slower, at either stagger. A
# late release is not the cause; it takes a load away, and where it takes enough it helps. The same rings at 1024^3,
# whose operands stay in the L2, do not slow down. `bytes` is what the loads bring, a clock and SM: at and above the 49
# to 51 that other studies found as the most that the L2 gives. `apart` is how far the two pairs of a row lie apart, in
# percent: some of these rows have two modes. Why is not counted yet.

# %%
ones["bytes"] = 2 * (1 / ones["tile_m"] + 1 / ones["tile_n"]) * ones["m"] * ones["n"] * ones["k"]
ones["bytes"] = (ones["bytes"] / (132 * ones["time_us"] * ones["sm_mhz"])).astype(float)
ones["apart"] = (100 * (ones["speedup_high"] / ones["speedup_low"] - 1)).astype(float)
slow = ones.query("tile in ('64x256', '64x192', '128x128') and k_depth == 4 and stagger < 3")
display(slow.pivot_table(index=["tile", "stages"], columns=["problem", "stagger"], values="speedup").round(2))
slow = slow[slow["problem"] == whole[1]]
slow.pivot_table(index=["tile", "stages"], columns="stagger", values=["bytes", "apart"]).round(1)


# %%
def medians(pairing: str) -> str:
    """What a pairing gives at the median, problem by problem."""
    one = by_pairing[pairing]
    told = ", ".join(f"{percent(one.loc[problem].median())} at {cube(problem)}" for problem in whole)
    return f"{told} ({len(one.loc[whole[0]])} pairs each)"


square = ones.query("tile == '128x128' and k_depth == 4").set_index(["problem", "stages", "stagger"])["speedup"]
square = (square.xs(1, level="stagger") / square.xs(0, level="stagger")).dropna()
six = ", ".join(f"{percent(square[problem, 6])} at {cube(problem)}" for problem in whole)
fewer = ", ".join(percent(square[whole[1], stages]) for stages in (2, 3, 4))
small = "1024x1024x1024"
short = by_pairing["best of each tile"].loc[small]
others = by_feeding["mean"]
verdict(
    "C",
    "a late release keeps the tensor cores fed",
    f"confirmed for one consumer in a ring that is deep enough: 128x128, depth 4, six stages {six}; the best of each "
    f"tile at {cube(small)} {reach(short)}. It costs a load ahead, so few stages lose: 2, 3, 4 of them at "
    f"{cube(whole[1])} {fewer}; all rings at the median {medians('same stages')}; with the load given back, a stage "
    f"more, {medians('same look-ahead')}. The {len(earlier)} pairs recorded before, mostly deep rings, had "
    f"{percent(earlier['ratio'].mean())} on average. Not for two or three consumers, {percent(others['2'])} and "
    f"{percent(others['3'])} on average: they fill each other's gaps",
)

# %% [markdown]
# ## 5. When does a try-wait token pay?
#
# C's rule, for each side of the ring: a probe pays where its chance of success times the wait avoided exceeds its
# chance of failure times the probe wasted. A wait that passes at once is the same instruction as a probe, so the rule
# comes to more than half of the probes succeeding. Counted so far, by kernels that count their own waits:

# %%
counted = [
    with_counters(rows_of(study, "sweep"), study.stage("counters"))
    for study in (recorded("raster"), recorded("tile-shape"))
]
probes = pd.concat(counted).query("status == 'ok' and regime == 'burst'").dropna(subset=["consumer_hit_pct"])
hits = ["producer_hit_pct", "consumer_hit_pct", "producer_wait_pct", "consumer_wait_pct"]
probes.groupby("study")[hits].agg(["min", "median", "max"]).astype(float).round(2).T.unstack()

# %% [markdown]
# By the rule alone: not on the producer's side, but on the consumer's. The time, on 20 kernels at both sizes, over the
# same kernel without probes. A gain counts as clear where it exceeds the noise of
# its problem and the intervals of both rows do not meet.

# %%
peek_study = asked("peek")
keys = ["problem", "tile", "k_depth", "stages", "stagger", "schedule"]
sides = {"producer": "producer", "consumer": "consumer", "both": "True"}
peeks = with_counters(rows_of(peek_study, "sweep").query("status == 'ok'"), peek_study.stage("counters"))
peeks = peeks.assign(peek=peeks["peek"].astype(str)).set_index([*keys, "peek"])
values = {
    name: peeks[name].astype(float).unstack("peek").dropna() for name in ("speedup", "speedup_low", "speedup_high")
}
none = values["speedup"]["False"]
gains = pd.DataFrame({name: values["speedup"][side] / none for name, side in sides.items()})
floors = {key.split(" ")[0]: noise for key, noise in peek_study.provenance["noise"].items()}
noise = pd.Series([floors[problem] for problem in gains.index.get_level_values("problem")], index=gains.index)
clear = pd.DataFrame(
    {
        name: ((gains[name] - 1).abs() > noise)
        & (
            (values["speedup_low"][side] > values["speedup_high"]["False"])
            | (values["speedup_high"][side] < values["speedup_low"]["False"])
        )
        for name, side in sides.items()
    }
)
near = none >= 0.9
table = {}
for name in sides:
    one, sure, fast = gains[name], gains[name][clear[name]], gains[name][near]
    table[name] = {
        f"mean of all {len(one)}": percent(one.mean(), 2),
        "least to greatest": reach(one),
        "clearly faster, slower": f"{(sure > 1).sum()}, {(sure < 1).sum()}",
        f"mean of the {len(fast)} within 10 % of cuBLAS": percent(fast.mean(), 2),
        "least to greatest of these": reach(fast),
    }
page("peek", pd.DataFrame(table).T, "probes")
held = ", ".join(f"{cube(problem)}: {len(part)} of 20" for problem, part in gains.groupby(level="problem", sort=False))
print(f"kernels with all four: {held}")
display((100 * (gains - 1)).round(2).assign(none=none.round(3)))

# %%
figure, axis = plt.subplots(figsize=(9, 5.6), layout="constrained")
order = gains.assign(none=none).sort_values(["problem", "none"], ascending=[False, True])
for at, (name, mark) in enumerate((("producer", "<"), ("consumer", ">"), ("both", "o"))):
    axis.scatter(100 * (order[name] - 1), np.arange(len(order)) + 0.2 * (at - 1), marker=mark, s=26, label=name)
names = [
    f"{cube(one[0])} {one[1]} depth {one[2]}, {one[3]} stages, stagger {one[4]}"
    f"{', pingpong' if one[5] == 'pingpong' else ''}: {rate:.2f}x"
    for one, rate in zip(order.index, order["none"], strict=True)
]
axis.set_yticks(range(len(order)), names, fontsize=7)
axis.axvline(0, color="grey", linewidth=1)
axis.grid(axis="y", linewidth=0.3)
axis.set_xlabel("speed gained over no probe, %")
axis.legend(title="probes", fontsize=8)
plt.show()

# %% [markdown]
# What a side's probes are worth is within a few tenths of a percent on all kernels that a tuner would keep, and the
# rule's side, the consumer's, is hardly ahead of the producer's, of whose probes one in a hundred succeeds. A failed
# probe costs the producer nothing that counts, for it waits most of the time (above, `producer_wait_pct`). The kernels
# that lose are small tiles with much in flight, whose rows have two modes (section 4). Below, each kernel's probes that
# succeed beside its gains: in nearly all clear cases of the producer the rule forbids a probe that gains.

# %%
counts = peeks.groupby(level=keys)[["producer_hit_pct", "consumer_hit_pct"]].max().reindex(gains.index).astype(float)
display(counts.round(1).assign(**{f"{name}, %": (100 * (gains[name] - 1)).round(2) for name in sides}))
told = []
for side in ("producer", "consumer"):
    hit, sure = counts[f"{side}_hit_pct"], clear[side]
    right = ((hit > 50) == (gains[side] > 1))[sure]
    succeed = f"{hit.min():.1f} to {hit.max():.1f} % of the {side}'s probes succeed (median {hit.median():.1f} %)"
    told.append(f"{succeed}, and of its {sure.sum()} clear cases the rule is right in {right.sum()}")
rule = "; ".join(told)
close = {name: gains[name][near].mean() for name in sides}
all_of_them, near_cublas = (
    ", ".join(f"{name} {percent(mean, 2)}" for name, mean in found.items()) for found in (gains.mean(), close)
)
verdict(
    "C",
    "a token pays where its probes succeed often enough",
    f"no rule for these kernels: {rule}. All is small: mean gain over no probe {all_of_them} over {len(gains)} "
    f"kernels, {near_cublas} over the {near.sum()} within 10 % of cuBLAS. The default that follows is "
    f"{max(close, key=close.get)}, the one that stands",
)

# %% [markdown]
# The same counts say what barriers cost in the grid of section 2: the share of a consumer's clocks that it waits for a
# stage, for the rings of 256x128 that fill the memory, at 8192^3 and with probes on both sides.

# %%
rings = peeks.xs("True", level="peek").query("problem == '8192x8192x8192' and tile == '256x128'").reset_index()
rings = rings.sort_values(["k_depth", "stagger"])
waits = pd.DataFrame(
    {
        "K depth": rings["k_depth"],
        "stages": rings["stages"],
        "stagger": rings["stagger"],
        "barriers a tile": 8192 // (16 * rings["k_depth"]),
        "a consumer waits": [f"{one:.1f} %" for one in rings["consumer_wait_pct"].astype(float)],
        "over cuBLAS": [f"{one:.3f}x" for one in rings["speedup"].astype(float)],
    }
)
page("waits", waits.astype(str).set_index("K depth"), "K depth")

# %% [markdown]
# The ladder has three rungs of it, both problems, both regimes:

# %%
climbed = recorded("ladder-first")
steps = {step.name: step for step in ladder(rows_of(climbed, "sweep"), climbed.provenance["rungs"])}
names = ("peek: producer", "peek: consumer", "peek")
pd.DataFrame(
    {
        name: {one.group.place: percent(1 + one.gain) for one in steps[name].results if one.gain is not None}
        for name in names
    }
)

# %% [markdown]
# ## 6. The 320 row as a cause
#
# C's 320 row stands at 0.11 to 0.13 at every depth, and C gives no cause. What one would first build: one consumer,
# whose threads need 320 accumulators of 255 registers; or two along n without moving registers to them, 160
# accumulators of 168 registers. (Two along m cannot share 320 rows in blocks of 64; five have 80 registers each at
# entry, too few for an instruction of 128 columns.)

# %%
naive = rows_of(asked("naive-320"), "sweep")
kinds = {(1, True): "one consumer", (2, True): "two, registers not moved", (2, False): "two, as the seed table"}
naive["built"] = [kinds[key] for key in zip(naive["consumers"], naive["spills"].astype(bool), strict=True)]
shown = naive.pivot(index=["problem", "tile", "built"], columns="k_depth", values="speedup").astype(float)
told = naive[["tile", "built", "registers", "instructions", "reason"]]
display(shown.round(3), told.drop_duplicates(["tile", "built", "registers"]))
naive = naive[naive["tile"] == "320x128"]
row_320 = {name: part.set_index(["m", "k_depth"])["speedup"].astype(float) for name, part in naive.groupby("built")}
spilled, alone, sound = (row_320[name] for name in kinds.values())
spilled, alone = alone, spilled
theirs = published().loc[320, "speedup"]


def between(rates: pd.Series) -> str:
    """Rates from the least to the greatest."""
    return f"{rates.min():.2f}x to {rates.max():.2f}x"


verdict(
    "C",
    "the 320 row is at 0.11 to 0.13",
    f"reproduced, and so explained, by a spill: two consumers to which no registers are moved run at "
    f"{between(spilled[4096])} at 4096^3 and {between(spilled[8192])} at 8192^3, depth by depth "
    f"{(spilled[4096] / theirs).min():.2f} to {(spilled[8192] / theirs).max():.2f} of C's figures, though C names no "
    f"cause; one consumer at {between(alone)}; the same two with registers moved, {between(sound[8192])} at 8192^3",
)

# %% [markdown]
# ## 7. Four consumers
#
# C speaks of halving and quartering a tile's rows. 256x128 with four consumers: 64 accumulators each, 640 threads, 96
# registers at entry and 112 after they have moved. It compiles without a spill. An instruction of more than 136
# columns does not: the assembler asks for 102 registers at 152.

# %%
split = rows_of(asked("consumers"), "sweep")
columns = ["problem", "tile", "k_depth", "stagger", "cluster", "speedup_first", "speedup", "ratio"]
quarters, halves = (
    pairs_by(split, "consumers", few, many, follow=("epi_n", "epi_buffers")) for few, many in ((2, 4), (1, 2))
)
display(quarters[columns].round(3), halves[columns].round(3))
verdict(
    "C",
    "a tile can be quartered among consumers",
    f"it can; four beside two {spread(quarters['ratio'])} over {len(quarters)} pairs, two beside one "
    f"{spread(halves['ratio'])} over {len(halves)}",
)
shares = {count: resolve(GemmConfig(consumers=count, split="m")) for count in (2, 4)}
pd.DataFrame(
    {
        count: {"threads": one.threads, "accumulators": one.accumulators, "registers": one.registers.consumer}
        for count, one in shares.items()
    }
).rename_axis(columns="consumers")

# %% [markdown]
# ## 8. What the tilus pages autotune
#
# B and D try 128 rows by 64, 128 or 256 columns, K 16, 32 or 64 deep, two to four stages, and D swizzle groups of 1, 4
# or 8, in fp16 at 8192^3. They estimate the peak from the share that cuBLAS keeps the tensor cores active; the same
# estimate here is cuBLAS's rate over that share.

# %%
grid = ran(asked("tilus-grid"))
plain = grid[~grid["unroll"].astype(bool)]
for stagger, part in plain.groupby("stagger"):
    table = part.pivot_table(index=["tile_n", "k_depth"], columns=["swizzle", "stages"], values="speedup")
    display(Markdown(f"stagger {stagger}"), table.astype(float).round(2))
theirs = 2 * 8192**3 / grid["baseline_us"].median() / 1e6
clock = 4096 * 132 * grid["baseline_sm_mhz"].median() / 1e6
print(f"cuBLAS {theirs:.0f} TFLOP/s at {100 * theirs / clock:.1f} % of the peak at its clock, {clock:.0f} TFLOP/s")
top = plain.loc[plain["speedup"].idxmax()]
print(
    f"the best of the grid: {top['tile']}, depth {top['k_depth']}, {top['stages']} stages, swizzle {top['swizzle']}: "
    f"{top['tflops']:.0f} TFLOP/s, {top['speedup']:.3f}x, {100 * top['tflops'] / clock:.1f} % of that peak"
)
unrolled, wide = pairs_by(grid, "unroll", False, True)["ratio"], pairs_by(plain, "swizzle", 1, 8)["ratio"]
verdict(
    "B",
    "unrolling by the stages matters",
    f"not on the warp-specialised kernel: {spread(unrolled)} over {len(unrolled)} pairs of B's grid",
)
verdict(
    "D",
    "a swizzled order of tiles is faster",
    f"confirmed: groups of eight beside one {spread(wide)} over {len(wide)} pairs of D's grid, fp16, 8192^3",
)

# %%
types = ran(asked("fp16"))
types["size"] = types["problem"].str.removesuffix(" fp16")
by_type = types.pivot(index="size", columns="dtype", values=["tflops", "speedup", "sm_mhz"]).astype(float)
display(by_type.round(3))
rates, ratios, clocks = (by_type[name, "fp16"] / by_type[name, "bf16"] for name in ("tflops", "speedup", "sm_mhz"))
verdict(
    "B, D",
    "what holds in fp16 holds in bf16",
    f"ratios do: fp16 over bf16 {spread(ratios)} over cuBLAS. Rates do not: {spread(rates)}, for the clock is lower, "
    f"{spread(clocks)}",
)

# %% [markdown]
# B and D wait with `sem="relaxed"`. On sm_90a that is no other instruction: with the same loop around it the assembler
# makes the same machine code, byte for byte, of `mbarrier.try_wait` with `.acquire.cta` and with `.relaxed.cta`; a test
# holds it to that. Only an acquire in the scope of a cluster is more, four instructions.
#
# ## 9. The library's own pipeline, and who arrives
#
# The same kernel with its ring kept by cutlass.pipeline (PipelineTmaAsync, PipelineState), and FlashAttention's
# switches, which A describes: release by an elected thread behind a warp sync, or by every thread; extra bytes on a
# barrier that takes copies of both kinds.

# %%
ring_study = asked("ring")
rungs = ladder(rows_of(ring_study, "sweep"), ring_study.provenance["rungs"])
by_code = ran(ring_study).drop_duplicates("code").copy()
by_code["config"] = [str(config_of(row)) for row in by_code.to_dict("records")]
built = by_code.set_index("config")
gain = {rung.name: {one.group.m: one.gain for one in rung.results if one.gain is not None} for rung in rungs}
lines = []
for rung in rungs:
    code = built.loc[str(LadderConfig.of(rung.config))]
    figures = {one.group.m: one for one in rung.results}
    cells = []
    for m in (4096, 8192):
        one = figures[m]
        more = "" if one.gain is None else f", {100 * one.gain:+.2f} %"
        cells.append(f"{one.speedup:.3f}x{more}")
    lines.append((rung.name, rung.start or "", *cells, f"{code['registers']:.0f}", f"{code['instructions']:.0f}"))
columns = ["kernel", "beside", "4096^3", "8192^3", "registers", "instructions"]
page("ring", pd.DataFrame(lines, columns=columns).set_index("kernel"), "kernel")
floors = {key.split("x")[0]: noise for key, noise in ring_study.provenance["noise"].items()}
print("noise:", ", ".join(f"{m}^3 {100 * noise:.2f} %" for m, noise in floors.items()))


def worth(name: str) -> str:
    """What a rung is worth at each size, in percent."""
    return ", ".join(f"{100 * gain[name][m]:+.2f} % at {m}^3" for m in (4096, 8192) if m in gain[name])


verdict(
    "D",
    "the abstraction costs no performance",
    f"nearly: the library's ring beside ours, in a cluster of two {worth('library ring')}; a single CTA "
    f"{worth('library, single CTA')}; with four times as many barriers (k_depth 1) no more, "
    f"{worth('library, k_depth 1')}, so it is not the barriers' price; registers are the same, 168",
)
verdict(
    "A",
    "one elected thread saves synchronisation",
    f"nothing that matters: every consumer thread arriving {worth('all consumers' + chr(39) + ' threads')}, beside one "
    f"predicated lane of each warp; an elected one behind a warp sync {worth('elected')}; one lane of a whole consumer "
    f"{worth('one of a consumer')}; on the library's ring every thread arriving is even faster, "
    f"{worth('library, all threads')}; noise {100 * min(floors.values()):.2f} to {100 * max(floors.values()):.2f} %",
)
verdict(
    "A",
    "one barrier can take TMA bytes and cp.async arrivals",
    f"it works, slower: {worth('TMA and cp.async')} beside TMA alone, cp.async alone {worth('cp.async')}",
)
verdict(
    "B, D",
    "a wait may be relaxed",
    f"it makes no other machine code of a wait; {worth('relaxed waits')}",
)

# %% [markdown]
# ## 10. Figures
#
# ### One, two and three stages; stagger 0, 1 and 2
#
# One CTA's first tile by its SM's clock, from a kernel that notes when each role did what: the same 6,000 clocks wide,
# wherever it is, so that more stages in a picture mean a faster kernel. Grey: a role waits. Green: a load is under way,
# until a consumer has the stage at the latest. Dark blue: a group is the oldest of its consumer, from its first wgmma
# or from the end of the group before. Light blue, below: a group is queued behind another of its consumer. Two
# consumers share the tensor cores, so that their groups last twice as long when they overlap. Notes cost time
# themselves. The kernel with one stage still probed ahead, which the kernel of today leaves out.

# %%
timed = results / "archive/h200/2026-11-22-timeline"
about = json.loads((timed / "provenance.json").read_text())
traced = pd.read_csv(timed / "moments.csv.gz")
taken = [rung for rung in about["rungs"] if rung["name"] in set(traced["rung"])]
every = {rung["name"]: spans(traced[traced["rung"] == rung["name"]], rung["config"]["stagger"]) for rung in taken}
WIDE = 6000


def draw(names: list[str]) -> None:
    """Draw the timelines of some rungs, one below the other, from stage 16 on."""
    chosen = [rung for rung in taken if rung["name"] in names]
    lanes = [1 + rung["config"]["stages"] + rung["config"]["consumers"] for rung in chosen]
    _, axes = plt.subplots(
        len(chosen), 1, figsize=(12, 0.28 * sum(lanes) + 0.5 * len(chosen)), height_ratios=lanes, layout="constrained"
    )
    for axis, rung in zip(axes, chosen, strict=True):
        found = every[rung["name"]]
        since = found[(found["what"] == "math") & (found["stage"] == 16)]["start"].min()
        part = found[(found["end"] > since) & (found["start"] < since + WIDE)].copy()
        part[["start", "end"]] = part[["start", "end"]].clip(since, since + WIDE) - since
        timeline(axis, part, rung["config"]["stages"])
        axis.set_xlim(0, WIDE)
        axis.set_title(f"{rung['name']}: {rung['adds']}", fontsize=9, loc="left")
        axis.label_outer()
    plt.show()


draw(["one stage", "two stages", "three stages"])

# %% [markdown]
# Who overlaps what at stagger 0, 1 and 2, four stages each: with one consumer, then with two.

# %%
draw(["one consumer, stagger 0", "one consumer, stagger 1"])
draw(["stagger 0", "stagger 1", "stagger 2"])

# %%
lines = {}
for rung in taken:
    found, config = every[rung["name"]], rung["config"]
    fed = found[found["what"] == "math"]
    since, until = (fed[fed["stage"] == stage]["start"].min() for stage in (16, 48))
    clocks, math = (until - since) / 32, config["tile_m"] * config["tile_n"] * config["k_depth"] / 128
    inside = found[["start", "end"]].clip(since, until)
    mean = (inside["end"] - inside["start"]).groupby(found["what"]).sum() / (until - since)
    lines[rung["name"]] = {
        "clocks a stage": f"{clocks:.0f}",
        "its wgmma alone": f"{math:.0f}",
        "tensor cores busy": f"{100 * math / clocks:.0f} %",
        "a group under way": f"{100 * share(found, 'math', since, until):.0f} %",
        "groups under way or queued": f"{mean['math'] + mean['queued']:.2f}",
        "loads under way": f"{mean['load']:.2f}",
    }
overlaps = pd.DataFrame(lines).T
page("timeline", overlaps, "kernel, 4096^3")

# %% [markdown]
# With one stage load and math take turns; two stages halve the time, three take off more than another quarter. With one
# consumer and stagger 0 the tensor cores idle between two groups although four stages are there; stagger 1 queues the
# next group and closes that gap, with a load less under way. Two consumers at stagger 0 have nearly two groups under
# way as it is; more stagger queues more and loads less, and each step makes a stage slower.

# %% [markdown]
# ### The working set of a wave
#
# D's example: 8 x 8 tiles, 16 at a time. Column by column they need 8 panels of A and 2 of B; in groups of four columns
# 4 and 4.

# %%
figure, axes = plt.subplots(1, 2, figsize=(6, 3.2), layout="constrained")
for axis, swizzle in zip(axes, (1, 4), strict=True):
    order = tile_order(8, 8, "m", swizzle, serpentine=False)
    patch(axis, order, (8, 8), 16)
    axis.set_xlabel(f"swizzle {swizzle}")
plt.show()
example = {swizzle: sum(unique_panels(tile_order(8, 8, "m", swizzle, False), 16)[0]) for swizzle in (1, 4)}
verdict(
    "D", "8 panels instead of 10", f"confirmed by the order of this kernel's walk: {example[4]} instead of {example[1]}"
)

# %% [markdown]
# The same for 256x128 in clusters of two, 66 clusters at a time: the first wave at 8192^3, drawn; its panels, bytes of
# all waves as predicted by counting them, and bytes read from DRAM as the profiler counted them.

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
for axis, swizzle in zip(axes, (1, 4, 8), strict=True):
    patch(axis, tile_order(32, 32, "m", swizzle, serpentine=False), (32, 32), 66)
    axis.set_xlabel(f"8192^3, swizzle {swizzle}")
plt.show()

# %%
raster = recorded("raster")
walks = with_counters(rows_of(raster, "sweep"), raster.stage("counters")).query("serpentine == False and raster == 'm'")
lines = []
for row in walks.sort_values(["m", "swizzle"]).to_dict("records"):
    config, problem = config_of(row), problem_of(row)
    order = tile_order(-(-problem.m // 256), -(-problem.n // 256), "m", config.swizzle, serpentine=False)
    a, b = unique_panels(order, 66)[0]
    predicted = panels(config, problem)[0]
    lines.append((problem.m, config.swizzle, a, b, predicted / 1e9, row["dram_read_bytes"] / 1e9))
columns = ["cube", "swizzle", "panels of A", "panels of B", "GB predicted", "GB counted"]
working = pd.DataFrame(lines, columns=columns)
working["counted / predicted"] = (working["GB counted"] / working["GB predicted"]).astype(float)
working.set_index(["cube", "swizzle"]).astype(float).round(2)

# %%
fits = working[working["cube"] < 16384]["counted / predicted"]
verdict(
    "D",
    "a compact patch of tiles keeps the working set of the L2 small",
    f"confirmed: DRAM reads what the distinct panels of each wave weigh, to {100 * (fits - 1).abs().max():.0f} % at "
    f"4096^3 and 8192^3; at 16384^3 clusters drift apart and read up to "
    f"{working['counted / predicted'].max():.1f} times as much",
)

# %% [markdown]
# ## 11. Multi-stage against serial
#
# B: more than twice the rate from V1, which waits for each load and multiplies one stage at a time, to V2, a ring of
# two to four stages in the same warp (B200, fp16, 8192^3). The rungs that come nearest, from the ladder at 8192^3:

# %%
near = ("serial", "two stages", "multistage", "specialised")
rates = {name: {one.group.regime: one.tflops for one in steps[name].results if one.group.m == 8192} for name in near}
rates = pd.DataFrame(rates).T
rates.round(0)

# %%
doubled = rates.loc[["two stages", "multistage"], "burst"].max() / rates.loc["serial", "burst"]
verdict(
    "B",
    "a ring of stages more than doubles the rate of the serial kernel",
    f"not on this kernel: {doubled:.2f}x from `serial`, which here runs two CTAs on an SM that hide each other's loads",
)

# %% [markdown]
# ## The claims

# %%
found = pd.DataFrame(verdicts, columns=["source", "claim", "found"]).set_index("source")
page("claims", found, "source")
