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
# # The ladder: what is each idea worth?
#
# **Question.** The kernel is switched from its plainest form to its tuned one, one idea (*rung*) at a time, on two
# problems and in two regimes. Which ideas make it fast, which gain nothing, and what does a gain consist of?
#
# **Answer.** Overlap of loads and math, a larger tile with a second consumer, and an epilogue through shared memory
# bring nearly all of it. Many other ideas gain nothing at the place where they were added.
#
# Everything here is computed from the archived study `ladder-first`, measured on an NVIDIA H200 with an earlier kernel;
# no GPU is needed to run it again. The same rungs with the present kernel: [the ladder](../docs/ladder.md); the ideas
# explained: [eight chapters](../docs/learn/hopper.md).
#
# A gain is the ratio of two speedups over cuBLAS, each paired with cuBLAS, so that drift cancels. It holds for the
# rung it was added to: another order of the same ideas would give other figures. In burst most intervals are about
# 0.1 % wide, so that gains below that are called even; a steady row has one block of pairs and is good to 1 or 2 %.
# Every timing here is chained (launches of one kernel back to back); rows do not name their board.

# %%
from math import ceil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import (
    GemmProblem,
    Result,
    best_swizzle,
    config_of,
    hopper,
    kernel_of,
    ladder,
    recorded,
    rows_of,
    show_small,
    smem_reads_per_flop,
    source_line,
    waves,
    with_derived,
)

show_small()
study = recorded("ladder-first")
rungs = {rung["name"]: rung for rung in study.provenance["rungs"]}
configs = {name: kernel_of(rung["config"]) for name, rung in rungs.items()}
print(source_line(study.provenance))
print("noise floor, cuBLAS against itself:", study.provenance["noise"])

# %%
steps = ladder(rows_of(study, "sweep"), list(rungs.values()))
GROUPS = [(4096, "burst"), (4096, "steady"), (8192, "burst"), (8192, "steady")]


def cell(result: Result) -> str:
    """Speedup over cuBLAS and the gain over the rung before."""
    gain = "" if result.gain is None else f" ({result.gain:+.1%})"
    return f"{result.speedup:.3f}x{gain}"


pd.set_option("display.max_colwidth", None, "display.max_rows", 40)
table = pd.DataFrame(
    {
        "adds": [step.adds for step in steps],
        "from": [step.start or "" for step in steps],
        **{f"{m}^3 {regime}": [cell(step.results[i]) for step in steps] for i, (m, regime) in enumerate(GROUPS)},
    },
    index=[step.name for step in steps],
)
table

# %% [markdown]
# The rungs that lead to the tuned kernel (`peek`) are blue, branches grey. Bars are burst, dots steady state; on the
# right the gain in burst.


# %%
def chain(name: str | None) -> list[str]:
    """A rung and all that it stands on, the first one first."""
    return [] if name is None else [*chain(rungs[name]["from"]), name]


main = chain("peek")
figure, axes = plt.subplots(1, 2, figsize=(13, 9.5), layout="constrained", sharey=True)
for number, axis in enumerate(axes):
    burst, steady = ([step.results[2 * number + i] for step in steps] for i in (0, 1))
    colours = ["#4878a8" if step.name in main else "#b8b8b8" for step in steps]
    axis.barh(range(len(steps)), [result.speedup for result in burst], color=colours)
    axis.plot([result.speedup for result in steady], range(len(steps)), "o", color="#c0602b", markersize=4)
    axis.axvline(1, color="black", linewidth=0.8, linestyle="--")
    for at, result in enumerate(burst):
        if result.gain is not None:
            axis.text(1.19, at, f"{result.gain:+.1%}", va="center", ha="right", fontsize=8)
    axis.set_xlim(0.4, 1.2)
    axis.set_title(f"{4096 * (number + 1)}^3")
    axis.set_xlabel("speedup over cuBLAS (the axis starts at 0.4)")
axes[0].set_yticks(range(len(steps)), [step.name for step in steps], fontsize=9)
axes[0].set_ylim(len(steps) - 0.4, -0.6)
plt.show()

