# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Is the kernel ahead of cuBLAS on every problem of the suite? The first run
#
# The second run, with what was learned here, is read in [suite](suite.ipynb).
#
# 24 problems, each searched for about half a minute, the best of each measured again in fresh processes, then
# compared with `torch.mm` and with the fastest algorithm in cuBLASLt's heuristic lists. All in bursts, bf16. The
# targets, set beforehand, were geometric means of 1.06 over `torch.mm` and 1.04 over cuBLASLt, and no problem below
# 1.00. Everything here is computed from `results/h200/suite-first/`; no GPU is needed to run it again. Every timing
# here is chained (launches of one kernel back to back); rows do not name their board.

# %%
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.predict import BEFORE, FITTED, predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import POWER_LIMITED_FLOPS, cluster_tiles, clusters_at_once, limit_seconds, waves
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.tables.compare import by_baseline
from hopper_gemm.tune.tables.compare import geometric_mean as mean
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import best_row, config_of, rows_of
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"
suite = results / "suite-first"
PROBLEMS = {str(problem): problem for problem in read_shapes().of_regime("burst")}
CLASSES = dict(zip(PROBLEMS, 6 * ["square"] + 9 * ["layer"] + 4 * ["ragged"] + 5 * ["deep or flat"], strict=True))


def as_it_ran(config: GemmConfig, problem: GemmProblem) -> GemmConfig:
    """For the model: stream-K cut nothing then where there were fewer tiles than clusters at once."""
    few = cluster_tiles(config, problem) < clusters_at_once(config.cluster_size)
    return replace(config, stream_k=False) if config.stream_k and few else config


about = read_study(suite).provenance
against = by_baseline(read_study(suite), "chained")
studies = {name: read_study(suite / f"tune-{name}-burst") for name in PROBLEMS}
print(f"compared: {source_line({**about, 'source': 'measured'})} {len(against['cublas'])} of {len(PROBLEMS)} problems")
boards = {about["gpu"]["uuid"], *(study.provenance["gpu"]["uuid"] for study in studies.values())}
print(f"{len(boards)} boards took part in the searches and the comparison")

# %% [markdown]
# ## How fast
#
# Device time ended before the comparison did: five problems were not compared, all four of the sizes that fit no tile
# among them. What is known of those comes from their searches: a final where there is one, else the best row, which
# is the highest of many and so a little too good. 1234x4096x4096 had only five configs measured.

# %%
found = pd.DataFrame({"class": CLASSES})
for name, frame in against.items():
    found[name] = frame.speedup.astype(float)
    found[f"{name} low"], found[f"{name} high"] = frame.speedup_low.astype(float), frame.speedup_high.astype(float)
found["how"] = against["cublas"].how
instead = {}
for name in found.index[found.cublas.isna()]:
    study = studies[name]
    final = best_row(rows_of(study, "final"))
    row = best_row(rows_of(study, "sweep")) if final is None else final
    instead[name] = {
        "from": "best row of the search" if final is None else "final, 3 processes",
        "speedup": row.speedup,
        "low": row.speedup_low,
        "high": row.speedup_high,
        "pairs": int(row.pairs),
        "configs measured": int((rows_of(study, "sweep").status == "ok").sum()),
    }
instead = pd.DataFrame(instead).T
instead

# %%
COLOURS = {"cublas": "C0", "cublaslt": "C3", "instead": "C7"}
figure, axis = plt.subplots(figsize=(9, 7.6), layout="constrained")
places = {name: -place for place, name in enumerate(PROBLEMS)}
for name, shift, label in (("cublas", 0.13, "over torch.mm"), ("cublaslt", -0.13, "over the best of cuBLASLt")):
    part = found.dropna(subset=name)
    axis.errorbar(
        part[name],
        [places[one] + shift for one in part.index],
        xerr=[part[name] - part[f"{name} low"], part[f"{name} high"] - part[name]],
        fmt="o",
        markersize=5,
        color=COLOURS[name],
        label=label,
    )
