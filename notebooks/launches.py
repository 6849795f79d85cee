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
# # Where there are few tiles or little time
#
# Two ways to fill a GPU that a problem does not fill by itself. Where there are fewer tiles than SMs, split-K divides
# k: into how many parts, and where are they summed? And where a launch takes microseconds, the next kernel can set
# itself up while this one drains (PDL, programmatic dependent launch): is that worth anything? Computed from
# `results/h200/split-k/` and `results/h200/early/`, both in bursts; no GPU is needed to run it again. Every timing
# here is chained (launches of one kernel back to back); rows do not name their board.

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.predict import BEFORE, predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import cluster_tiles, clusters_at_once, waves, work_items
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import best_row, config_of, rows_of
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"
split, dependent = read_study(results / "split-k"), read_study(results / "early")


def as_it_ran(config: GemmConfig, problem: GemmProblem) -> GemmConfig:
    """For the model: stream-K cut nothing then where there were fewer tiles than clusters at once."""
    few = cluster_tiles(config, problem) < clusters_at_once(config.cluster_size)
    return replace(config, stream_k=False) if config.stream_k and few else config


def measured(trials: pd.DataFrame) -> pd.DataFrame:
    """The rows that ran, with their problem, how they fall on the SMs and what the model says."""
    rows = trials[trials.status == "ok"].copy()
    problems = [GemmProblem(int(row.m), int(row.n), int(row.k)) for row in rows.itertuples()]
    pairs = list(zip([config_of(row) for row in rows.to_dict("records")], problems, strict=True))
    rows["clusters"] = [work_items(*pair) for pair in pairs]
    rows["at once"] = [clusters_at_once(config.cluster_size) * config.ctas_per_sm for config, _ in pairs]
    rows["rounds"] = [waves(*pair).waves for pair in pairs]
    rows["predicted"] = [1e6 * predict(as_it_ran(*pair), pair[1], pace=BEFORE).seconds for pair in pairs]
    return rows.assign(error=rows.predicted / rows.time_us)


for study in (split, dependent):
    floors = [noise for _, noise in study.provenance["noise"].items()]
    print(f"{study.provenance['study']}: {source_line(study.provenance)} {len(rows_of(study, 'sweep'))} rows,", end=" ")
    print(f"noise floors {min(floors):.2%} to {max(floors):.2%}")
parts = measured(rows_of(split, "sweep"))
parts["kind"] = np.where(parts.stream_k, "stream-K", parts.reduction)
PROBLEMS = list(dict.fromkeys(parts.problem))

# %% [markdown]
# ## Split-K
#
# Split-K sums its parts in the shared memory of a cluster, whose CTAs are the parts (`cluster`), or through a
# workspace in global memory, with clusters that share operands beside it (`workspace`); or the tiles of the last
# round are cut along k (stream-K). The best of each kind:

# %%
best = parts.loc[parts.groupby(["problem", "kind"], sort=False).speedup.idxmax()].set_index(["problem", "kind"])
best["in clocks"] = best.speedup * best.baseline_sm_mhz / best.sm_mhz
names = ["tile", "cluster", "split_k", "clusters", "at once", "time_us", "predicted", "speedup", "in clocks"]
best[names].round(3)

# %%
STYLE = {
    ("workspace", "1x1"): ("C0", "o"),
    ("workspace", "2x1"): ("C2", "s"),
    ("workspace", "2x2"): ("C3", "^"),
    ("cluster", "1x1"): ("C4", "D"),
}
figure, axes = plt.subplots(1, 4, figsize=(14, 4.2), layout="constrained", sharey=True)
for axis, problem in zip(axes, PROBLEMS, strict=True):
    part = parts[(parts.problem == problem) & (parts.kind != "stream-K")]
    for (kind, cluster), (colour, mark) in STYLE.items():
        line = part[(part.kind == kind) & (part.cluster == cluster)].groupby("split_k").speedup.max()
        x = np.log2(line.index.astype(float))
        label = f"{kind}{', clusters ' + cluster if kind == 'workspace' else ''}"
        axis.plot(x, line, mark + "-", color=colour, label=label, markersize=5)
    streams = parts[(parts.problem == problem) & (parts.kind == "stream-K")].speedup.max()
    axis.axhline(streams, color="0.5", linestyle="--", linewidth=1, label="stream-K, best")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(1, 5), [2, 4, 8, 16])
    axis.set_title(problem)
    axis.set_xlabel("split-K parts")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("speedup over cuBLAS, best tile")
