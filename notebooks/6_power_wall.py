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
# # At the power wall
#
# **Question.** In steady state a large GEMM draws all the power the board may have, and speed is energy per FLOP. What
# lowers it: wider clusters, no partial wave, wider chunks, another tile? And do the configs that win in bursts win here
# too?
#
# **Answer.** What counts first is that the tiles fill their rounds (waves of tiles over the SMs); then energy per FLOP,
# which wider chunks and fewer bytes lower a little. The configs that win in bursts win here too. Clusters of four lose,
# since too few SMs can run them.
#
# Computed from the archived studies `wall`, `steady-a` and `steady-b`, beside `tile-shape` and `stagger-steady`; no GPU
# is needed to run it again. Every row is one pair of two slices, and steady-a has no finals. So first: what can be told
# apart? Every timing here is chained (launches of one kernel back to back) unless isolated is said; these rows do not
# name their board, later ones do (below, by board).

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import (
    BEFORE,
    GemmProblem,
    change,
    cluster_tiles,
    clusters_at_once,
    config_of,
    hopper,
    predict,
    read_study,
    recorded,
    rows_of,
    scope_line,
    show_small,
    source_line,
    waves,
    with_derived,
)

show_small()
studies = {name: recorded(name) for name in ("wall", "steady-a", "steady-b", "tile-shape", "stagger-steady")}
for name, study in studies.items():
    floors = {at: f"{noise:.1%}" for at, noise in study.provenance["noise"].items() if "steady" in at}
    print(f"{name}: {source_line(study.provenance)} {scope_line(study)} noise floors {floors}")

# %%
parts = [
    with_derived(rows_of(study, "sweep").query("regime == 'steady'")).assign(study=name)
    for name, study in studies.items()
]
rows = pd.concat(parts, ignore_index=True)
problems = [GemmProblem(int(row.m), int(row.n), int(row.k)) for row in rows.itertuples()]
configs = [config_of(row) for row in rows.to_dict("records")]
pairs = list(zip(configs, problems, strict=True))
flop = np.array([problem.flop for problem in problems], dtype=float)
watts = rows.loc[rows.k > 512, ["watts", "baseline_watts"]].stack()
rows["rounds"] = [waves(*pair).waves for pair in pairs]
rows["full rounds"] = [cluster_tiles(*pair) / clusters_at_once(pair[0].cluster_size) for pair in pairs]
rows["predicted"] = [1e6 * predict(*pair, constants=BEFORE).seconds for pair in pairs]
rows["pj"] = watts.median() * rows.time_us * 1e6 / flop
rows["cublas_pj"] = watts.median() * rows.baseline_us * 1e6 / flop
rows["swap"] = rows.swap_ab.map({True: "swapped", False: ""})
rows["stream"] = rows.stream_k.map({True: "stream-K", False: ""})
rows["clocks"] = rows.time_us * rows.sm_mhz
rows["name"] = rows[["tile", "cluster", "stream", "swap"]].agg(lambda part: " ".join(filter(None, part)), axis=1)
new = rows[rows.study.isin(["wall", "steady-a", "steady-b"])]
cube = rows[rows.problem == "8192x8192x8192"]
low, high = watts.quantile([0.05, 0.95])
print(f"power: {watts.median():.0f} W in the median, {low:.0f} to {high:.0f} in nine of ten")
noise = cube.groupby("study")[["baseline_us", "baseline_pj_per_flop"]].agg(["mean", "std", "count"])
noise.round(4)

# %%
scatter = (cube.baseline_us / cube.groupby("study").baseline_us.transform("mean")).std()
energy = (cube.baseline_pj_per_flop / cube.groupby("study").baseline_pj_per_flop.transform("mean")).std()
print(f"cuBLAS within a study: time scatters by {scatter:.2%}, recorded energy by {energy:.2%}")
print(f"two standard deviations of a difference of two speedups: {2 * 2 * scatter:.1%}")

# %% [markdown]
# The time of cuBLAS scatters by 0.3 % within a study, the recorded energy by 1.1 %, four times as much, while both
# draw the same power: what scatters is NVML's counter. (The wall's cuBLAS times scatter least, by 0.07 %.) So energy
# below is also given from the time: the median power times the time of a launch. Speedups that differ by less than
# 1.1 % are even, unless several pairs of rows say the same.
#
# ## Energy and speed at 8192^3