# %% [markdown]
# ## Two factors: busy tensor cores and a clock that pays for them
#
# A rate is the tensor cores' peak at one clock, times the clock, times the share of it that is used. The path of the
# main line through the plane of these two; the curves are equal rates.

# %%
rows = with_derived(rows_of(study, "sweep"))
names = {config: name for name, config in configs.items()}
rows["rung"] = [names[config_of(row)] for row in rows.to_dict("records")]
PEAK_PER_MHZ = hopper.FLOP_PER_CLOCK_PER_SM * study.provenance["gpu"]["sms"] / 1e6


def figures(value: str, scale: float = 1.0) -> pd.DataFrame:
    """A figure of every rung, in the order of the ladder, by problem and regime."""
    wide = rows.pivot(index="rung", columns=["m", "regime"], values=value).reindex(list(rungs))
    return wide[GROUPS].astype(float) * scale


active, clock, rate = figures("tensor_active"), figures("sm_mhz"), figures("tflops")
BRANCHES = ["pingpong 128x128", "pingpong 64x256", "256x192", "cluster 2x2", "stagger 3", "cp.async", "stagger 2"]
LABELS = {
    "serial": (7, 3),
    "two stages": (-62, -5),
    "multistage": (7, 2),
    "specialised": (7, 3),
    "full ring": (5, -12),
    "swizzle 8": (6, 3),
    "two consumers": (-46, 8),
    "TMA store": (7, -3),
    "peek": (7, 0),
    "pingpong 128x128": (-60, -14),
    "stagger 3": (-8, -15),
    "cluster 2x2": (7, -4),
}
MOVED = {"two consumers": (-84, -12), "stagger 2": (-40, 8)}
figure, axes = plt.subplots(1, 2, figsize=(14, 6), layout="constrained", sharey=True, sharex=True)
for axis, regime in zip(axes, ("burst", "steady"), strict=True):
    x, y = active[8192, regime], clock[8192, regime]
    axis.plot(x[main], y[main], "-o", color="#4878a8", markersize=5, linewidth=1)
    axis.plot(x[BRANCHES], y[BRANCHES], "s", color="#777777", markersize=5)
    for name in (*LABELS, *(name for name in BRANCHES if name not in LABELS)):
        colour = "#666666" if name in BRANCHES else "black"
        at = (LABELS | MOVED if regime == "steady" else LABELS).get(name, (6, 5))
        axis.annotate(name, (x[name], y[name]), at, textcoords="offset points", fontsize=9, color=colour)
    curve = np.linspace(38, 103, 100)
    for level in range(400, 901, 100):
        axis.plot(curve, level / PEAK_PER_MHZ / curve * 100, color="#d0a0a0", linewidth=0.7, zorder=0)
        axis.text(
            103.5, level / PEAK_PER_MHZ / 1.035, f"{level}", fontsize=9, color="#b06060", va="center", clip_on=True
        )
    axis.set_title(f"8192^3, {regime}; curves: TFLOP/s")
    axis.set_xlabel("tensor cores active, % of the peak at that clock")
axes[0].set_ylabel("SM clock, MHz")
axes[0].set_xlim(38, 108)
axes[0].set_ylim(1150, 1850)
plt.show()

# %%
factors = pd.DataFrame(
    {
        f"{title}, 8192 {regime}": figure_of.loc[main, (8192, regime)]
        / figure_of.loc[main, (8192, regime)].shift().to_numpy()
        for regime in ("burst", "steady")
        for title, figure_of in (("rate x", rate), ("active x", active), ("clock x", clock))
    }
)
factors["pJ/FLOP, 8192 steady"] = figures("pj_per_flop")[8192, "steady"]
steady_watts = rows[(rows["regime"] == "steady") & ~rows["rung"].isin(["cluster 2x2", "cluster 4x1"])]["watts"]
print(f"steady state, without the clusters of four: {steady_watts.min():.0f} to {steady_watts.max():.0f} W")
print(f"highest clock: {rows['sm_mhz'].max():.0f} MHz")
factors.round(3)

