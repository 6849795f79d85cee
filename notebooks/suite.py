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
# # The suite a third time, twenty drawn problems, and the power wall
#
# In the [second run](suite_second.ipynb) the kernel was ahead of cuBLAS by less than was aimed at, and behind on one
# problem of 24. Since then it can load alternate tiles in reversed K order (`reverse_k`), let producers wait for one
# another every so many stages (`pace`), ask the L2 to drop C first (`evict_c`), and walk in groups of any width up to
# 32. A burst now rests longer after launches of many milliseconds. 14 problems were searched again; ten kept the
# configs of the second run.
#
# Targets: on the suite geometric means of 1.06 over `torch.mm` and 1.04 over the best of sixteen algorithms of
# cuBLASLt, and no problem below 1.00; the same means on problems drawn by a seed; in steady state 1.04 on all five
# problems that are marked for it, and at most 0.98 pJ/FLOP at 8192^3. Measured on NVIDIA H200s, bf16. Everything is
# computed from `results/h200/`; no GPU is needed to run it again. Every timing here is chained (launches of one
# kernel back to back); rows do not name their board.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import waves
from hopper_gemm.model.rules.problem import filled_up
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.parameters import FIELDS, all_values
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.tables.compare import by_baseline
from hopper_gemm.tune.tables.compare import geometric_mean as mean
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import best_row, config_of, rows_of, short_label
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"
BASELINES = {"cublas": "over torch.mm", "cublaslt": "over the best of cuBLASLt"}
TARGETS = {"cublas": 1.06, "cublaslt": 1.04}


def problems_of(name: str) -> dict[str, GemmProblem]:
    """The problems of a list by name, in its order."""
    found = read_shapes(results.parents[1] / f"sweeps/shapes/{name}.toml").of_regime("burst")
    return {str(problem): problem for problem in found}


def compared(folder: str) -> dict[str, pd.DataFrame]:
    """A comparison's cells by baseline, one for each problem; all of them chained."""
    return by_baseline(read_study(results / folder), "chained")


def with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that ran, with a short name of their config."""
    ran = rows[rows.status == "ok"]
    return ran.assign(name=[short_label(config_of(row)) for row in ran.to_dict("records")])


def names_of(rows: pd.DataFrame) -> pd.Series:
    """The short names of a comparison's configs."""
    return with_names(rows).name