for kind, part in instead.groupby("from"):
    axis.plot(
        part.speedup.astype(float),
        [places[one] for one in part.index],
        "D" if kind.startswith("final") else "s",
        mfc="none",
        color=COLOURS["instead"],
        label=f"over torch.mm, {kind}",
    )
axis.axvline(1, color="black", linewidth=0.8)
for before, after in zip(list(PROBLEMS)[:-1], list(PROBLEMS)[1:], strict=True):
    if CLASSES[before] != CLASSES[after]:
        axis.axhline(places[before] - 0.5, color="0.8", linewidth=0.8)
for kind in dict.fromkeys(CLASSES.values()):
    first = next(name for name in PROBLEMS if CLASSES[name] == kind)
    axis.text(1.198, places[first] + 0.05, kind, ha="right", va="center", fontsize=9, color="0.4")
axis.set_yticks(list(places.values()), list(places))
axis.set_xlim(0.94, 1.2)
axis.set_ylim(min(places.values()) - 0.6, 0.6)
axis.grid(axis="x", alpha=0.3)
axis.set_xlabel("speedup, burst; above 1 our kernel is faster")
axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.77))
plt.show()


# %% [markdown]
# Points are medians of 15 pairs with their 95 % intervals. The hollow ones are not from the comparison, have other
# sources, and stand against `torch.mm` alone.


# %%
overall = {}
for name, part in [("all", found), *found.groupby("class", sort=False)]:
    overall[name] = {"problems": len(part), "compared": int(part.cublas.notna().sum())}
    for column, what in (("cublas", "torch.mm"), ("cublaslt", "cuBLASLt")):
        if part[column].notna().any():
            overall[name] |= {
                f"over {what}": mean(part[column]),
                f"least, {what}": part[column].min(),
                f"behind, {what}": int((part[f"{column} high"] < 1).sum()),
            }
pd.DataFrame(overall).T.round(3)

# %%
filled = found.cublas.fillna(instead.speedup.astype(float))
print(f"with the five from their searches, over torch.mm: {mean(filled):.3f} over {filled.notna().sum()} problems")
wins = int((found["cublas low"] > 1).sum()), int((found["cublaslt low"] > 1).sum())
print(f"whole interval above 1: {wins[0]} over torch.mm, {wins[1]} over cuBLASLt, of {found.cublas.notna().sum()}")
for column, target in (("cublas", 1.06), ("cublaslt", 1.04)):
    print(f"{column}: target {target}, reached {mean(found[column]):.3f}, least {found[column].min():.3f}", end="; ")
    print("below 1:", found.index[found[column] < 1].tolist())

# %% [markdown]
# So none of the three targets was reached: 1.040 over `torch.mm` and 1.021 over cuBLASLt on the 19 problems that were
# compared, and below 1 on two and on five of them. Over `torch.mm` the kernel is ahead on every square and every
# layer; what is lost is lost in the last class. With the five from their searches the mean over all 24 is 1.034,
# since those are the smaller leads (1234x4096x4096 is behind as well); against cuBLASLt nothing is known of them.
#
# Two of the problems that are behind were not compared with what their searches found:

# %%
served = {name: config_of(row) for name, row in against["cublas"].iterrows()}
for name in ("2048x2048x2048", "2304x2304x4096"):
    best = best_row(rows_of(studies[name], "sweep"))
    print(f"{name}: compared with {served[name]} ({found.how[name]}), {found.cublas[name]:.3f}")
    print(f"    best row of the search: {config_of(best)}, {best.speedup:.3f} in {best.pairs} pairs")

# %% [markdown]
# 2304x2304x4096 had no final, so that no config was recorded and the model chose one. 1.033 is a figure of the
# search, not of the comparison, and from another board; still, what is slow here is the model's choice, not the
# kernel. 2048^3 was compared with the winner of an earlier search; the best row of this one is hardly faster. How far
# are its rows to be trusted?

