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
# # In which order to walk over the tiles
#
# The tiles under way at one time share their panels of A and B in L2. Which order shares best, does theory find it,
# and what is it worth? Everything here is computed from `results/h200/raster/`: one kernel (256x128 tiles, clusters
# 1x2, 64 deep) on three cubes, walked in 20 orders, each timed in bursts and each with one profiled launch. No GPU is
# needed to run it again. Every timing here is chained (launches of one kernel back to back); rows do not name their
# board.

# %%
from math import sqrt

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hopper_gemm.lab.counters.table import panels, with_counters
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.roofline import best_swizzle
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import read_study, records
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import config_of, problem_of, rows_of
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"
study = read_study(results / "raster")
rows = with_counters(rows_of(study, "sweep"), study.stage("counters")).sort_values(
    ["m", "raster", "swizzle", "serpentine"]
)
print(source_line(study.provenance))
print("noise floors:", {place: f"{noise:.2%}" for place, noise in study.provenance["noise"].items()})

# %%
MARKERS = {
    ("m", False): ("C0", "none"),
    ("m", True): ("C0", "C0"),
    ("n", False): ("C3", "none"),
    ("n", True): ("C3",) * 2,
}
SIZES = (4096, 8192, 16384)


def label(raster: str, serpentine: bool) -> str:
    """A name for the legend."""
    return f"raster {raster}, {'serpentine' if serpentine else 'straight'}"


def walks(m: int) -> list[tuple[tuple[str, bool], pd.DataFrame]]:
    """The rows of a cube by raster and serpentine."""
    return [
        ((str(raster), bool(turn)), part)
        for (raster, turn), part in rows[rows.m == m].groupby(["raster", "serpentine"])
    ]


figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
for axis, m in zip(axes, SIZES, strict=True):
    for shift, (walk, part) in zip((-0.09, -0.03, 0.03, 0.09), walks(m), strict=True):
        edge, face = MARKERS[walk]
        bars = [part.speedup - part.speedup_low, part.speedup_high - part.speedup]
        axis.errorbar(
            np.log2(part.swizzle.astype(float)) + shift,
            part.speedup,
            bars,
            color=edge,
            linewidth=1,
            fmt="o",
            mfc=face,
            label=label(*walk),
        )
    axis.set_xticks(range(5), [1, 2, 4, 8, 16])
    axis.set_title(f"{m}^3, burst")
    axis.set_xlabel("swizzle: cluster tiles abreast")
axes[0].set_ylabel("speedup over cuBLAS, with its interval")
axes[0].legend(fontsize=8)
plt.show()

# %%
by_size = pd.DataFrame(
    {
        m: {
            "best": part.loc[part.speedup.idxmax(), ["raster", "swizzle", "serpentine"]].tolist(),
            "best speedup": round(part.speedup.max(), 3),
            "worst speedup": round(part.speedup.min(), 3),
            "worst of swizzle 8": round(part[part.swizzle == 8].speedup.min(), 3),
        }
        for m, part in rows.groupby("m")
    }
).T
by_size

# %% [markdown]
# The order decides 1.7 % at 4096^3 and 4.5 % at 8192^3, far beyond the noise floors of 0.1 %. At 16384^3 it is some
# 10 %, but the intervals there are as wide as the differences between neighbours; the last section says why. Swizzle
# 8 is best along either axis on the first two.
#
# ## The theory, and which tile it means
#
# The clusters that run at once cover a patch of the output, `swizzle` cluster tiles wide across the walk. It needs
# the panel of A beside each of its rows and the panel of B above each of its columns, so it should be square. The
# rule is often written for single CTAs, sqrt(SMs * tile_n / tile_m) tiles wide. That is for raster n, where the
# swizzle counts tiles of 256 rows; for raster m it counts tiles of 128 columns, and the fraction is turned over. And
# what is handed out here is not a CTA's tile but that of a cluster 1x2, 256 x 256.

# %%
pairs = {raster: GemmConfig(tile_m=256, tile_n=128, cluster_n=2, raster=raster) for raster in ("m", "n")}
alone = {raster: GemmConfig(tile_m=256, tile_n=128, raster=raster) for raster in ("m", "n")}
pd.DataFrame(
    {
        "counting tiles of single CTAs": {raster: best_swizzle(config) for raster, config in alone.items()},
        "counting cluster tiles": {raster: best_swizzle(config) for raster, config in pairs.items()},
    }
).rename_axis("raster").round(1)

