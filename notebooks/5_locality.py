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
# # What keeps panels in the L2
#
# **Question.** Why are panels of A and B (the rows and columns that a tile needs, all of k) read from DRAM more than
# once, what does it cost, and what prevents it?
#
# **Answer.** CTAs that share panels drift apart and read them again. Reversing k on alternate tiles and letting
# producers keep in step bring that down to about one reading, on long launches; PDL pays on short ones alone.
#
# Three levers that change nothing but the order in time, and wider or narrower walks:
#
# - `reverse_k`: every other tile of a CTA is loaded from the end of k to its beginning, so that a round begins with
#   what the one before it read last;
# - `pace`: every so many stages each producer adds to a counter in global memory and waits, a bounded time, for
#   producers that are a whole interval behind;
# - `evict_c`: stores of C ask the L2 to drop C first;
# - `swizzle`: how many cluster tiles walk abreast.
#
# Everything is computed from archived studies: `locality` (8 problems, all levers, few pairs), `locality-counted`
# (profiled launches), `pace-16384` (the largest problem again, with a longer rest), `refine` and `early-long`. All
# were measured on an NVIDIA H200, in bursts but for the profiled launches. No GPU is needed to run it again. Every
# timing here is chained (launches of one kernel back to back); rows do not name their board.

# %%
from math import ceil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import (
    before,
    best_swizzle,
    config_of,
    named,
    recorded,
    rows_of,
    scope_line,
    show_small,
    source_line,
    twins,
    with_counters,
    with_panels,
)

show_small()

studies = {name: recorded(name) for name in ("locality", "pace-16384", "refine", "early-long")}
trials = {name: named(rows_of(study, "sweep")) for name, study in studies.items()}
finals = {name: named(rows_of(study, "final")) for name, study in studies.items() if len(rows_of(study, "final"))}
for name, study in studies.items():
    floors = ", ".join(f"{place.split()[0]} {noise:.2%}" for place, noise in study.provenance["noise"].items())
    asked = study.provenance["spec"]["final"]["best"] * len(study.provenance["spec"]["problems"])
    have = f"{len(study.stage('sweep'))} rows, {len(study.stage('final'))} of {asked} finals"
    print(f"{name}: {have}. {source_line(study.provenance)} {scope_line(study)}")
    print(f"  cuBLAS against itself: {floors}")

# %% [markdown]
# ## Twins
#
# Two configs are twins when they differ in one lever alone (or in `reverse_k` and `evict_c` together). The ratio of
# their speedups is what the lever is worth.
#
# In `locality` 16384^3 had too short a rest for launches of 11 ms: cuBLAS against itself is off by 4.7 % (above). It
# appears below from `pace-16384` alone, where all rows have `reverse_k` and `evict_c`; 5.1 % is no better as a floor,
# and the section after this one has the profiled launches.


# %%
swept = trials["locality"].query("m < 16384")
reversed_k, both = {"reverse_k": True}, {"reverse_k": True, "evict_c": True}
plain = swept[(swept.pace == 0) & ~swept.evict_c]
LEVERS = {
    "reverse_k": twins(plain, {"reverse_k": False}, reversed_k),
    "reverse_k, evict_c": twins(swept, {"reverse_k": False, "evict_c": False}, both),
}
paced = pd.concat([swept[swept.reverse_k & ~swept.evict_c], trials["pace-16384"]])
LEVERS |= {f"pace {every}": twins(paced, {"pace": 0}, {"pace": every}) for every in (8, 16, 32, 64)}
PROBLEMS = trials["locality"].groupby("problem").baseline_us.median().sort_values().index.tolist()
table = pd.DataFrame({lever: pairs.groupby("problem").gain.median() for lever, pairs in LEVERS.items()}).loc[PROBLEMS]
table.insert(0, "cuBLAS, us", trials["locality"].groupby("problem").baseline_us.median())
print("twins a problem:", {lever: int(pairs.groupby("problem").size().max()) for lever, pairs in LEVERS.items()})
counts = {
    lever: int((pairs.problem == "16384x16384x16384").sum()) for lever, pairs in LEVERS.items() if "pace" in lever
}
print("twins at 16384^3:", counts)
print("gain in speedup, %, median; pace on top of reverse_k:")
table.round(2)