# %%
name = "2048x2048x2048"
code, ours = against["cublas"].code[name], against["cublas"].time_us[name]
rows = rows_of(studies[name], "sweep").query("code == @code").sort_values("time_us")
rows["that config"] = [config_of(row) == served[name] for row in rows.to_dict("records")]
fall = waves(served[name], PROBLEMS[name])
theirs = against["cublas"].baseline_us[name]
print(f"{fall.tiles} tiles for {fall.slots} CTAs at once; in the comparison {ours:.1f} us, torch.mm {theirs:.1f}")
rows[["raster", "swizzle", "pairs", "time_us", "speedup", "that config"]]

# %% [markdown]
# All these rows are the same machine code, with all tiles under way at once, so that the order of the walk only
# decides which CTA has which tile. They lie at 24.0 and at 25.2 to 25.4 us with something between. The very config
# that took 24.0 us in the comparison is among the slow ones, in the one pair that it was given. So with PDL one pair
# can be off by 6 %, and the search drops what is 1.5 % behind after one pair. We do not know what the two levels are;
# they say that a search of short problems needs more than one pair.
#
# How well do the finals agree with the comparison?

# %%
again = pd.DataFrame(
    {
        name: {
            "final": final.speedup,
            "low": final.speedup_low,
            "high": final.speedup_high,
            "torch.mm": final.baseline_us / against["cublas"].baseline_us[name],
            "ours": final.time_us / against["cublas"].time_us[name],
        }
        for name in against["cublas"].index
        if (final := best_row(rows_of(studies[name], "final"))) is not None
    }
).T.astype(float)
again["compared"] = found.cublas[again.index]
apart = (again.low > found["cublas high"][again.index]) | (again.high < found["cublas low"][again.index])
moved = again.compared / again.final - 1
print(f"intervals apart: {apart.sum()} of {len(again)}")
print(f"comparison against final: {moved.median():+.1%} in the median,", end=" ")
print(f"{moved.min():+.1%} ({moved.idxmin()}) to {moved.max():+.1%} ({moved.idxmax()})")
for side in ("torch.mm", "ours"):
    print(f"{side}: time in the final / in the comparison {again[side].min():.3f} to {again[side].max():.3f}")

# %% [markdown]
# They agree in the median, and no better than to 2.5 % on single problems: of 17 pairs of intervals 12 do not touch.
# An interval holds for its run. The runs were on several boards, and the times of both sides moved by -1 to +5 %, not
# always equally. So a difference of 1 % on one problem, 8192x6144x4096 or 2048^3, may be the board's; the means are
# firmer.
#
# ## How far from the limit
#
# The limit is the larger of arithmetic at 840 TFLOP/s, the best that was ever seen in a burst before this run, and
# reading and writing everything once at the memory's peak; plus 1.5 us for a launch.

# %%
theirs = against["cublas"].baseline_us, against["cublaslt"].baseline_us
times = pd.DataFrame({"ours": against["cublas"].time_us, "torch.mm": theirs[0], "cuBLASLt": theirs[1]}).astype(float)
times = times.reindex([name for name in PROBLEMS if name in times.index])
limit = pd.Series({name: 1e6 * limit_seconds(PROBLEMS[name]) for name in times.index})
reach = 100 * times.rdiv(limit, axis=0)
figure, axis = plt.subplots(figsize=(9, 5), layout="constrained")
for (name, part), colour, mark in zip(reach.items(), ("C2", "C0", "C3"), "osd", strict=True):
    face = colour if name == "ours" else "none"
    axis.plot(part, range(0, -len(part), -1), mark, color=colour, label=name, markersize=5, mfc=face)
axis.set_yticks(range(0, -len(reach), -1), reach.index)
axis.axvline(100, color="black", linewidth=0.8)
axis.set_xlabel("% of the limit")
axis.grid(alpha=0.3)
axis.legend(fontsize=9, loc="center left")
plt.show()