# %% [markdown]
# So theory says 8 along both axes, where a formula without the cluster would ask for 16 along m. The measurements
# side with the cluster tile.
#
# ## Counting panels
#
# One can go further than a square. 66 clusters of two run at once. Take the order of the cluster tiles, cut it into
# waves of 66, and count the distinct panels of each wave: if all clusters of a wave keep step, a panel is read from
# DRAM once for a wave however many share it; and if the next wave finds nothing left, it pays again. Both assumptions
# are crude, but nothing is fitted.


# %%
def counted(frame: pd.DataFrame) -> list[tuple[float, float]]:
    """For each row the bytes of the distinct panels of all waves, and how many waves there are."""
    return [panels(config_of(row), problem_of(row)) for row in frame.to_dict("records")]


rows[["predicted", "waves"]] = counted(rows)
rows["read_again"] = rows.dram_read_bytes.astype(float) / rows.predicted

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
for axis, m in zip(axes, SIZES, strict=True):
    for walk, part in walks(m):
        edge, face = MARKERS[walk]
        axis.plot(part.swizzle, part.dram_read_bytes / 1e9, "o", color=edge, mfc=face, label=label(*walk))
        if walk[0] == "m":
            style = "-" if walk[1] else "--"
            axis.plot(
                part.swizzle,
                part.predicted / 1e9,
                style,
                color="grey",
                zorder=0,
                label=f"panels of all waves, {label(*walk)[10:]}",
            )
    axis.set_xscale("log", base=2)
    axis.set_xticks([1, 2, 4, 8, 16], [1, 2, 4, 8, 16])
    axis.set_ylim(0, None)
    axis.set_title(f"{m}^3: operands once are {4 * m * m / 1e9:.2f} GB")
    axis.set_xlabel("swizzle")
axes[0].set_ylabel("GB read from DRAM")
axes[0].legend(fontsize=8, loc="lower left")
plt.show()

# %%
rows.groupby(["m", "swizzle"])["read_again"].agg(["min", "median", "max"]).unstack("m").swaplevel(axis=1).sort_index(
    axis=1
).round(3)

# %% [markdown]
# At 4096^3 and 8192^3 the count is right to 1 % for every order with a swizzle of 4 or more, and to 3 % for all: what
# serpentine saves as well, which comes from the waves that lie across the border of two groups (a straight walk then
# needs the rows at both ends, a serpentine one the same rows twice). So two things hold that were only assumed: the
# clusters keep step so well that L2 serves a shared panel from one read, and from one wave to the next L2 keeps
# nothing of use. The second is a surprise at 4096^3, whose operands together, 0.07 GB, are little more than the L2's
# 0.06.
#
# ## Where the count fails
#
# At 16384^3 and swizzle 4 to 16 twice the panels are read, with swizzle 1, where a panel of A (or B, for raster n)
# belongs to one cluster alone, hardly more than predicted if the walk is straight. So it is sharing that fails: as if
# the clusters of a wave had come apart. Is it the size, or that each cluster there works through 62 tiles on its own?
# The tile-shape study can tell: it has one size, 8192^3, and 10 to 62 waves, all at swizzle 8.

# %%
shapes = read_study(results / "tile-shape")
tiles = with_counters(rows_of(shapes, "sweep").query("regime == 'burst'"), shapes.stage("counters"))
tiles[["predicted", "waves"]] = counted(tiles)
tiles["read_again"] = tiles.dram_read_bytes.astype(float) / tiles.predicted
eights = rows[rows.swizzle == 8]

figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
axis.axhline(1, color="grey", linewidth=1)
axis.scatter(tiles.waves, tiles.read_again, color="C7", label="8192^3, 25 tiles (tile-shape study)")
for colour, (m, part) in zip(("C0", "C2", "C3"), eights.groupby("m"), strict=True):
    axis.scatter(part.waves, part.read_again, color=colour, marker="s", label=f"{m}^3, 256x128, swizzle 8")