# %%
figure, axis = plt.subplots(figsize=(9, 5.4), layout="constrained")
near = cube[cube.speedup > 0.97]
marks = {"wall": ("o", "C0"), "steady-a": ("s", "C3"), "tile-shape": ("^", "0.55"), "stagger-steady": ("v", "0.75")}
for name, (mark, colour) in marks.items():
    part = near[near.study == name]
    axis.scatter(part.speedup, part.pj_per_flop, marker=mark, color=colour, s=28, label=f"{name}, {len(part)} rows")
    axis.scatter(cube.baseline_us.mean() / part.baseline_us, part.baseline_pj_per_flop, marker="x", color=colour, s=22)
line = np.linspace(0.975, 1.06, 20)
axis.plot(
    line, cube.cublas_pj.mean() / line, color="black", linewidth=1, label=f"{watts.median():.0f} W times the time"
)
axis.axhline(0.98, color="C2", linestyle="--", linewidth=1, label="target 0.98 pJ/FLOP")
axis.axvline(1.04, color="C2", linestyle=":", linewidth=1, label="target 1.04x")
axis.scatter([], [], marker="x", color="black", label="cuBLAS, beside each row")
offsets = {"256x200 1x1 swapped": (-74, 8), "256x200 1x1": (4, -12), "256x192 2x1 stream-K": (-60, -14)}
for row in near[near.study == "steady-a"].itertuples():
    if row.name in offsets:
        axis.annotate(
            row.name, (row.speedup, row.pj_per_flop), xytext=offsets[row.name], textcoords="offset points", fontsize=8
        )
axis.set_xlabel("speedup over torch.mm, steady state, 8192^3")
axis.set_ylabel("pJ/FLOP, as recorded")
axis.legend(fontsize=8, ncol=2)
plt.show()

# %% [markdown]
# The recorded figures scatter about the line, ours and cuBLAS's, and in height more than in breadth. What lies lowest
# by its recorded energy is not what is fastest.
#
# ## What happens at the wall: activity against clock
#
# All rows of the three studies; the lines are equal TFLOP/s.

# %%
figure, axis = plt.subplots(figsize=(9, 5.6), layout="constrained")
colours = dict(zip(new.problem.unique(), ("C0", "C1", "C2", "C3", "C4"), strict=True))
for name, part in new.groupby("problem", sort=False):
    for stream, mark in (("", "o"), ("stream-K", "D")):
        some = part[part.stream == stream]
        axis.scatter(
            some.tensor_active, some.sm_mhz, marker=mark, s=30, color=colours[name], label=name if not stream else None
        )
axis.scatter([], [], marker="D", color="black", label="stream-K")
active = np.linspace(74, 99.5, 30)
for rate in (620, 640, 660, 680, 700, 720):
    mhz = rate * 1e6 / (active / 100 * hopper.FLOP_PER_CLOCK_PER_SM * hopper.SM_COUNT)
    axis.plot(active, mhz, color="0.7", linewidth=0.8, zorder=0)
    top = rate * 1e8 / (1512 * hopper.FLOP_PER_CLOCK_PER_SM * hopper.SM_COUNT)
    axis.text(top, 1512, f"{rate}", fontsize=8, color="0.4", ha="center", va="center", backgroundcolor="white")
axis.set_xlim(74, 100.2)
axis.set_ylim(1290, 1520)
axis.set_xlabel("tensor-active %")
axis.set_ylabel("SM clock, MHz")
axis.legend(fontsize=8, loc="lower left")
plt.show()
slope, start = np.polyfit(np.log(new.tensor_active), np.log(new.sm_mhz), 1)
print(f"clock ~ active^{slope:.2f}")

# %% [markdown]
# The rows lie along a line that is flatter than the lines of equal rate: where the tensor cores are busy 1 % more of
# the clocks, the clock is lower by about half of that. Idle SMs draw less, and the others may clock higher. So at the
# wall half of what is saved in clocks is lost in clock, and half of what is wasted comes back. That goes through all
# that follows.
#
# ## Clusters of four
#
# They share more: two loads of A and two of B for four CTAs. The prediction, made beforehand, was an energy lower by
# 1.7 to 3 %. Against the same tile in clusters 1x2, changes in %:


# %%
wall = new[new.study == "wall"]
fours = {}
for row in wall[wall.cluster.isin(["2x2", "1x4"])].itertuples():
    twin = wall[
        (wall.tile == row.tile) & (wall.epi_n == row.epi_n) & (wall.cluster == "1x2") & (wall.stream == "")
    ].iloc[0]
    fours[row.tile, f"chunks of {row.epi_n}", row.cluster] = change(twin, wall.loc[row.Index])
