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
# # The sources in pictures
#
# **Question.** Four texts on pipelines in a GEMM make claims; which hold on an H200, and why?
#
# **Answer.** Most claims hold on an H200. The best cell is where C has it, but not because more stages cost more
# barriers; an elected thread, one integer for the state and a relaxed wait gain next to nothing.
#
# Claim by claim, with the figures: [the sources](../docs/sources.md), whose letters A to D stand for the texts here
# too. Computed from the rows of `results/`, measured on an NVIDIA H200. Every timing here is chained (launches of one
# kernel back to back), in bursts. No GPU is needed to run this again.

# %%
import matplotlib.pyplot as plt
import numpy as np

from notebooks.helpers import Window, cube, depth, patch, rings, show_small, swizzle_bytes, tile_order, timelines

show_small(90)

# %% [markdown]
# ## The published table beside ours
#
# C's figure and ours, cell by cell. The ratio compares two kernels, and two versions of cuBLAS perhaps, on problems of
# which one is unknown; the order of the cells says more than the figures.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for axis, m in zip(axes, depth.CUBES, strict=True):
    for tile_m, part in depth.cells(m).groupby(level="tile_m"):
        axis.scatter(part["ours"], part["theirs"], s=16, label=f"tile_m {tile_m}")
    axis.plot([0.1, 1.05], [0.1, 1.05], color="grey", linewidth=1)
    axis.set_title(f"{m}^3, stagger 1")
    axis.set_xlabel("ours, H200")
axes[0].set_ylabel("C")
axes[0].legend(fontsize=8)
plt.show()

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
# depths. One tile has the counter-case: 64 rows, one consumer, where the fullest ring is slower than a shorter one.

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
# last 900 clocks or more it pays on the two shorter cubes and, at the median, nowhere else.

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
