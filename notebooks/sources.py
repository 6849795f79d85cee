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
# Each claim that a Hopper GPU can answer is met here with rows of `results/h200/`, measured on an NVIDIA H200. No GPU
# is needed to run this again. Every timing here is chained (launches of one kernel back to back), in bursts where
# nothing else is said. A study that is not recorded yet is named with the command that records it, and its verdict is
# left open.

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown, display

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import footprint
from hopper_gemm.model.roofline import tile_order
from hopper_gemm.model.tuned import results_root
from hopper_gemm.search.importance import importances
from hopper_gemm.study.reader import has_rows, read_study
from hopper_gemm.study.spec import checked
from hopper_gemm.tables.counters import panels, with_counters, with_derived
from hopper_gemm.tables.ladder import ladder, ladder_table
from hopper_gemm.tables.pivot import config_of, markdown_table, one_line, pivot, problem_of, rows_of
from hopper_gemm.tables.plots import patch, show_small, timeline
from hopper_gemm.tables.report import source_line
from hopper_gemm.tables.sources import beside, pairs_by, published, recorded, share, spans, unique_panels

show_small()
results = results_root() / "h200"
verdicts: list[tuple[str, str, str]] = []
NEW = {
    *("seed-table-stagger-0", "seed-table-stagger-0-steady", "joint", "one-consumer", "peek"),
    *("naive-320", "consumers", "tilus-grid", "fp16", "ring"),
}
"""The studies that answer this notebook's questions; the others were recorded before."""


def asked(name: str, what: str = "sweep"):
    """A study, or None with the command that records it."""
    study = recorded(name)
    if study is None:
        print(f"not measured yet: hopper-gemm {what} sweeps/{name}.toml --out results/h200/{name}")
    else:
        print(source_line(study.provenance))
    return study


def ran(study) -> pd.DataFrame:
    """The rows of a sweep that ran."""
    return rows_of(study, "sweep").query("status == 'ok'")


def verdict(source: str, claim: str, text: str | None) -> None:
    """Note what became of a claim; None where it is still to be measured."""
    verdicts.append((source, claim, text or "not measured yet"))
    display(Markdown(f"**{claim}** ({source}): {text or 'not measured yet'}."))


def percent(ratio: float) -> str:
    """A ratio as a gain."""
    return f"{100 * (ratio - 1):+.1f} %"


def spread(ratios: pd.Series) -> str:
    """Ratios as gains: their median and how far they reach."""
    return f"{percent(ratios.median())} at the median ({percent(ratios.min())} to {percent(ratios.max())})"


# %% [markdown]
# ## 1. All 39 cells beside ours
#
# C's figure, ours, their ratio, and the ranks of both among the 39 cells. The ratio compares two kernels on two GPUs
# against two versions of cuBLAS, on problems of which one is unknown; the order of the cells says more than the
# figures.

# %%
seed = recorded("seed-table")
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
# stagger than of the stages. The second table, every stage released as soon as its own group has ended:

# %%
prompt_study = asked("seed-table-stagger-0")
if prompt_study:
    prompt = ran(prompt_study)
    for m, part in prompt.groupby("m"):
        display(Markdown(f"{m}^3, stagger 0"), pivot(part))
    both = late.merge(prompt, on=["m", "tile_m", "k_depth"], suffixes=("_1", "_0"))
    both["gain"] = both["speedup_0"] / both["speedup_1"] - 1
    display((100 * both.groupby(["m", "stages_0"])["gain"].agg(["count", "min", "median", "max"])).round(1))
    waits = with_counters(prompt, prompt_study.stage("counters"))
    if waits["consumer_wait_pct"].notna().any():
        print("share of a consumer's clocks that it waits for a stage, 8192^3, %")
        waits = waits.query("m == 8192").pivot(index="tile_m", columns="k_depth", values="consumer_wait_pct")
        display(waits.astype(float).round(1))
steady_study = asked("seed-table-stagger-0-steady")
if steady_study:
    alone = ran(seed).query("regime == 'steady' and stages == 1")  # nothing to hold back: the same in both tables
    for m, part in pd.concat([ran(steady_study), alone]).groupby("m"):
        display(Markdown(f"{m}^3, stagger 0, steady"), pivot(part))

# %% [markdown]
# Until then the recorded rows that differ in the stagger alone, of the stagger study (8192^3, five tiles) and of the
# space (4096^3 too), for clusters of two along n:

# %%
FOLDERS = sorted(path for path in results.rglob("*") if path.is_dir() and has_rows(path) and path.name not in NEW)
studies = {str(folder.relative_to(results)): read_study(folder) for folder in FOLDERS}
everything = pd.concat(
    [rows_of(study, "sweep").assign(study=name) for name, study in studies.items() if study.stage("sweep")],
    ignore_index=True,
)
staggered = pairs_by(everything, "stagger", 0, 1)
cells = staggered.query("study in ['stagger', 'space'] and tile_n == 128 and cluster == '1x2' and k == m")
cells = cells.query("raster == 'm' and swizzle == 8")
first = cells.sort_values("study", ascending=False).drop_duplicates(["m", "tile_m", "k_depth", "stages"])
table = first.pivot_table(index=["tile_m", "k_depth", "stages"], columns="m", values=["speedup_first", "speedup"])
table.rename(columns={"speedup_first": "stagger 0", "speedup": "stagger 1"}).astype(float).round(2)

# %%
two = first.query("stages == 2")
three = first.query("stages == 3")
more = first.query("stages > 3")
verdict(
    "C",
    "too few stages do not hide latency",
    f"in part it is the stagger: with two stages a prompt release gains {percent(1 / two['ratio'].max())} to "
    f"{percent(1 / two['ratio'].min())} over a late one, with three {percent(1 / three['ratio'].max())} to "
    f"{percent(1 / three['ratio'].min())}, with more {percent(1 / more['ratio'].max())} to "
    f"{percent(1 / more['ratio'].min())} ({len(first)} recorded pairs)",
)

# %% [markdown]
# ## 3. M tile, K depth and stages jointly; look-ahead or barriers?
#
# In C's table more stages mean shallower ones, since the memory is the same: the number of stages and the number of
# barriers cannot be told apart. In the joint space they can. At one depth more stages cost no barrier more; at one
# size of the ring shallower stages do, and nothing else but the swizzle changes.

# %%
joint_study = asked("joint")
if joint_study:
    joint = with_derived(rows_of(joint_study, "sweep"))
    joint["bytes"] = joint["stages"].astype(int) * joint["k_depth"].astype(int)
    best = joint.loc[joint.groupby("problem")["speedup"].idxmax()]
    display(best[["problem", "tile_m", "k_depth", "stages", "stagger", "speedup", "tensor_active"]].round(3))
    flat = joint.query("stagger == 0")
    tops = flat.groupby(["problem", "tile_m", "k_depth"])["speedup"]
    fullest = flat.loc[flat.groupby(["problem", "tile_m", "k_depth"])["stages"].idxmax()]
    lost = 1 - fullest.set_index(["problem", "tile_m", "k_depth"])["speedup"] / tops.max()
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
    near = (best["stages"].between(3, 5) & best["k_depth"].between(3, 5)).sum()
    verdict(
        "C",
        "the sweet spot is at about four stages and a K depth of four, since too many stages pay a high barrier cost",
        f"the place: {near} of {len(best)} problems have their best at three to five of both; the cause: the fullest "
        f"ring of a depth loses {100 * lost.median():.1f} % to the best of that depth at the median "
        f"({100 * lost.max():.1f} % at most), while at one size of the ring depth 1 runs at {ample[1].median():.2f} "
        f"and depth 2 at {ample[2].median():.2f} of depth 4",
    )
else:
    verdict("C", "the sweet spot is at about four stages and a K depth of four, for barriers cost beyond it", None)

# %% [markdown]
# What is recorded of it: the stagger study holds 256x128 at 8192^3 for depths 1 to 8 and all stage counts.

# %%
part = everything.query("study == 'stagger' and tile == '256x128' and k == 8192 and stagger == 0 and status == 'ok'")
part.pivot(index="k_depth", columns="stages", values="speedup").astype(float).round(3)

# %% [markdown]
# ## 4. Stagger with one consumer
#
# C releases a stage one group late so that the tensor cores always have work, and shows it with one consumer. This
# project found that a late release does not pay. Both hold: all recorded rows that differ in the stagger alone, 1
# against 0, by who feeds the tensor cores at a time.

# %%
staggered["feeding"] = np.where(staggered["schedule"] == "pingpong", "one in turn", staggered["consumers"].astype(str))
by_feeding = staggered.groupby("feeding")["ratio"].agg(["count", "median", "mean", "min", "max"])
by_feeding.round(3)