for row in tiles[tiles.read_again > 1.05].itertuples():
    aside = (-45, -3) if row.waves > 60 else (6, 3)
    axis.annotate(
        f"{row.tile_m}x{row.tile_n}", (row.waves, row.read_again), xytext=aside, textcoords="offset points", fontsize=8
    )
axis.set_xlabel("waves: cluster tiles that a cluster computes one after the other")
axis.set_ylabel("DRAM bytes read / panels of all waves")
axis.legend(fontsize=8, loc="upper left")
plt.show()

# %%
cublas = rows_of(study, "counters").query("tile_m.isna() and m == 16384").iloc[0]
area = 66 * (192 * 2) * 192
least = 2 * sqrt(area) * 2 * 16384 * 16384**2 / area
print(f"cuBLAS 192x192, 2x1 at 16384^3: {16384**2 / area:.0f} waves, {least / 1e9:.1f} GB if each wave were a square")
print(f"read: {cublas.dram_read_bytes / 1e9:.1f} GB, {cublas.dram_read_bytes / least:.2f} times as much")

# %% [markdown]
# It is not the size. At 8192^3 the count holds up to 31 waves (the worst there is 1.09), and fails at 42 (1.34 and
# 1.47) and 62 (2.62). cuBLAS, with a tile of its own and 55 waves of it, also reads twice the least at 16384^3. The
# likely reading, and no more than that: nothing holds the clusters of a persistent launch together; each walks its
# list as fast as it can, and after some dozens of tiles they are so far apart that L2 has dropped a panel before the
# last of those who share it comes by. The three tiles above 1.1 are also the ones that ask most of L2, so that they
# wait for loads; that could drive clusters apart. But 256x128 at 16384^3 does not wait, and 320x96, 384x64 and
# 384x96, which wait as long, read no panel twice. A launch that synchronises its clusters from time to time would
# decide it; this study has none (`locality` tried it).
#
# ## The hit rate
#
# The L2 hit rate goes the way of DRAM bytes, but it is no measure of them: what misses is about twice what DRAM
# delivers.

# %%
missed = 32 * rows.l2_read_sectors * (1 - rows.l2_read_hit_pct / 100)
rows["missed_per_dram"] = (missed / rows.dram_read_bytes).astype(float)
hits = rows.pivot_table(index="swizzle", columns=["m", "raster"], values="l2_read_hit_pct").astype(float).round(1)
hits

# %%
rows.groupby("m")["missed_per_dram"].agg(["min", "median", "max"]).round(2)

# %% [markdown]
# We take it that a sector may miss twice on its way, once in either half of the L2; the counters do not say. Compare
# DRAM bytes, not hit rates.
#
# ## Does time follow DRAM bytes?
#
# For 16384^3 the times are those of the profiled launches: one launch each, but they scatter far less than the
# bursts.

# %%
rows["us"] = np.where(rows.m == 16384, rows.duration_us.astype(float), rows.time_us)
rows["gb"] = rows.dram_read_bytes.astype(float) / 1e9
figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
slopes = {}
for axis, m in zip(axes, SIZES, strict=True):
    for walk, part in walks(m):
        edge, face = MARKERS[walk]
        axis.plot(part.gb, part.us, "o", color=edge, mfc=face, label=label(*walk))
    part = rows[rows.m == m]
    slope, start = np.polyfit(part.gb, part.us, 1)
    axis.plot(part.gb, start + slope * part.gb, color="grey", linewidth=1, zorder=0)
    axis.set_title(f"{m}^3, {'profiled launches' if m == 16384 else 'burst'}")
    axis.set_xlabel("GB read from DRAM")
    slopes[m] = {
        "us per GB": slope,
        "correlation": np.corrcoef(part.gb, part.us)[0, 1],
        "us per GB if DRAM alone set the time": 1e15 / hopper.HBM_BYTES_PER_SECOND,
        "slope x 700 W, pJ per byte": 0.7 * slope,
        "DRAM TB/s, most": (part.gb / part.us).max() * 1000,
    }
axes[0].set_ylabel("us")
axes[0].legend(fontsize=8)
plt.show()
pd.DataFrame(slopes).T.rename_axis("cube").round(2)