axes[1].legend(fontsize=8, loc="lower left")
plt.show()

# %% [markdown]
# The workspace is the best kind on the first two problems, even with the cluster on the third; the cluster leads on
# the fourth, where nothing reaches cuBLAS. The right number of parts is the one that makes 128 pieces of work for 132
# SMs, all at once: 16 parts of 8 tiles, 2 parts of 64, 2 of 64, 2 of 64. More parts need a second round, fewer leave
# SMs idle. Clusters of two beside the workspace are worth up to 19 %, below.
#
# Against cuBLAS that gave 0.945, 1.013, 1.052 and 0.934 here. What the searches of the suite, with more freedom, came
# to:

# %%
for problem in PROBLEMS:
    final = best_row(rows_of(read_study(results / f"suite-first/tune-{problem}-burst"), "final"))
    print(f"{problem}: {final.speedup:.3f}, {config_of(final)}")

# %% [markdown]
# ## Stream-K does nothing here
#
# It should cut the tiles of a partly filled round into equal stretches. How many SMs have worked? What the tensor
# cores did, against what the CTAs of the tiles alone could have done:

# %%
streams = parts[parts.kind == "stream-K"]
ctas = streams.clusters * streams.cluster_m * streams.cluster_n
rate = 100 * streams.tflops * 1e6 / (hopper.FLOP_PER_CLOCK_PER_SM * streams.sm_mhz)
cut = streams[["problem", "tile", "cluster", "clusters", "at once", "rounds", "tensor_active"]].assign(ctas=ctas)
cut["% of the SMs that have a tile"] = rate / np.minimum(ctas, hopper.SM_COUNT)
cut.round(1)

# %% [markdown]
# No row passes 100 % (those far below have a tile or a cluster that is taller than C): on all four problems the tiles
# were multiplied whole, by as many SMs as there are tiles. That is how it is written: a launch has no more clusters
# than tiles, so that with fewer tiles than clusters there is one round, it counts as full, and nothing remains to be
# cut. Stream-K helps behind whole rounds (see the notebook on the power wall), and not in the place where its parts
# would be needed most. The kernel was fixed since: it launches all clusters that fit. That is not measured yet.
#
# ## Clusters of four do not fit
#
# Clusters of four take 120 SMs, 30 at once; 32 of them, with 128 pieces of work, take two rounds where 64 clusters of
# two take one.

# %%
space = parts[parts.kind == "workspace"].assign(clocks=parts.time_us * parts.sm_mhz)
space = space.pivot_table(
    index=["problem", "tile", "split_k"],
    columns="cluster",
    values=["time_us", "clocks", "rounds", "predicted", "clusters"],
    sort=False,
)
four = pd.DataFrame(
    {
        "clusters of four": space["clusters", "2x2"],
        "rounds": space["rounds", "2x2"] / space["rounds", "2x1"],
        "time": space["time_us", "2x2"] / space["time_us", "2x1"],
        "clocks": space["clocks", "2x2"] / space["clocks", "2x1"],
        "predicted time": space["predicted", "2x2"] / space["predicted", "2x1"],
    }
)
print("clusters at once, by size:", {size: clusters_at_once(size) for size in (1, 2, 4, 8)})
print("2x2 against 2x1:")
four[four["clusters of four"] == 32].round(2)

# %%
four.groupby(four.rounds.round(2))[["time", "clocks", "predicted time"]].agg(["min", "median", "max"]).round(2)

# %% [markdown]
# Twice the rounds cost 1.55 to 1.84 times the time, and 1.94 times the clocks in the median: with two rounds the GPU
# also clocks higher. Where the rounds are the same, clusters of four are even with clusters of two, 0.98 to 1.00. The
# model knows: 1.60 to 1.87. The same holds for split-K in a cluster: four and eight parts make clusters of four and
# eight.