# %%
COLOURS = dict(zip(LEVERS, ("C0", "C2", "C3", "C1", "C4", "C7"), strict=True))
figure, axes = plt.subplots(
    1, 2, figsize=(13, 4.5), layout="constrained", gridspec_kw={"width_ratios": [len(PROBLEMS) - 1, 1.3]}
)
for axis, problems in zip(axes, (PROBLEMS[:-1], PROBLEMS[-1:]), strict=True):
    for shift, (lever, pairs) in enumerate(LEVERS.items()):
        for place, problem in enumerate(problems):
            gains = pairs[pairs.problem == problem].gain
            x = place + 0.13 * (shift - 2.5)
            axis.plot([x] * len(gains), gains, "o", color=COLOURS[lever], markersize=3, alpha=0.5)
            axis.plot([x - 0.05, x + 0.05], [gains.median()] * 2, color=COLOURS[lever], linewidth=3)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(problems)), problems, fontsize=8)
    axis.set_xlim(-0.5, len(problems) - 0.5)
    axis.grid(axis="y", alpha=0.3)
for lever, colour in COLOURS.items():
    axes[0].plot([], [], color=colour, linewidth=3, label=f"{lever} on reverse_k" if "pace" in lever else lever)
axes[0].set_ylabel("gain in speedup, %")
axes[0].set_title("locality: each twin, and the median")
axes[1].set_title("pace-16384")
axes[0].legend(fontsize=8, loc="upper left")
plt.show()

# %%
alone = {}
for label, part in (("without reverse_k", swept[~swept.reverse_k]), ("with reverse_k", swept[swept.reverse_k])):
    pairs = twins(part, {"evict_c": False}, {"evict_c": True})
    us = pairs.gain / 100 * pairs.time_us_off
    rounds = [
        ceil(ceil(m / 256) * ceil(n / 384) / 66) for m, n in (map(int, name.split("x")[:2]) for name in pairs.problem)
    ]
    alone[f"evict_c {label}, %"] = pairs.groupby("problem").gain.median()
    alone[f"us a round, {label}"] = (us / rounds).groupby(pairs.problem).median()
for every in (8, 64):
    pairs = twins(swept[swept.reverse_k & ~swept.evict_c], {"pace": 0}, {"pace": every})
    alone[f"pace {every}, us"] = (pairs.gain / 100 * pairs.time_us_off).groupby(pairs.problem).median()
pairs = LEVERS["pace 8"]
alone["pace 8, clock, %"] = (100 * (pairs.sm_mhz_on / pairs.sm_mhz_off - 1)).groupby(pairs.problem).median()
pd.DataFrame(alone).loc[PROBLEMS[:-1]].round(2)

# %%
best = {}
for label, part in (
    ("no lever", swept[~swept.reverse_k & ~swept.evict_c & (swept.pace == 0)]),
    ("reverse_k", swept[swept.reverse_k & ~swept.evict_c & (swept.pace == 0)]),
    ("any lever", swept),
):
    best[label] = part.groupby("problem").speedup.max()
best = pd.DataFrame(best).loc[PROBLEMS[:-1]]
first = swept.loc[swept.groupby("problem").speedup.idxmax()].set_index("problem").loc[PROBLEMS[:-1]]
levers = [("reverse_k " * row.reverse_k + "evict_c " * row.evict_c + f"pace {row.pace}") for row in first.itertuples()]
best.assign(gain=100 * (best["any lever"] / best["no lever"] - 1), tile=first.tile, swap_ab=first.swap_ab, by=levers)