# %% [markdown]
# The highest clock of any row here is 1800 MHz, though the board may go to 1980; what holds it there is not recorded.
# In the steady state all rungs but the clusters of four draw 675 to 706 W: the power cap sets the clock. It is not
# busy tensor cores alone that draw power: in burst `full ring`, 64 % active, runs at 1523 MHz, hardly faster than
# `TMA store`, 95 % active, at 1511. In the steady state, where energy is recorded, its FLOP costs 1.53 pJ and the
# other one 1.06. So a rung may gain in two ways: busier tensor cores, of which a part is paid back in clock (two
# stages, two consumers, TMA store), or a cheaper FLOP at the same activity (swizzle 8, cluster 1x2).

# %%
first_last = pd.DataFrame(
    {
        "serial TFLOP/s": rate.loc["serial"],
        "tuned TFLOP/s": rate.loc["peek"],
        "x": rate.loc["peek"] / rate.loc["serial"],
        "of it active": active.loc["peek"] / active.loc["serial"],
        "of it clock": clock.loc["peek"] / clock.loc["serial"],
        "serial / cuBLAS": figures("speedup").loc["serial"],
        "tuned / cuBLAS": figures("speedup").loc["peek"],
    }
)
first_last.round(3)

# %% [markdown]
# From the first rung to the tuned kernel the rate grows 1.86 to 1.92 times in burst, 1.63 to 1.64 times at the cap.
# The tensor cores become 2.0 to 2.2 times as busy; the clock takes a part of it back.
#
# ## Bound by the SM, or by what lies beyond it?
#
# At the cap the SMs slow down, and L2, as the seed table found, does not. A kernel that waits for things counted in
# SM clocks (barriers, instructions, wgmma's own latency) keeps its activity in the steady state; one that waits for
# memory gains, because its waits shrink when counted in clocks.

# %%
figure, axes = plt.subplots(1, 2, figsize=(12, 5), layout="constrained", sharey=True, sharex=True)
marked = {
    "two stages": (-52, 8),
    "stagger 2": (-6, -16),
    "pingpong 64x256": (-30, -16),
    "multistage": (7, -6),
    "serial": (-36, 4),
    "cp.async": (7, -6),
    "specialised": (-62, 6),
    "two consumers": (8, -10),
    "256x192": (7, -9),
}
for axis, m in zip(axes, (4096, 8192), strict=True):
    x, y = active[m, "burst"], active[m, "steady"]
    axis.plot([38, 100], [38, 100], color="grey", linewidth=1)
    axis.scatter(x, y, s=22, color="#4878a8")
    for name, at in marked.items():
        axis.annotate(name, (x[name], y[name]), at, textcoords="offset points", fontsize=9)
    axis.set_title(f"{m}^3")
    axis.set_xlabel("tensor-active %, burst")
axes[0].set_ylabel("tensor-active %, steady state")
plt.show()

# %% [markdown]
# `two stages`, `stagger 2` and `pingpong 64x256` wait for memory. The single consumers with a ring of four or more,
# and `cp.async`, lie on the diagonal: what they wait for runs with the SM's clock.
#
# ## Clocks lost for each tile
#
# The clocks that an SM spends on a tile (time x clock / rounds) less those in which the tensor cores could do it (2
# tile_m tile_n k / 4096). What a tile loses may depend on its stages (k / 64 of them) or on its beginning and end;
# the two problems, one twice as deep, tell these apart.

# %%
rows["rounds"] = [
    waves(config_of(row), GemmProblem(int(row["m"]), int(row["n"]), int(row["k"]))).waves
    for row in rows.to_dict("records")
]
ideal = 2 * rows["tile_m"] * rows["tile_n"] * rows["k"] / hopper.FLOP_PER_CLOCK_PER_SM
rows["lost"] = rows["time_us"] * rows["sm_mhz"] / rows["rounds"] - ideal
lost = figures("lost")
SINGLE = ["serial", "two stages", "multistage", "unrolled", "specialised", "full ring", "swizzle 8"]
for_a_stage = pd.DataFrame(
    {
        f"{name}, {regime}": part
        for regime in ("burst", "steady")
        for name, part in (
            ("4096^3", lost[4096, regime]),
            ("8192^3", lost[8192, regime]),
            ("for a stage", (lost[8192, regime] - lost[4096, regime]) / 64),
        )
    }
)
for_a_stage.loc[SINGLE].round(0).astype(int)

