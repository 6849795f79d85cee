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
# # K depth and stages as bytes in flight
#
# A ring of shared memory can be cut into many shallow stages or a few deep ones. How many bytes must be on their way
# for the tensor cores not to wait, how deep must a stage be, and what does a shallow one cost? From three studies:
# `stagger` (five tiles, all depths and stages), `tile-shape` (25 tiles, depth 4) and `seed-table-first` (five tiles of
# 128 columns, depth 2 to 16), 8192^3 and 4096^3, measured on an NVIDIA H200. No GPU is needed to run this again. Every
# timing here is chained (launches of one kernel back to back); rows do not name their board.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hopper_gemm.lab.counters.table import with_derived
from hopper_gemm.model import hopper
from hopper_gemm.model.footprint import footprint_of
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import Study, read_study
from hopper_gemm.tune.tables.pages.report import scope_line, source_line
from hopper_gemm.tune.tables.pivot import config_of, rows_of
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"


def prepared(study: Study) -> pd.DataFrame:
    """The rows with what follows from their config: clocks are those of the SM, for one stage of one CTA."""
    rows = with_derived(rows_of(study, "sweep"))
    shares = [footprint_of(config_of(row)) for row in rows.to_dict("records")]
    rows = rows.assign(depth=16.0 * rows["k_depth"])
    padding = np.ceil(rows["k"] / rows["depth"]) * rows["depth"] / rows["k"]
    rows["reached"] = (rows["reached"] * padding).astype(float)
    rows["math"] = (2 * rows["tile_m"] * rows["tile_n"] * rows["depth"] / hopper.FLOP_PER_CLOCK_PER_SM).astype(float)
    rows["period"] = 100 * rows["math"] / rows["reached"]
    rows["free"] = (rows["stages"] - rows["stagger"]).astype(float)
    rows["l2_kib"] = rows["l2_bytes_per_clock"] * rows["math"] / 1024
    rows["span_rows"] = 1024 * rows["l2_kib"] / rows["span"]
    rows["pace"] = [2 * hopper.WGMMA_M * one.share_n * hopper.WGMMA_K / 4096 * one.readers for one in shares]
    rows["eats"] = 1024 * rows["stage_kib"] / rows["math"]
    return rows


studies = {name: read_study(results / name) for name in ("stagger", "tile-shape", "seed-table-first")}
for name, study in studies.items():
    status = rows_of(study, "sweep")["status"].value_counts().to_dict()
    print(f"{name}: {source_line(study.provenance)} {scope_line(study)} {status}")
frames = {name: prepared(study) for name, study in studies.items()}
large = {name: rows[(rows["k"] == 8192) & (rows["regime"] == "burst")] for name, rows in frames.items()}

# %% [markdown]
# `reached` is the tensor-active percent corrected for idle SMs and padded k. `eats` is how many bytes of its stages a
# tile uses up each clock at the full rate; loads ahead are `stages - 1 - stagger`.
#
# ## Bytes ahead

# %%
figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained", sharex=True, sharey=True)
for axis, (name, rows) in zip(axes, large.items(), strict=True):
    for span, mark in ((32, "v"), (64, "s"), (128, "o")):
        part = rows[rows["span"] == span]
        image = axis.scatter(
            part["ahead_kib"], part["reached"], c=part["eats"], marker=mark, s=28, cmap="plasma", vmin=34, vmax=100
        )
    axis.set_title(f"{name}, 8192^3, burst")
    axis.set_xlabel("KiB ahead: (stages - 1 - stagger) x stage")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("reached, % of the peak")
marks = [
    plt.Line2D([], [], color="grey", marker=m, linestyle="", label=f"rows of {s} B")
    for s, m in zip((32, 64, 128), "vso", strict=True)
]
axes[2].legend(handles=marks, fontsize=8, loc="lower right")
figure.colorbar(image, ax=axes, label="bytes that the tile eats a clock")
plt.show()

# %% [markdown]
# Most of it is one rising curve that flattens between 60 and 100 KiB. Below it lie three kinds: depth 1, whose rows
# are 32 bytes (triangles); tiles that eat fast (bright); and, not seen here, tiles whose wgmma reads more than shared
# memory gives. How many KiB are enough?
#
# ## Little's law
#
# Bytes in flight must be those that the tile eats while a load is on its way. How long that is has been fitted in
# `stagger.ipynb` to the configs of five tiles that starve, in clocks: 926, and 20.8 for each KiB that the CTA draws
# from L2, and 228 for each other load in flight.

# %%
LATENCY, A_KIB, EACH_OTHER, QUEUE = 926, 20.8, 228, 3
PLATEAU = 98.2


