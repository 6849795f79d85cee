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
# # Stagger x K depth x stages
#
# **Question.** A consumer may release a stage of the ring as soon as its wgmma group has ended, or some groups later,
# so that the tensor cores always have a group queued: that is the `stagger`. Kernels in the field use 0 or 1, and say
# little of why. When does a late release pay, and what does it cost?
#
# **Answer.** With two or three consumers a late release does not pay where the ring is deep enough for either. What
# counts is how long the loads ahead last: about a microsecond is enough, and a stage held back is a load less.
#
# Five tiles, `k_depth` 1 to 8, all stage counts that fit, stagger 0 to 3, long and short k, from the archived studies
# `stagger` and, at the power cap, `stagger-steady`; measured on an NVIDIA H200. No GPU is needed to run this again.
# Every timing here is chained (launches of one kernel back to back); rows do not name their board.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import (
    against,
    config_of,
    prepared,
    recorded,
    resolve,
    rows_of,
    scatter_about_a_curve,
    scatters,
    show_small,
    source_line,
)

show_small()
study = recorded("stagger")
steady = recorded("stagger-steady")
for one in (study, steady):
    print(source_line(one.provenance))
    status = rows_of(one, "sweep")["status"].value_counts().to_dict()
    print("  status:", status, " refused by rule:", one.provenance["skipped"])
    print("  noise:", one.provenance["noise"])

# %% [markdown]
# Every config that was compiled ran: none spilled, none had its wgmma serialised. What was refused asked for more
# stages than fit, or for as much stagger as stages.
#
# ## The surface
#
# `reached` is the tensor-active percent corrected for idle SMs and for the k that a last, part-filled stage pads:
# 8192 and 512 are no multiples of 96 (`k_depth` 6), where that part is 0.8 % and 11 %. It is a share of the peak *at
# the clock of that row*, and so says what the ring does; the speed follows further below.

# %%
TILES = ["128x256", "192x192", "256x128", "256x192", "320x128"]

rows = prepared(rows_of(study, "sweep"))
long, short = rows[rows["k"] == 8192], rows[rows["k"] == 512]


def surface(part: pd.DataFrame, title: str) -> None:
    """One panel a tile: stages across, k_depth and within it stagger down."""
    shown = part[part["stages"] <= 8]
    index = [(depth, stagger) for depth in (1, 2, 4, 6, 8) for stagger in range(4)]
    figure, axes = plt.subplots(1, 5, figsize=(14, 5.6), layout="constrained", sharey=True)
    for axis, tile in zip(axes, TILES, strict=True):
        grid = shown[shown["tile"] == tile].pivot(index=["k_depth", "stagger"], columns="stages", values="reached")
        grid = grid.reindex(index=index, columns=range(1, 9)).astype(float)
        image = axis.imshow(np.ma.masked_invalid(grid), cmap="viridis", vmin=20, vmax=100, aspect="auto")
        for (i, j), value in np.ndenumerate(grid):
            if np.isfinite(value):
                axis.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7, color="w" if value < 65 else "k")
        axis.hlines([3.5, 7.5, 11.5, 15.5], -0.5, 7.5, color="black", linewidth=1)
        axis.set_xticks(range(8), range(1, 9))
        axis.set_yticks(range(20), [f"depth {d}, stagger {s}" if s == 0 else str(s) for d, s in index], fontsize=7)
        axis.set_title(tile)
        axis.set_xlabel("stages")
    figure.colorbar(image, ax=axes, label="reached, % of the peak", aspect=30)
    figure.suptitle(title)
    plt.show()


surface(long, "8192 x 8192 x 8192, burst")

# %%
surface(short, "8192 x 8192 x 512, burst")

# %% [markdown]
# Down a column of one depth the figures fall: more stagger, fewer loads ahead. Along the diagonals, one stage more
# for one stagger more, they repeat. (Stage counts above eight fit only at `k_depth` 1 and are left out of the
# pictures, but not of the figures below.)
#
# ## At the same number of stages
#
# The question a tuner asks: the ring has so many stages, shall the release be late? Speeds of stagger 1, 2, 3 against
# stagger 0, all else equal. Two configs are even where the quotient's interval holds 1 or the difference is less than
# the noise that the study recorded.