# %% [markdown]
# ## Serial, two stages, multistage: why a deeper ring loses
#
# Two stages gain 40 to 55 %; a ring of four then loses 22 to 30 %. These kernels are launched with a CTA for each
# tile, and an SM runs as many CTAs as fit: it has 65,536 registers, allocated in units of 256 to a warp, and 228 KB
# of shared memory, of which the system takes 1 KB for each CTA.

# %%
WARP_REGISTERS, SM_SMEM, SYSTEM_SMEM = 256, 228 * 1024, 1024


def residency(name: str) -> dict[str, float]:
    """CTAs on an SM, and what they have in shared memory and under way."""
    row = rows[(rows["rung"] == name) & (rows["m"] == 8192) & (rows["regime"] == "burst")].iloc[0]
    shares = configs[name]
    warps = shares.threads // hopper.WARP_THREADS
    of_a_warp = ceil(row["registers"] * hopper.WARP_THREADS / WARP_REGISTERS) * WARP_REGISTERS
    by_registers = hopper.REGISTERS_PER_SM // (of_a_warp * warps)
    by_smem = SM_SMEM // (row["smem_bytes"] + SYSTEM_SMEM)
    ctas = min(by_registers, by_smem)
    return {
        "registers": row["registers"],
        "threads": shares.threads,
        "smem_bytes": row["smem_bytes"],
        "CTAs by registers": by_registers,
        "CTAs by smem": by_smem,
        "CTAs": ctas,
        "multiplying warpgroups": ctas * configs[name].consumers,
        "KiB loading while one multiplies": ctas * row["ahead_kib"],
        "tensor-active % burst": active.loc[name, (8192, "burst")].round(1),
        "tensor-active % steady": active.loc[name, (8192, "steady")].round(1),
    }


on_an_sm = pd.DataFrame({name: residency(name) for name in [*SINGLE, "two consumers", "peek"]}).T
on_an_sm.astype(dict.fromkeys(on_an_sm.columns[:8], int))

# %% [markdown]
# `serial` and `two stages` run two CTAs on an SM (the registers allow no third), the ring of four runs one. It has
# more bytes loading, 96 KiB against 64, and still leaves the tensor cores idle half of the time: it does not lack
# data, it lacks a second warpgroup. With stagger 0 a warpgroup waits for its own wgmma to end, gives the stage back,
# waits for the next barrier and issues again; in the meantime no other warpgroup feeds the tensor cores. The loss
# table says how long: 332 clocks for each stage of 512 clocks of math, the same 337 at the cap's lower clock, as an
# SM-bound wait should. That the other CTA of `two stages` fills this gap is an inference from occupancy; no counter
# was read on these rungs. It fits all of: the low loss of `two stages`, its place above the diagonal (with the gap
# filled, memory is what is left), and the gain of a second consumer below.
#
# That tilus reports more than twice the rate for a ring (B200, fp16, 8192^3, its page on multi-stage pipelining) need
# be no contradiction: it depends on whether the kernel that it is compared with has another CTA to hide behind.
# `serial` to `multistage` is +16 to +18 % in burst.
#
# ## Unrolling, a producer warp, a deeper ring
#
# Unrolling by the stages is worth 1 to 2 % in burst. The producer warp is worth 12 to 16 % in burst, 10 to 12 % at
# the cap: the loss falls from 332 to 179 clocks a stage, as one would expect once the multiplying warps no longer
# wait for an empty slot and issue loads between their wgmmas. As many stages as fit (seven instead of four) gain
# nothing: -0.6 % at 4096^3 in burst, no difference at the cap. The kernel does not lack data. At 8192^3 in burst they
# lose 6 %, activity from 65.2 to 63.8 % and clock from 1586 to 1523 MHz. Why, this study does not say; the loss goes
# away with any raster group.
#
# ## Rasterisation
#
# The prediction: at 4096^3 A holds 34 MB and fits the L2's 60 MB, so that the order of tiles should hardly matter; at
# 8192^3 it holds 134 MB and does not, and a walk along m with swizzle 1 comes back to the first panel of A after all
# others. Panels that the 132 tiles under way need, if they advance together:


# %%
def panels(name: str, m: int) -> float:
    """Megabytes of A and B beside and above the tiles that run at once, if these were full groups."""
    config = configs[name]
    down = m // config.tile_m
    width = max(config.swizzle, hopper.SM_COUNT / down)
    length = hopper.SM_COUNT / width
    return 2 * m * (length * config.tile_m + width * config.tile_n) / 1e6


RASTER = ["full ring", "swizzle 2", "swizzle 4", "swizzle 8", "swizzle 16"]
speedups = figures("speedup")
pd.DataFrame(
    {
        "swizzle": [configs[name].swizzle for name in RASTER],
        **{f"{m}^3, MB of panels": [round(panels(name, m)) for name in RASTER] for m in (4096, 8192)},
        **{
            f"{m}^3 {regime}": (speedups[m, regime] / speedups.loc["full ring", (m, regime)] - 1)[RASTER]
            .map("{:+.1%}".format)
            .tolist()
            for m, regime in GROUPS
        },
        "active % 8192 burst": active.loc[RASTER, (8192, "burst")].round(1).tolist(),
        "MHz 8192 burst": clock.loc[RASTER, (8192, "burst")].round(0).tolist(),
    },
    index=RASTER,
)

# %% [markdown]
# The prediction holds in kind: at 4096^3 the order is worth 2 % in burst (up to 5 % at the cap), at 8192^3 groups of
# four to sixteen gain 14 to 15 % (6 to 10 %). One miss: swizzle 1 and 2 should be alike, since 132 tiles reach over
# two columns of 64 either way, and in burst swizzle 2 is 8 % faster (at the cap they do not differ). It may be that
# tiles which share a panel are neighbours in the launch order with swizzle 2 and stay in step, while with swizzle 1
# they are 64 apart; nothing here proves it.
#
# From swizzle 2 on the tensor cores are equally busy, 66.3 to 66.5 %. The rest of the gain, 1580 to 1688 MHz, is
# clock: fewer bytes from DRAM should cost less power. For this rung bytes were not counted; for the tuned kernel the
# raster study did: there swizzle 1 and 2 are alike as predicted, and traffic and clock move together:

# %%
counted = rows_of(recorded("raster"), "counters").query("raster == 'm'")
counted = counted[~counted["serpentine"].astype(bool)]
pd.DataFrame(
    {
        f"{m}^3 {title}": part.set_index("swizzle")[name].astype(float) * scale
        for m, part in counted.groupby("m")
        if m <= 8192
        for name, title, scale in (("dram_read_bytes", "DRAM read GB", 1e-9), ("sm_ghz", "GHz under the profiler", 1))
    }
).round(3)

# %% [markdown]
# ## Two consumers, and stagger
#
# Two consumers on a tile of 256 x 128 gain 21 to 24 %, the largest step above `two stages`. Two things change at once:
# a second warpgroup multiplies while the first one waits, and the larger tile needs 48 instead of 64 bytes a clock
# from L2. Split along n instead of m (each consumer 256 x 64) it is 0.7 to 1.0 % slower in burst, with no difference
# at the cap: the activity is the same, the clock a little lower at 8192^3. The likely reason is that narrow wgmmas
# read more shared memory:

# %%
pd.DataFrame(
    {
        name: {
            "wgmma n": configs[name].share_n,
            "smem bytes read per FLOP": smem_reads_per_flop(configs[name]),
            "active % 8192 burst": active.loc[name, (8192, "burst")],
            "MHz 8192 burst": clock.loc[name, (8192, "burst")],
        }
        for name in ("two consumers", "consumers along n")
    }
).T.round(4)

# %% [markdown]
# With two consumers stagger 1 is worth nothing: presumably the other consumer hides already what it would hide. What
# stagger does to a single consumer this ladder did not try; `sources` has pairs of it. The price of stagger is
# look-ahead: `stages - 1 - stagger` loads can be under way.

# %%
STAGGER = ["two consumers", "stagger 1", "stagger 2", "stagger 3"]
staggered = pd.DataFrame(
    {"loads ahead": [configs[name].stages - 1 - configs[name].stagger for name in STAGGER]}, STAGGER
)
for m, regime in GROUPS:
    staggered[f"{m} {regime}"] = (speedups[m, regime] / speedups.loc["two consumers", (m, regime)])[STAGGER].round(3)