# %% [markdown]
# `reverse_k` pays nearly everywhere: 0.4 to 0.6 % in the median on problems of k up to 8192, 0.2 % at k 14336,
# nothing that can be told at k 28672. `evict_c` adds 0.1 to 0.2 % on four of the seven problems, but only on top of
# `reverse_k`; without it 0.1 % or nothing. That fits: C pushes out what `reverse_k` wants to find again; but it was
# not counted. At 4096x8192x28672 it loses, and there cuBLAS against itself is off by 0.8 %.
#
# `pace` divides the problems. From 8192x4096x14336 on, launches of more than a millisecond, an interval of 8 stages
# gains 0.3 to 1.8 %; every 16 less, every 32 or more mostly nothing. On the shorter launches they cost: 0.1 to 0.3 %
# with 8, up to 0.5 % with 16. In us that is 0.5 to 0.8 a launch with 8 and as much or more with 64. So it is not the
# synchronisations that cost, of which there are an eighth; it may be what comes with them, a workspace and more
# instructions. That was not looked into.
#
# For the best config of each problem all levers together are worth 0.5 to 2.2 %. There is a little luck in that: the
# best of more rows is drawn from more.
#
# ## What the counters say
#
# One kernel (256x192, clusters 1x2, raster m, swizzle 8), with and without `reverse_k` and `pace` 8, one profiled
# launch each. `panels` counts the distinct panels of each wave of 66 clusters, as the raster study does:
# what is read if all keep step and nothing is kept from wave to wave.


# %%
counted = named(rows_of(recorded("locality-counted"), "counters"))
counted["GB"], counted["L2 GB"] = counted.dram_read_bytes / 1e9, 32e-9 * counted.l2_read_sectors
ours = counted.tile_m.notna()
counted["kernel"] = np.where(
    ours, counted.reverse_k.map({True: "reverse_k", False: "straight"}) + ", pace " + counted.pace.astype(str), "cuBLAS"
)

counted = pd.concat([with_panels(counted[ours]), counted[~ours]])
counted["GB / panels"] = counted.GB / counted.panels
shown = {"sm_ghz": "GHz", "tensor_active_hw": "tensor %", "duration_us": "us"}
counted["stages"] = counted.waves * counted.k / 64
counted["Mcycles"] = counted.sm_ghz * counted.duration_us / 1000
columns = ["GB", "GB / panels", "waves", "stages", "L2 GB", *shown.values(), "Mcycles"]
counters = counted.rename(columns=shown).set_index(["problem", "kernel"])[columns].astype(float)
counters.round(3)

# %%
KERNELS = ["cuBLAS", "reverse_k, pace 0", "straight, pace 8", "reverse_k, pace 8"]
figure, axes = plt.subplots(1, 4, figsize=(13, 3.8), layout="constrained")
figures = {"GB": "GB read from DRAM", "GHz": "SM clock", "tensor %": "tensor cores active, points", "us": "duration"}
for axis, (name, title) in zip(axes, figures.items(), strict=True):
    for number, problem in enumerate(dict.fromkeys(counted.problem)):
        values, base = (counters.loc[problem].loc[kernels, name] for kernels in (KERNELS, "straight, pace 0"))
        change = values - base if name == "tensor %" else 100 * (values / base - 1)
        axis.barh(np.arange(4) + 0.27 * (number - 1), change, 0.25, color=f"C{number}", label=problem)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(4), KERNELS if axis is axes[0] else [])
    axis.invert_yaxis()
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("against straight, pace 0" + ("" if name == "tensor %" else ", %"), fontsize=9)
    axis.grid(axis="x", alpha=0.3)
figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=3, loc="outside lower center")
plt.show()

# %% [markdown]
# Now the price. The raster study gives it again here, with DRAM alone and with the L2's reads beside it; then what
# each lever saved, in the profiled launch and in bursts (the twin's gain times its time; not at 16384^3), and what
# the two prices together would make of the bytes.

# %%
raster = before("raster")  # of the same days
priced = with_counters(rows_of(raster, "sweep"), raster.stage("counters"))
priced["us"] = np.where(priced.m == 16384, priced.duration_us.astype(float), priced.time_us)
priced["GB"], priced["L2"] = priced.dram_read_bytes.astype(float) / 1e9, 32e-9 * priced.l2_read_sectors.astype(float)
prices = {}
for m, part in priced.groupby("m"):
    terms = np.linalg.lstsq(np.column_stack([np.ones(len(part)), part.GB, part.L2]), part.us, rcond=None)[0]
    prices[m] = {"us a GB, DRAM alone": np.polyfit(part.GB, part.us, 1)[0], "DRAM": terms[1], "and L2": terms[2]}