# %%
problems = pd.Series(PROBLEMS)[reach.index]
memory = problems.map(lambda problem: 1e6 * problem.bytes / hopper.HBM_BYTES_PER_SECOND)
arithmetic = problems.map(lambda problem: 1e6 * problem.flop / POWER_LIMITED_FLOPS)
clocks = against["cublas"].baseline_sm_mhz.astype(float) / against["cublas"].sm_mhz.astype(float)
print("ahead by more in clocks than in time:", int((clocks > 1).sum()), "of", len(clocks))
reach.assign(
    limit_us=limit,
    bound=(memory > arithmetic).map({True: "memory", False: "arithmetic"}),
    sm_mhz=against["cublas"].sm_mhz.astype(int),
    their_mhz=against["cublas"].baseline_sm_mhz.astype(int),
    tflops=against["cublas"].tflops.astype(float).round().astype(int),
    speedup=found.cublas,
    in_clocks=found.cublas * clocks,
).round({"ours": 1, "torch.mm": 1, "cuBLASLt": 1, "limit_us": 1, "speedup": 3, "in_clocks": 3})

# %% [markdown]
# Four large problems pass 100 %: what was the best rate before this run was no limit, and 851 TFLOP/s at
# 8192x4096x14336 is the new best. On the other large ones we are within 3 %, and cuBLAS is nowhere more than 6 %
# below it. Room is where a launch is short or k is split: 1024^3 at 75 %, 65536x1024x256 at 78, 512x512x65536 at 80,
# 256x4096x14336 and 65536x256x1024 at 84.
#
# The last columns say why the room may be smaller than it looks. In SM clocks instead of time the lead is larger on
# 15 of 19: our kernel runs at a lower clock than `torch.mm` there. At 65536x1024x256 it takes 30 % fewer clocks
# (1.42) and ends up 1.17 times as fast, since its clock is 1459 MHz against 1774; at 512x512x65536 it takes as many
# clocks as cuBLAS's two kernels, and the whole 4 % is clock. A burst of short kernels meets the power cap as well;
# that it is power is our reading, since power cannot be read in a burst.
#
# ## What won

# %%
TECHNIQUES = {
    "swap_ab": lambda rows: rows.swap_ab.astype(bool),
    "PDL": lambda rows: rows.pdl.astype(bool),
    "stream_k": lambda rows: rows.stream_k.astype(bool),
    "pingpong": lambda rows: rows.schedule == "pingpong",
    "split_k, cluster": lambda rows: (rows.split_k > 1) & (rows.reduction == "cluster"),
    "split_k, workspace": lambda rows: (rows.split_k > 1) & (rows.reduction == "workspace"),
    "wide chunks": lambda rows: ~rows.epi_n.isin((8, 16, 32, 64)),
    "two CTAs an SM": lambda rows: rows.ctas_per_sm == 2,
    "stages 128 deep": lambda rows: rows.k_depth == 8,
}
best = {
    name: best_row(rows_of(study, "sweep") if rows_of(study, "final").empty else rows_of(study, "final"))
    for name, study in studies.items()
}
winners = pd.DataFrame(best).T.infer_objects()
used = pd.DataFrame({name: test(winners) for name, test in TECHNIQUES.items()}).astype(bool)
shown = winners[["tile", "cluster", "stages", "stagger", "raster", "swizzle"]].copy()
shown["techniques"] = [", ".join(used.columns[row]) for row in used.to_numpy()]
shown["split-K parts"] = winners.split_k.where(winners.split_k > 1, "")
for what in ("tiles", "waves", "efficiency"):
    shown[what] = [getattr(waves(config_of(row), PROBLEMS[name]), what) for name, row in best.items()]
shown["efficiency"] = shown.efficiency.round(2)
shown["from"] = ["search" if rows_of(study, "final").empty else "final" for study in studies.values()]
shown["speedup"] = winners.speedup.astype(float).round(3)
shown

# %%
print("winners that use it:", used.sum().to_dict())
print(f"SMs with a tile 97 % of the time or more: {(shown.efficiency >= 0.97).sum()} of {len(shown)}")
for name in ("tile", "cluster", "stages", "stagger", "k_depth", "raster", "swizzle", "schedule"):
    print(f"{name}: {', '.join(f'{value} {count}x' for value, count in winners[name].value_counts().items())}")
