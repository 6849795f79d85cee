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
# # The suite a second time: is the kernel ahead of cuBLAS on every problem now?
#
# The [first run](suite_first.ipynb) reached none of its targets and did not compare all problems. Since then CTAs of
# a cluster can load what they share by alternating multicast, split-K sums its parts faster, and the search starts
# from what an earlier one found. This is the second run: all 24 problems, bf16, bursts, each compared with `torch.mm`
# and with the fastest of sixteen algorithms of cuBLASLt. The targets are those of before: geometric means of 1.06
# over `torch.mm` and 1.04 over cuBLASLt, and no problem below 1.00. At the end, what was found at the power wall.
# Everything is computed from `results/h200/`; no GPU is needed to run it again. Every timing here is chained
# (launches of one kernel back to back); rows do not name their board.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hopper_gemm.model.roofline import waves
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.tables.compare import by_baseline
from hopper_gemm.tune.tables.compare import geometric_mean as mean
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import best_row, config_of, rows_of, short_label
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"
PROBLEMS = {str(problem): problem for problem in read_shapes().of_regime("burst")}
CLASSES = dict(zip(PROBLEMS, 6 * ["square"] + 9 * ["layer"] + 4 * ["ragged"] + 5 * ["deep or flat"], strict=True))
BASELINES = {"cublas": "over torch.mm", "cublaslt": "over the best of cuBLASLt"}


def compared(folder: str) -> dict[str, pd.DataFrame]:
    """A comparison's cells by baseline, one for each problem; all of them chained."""
    return by_baseline(read_study(results / folder), "chained")