# %%
figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
kinds = ["1", "one in turn", "2", "3"]
axis.boxplot(
    [staggered[staggered["feeding"] == kind]["ratio"] for kind in kinds],
    tick_labels=kinds,
    whis=(5, 95),
    showfliers=False,
)
axis.axhline(1, color="grey", linewidth=1)
axis.set_xlabel("consumers that feed the tensor cores at a time")
axis.set_ylabel("speed, stagger 1 over 0")
plt.show()

# %% [markdown]
# With one warpgroup the tensor cores idle between its groups while it waits, releases and asks for the next stage,
# unless the next group is queued: that is what the stagger does. A second consumer's groups fill that gap as well, and
# then the stagger only holds a stage back. In pingpong one consumer multiplies at a time, and the stagger pays again.
# These pairs are mostly trials of searches, on short problems, and not drawn evenly. The clean sweep:

# %%
one_study = asked("one-consumer")
if one_study:
    ones = pd.concat([pairs_by(rows_of(one_study, "sweep"), "stagger", 0, s) for s in (1, 2, 3)])
    display(ones.groupby(["problem", "stagger"])["ratio"].agg(["count", "median", "min", "max"]).round(3))
    ones["ahead"] = ones["stages"] - 1 - ones["stagger"]
    display(ones.pivot_table(index=["tile", "stagger"], columns="ahead", values="ratio", aggfunc="median").round(3))
    fair = ones[(ones["stagger"] == 1) & (ones["ahead"] >= 2)]["ratio"]
    gain, answer = fair.median(), f"at the median of {len(fair)} pairs with two loads ahead or more"
else:
    gain, answer = by_feeding["mean"]["1"], f"on average over {by_feeding['count']['1']:.0f} recorded pairs"
verdict(
    "C",
    "a late release keeps the tensor cores fed",
    f"{'confirmed' if gain > 1 else 'not confirmed'} for one consumer, {percent(gain)} {answer}; not for two or three, "
    f"whose stagger 1 is at {percent(by_feeding['mean']['2'])} and {percent(by_feeding['mean']['3'])} on average over "
    "the rows recorded before: they fill each other's gaps",
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

# %%
peek_study = asked("peek")
keys = ["problem", "tile", "k_depth", "stages", "stagger", "schedule"]
sides = {"producer": "producer", "consumer": "consumer", "both": True}
if peek_study and not peek_study.stage("counters"):
    print("its probes are not counted yet: hopper-gemm counters results/h200/peek --no-ncu")
if peek_study:
    peeks = with_counters(rows_of(peek_study, "sweep"), peek_study.stage("counters"))
    tokens = peeks.assign(peek=peeks["peek"].astype(str)).set_index([*keys, "peek"])["speedup"].unstack("peek")
    gains = pd.DataFrame({name: tokens[str(side)] / tokens["False"] for name, side in sides.items()})
    found = {
        side: peeks[peeks["peek"].astype(str) == side].set_index(keys)[f"{side}_hit_pct"]
        for side in ("producer", "consumer")
    }
    display(gains.join(pd.DataFrame(found).add_suffix(" hits, %")).astype(float).round(3))
    noise = max(peek_study.provenance["noise"].values())
    right = {}
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharey=True)
    for axis, side in zip(axes, ("producer", "consumer"), strict=True):
        asked_for = found[side].reindex(gains.index).astype(float)
        axis.scatter(asked_for, 100 * (gains[side] - 1))
        axis.axhspan(-100 * noise, 100 * noise, color="lightgrey", zorder=0)
        axis.set_xlabel(f"{side}'s probes that succeed, %")
        clear = (gains[side] - 1).abs() > noise
        right[side] = (((asked_for > 50) == (gains[side] > 1)) & clear).sum(), clear.sum()
    axes[0].set_ylabel("time gained over no probe, %")
    plt.show()
    means = {name: float(np.exp(np.log(gains[name].astype(float)).mean())) for name in sides}
    told = ", ".join(f"{name} {100 * (mean - 1):+.2f} %" for name, mean in means.items())
    fastest = max({"none": 1.0, **means}.items(), key=lambda one: one[1])[0]
    answer = (
        f"mean gains {told}; beyond the noise "
        f"of {100 * noise:.2f} % the rule is right in {right['producer'][0]} of {right['producer'][1]} kernels for the "
        f"producer and {right['consumer'][0]} of {right['consumer'][1]} for the consumer; fastest is {fastest}"
    )