# %%
KEYS = ["k", "tile", "k_depth", "stages"]
NOISE = max(study.provenance["noise"].values())

FIGURES = ["speedup", "speedup_low", "speedup_high", "reached", "sm_mhz"]
none = rows[rows["stagger"] == 0].set_index(KEYS)[FIGURES]
late = {s: against(rows[rows["stagger"] == s].set_index(KEYS)[FIGURES], none, NOISE) for s in (1, 2, 3)}
counted = pd.concat(late, names=["stagger"]).reset_index()
counts = counted.pivot_table(index=["k", "stagger"], columns="verdict", values="gain", aggfunc="count", fill_value=0)
spans = counted.groupby(["k", "stagger"])["gain"].agg(["min", "median", "max"]).mul(100).round(1)
counts.join(spans)

# %%
nothing = counted[(counted["stages"] == 4) & (counted["stagger"] == 3)]
print("four stages, stagger 3: nothing can be loading; speed lost, %")
(-100 * nothing.groupby("k")["gain"].agg(["max", "min"])).round(0).rename(columns={"max": "least", "min": "most"})

# %%
faster = counted[counted["verdict"] == "faster"].groupby(["k", "k_depth", "tile"])["gain"]
pd.DataFrame({"cases": faster.count(), "greatest gain, %": (100 * faster.max()).round(1)})

# %% [markdown]
# A late release is faster almost only at `k_depth` 1, in rings much longer than the loads need. There, on the long
# problem, more loads in flight make things worse, and stagger is a way to have fewer of them. So is a shorter ring.
# With the number of stages free as well, the best late release compared with the best prompt one, for each tile and
# depth:

# %%
best = rows.assign(late=rows["stagger"] > 0).sort_values("speedup", ascending=False)
best = best.groupby(["k", "tile", "k_depth", "late"]).head(1).set_index(["k", "tile", "k_depth", "late"])
offers = against(best.xs(True, level="late")[FIGURES], best.xs(False, level="late")[FIGURES], NOISE)
table = offers.assign(cell=(100 * offers["gain"]).map("{:+.1f} %, ".format) + offers["verdict"])
table["cell"].unstack("k_depth").fillna("")

# %% [markdown]
# ## What a late release costs
#
# `stages - 1 - stagger` loads can be on their way while one stage is multiplied. Does the speed follow that count, or
# the bytes that it amounts to, or the time that those bytes last? Three views of the long problem; a good one brings
# all tiles and depths onto one rising curve. The last is explained below.
#
# The time that the loads ahead last is their number times the clocks that the tensor cores take for a stage, `math` =
# 2 tile_m tile_n tile_k / 4096. By Little's law a ring keeps up when that is the latency of a load.

# %%
INSTRUCTION_N = {tile: 64 if tile == "320x128" else int(tile.split("x")[1]) for tile in TILES}
assert all(resolve(config_of(row)).share_n == INSTRUCTION_N[row["tile"]] for _, row in long.iterrows())
long = long.assign(
    lasts=(long["ahead"] * long["math"]).astype(float),
    pace=[2 * 64 * INSTRUCTION_N[t] * 16 / 4096 * c for t, c in zip(long["tile"], long["consumers"], strict=True)],
)
plateau = long[long["k_depth"] > 1].groupby("tile")["reached"].max()
pd.DataFrame({"best reached, %": plateau.round(1)}).T

# %%
deep = long[long["k_depth"].isin([2, 4, 8])]
colours = dict(zip(TILES, plt.cm.tab10.colors, strict=False))
marks = {0: "o", 1: "^", 2: "^", 3: "^"}


def handles() -> list[plt.Line2D]:
    """For a legend of tiles and staggers."""
    tiles = [plt.Line2D([], [], color=colours[tile], marker="s", linestyle="", label=tile) for tile in TILES]
    staggers = (("o", "stagger 0"), ("^", "stagger 1 to 3"))
    return [
        *tiles,
        *(plt.Line2D([], [], color="grey", marker=mark, linestyle="", label=name) for mark, name in staggers),
    ]