even = {name: len(next(iter(study.provenance.get("even", {}).values()), [])) for name, study in studies.items()}
print("finals that are even within the noise:", {name: count for name, count in even.items() if count})

# %% [markdown]
# There is a pattern. Most winners fill their waves: in 18 of 24 97 % or more of the SMs' time has a tile, by a tile
# that fits (176 columns for 28672, 168 for 2304, 200 for 8192 without clusters: 1312 tiles are 9.94 waves of 132
# SMs), or by split-K until 128 tiles are there. Most large problems take 256 rows and as many columns as leave three
# stages; 4096^3, where that would not fill the waves, takes 128x256. All but four take stagger 0, as the stagger
# study said. Clusters of more than two won once, of eight, on 3000x5000x2056; split-K always went through a
# workspace; ping-pong won where k is 256, four steps of the loop, and a tile's store would otherwise be longer than
# its math. Wide chunks (`epi_n` an odd multiple of 8) won eight times, single CTAs nine times, `swap_ab` 13 of 24 and
# raster m and n 12 each.
#
# How much do the choices matter? For each search the best row that has it, against the best of all. What was tried
# seldom looks worse than it is, since the search spent its time elsewhere; empty cells were not tried.

# %%
CHOICES = {
    **TECHNIQUES,
    "not swap_ab": lambda rows: ~rows.swap_ab.astype(bool),
    "no PDL": lambda rows: ~rows.pdl.astype(bool),
    "single CTAs": lambda rows: rows.cluster_m * rows.cluster_n == 1,
    "clusters of two": lambda rows: rows.cluster_m * rows.cluster_n == 2,
    "of four, eight": lambda rows: rows.cluster_m * rows.cluster_n > 2,
    "stagger 1": lambda rows: rows.stagger == 1,
}
worth = {}
for name, study in studies.items():
    rows = rows_of(study, "sweep").query("status == 'ok'")
    worth[name] = {what: rows[test(rows)].speedup.max() / rows.speedup.max() for what, test in CHOICES.items()}
worth = pd.DataFrame(worth).T.astype(float)
figure, axis = plt.subplots(figsize=(10, 6.4), layout="constrained")
image = axis.imshow(worth, cmap="viridis", vmin=0.9, vmax=1, aspect="auto")
for (i, j), value in np.ndenumerate(worth.to_numpy()):
    if np.isfinite(value):
        text, colour = f"{value:.3f}" if value < 1 else "best", "black" if value > 0.965 else "white"
        axis.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
axis.set_xticks(range(len(worth.columns)), worth.columns, rotation=40, ha="right", fontsize=8)
axis.set_yticks(range(len(worth)), worth.index, fontsize=8)
figure.colorbar(image, ax=axis, label="best row with it / best row of the search", extend="min", aspect=40)
plt.show()

# %% [markdown]
# Next to the tile itself: stagger 1 costs up to 5 % on large problems (14 % on one with split-K); PDL wins or is
# within 2 % wherever it was tried, and without it 1024^3 is 22 % behind, in few rows, 2048^3 3 % and the others about
# 1 %. Not to swap costs 10 and 15 % on 1024^3 and 16x6144x4096; elsewhere swapping moves at most 2 % either way.
# Stream-K is within 1 % on some large problems, the best on one (and in the finals of 16384^3), and 8 to 12 % behind
# on flat ones, 2304x2304x4096 and 3000x5000x2056. Split-K through a cluster come within 1 % on 256x4096x14336 and
# nowhere else. The ping-pong rows are 9 to 14 % behind on the squares.
#
# ## How the search went
#
# `legal` counts the configs that obey the rules; the model keeps some hundreds of ways to compile and 12 of them
# start the search. A config that is behind after one pair gets no second one. `GPU waits` is the share of the search
# in which nothing was being timed; it is left out where less work was noted than the pairs alone must have taken.

