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
# # The M tile x K depth table, read closely
#
# **Question.** One kernel, forty cells, two problems, two regimes: what does the table say, and what limits each cell?
#
# **Answer.** 256 x 128 at a depth of four k-blocks is the best cell at both sizes and in both regimes: a little ahead
# of cuBLAS, and even with it at 4096^3 in steady state. What slows a cell down is mostly a ring with too few stages,
# not the depth as such.
#
# Everything here is computed from `results/h200/seed-table/` and, below "Look-ahead, in time", from the studies that
# the [sources](../docs/sources.md) are tested by, whose letters A to D stand for the texts here too; measured on NVIDIA
# H200s, each study on one board. No GPU is needed to run it again. Every timing here is chained (launches of
# one kernel back to back).

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import (
    Window,
    cube,
    depth,
    hopper,
    patch,
    pivot,
    recorded,
    rings,
    rows_of,
    show_small,
    source_line,
    swizzle_bytes,
    tile_order,
    timelines,
    with_derived,
)

show_small()
study = recorded("seed-table")
print(source_line(study.provenance))

# %% [markdown]
# ## The table
#
# Speedup over cuBLAS and, in brackets, the stages that fit. The table in the post "Pipelining" has this form; its
# best cell is 256 x 4 at 0.98x.

# %%
burst = rows_of(study, "sweep").query("m == 4096 and regime == 'burst'")
pivot(burst)

# %%
ok = rows_of(study, "sweep").query("status == 'ok'").copy()
figure, axes = plt.subplots(1, 2, figsize=(13, 4), layout="constrained", sharey=True)
for axis, (m, part) in zip(axes, ok[ok.regime == "burst"].groupby("m"), strict=True):
    grid = part.pivot(index="tile_m", columns="k_depth", values="speedup").astype(float)
    image = axis.imshow(grid, cmap="RdBu", vmin=0, vmax=2, aspect="auto")
    axis.set_xticks(range(8), grid.columns)
    axis.set_yticks(range(5), grid.index)
    axis.set_title(f"{m}^3, burst")
    axis.set_xlabel("k_depth")
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=9)
axes[0].set_ylabel("tile_m")
figure.colorbar(image, ax=axes, label="speedup over cuBLAS")
plt.show()

# %% [markdown]
# ## Stages are not what counts; what can be loaded ahead is
#
# With `stages` slots of which `stagger` are held back for wgmma groups still in flight, and one being read, `stages -
# 1 - stagger` loads can be on their way while the tensor cores work. The plot shows the share of the tensor cores'
# peak that a cell reaches, corrected for idle SMs (divided by the wave efficiency), against the bytes that it can
# have in flight.


# %%
ok = with_derived(rows_of(study, "sweep"))
ok["clocks"] = 2 * ok.tile_m * ok.tile_n * 16 * ok.k_depth / hopper.FLOP_PER_CLOCK_PER_SM

# %%
figure, axes = plt.subplots(1, 2, figsize=(13, 4.5), layout="constrained", sharey=True)
for axis, (m, part) in zip(axes, ok[ok.regime == "burst"].groupby("m"), strict=True):
    for (tile_m, span), cells in part.groupby(["tile_m", "span"]):
        marker = {128.0: "o", 64.0: "s"}[span]
        colour = plt.cm.viridis([64, 128, 192, 256, 320].index(tile_m) / 4)
        axis.scatter(
            cells.ahead_kib,
            cells.reached,
            color=colour,
            marker=marker,
            label=f"tile_m {tile_m}, swizzle {span:.0f} B",
        )
    axis.set_title(f"{m}^3, burst")
    axis.set_xlabel("KiB that can be in flight: (stages - 1 - stagger) x stage")
axes[0].set_ylabel("tensor-active % of the busy SMs")
figure.legend(*axes[1].get_legend_handles_labels(), fontsize=8, loc="outside right center")
plt.show()

# %%
by_ahead = ok[ok.regime == "burst"].groupby(["m", "ahead"])["reached"].agg(["count", "median", "min", "max"]).round(1)
by_ahead