prices = pd.DataFrame(prices).T.rename_axis("cube")
dram, l2 = prices[["DRAM", "and L2"]].median()
print(prices.round(1))

STEPS = {
    "reverse_k": ("straight, pace 0", "reverse_k, pace 0"),
    "reverse_k, paced": ("straight, pace 8", "reverse_k, pace 8"),
    "pace 8": ("straight, pace 0", "straight, pace 8"),
    "pace 8 on reverse_k": ("reverse_k, pace 0", "reverse_k, pace 8"),
    "both": ("straight, pace 0", "reverse_k, pace 8"),
}
same = swept.query("tile_n == 192 and swizzle == 8 and not evict_c")
same = same.assign(
    kernel=same.reverse_k.map({True: "reverse_k", False: "straight"}) + ", pace " + same.pace.astype(str)
)
bursts = (same.groupby("problem").baseline_us.transform("median") / same.speedup).set_axis(
    pd.MultiIndex.from_frame(same[["problem", "kernel"]])
)
saved = {}
for problem in dict.fromkeys(counted.problem):
    for step, (off, on) in STEPS.items():
        less = counters.loc[(problem, off)] - counters.loc[(problem, on)]
        took = counters.loc[(problem, off), "us"]
        saved[problem, step] = {
            "GB": less["GB"],
            "GB, %": 100 * less["GB"] / counters.loc[(problem, off), "GB"],
            "L2 GB": less["L2 GB"],
            "us": less["us"],
            "us, %": 100 * less["us"] / took,
            "us, bursts": bursts.get((problem, off), np.nan) - bursts.get((problem, on), np.nan),
            "us, priced": dram * less["GB"] + l2 * less["L2 GB"],
            "us a GB": less["us"] / less["GB"] if less["GB"] > 0.03 else np.nan,
        }
saved = pd.DataFrame(saved).T
saved.round(3)

# %%
rows = trials["pace-16384"].assign(stage="sweep")
rows = pd.concat([rows, finals["pace-16384"].assign(stage="finals")])
wide = rows.pivot_table(
    index=["stage", "tile"], columns="pace", values=["time_us", "speedup", "baseline_us"], sort=False
)[["time_us", "baseline_us", "speedup"]]
names = ["tile", "pace", "speedup", "speedup_low", "speedup_high"]
print(finals["pace-16384"][names].round(3).to_string(index=False))
sweep = trials["pace-16384"]
print(f"cuBLAS in the sweep: {sweep.baseline_us.min():.0f} to {sweep.baseline_us.max():.0f} us", end=", ")
print(f"intervals {100 * (sweep.speedup_high - sweep.speedup_low).median():.1f} % wide at the median")
timed = twins(sweep, {"pace": 0}, {"pace": 8})
print("pace 8 against 0, time saved, %:", (100 * (1 - timed.time_us_on / timed.time_us_off)).round(1).tolist())
print("gain in speedup, %:", timed.gain.round(1).tolist())
wide.round(3)

# %% [markdown]
# `pace` changes nothing but how far apart CTAs are, so drift is the reason. At 16384^3 every
# panel is read 2.5 times without it; with it the count of panels is met to 0.2 %, 7.75 GB for 19.48; cuBLAS reads
# 13.96. At 8192^3 there was none to fix (0.99 of the count), and at 4096x8192x28672 there was some: 1.11 becomes
# 0.98. That has the fewest waves of the three, 5.3, but more stages than 8192^3: drift grows with stages rather than
# with waves, as far as three problems can tell.
#
# The time comes back as clock. Cycles stay the same to 0.2 %, the clock rises by 5 % at 16384^3. Tensor-active falls
# by 0.4 to 0.7 points with `pace`, which the cycles do not show; the profiler replays a launch for each few counters,
# and the two may come from different replays.
#
# What is a GB worth? At 16384^3 46 us, at the lower end of the raster study's 46 to 53; DRAM and L2 priced together
# make 547 of the 537 us. At the other two the sums do not close. At 4096x8192x28672 the launch saves 25 us, the bytes
# are good for 16 to 19; at 8192^3 `pace` saves no DRAM bytes and `reverse_k` 0.08 GB, priced at 2 to 4 us a step, and
# bursts give 6 to 8. So there the levers are worth more than their bytes, 1.5 to 3 times at 8192^3; unexplained. A
# single profiled launch is no finer: the same lever at 8192^3 gives -0.5 us alone and 6.9 us beside `pace`.
#
# The bursts of 16384^3 see the gain, but cannot rank. cuBLAS alone goes from 10886 to 11547 us between rows. Own
# times say 4.8 and 5.3 % for `pace` 8, as the profiled launches do; the ratios say 7.2 and -0.2 %. Of the finals
# 256x200 with `pace` 16 and 256x192 with 8 cannot be told apart.
#
# ## Predicted and seen

