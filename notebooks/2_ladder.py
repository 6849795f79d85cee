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
# **Answer.** Overlap of loads and math, the order of the tiles, a larger tile with a second consumer, and an epilogue
# through shared memory bring nearly all of it. Many other ideas gain nothing at the place where they were added.
#
# Everything here is computed from the study `ladder`, measured on an NVIDIA H200; no GPU is needed to run it
# again. The table alone: [the ladder](../docs/ladder.md); the ideas explained: [eight
# chapters](../docs/learn/hopper.md).
#
# A gain is the ratio of two speedups over cuBLAS, each paired with cuBLAS, so that drift cancels. It holds for the
# rung it was added to: another order of the same ideas would give other figures. Every timing here is chained (launches
# of one kernel back to back).

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import (
    Result,
    config_of,
    hopper,
    kernel_of,
    ladder,
    recorded,
    rows_of,
    show_small,
    source_line,
    with_derived,
)

show_small()
study = recorded("ladder")
rungs = {rung["name"]: rung for rung in study.provenance["rungs"]}
configs = {name: kernel_of(rung["config"]) for name, rung in rungs.items()}
print(source_line(study.provenance))
print("noise floor, cuBLAS against itself:", study.provenance["noise"])
print("boards:", ", ".join(board[4:12] for board in study.provenance["boards"]))

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

# %% [markdown]
# ## What each idea brings, by its interval
#
# The gain of every rung of the main line in bursts, with the 95 % interval of the pairs of its own row.

# %%
burst = rows[rows["regime"] == "burst"].set_index(["m", "rung"])
lines = {}
for name in main[1:]:
    start = rungs[name]["from"]
    for m in (4096, 8192):
        base = burst.loc[(m, start), "speedup"]
        middle, low, high = (100 * (burst.loc[(m, name), f"speedup{end}"] / base - 1) for end in ("", "_low", "_high"))
        same = burst.loc[(m, start), "board"] == burst.loc[(m, name), "board"]
        lines[name, f"{m}^3"] = {"gain %": middle, "low": low, "high": high, "one board": same}
gains = pd.DataFrame(lines).T.unstack()
gains.loc[main[1:]].swaplevel(axis=1).sort_index(axis=1)

# %% [markdown]
# ## What a rung keeps of its rate at the power cap

# %%
kept = pd.DataFrame({m: rate[m, "steady"] / rate[m, "burst"] for m in (4096, 8192)})
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained", sharey=True, sharex=True)
for axis, m in zip(axes, (4096, 8192), strict=True):
    axis.scatter(active[m, "burst"], kept[m], s=18, color="#4878a8")
    for name in ("serial", "two stages", "stagger 3", "peek", "pingpong 64x256"):
        at = active.loc[name, (m, "burst")], kept.loc[name, m]
        axis.annotate(name, at, (4, 4), textcoords="offset points", fontsize=8)
    axis.set_title(f"{m}^3")
    axis.set_xlabel("tensor-active %, burst")
axes[0].set_ylabel("steady rate / burst rate")
plt.show()
kept.loc[["serial", "two stages", "multistage", "specialised", "stagger 3", "TMA store", "peek", "256x192"]].T.round(3)

# %% [markdown]
# ## What we take from it
#
# - Three things make this kernel: loading while multiplying (+55.5 % and +58.5 % at 4096^3 and 8192^3), a second
#   warpgroup that multiplies while the first waits, with the larger tile (+22.5 % and +24.9 %), and a tile that leaves
#   through shared memory (+10.2 % and +6.1 %). Groups of tiles bring +15.2 % at 8192^3, beyond the L2. A producer warp
#   gains +17.7 % and +14.2 %, which is part of what the ring of four had lost.
# - A deeper ring is worth nothing without someone to use it: `multistage` loses 23.0 % and 24.9 %, since one CTA with a
#   ring of four replaces two small ones that hide each other's loads.
# - With two consumers a late release gains nothing. Persistence gains 2.2 % and 0.4 %, a cluster of two 0.5 % and 0.1
#   %, peeking 0.2 % and 0.1 %, the serpentine walk nothing.
# - At the power cap a busy rung keeps 82 to 85 % of its burst rate; `serial` and `stagger 3`, which leave the tensor
#   cores idle more than half of the time, 97 to 100 %.