# %%
inside = parts[parts.kind == "cluster"].sort_values(["problem", "tile", "split_k"])
pair = parts[(parts.cluster == "1x1") & (parts.kind != "stream-K")]
pair = pair.pivot_table(index=["problem", "tile", "split_k"], columns="kind", values=["speedup", "rounds"], sort=False)
pair = pair.dropna()
ratio = pair["speedup", "cluster"] / pair["speedup", "workspace"]
rounds = (pair["rounds", "cluster"] / pair["rounds", "workspace"]).round(2)
print("cluster against workspace, speedup, by the ratio of their rounds:")
ratio.groupby(rounds).agg(["count", "min", "median", "max"]).round(3)

# %%
ratio.unstack("split_k").round(3)

# %%
share = parts[(parts.kind == "workspace") & parts.cluster.isin(["1x1", "2x1"])]
share = share.pivot_table(index=["problem", "tile", "split_k"], columns="cluster", values="speedup", sort=False)
print("workspace, clusters of two against none:")
(share["2x1"] / share["1x1"]).unstack("split_k").round(3)

# %% [markdown]
# With as many rounds the two ways are even to a few percent (0.98 to 1.05), and the cluster is the better one as
# often; with more rounds it is behind by what they cost. At 512x512x65536 eight parts of 128x128 make 16 clusters of
# eight where 15 fit: 0.59. So the workspace wins because it is free to choose its parts and its clusters, not because
# it adds up faster.
#
# Clusters of two are worth 10 to 19 % for 128x128 tiles once there are enough of them, little for the larger tiles
# with few parts, and they cost half the GPU where a cluster is taller than C: with 128 or 256 rows, clusters 2x1 of
# tiles as tall compute nothing in their second half.
#
# ## The model

# %%
figure, axis = plt.subplots(figsize=(7.5, 5), layout="constrained")
for problem, colour in zip(PROBLEMS, ("C0", "C1", "C2", "C3"), strict=True):
    for kind, mark in (("workspace", "o"), ("cluster", "D"), ("stream-K", "x")):
        some = parts[(parts.problem == problem) & (parts.kind == kind)]
        label = problem if kind == "workspace" else None
        axis.scatter(some.predicted, some.time_us, s=18, marker=mark, color=colour, label=label)
for kind, mark in (("workspace", "o"), ("cluster", "D"), ("stream-K", "x")):
    axis.scatter([], [], s=18, marker=mark, color="black", label=kind)
ends = np.array([36, 620])
axis.plot(ends, ends, color="grey", linewidth=1, zorder=0)
axis.set_xscale("log")
axis.set_yscale("log")
ticks = [40, 60, 100, 200, 400, 600]
axis.set_xticks(ticks, ticks)
axis.set_yticks(ticks, ticks)
axis.minorticks_off()
axis.set_xlabel("us, predicted")
axis.set_ylabel("us, measured")
axis.legend(fontsize=8)
plt.show()


# %%
def judged(rows: pd.DataFrame) -> dict[str, object]:
    """How good the model was."""
    near = rows[rows.speedup > rows.speedup.max() / 1.15]
    errors = np.log(rows.error.astype(float)), np.log(near.error.astype(float))
    first = rows.loc[rows.predicted.idxmin()]
    return {
        "rms, %": 100 * np.sqrt((errors[0] ** 2).mean()),
        "rms within 15 %, %": 100 * np.sqrt((errors[1] ** 2).mean()),
        "median, predicted / measured": rows.error.median(),
        "rank correlation": rows.predicted.rank().corr(rows.time_us.rank()),
        "first choice": f"{first.tile} {first.cluster} {first.kind} {first.split_k}",
        "behind, %": 100 * (rows.speedup.max() / first.speedup - 1),
    }


quality = pd.DataFrame({problem: judged(rows) for problem, rows in parts.groupby("problem", sort=False)}).T
quality.infer_objects().round(2)