staggered[[f"clocks for a stage, {regime}" for regime in ("burst", "steady")]] = for_a_stage.loc[
    STAGGER, ["for a stage, burst", "for a stage, steady"]
].round(0)
staggered

# %% [markdown]
# Three and two loads ahead are even. One costs 5 to 6 % in burst and only 1 to 2 % at the cap, where the tensor cores
# are slower and memory is not. With none the load of every stage is waited for, longer than its math lasts, and the
# rate nearly halves.
#
# ## Persistent CTAs and the TMA store
#
# A tile's end costs clocks that do not depend on k, so they show best at 4096^3:

# %%
ENDS = ["two consumers", "stagger 1", "persistent", "TMA store", "chunks of 32", "chunks of 16", "one buffer", "peek"]
figure, axes = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained", sharey=True, sharex=True)
for axis, m in zip(axes, (4096, 8192), strict=True):
    for shift, regime, colour in ((-0.2, "burst", "#4878a8"), (0.2, "steady", "#c0602b")):
        values = lost.loc[ENDS, (m, regime)]
        axis.barh(np.arange(len(ENDS)) + shift, values, height=0.38, color=colour, label=regime)
        for at, value in enumerate(values):
            axis.text(value + 150, at + shift, f"{value:,.0f}", va="center", fontsize=8)
    axis.set_title(f"{m}^3: of {2 * 256 * 128 * m // 4096:,} clocks of math")
    axis.set_xlabel("clocks lost for a tile of 256 x 128")
axes[0].set_xlim(0, 20000)
axes[0].set_yticks(range(len(ENDS)), ENDS)
axes[0].invert_yaxis()
axes[1].legend()
plt.show()

# %% [markdown]
# `persistent` runs the very machine code of `stagger 1` (the walk over tiles is an argument of the launch). It saves
# about the latency of a tile's first load: the ring is already full when the next tile begins. But the rate does not
# follow: -0.4 and -1.8 % in burst, no difference at the cap. At 8192^3 the clock falls by 43 MHz while the activity
# gains 0.9 points. With direct stores the multiplying warps store too, and nothing but that first latency can overlap.
# That the clock should fall by more than the activity rises is not explained here.
#
# The TMA store is worth 9 to 10 % at 4096^3 and 5 % at 8192^3. Direct stores cost more clocks at 4096^3 than at
# 8192^3. A tile's own instructions do not depend on k, so this must come from outside: in four rounds all SMs store at
# once, and in sixteen they may drift apart (a conjecture). In time, a tile's loss:

# %%
direct = ["two consumers", "stagger 1", "TMA store"]
(lost / clock).loc[direct].round(1).rename_axis("lost for a tile, microseconds")

# %% [markdown]
# At 4096^3 it is the same time at both clocks, which speaks for memory and against instructions; at 8192^3 it is the
# clocks that stay the same. So what the direct store waits for is not settled.
#
# Chunks of 64 columns through two buffers are best; 32 columns, or one buffer, lose 0.3 to 0.5 % in burst, 16 columns
# 0.8 to 1.5 %. From 64 to 32 columns the number of chunks and barriers doubles (4 to 8 for each consumer) and the loss
# grows; from 32 to 16 (8 to 16) it grows by more than twice as much, and barriers alone would cost twice as much, so
# that narrow chunks are also worse one by one. The rows of their swizzle are only 32 bytes wide, which may be why.
#
# ## Clusters
#
# Two CTAs that share A (1 x 2) gain 4 %, two that share B (2 x 1) less than 1 %. By bytes: A's tile has 256 rows and
# B's 128, so sharing A saves twice as much. The second cause is the raster: with swizzle 8 a cluster of 1 x 2 walks
# in a square patch, the others in a long one, and the theory's best swizzle for single CTAs is 16. This part a wider
# swizzle may give without clusters; the ladder did not try it.