def views(part: pd.DataFrame, columns: dict[str, str]) -> None:
    """Reached against each of the columns; circles release at once, triangles late."""
    figure, axes = plt.subplots(1, len(columns), figsize=(4.7 * len(columns), 4.2), layout="constrained", sharey=True)
    for axis, (name, label) in zip(np.atleast_1d(axes), columns.items(), strict=True):
        for (tile, stagger), cells in part.groupby(["tile", "stagger"]):
            axis.scatter(cells[name], cells["reached"], color=colours[tile], marker=marks[stagger], s=26, alpha=0.75)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    figure.legend(handles=handles(), loc="outside right center", fontsize=8)
    np.atleast_1d(axes)[0].set_ylabel("reached, % of the peak")
    plt.show()


views(
    deep,
    {
        "ahead": "loads ahead: stages - 1 - stagger",
        "ahead_kib": "KiB ahead",
        "lasts": "clocks that the loads ahead last",
    },
)


# %%
scatters(deep, ["stages", "ahead", "ahead_kib", "lasts"])

# %% [markdown]
# Stage counts say least. Bytes ahead are better for a tile by itself, and the time that they last comes nearest to one
# curve for all tiles, by a little: 5.1 points about it, bytes 5.8. It leaves a split: circles (stagger 0) lie below
# triangles, and turn further ahead than triangles. (`k_depth` 1 and 6 are left out: they have limits of their own, see
# below and [bytes in flight](../docs/studies.md#bytes-in-flight).)
#
# ## Equal look-ahead: does the wait fall on the critical path?
#
# A config with stagger 0 and one with a stage more and stagger 1 have the same loads ahead. If serving the barriers
# between two groups cost the tensor cores anything, the second would be faster even where nothing starves. Points of
# percent by which it is ahead:

# %%
ahead = ["tile", "k_depth", "ahead"]
prompt, delayed = (long[long["stagger"] == stagger].set_index(ahead) for stagger in (0, 1))
points = delayed["reached"].sub(prompt["reached"]).dropna().rename("points").reset_index()
points[points["ahead"] <= 6].pivot(index=["k_depth", "tile"], columns="ahead", values="points").round(1)

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
for axis, (tile, depth) in zip(axes, [("256x128", 1), ("256x128", 2), ("320x128", 2)], strict=True):
    part = long[(long["tile"] == tile) & (long["k_depth"] == depth) & (long["free"] <= 9)]
    for stagger, line in part.groupby("stagger"):
        style = {"marker": "osv^"[stagger], "markersize": 9 - 2 * stagger}
        axis.plot(line["free"], line["reached"], label=f"stagger {stagger}", **style)
    axis.set_title(f"{tile}, k_depth {depth}")
    axis.set_xlabel("stages - stagger")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("reached, % of the peak")
axes[0].legend()
plt.show()

# %% [markdown]
# Two regimes. Where the loads suffice, the two are even within 0.3 points at `k_depth` 2 and 4 (one case of 0.8
# against): no wait is on the critical path, there is nothing for a queued group to hide. Where the ring starves,
# stagger 1 is ahead by up to 25 points, but stagger 2 and 3 lie on its curve to a line's width. So it is not the
# queue that helps; something is worth a fixed time for each round of the ring, once.
#
# ## The law of a starving ring
#
# A consumer waits for stage i, issues its group, waits until at most `stagger` groups are in flight, and releases
# stage i - stagger. In a ring that starves, that group ended long ago. So a slot's round is
#
# - stagger 0: the load, and the math: `stages x period = load + math`;
# - stagger s: the load, s further stages that arrive one period apart, and the *issue* of the last of them:
#   `(stages - s) x period = load + issue`.
#
# The second depends on stages - stagger alone, as seen. Were wgmma issued in no time, the difference at equal stages
# - stagger would be the whole of `math`. What is it?

