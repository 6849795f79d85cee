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
# **Answer.** 256 x 128 at a depth of four k-blocks is the best cell at both sizes and in both regimes, a little ahead
# of cuBLAS. What slows a cell down is mostly a ring with too few stages, not the depth as such.
#
# Everything here is computed from `results/h200/seed-table/`, measured on NVIDIA H200s; no GPU is needed to run it
# again. Every timing here is chained (launches of one kernel back to back).

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import hopper, pivot, recorded, rows_of, show_small, source_line, with_derived

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
# depth, stay between 29 and 56 % of the peak. With one load ahead, some 60 KiB, the larger tiles come to 76 to 92 %.
# From two or three loads ahead, some 100 KiB, a cell reaches its peak, 95 % or 98 % by problem, unless L2 or a narrow
# swizzle holds it back (below); more stages buy nothing: 256 x 4 is there with two. Little's law explains the size: at
# the bytes a clock that 256 x 4 draws (below), 96 KiB in flight last about as long as a stage takes to load with
# nothing else going on, as in the single-stage cells:

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
# In burst no cell draws more than 49.5 bytes a clock and SM: that is what L2 gives here. The 64-row tile would need
# 80, so it cannot pass 49.5 of 80 parts of the peak; 128 rows need 48, just within reach. At the cap the SMs slow down
# and L2 does not: the 64-row tile then draws up to 66 bytes a clock, which is much the same 84 to 86 GB/s for each SM.
# (Why the shallow 64-row cells do not even come to that this table cannot tell.)
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
# active 96.7 % of the time, 256 x 4 95.0 %) but by clock, 1566 MHz against 1517: it moves fewer bytes, and spends 1.016
# pJ on a FLOP at the cap where 192 x 4 spends 1.042. What each cell keeps of its burst rate at the cap, by loads ahead,
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
# With nothing loaded ahead a cell keeps 96.7 % of its rate or more, nearly all of it at the median. The leaders keep
# 84 to 85 %. Of the cells above 0.9x in burst 128 x 8 gains most, 0.90x to 0.93x at 4096^3, and 320 x 4 most at 8192^3,
# 0.985x to 1.003x: with one load ahead they leave tensor cores idle, and are paid back in clock.
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