# %%
CLUSTERS = ["TMA store", "cluster 2x1", "cluster 1x2"]
clusters = pd.DataFrame(
    {
        "L2 bytes a clock at full rate": rows.drop_duplicates("rung").set_index("rung")["l2_bytes_per_clock"][CLUSTERS],
        "best swizzle (8 is set)": {name: round(best_swizzle(configs[name]), 1) for name in CLUSTERS},
        **{f"MHz {m} {regime}": clock.loc[CLUSTERS, (m, regime)].round(0) for m, regime in GROUPS},
        **{f"active % {m} burst": active.loc[CLUSTERS, (m, "burst")].round(1) for m in (4096, 8192)},
    }
)
clusters

# %% [markdown]
# The activity hardly moves; the gain is clock: a FLOP with fewer bytes to fetch is cheaper.
#
# **Clusters of four** (`cluster 2x2`, `cluster 4x1`) show half of the activity here, since these launches started 33 of
# them where fewer run at once, so that the rest ran as a second round. Their loss with as many as fit:
# [the ladder](../docs/ladder.md).
#
# ## What gains nothing on top
#
# The differences of the last small steps in burst, with the noise floor:

# %%
SMALL = {
    "serpentine": "cluster 1x2",
    "peek: producer": "serpentine",
    "peek: consumer": "serpentine",
    "peek": "serpentine",
    "packed state": "peek",
    "two full barriers": "peek",
    "every thread arrives": "without cluster",
}
figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
for shift, m, colour in ((-0.12, 4096, "#4878a8"), (0.12, 8192, "#c0602b")):
    part = rows[(rows["m"] == m) & (rows["regime"] == "burst")].set_index("rung")
    for at, (name, start) in enumerate(SMALL.items()):
        base = part.loc[start, "speedup"]
        middle, low, high = (100 * (part.loc[name, f"speedup{end}"] / base - 1) for end in ("", "_low", "_high"))
        axis.plot([low, high], [at + shift] * 2, color=colour, linewidth=1.5)
        axis.plot(middle, at + shift, "o", color=colour, markersize=5, label=f"{m}^3" if at == 0 else None)
noise = 100 * max(study.provenance["noise"][f"{m}x{m}x{m} burst chained"] for m in (4096, 8192))
axis.axvspan(-noise, noise, color="#eeeeee", zorder=0, label="noise floor")
axis.axvline(0, color="grey", linewidth=0.8)
axis.set_yticks(range(len(SMALL)), [f"{name}  (over {start})" for name, start in SMALL.items()])
axis.invert_yaxis()
axis.set_xlabel("gain in burst, %; lines: 95 % interval of the rung alone")
axis.legend(fontsize=8, loc="upper left")
plt.show()

# %% [markdown]
# Serpentine walking, a peeking producer, the ring's place in one integer, two full barriers and arrivals by every
# thread are even, or 0.1 % and at the edge of what can be seen. A peeking consumer is worth 0.17 % at 4096^3. At the
# cap none of them can be told from the others.
#
# ## cp.async, pingpong, a larger tile
#
# - **cp.async** by 128 producer threads loses 14 to 16 % against TMA with the same single CTAs. The activity falls
#   from 94.6 to 74.6 % at 8192^3 and stays there at the cap's lower clock: what it waits for runs with the SM's
#   clock, so not bandwidth. A stage of 48 KiB is 3,072 copies of 16 bytes, 24 for each thread, where TMA takes a few
#   instructions of one. Whether it is their issue, their path through the SM or the late arrival is not known.
# - **pingpong 128x128** does what it promises: its tensor cores are the busiest of the ladder. It is
#   still 1.8 to 4.8 % slower, by clock: 1485 MHz against 1574 at 8192^3. Its tile needs 48 bytes
#   a clock from L2 and the tuned one 32. Ping-pong pays at short k; both problems are deep.
# - **pingpong 64x256** needs 72 bytes a clock. The seed table found that L2 gives some 49 in burst, 68 % of that; it
#   reaches 61 to 62 % (give or take 3 at 8192^3) of the busy SMs' peak. It is the furthest above the diagonal: bound
#   by memory.
# - **256x192** saves bytes (27 a clock), and is 0.4 % ahead at 8192^3 in burst and level at the cap. At 4096^3 its 22
#   columns of tiles leave SMs idle: waves of 86 % against 97 % would cost 11 %. Measured is 4 to 5.5 %, since idle
#   SMs leave power to the others: the clock rises in burst.