def load_clocks(rows: pd.DataFrame) -> pd.Series:
    """How long a load is under way, by the fit of stagger.ipynb."""
    return LATENCY + A_KIB * rows["l2_kib"] + EACH_OTHER * (rows["free"] - 1)


found = []
prompt = large["stagger"][(large["stagger"]["stagger"] == 0) & large["stagger"]["k_depth"].isin([2, 4])]
for (tile, depth), part in prompt.groupby(["tile", "k_depth"]):
    enough = part["reached"] >= 0.985 * PLATEAU
    least = part[enough].sort_values("ahead_kib").iloc[0]
    below = part[part["ahead_kib"] < least["ahead_kib"]].sort_values("ahead_kib").iloc[-1]
    found.append(
        {
            "tile": tile,
            "k_depth": depth,
            "eats": least["eats"],
            "not enough, KiB": below["ahead_kib"],
            "reached, %": below["reached"],
            "enough, KiB": least["ahead_kib"],
            "reached %": least["reached"],
            "load, clocks": load_clocks(pd.DataFrame([least])).iloc[0],
        }
    )
need = pd.DataFrame(found).set_index(["k_depth", "tile"]).sort_index()
need["by Little's law, KiB"] = need["load, clocks"] * need["eats"] / 1024
need.astype(float).round(1)

# %% [markdown]
# (Enough is 98.5 % of the plateau.) At depth 2, where the steps are fine, Little's law asks for 3 to 15 % more than
# is enough for four tiles, and is within the step for 256x192; at depth 4 the steps of 48 and 56 KiB are too coarse
# to say more than that it is not far off. That it asks for too much is no surprise: it counts every slot as a load in
# flight, and in a ring that keeps up some of them are full.
#
# ## The same law on tiles that it has not seen
#
# With stagger 0 a slot's round is the load and the math, later the load and the issue of a group, of which about
# three instructions can wait in a queue (`stagger.ipynb`). Add the other ceilings: the math at the plateau of 98.2 %;
# what shared memory gives wgmma, 128 bytes a clock; 49 bytes a clock from L2 (`seed_table.ipynb`); and 0.62 rows a
# clock, which is shown further below. The slowest of them decides.

# %%
CEILINGS = ("ring", "math", "shared memory", "L2", "rows")