def figures(run: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Speedups with their intervals, and those against the faster baseline, problem by problem."""
    found = pd.DataFrame(index=run["cublas"].index)
    for against, frame in run.items():
        for end in ("", "_low", "_high"):
            found[against + end] = frame["speedup" + end].astype(float)
    behind = found.cublaslt < found.cublas
    for end in ("", "_low", "_high"):
        found["stricter" + end] = found["cublaslt" + end].where(behind, found["cublas" + end])
    return found


PROBLEMS = problems_of("suite")
CLASSES = pd.Series(dict(zip(PROBLEMS, 6 * ["square"] + 9 * ["layer"] + 4 * ["ragged"] + 5 * ["deep"], strict=True)))
now, before = compared("suite"), compared("suite-second")
found, then = figures(now), figures(before)
about = {run: read_study(results / run).provenance for run in ("suite", "suite-second", "suite-auto", "drawn")}
configs = {name: [config_of(run["cublas"].loc[name].to_dict()) for run in (before, now)] for name in PROBLEMS}
kept = [name for name, (one, other) in configs.items() if one == other]
studies = [read_study(folder) for folder in sorted((results / "suite").glob("tune-*"))]
print(f"{source_line({**about['suite'], 'source': 'measured'})} {len(found)} of {len(PROBLEMS)} problems compared")
seconds = pd.Series([study.provenance["searched"] for study in studies])
tried = sum(len(study.stage("sweep")) for study in studies)
print(f"{len(studies)} searches, {seconds.median():.0f} s each, {tried} configs;")
print(f"{len(kept)} kept their config:", ", ".join(kept))
boards = {run: one["gpu"]["uuid"] for run, one in about.items()}
print("the second run was on the same board:", boards["suite"] == boards["suite-second"], end="; ")
print("suite-auto:", boards["suite"] == boards["suite-auto"])

# %% [markdown]
# ## How fast
#
# All of it in one process on one board, medians of 15 pairs. `faster of the two` is against whichever of `torch.mm`
# and cuBLASLt's choice leaves us the lesser speedup. `C first` is `evict_c`; n4 and m8 are walks.

# %%
table = pd.DataFrame({"class": CLASSES, "us": now["cublas"].time_us, "TFLOP/s": now["cublas"].tflops}).loc[[*PROBLEMS]]
table["over torch.mm"], table["second run"] = found.cublas, then.cublas
table["over cuBLASLt"], table["second run "] = found.cublaslt, then.cublaslt
table["faster of the two"] = found.stricter
table["config"] = names_of(now["cublas"])
total = {name: mean(table[name]) if " " in name else np.nan for name in table.columns[1:-1]}
table.loc["geometric mean"] = {"class": "", **total, "config": ""}
with pd.option_context("display.max_colwidth", 60):
    display(table.round({"us": 1, "TFLOP/s": 0, **dict.fromkeys(table.columns[3:-1], 3)}))

# %%
places = {name: -place for place, name in enumerate(PROBLEMS)}
figure, axis = plt.subplots(figsize=(9, 7.6), layout="constrained")
for against, shift, colour in (("cublas", 0.14, "C0"), ("cublaslt", -0.14, "C3")):
    at = [places[name] + shift for name in found.index]
    sides = [found[against] - found[f"{against}_low"], found[f"{against}_high"] - found[against]]
    axis.errorbar(found[against], at, xerr=sides, fmt="o", markersize=5, color=colour, label=BASELINES[against])
    old = then.loc[found.index, against]
    axis.plot(old, at, "o", markersize=5, mfc="none", color=colour, alpha=0.6)
axis.plot([], [], "o", markersize=5, mfc="none", color="0.4", label="in the second run")
axis.axvline(1, color="black", linewidth=0.8)
for kind, part in CLASSES.groupby(CLASSES, sort=False):
    top = places[part.index[0]]
    axis.axhline(top + 0.5, color="0.8", linewidth=0.8)
    axis.text(1.188, top + 0.05, kind, ha="right", va="center", fontsize=9, color="0.4")
axis.set_yticks(list(places.values()), list(places))
axis.set_ylim(min(places.values()) - 0.6, 0.6)
axis.set_xlim(0.965, 1.19)
axis.grid(axis="x", alpha=0.3)
axis.set_xlabel("speedup, burst; above 1 our kernel is faster")
axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.42))
plt.show()

# %%
for against, label in {**BASELINES, "stricter": "over the faster of the two"}.items():
    low, high = found[f"{against}_low"], found[f"{against}_high"]
    aim = f", target {TARGETS[against]}" if against in TARGETS else ""
    print(f"{label}: {mean(found[against]):.3f}{aim} (second run {mean(then[against]):.3f});", end=" ")
    print(f"ahead {(low > 1).sum()}, behind {found.index[high < 1].tolist()},", end=" ")
    print(f"even {found.index[(low <= 1) & (high >= 1)].tolist()}")
close = found[found.stricter < 1.005]
big = "16384x16384x16384"
print(
    f"without 16384^3 over torch.mm: {mean(then.cublas.drop(big)):.3f}, now {mean(found.cublas.drop(big)):.3f};",
    end=" ",
)
print(f"over the faster of the two: {mean(then.stricter.drop(big)):.3f}, now {mean(found.stricter.drop(big)):.3f}")
rise = np.log(found.cublas / then.cublas)
print(f"16384^3 has {rise[big] / rise.sum():.0%} of the first mean's rise")
print("within 0.5 % of even or below:", {name: round(value, 3) for name, value in close.stricter.items()})
drift = 100 * (found.cublas / then.cublas - 1)[kept]
print(f"configs kept: change over torch.mm {drift.min():.1f} ({drift.idxmin()}) to", end=" ")
print(f"{drift.max():.1f} % ({drift.idxmax()}), mean {drift.mean():.2f} %")

# %% [markdown]
# 1.048 over `torch.mm` and 1.035 over cuBLASLt: still short of 1.06 and 1.04. Over the faster of the two on each
# problem it is 1.034. The whole interval is above 1 on 23 of 24 over `torch.mm`, and on 21 over cuBLASLt, where two
# are even. 512x512x65536 is behind both, and with it the third target was missed.
#
# In the second run the means were 1.044, 1.031 and 1.029. 57 % of the first one's rise is 16384^3 alone; without it
# the mean went from 1.045 to 1.047. What board and evening do by themselves is seen on the ten problems that kept
# their config: -1.2 to 1.1 % singly, -0.19 % in the mean. The 0.1 % of 1234x4096x4096 is no lead beside that.
#
# ## What moved
#
# The 14 problems with another config, between the two runs. Boards differ, and so `torch.mm` stands beside ours.
# `clocks` is time times SM clock: what a time owes to work and waiting, and the rest to the clock. `SM, ours` and
# `SM, torch` are MHz in the third run; `tensor` is how much of the tensor cores' peak at its clock a side kept busy,
# theirs from its rate and ours.

# %%
ours, old = now["cublas"], before["cublas"]
moved = pd.DataFrame(index=[name for name in PROBLEMS if name not in kept])
moved["speedup, %"] = 100 * (found.cublas / then.cublas - 1)
moved["ours, time, %"] = 100 * (ours.time_us / old.time_us - 1)
moved["clocks, %"] = 100 * (ours.time_us * ours.sm_mhz / (old.time_us * old.sm_mhz) - 1)
moved["SM, %"] = 100 * (ours.sm_mhz / old.sm_mhz - 1)
moved["torch, time, %"] = 100 * (ours.baseline_us / old.baseline_us - 1)
moved["torch, SM, %"] = 100 * (ours.baseline_sm_mhz / old.baseline_sm_mhz - 1)
moved["SM, ours"], moved["SM, torch"] = ours.sm_mhz, ours.baseline_sm_mhz
moved["tensor, ours"] = ours.tensor_active
moved["tensor, torch"] = ours.tensor_active * ours.time_us * ours.sm_mhz / (ours.baseline_us * ours.baseline_sm_mhz)
values = {name: [all_values(config) for config in pair] for name, pair in configs.items()}
moved["new"] = [
    " ".join(f"{field}={new[field]}" for field in FIELDS if old[field] != new[field])
    for old, new in (values[name] for name in moved.index)
]
with pd.option_context("display.max_colwidth", 120):
    display(moved.astype(dict.fromkeys(moved.columns[:-1], float)).round(1))

# %%
numbers = moved.columns[:6]
print("all 14:", moved[numbers].astype(float).mean().round(2).to_dict())
rest = moved.drop(index=big)
print("without 16384^3:", rest[numbers].astype(float).mean().round(2).to_dict())
print("16384^3:", configs[big][0], "->", configs[big][1])
print(f"gained more than 0.3 %: {(moved['speedup, %'] > 0.3).sum()}, lost:", end=" ")
print(moved.index[moved["speedup, %"] < 0].tolist())
higher = (ours.sm_mhz > ours.baseline_sm_mhz).loc[moved.index]
print(f"our SM clock is above torch.mm's on {higher.sum()} of {len(moved)}; below on", end=" ")
print(higher.index[~higher].tolist())
busier = moved["tensor, ours"] > moved["tensor, torch"]
print(f"our tensor cores are the busier on {busier.sum()}, not on {busier.index[~busier].tolist()}")
counted = rows_of(read_study(results / "locality-counted"), "counters").dropna(subset="tile_m")
wide = counted[["tile_m", "tile_n", "multicast"]].drop_duplicates().to_dict("records")
print("counted, all of", wide)
counted["what"] = np.where(counted.reverse_k.astype(bool), "reverse_k", "") + np.where(counted.pace > 0, " pace", "")
for column, scale in (("dram_read_bytes", 1e9), ("duration_us", 1)):
    grid = counted.pivot_table(index="problem", columns="what", values=column, sort=False) / scale
    grid = grid.rename(columns={"": "neither", " pace": "pace", "reverse_k pace": "both"})
    grid["both, %"] = 100 * (grid["both"] / grid["neither"] - 1)
    print({"dram_read_bytes": "GB read from DRAM", "duration_us": "us under the counters"}[column])
    print(grid[["neither", "reverse_k", "pace", "both", "both, %"]].round(2).to_string())
per = counted.set_index(["problem", "what"])
for name in (big, "4096x8192x28672"):
    fewer = (per.dram_read_bytes[name, ""] - per.dram_read_bytes[name, " pace"]) / 1e9
    sooner = per.duration_us[name, ""] - per.duration_us[name, " pace"]
    print(f"{name}: pace saved {fewer:.2f} GB and {sooner:.0f} us, {sooner / fewer:.0f} us a GB")
odd = before["cublaslt"].baseline_us["8192x4096x14336"], now["cublaslt"].baseline_us["8192x4096x14336"]
print(f"cuBLASLt's choice at 8192x4096x14336: {odd[0]:.0f} us in the second run, {odd[1]:.0f} now")
print(f"16384^3: noise {ours.noise[big]:.3f}, ours {ours.time_us[big]:.0f} us", end=" ")
print(f"beside torch.mm and {now['cublaslt'].time_us[big]:.0f} beside cuBLASLt;", end=" ")
cube = best_row(rows_of(read_study(results / "pace-16384"), "final"))
print(f"its final: {cube.speedup:.3f} [{cube.speedup_low:.3f}, {cube.speedup_high:.3f}]")

# %% [markdown]
# Claimed before it was measured: `pace` brings 16384^3 from 19 to 25 GB of DRAM reads to about 7 and saves 4 % of the
# time; `reverse_k` saves 15 to 20 % of the reads and 0.5 % of the time at 8192^3, and 1 to 1.5 % at mid-size
# problems.
#
# - 16384^3: 19.48 GB became 7.75 by `pace` and 7.41 by both, and the time under the counters fell by 5.0 %; 46 us for
#   a GB. The comparison says 5.8 % over `torch.mm`, but tile and cluster changed too, and it strays: a noise of 2.4
#   %, our time 10527 us in one comparison and 10319 in the next, a final of 1.073 with an interval from 1.058 to 1.113.
# - 8192^3: half of the reads claimed, 8.5 % with both, in a narrower tile than the one that wins; 0.6 % of the time
#   with both, nothing with `reverse_k` alone. The comparison says 0.4 %.
# - mid-size: less than claimed. 4096^3, which changed in nothing but `reverse_k`, gained 0.7 %, 8192x6144x4096 0.7,
#   6144^3 0.4, 1024x28672x4096 0.1. 4000^3 gained 1.2, and got PDL as well.
# - 4096x8192x28672 gained most of the large ones after 16384^3, 1.1 %. `pace` saves 98 us for a GB there, twice as
#   much as at 16384^3: not the DRAM alone, and what else it saves we do not know.
# - 65536x256x1024 and 65536x1024x256, whose k is short, gained nothing: 0.0 and -0.3 %.
#
# The last columns say where it comes from. Without 16384^3 ours takes 0.5 % less time but 0.4 % more clocks: the SM
# clock is 0.9 % higher, while that of `torch.mm` is the same on both boards to 0.01 % in the mean. So what is saved
# is not waiting. Our reading is that bytes which do not come from DRAM cost no energy, and that the power cap turns
# this into clock; power is not read in a burst. At 16384^3, too, the clocks are the same (-0.2 %) and the clock is
# higher by 6.4 %. Only 3000x5000x2056 and 4000^3, which both use PDL now, need fewer clocks by more than that (-1.3
# and -0.3 %). [locality.ipynb](locality.ipynb) has the evidence, switch by switch.
#
# Ours runs at a higher clock than `torch.mm` on 10 of the 14 although its tensor cores are the busier on 13. And the
# second run's 1.074 over cuBLASLt on 8192x4096x14336 was a poor choice among its algorithms, 1206 us; now it takes
# 1168, as `torch.mm` does, and 1.044 is what is left.
#
# ## Where it is behind or even
#
# Against the baseline that leaves the lesser speedup: in time, and in clocks, as if both ran at one SM clock. `TB/s`
# is what our launch reads and writes at least, over its time. `modes` are the quartiles of their times in that
# comparison.

# %%
TIGHT = [*close.index, "3000x5000x2056"]
samples = {(str(row.point.problem), row.point.against): row.samples for row in read_study(results / "suite").rows}
tight = {}
for name in TIGHT:
    against = "cublaslt" if found.cublaslt[name] < found.cublas[name] else "cublas"
    row = now[against].loc[name]
    theirs_us = pd.Series([pair.baseline_us for pair in samples[name, against]])
    tight[name] = {"against": against, "speedup": row.speedup, "low": row.speedup_low, "high": row.speedup_high}
    tight[name] |= {"in clocks": row.speedup * row.baseline_sm_mhz / row.sm_mhz, "SM": row.sm_mhz}
    tight[name] |= {"SM, theirs": row.baseline_sm_mhz, "TB/s": PROBLEMS[name].bytes / row.time_us / 1e6}
    tight[name]["modes, us"] = theirs_us.quantile([0.25, 0.75]).round(2).tolist()
    tight[name] |= {
        "ours": names_of(now[against]).loc[name],
        "theirs": row.baseline_kernel.split("+")[0].split("_bz_")[0],
    }
tight = pd.DataFrame(tight).T
shown = tight.assign(theirs=tight.theirs.str.removeprefix("nvjet_sm90_tst_")).infer_objects()
with pd.option_context("display.max_colwidth", 60):
    display(shown.round({"speedup": 3, "low": 3, "high": 3, "in clocks": 3, "SM": 0, "SM, theirs": 0, "TB/s": 2}))
deep = {against: now[against].loc["512x512x65536"] for against in BASELINES}
print("512x512x65536, ours, us:", {against: f"{row.time_us:.2f}" for against, row in deep.items()}, end=", ")
print("theirs:", {against: f"{row.baseline_us:.2f}" for against, row in deep.items()})
for name in ("512x512x65536", "1024x1024x16384"):
    print(f"cuBLASLt's choice at {name}:", now["cublaslt"].choice[name], end="; ")
    print("torch.mm cuts k:", "splitK" in now["cublas"].baseline_kernel[name])
print(f"64x28672x4096: {tight['TB/s']['64x28672x4096'] / 4.8:.2f} of the 4.8 TB/s on the data sheet")

# %% [markdown]
# - 512x512x65536, 0.979: 4.0 % ahead in clocks, and all of it lost to the clock, 1506 MHz beside 1600. Both cut k in
#   8 and use the same tile. By our reading it is power again. Our time depends on the neighbour: 52.86 us beside
#   `torch.mm` and 53.24 beside cuBLASLt, same config, same process; the 0.990 over `torch.mm` has the lucky side.
# - 1234x4096x4096, 1.001: the tile of cuBLAS. 2.0 % ahead in clocks, again lost to the clock. Theirs is in clusters
#   of two, ours is not; fewer loads for them would explain the clock and are not shown here.
# - 1024x1024x16384, 1.003 with an interval from 0.993: the only one behind in clocks, 0.976. Theirs does not cut k
#   and runs in one of two modes, 48.06 or 48.67 us; ours lies between. Against `torch.mm`, which cuts k, it is 1.036.
# - 64x28672x4096, 1.003: the same tile, the same cluster, the same clock; 4.08 TB/s, 0.85 of the data sheet's. Both
#   wait for the DRAM, and there is little to gain.
# - 3000x5000x2056, 1.012: ahead, with tensor cores at 79 %. Its pitch is the odd one, see below.
#
# ## Without tuning
#
# `suite-auto` ran what `matmul` picks where the table of tuned configs lacks the problem: the model's choice from a
# menu, to which belongs whatever won another problem. Another board; against `torch.mm` alone. Is it enough?

# %%
auto = compared("suite-auto")["cublas"]
untuned = pd.DataFrame({"untuned": auto.speedup, "tuned": found.cublas}).loc[[*PROBLEMS]].astype(float)
untuned["kept, %"] = 100 * untuned.untuned / untuned.tuned
untuned["SM"], untuned["SM, tuned"] = auto.sm_mhz, ours.sm_mhz
untuned["tensor"], untuned["tensor, tuned"] = auto.tensor_active, ours.tensor_active
untuned["picked"], untuned["won"] = names_of(auto), names_of(ours)
rounds = {}
for name in PROBLEMS:
    fall = waves(config_of(auto.loc[name].to_dict()), PROBLEMS[name])
    rounds[name] = fall.tiles / fall.slots
untuned["rounds"] = pd.Series(rounds)
shown = untuned.sort_values("untuned").astype({"SM": float, "tensor": float})
shown = shown[["untuned", "tuned", "kept, %", "SM", "SM, tuned", "tensor", "tensor, tuned", "rounds", "picked", "won"]]
with pd.option_context("display.max_colwidth", 70):
    display(
        shown.head(12).round(
            {"untuned": 3, "tuned": 3, "kept, %": 1, "rounds": 2}
            | dict.fromkeys(("SM", "SM, tuned", "tensor", "tensor, tuned"), 0)
        )
    )
worst = "3000x5000x2056"
print(f"untuned {mean(untuned.untuned):.3f}, tuned {mean(untuned.tuned):.3f} over torch.mm;", end=" ")
print(f"without {worst}: {mean(untuned.untuned.drop(worst)):.3f} and {mean(untuned.tuned.drop(worst)):.3f}")
print(f"whole interval above 1 on {(auto.speedup_low > 1).sum()}, below on {(auto.speedup_high < 1).sum()};", end=" ")
print(
    f"torch.mm took {100 * (auto.baseline_us / ours.baseline_us - 1).median():.1f} % longer in the median than beside",
    end=" ",
)
print("the tuned ones")

# %%
same = auto.index[auto.code == auto.code[worst]].tolist()
print("the machine code picked there is that of", same)
for name in ("4000x4000x4000", worst):
    pitch, problem = 2 * PROBLEMS[name].k, PROBLEMS[name]
    start = pitch * np.arange(64)
    lines, sectors = [((start % size + 127) // size + 1).mean() for size in (128, 32)]
    print(
        f"{name}: pitch {pitch} bytes, {pitch % 128} beyond a multiple of 128; a row of a box, 128 bytes, touches",
        end=" ",
    )
    print(f"{sectors:.2f} sectors and {lines:.2f} lines on average;", end=" ")
    print(f"k fills {problem.k / (-(-problem.k // 64) * 64):.3f} of its stages, {rounds[name]:.2f} rounds;", end=" ")
    print(f"{auto.speedup[name]:.3f}, tensor {auto.tensor_active[name]:.0f} % at {auto.sm_mhz[name]:.0f} MHz")
by_cluster = {}
for name in ("4000x4000x4000", worst):
    part = with_names(rows_of(next(study for study in studies if name in study.provenance["study"]), "sweep"))
    part = part[part.split_k == 1]
    top = part.loc[part.groupby("cluster").speedup.idxmax()].set_index("cluster")
    top = top[["name", "speedup", "tensor_active", "sm_mhz", "pairs"]].assign(rows=part.groupby("cluster").size())
    by_cluster[name] = top.rename(columns={"tensor_active": "tensor", "sm_mhz": "SM"})
pd.concat(by_cluster).round({"speedup": 3, "tensor": 0, "SM": 0})

# %% [markdown]
# It is even with `torch.mm`, no more: 0.994 untuned beside 1.048 tuned; 14 ahead, 10 behind. One problem makes 1.1 %
# of that mean: without 3000x5000x2056 it is 1.005 beside 1.050. What tuning adds, then, is about 5 %. The worst
# picks:
#
# - 3000x5000x2056, 0.775. The same machine code is picked for 4000^3 and reaches 1.016 there. Rounds and the filling
#   of stages are alike; the tensor cores are busy 55 % instead of 93, at a high clock: they wait. The pitch differs.
#   With 4112 bytes half of the rows of a box touch five sectors instead of four, and 7 of 8 touch two lines, 1.88 on
#   average where 4000^3 has 1.50 (if a matrix begins at a multiple of 128). The model that picked knew no pitch. That
#   this is the cause is a supposition. For it speaks that sharing loads matters more: at 4000^3 single CTAs lose 1.3
#   % to the best cluster, here 15 % (but of one row). Against it: 12 % more sectors and 25 % more lines do not by
#   themselves bring tensor cores from 93 to 55 %.
# - 1024x28672x4096 and 8192x6144x4096, 0.95: ping-pong tiles of 128x176, whose tensor cores are at 86 and 87 % where
#   the winners have 93. The model thinks too well of them.
# - 512x512x65536, 0.955: split-K into 16 parts of a wide tile instead of 8.
# - 16384^3, 0.961, and 4096x8192x28672, 0.991: the tensor cores are as busy as the winner's, 98 %; the clock is 1463
#   beside 1574 and 1535 beside 1635. The picks are 128x256 with stream-K and without `pace`.
# - 1024^3 keeps least after the first of these, 84 %: 0.978 of 1.162.
#
# ## Problems drawn by a seed
#
# Twenty, drawn by a seed, each searched for about 4 s and decided by at most two finals. Seven have an n and a k that
# are no multiples of 8: TMA cannot reach their matrices, and `matmul` runs them filled up, on copies of A and B and
# with a copy of C back. The comparison times all of that. The 13 others were compared in an earlier run of the same
# evening on another board. `copies` is how much longer it takes than the final of the problem filled up, which had
# its matrices aligned from the start, and `MB` what the copies read and write.

# %%
DRAWN = problems_of("drawn")
lines = (results.parents[1] / "sweeps/shapes/drawn.toml").read_text().splitlines()
kinds = [line.rsplit("# ", 1)[1] for line in lines if line.strip().startswith("{ m")]
drawn = figures(compared("drawn")).loc[[*DRAWN]].assign(kind=kinds)
drawn["us"] = compared("drawn")["cublas"].time_us
drawn["torch.mm, us"] = compared("drawn")["cublas"].baseline_us
drawn["filled up"], spent, on = "", {}, set()
for name, problem in DRAWN.items():
    filled = filled_up(problem)
    study = read_study(results / f"drawn/tune-{filled.m}x{filled.n}x{filled.k}-burst")
    spent[name] = study.provenance["searched"]
    on.add(study.provenance["gpu"]["uuid"])
    if filled == problem:
        continue
    row = best_row(rows_of(study, "final"))
    drawn.loc[name, "filled up"] = f"{filled.m}x{filled.n}x{filled.k}"
    drawn.loc[name, ["its us", "its torch.mm, us", "its speedup"]] = row.time_us, row.baseline_us, row.speedup
    drawn.loc[name, "copies, us"] = drawn.us[name] - row.time_us
    drawn.loc[name, "MB"] = (problem.bytes + filled.bytes) / 1e6
drawn["TB/s"] = drawn.MB / drawn["copies, us"]
print(
    f"searched {pd.Series(spent).median():.1f} s in the median, at most {max(spent.values()):.1f}, on {len(on)} boards"
)
shown = ["kind", "us", "cublas", "cublas_low", "cublas_high", "cublaslt", "cublaslt_low", "cublaslt_high"]
display(drawn[shown].round({"us": 1, **dict.fromkeys(shown[2:], 3)}))
copied = drawn[drawn.MB.notna()]
columns = ["us", "torch.mm, us", "cublas", "filled up", "its us", "its torch.mm, us", "its speedup", "copies, us", "MB"]
digits = {"cublas": 3, "its speedup": 3, "TB/s": 2}
copied[[*columns, "TB/s"]].round({**dict.fromkeys(columns, 1), **digits})

# %%
reach = drawn[drawn.MB.isna()]
for label, part in (("all", drawn), ("TMA reaches", reach), ("through copies", copied), *reach.groupby("kind")):
    print(
        f"{label}, {len(part)}: {mean(part.cublas):.3f} over torch.mm, {mean(part.cublaslt):.3f} over cuBLASLt,",
        end=" ",
    )
    print(f"{mean(part.stricter):.3f} over the faster; {part.cublas.min():.3f} to {part.cublas.max():.3f};", end=" ")
    print(f"behind {part.index[part.stricter_high < 1].tolist()}")
for name in ("896x3648x320", "6912x384x13120"):
    row = compared("drawn")["cublas"].loc[name]
    in_clocks = row.speedup * row.baseline_sm_mhz / row.sm_mhz
    print(f"{name}: {row.speedup:.3f} in time, {in_clocks:.3f} in clocks,", end=" ")
    print(f"{row.sm_mhz:.0f} MHz beside {row.baseline_sm_mhz:.0f}, tensor {row.tensor_active:.0f} %,", end=" ")
    fall = waves(config_of(row.to_dict()), DRAWN[name])
    print(f"{fall.tiles / fall.slots:.2f} rounds of {names_of(compared('drawn')['cublas'])[name]}")
print(f"mean of the seven filled up, without copies: {mean(copied['its speedup']):.3f};", end=" ")
print(f"torch.mm on the seven as they are: {len(copied[copied.cublas > 1])} of 7 slower than ours;", end=" ")
slower = copied["torch.mm, us"] / copied["its torch.mm, us"]
print(f"torch.mm takes {slower.min():.1f} to {slower.max():.1f} times as long as on the filled one")
print("it would lead if copies took, us:", (copied["torch.mm, us"] - copied["its us"]).round(1).to_dict())

# %% [markdown]
# The means are above both targets, 1.138 and 1.122, and this says little, since they are of two kinds. Where TMA
# reaches it is 1.279 and 1.249 (1.248 over the faster), ahead on 11 of 13: most are small or skinny, and cuBLAS's
# choice is not good there: by up to 57 %. Behind are 6912x384x13120, 0.962, and 896x3648x320, 0.986. The first is
# power again: 0.999 in clocks, 1437 MHz beside 1491. The second is not, and has no explanation yet.
#
# Through copies it is 0.916 and 0.919: ahead on two, behind on five, at worst 0.618. The kernel is not what is slow:
# filled up, the seven are at 1.201 in the mean. Copies take 10.7 us at the least, for 1.5 MB, 0.14 TB/s: there they
# cost launches, and the kernel itself takes 2.4 us. At the largest they reach 2 TB/s and take more than the kernel,
# 75 us beside 55, and yet it leads by 1.563 and 1.805, since `torch.mm` takes 2.2 to 3.8 times as long as on the
# filled problem. To be even, copies would have to take 6.1 us on 628x89x444 and 35.6 instead of 45.4 on
# 2881x110x6881. A kernel that pads while it loads, or one launch for all copies, would be the way; on small ones
# `torch.mm` itself is.
#
# ## At the power wall
#
# Finals in steady state: two processes, one run of two slices in each, alternating between ours and cuBLAS's.
# steady-d is older, without `reverse_k` and `pace`. `pj_per_flop` is from the recorded energy, which scatters more
# than the time does; `from time` is the median power of all finals times the time of a launch.

# %%
STARRED = ("4096x4096x4096", "8192x8192x8192", "8192x4096x14336", "4096x8192x28672", "8192x10240x8192")
wall = {name: read_study(results / name) for name in ("steady-d", "steady-f", "steady-g", "steady-h")}
ends = pd.concat([with_names(rows_of(study, "final")) for study in wall.values()], ignore_index=True)
rows = pd.concat([with_names(rows_of(study, "sweep")) for study in wall.values()], ignore_index=True)
watts = ends[["watts", "baseline_watts"]].stack().median()
ends["from time"] = [watts * row.time_us * 1e6 / PROBLEMS[row.problem].flop for row in ends.itertuples()]
ends["board"] = ends.study.map({name: study.provenance["gpu"]["uuid"][4:8] for name, study in wall.items()})
ends = ends.assign(at=ends.problem.map({name: place for place, name in enumerate(STARRED)}))
ends = ends.sort_values(["at", "study"]).set_index("problem")
shown = ["study", "board", "speedup", "speedup_low", "speedup_high", "pj_per_flop", "baseline_pj_per_flop"]
shown += ["from time"]
shown += ["sm_mhz", "baseline_sm_mhz", "watts", "baseline_watts", "name"]
with pd.option_context("display.max_colwidth", 70):
    display(ends[shown].round({"sm_mhz": 0, "baseline_sm_mhz": 0, "watts": 0, "baseline_watts": 0}).round(3))

# %%
best = ends.groupby(level=0, sort=False).speedup.max()
print("best final of each:", best.round(3).to_dict(), f"mean {mean(best):.3f};", end=" ")
print(f"1.04 reached on {best.index[best >= 1.04].tolist()}")
print(f"median power {watts:.0f} W;", end=" ")
least = ends.groupby(level=0, sort=False).speedup_low.max()
print("lower ends of the intervals, the highest of each:", least.round(3).to_dict())
cubes = ends.loc["8192x8192x8192"]
print("pJ/FLOP at 8192^3 in the finals:", cubes.pj_per_flop.round(3).tolist(), "cuBLAS:", end=" ")
print(cubes.baseline_pj_per_flop.round(3).tolist(), end="; ")
enough = rows[(rows.problem == "8192x8192x8192") & (rows.pj_per_flop <= 0.98)]
print(f"rows at 0.98 or less: {len(enough)} of {(rows.problem == '8192x8192x8192').sum()},", end=" ")
print(enough.groupby("study").pj_per_flop.apply(lambda part: part.round(3).tolist()).to_dict())

# %% [markdown]
# 1.04 was reached on one of five: 8192^3, 1.071 on two boards, with the whole interval above. Just short are
# 8192x4096x14336, 1.039, 4096x8192x28672 and 8192x10240x8192, 1.038 each (the lower ends are 1.038, 1.024 and 1.024);
# 4096^3 has 1.012. The mean is 1.039. `reverse_k` and `pace` did not help 8192x4096x14336: 1.039 without and 1.037
# with, on different boards.
#
# 0.98 pJ/FLOP at 8192^3 was missed in the finals: 0.985 and 0.993, beside 1.061 and 1.056 of cuBLAS. Six of nine rows
# of one run each have 0.968 to 0.979, and from the time the second final has 0.978. It is within what the counter
# scatters, and not confirmed.
#
# ## What we take from it
#
# - Suite: 1.048 over `torch.mm` (target 1.06, missed), 1.035 over cuBLASLt (1.04, missed), 1.034 over the faster of
#   the two. Ahead on 23 and 21 of 24; one problem below 1.00 (missed): 512x512x65536, 0.979.
# - Drawn: 1.138 and 1.122 (reached). 1.279 and 1.249 where TMA reaches, 0.916 and 0.919 through copies: the mean
#   hides that five of seven are behind, by up to 38 %.
# - Untuned: 0.994 over `torch.mm`, 1.005 without one problem. Tuning is worth what we are ahead.
# - Steady: 1.04 on one of five (missed), 1.039 in the mean; 0.985 and 0.993 pJ/FLOP (missed, 0.98).
# - What was gained since the second run is clock, not clocks; more than half of it at 16384^3, by `pace`.
#
# What is left: joules for 512x512x65536 and 1234x4096x4096; `suite-auto` again with a model that knows the pitch and
# uses `pace`, and the pitch by itself as a measurement (one tile, k from 2048 to 2112); copies of small problems;
# 4096^3 in steady state.