# %%
STARVED = 0.93
top = long.groupby(["tile", "k_depth"])["reached"].transform("max")
enough = long.loc[long.groupby(["tile", "k_depth"])["reached"].idxmax()].set_index(["tile", "k_depth"])["free"]
long = long.join(enough.rename("enough"), on=["tile", "k_depth"])
starved = long[(long["reached"] < STARVED * top) & (long["free"] < long["enough"])]
slots = ["tile", "k_depth", "free"]
prompt, delayed = (starved[starved["stagger"] == stagger].set_index(slots) for stagger in (0, 1))
both = prompt[["math", "pace", "period"]].join(delayed["period"].rename("late"), how="inner").astype(float)
saved = (both["period"] - both["late"]) * both.index.get_level_values("free")
in_instructions = pd.DataFrame({"math": both["math"] / both["pace"], "saved": saved / both["pace"]})
pd.concat(
    {"clocks": pd.DataFrame({"math": both["math"], "saved": saved}), "instructions": in_instructions}, axis=1
).round(1)

# %% [markdown]
# An instruction's clocks are those that it takes while all consumers share the tensor cores. Of groups of one or two
# instructions half or more is saved, of longer ones up to four instructions, and never more. The likely reason: a
# warpgroup can queue about so many wgmma and then waits to issue the next, so that with long groups the issue ends
# not much before the math does. That is inferred from the times; nothing here looks into the queue.
#
# Let `load` be a latency, a time for each KiB that the CTA draws from L2, and a delay by each other load in flight.
# Fit these three, for several depths of the queue, to all configs that starve: less than 93 % of the best of their
# tile and depth, with fewer slots than that best has.


# %%
def design(part: pd.DataFrame, queue: float) -> tuple[np.ndarray, np.ndarray]:
    """The load's unknowns as columns, and what of a round is known."""
    saved = np.where(part["stagger"] > 0, np.minimum(queue * part["pace"], part["math"]), 0.0)
    load = np.column_stack([np.ones(len(part)), part["l2_kib"], part["free"] - 1])
    return load.astype(float), (part["math"] - saved).to_numpy(float)


def fitted(part: pd.DataFrame, queue: float) -> tuple[np.ndarray, float]:
    """The load's three numbers, and the RMS relative miss of the period."""
    columns, known = design(part, queue)
    rounds = (part["period"] * part["free"]).to_numpy(float)
    load, *_ = np.linalg.lstsq(columns / rounds[:, None], 1 - known / rounds)
    return load, float(np.sqrt(np.mean(((columns @ load + known) / rounds - 1) ** 2)))


tried = {queue: fitted(starved, queue) for queue in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 100.0)}
names = ["latency", "clocks a KiB", "clocks for each other load", "RMS miss, %"]
pd.DataFrame({queue: [*load, 100 * e] for queue, (load, e) in tried.items()}, index=names).round(1)

# %%
QUEUE = 3.0
load, _ = tried[QUEUE]
columns, known = design(long, QUEUE)
floor = 100 * long["math"] / np.where(long["k_depth"] == 1, top, long["tile"].map(plateau))
long = long.assign(said=100 * long["math"] / np.maximum((columns @ load + known) / long["free"], floor))
starved = long.loc[starved.index]

figure, axis = plt.subplots(figsize=(6.4, 5), layout="constrained")
for (tile, stagger), cells in starved.groupby(["tile", "stagger"]):
    axis.scatter(cells["said"], cells["reached"], color=colours[tile], marker=marks[stagger], s=26, alpha=0.75)
axis.plot([20, 98], [20, 98], color="grey", linewidth=1)
axis.set_xlabel("said by the law, % of the peak")
axis.set_ylabel("reached, % of the peak")
axis.legend(handles=handles(), fontsize=8)
axis.set_title("configs that starve, 8192^3, burst")
plt.show()

# %%
miss = 100 * (starved["said"] / starved["reached"] - 1)
print(f"{len(starved)} configs that starve: RMS miss {np.sqrt((miss**2).mean()):.1f} %, worst {miss.abs().max():.0f} %")
print(f"all {len(long)} configs: RMS miss {100 * np.sqrt(((long['said'] / long['reached'] - 1) ** 2).mean()):.1f} %")
deep_said = long.loc[deep.index, "said"]
print(f"scatter about one curve over what it says, {scatter_about_a_curve(deep_said, deep['reached']):.1f} points")
print(f"reached: {starved['reached'].min():.0f} to {starved['reached'].max():.0f} %")
one = load @ [1, 32, 1]
print(
    f"32 KiB, one other load: {one:.0f} clocks, {1000 * one / starved['sm_mhz'].median():.0f} ns at their median clock"
)
shown = starved.assign(miss=miss)[starved["free"] <= 4]
shown.pivot_table(index="k_depth", columns=["free", "stagger"], values="miss").round(0)