else:
    low, high = probes["producer_hit_pct"].min(), probes["producer_hit_pct"].max()
    answer = None
    print(f"By the rule alone: not on the producer's side ({low:.2f} to {high:.2f} % succeed), but on the consumer's.")
verdict("C", "a token pays where its probes succeed often enough", answer)

# %% [markdown]
# The ladder has three rungs of it, both problems, both regimes:

# %%
climbed = recorded("ladder")
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
naive_study = asked("naive-320")
if naive_study:
    naive = rows_of(naive_study, "sweep")
    built = {(1, True): "one consumer", (2, True): "two, registers not moved", (2, False): "two, as the seed table"}
    naive["built"] = [built[key] for key in zip(naive["consumers"], naive["spills"].astype(bool), strict=True)]
    shown = naive.pivot(index=["problem", "tile", "built"], columns="k_depth", values="speedup").astype(float)
    told = naive[["tile", "built", "registers", "instructions", "reason"]]
    display(shown.round(2), told.drop_duplicates(["tile", "built", "registers"]))
    worst = naive.query("tile == '320x128' and consumers == 1")["speedup"]
    whole = late.query("tile_m == 320")["speedup"]
    close = worst.between(0.08, 0.18).mean() > 0.5
    verdict(
        "C",
        "the 320 row is at 0.11 to 0.13",
        f"{'reproduced, and so explained, by spilling' if close else 'not reproduced by spilling alone'}: with one "
        f"consumer {worst.min():.2f} to {worst.max():.2f}; without a spill {whole.max():.2f} at best",
    )
else:
    verdict("C", "the 320 row is at 0.11 to 0.13", None)

# %% [markdown]
# ## 7. Four consumers
#
# C speaks of halving and quartering a tile's rows. 256x128 with four consumers: 64 accumulators each, 640 threads, 96
# registers at entry and 112 after they have moved. It compiles without a spill. An instruction of more than 136
# columns does not: the assembler asks for 102 registers at 152.

# %%
four_study = asked("consumers")
if four_study:
    quarters = pairs_by(rows_of(four_study, "sweep"), "consumers", 2, 4, follow=("epi_n", "epi_buffers"))
    columns = ["problem", "tile", "k_depth", "stagger", "cluster", "speedup_first", "speedup", "ratio"]
    display(quarters[columns].round(3))
    answer = f"possible; beside two {spread(quarters['ratio'])}"
verdict("C", "a tile can be quartered among consumers", answer if four_study else None)
shares = {count: footprint(GemmConfig(consumers=count, split="m")) for count in (2, 4)}
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
grid_study = asked("tilus-grid")
if grid_study:
    grid = ran(grid_study)
    plain = grid[~grid["unroll"].astype(bool)]
    for stagger, part in plain.groupby("stagger"):
        table = part.pivot_table(index=["tile_n", "k_depth"], columns=["swizzle", "stages"], values="speedup").astype(
            float
        )
        display(Markdown(f"stagger {stagger}"), table.round(2))
    unrolled = pairs_by(grid, "unroll", False, True)["ratio"]
    top = plain.loc[plain["speedup"].idxmax()]
    theirs = 2 * 8192**3 / grid["baseline_us"].median() / 1e6
    clock = 4096 * 132 * grid["baseline_sm_mhz"].median() / 1e6
    print(f"cuBLAS {theirs:.0f} TFLOP/s at {100 * theirs / clock:.1f} % of the peak at its clock, {clock:.0f} TFLOP/s")
    print(
        f"the best of the grid: {top['tile']}, depth {top['k_depth']}, {top['stages']} stages, swizzle "
        f"{top['swizzle']}: {top['tflops']:.0f} TFLOP/s, {top['speedup']:.3f}x"
    )
    wide = pairs_by(plain, "swizzle", 1, 8)["ratio"]
    verdict(
        "B",
        "unrolling by the stages matters",
        f"{spread(unrolled)} on the warp-specialised kernel",
    )
    verdict("D", "a swizzled order of tiles is faster", f"groups of 8 beside 1: {percent(wide.median())} at the median")