# %%
LAST = ["peek", "without cluster", "cp.async", "pingpong 128x128", "pingpong 64x256", "256x192"]
at_burst = rows[rows["regime"] == "burst"].set_index(["rung", "m"])
pd.concat(
    {
        m: at_burst.xs(m, level="m").loc[
            LAST, ["tensor_active", "reached", "wave_efficiency", "sm_mhz", "l2_bytes_per_clock", "lost"]
        ]
        for m in (4096, 8192)
    },
    axis=1,
).astype(float).round(2)

# %% [markdown]
# ## Burst against steady state
#
# What a rung keeps of its burst rate at the cap:

# %%
kept = pd.DataFrame({m: rate[m, "steady"] / rate[m, "burst"] for m in (4096, 8192)})
KEPT = {
    "serial": (6, -11),
    "stagger 3": (-8, 8),
    "cluster 2x2": (7, 2),
    "multistage": (-20, 9),
    "full ring": (-24, -17),
    "two stages": (-24, 9),
    "pingpong 64x256": (7, -4),
    "peek": (-8, 9),
}
figure, axes = plt.subplots(1, 2, figsize=(12, 4), layout="constrained", sharey=True, sharex=True)
for axis, m in zip(axes, (4096, 8192), strict=True):
    axis.scatter(active[m, "burst"], kept[m], s=22, color="#4878a8")
    for name, at in KEPT.items():
        axis.annotate(name, (active.loc[name, (m, "burst")], kept.loc[name, m]), at, textcoords="offset points")
    burst_us, steady_us = figures("baseline_us")[m].median()
    axis.axhline(burst_us / steady_us, color="grey", linewidth=1, linestyle="--")
    axis.set_title(f"{m}^3; dashed: cuBLAS")
    axis.set_xlabel("tensor-active %, burst")
axes[0].set_ylabel("steady rate / burst rate")
plt.show()

# %%
kept.T[
    ["serial", "stagger 3", "cluster 2x2", "cluster 4x1", "two stages", "stagger 2", "pingpong 64x256", "peek"]
].round(3)

# %% [markdown]
# The least busy rungs (`serial`, `stagger 3` and the half-filled clusters of four) keep 96 to 101 %: in burst power
# hardly holds them back. The rungs that wait for memory, `two stages` and `stagger 2`, keep 87 to 91 %. All others
# but one keep 82 to 89 %, the busy and the idle ones alike, and cuBLAS 84 %: for them burst and steady state rank
# alike as far as the noise of a steady row allows. One is out of line: `pingpong 64x256` is 7 to 9 % faster at the
# cap than in burst, in TFLOP/s, with a clock lower by a quarter. A bound by memory would explain an equal rate, not a
# higher one; this is not understood.

# %% [markdown]
# ## What we take from it
#
# - Three things make this kernel: loading while multiplying (+40 to +55 %), a second warpgroup that multiplies while
#   the first waits (+21 to +24 %, with the larger tile), and a store that does not hold up the multiplying (+5 to +10
#   %). A producer warp (+10 to +16 %), a raster group at sizes beyond L2 (+10 to +15 %) and sharing A in a cluster
#   (+4 %) follow. Together they make 1.6 to 1.9 times the first rung.
# - A deeper ring is worth nothing without someone to use it. Two small CTAs on an SM beat one with a ring of four,
#   because two of them multiply. Count what is resident before judging a stage count.
# - With two consumers a late release gains nothing, and held back too long it stops the loads.
# - Once the tensor cores are more than 90 % busy, gains come as clock: bytes saved by raster, cluster and tile. Idle
#   tensor cores are no proof of a spare watt: the early rungs are at the cap with half of them idle.
# - Peeking, serpentine, ring state, barriers and arrivals are choices of taste here, 0.2 % at most.
# - Not known: what holds every clock below 1800 MHz, why a full ring loses 6 % in one group of four, why persistent
#   CTAs cost clock, what direct stores and cp.async wait for, and why pingpong 64x256 is faster at the cap.