# %%
search = {}
for name, study in studies.items():
    noted, rows = study.provenance, rows_of(study, "sweep")
    ok = rows[rows.status == "ok"].speedup.reset_index(drop=True)
    pairs = rows.pairs.fillna(0).astype(int)
    timed = 2 * sum(noted["protocols"][0][part] for part in ("rest", "warm", "timed")) * pairs.sum()
    known = (noted.get("at_work") or 0) >= timed  # else it was not noted, or not whole
    search[name] = {
        "legal": noted["points"] - sum(noted["skipped"].values()),
        "measured": len(ok),
        "seconds": noted["searched"],
        "a second": len(rows) / noted["searched"],
        "GPU waits, %": 100 * (1 - noted["at_work"] / noted["searched"]) if known else np.nan,
        "one pair only, %": 100 * (pairs == 1).mean(),
        "best row is trial": int(ok.idxmax()) + 1,
        "within 1 % by trial": int((ok >= 0.99 * ok.max()).idxmax()) + 1,
    }
search = pd.DataFrame(search).T
search.round(1)

# %%
print(f"{search.measured.sum():.0f} configs in {search.seconds.sum() / 60:.0f} minutes of search;", end=" ")
print(f"a problem has {search.legal.min():.0f} to {search.legal.max():.0f} legal ones")
print("medians:", search[["a second", "GPU waits, %", "one pair only, %"]].median().round(1).to_dict())
late, soon = search["best row is trial"] / search.measured, search["within 1 % by trial"] / search.measured
print(
    f"best row after {late.median():.0%} of the trials in the median; in the last tenth {(late > 0.9).sum()} times;",
    end=" ",
)
print(f"within 1 % of it after {soon.median():.0%}, trial {search['within 1 % by trial'].median():.0f}")

# %% [markdown]
# Three points a second, and the GPU hardly waits, with exceptions: on 65536x256x1024 and 65536x1024x256 it waited 84
# and 86 % of nearly three minutes, where k is split and on 16x6144x4096 a third to a half, and on 1234x4096x4096 71 %
# of its twelve seconds. The files do not say for what.
#
# In the median a row within 1 % of the best is the tenth. But five searches found their best in the last tenth,
# 1024^3 in its very last trial, 7 % ahead of what it had before, and 1024x1024x16384 one trial before its end. Those
# were not done. 16384^3 had time for 15 rows.
#
# ## How good the model was
#
# As it was then: it had been fitted to squares nearly all, and had seen no row of these.

# %%
parts = []
for name, study in studies.items():
    rows = rows_of(study, "sweep").query("status == 'ok'").copy()
    ran = [as_it_ran(config_of(row), PROBLEMS[name]) for row in rows.to_dict("records")]
    predicted = [1e6 * predict(config, PROBLEMS[name], pace=BEFORE).seconds for config in ran]
    rows = rows.assign(problem=name, predicted=predicted, behind=rows.speedup.max() / rows.speedup)
    parts.append(rows.assign(error=rows.predicted / rows.time_us))