fours = pd.DataFrame(fours).T
fours.round(1)

# %%
print("medians:", fours.median().round(1).to_dict())
print({cluster: round(part["time"].mean(), 1) for cluster, part in fours.groupby(level=2)}, "% of time, mean")
ctas = {size: size * clusters_at_once(size) for size in (1, 2, 4)}
print(f"SMs at work with clusters of 1, 2, 4: {ctas}")

# %% [markdown]
# It missed: the time rose by 4.0 % (2x2) and 5.3 % (1x4), and the recorded energy with it. 30 clusters of four run at
# once, on 120 of the 132 SMs, and so the tiles need 11 rounds instead of 10, or 12 instead of 11; the clocks grew by
# just that. The model knew of the rounds and says 7 to 8 %. The clock rose, by 4 to 5.5 %.
#
# What would the clusters have saved, had they filled the GPU? There is an experiment for the price of a round, below:
# one config in two directions, where one direction needs one round more. There 36 to 39 % of the clocks came back. At
# that rate 9.7 % more clocks are 6 % more time; 2x2 lost 4 and 1x4 5.3. The 2 % and the 1 % between are about what
# had been predicted for the traffic, but that is a guess from a difference of differences.
#
# ## Wider chunks
#
# 104 columns leave through shared memory at once instead of 64, in tile 256x208:

# %%
widths = (
    wall[wall.tile == "256x208"]
    .pivot(index="cluster", columns="epi_n", values=["speedup", "time_us", "tensor_active", "pj_per_flop"])
    .astype(float)
)
pd.DataFrame(
    {name: widths[name, 104] / widths[name, 64] for name in ("speedup", "time_us", "tensor_active", "pj_per_flop")}
).round(4)

# %% [markdown]
# 0.3 to 0.4 % faster in each of four clusters: each ratio is within the noise, four of the same sign are not likely
# to be. The recorded energies say between -2.0 and +1.6 %, and nothing.
#
# ## Stream-K
#
# The tiles of the last, partly filled round are cut along k, an equal stretch for every cluster. Against the same
# tile without it, changes in %:

# %%
streams = {}
for row in new[new.stream == "stream-K"].itertuples():
    twins = new[
        (new.study == row.study)
        & (new.problem == row.problem)
        & (new.tile == row.tile)
        & (new.cluster == row.cluster)
        & (new.stream == "")
    ]
    if len(twins):
        streams[row.problem, row.study, f"{row.tile} {row.cluster}"] = change(twins.iloc[0], new.loc[row.Index]) | {
            "full rounds": twins["full rounds"].iloc[0]
        }
streams = pd.DataFrame(streams).T
streams.round(1)

# %% [markdown]
# It saves the clocks that the model says it would, 2 to 11 %, and at the wall about half of them or less in time: 0.4
# to 1.7 % where 10.4 to 10.7 rounds were 11, 5 % where 5.3 were 6, nothing at 4096^3. Compared with the 36 to 39 %
# that idle SMs pay back, stream-K has a cost of its own, of about a percent, more where k is short. It is the best of
# the rows at 8192x10240x8192, where the large tiles in clusters end just beyond a round (12.1 and 13.1).
#
# ## A tile that fits, and the direction of the walk
#
# 256x200 without a cluster. Swapped, C's transpose is computed, so that the 200 lie along m.

# %%
lone = new[new.tile == "256x200"]
columns = ["swap_ab", "full rounds", "rounds", "tensor_active", "sm_mhz", "time_us", "predicted", "speedup", "pj"]
lone.set_index("problem")[columns].round(3)

# %%
sides = lone.pivot(
    index="problem", columns="swap_ab", values=["time_us", "predicted", "clocks", "sm_mhz", "rounds"]
).astype(float)
shares = pd.DataFrame(
    {name: sides[name, False] / sides[name, True] for name in ("rounds", "predicted", "clocks", "sm_mhz", "time_us")}
)
for name in ("4096x8192x28672", "8192x4096x14336"):
    clocks, time = (max(shares[what][name], 1 / shares[what][name]) - 1 for what in ("clocks", "time_us"))
    print(f"{name}: {clocks:.1%} more clocks, {time:.1%} more time: {1 - time / clocks:.0%} came back")
print("not swapped / swapped:")
shares.round(3)