# %% [markdown]
# Four numbers tell 126 configs to within 6 % (the worst to 17 %), which reach between 23 and 86 % of the peak. About
# one curve over what it says, depths 2, 4 and 8 of all tiles scatter by 2.0 points, where time ahead left 5.1. A load
# of 32 KiB, with another one in flight, takes 1,821 clocks or one microsecond by them: that is what a ring has to
# cover, and about where the curve over time turned. What the law misses has a pattern that is not understood: at
# `k_depth` 2 it is too fast with two slots and too slow with three. A delay by each load and not by its bytes is a
# description too, no explanation.
#
# It also says why a late release cannot pay in a starving ring. At equal stages, releasing one stage late pays if the
# time saved, at most `math`, exceeds the slot given away, which is one period; and no period is shorter than the
# math. Where the ring does not starve there is nothing to win, by the table above. Presumably because two or three
# consumers share the tensor cores, so that one computes while another serves its barriers. A single consumer may well
# need the stagger, but none was measured here, nor were the waits counted.
#
# ## k_depth 1: where it does pay
#
# At `k_depth` 1 every tile stops far below the peak however many loads are ahead, and some get worse with more:

# %%
shallow = long[(long["k_depth"] == 1) & (long["stagger"].isin([0, 3]))]
figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
for axis, (stagger, part) in zip(axes, shallow.groupby("stagger"), strict=True):
    for tile, line in part.groupby("tile"):
        axis.plot(line["stages"].astype(int), line["reached"], marker="o", color=colours[tile], label=tile)
    axis.set_title(f"k_depth 1, stagger {stagger}")
    axis.set_xlabel("stages")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("reached, % of the peak")
axes[1].legend(fontsize=8)
plt.show()

# %%
drop = shallow[shallow["stagger"] == 0].pivot(index="stages", columns="tile", values="reached").astype(float)
pd.DataFrame({"best": drop.max(), "at stages": drop.idxmax(), "with the most": drop.ffill().iloc[-1]}).round(1)

# %% [markdown]
# What holds `k_depth` 1 is told in [bytes in flight](../docs/studies.md#bytes-in-flight). Why more loads in flight make
# 128x256 slower by a tenth is not known. The stagger's gain is that of a shorter ring: with stagger 3 the curve moves
# some three stages to the right. A shorter ring does it without: over all stage counts only one tile, 256x192, has its
# best `k_depth` 1 config with a late release, by 1.4 %, and no depth of 1 comes near a tile's best.
#
# ## Long k and short
#
# With k = 512 a tile is done after 16 stages of `k_depth` 2 or eight of 4, then drains, and its epilogue follows, in
# which the loads of the next tile fill the ring. Here rings that do not starve on the long problem differ by stagger.
# In clocks for each output tile, more than stagger 0 takes, in the longest ring of each tile and depth:

# %%
tiles = rows.assign(tile_clocks=(rows["period"] * np.ceil(rows["k"] / rows["depth"])).astype(float))
longest = tiles["stages"] == tiles.groupby(["tile", "k_depth"])["stages"].transform("max")
cost = tiles[longest & tiles["k_depth"].isin([2, 4])].pivot(
    index=["k", "tile", "k_depth", "stages"], columns="stagger", values="tile_clocks"
)
cost.sub(cost[0], axis=0).drop(columns=0).assign(**{"a tile, stagger 0": cost[0]}).round(0)

# %% [markdown]
# With k = 512 each slot held back costs, and more with `k_depth` 4, where it is a third or fourth of the ring. On the
# long problem the first slot costs nothing of note, up to 0.4 % of a tile, except for 320x128 at `k_depth` 4, whose
# three stages starve with it. A likely reason: while the epilogue stores, the loads of the next tile fill the ring,
# and the first refills come later by what the release is late. The waits of the consumer, which could show it, were
# not counted in this study. (The longest ring leaves the epilogue fewer buffers, presumably why at `k_depth` 2 the
# short problem is slower with it than with a stage less; but that holds for every stagger.)
#
# ## The best of each tile
#
# The best config with stagger 0 and the best with a later release, whatever their depth and stages:

# %%
top_two = rows.assign(late=rows["stagger"] > 0).sort_values("speedup", ascending=False)
top_two = top_two.groupby(["k", "tile", "late"]).head(1).sort_values(["k", "tile", "late"])
top_two["config"] = [
    f"depth {r.k_depth}, {r.stages} stages, stagger {r.stagger}: {r.speedup:.3f}" for r in top_two.itertuples()
]
verdicts = against(
    top_two[top_two["late"]].set_index(["k", "tile"])[FIGURES],
    top_two[~top_two["late"]].set_index(["k", "tile"])[FIGURES],
    NOISE,
)
offers = top_two.pivot(index=["k", "tile"], columns="late", values="config")
offers.columns = ["stagger 0", "later"]
offers.join((100 * verdicts["gain"]).round(1).rename("later, %")).join(verdicts["verdict"])

# %% [markdown]
# On the long problem stagger 0 and 1 are even for three of the five tiles, within 0.3 %; 192x192 and 320x128 lose 0.5
# and 2 %, since their best ring is one of few deep stages that cannot spare a slot. On the short problem stagger 0 is
# ahead for all five, by 0.9 to 2.1 %. No tile is faster with a late release.
#
# ## At the power cap
#
# The same comparison in steady state: three tiles, two depths, three stages and the most that fit.

# %%
capped = prepared(rows_of(steady, "sweep"))
noises = {int(place.split()[0].split("x")[2]): value for place, value in steady.provenance["noise"].items()}
parts = []
for k, part in capped.groupby("k"):
    base = part[part["stagger"] == 0].set_index(KEYS)[FIGURES]
    for stagger in (1, 2):
        mine = against(part[part["stagger"] == stagger].set_index(KEYS)[FIGURES], base, noises[int(k)])
        parts.append(mine.assign(stagger=stagger))
at_cap = pd.concat(parts).set_index("stagger", append=True)
in_burst = counted.set_index([*KEYS, "stagger"])["gain"]
both = pd.DataFrame(
    {
        "burst, %": (100 * in_burst.reindex(at_cap.index)).round(1),
        "steady, %": (100 * at_cap["gain"]).round(1),
        "verdict": at_cap["verdict"],
    }
)
both.unstack("stagger").swaplevel(axis=1).sort_index(axis=1)

# %%
states = {"reached": 1, "sm_mhz": 0, "pj_per_flop": 3}
wide = capped[capped["stagger"] < 2].pivot(
    index=["k", "tile", "k_depth", "stages"], columns="stagger", values=list(states)
)
wide.astype(float).round({(name, stagger): digits for name, digits in states.items() for stagger in (0, 1)})

# %% [markdown]
# In steady state nothing is faster with a late release either. What starves loses less than in a burst: 256x128 with
# three stages of depth 2 loses 13.5 % instead of 19.4 %, as the clock of the config that waits rises from 1398 to
# 1564 MHz. But it pays in energy, 1.31 pJ a FLOP instead of 1.14. Where the ring is long enough the two are even in
# speed, and within 3 % in energy, which single pairs cannot tell apart.
#
# ## What we take from it
#
# - Start with stagger 0. In 760 configs a later release is worth something only at `k_depth` 1 (and once 0.4 % at 2),
#   where for the most part it undoes a ring that is too long; at any depth that one would use, it is even at best. No
#   tile's best config needs one.
# - Each group costs one load ahead. In a ring that just suffices that is up to 43 % of the speed; with four stages
#   and stagger 3 nothing is under way, and on the long problem 34 to 55 % of it are gone.
# - Stages say little, bytes in flight more, and the time that they last most. A ring keeps up when the slots it may
#   fill, times the math of a stage, cover a load and (with stagger 0) the math: about one microsecond of load.
# - At equal look-ahead stagger 1 beats 0 while the ring starves, since its release does not wait for the math; but it
#   takes a stage to get there, and that stage is worth more to stagger 0.
# - No wait for a barrier shows on the critical path of a ring that is long enough, to 0.3 points, with two or three
#   consumers. For one consumer this says nothing.
# - With short k a slot is worth more, and stagger 0 leads by 1 to 2 %.