# %%
handed = {}
for problem in dict.fromkeys(counted.problem):
    row = counters.loc[(problem, "straight, pace 8")]
    kept = saved.loc[(problem, "reverse_k, paced")]["GB"]
    handed[problem] = {
        "MB a wave": 1000 * row["GB"] / row["waves"],
        "MB kept by reverse_k, from wave to wave": 1000 * kept / (row["waves"] - 1),
    }
straight = counters.loc[("8192x8192x8192", "straight, pace 0")]
expected = [1000 * share * straight["GB"] / (straight["waves"] - 1) for share in (0.15, 0.2)]
print(f"expected at 8192^3: {expected[0]:.0f} to {expected[1]:.0f} MB; C of a wave: {132 * 256 * 192 * 2e-6:.0f} MB")
print(pd.DataFrame(handed).T.round(1))

big, cube, middle = "16384x16384x16384", "8192x8192x8192", PROBLEMS[:3]
rounds = pd.DataFrame(alone).loc[[name for name in PROBLEMS[:-1] if name != "4096x8192x28672"]]
low, high = rounds["us a round, with reverse_k"].agg(["min", "max"])
before, after = (counters.loc[(big, kernel), "GB"] for kernel in ("straight, pace 0", "straight, pace 8"))
judged = [
    ["reverse_k, DRAM reads at 8192^3", "15 to 20 % less", f"{saved.loc[(cube, 'reverse_k')]['GB, %']:.1f} % less"],
    ["reverse_k, time at 8192^3", "0.5 %", f"{table.reverse_k[cube]:.2f} %"],
    [
        "reverse_k, time at mid-size",
        "1 to 1.5 %",
        f"{table.reverse_k[middle].min():.2f} to {table.reverse_k[middle].max():.2f} %",
    ],
    ["pace, DRAM reads at 16384^3", "19-25 GB to about 7", f"{before:.1f} to {after:.1f} GB"],
    ["pace, time at 16384^3", "4 %", f"{saved.loc[(big, 'pace 8')]['us, %']:.1f} %"],
    ["evict_c, us a round, beside reverse_k", "0.3", f"{low:.2f} to {high:.2f}, loss at 4096x8192x28672"],
]
pd.DataFrame(judged, columns=["what", "predicted", "seen"]).set_index("what")

# %% [markdown]
# `pace` did as predicted, in bytes and in time. `reverse_k` saves half the bytes that it should, and half the time at
# the mid-size problems, where bytes were not counted. From one wave to the next it keeps 8 to 10 MB, on all three
# problems: the same whatever k is, which is why it fades with long k. Twice as much was expected. A wave reads some
# hundred MB and more, so what is left for `reverse_k` is the end of it; that a sector may lie in both halves of the
# L2, as the raster study found likely, would halve it. That is conjecture. At 8192^3 the time came out near what was
# predicted although the bytes did not, as said above.
#
# `evict_c` is worth two thirds of what was predicted at most, mostly half or less. That it needs `reverse_k` we had
# not foreseen. The loss at 4096x8192x28672, of the size of the noise or twice that, is unexplained.
#
# ## How wide
#
# Theory asks for a square patch. What it wants, and which of 8, 11 and 16 won, by the median of twins (16384^3 left
# out):