def predicted(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with what the law says they reach, what limits them, and the miss in percent."""
    saved = np.where(rows["stagger"] > 0, np.minimum(QUEUE * rows["pace"], rows["math"]), 0.0)
    periods = pd.DataFrame(
        {
            "ring": (load_clocks(rows) + rows["math"] - saved) / rows["free"],
            "math": 100 * rows["math"] / PLATEAU,
            "shared memory": rows["math"] * rows["smem_bytes_per_flop"] * hopper.FLOP_PER_CLOCK_PER_SM / 128,
            "L2": 1024 * rows["l2_kib"] / 49,
            "rows": rows["span_rows"] / 0.62,
        }
    ).astype(float)
    said = 100 * rows["math"] / periods.max(axis=1)
    return rows.assign(said=said, limit=periods.idxmax(axis=1), miss=100 * (said / rows["reached"] - 1))


tested = {
    "tile-shape, 8192^3": large["tile-shape"],
    "seed-table, 8192^3": large["seed-table-first"],
    "seed-table, 4096^3": frames["seed-table-first"].query("k == 4096 and regime == 'burst'"),
}
tested = {name: predicted(rows) for name, rows in tested.items()}
figure, axes = plt.subplots(1, 3, figsize=(14, 4.6), layout="constrained", sharex=True, sharey=True)
colours = dict(zip(CEILINGS, plt.cm.tab10.colors, strict=False))
for axis, (name, rows) in zip(axes, tested.items(), strict=True):
    for limit, part in rows.groupby("limit"):
        axis.scatter(part["said"], part["reached"], color=colours[limit], s=28, alpha=0.8)
    axis.plot([25, 98], [25, 98], color="grey", linewidth=1)
    axis.set_title(name)
    axis.set_xlabel("said, % of the peak")
    axis.grid(alpha=0.3)
for _, row in tested["tile-shape, 8192^3"].query("abs(miss) > 9.5 or reached < 75").iterrows():
    above = row["reached"] > row["said"]
    at = {"xytext": (-6 if above else 6, -3), "textcoords": "offset points", "ha": "right" if above else "left"}
    axes[0].annotate(row["tile"], (row["said"], row["reached"]), fontsize=8, **at)
axes[0].set_ylabel("reached, % of the peak")
axes[2].legend(handles=[plt.Line2D([], [], color=c, marker="o", linestyle="", label=n) for n, c in colours.items()])
plt.show()

# %%
pd.DataFrame(
    {
        name: {
            "configs": len(rows),
            "RMS miss, %": np.sqrt((rows["miss"] ** 2).mean()),
            "worst, %": rows["miss"].abs().max(),
            "of": "{} depth {}".format(*rows.loc[rows["miss"].abs().idxmax(), ["tile", "k_depth"]]),
            "without 64 rows, RMS": np.sqrt((rows[rows["tile_m"] > 64]["miss"] ** 2).mean()),
        }
        for name, rows in tested.items()
    }
).T.infer_objects().round(1)

# %% [markdown]
# For the 25 tiles of `tile-shape`, 20 of which the fit has not seen, the law is right to 4.3 % RMS and 11.6 % at
# worst. It says why the slow ones among those of 64 and 96 columns are slow: their loads do not last, except for
# 320x64, whose split along n leaves wgmma of 32 columns, which read more than shared memory gives. It is too slow for
# rings that nearly keep up. For `seed-table-first` it misses 9.2 % on the large problem, but 5.4 % without the tile of
# 64 rows:

# %%
tested_64 = pd.concat([rows[rows["tile_m"] == 64] for name, rows in tested.items() if "seed" in name])
tested_64.pivot(index="k", columns="k_depth", values="miss").round(0)

# %% [markdown]
# At depths 2, 4 and 6 that tile reaches far less of the peak than said on the large problem, and nearly what is said
# on the small one. What limits it there is still not known. On the small problem the plateau is 94 % and not 98,
# presumably since filling, draining and the epilogue weigh twice with half the k.
#
# ## Who waits: the kernel's own count
#
# `tile-shape` was run once more with a meter in the kernel: the share of cycles in which the first consumer waits for
# a full stage, and the producer for an empty one (`counters.csv`). If the limit said above is right, the consumer
# waits where the ring or L2 limits and not where shared memory does.

# %%
waits = rows_of(studies["tile-shape"], "counters").dropna(subset="tile_m").set_index(["tile_m", "tile_n", "stages"])
shares = ["consumer_wait_pct", "producer_wait_pct"]
shapes = tested["tile-shape, 8192^3"].drop(columns=shares)
shapes = shapes.join(waits[shares], on=["tile_m", "tile_n", "stages"])
figure, axis = plt.subplots(figsize=(6.6, 4.6), layout="constrained")
for limit, part in shapes.groupby("limit"):
    axis.scatter(100 - part["reached"], part["consumer_wait_pct"], color=colours[limit], label=limit)
for _, row in shapes[(shapes["reached"] < 93)].iterrows():
    at = (100 - row["reached"], row["consumer_wait_pct"])
    axis.annotate(row["tile"], at, xytext=(5, -3), textcoords="offset points", fontsize=8)
axis.set_xlim(0, 41)
axis.set_xlabel("tensor cores idle, %")
axis.set_ylabel("consumer waits for a full stage, %")
axis.legend(title="limit, by the law")
axis.grid(alpha=0.3)
plt.show()

# %%
columns = ["tile", "stages", "limit", "said", "reached", "consumer_wait_pct", "producer_wait_pct"]
shapes[(shapes["reached"] < 96)][columns].sort_values("reached").round(1).set_index("tile")

# %% [markdown]
# The law is borne out where it can be told apart: the consumer of 320x64 hardly waits, though its tensor cores idle a
# third of the time, while 384x64 and 128x64 starve. And a wait is not an idle tensor core. In 192x64 and 384x96 a
# consumer waits a quarter of the time, and the tensor cores idle only 8 to 9 %: its own group, one of which the
# stagger of 1 lets run on, and those of the other consumers go on meanwhile. The producer, on the other hand, waits
# 68 to 94 % of the time for an empty slot: issuing loads is not the limit.
#
# ## Equal bytes, different depth
#
# With stagger 0, first at equal bytes ahead:

# %%
five = large["stagger"][large["stagger"]["stagger"] == 0].copy()
five["ring_kib"] = five["stages"] * five["stage_kib"]
same = five[five["ahead_kib"].isin([48, 56, 72, 84, 96, 112])]
same.pivot_table(index=["tile", "ahead_kib"], columns="k_depth", values="reached").astype(float).round(1)

# %% [markdown]
# Depths 2 and 4 reach the same with the same bytes ahead, to 0.6 points, be it one load or two, two or four. With a
# single load ahead depth 6 falls behind depth 2 by up to 15 points and depth 8 by up to 3: a load of so many bytes
# takes longer itself. Depth 1 is far below wherever the others get along.
#
# Bytes ahead are not what one pays for, though; the ring is, stages x stage bytes. Is it better cut fine or coarse?

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
for axis, tile in zip(axes, ("256x128", "128x256", "256x192"), strict=True):
    for (depth, span), line in five[five["tile"] == tile].groupby(["k_depth", "span"]):
        line = line.sort_values("ring_kib").astype({"ring_kib": float})
        axis.plot(
            line["ring_kib"], line["reached"], marker="o", markersize=5, label=f"depth {depth}: rows of {span:.0f} B"
        )
    axis.set_title(tile)
    axis.set_xlabel("KiB of the ring: stages x stage")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("reached, % of the peak")
axes[2].legend(fontsize=8)
plt.show()

# %%
rings = five[five["ring_kib"].isin([96, 112, 144, 168, 192])]
rings.pivot_table(index=["tile", "ring_kib"], columns="k_depth", values="reached").astype(float).round(1)

# %% [markdown]
# Fine, if shared memory is scarce. In 96 KiB, 256x128 reaches 95 % with four stages of depth 2, and 76 % with two of
# depth 4: the slot that is being multiplied is a fourth of the ring or a half. From 144 KiB on (168 for 256x192 and
# 320x128) the two are even, and two stages of depth 8 in 192 KiB are 0.6 to 3 points behind. A single stage of 112
# KiB reaches 53 to 56 %. Depth 1 rises first and stops far below.
#
# ## Depth 1: barriers, bytes or rows?
#
# At depth 1 no number of stages brings a tile near its peak. One round trip over the barriers for every 16 of k is
# the obvious suspect. Then a stage should take the same time in every tile, or an amount that grows with its math.
# Others are the bytes, and the rows: TMA fills shared memory row by row of the swizzle's span, and a row of depth 1
# is 32 bytes. All three for rings with at least eight slots, medians:

# %%
shallow = large["stagger"].query("k_depth == 1 and free >= 8")
rates = shallow.assign(
    bytes_a_clock=1024 * shallow["l2_kib"] / shallow["period"],
    rows_a_clock=shallow["span_rows"] / shallow["period"],
)
table = rates.groupby("tile")[["math", "period", "bytes_a_clock", "rows_a_clock"]].median().astype(float)
spread = (table.std(ddof=0) / table.mean()).rename("spread")
pd.concat([table, spread.to_frame().T]).round(3)

# %%
widths = pd.concat(large.values())
widths = widths.assign(rate=widths["span_rows"] / widths["period"], drawn=1024 * widths["l2_kib"] / widths["period"])
most = widths.sort_values("rate", ascending=False).groupby("span").head(3).sort_values(["span", "rate"])
most[["span", "tile", "k_depth", "stages", "stagger", "rate", "drawn", "reached"]].round(2).reset_index(drop=True)

# %% [markdown]
# It is not a time for each stage: that differs by a third between tiles, and is longest for one of the two with the
# least math. Rows a clock differ least, 0.58 to 0.64. At depth 1 alone rows cannot be told from bytes, each row being
# 32. But rows of 64 bytes come to the same rate, 0.61 to 0.68, with twice the bytes; and rows of 128 stop at 0.38 to
#     0.40, which is the 49 to 51 bytes a clock that L2 gives. So loads have two ceilings, one in bytes and one in
#     rows. Where is the second?

# %%
narrow = frames["seed-table-first"].query("tile == '128x128' and k == 8192 and k_depth in (2, 6)")
narrow = narrow.assign(rows_a_clock=narrow["span_rows"] / narrow["period"])
narrow = narrow.assign(rows_a_ns=narrow["rows_a_clock"] * narrow["sm_mhz"] / 1000)
figures = ["reached", "sm_mhz", "rows_a_clock", "rows_a_ns"]
narrow.set_index(["k_depth", "regime"])[figures].sort_index().astype(float).round(3)

# %% [markdown]
# When the SM clock falls at the power cap, 128x128 gets more rows in a clock: 0.73 where it got 0.62 at depth 2. The
# ceiling does not slow down with the SMs, so it is not in them; as with the bytes, it seems to be L2's side.
#
# What barriers cost at depth 1 remains open: the rows limit first. At depth 2, with a round trip for every 32 of k,
# they cost nothing: the tensor cores are as busy as with depth 4, 98 %.
#
# ## Where the tensor cores are equally busy, what is left of depth
#
# The configs with stagger 0 that reach 94.5 % or more: for each tile and depth the fastest, with its clock; and from
# `seed-table-first` the energy at the power cap.

# %%
busy = large["stagger"][(large["stagger"]["reached"] >= 94.5) & (large["stagger"]["stagger"] == 0)]
fastest = busy.sort_values("speedup", ascending=False).groupby(["tile", "k_depth"]).head(1)
shown = fastest.set_index(["tile", "k_depth"])[["span", "stages", "reached", "sm_mhz", "speedup"]].sort_index()
shown.astype(float).round({"span": 0, "stages": 0, "reached": 1, "sm_mhz": 0, "speedup": 3})

# %%
energy = frames["seed-table-first"].query("regime == 'steady' and k == 8192 and reached > 89 and tile_m >= 128")
energy.pivot(index="tile", columns="k_depth", values=["pj_per_flop", "reached"]).astype(float).round(3)

# %% [markdown]
# Depth 2 keeps the tensor cores as busy as depth 4, to 0.4 points, and is 2 to 3 % slower all the same, with a clock
# 1.7 to 2.7 % lower: at the cap a FLOP costs 3.5 to 7 % more energy where both keep up. Barriers or narrow rows?
# Depth 6 has a third of the barriers and the same rows of 64 bytes. In 128x128 it takes as much energy as depth 2; in
# 128x256 its clock is that of depth 2 and not that of its neighbours 4 and 8. So the rows seem to be what costs.
# (256x192 at depth 6 is less clear: it keeps the clock of depth 4, with 1.9 points less to do.) Depth 8 clocks
# highest, and gives it back by waiting: within 0.4 % of depth 4 where two stages fit.
#
# ## A rule of thumb
#
# A ring with stagger 0 is long enough if its loads ahead last as long as a load takes: ahead x math of a stage >=
# 1,800 clocks (a little less than the law's loads, which ask for too much), or in bytes, KiB ahead >= 1.76 times the
# bytes that the tile eats a clock. Stagger 1 or more needs less ahead, by the three instructions in the queue, and a
# stage more for it. How often is that right for the five tiles at depth 2 and more, where a config has enough if it
# reaches 96 %?

# %%
RULE = 1800
rule = large["stagger"].query("k_depth >= 2").copy()
saved = np.where(rule["stagger"] > 0, np.minimum(QUEUE * rule["pace"], rule["math"]), 0.0)
rule["says"] = rule["ahead"] * rule["math"] + saved >= RULE
rule["is"] = rule["reached"] >= 96
print(f"right for {(rule['says'] == rule['is']).sum()} of {len(rule)} configs")
print(pd.crosstab(rule["says"].rename("rule says enough"), rule["is"].rename("is enough")))
wrong = rule[rule["says"] != rule["is"]]
wrong[["tile", "k_depth", "stages", "stagger", "ahead_kib", "reached", "says"]].round(1).reset_index(drop=True)

# %%
eats = (
    large["tile-shape"]
    .drop_duplicates("tile")
    .set_index("tile")["eats"]
    .loc[need.index.get_level_values("tile").unique()]
)
pd.DataFrame({"eats, bytes a clock": eats, "enough, KiB": RULE * eats / 1024}).round(0).T

# %% [markdown]
# ## What we take from it
#
# - Bytes ahead must cover about a microsecond of what the tile eats: 66 KiB for 256x192, 84 KiB for 128x256 and
#   256x128. As a yes or no the rule is right for 94 % of the configs of five tiles, and errs mostly on the safe side.
# - With the stage that is being multiplied that is a ring of 112 to 144 KiB, at depth 4 up to 168. More buys nothing:
#   from there on all five tiles stay at 97 to 98 %, and the room is free for a roomier epilogue.
# - At equal bytes ahead depths 2 and 4 keep the tensor cores equally busy, starving or not. Stages as such count for
#   nothing, and barriers at these depths cost nothing.
# - Depth 4 is the depth to use: rows of 128 bytes, and three or four stages fit. Depth 2 makes better use of a small
#   ring, but costs 2 to 3 % of clock. Depth 6 has the narrow rows of 2 and the coarse stages of 8. Depth 8 is even
#   with 4 where two stages of it fit.
# - Depth 1 is limited by rows, 0.6 to 0.7 a clock and SM, not by its barriers, as far as can be seen. The same
#   ceiling explains 128x128 at depths 2 and 6. That it lies on L2's side is inferred from its not slowing down with
#   the SMs.
# - A law of four fitted numbers and four ceilings tells 25 tiles to 4 %; it fails for the tile of 64 rows on the
#   large problem, by up to 35 %, and is up to 12 % too slow where a ring nearly keeps up.