said = pd.concat(parts, ignore_index=True)
dense = said.problem.map(CLASSES).isin(["square", "layer"])
halves = (("squares, layers", said[dense]), ("ragged, deep or flat", said[~dense]))
figure, axes = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained", sharey=True)
for axis, (title, part) in zip(axes, halves, strict=True):
    for number, (name, rows) in enumerate(part.groupby("problem", sort=False)):
        mark = "o^"[number // 10]
        axis.scatter(rows.behind, rows.error, s=10, color=f"C{number % 10}", marker=mark, label=name)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks([1, 1.2, 1.5, 2, 3, 4], ["1", "1.2", "1.5", "2", "3", "4"])
    axis.set_yticks([0.6, 0.8, 1, 1.2, 1.5], ["0.6", "0.8", "1", "1.2", "1.5"])
    axis.minorticks_off()
    axis.set_title(title)
    axis.set_xlabel("best speedup of the search / speedup")
    axis.legend(fontsize=7, ncol=2)
axes[0].set_ylabel("predicted / measured")
plt.show()


# %%
def rms(errors: pd.Series) -> float:
    """Of the logarithms, %."""
    return 100 * float(np.sqrt((np.log(errors) ** 2).mean()))


def judged(rows: pd.DataFrame) -> dict[str, float]:
    """How good the model was on the rows of a search."""
    best = rows.behind.idxmin()
    return {
        "rows": len(rows),
        "rms, %": rms(rows.error),
        "rms within 15 %, %": rms(rows.error[rows.behind < 1.15]),
        "winner, predicted / measured": rows.error[best],
        "winner's rank": rows.predicted.rank()[best],
        "rank correlation": rows.predicted.rank().corr(rows.behind.rank()),
        "first choice behind, %": 100 * (rows.behind[rows.predicted.idxmin()] - 1),
    }


quality = pd.DataFrame({name: judged(rows) for name, rows in said.groupby("problem", sort=False)}).T
print("medians:", quality.median().round(2).to_dict())
near = said.behind < 1.15
print(f"rms of all {len(said)} rows {rms(said.error):.1f} %,", end=" ")
print(f"of the {near.sum()} within 15 % {rms(said.error[near]):.1f} %")
quality.round(2)

# %% [markdown]
# Times are right to 5 % among the good configs, to 8 % among all. But within a search the model does not rank: the
# median rank correlation is 0.02, and the winner stands at rank 40 of 95 by prediction. That is less damning than it
# looks, since these rows are what the model had already chosen from thousands; but it means that the search, not the
# model, finds the winner. Its own first choice is 3.4 % behind in the median, and 12 to 38 % behind on 1024^3,
# 2304x2304x4096, 3000x5000x2056 and 65536x1024x256; a problem without a recorded config may be served badly, as
# 2304x2304x4096 was.
#
# Where it is wrong: 1024^3, whose winner takes 70 % of the time predicted (it does not know of PDL), and
# 3000x5000x2056, where it is up to 40 % too optimistic. Does it misjudge PDL in general? Among the rows within 15 %
# of the best:

# %%
launched = said[said.problem.isin(said.problem[said.pdl.astype(bool)]) & near]
launched.pivot_table(index="problem", columns="pdl", values="error", aggfunc=["median", "count"], sort=False).round(2)

# %% [markdown]
# No: the medians of rows with and without differ by at most 5 %, and at 16x6144x4096, where PDL loses, in the other
# direction. At 1024^3 all good rows use PDL.
#
# ## What cuBLASLt chose
#
# Names as cuBLAS writes them: tile, depth and stages, cluster. `coop` we take to say that both consumers share a
# tile, as in our default; what is not `coop` and has two consumers' worth of registers should then be ping-pong. The
# names do not say so.

# %% [markdown]
# Since then its constants have been fitted to these rows too, with a few more of them: what a launch hides by PDL,
# what a chunk costs, what split-K through a workspace costs. How much better does that fit?

# %%
pairs = [(config_of(row), PROBLEMS[row["problem"]]) for row in said.to_dict("records")]
fitted = said.assign(predicted=[1e6 * predict(as_it_ran(*pair), pair[1], pace=FITTED).seconds for pair in pairs])
fitted["error"] = fitted.predicted / fitted.time_us
again = pd.DataFrame({name: judged(part) for name, part in fitted.groupby("problem", sort=False)}).T
print("medians:", again.median().round(2).to_dict())
print(f"rms within 15 % of the best: {rms(fitted.error[near]):.1f} %")
again.round(2)

# %% [markdown]
# The error near the best falls from 5.2 to 3.9 %, the median rank correlation rises from 0.02 to 0.34, and its first
# choice is 2.9 % behind in the median instead of 3.4 %, at worst 11 % (2304x2304x4096) instead of 38 %. These rows are
# chained and of an early kernel, and count for less in the fit than isolated ones of the present kernel. Fitted to
# chained rows alone, as it was for a while, the model was off by 2.9 % here. It still takes a search to find the
# winner.

# %%
NAMED = re.compile(r"(\d+)x(\d+)_\d+x\d+_(\d)x(\d)_")
lead = {}
for name, row in against["cublaslt"].iterrows():
    tall, wide, *_ = map(int, NAMED.search(row.baseline_kernel).groups())
    rows = said[said.problem == name]
    like = rows[rows.tile.isin([f"{tall}x{wide}", f"{wide}x{tall}"])]
    lead[name] = {
        "speedup": row.speedup,
        "cuBLASLt ran": row.baseline_kernel.removeprefix("nvjet_sm90_tst_").split("+")[0],
        "split-K parts": int(re.search(r"split_k=(\d+)", row.choice)[1]),
        "faster than torch.mm": against["cublas"].baseline_us[name] / row.baseline_us,
        "we ran": str(served[name]).split(" ")[0] + f" {served[name].cluster_m}x{served[name].cluster_n}",
        "our rows of its tile": len(like),
        "pingpong of them": int((like.schedule == "pingpong").sum()),
        "best of them": like.speedup.max() / rows.speedup.max(),
    }
lead = pd.DataFrame(lead).T.sort_values("speedup")
lead.astype({"speedup": float, "faster than torch.mm": float, "best of them": float}).round(3)

# %%
lone = ~lead["cuBLASLt ran"].str.contains("coop")
odd = lead["cuBLASLt ran"].str.match("1[67][68]x128")
print(f"not coop: {lone.sum()} of {len(lead)}, 176x128 or 168x128: {odd.sum()}")
for label, part in (("176x128 or 168x128", odd), ("other not coop", lone & ~odd), ("coop", ~lone)):
    print(f"{label}: our geometric mean {mean(lead.speedup[part]):.3f}, least {lead.speedup[part].min():.3f},", end=" ")
    print(f"theirs over torch.mm {mean(lead['faster than torch.mm'][part]):.3f}")
grid = next(one for one in studies["8192x8192x8192"].provenance["spec"]["grids"] if one.get("schedule") == "pingpong")
print("ping-pong tiles in the search:", grid["tile_m"], "by", grid["tile_n"])
pings = said[said.schedule == "pingpong"]
print(f"{len(pings)} ping-pong rows, of them on 65536x1024x256 {(pings.problem == '65536x1024x256').sum()}")

# %% [markdown]
# Where cuBLASLt has something better than `torch.mm` it is a kernel without `coop`: 176x128 and 168x128 with five
# stages on six problems, on average 3.3 % faster than what `torch.mm` runs. They do not beat us (but on
# 2304x2304x4096, where we ran the model's choice); they take most of our lead, to 1.004 on 8192x6144x4096 and 1.012
# on 1024x28672x4096. Our search has no such tile as ping-pong: of 128 rows or 64, its columns were 64, 96, 128, 160,
# 192 and 256. At 65536x1024x256, the one problem that our ping-pong won, it did so with 128x128.
#
# Where cuBLASLt is ahead of us it has other kernels:
#
# - 512x512x65536: the same tile, 128x128, and as many split-K parts, eight, added up by a second kernel. As many
#   clocks, a higher clock.
# - 1024x1024x16384: 128x64 with eight stages and k whole, 128 tiles for 132 SMs. Our search measured four rows of
#   that tile, two of them ping-pong, and none came near.
# - 2048^3: 128x128, not `coop`, against our 256x128. Our one row of this kind, ping-pong, was 11 % behind, in one
#   pair.
# - 64x28672x4096: 128x64 in clusters of four, by 1.4 %. Our search has such clusters; of the 83 rows four had one,
#   the best 3 % behind.
#
# ## What we take from it
#
# - Ahead of `torch.mm` on 17 of 19 problems, by 4.0 % in the mean; ahead of the best of cuBLASLt on 14 of 19, by 2.1
#   %. The targets, 6 % and 4 % and nowhere behind, were missed.
# - Ragged sizes have no comparison yet. Their searches say 0.995 to 1.027 over `torch.mm`.
# - Of what is behind, 2304x2304x4096 is the search's affair, which had no final, and 512x512x65536 the clock's.
# - Next: ping-pong with tiles in steps of 8 columns, so that 168x128 and 176x128 are among them; deep rings of 128x64
#   for 128 tiles; more than one pair where PDL is used; longer searches for short problems, which found their best
#   last.
# - Large problems are within 3 % of what the chip has ever shown. What is left to win there is energy.