else:
    verdict("B", "unrolling by the stages matters", None)
    order = pairs_by(everything.query("study == 'raster' and serpentine == False"), "swizzle", 1, 8)
    low, high = order["ratio"].min(), order["ratio"].max()
    verdict(
        "D",
        "a swizzled order of tiles is faster",
        f"confirmed for 256x128 in bf16: {percent(low)} to {percent(high)} (raster study)",
    )

# %%
half_study = asked("fp16")
if half_study:
    types = ran(half_study).assign(
        size=lambda rows: rows["m"].astype(str) + "x" + rows["n"].astype(str) + "x" + rows["k"].astype(str)
    )
    by_type = types.pivot(index="size", columns="dtype", values=["tflops", "speedup", "sm_mhz"]).astype(float)
    display(by_type.round(3))
    between = by_type["tflops", "fp16"] / by_type["tflops", "bf16"]
    answer = f"fp16 over bf16 {spread(between)}"
verdict("B, D", "what holds in fp16 holds in bf16", answer if half_study else None)

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
ring_study = asked("ring", "ladder")
if ring_study:
    rungs = ladder(rows_of(ring_study, "sweep"), ring_study.provenance["rungs"])
    display(Markdown(markdown_table(ladder_table(rungs), "rung")))
    code = (
        ran(ring_study)
        .drop_duplicates("code")
        .set_index("code")[
            ["ring", "arrivals", "loads", "waits", "k_depth", "cluster", "stagger", "registers", "instructions"]
        ]
    )
    display(code)
    gain = {rung.name: [one.gain for one in rung.results if one.gain is not None] for rung in rungs}
    told = {name: ", ".join(f"{100 * one:+.2f} %" for one in gain[name]) for name in gain}
    verdict(
        "D",
        "the abstraction costs no performance",
        f"the library's ring beside ours: {told['library ring']} (4096^3, 8192^3); at k_depth 1 "
        f"{told['library, k_depth 1']}",
    )
    every = told["all consumers' threads"]
    verdict(
        "A",
        "one elected thread saves synchronisation",
        f"every consumer thread arriving: {every}; an elected one behind a warp sync: {told['elected']}; both beside "
        "one predicated lane",
    )
    verdict(
        "A",
        "one barrier can take TMA bytes and cp.async arrivals",
        f"it works: {told['TMA and cp.async']} beside TMA alone, cp.async alone {told['cp.async']}",
    )
else:
    for source, claim in (
        ("D", "the abstraction costs no performance"),
        ("A", "one elected thread saves synchronisation"),
        ("A", "one barrier can take TMA bytes and cp.async arrivals"),
    ):
        verdict(source, claim, None)

# %% [markdown]
# ## 10. Figures
#
# ### One, two and three stages; stagger 0, 1 and 2
#
# One CTA's first tile by its SM's clock, from a kernel that notes when each role did what. Light blue: a group is
# queued behind another. Green: a load is under way, until a consumer has the stage at the latest.

# %%
moments_file = results / "timeline" / "moments.csv"
if moments_file.is_file():
    about = json.loads((results / "timeline" / "provenance.json").read_text())
    traced = pd.read_csv(moments_file)
    names = [rung for rung in about["rungs"] if rung["name"] in set(traced["rung"])]
    found = {}
    figure, axes = plt.subplots(len(names), 1, figsize=(13, 2.2 * len(names)), layout="constrained", squeeze=False)
    for axis, rung in zip(axes[:, 0], names, strict=True):
        config, part = rung["config"], traced[traced["rung"] == rung["name"]]
        every = spans(part, config["stagger"])
        middle = every[every["stage"].between(16, 27)]
        timeline(axis, middle, config["stages"])
        axis.set_title(f"{rung['name']}: {rung['adds']}", fontsize=8, loc="left")
        fed = every[every["what"] == "math"]
        since, until = fed[fed["stage"] == 16]["start"].min(), fed[fed["stage"] == 48]["start"].min()
        found[rung["name"]] = {
            "clocks a stage": (until - since) / 32,
            "math under way, %": 100 * share(every, "math", since, until),
            "load under way, %": 100 * share(every, "load", since, until),
        }
    plt.show()
    display(pd.DataFrame(found).T.round(1))
else:
    print("not measured yet: hopper-gemm trace sweeps/timeline.toml --out results/h200/timeline")

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
# The same for 256x128 in clusters of two, 66 clusters at a time: panels of the first wave, bytes of all waves as
# predicted by counting them, and bytes read from DRAM as the profiler counted them.

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
display(Markdown(markdown_table(found.map(one_line), "source")))