def with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that ran, with a short name of their config, and the tiles that a walk has abreast."""
    ran = rows[rows.status == "ok"]
    # a walk steps over clusters: as many tiles are abreast as their clusters are wide
    abreast = ran.swizzle * ran.cluster_m.where(ran.raster == "n", ran.cluster_n)
    return ran.assign(name=[short_label(config_of(row)) for row in ran.to_dict("records")], abreast=abreast)


now, before = compared("suite-second"), compared("suite-first")
studies = {name: read_study(results / f"suite-second/tune-{name}-burst") for name in PROBLEMS}
about = read_study(results / "suite-second").provenance
searched = pd.Series({name: study.provenance["searched"] for name, study in studies.items()})
boards = {study.provenance["gpu"]["uuid"] for study in studies.values()}
print(f"{source_line({**about, 'source': 'measured'})} {len(now['cublas'])} of {len(PROBLEMS)} problems compared")
tried = sum(len(study.stage("sweep")) for study in studies.values())
print(f"{tried} configs in {searched.sum():.0f} s of search,", end=" ")
print(f"{searched.median():.0f} s a problem, on {len(boards)} boards;", end=" ")
print(f"the comparison was on {'one of them' if about['gpu']['uuid'] in boards else 'another'}")
print("how the configs were chosen:", now["cublas"].how.value_counts().to_dict())

# %% [markdown]
# ## How fast
#
# Medians of 15 pairs with their 95 % intervals; all of it in one process on one board.

# %%
found = pd.DataFrame({"class": CLASSES})
for against, frame in now.items():
    for column in ("speedup", "speedup_low", "speedup_high"):
        found[against + column.removeprefix("speedup")] = frame[column].astype(float)
found["stricter"] = found[list(BASELINES)].min(axis=1)
places = {name: -place for place, name in enumerate(PROBLEMS)}
figure, axis = plt.subplots(figsize=(9, 7.6), layout="constrained")
for against, shift, colour in (("cublas", 0.13, "C0"), ("cublaslt", -0.13, "C3")):
    sides = [found[against] - found[f"{against}_low"], found[f"{against}_high"] - found[against]]
    at = [places[name] + shift for name in found.index]
    axis.errorbar(found[against], at, xerr=sides, fmt="o", markersize=5, color=colour, label=BASELINES[against])
axis.axvline(1, color="black", linewidth=0.8)
for kind, part in found.groupby("class", sort=False):
    top = places[part.index[0]]
    axis.axhline(top + 0.5, color="0.8", linewidth=0.8)
    axis.text(1.188, top + 0.05, kind, ha="right", va="center", fontsize=9, color="0.4")
axis.set_yticks(list(places.values()), list(places))
axis.set_ylim(min(places.values()) - 0.6, 0.6)
axis.set_xlim(0.96, 1.19)
axis.grid(axis="x", alpha=0.3)
axis.set_xlabel("speedup, burst; above 1 our kernel is faster")
axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.77))
plt.show()

# %%
overall = {}
for name, part in [("all", found), *found.groupby("class", sort=False)]:
    overall[name] = {"problems": len(part)} | {
        f"{what}, {column}": of(part[column])
        for column in (*BASELINES, "stricter")
        for what, of in (("mean", mean), ("least", min))
    }
pd.DataFrame(overall).T.round(3)

# %%
for against, target in (("cublas", 1.06), ("cublaslt", 1.04)):
    low, high = found[f"{against}_low"], found[f"{against}_high"]
    print(f"{BASELINES[against]}: target {target}, reached {mean(found[against]):.3f};", end=" ")
    print(f"whole interval above 1 on {(low > 1).sum()}, below 1 on {found.index[high < 1].tolist()};", end=" ")
    print(f"median below 1 on {found.index[found[against] < 1].tolist()}")
print(f"against the faster of the two on each problem: {mean(found.stricter):.3f}")
apart = found.cublaslt / found.cublas - 1
slower = found.index[apart > 0.002]
table = found.loc[slower, ["cublas", "cublaslt", "stricter"]].assign(
    torch_us=now["cublas"].baseline_us, cublaslt_us=now["cublaslt"].baseline_us, noise=now["cublas"].noise
)
table.astype(float).round(3)

# %% [markdown]
# The means are 1.044 over `torch.mm` and 1.031 over cuBLASLt, short of 1.06 and 1.04. The third target was missed by
# one problem: 512x512x65536, at 0.979 against both. Over `torch.mm` the whole interval is above 1 on 22 of 24, and
# that of 16384^3 holds 1; over cuBLASLt it is above 1 on 21, and those of 1024x1024x16384, 0.997, and of
# 64x28672x4096, 1.002, hold 1.
#
# The table says that the second mean is too kind. Which of cuBLASLt's algorithms is the best is decided by a short
# timing, and on 8192x4096x14336 what was chosen took 1206 us in the comparison where `torch.mm` took 1169. On 16384^3
# the times stray so much (a noise floor of 4 %) that either could be first. Against the faster of the two on each
# problem the mean is 1.029. That is the figure to quote against cuBLAS as a whole.
#
# The searches were on other boards than the comparison. Do their finals agree with it?

# %%
finals = pd.DataFrame({name: best_row(rows_of(study, "final")) for name, study in studies.items()}).T
moved = found.cublas / finals.speedup.astype(float) - 1
disjoint = (finals.speedup_low > found.cublas_high) | (finals.speedup_high < found.cublas_low)
print(f"comparison against final: {moved.median():+.1%} in the median,", end=" ")
print(f"{moved.min():+.1%} ({moved.idxmin()}) to {moved.max():+.1%} ({moved.idxmax()});", end=" ")
print(f"intervals apart on {disjoint.sum()} of {len(moved)}")
print(f"mean of the finals, over torch.mm: {mean(finals.speedup):.3f}")

# %% [markdown]
# On the whole they do, by 0.1 % in the median. Most intervals are apart all the same, as in the first run: an
# interval holds for its run and its board. A lead of less than 1 % on one problem, as on 1234x4096x4096 and
# 3000x5000x2056, may be the board's.
#
# ## What changed
#
# The 19 problems that both runs compared. The boards differ, and so `torch.mm` is not equally fast in both. Where the
# config is the same as before, only the board and the kernel around it changed.

# %%
TIMES = (("cublas", "time_us"), ("cublas", "baseline_us"), ("cublaslt", "baseline_us"))
both = [name for name in PROBLEMS if name in before["cublas"].index]
change = pd.DataFrame(index=both)
for against in BASELINES:
    change[f"{against}, first"] = before[against].speedup.astype(float)
    change[f"{against}, now"] = found[against]
change["change, %"] = 100 * (change["cublas, now"] / change["cublas, first"] - 1)
for side, against, column in (("ours", *TIMES[0]), ("torch.mm", *TIMES[1]), ("cuBLASLt", *TIMES[2])):
    change[f"{side}, time, %"] = 100 * (now[against][column] / before[against][column] - 1).astype(float)
configs = {name: [config_of(run["cublas"].loc[name].to_dict()) for run in (before, now)] for name in both}
change["same config"] = [one == other for one, other in configs.values()]
change.round({column: 3 if "," in column and "%" not in column else 1 for column in change})

# %%
for against in BASELINES:
    print(f"{against}, 19 problems: {mean(change[f'{against}, first']):.3f}, now {mean(change[f'{against}, now']):.3f}")
pairs = [change[[f"{against}, {when}" for against in BASELINES]].min(axis=1) for when in ("first", "now")]
print(f"against the faster of the two: {mean(pairs[0]):.3f}, now {mean(pairs[1]):.3f}")
same = change[change["same config"]]
print(
    f"same config on {len(same)}: changes of {same['change, %'].min():.1f} to {same['change, %'].max():.1f} %,", end=" "
)
print(f"mean {same['change, %'].mean():.1f} %; torch.mm's time moved by", end=" ")
print(f"{change['torch.mm, time, %'].min():.1f} to {change['torch.mm, time, %'].max():.1f} %, ", end="")
print(f"{change['torch.mm, time, %'].median():.1f} in the median")
rest = change.drop(index="2304x2304x4096")
print(f"without 2304x2304x4096: {mean(rest['cublas, first']):.3f}, now {mean(rest['cublas, now']):.3f}")
gained = change[(change["change, %"] > 1) & (change["ours, time, %"] > 0)]
print("gained more than 1 % although ours took no less time:", gained.index.tolist())
other = change[change["cuBLASLt, time, %"] > change["torch.mm, time, %"] + 1.5]
print("cuBLASLt's time grew by 1.5 points more than torch.mm's:", other.index.tolist())
for name in other.index:
    print(f"    {name}:", ", now ".join(run["cublaslt"].baseline_kernel[name] for run in (before, now)))

# %% [markdown]
# The means of the 19 rose from 1.040 to 1.050 and from 1.021 to 1.035, and against the faster of the two baselines
# from 1.021 to 1.033. Most of all 2304x2304x4096, from 0.976 to 1.035: the first run had compared it with what the
# model chose, this one with what its search found. Without it the first mean goes from 1.043 to 1.051.
#
# Six others gained more than 1 % and took less time: 1024^3, 2048^3, 8192^3, 8192x4096x14336, 128x8192x8192 and
# 4096x8192x28672. Three gained as much and took no less time, 64x28672x4096, 512x512x65536 and 65536x256x1024; there
# `torch.mm` became slower, by 2.1 to 3.8 %. This board is the slower one (`torch.mm` takes 1.1 % more in the median),
# and how much of those three is ours the two runs cannot say. On the five with the same config the speedup moved by
# -0.9 to 0.3 %: so much boards and small changes do.
#
# On two problems cuBLASLt's best lost more than `torch.mm` did, since another algorithm was chosen than in the first
# run. One is 8192x4096x14336 again; the other, 8192x6144x4096, makes the mean over cuBLASLt too kind once more, and
# there `torch.mm` does not correct it. 16384^3 fell by 2.1 %, within its noise.
#
# ## What won: alternating multicast
#
# A cluster of two shares a tile of B by multicast: each CTA loads a half of it for both. A half must be whole groups
# of 8 rows, so that a tile 200 wide cannot be halved, and the first run had to take it without a cluster. With
# alternating multicast one CTA loads all of the shared tile for one stage and the other for the next; any width will
# do. For each stage of 256x200 a CTA then asks for 256 + 100 rows on average instead of 256 + 200, 22 % less.

# %%
LARGE = ("8192x8192x8192", "8192x4096x14336", "4096x8192x28672", "8191x8192x8192")
winners = with_names(
    pd.concat([pd.DataFrame([row]) for _, row in finals.iterrows()], ignore_index=True).infer_objects()
)
print(
    "winners of the finals:", ", ".join(f"{name} {count}x" for name, count in winners.multicast.value_counts().items())
)
print("alternating:", dict(winners[winners.multicast == "alternate"].set_index("problem").name))
KINDS = {
    "alternating": lambda rows: rows.multicast == "alternate",
    "single CTAs": lambda rows: rows.cluster == "1x1",
    "clusters, halves": lambda rows: (rows.cluster != "1x1") & (rows.multicast == "split"),
}
best = {}
for name in LARGE:
    rows = with_names(rows_of(studies[name], "sweep"))
    for kind, test in KINDS.items():
        row = best_row(rows[test(rows)])
        fall = waves(config_of(row), PROBLEMS[name])
        best[name, kind] = {"best": row["name"], "rows": int(test(rows).sum()), "pairs": row.pairs}
        best[name, kind] |= {"rounds": fall.tiles / fall.slots, "speedup": round(row.speedup, 3)}
best = pd.DataFrame(best).T
ahead = best.speedup.astype(float).unstack()
for kind in list(KINDS)[1:]:
    ratio = ahead["alternating"] / ahead[kind]
    print(f"best row, alternating / best of {kind}: {ratio.min():.3f} to {ratio.max():.3f}")
best.assign(rounds=best.rounds.astype(float).round(2))

# %% [markdown]
# These are best rows of a search. Firmer are twins: the same tile, stages, chunks, side and walk, once without a
# cluster and once in a cluster of two with alternating multicast, in the same search on the same board. A walk steps
# over clusters, so that swizzle 4 along n in clusters 2x1 has as many tiles abreast as swizzle 8 without; twins have
# as many abreast. The clocks are time times SM clock.

# %%
ALIKE = ["problem", *(field for field in FIELDS if field not in ("cluster_m", "cluster_n", "multicast", "swizzle"))]


def twins(rows: pd.DataFrame, walk: str = "abreast") -> pd.DataFrame:
    """Alternating rows beside those that differ in the cluster alone; walks are alike in tiles or in swizzle."""
    both = rows[KINDS["alternating"](rows)].merge(
        rows[KINDS["single CTAs"](rows)], on=[*ALIKE, walk], suffixes=("", "_1")
    )
    both["ratio"] = both.speedup / both.speedup_1
    both["clock"] = both.sm_mhz / both.sm_mhz_1
    both["clocks"] = both.time_us * both.sm_mhz / (both.time_us_1 * both.sm_mhz_1)
    both["walk"] = both.raster + both[walk].astype(str)
    return both.assign(pairs=both[["pairs", "pairs_1"]].min(axis=1))


of_searches = pd.concat([with_names(rows_of(studies[name], "sweep")) for name in LARGE], ignore_index=True)
burst, by_swizzle = twins(of_searches), twins(of_searches, "swizzle")
summary = burst.groupby("problem", sort=False).ratio.agg(["count", "median", "min", "max"])
summary["ahead"] = (burst.ratio > 1).groupby(burst.problem).sum()
summary[["clock", "clocks"]] = burst.groupby("problem")[["clock", "clocks"]].median()
firm = burst[burst.pairs >= 3]
summary["of 3 pairs and more"] = firm.groupby("problem").ratio.size()
summary["their median"] = firm.groupby("problem").ratio.median()
summary.round(3)

# %%
print(f"{len(burst)} twins: ahead in {(burst.ratio > 1).sum()}, {burst.ratio.min():.3f} to", end=" ")
print(f"{burst.ratio.max():.3f}, median {burst.ratio.median():.3f}; clock {burst.clock.median():.3f},", end=" ")
print(f"clocks {burst.clocks.median():.3f}")
behind = by_swizzle[by_swizzle.ratio < 1]
print(f"twins by swizzle: ahead in {(by_swizzle.ratio > 1).sum()} of {len(by_swizzle)}, behind on", end=" ")
print(f"{behind.walk.unique().tolist()}; {by_swizzle.ratio.min():.3f} to {by_swizzle.ratio.max():.3f}")
print(f"{len(firm)} with three pairs or more on both sides: median {firm.ratio.median():.3f},", end=" ")
print(f"{firm.ratio.min():.3f} to {firm.ratio.max():.3f}; clock {firm.clock.median():.3f},", end=" ")
print(f"clocks {firm.clocks.median():.3f}")

# %% [markdown]
# Alternating multicast is ahead in all 37 twins, by 0.5 to 2.5 %, 1.2 in the median; where both sides have three
# pairs or more, by 0.5 to 1.6 %, 1.1 in the median. (Twins with the same swizzle instead are ahead in 36 of 40. The
# four others are of n16, where clusters have 32 tiles abreast.) The best rows say 1.3 to 1.6 % over single CTAs, and
# 1.6 to 2.0 % over clusters that load halves, whose tiles are others.
#
# The clocks say where it comes from. Both need the same number of them, to 0.1 %; what differs is the SM clock,
# higher by 1.2 %. That is measured. Our reading is that fewer bytes from the L2 cost less energy, and that the power
# cap turns the energy into clock. Power is not read in a burst; in steady state it is.
#
# No study of the steady state holds both of a pair of twins: they are from different studies and boards. `energy` is
# our pJ/FLOP over cuBLAS's of the same run, alternating over single; `alike` says in what the walks agree.

# %%
WALL = ("steady-a", "steady-b", "steady-c", "steady-d", "steady-e")
wall = {name: read_study(results / name) for name in WALL}
board = {name: study.provenance["gpu"]["uuid"] for name, study in wall.items()}
steady = pd.concat([with_names(rows_of(study, "sweep")) for study in wall.values()], ignore_index=True)
beside = [twins(steady, walk).assign(alike=walk) for walk in ("abreast", "swizzle")]
beside = pd.concat(beside, ignore_index=True).sort_values(["problem", "alike"], ignore_index=True)
beside["same board"] = beside.study.map(board) == beside.study_1.map(board)
beside["rounds"] = [
    (fall := waves(config_of(row), PROBLEMS[row["problem"]])).tiles / fall.slots for row in beside.to_dict("records")
]
beside["energy"] = (
    beside.pj_per_flop / beside.baseline_pj_per_flop / (beside.pj_per_flop_1 / beside.baseline_pj_per_flop_1)
)
shown = ["problem", "swap_ab", "walk", "alike", "study", "study_1", "same board", "speedup", "speedup_1", "ratio"]
beside[[*shown, "rounds", "pj_per_flop", "pj_per_flop_1", "energy", "clock", "clocks"]].round(3)

# %%
for walk, part in beside.groupby("alike"):
    print(f"{len(part)} twins alike in {walk}: {part.ratio.min():.3f} to {part.ratio.max():.3f},", end=" ")
    print(f"median {part.ratio.median():.3f}; energy {part.energy.min():.3f} to {part.energy.max():.3f},", end=" ")
    print(f"median {part.energy.median():.3f}; clock {part.clock.median():.3f}, clocks {part.clocks.median():.3f}")
tested = pd.concat(
    [with_names(rows_of(study, "final")) for study in wall.values() if len(rows_of(study, "final"))], ignore_index=True
)
tested["runs"] = tested.pairs // 2
figures = ["speedup", "speedup_low", "speedup_high", "pj_per_flop", "baseline_pj_per_flop"]
tested[["study", "problem", "name", "processes", "runs", *figures]].round(3)

# %% [markdown]
# Alternating multicast is ahead in all, by 1.3 to 2.5 %: 1.8 % in the median of the eight with as many tiles abreast,
# 1.9 of the ten with the same swizzle. The clocks are even again, to 0.2 % in the median, and the SM clock is higher
# by 1.7 and 1.4 %. The recorded energy falls by 1.5 and 2.2 % in the median, about as much as the time, as it must at
# one power; single ones scatter between 0.925 and 1.003, as NVML's counter does. Boards may favour one side, and
# steady-d, which has most of the alternating rows, may be such a board: the one alternating row that two boards have,
# unswapped n8 at 8192^3, is 1.062 in steady-c and 1.068 in steady-d. (The unswapped rows of 8192x4096x14336 are at
# 0.91 to 0.93 since their tiles need a sixth round for the last 0.09 of them.)
#
# The only finals that hold both kinds on one board are those of steady-c: 1.065 alternating and 1.057 single, two
# runs each, with intervals that overlap, the same recorded energy, 0.991, and only the single one swapped. They agree
# with the twins, and alone they would not prove it.
#
# ## Split-K
#
# The exchange through the workspace was made faster. Each part now picks its own chunks out of the accumulators
# first, so that their registers are free to hold what the others sent; more reads are under way; one fence instead of
# one for each thread; and a counter that flips its highest bit and is never reset. The same 204 configs, before and
# after, on one board.

# %%
first, again = read_study(results / "split-k"), read_study(results / "split-k-again")
print("the same board:", first.provenance["gpu"]["uuid"] == again.provenance["gpu"]["uuid"])
key = ["problem", *FIELDS]
parts = with_names(rows_of(first, "sweep")).merge(with_names(rows_of(again, "sweep")), on=key, suffixes=("_then", ""))
parts["ratio"] = parts.speedup / parts.speedup_then
print(f"{len(parts)} configs in both; cuBLAS's time before / after:", end=" ")
print(f"{(parts.baseline_us_then / parts.baseline_us).quantile([0.05, 0.95]).round(4).tolist()} for nine of ten")
parts["where"] = np.where(parts.stream_k, "stream-K", parts.reduction)
grouped = parts.groupby(["where", "split_k"]).ratio.agg(["count", "median", "min", "max"])
met = parts[parts["where"] == "workspace"]
tops = met.groupby(["problem", "split_k"], sort=False)[["speedup_then", "speedup"]].max()
tops = (tops.speedup / tops.speedup_then).unstack().add_prefix("best rows, ")
grouped.round(3)

# %%
figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
counts = sorted(met.split_k.unique())
for number, (name, part) in enumerate(met.groupby("problem", sort=False)):
    at = np.array([counts.index(count) for count in part.split_k]) + 0.16 * (number - 1.5)
    axis.plot(at, part.ratio, "o", color=f"C{number}", markersize=5, alpha=0.7, label=name)
middle, at = met.groupby("split_k").ratio.median(), np.arange(len(counts))
axis.hlines(middle, at - 0.4, at + 0.4, color="black", linewidth=1, label="median of all")
axis.axhline(1, color="black", linewidth=0.8)
axis.set_xticks(range(len(counts)), counts)
axis.set_xlabel("split-K through the workspace, parts")
axis.set_ylabel("speedup after / before")
axis.grid(axis="y", alpha=0.3)
axis.legend(fontsize=8, loc="upper left")
plt.show()
middles = met.pivot_table(index="problem", columns="split_k", values="ratio", aggfunc="median")
tops.join(middles.add_prefix("median, ")).round(3)

# %%
deep = "512x512x65536"
rows = now["cublas"].loc[deep]
print(f"{deep}, compared: {rows.time_us:.1f} us at {rows.sm_mhz:.0f} MHz, torch.mm {rows.baseline_us:.1f}", end=" ")
print(f"at {rows.baseline_sm_mhz:.0f}; {rows.speedup:.3f} in time, ", end="")
print(f"{rows.speedup * rows.baseline_sm_mhz / rows.sm_mhz:.3f} in clocks")
top = parts[parts.problem == deep].sort_values("speedup").tail(3)
top["clocks saved, %"] = 100 * (1 - top.time_us * top.sm_mhz / (top.time_us_then * top.sm_mhz_then))
top["time saved, %"] = 100 * (1 - top.time_us / top.time_us_then)
shown = ["name", "speedup_then", "speedup", "sm_mhz_then", "sm_mhz", "clocks saved, %", "time saved, %"]
top[shown].round(3)

# %%
rivals = with_names(rows_of(read_study(results / "rivals"), "sweep"))
rival = rivals.loc[rivals.groupby("problem", sort=False).speedup.idxmax()].set_index("problem")
rival = rival[["name", "schedule", "pairs", "speedup"]].add_prefix("their tiles: ")
for when, run in (("first run", before), ("now", now)):
    for against in BASELINES:
        rival[f"{when}, {against}"] = run[against].speedup.astype(float)
rival.round(3)

# %% [markdown]
# The more parts, the more it brought: 0.4 % in the median with two parts, 1.7 with four, 2.3 with eight, 6.3 with
# sixteen, at most 17 %. The best rows gained 1.6 to 3.5 % with eight and 1.5 to 6.9 % with sixteen. Split-K through
# the shared memory of a cluster became slower by 0.4 to 1.0 %, which was not intended. Stream-K rows differ for
# another reason: before, tiles were not cut where there were fewer than clusters, and now they are. That doubles the
# speed in the median and costs up to 10 %.
#
# What is left is 512x512x65536. With two and four parts it even lost. Of its three best configs the exchange took 2.8
# to 3.9 % of the clocks and 1.5 to 2.1 % of the time: the SM clock fell by the rest. In the comparison we run at 1504
# MHz where cuBLAS's kernels run at 1597; in clocks we would be ahead by 3.9 %. So the exchange saves clocks, and a
# part of them is lost again in a lower clock. That it is the power cap is our reading: power is not read in a burst.
#
# The last table has cuBLASLt's tiles in our kernel, measured between the runs, on the four problems where it had been
# ahead. 128x64 in clusters of four is what won 64x28672x4096 since; 1024x1024x16384 gained little by it, and 128x128
# for 512x512x65536 stays behind. The 0.985 there is the best of 40 rows of that tile, and later finals do not repeat
# it.
#
# ## At the power wall
#
# Five problems have targets in steady state: 1.04 over `torch.mm`, and 0.98 pJ/FLOP at 8192^3. The best row of each
# over all studies, and the best final where there is one. `runs` counts ours beside cuBLAS's, of two slices each; the
# intervals of one run are no more than its two slices. `from time` is the median power times the time of a launch,
# since the recorded energy scatters more than the time does.

# %%
STARRED = ("4096x4096x4096", "8192x8192x8192", "8192x4096x14336", "4096x8192x28672", "8192x10240x8192")
protocols = [study.provenance["protocols"][0] for study in wall.values()]
print("slices of a run:", {protocol["window"] / protocol["slice"] for protocol in protocols})
watts = steady[["watts", "baseline_watts"]].stack().median()
reached = {}
for name in STARRED:
    rows, final = steady[steady.problem == name], tested[tested.problem == name]
    row = best_row(rows)
    reached[name] = {"best row": f"{row['name']} ({row.study})", "rows": len(rows), "runs": row.pairs // 2}
    reached[name] |= {"speedup": row.speedup, "pJ/FLOP": row.pj_per_flop, "cuBLAS": row.baseline_pj_per_flop}
    reached[name]["from time"] = watts * row.time_us * 1e6 / PROBLEMS[name].flop
    if len(final):
        row = best_row(final)
        reached[name] |= {"final": row.speedup, "low": row.speedup_low, "high": row.speedup_high}
        reached[name] |= {"final runs": row.runs}
        reached[name] |= {"final pJ/FLOP": row.pj_per_flop, "final cuBLAS": row.baseline_pj_per_flop}
reached = pd.DataFrame(reached).T.infer_objects()
reached.round(3)

# %%
figure, axis = plt.subplots(figsize=(9, 5), layout="constrained")
for number, name in enumerate(STARRED):
    rows, final = steady[(steady.problem == name) & (steady.speedup > 0.985)], tested[tested.problem == name]
    for alternating, mark in ((True, "o"), (False, "s")):
        part = rows[(rows.multicast == "alternate") == alternating]
        axis.scatter(part.speedup, part.pj_per_flop, marker=mark, s=26, facecolor="none", edgecolor=f"C{number}")
        part = final[(final.multicast == "alternate") == alternating]
        axis.scatter(part.speedup, part.pj_per_flop, marker=mark, s=70, color=f"C{number}")
    axis.scatter([1], [rows.baseline_pj_per_flop.median()], marker="x", s=60, color=f"C{number}")
    axis.plot([], [], "s", color=f"C{number}", label=name)
for label, mark, face in (("alternating", "o", "none"), ("others", "s", "none"), ("finals", "o", "0.3")):
    axis.plot([], [], mark, color="0.3", mfc=face, label=label)
axis.plot([], [], "x", color="0.3", label="cuBLAS")
axis.axvline(1.04, color="C2", linestyle=":", linewidth=1)
axis.axhline(0.98, color="C2", linestyle="--", linewidth=1)
axis.set_xlabel("speedup over torch.mm, steady state")
axis.set_ylabel("pJ/FLOP, as recorded")
axis.grid(alpha=0.3)
axis.legend(fontsize=8, ncol=2, loc="upper right")
plt.show()
firmest = reached.final.fillna(reached.speedup)
print(f"median power {watts:.0f} W; finals where there are any, else rows: mean {mean(firmest):.3f}", end=", ")
print(f"1.04 reached on {firmest.index[firmest >= 1.04].tolist()}; by best rows {mean(reached.speedup):.3f}", end=", ")
print(f"on {reached.index[reached.speedup >= 1.04].tolist()}")
cube = steady[steady.problem == "8192x8192x8192"]
enough = cube[cube.pj_per_flop <= 0.98]
print(f"at most 0.98 pJ/FLOP at 8192^3: {len(enough)} of {len(cube)} rows, {enough.study.unique().tolist()},", end=" ")
print(f"{enough.pj_per_flop.min():.3f} to {enough.pj_per_flop.max():.3f},", end=" ")
print(f"all alternating: {(enough.multicast == 'alternate').all()};", end=" ")
at = tested[tested.problem == "8192x8192x8192"].pj_per_flop
print(f"in the finals {at.min():.3f} and {at.max():.3f}")

# %% [markdown]
# Large marks are finals, circles are alternating multicast, crosses cuBLAS's median; the lines are the targets, the
# dashed one of 8192^3 alone. Rows below 0.985 are left out.
#
# 1.04 was reached on 8192^3: 1.074 by the best of 22 rows, one run, and 1.065 by the best final, two runs on another
# board. On 8192x4096x14336 the best row says 1.043 and the final of the same config 1.039, just short.
# 4096x8192x28672, 1.038 in one run, is short as well and has no final; 8192x10240x8192 has 1.029 in a final of three
# runs, with stream-K; 4096^3 has 1.008 in one run. With finals where there are any the mean of the five is 1.036, by
# the best rows 1.039. Best rows are the highest of 9 to 22 and a little too good.
#
# 0.98 pJ/FLOP at 8192^3 was reached by four rows of steady-d, 0.974 to 0.979, all alternating, one run each; from the
# time the best has 0.972. The finals of steady-c, on another board, say 0.991. So it is reached on one board and not
# yet confirmed. cuBLAS needs 1.043 beside the best row.
#
# ## What we take from it
#
# - All 24 problems: 1.044 over `torch.mm`, 1.031 over cuBLASLt as chosen, 1.029 over the faster of the two. Short of
#   1.06 and 1.04. One problem is behind.
# - Alternating multicast is worth about 1 % on large problems in a burst and 1.3 to 2.5 % at the power wall, by our
#   reading from fewer bytes moved. It saves no clocks; the SM clock is higher.
# - The faster exchange is worth most where there are many parts, and there the clock takes a part of it back.
# - The choice among cuBLASLt's algorithms moves single speedups by 2 to 3 %. It needs a longer timing of the best
#   few.
#
# What is left:
#
# - 512x512x65536: fewer joules, not fewer clocks.
# - 4096^3: 1.01 in both regimes, with the tile of the first run.
# - the sizes that fit no tile, 1.018 over the faster of the two in the mean, two of them within 1 % of even.
# - split-K through a cluster: why did it become slower?
# - at the wall: finals on one board of both kinds of 256x200, swapped, and one for 4096x8192x28672.
# - 16384^3: more pairs, or steady state; its noise hides what is looked for.