# %%
flat = swept[(swept.pace == 0) & ~swept.evict_c & (swept.tile_n < 256)]
width = flat.pivot_table(
    index=["tile", "problem", "swap_ab", "reverse_k"], columns="swizzle", values="speedup", sort=False
)
gain = 100 * width.div(width[8], axis=0) - 100
for tile, part in flat.groupby("tile"):
    wanted = best_swizzle(config_of(part.iloc[0]))
    won = {int(width): int(times) for width, times in gain.loc[tile].idxmax(axis=1).value_counts().items()}
    print(f"{tile}, raster {part.raster.iloc[0]}: theory {wanted:.1f}, best of the three (width: times): {won}")
seven = twins(trials["early-long"], {"swizzle": 8}, {"swizzle": 7}).groupby("problem").gain
print("256x192, 7 against 8, from early-long, %:", seven.median().round(2).to_dict())
print("percent against swizzle 8:")
gain.groupby(["tile", "problem"], sort=False)[[11, 16]].median().unstack("tile").round(2)

# %%
refined = trials["refine"]
refined = with_panels(refined).assign(walk=refined.raster + refined.swizzle.astype(str))
WALKS = ["n4", "n5", "n6", "m11", "m13"]
theory = {
    (tile, axis): round(best_swizzle(config_of(part.iloc[0])), 1)
    for (tile, axis), part in refined.groupby(["tile", "raster"])
}
print("theory:", theory)
top = refined.groupby("problem").speedup.transform("max")
kept = refined.groupby(["problem", "tile", "swap_ab"]).speedup.transform("max") > 0.95 * top
refined = refined[kept].assign(us=refined.groupby("problem").baseline_us.transform("median") / refined.speedup)
group = refined.groupby(["problem", "tile", "swap_ab", "walk"], sort=False)
walks = group.agg(panels=("panels", "first"), us=("us", "median")).unstack("walk")
more_gb = walks["panels"].sub(walks["panels"]["n4"], axis=0)[WALKS].astype(float)
more_us = walks["us"].sub(walks["us"]["n4"], axis=0)[WALKS].astype(float)
slower = 100 * more_us.div(walks["us"]["n4"], axis=0)
print(
    f"{len(slower)} groups (problem, tile, swap_ab) within 5 % of the best of their problem; n4 is the fastest in",
    end=" ",
)
print((walks["us"].idxmin(axis=1) == "n4").sum(), "and has the fewest panels in", (more_gb.min(axis=1) >= 0).sum())
print("slower than n4, %, and GB of panels more, median:")
pd.concat({"%": slower.groupby("problem").median(), "GB": more_gb.groupby("problem").median()}, axis=1).round(2)

# %%
figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
for walk, colour in zip(WALKS[1:], ("C0", "C2", "C3", "C1"), strict=True):
    axis.plot(more_gb[walk], more_us[walk], "o", color=colour, label=f"raster {walk[0]}, swizzle {walk[1:]}")
ends = np.array([more_gb.min().min(), more_gb.max().max()])
for price in (prices["us a GB, DRAM alone"].min(), prices["us a GB, DRAM alone"].max()):
    axis.plot(ends, price * ends, color="grey", linewidth=1, zorder=0)
axis.plot([], [], color="grey", linewidth=1, label="the price of the raster study")
axis.axhline(0, color="black", linewidth=0.8)
axis.set_xlabel("GB of panels, by count, more than raster n, swizzle 4")
axis.set_ylabel("us more")
axis.legend(fontsize=8)
plt.show()
x, y = more_gb[WALKS[1:]].to_numpy().ravel(), more_us[WALKS[1:]].to_numpy().ravel()
slope, start = np.polyfit(x, y, 1)
print(f"line through all: {start:.1f} us and {slope:.0f} us a GB, correlation {np.corrcoef(x, y)[0, 1]:.2f}")

# %% [markdown]
# For 256x192 theory wants 6.6 and 8 wins, 12 times of 14; 7, which would be nearer, loses 0.05 to 0.2 % on five
# problems of six, and wins 0.7 % at 3000x5000x2056. For 256x200 along m it wants 13, and 11 and 16 share the wins,
# with 8 behind by 0.4 to 0.9 %. Along n it wants 5, and 4 is the fastest in all 16 groups. 5 is behind 6 on every
# problem. So theory finds the neighbourhood, and what counts in it is what remains: 4 divides the 16 cluster tiles of
# 8192 rows, 5 leaves a group of one. Counting panels finds that, and puts 4 first or even in 9 of 16. It misses that
# n6 and m11 lose 0.2 and 0.45 % at 8192^3 with just as many panels: the line through all starts at 3.5 us and not at
# 0. In the raster study, with 256x128, it was raster n that was slower. Unexplained.
#
# How long should the interval be? On the same groups:

# %%
meet = {}
for every in (4, 16):
    pairs = twins(refined, {"pace": 8}, {"pace": every})
    meet[f"pace {every} against 8, %"] = pairs.groupby("problem").gain.median()
    ahead = (pairs.gain > 0).groupby(pairs.problem)
    meet[f"{every} is ahead"] = ahead.sum().astype(str) + " of " + ahead.size().astype(str)
names = ["problem", "tile", "swap_ab", "pace", "speedup", "speedup_low", "speedup_high"]
print(finals["refine"][names].round(4).to_string(index=False))
pd.DataFrame(meet).round(2)

# %% [markdown]
# 4 is ahead of 8 by 0.1 to 0.2 % and 16 behind by 0.2 to 0.3 %, on every problem but 4096x8192x28672, where 4 and 8
# are even. That is below the noise floor of most of them, and many rows are one pair; what speaks for it is that
# nearly all twins agree, and so do the finals of two problems, though their intervals touch. Those of the other three
# were cut off. Fewer than 4 stages were not tried.
#
# ## PDL beyond 80 us
#
# PDL was searched for launches of up to 80 us. Six problems beyond that, twins without prefetch; near the best means
# that one of the two comes within 1.5 % of the best of its problem.

# %%
long = trials["early-long"]
pairs = twins(long[long.prefetch == 0], {"pdl": False}, {"pdl": True})
top = pairs.problem.map(long.groupby("problem").speedup.max())
near = pairs[pairs[["speedup_off", "speedup_on"]].max(axis=1) > 0.985 * top]
ahead = twins(long[long.pdl], {"prefetch": 0}, {"prefetch": 4})
summary = pd.DataFrame(
    {
        "cuBLAS, us": long.groupby("problem").baseline_us.median(),
        "all twins, %": pairs.groupby("problem").gain.median(),
        "near the best, %": near.groupby("problem").gain.median(),
        "least": near.groupby("problem").gain.min(),
        "greatest": near.groupby("problem").gain.max(),
        "twins near": near.groupby("problem").size(),
        "prefetch 4, %": ahead.groupby("problem").gain.median(),
        "best has PDL": long.loc[long.groupby("problem").speedup.idxmax()].set_index("problem").pdl,
    }
).sort_values("cuBLAS, us")
names = ["problem", "tile", "swizzle", "pdl", "speedup", "speedup_low", "speedup_high"]
print(finals["early-long"][names].round(4).to_string(index=False))
summary.round(2)

# %% [markdown]
# It pays at 90 us, 0.6 % for the best tile, and there both finals use PDL. At 4000^3 the best config gains 0.2 %, in
# the finals too, and another near it loses as much. From 174 us on it is nothing or a loss of 0.3 to 0.5 % near the
# best. Tiles further behind gain at 4096^3, which is no help. Prefetch is worth nothing, and costs 0.5 % on the
# shortest. The last three problems have no finals.
#
# ## What we take from it
#
# - `reverse_k` and `evict_c` on, together, unless k is very long. Worth 0.5 to 0.9 % up to k 8192.
# - `pace` 4 or 8 for launches of a millisecond and more; 0 below, where it costs 0.1 to 0.3 %, and more with longer
#   intervals.
# - Drift is why 16384^3 read its panels 2.5 times. `pace` brings it to one reading, 5 % of time, all of it clock.
# - Count panels to choose a width, and look at what the last group is left with; the square is only a first guess.
# - PDL up to 100 us.
# - What fell short. The burst of 16384^3 scatters by 5 % even with the longer rest: it shows that `pace` gains, and
#   not which tile wins. `evict_c` was not counted, nor were the mid-size problems. The finals of `refine` (4 of 10)
#   and of `early-long` (6 of 12) were cut off. The gains at 8192^3 and 4096x8192x28672 exceed the price of their
#   bytes, and we do not know why.