# %%
clocks = rows.assign(
    mhz=np.where(rows.m == 16384, 1000 * rows.sm_ghz.astype(float), rows.sm_mhz),
    active=np.where(rows.m == 16384, rows.tensor_active_hw.astype(float), rows.tensor_active),
)
clocks.groupby("m").agg(
    mhz_least=("mhz", "min"),
    mhz_most=("mhz", "max"),
    active_least=("active", "min"),
    active_most=("active", "max"),
    wait_least=("consumer_wait_pct", "min"),
    wait_most=("consumer_wait_pct", "max"),
).astype(float).round(1)

# %% [markdown]
# It does, on a straight line, at 46 to 53 us for a GB on all three cubes: a fifth of what a GB would cost if DRAM set
# the pace, and DRAM is nowhere near its 4.3 TB/s, but in the worst orders of 16384^3. The tensor cores do not wait:
# at 8192^3 they stay 94.6 to 94.9 % active while the clock goes from 1499 to 1564 MHz. At 16384^3 the worst orders do
# wait a little (97.5 against 99.1 %), but there too it is mostly clock. So DRAM bytes cost time through power. If the
# cap of 700 W held during these launches (power cannot be read in a burst), a byte costs 32 to 37 pJ. That is the
# effect on time expressed as energy; the energy itself may be larger, since a slower clock also saves on everything
# else.
#
# ## Along m or along n
#
# By symmetry (a cluster tile is square) the axis should not matter, and DRAM bytes agree. Yet raster n is slower by
# up to 0.6 %, which is what scatters about the lines above:

# %%
rows["l2_gb"] = 32e-9 * rows.l2_read_sectors.astype(float)
small = rows[rows.m < 16384]
pair = small.pivot_table(index=["m", "swizzle"], columns="raster", values=["speedup", "gb", "l2_gb"])
pd.DataFrame({f"{name}, n / m": pair[name, "n"] / pair[name, "m"] for name in ("speedup", "gb", "l2_gb")}).round(4)

# %%
fits = {}
for m, part in rows.groupby("m"):
    terms = np.column_stack([np.ones(len(part)), part.gb, part.l2_gb])
    weights, *_ = np.linalg.lstsq(terms, part.us, rcond=None)
    line = np.polyval(np.polyfit(part.gb, part.us, 1), part.gb)
    fits[m] = {
        "us per GB from DRAM": weights[1],
        "us per GB read in L2": weights[2],
        "DRAM x 700 W, pJ per byte": 0.7 * weights[1],
        "L2 x 700 W, pJ per byte": 0.7 * weights[2],
        "rms residual, %": 100 * np.sqrt(np.mean((terms @ weights / part.us - 1) ** 2)),
        "rms residual, % (DRAM alone)": 100 * np.sqrt(np.mean((line / part.us - 1) ** 2)),
    }
pd.DataFrame(fits).T.rename_axis("cube").round(2)

# %% [markdown]
# What differs is the sectors read in the L2: 5 to 11 % more along n, except with swizzle 16, where the times hardly
# differ either. With their bytes as a second term the residual falls from 0.24-0.40 % to 0.08-0.15 %, about the
# noise, on each cube, and the three agree: 38 to 48 us for a GB from DRAM, 11 to 14 us for a GB read in L2. Both
# orders ask for the same bytes, so the additional sectors were read more than once within the L2; why more of them
# along n, we do not know.
#
# ## Why the rows of 16384^3 scatter
#
# A burst is 20 ms of rest, a warm-up of 2 ms and 8 ms timed. One launch of this size takes 11 ms, so warm-up and
# timing are one launch each, half of the time is spent at full power, and each figure is that of a single launch. The
# timings of the control, cuBLAS against itself, in the order in which they were taken:


# %%
def in_sequence(samples: pd.DataFrame) -> np.ndarray:
    """The times of both sides in the order in which they were taken: ours first in every other pair."""
    ours, theirs = samples.ours_us.to_numpy(), samples.baseline_us.to_numpy()
    even = np.arange(len(samples)) % 2 == 0
    return np.column_stack([np.where(even, ours, theirs), np.where(even, theirs, ours)]).ravel()


def autocorrelation(samples: pd.DataFrame) -> list[float]:
    """Autocorrelation of the times, each side divided by its median, at lags of 1 to 6 launches."""
    sides = samples[["ours_us", "baseline_us"]]
    times = pd.Series(in_sequence(sides / sides.median()))
    return [times.autocorr(lag) for lag in range(1, 7)]