# %% [markdown]
# Swapping moves the time by 12 % on 4096x8192x28672, and by 13 % the other way on 8192x4096x14336. It is not traffic
# that does it, it is the count of tiles: 16 x 41 = 656 tiles are 4.97 rounds of 132 SMs, 32 x 21 = 672 are 5.09, and
# the sixth round does next to nothing. The model, which gives back less of the clock, says 17 % on both; the clocks
# differ by 19 to 20 %, just as the rounds do; and 36 to 39 % of that comes back as clock. In a burst the search found
# the same directions. At 8192^3 the tile fits either way, 32 x 41 = 1312 tiles or 9.94 rounds, and it leads.
#
# Where the rounds are equal, swapped is faster too, by 0.3 to 1.2 % on three problems, one pair each. At 8192^3 the
# finals of the burst say the same of the same two configs, 1.049 against 1.042 in 45 pairs. Why? A row of C in a tile
# is 400 bytes long, 12.5 sectors of the L2, so that neighbours meet within a sector at every other border; swapped,
# it is 512 bytes. That would cost writes; no counter has looked.
#
# Nor is the L2 what decides between the tiles:

# %%
traffic = cube[cube.study.isin(["wall", "steady-a"])].sort_values("pj")[
    ["name", "epi_n", "speedup", "pj", "full rounds", "wave_efficiency", "l2_bytes_per_clock", "reached", "sm_mhz"]
]
traffic.round(3)

# %% [markdown]
# The leader asks the L2 for more than any other row, 36 bytes a clock: no cluster shares its operands. 2x2 asks for
# half of that and is among the last. What the leader has is 0.993 of the SMs' time with a tile.
#
# ## Do the winners of the bursts hold?

# %%
suite = [read_study(folder) for folder in recorded("suite-first").path.glob("tune*/")]
bursts = pd.concat([rows_of(search, stage).query("status == 'ok'") for search in suite for stage in ("sweep", "final")])
held = []
for row in new[new.study != "wall"].to_dict("records"):
    burst = bursts[bursts.problem == row["problem"]]
    same = burst[[config_of(one) == config_of(row) for one in burst.to_dict("records")]]
    if len(same):
        held.append(
            {
                "problem": row["problem"],
                "config": row["name"],
                "burst": same.speedup.iloc[-1],
                "pairs": same.pairs.iloc[-1],
                "steady": row["speedup"],
                "best burst": burst.query("stage == 'sweep'").speedup.max(),
            }
        )
held = pd.DataFrame(held)
held["moved, %"] = 100 * (held.steady / held.burst - 1)
held.round(3)

# %% [markdown]
# They do. Ten of these rows were also measured in the searches' bursts, and moved by -0.7 to +1.2 %, no more than the
# noise of a pair. On four of the five problems the burst's winning tile is the best of the seven configs tried here
# as well, and on 8192x10240x8192 stream-K wins both, with another tile. At 4096^3 the lead shrinks from 1.012 to
# 1.005.
#
# ## By board

# %%
cubes = [
    rows_of(recorded(name), stage).query("status == 'ok' and problem == '8192x8192x8192'").assign(study=name)
    for name, stage in (
        *(("steady-i", "final"), ("steady-j", "final"), ("steady-k", "final")),
        *(("served", "compare"), ("suite-steady", "compare")),
    )
]
cubes = pd.concat(cubes).query("against == 'cublas'")
boards = (
    cubes.assign(board=cubes.board.str[4:12])
    .groupby("board")
    .agg(
        studies=("study", "nunique"),
        rows=("study", "size"),
        speedup=("speedup", "max"),
        pj=("pj_per_flop", "min"),
        torch_pj=("baseline_pj_per_flop", "median"),
    )
)
boards.round(3)

# %% [markdown]
# Isolated, of the best config of each board. Boards differ in the energy that NVML reports of the same product; the
# lead over torch.mm on the same board differs less.
#
# ## What we take from it
#
# - At the wall a saved clock is worth half a clock. What counts first is still that the tiles fill their rounds: an
#   empty sixth round of six costs 12 to 13 %, and 30 clusters of four instead of 66 of two 4 to 5 %.
# - 256x200 as single CTAs leads where it fits, though it asks most of the L2. A search has to count rounds in both
#   directions, and the model does.
# - Clusters of four, predicted to save 1.7 to 3 %, cost 4 to 5 %, for want of SMs to run on.
# - Wider chunks give 0.3 %, stream-K half of what it saves in clocks.
# - NVML's energy scatters by 1.1 %, four times as much as time; with one pair of slices, energy from time is the
#   better figure. Differences below a percent want finals.
