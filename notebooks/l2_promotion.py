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
# # L2 promotion: an A/B of a switch that everybody sets
#
# A TMA descriptor says how much the L2 shall fetch from DRAM at least when a line is asked for: nothing more than
# asked, 64, 128 or 256 bytes. Everybody sets something; we know of no published comparison. Here is one, computed
# from `results/h200/l2-promotion/`: four problems, two tiles, bursts with a cold L2. No GPU is needed to run it
# again. Every timing here is chained (launches of one kernel back to back); rows do not name their board.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hopper_gemm.lab.counters.table import with_derived
from hopper_gemm.model import hopper
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import config_of, rows_of
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"
study = read_study(results / "l2-promotion")
rows = with_derived(rows_of(study, "sweep"))
print(source_line(study.provenance))
print("noise floors:", {place: f"{noise:.2%}" for place, noise in study.provenance["noise"].items()})

# %% [markdown]
# ## What to expect
#
# Operands are contiguous along k, a stage is 64 elements deep, and so a row of a TMA box is 128 bytes of one row of
# the matrix, aligned to 128. A load that asks for 128 bytes at a time gains nothing from a promotion to 64 or 128:
# the first three settings should be the same. 256 is another matter: with each stage's row comes that of the next
# stage, every other stage should find its operands in L2, and reads come in half as many clumps of twice the size.
#
# How good is the A/B? The kernels of 0, 64 and 256 are the same machine code and differ only in the descriptor; with
# 128 the descriptor is the DSL's own, and the code another one. (0, 64) is therefore the null experiment.

# %%
rows.groupby(["tile", "l2_promotion"])["code"].agg(lambda codes: ", ".join(sorted(set(codes)))).unstack()

# %% [markdown]
# ## The comparison

# %%
SETTINGS = {0: ("none", "C7"), 64: ("64 B", "C0"), 128: ("128 B", "C2"), 256: ("256 B", "C3")}
keys = ["m", "k", "tile"]
none = rows[rows.l2_promotion == 0].set_index(keys)["speedup"].rename("base")
relative = rows.join(none, on=keys)
for name in ("speedup", "speedup_low", "speedup_high"):
    relative[name + "_vs"] = 100 * (relative[name] / relative.base - 1)
places = dict(list(relative.groupby(keys)))

figure, axes = plt.subplots(2, 1, figsize=(11, 5.2), layout="constrained", sharex=True, height_ratios=[3, 1])
for at, part in enumerate(places.values()):
    for shift, row in zip((-0.24, -0.08, 0.08, 0.24), part.sort_values("l2_promotion").itertuples(), strict=True):
        name, colour = SETTINGS[row.l2_promotion]
        bars = [[row.speedup_vs - row.speedup_low_vs], [row.speedup_high_vs - row.speedup_vs]]
        axis = axes[1] if row.speedup_vs < -5 else axes[0]
        known = axes[0].get_legend_handles_labels()[1]
        label = None if name in known else name
        axis.errorbar(at + shift, row.speedup_vs, bars, fmt="o", color=colour, markersize=5, label=label)
for axis in axes:
    for at in range(len(places) - 1):
        axis.axvline(at + 0.5, color="0.85", linewidth=1)
axes[0].axhline(0, color="grey", linewidth=1, zorder=0)
axes[0].set_ylim(-0.5, 1.0)
axes[0].set_ylabel("speedup against none, %")
axes[0].legend(ncols=4, loc="upper left")
axes[1].set_ylim(-16, -11)
names = [f"{m} x {8192 if m == 128 else m} x {k}\n{tile}" for m, k, tile in places]
axes[1].set_xticks(range(len(places)), names, fontsize=8)
plt.show()

# %%
table = relative.pivot(index=keys, columns="l2_promotion", values="speedup_vs").drop(columns=0)
table.add_suffix(" B, %").rename_axis(columns=None).round(2)

# %% [markdown]
# The null experiment, 64 against none, comes out between -0.03 and +0.13 %: what is below 0.15 % or so is even,
# although some of the intervals are narrower than that (they hold what varies from pair to pair, not from one trial
# to the next). 128 is even as well, but for one cell of +0.21 %, with the other machine code. With 256 three cells
# are even, two at the edge (+0.16 % and -0.14 %), and three beyond it: +0.23 % for the larger tile at 8192^3, and
# +0.76 % and -13.6 % at 128 rows. So the expectation holds: up to the 128 bytes that are asked for anyway the switch
# does nothing that can be told from nothing. At 256 it does something, little worth choosing it for, and once much
# harm.
#
# ## The one large effect
#
# 128x8192x8192 with tiles of 256 rows is an odd thing to run (half of each tile does not exist), but the effect is
# plain:

# %%
pairs = {row.point.config: row.samples for row in study.stage("sweep") if row.point.problem.m == 128}
figure, axes = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained", sharey=True)
for axis, tile in zip(axes, ("128x128", "256x128"), strict=True):
    for row in rows[(rows.m == 128) & (rows.tile == tile)].sort_values("l2_promotion").itertuples():
        name, colour = SETTINGS[row.l2_promotion]
        against = np.array([pair.ratio for pair in pairs[config_of(row._asdict())]]) / relative.base[row.Index]
        axis.plot(range(1, 16), against, "o-", color=colour, markersize=4, linewidth=1, label=name)
    axis.set_title(f"128x8192x8192, tiles {tile}")
    axis.set_xlabel("pair")
axes[0].set_ylabel("speedup / median of none")
axes[0].legend(loc="lower right")
plt.show()

# %%
wide_tiles = {str(config): [pair.ours_us for pair in taken] for config, taken in pairs.items() if config.tile_m == 256}
pd.DataFrame(wide_tiles).agg(["min", "median", "max"]).T.round(1)

# %%
wide = rows[rows.m == 128].sort_values(["tile_m", "l2_promotion"]).copy()
stages_of_k = 8192 // 64
clocks = 2 * wide.tile_m * wide.tile_n * 64 / hopper.FLOP_PER_CLOCK_PER_SM
wide["math_us"] = stages_of_k * clocks / wide.sm_mhz
wide["beyond_math_us"] = wide.time_us - wide.math_us
wide["math_share"] = wide.math_us / wide.time_us
wide["dram_tb_s"] = 2e-6 * 8192 * (8192 + 128) / wide.time_us
shown = ["stages", "ahead", "time_us", "sm_mhz", "math_us", "beyond_math_us", "math_share", "dram_tb_s"]
wide.set_index(["tile", "l2_promotion"])[shown].astype(float).round(2)

# %% [markdown]
# It is in each of the 15 pairs, 91.0 to 92.4 us against 78.4 to 80.4 (each trial's first pair is its slowest), and it
# is not the clock, which is higher with 256 (1833 against 1815 MHz), as for a kernel that waits. There are 64 CTAs,
# each on an SM of its own; both tiles walk in the same way over the same B, 128 columns each, which is nearly all the
# traffic. What differs: 256x128 multiplies twice as long for each stage (half of it zeros), has two loads ahead where
# 128x128 has four, and half of its part of A is out of bounds. Without promotion its math, 72 us, covers most of the
# loading. With 256 bytes it waits another 13 us. DRAM is far from its limit in either case (128x128 draws twice as
# much).
#
# **A conjecture.** With 256 bytes two stages come from DRAM at once and the second of the pair is in L2 when it is
# asked for. Then only every other load brings anything new, and with few slots there is only one such load in the
# ring at a time: fewer reads overlap. A load is issued when a slot is freed, `stages - stagger` stages after the one
# before in that slot, so with a latency D and a math time c, a ring that waits for loads takes D / (stages - stagger)
# for a stage; when only every other load matters and the slots are odd in number, (D + c) / (stages - stagger + 1).
# Turned around, the latency that each row would need, if 3 to 6 us of its time are launch, first fill and epilogue:

# %%
slots = wide.stages.astype(int) - wide.stagger.astype(int)
math_us = wide.math_us / stages_of_k
needed = {}
for extra in (3, 6):
    pace = (wide.time_us - extra) / stages_of_k
    paired = wide.l2_promotion == 256
    needed[f"us, {extra} us beside the loop"] = np.where(paired, pace * (slots + 1) - math_us, pace * slots)
needed["waits for loads"] = wide.math_share < 0.9
pd.DataFrame(needed).assign(tile=wide.tile, l2_promotion=wide.l2_promotion).set_index(["tile", "l2_promotion"]).round(2)

# %% [markdown]
# For 128x128 all four settings agree on a latency of about 1.6 us, paired or not: with five slots pairs do no harm,
# as measured. For 256x128 up to 128 bytes the figure is only an upper bound, since the math covers the loads. But
# with 256 bytes the same ring would need 2.1 us. So pairing alone does not explain the 13 us: at a latency of 1.6 us
# math would still cover the loads, and something must make the paired loads of this tile slower than those of the
# other. Nothing recorded here says what; the study has no counters. What would decide it: DRAM bytes and L2 hits of
# these eight rows (whether bytes are fetched twice), 128x128 with four stages (whether it is the ring), and m = 256
# (whether it is the part of A that is not there).
#
# ## What we take from it
#
# - Up to 128 bytes the promotion makes no difference with rows of 128 bytes: even within 0.15 %, our noise from one
#   trial to the next, but for one cell at 0.2 %. It could hardly: no less than 128 is ever asked for.
# - 256 bytes is worth between -0.1 and +0.8 % in seven cells, and cost 14 % in the eighth. 128 stays the default.
# - Not tested: rows shorter than 128 bytes (`k_depth` 1 to 3), where a promotion to 128 could do something; a warm
#   L2; steady state.
# - Why 256 bytes hurt the large tile at 128 rows is open.