# %% [markdown]
# With nothing loaded ahead the tensor cores wait for every stage: all 22 such cells of each problem, whatever their
# depth, stay between 29 and 55 % of the peak. With one load ahead, some 60 KiB, the larger tiles come to 75 to 91 %.
# From two or three loads ahead, some 100 KiB, a cell reaches its peak, 94 to 95 % or 97 to 98 % by problem, unless L2
# or a narrow swizzle holds it back (below); more stages buy nothing: 256 x 4 is there with two. Little's law explains
# the size: at the bytes a clock that 256 x 4 draws (below), 96 KiB in flight last about as long as a stage takes to
# load with nothing else going on, as in the single-stage cells:

# %%
single = ok[(ok.regime == "burst") & (ok.stages == 1)]
waits = single["clocks"] * (100 / single["reached"] - 1)
waits.groupby(single["m"]).agg(["count", "median", "min", "max"]).round(0)

# %% [markdown]
# ## What a tile needs from L2
#
# With its half of A multicast by its neighbour, a CTA takes tile_m / 2 + tile_n rows from L2 for every stage. At full
# speed that is so many bytes a clock; what the cell really drew is that times the share of the peak it reached.

# %%
ok["drew"] = ok["l2_bytes_per_clock"] * ok["reached"] / 100
ok["drew_gb_s"] = ok["drew"] * ok["sm_mhz"] / 1000
by_tile = (
    ok[ok.ahead > 0]
    .groupby(["regime", "tile_m"])
    .agg(needs=("l2_bytes_per_clock", "first"), most_drawn=("drew", "max"), most_gb_s=("drew_gb_s", "max"))
)
by_tile.round(1)

# %% [markdown]
# In burst no cell draws more than 49.0 bytes a clock and SM: that is what L2 gives here. The 64-row tile would need 80,
# so it cannot pass 49 of 80 parts of the peak; 128 rows need 48, just within reach. At the cap the SMs slow down and L2
# does not: the 64-row tile then draws up to 66 bytes a clock; the most for each SM is 86 GB/s there and 87 in burst.
# (Why other 64-row cells do not even come to that this table cannot tell.)
#
# ## What limits each cell
#
# The first reason that applies: nothing loaded ahead (one stage, or two of which the stagger holds one back); more
# bytes than L2 gives; only one load ahead; the narrow swizzle of depths that are no multiple of 64 elements, whose
# loads are split into rows of 64 bytes; SMs idle in the last wave; and for the rest the power cap: they keep the
# tensor cores busy, and the clock decides.

# %%
L2_BYTES_A_CLOCK = 49


def limit(row: pd.Series) -> str:
    """The first reason that applies."""
    if row.ahead <= 0:
        return "no load ahead"
    if row.l2_bytes_per_clock > L2_BYTES_A_CLOCK:
        return "L2 bytes"
    if row.reached < 92:
        return "one load ahead" if row.ahead == 1 else "narrow swizzle"
    return "idle SMs" if row.wave_efficiency < 0.9 else "power"


ok["limit"] = ok.apply(limit, axis=1)
ok[(ok.m == 8192) & (ok.regime == "burst")].pivot(index="tile_m", columns="k_depth", values="limit").fillna(
    "exceeds smem"
)

# %% [markdown]
# ## Burst and steady state
#
# At the power cap everything that keeps the tensor cores busy slows down, cuBLAS as well; what leaves them idle loses
# next to nothing, so its speedup looks better. A ratio below 1 that rises from burst to steady is a kernel that
# waited for something other than its clock, not one that got faster.

# %%
figure, axis = plt.subplots(figsize=(6.5, 5), layout="constrained")
for m, part in ok.groupby("m"):
    pair = part.pivot_table(index=["tile_m", "k_depth"], columns="regime", values="speedup")
    axis.scatter(pair["burst"], pair["steady"], label=f"{m}^3")
axis.plot([0.3, 1.05], [0.3, 1.05], color="grey", linewidth=1)
axis.set_xlabel("speedup in burst")
axis.set_ylabel("speedup in steady state")
axis.legend()
plt.show()