# %% [markdown]
# Before these rows the model knew split-K from its equations alone, not from measurements. It ranks well (0.79 to
# 0.94) and chooses the best row on three problems, one 1 % behind on the fourth. Its times are right to 3 to 5 % near
# the best and to 8 to 15 % over all rows, except at 128x8192x8192 (8 and 29 %), where it is a fifth too fast in the
# median. That is the one of the four that memory paces, since B has 128 MiB and is used by 128 rows only.
#
# ## PDL

# %%
rows = measured(rows_of(dependent, "sweep"))
SHORT = list(dict.fromkeys(rows.problem))
spec = dependent.provenance["spec"]
asked = len(SHORT) * np.prod([len(choice) for choice in spec["space"].values() if isinstance(choice, list)])
legal = asked - sum(dependent.provenance["skipped"].values())
print(f"{asked} combinations, {legal} legal, {len(rows)} measured")
wide = rows.pivot_table(
    index=["problem", "tile", "ctas_per_sm"], columns=["pdl", "prefetch"], values="speedup", sort=False
)
wide.columns = [f"PDL, prefetch {depth}" if flag else "no PDL" for flag, depth in wide.columns]
wide.round(3)

# %%
gain = 100 * (wide["PDL, prefetch 0"] / wide["no PDL"] - 1)
print("PDL against no PDL, speedup, %:")
gain.unstack("problem")[SHORT].round(1)

# %%
short = rows[rows.prefetch == 0].pivot_table(
    index=["problem", "tile", "ctas_per_sm"], columns="pdl", values="time_us", sort=False
)
print("microseconds saved by PDL:")
(short[False] - short[True]).unstack("problem")[SHORT].round(2)

# %%
ahead = pd.DataFrame({depth: 100 * (wide[f"PDL, prefetch {depth}"] / wide["PDL, prefetch 0"] - 1) for depth in (4, 16)})
print("prefetch of 4 and 16 stages against none, all with PDL, speedup, %:")
ahead.unstack("problem").round(1)

# %%
figure, axes = plt.subplots(1, 5, figsize=(14, 3.8), layout="constrained", sharey=True)
for axis, problem in zip(axes, SHORT, strict=True):
    for number, ((tile, ctas), line) in enumerate(wide.loc[problem].iterrows()):
        change = 100 * (line.to_numpy(dtype=float) / line["no PDL"] - 1)
        axis.plot(
            range(4), change, "os^Dv"[number] + "-", color=f"C{number}", markersize=5, label=f"{tile}, {ctas} an SM"
        )
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(4), ["no\nPDL", "PDL", "prefetch\n4", "prefetch\n16"], fontsize=8)
    axis.set_title(problem)
    axis.grid(alpha=0.3)
axes[0].set_ylabel("speedup against no PDL, %")
axes[-1].legend(fontsize=7, loc="lower right")
plt.show()

# %% [markdown]
# Predicted beforehand: 2 us saved a launch, a third of the time at 1024^3, and a prefetch into the L2 that helps. It
# missed. Measured: at 1024^3 4 to 11 % (0.2 to 1.2 us) in four of five rows, 4 % for the best tile; at 2048^3 3 %
# with 256x128 and a loss with smaller tiles; elsewhere nothing or a loss, of up to 7 % at 4096^3 and of 12 to 17 % at
# 16x6144x4096, 31 and 32 % there with two CTAs on an SM. The three points of 256x128 at 8192x8192x512 are missing.
#
# The prefetch costs where launches are shortest: 16 stages 7 to 25 % at 1024^3 (not with 256x128) and 7 to 11 % at
# 2048^3 in three tiles of five. Four stages cost less. Elsewhere it changes 1 % at most, but at 16x6144x4096, where
# it gives back up to 3 of the 32 % that PDL costs there.
#
# Why a loss? This is conjecture. The CTAs of the next kernel start wherever an SM comes free, so that they are no
# longer side by side and in step; and where there is room for two, as with two CTAs on an SM, or where SMs idle, as
# at 16x6144x4096 with its 48 clusters of two, they crowd on SMs at work instead of waiting for idle ones. The gain is
# where a launch is one round that fills nearly all SMs (128 CTAs), and the loss where there are many rounds or few
# CTAs, which agrees with it and proves nothing.
#
# What two CTAs on an SM are worth, against one:

# %%
two = rows.pivot_table(
    index=["problem", "tile", "pdl", "prefetch"], columns="ctas_per_sm", values="speedup", sort=False
)
print("two CTAs on an SM against one, speedup, %:")
(100 * (two[2] / two[1] - 1)).dropna().unstack(["pdl", "prefetch"]).round(1)

# %% [markdown]
# For 64x64 tiles 6 to 12 % at 1024^3 and 2048^3, and 4 % for 128x64 at 2048^3 with PDL; otherwise at most 2 %, or a
# loss. Those that gain are behind the best tile.
#
# ## In the searches of the suite
#
# There PDL was one choice among many. Pairs of configs that differ in it alone:

# %%
found = []
for folder in sorted((results / "suite-first").glob("tune-*-burst")):
    trials = rows_of(read_study(folder), "sweep").query("status == 'ok'")
    if not trials.pdl.astype(bool).any():
        continue
    twins = trials[trials.pdl.astype(bool)].merge(
        trials[~trials.pdl.astype(bool)],
        on=[name for name in FIELDS if name != "pdl"],
        suffixes=("", "_not"),
    )
    least = twins[twins[["speedup", "speedup_not"]].max(axis=1) > 0.9 * trials.speedup.max()]
    ratios = 100 * (least.speedup / least.speedup_not - 1)
    problem = folder.name.removeprefix("tune-").removesuffix("-burst")
    found.append([problem, trials.baseline_us.median(), len(ratios), ratios.median(), ratios.min(), ratios.max()])
columns = ["problem", "cuBLAS, us", "pairs", "median, %", "least, %", "greatest, %"]
pd.DataFrame(found, columns=columns).sort_values("cuBLAS, us").round(1)

# %%
search = read_study(results / "suite-first/tune-1024x1024x1024-burst")
names = ["tile", "cluster", "swap_ab", "pdl", "raster", "swizzle", "speedup", "speedup_low", "speedup_high"]
rows_of(search, "final").sort_values("speedup", ascending=False)[names].round(3)

# %%
ok = rows_of(search, "sweep").query("status == 'ok'")
ok = ok.assign(size=ok.cluster_m * ok.cluster_n).groupby(["tile", "pdl", "size"]).speedup.agg(["max", "count"])
ok.loc["128x64"].round(3)

# %% [markdown]
# On launches of 37 to 64 us PDL is worth about 1 % to configs near the best, 3 % at 2048^3, and -6 % at 16x6144x4096.
# So the losses of the study above are those of tiles that no search would keep, but for 16x6144x4096. Single pairs of
# rows scatter far beyond that, from -24 to +27 %; many rows are one pair of times, and launches with PDL come at more
# than one level (see the suite's notebook).
#
# At 1024^3 no row with PDL has a twin without it. The winner uses PDL and has no cluster: 1.142, against 1.067 to
# 1.020 for the same tile in clusters of two. That single CTAs find room soonest would explain it; but none was
# measured without PDL, so what each of the two is worth cannot be told.
#
# ## What we take from it
#
# - k wants to be divided so that all pieces, about 128, are under way at once; in a workspace, with clusters of two
#   beside it where they fit C. In a cluster it is as fast where all clusters fit at once, which is mostly with two
#   parts.
# - Clusters of four or eight must be counted by what fits: 30 and 15. One more takes a round more, up to 1.84 times
#   the time.
# - Stream-K cut nothing where there were fewer tiles than SMs. That was a gap in the kernel, not a result.
# - 512x512x65536 stays behind cuBLAS in all of it, and 128x8192x8192 is better left whole, in smaller tiles.
# - PDL is worth 1 to 4 % on short launches near the best config, more on 1024^3, and costs 6 % or more where CTAs are
#   few. The prefetch is worth nothing and costs up to 25 %. Two CTAs on an SM never won.
# - The prediction of 2 us a launch was wrong. The largest saving is 1.2 us.