(_, names), *lines = records(study.path / "samples.csv")
samples = pd.DataFrame([values for _, values in lines], columns=names).rename(columns={"cublas_us": "baseline_us"})
samples = samples.astype({"m": int, "ours_us": float, "baseline_us": float})
figure, axes = plt.subplots(1, 2, figsize=(13, 3.8), layout="constrained")
for m, colour in zip((8192, 16384), ("C0", "C3"), strict=True):
    times = in_sequence(samples[(samples.m == m) & (samples.stage == "control")])
    axes[0].plot(times / np.median(times), "o-", color=colour, markersize=4, linewidth=1, label=f"{m}^3")
axes[0].set_xlabel("timing, in order")
axes[0].set_ylabel("time / median")
axes[0].set_title("cuBLAS against itself")
axes[0].legend()
lags = {
    m: pd.DataFrame([autocorrelation(p) for _, p in part.groupby("config")]).median()
    for m, part in samples.groupby("m")
}
axes[1].bar(np.arange(1, 7), lags[16384], color="C3")
axes[1].axhline(0, color="grey", linewidth=1)
axes[1].set_xlabel("lag, timings")
axes[1].set_title("autocorrelation at 16384^3, median of the 21 series")
plt.show()

# %%
sixteen = rows[rows.m == 16384]
for m in (16384, 8192):
    mhz = rows[rows.m == m].baseline_sm_mhz
    print(f"clock while cuBLAS ran: {mhz.min():.0f} to {mhz.max():.0f} MHz at {m}^3")
settled = sixteen.groupby("swizzle").agg(
    speedup_least=("speedup", "min"),
    speedup_most=("speedup", "max"),
    ms_least=("duration_us", lambda us: us.min() / 1000),
    ms_most=("duration_us", lambda us: us.max() / 1000),
)
settled.astype(float).round(3)

# %% [markdown]
# The launches of the control come in two kinds, near 11.0 and near 11.6 ms, and about every third is a fast one; in
# the median of all series a timing also resembles the third before it. Three timings, each with its rest and its
# warm-up, are some 0.13 s: much like the slow loop of the power controller, a tenth of a second, for which a burst
# should be too short. With half of the time under load it is not short enough. This is our reading of the pattern;
# power was not recorded. A ratio of two such launches is off by 5 % either way, whichever falls on which, and the
# interval of eleven is 6 % wide at the median. Nothing in the bursts separates swizzle 8 from 16 here. The profiled
# launches do: 11.3 to 11.4 ms with 8, 11.5 with 16, and they rank the swizzles as DRAM bytes do.
#
# ## What we take from it

# %%
widths = (sixteen.speedup_high - sixteen.speedup_low).median()
best = sixteen[sixteen.swizzle == 8].sort_values("gb").iloc[0]
spare, price = best.gb - best.predicted / 1e9, fits[16384]["us per GB from DRAM"]
print(f"16384^3: intervals {100 * widths:.1f} % wide at the median")
print(f"best order reads {spare:.1f} GB more than the count;", end=" ")
print(f"at {price:.0f} us per GB that is {spare * price / best.us:.1%} of its time")

# %% [markdown]
# - Walk in groups of sqrt(clusters at once * along / across) cluster tiles: 8 for 256x128 in clusters 1x2, along
#   either axis. Count cluster tiles; single CTAs would give 16 along m, which is 1 % slower at 4096^3 and 8192^3.
# - Up to some 30 waves the DRAM bytes of an order can be counted on paper to about 1 %: the distinct panels of each
#   wave, nothing kept between waves. Serpentine is worth what the count says, most where a group is about one wave
#   (swizzle 2 at 8192^3, 1.6 %) and next to nothing at the best swizzle.
# - Beyond some 40 waves panels are read again and again, by cuBLAS as well. If the clusters drift apart, and could be
#   held together for nothing, 16384^3 would have 10 GB of DRAM traffic and 4 % of its time to win.
# - Bytes cost time because they cost power, some 40 us a GB from DRAM and 12 us a GB read in L2, and not because
#   anybody waits.
# - Bursts of 16384^3 are no bursts. Orders of that size want steady rows, or many more pairs.