# %%
best = ok.sort_values("speedup", ascending=False).groupby(["m", "regime"]).head(4).sort_values(["m", "regime"])
columns = [
    "m",
    "regime",
    "tile_m",
    "k_depth",
    "stages",
    "speedup",
    "tflops",
    "sm_mhz",
    "baseline_sm_mhz",
    "tensor_active",
    "pj_per_flop",
]
best[columns].round(3).reset_index(drop=True)

# %% [markdown]
# 256 x 4 leads on both problems in both regimes, and not by busier tensor cores (at 8192^3 in burst 192 x 4 keeps them
# active 96.3 % of the time, 256 x 4 94.7 %) but by clock, 1601 MHz against 1555: it moves fewer bytes, and spends 0.991
# pJ on a FLOP at the cap where 192 x 4 spends 1.037. What each cell keeps of its burst rate at the cap, by loads ahead,
# and in full for the cells above 0.9x in burst:

# %%
both = ok.pivot_table(index=["m", "tile_m", "k_depth", "ahead"], columns="regime", values=["speedup", "tflops"])
change = pd.DataFrame(
    {
        "burst": both["speedup", "burst"],
        "steady": both["speedup", "steady"],
        "tflops_kept": both["tflops", "steady"] / both["tflops", "burst"],
    }
).reset_index("ahead")
kept = change.groupby(["m", "ahead"])["tflops_kept"].agg(["min", "median", "max"]).round(3)
kept.loc[[(m, ahead) for m in (4096, 8192) for ahead in (0, 1, 2)]]

# %%
change[change.burst > 0.9].drop(columns="ahead").round(3)

# %% [markdown]
# With nothing loaded ahead a cell keeps 97.5 % of its rate or more, nearly all of it at the median. The leaders keep
# 83 to 84 %. Of the cells above 0.9x in burst 320 x 4 gains most, 0.970x to 1.002x at 8192^3: with one load ahead it
# leaves tensor cores idle, and is paid back in clock. At 4096^3 only 128 x 6, with its narrow swizzle, gains: 0.900x to
# 0.917x.
#
# ## Beside the table of the post "Pipelining"
#
# The post fixes tile_n at 128, as here; for its table it names neither problem size nor GPU, regime or clocks.

# %%
published = {(256, 4): 0.98, (192, 4): 0.88, (128, 4): 0.73, (64, 8): 0.54, (320, 4): 0.13}
cells = ok[(ok.regime == "burst")].set_index(["m", "tile_m", "k_depth"])["speedup"]
pd.DataFrame(
    {
        "Pipelining (post)": published,
        "4096^3": {cell: cells[(4096, *cell)] for cell in published},
        "8192^3": {cell: cells[(8192, *cell)] for cell in published},
    }
).rename_axis(["tile_m", "k_depth"]).round(3)

# %% [markdown]
# ## Look-ahead, in time
#
# What is loaded ahead must last as long as a load takes ([notebook 4](4_stagger.ipynb)). Every ring of the joint sweep
# with two consumers or three, at 8192^3, by how long its loads ahead last (128 columns: a clock for each row of tile_m
# and each step of k_depth): open marks stagger 1, full ones 0; rows of 128 bytes in blue, shorter ones in red.

# %%
points = depth.ran("joint").query("m == 8192 and n == 8192 and k == 8192 and tile_m > 64").copy()
points["lasts"] = (points["stages"] - 1 - points["stagger"]) * points["tile_m"] * points["k_depth"]
points["share"] = 100 * points["speedup"] / points.groupby("tile_m")["speedup"].transform("max")
points["wide"] = [swizzle_bytes(16 * one) == 128 for one in points["k_depth"]]
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (stagger, wide), part in points.groupby(["stagger", "wide"]):
    colour = "#1f5f9f" if wide else "#c0652a"
    face = colour if stagger == 0 else "none"
    axis.scatter(part["lasts"].clip(upper=12000), part["share"], s=12, edgecolors=colour, facecolors=face)
axis.axvline(1800, color="grey", linewidth=1)
axis.set_xlabel("clocks that the loads ahead last (12,000: or more)")
axis.set_ylabel("speed, % of the best of its M tile")
plt.show()

# %% [markdown]
# ## M tile, K depth and stages jointly
#
# In C's table more stages mean shallower ones, since the memory is the same: the number of stages and the number of
# barriers cannot be told apart. In the joint space they can. Speedup at 8192^3, stagger 0, each tile's stages by
# depths. The counter-case, a fullest ring that is slower than a shorter one, is mostly that of 64 rows, one consumer;
# of larger tiles 128 rows at depth 2 has it too.

# %%
flat = depth.joint(0).query("m == 8192 and n == 8192 and k == 8192")
figure, axes = plt.subplots(1, 5, figsize=(11, 2.6), layout="constrained")
for axis, (tile_m, part) in zip(axes, flat.groupby("tile_m"), strict=True):
    grid = part.pivot(index="stages", columns="k_depth", values="speedup").astype(float)
    axis.set_facecolor("#dddddd")
    image = axis.imshow(np.ma.masked_invalid(grid), vmin=0, vmax=1.1, aspect="auto", origin="lower")
    axis.set_title(f"tile_m {tile_m}", fontsize=8)
    axis.set_xticks(range(0, len(grid.columns), 3), grid.columns[::3], fontsize=7)
    axis.set_yticks(range(0, len(grid), 4), grid.index[::4], fontsize=7)
figure.colorbar(image, ax=axes, label="over cuBLAS")
figure.supxlabel("k_depth")
figure.supylabel("stages")
plt.show()

# %% [markdown]
# ## Stagger with one consumer
#
# A late release costs a load ahead. At the same number of stages it loses where those that stay are short; where they
# last 900 clocks or more it pays at 1024^3, and elsewhere the median is within some one percent of nothing.

# %%
ones = depth.ran("one-consumer")
late = depth.pairs_by(ones, "stagger", 0, 1)
late["lasts"] = (late["stages"] - 2) * late["tile_m"] * late["tile_n"] * late["k_depth"] // 128
figure, axes = plt.subplots(1, 5, figsize=(11, 2.8), layout="constrained", sharey=True)
for axis, (problem, part) in zip(axes, late.groupby("problem", sort=False), strict=True):
    for tile, each in part.groupby("tile"):
        axis.scatter(each["lasts"].astype(float).clip(lower=50), each["ratio"], s=10, label=tile)
    axis.axhline(1, color="grey", linewidth=1)
    axis.set_xscale("log")
    axis.set_title(cube(problem), fontsize=9)
axes[0].set_ylabel("stagger 1 over 0")
figure.supxlabel("clocks that the loads left ahead last (50: none)", fontsize=9)
axes[0].legend(fontsize=7)
plt.show()

# %% [markdown]
# ## Who overlaps what
#
# One CTA's first tile by its SM's clock, from a kernel that notes when each role did what, always 6,000 clocks wide,
# so that more stages in a picture mean a faster kernel. Grey: a role waits. Green: a load is under way until a consumer
# has the stage at the latest. Dark blue: a group is the oldest of its consumer. Light blue, below: a group is queued
# behind another of its consumer. Notes cost time themselves. First one, two and three stages: with one, load and math
# take turns.

# %%
timelines([Window("one stage"), Window("two stages"), Window("three stages")])
plt.show()

# %% [markdown]
# One consumer at stagger 0 and 1, four stages each: at 0 the tensor cores idle between two groups, at 1 the next one is
# queued, with a load less under way.

# %%
timelines([Window("one consumer, stagger 0"), Window("one consumer, stagger 1")])
plt.show()

# %% [markdown]
# ## The working set of a wave
#
# D's example: 8 x 8 tiles, 16 at a time. Column by column they need 8 panels of A and 2 of B; in groups of four columns
# 4 and 4. Below it 256x128 in clusters of two, 66 clusters at a time: panels of the first wave, bytes of all waves as
# predicted by counting panels, and bytes read from DRAM as the profiler counted them.

# %%
figure, axes = plt.subplots(1, 2, figsize=(5, 2.7), layout="constrained")
for axis, swizzle in zip(axes, (1, 4), strict=True):
    patch(axis, tile_order(8, 8, "m", swizzle, serpentine=False), (8, 8), 16)
    axis.set_xlabel(f"swizzle {swizzle}")
plt.show()
rings.working_sets().set_index(["cube", "swizzle"]).astype(float).round(2)
