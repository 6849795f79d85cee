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
# # Normal, uniform, zeros: how much of a figure is the data?
#
# One kernel (256x128, the tuned one) and cuBLAS, the same two problems, the same regimes; only what the matrices hold
# differs. Does the rate change, does the ratio to cuBLAS change, and what does that mean for other people's figures?
# Everything here is computed from `results/h200/data/`, measured on an NVIDIA H200; no GPU is needed to run it again.
# Every timing here is chained (launches of one kernel back to back); rows do not name their board.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hopper_gemm.model import hopper
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import read_study, records
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.pivot import groups, rows_of
from hopper_gemm.tune.tables.plots import show_small

show_small()
results = results_root() / "h200"
study = read_study(results / "data")
print(source_line(study.provenance))
KINDS = ["normal", "uniform", "zeros"]
PLACES = [(m, regime) for m in (4096, 8192) for regime in ("burst", "steady")]
PEAK_PER_MHZ = hopper.FLOP_PER_CLOCK_PER_SM * study.provenance["gpu"]["sms"] / 1e6
CAP, MHZ_MAX = study.provenance["gpu"]["power_limit_watts"], study.provenance["gpu"]["sm_mhz_max"]

# %% [markdown]
# ## The rows

# %%
rows = rows_of(study, "sweep").copy()
rows["cublas_tflops"] = 2 * rows["m"] * rows["n"] * rows["k"] / rows["baseline_us"] / 1e6
rows["cublas_active"] = 100 * rows["cublas_tflops"] / (PEAK_PER_MHZ * rows["baseline_sm_mhz"])
rows["noise"] = 0.0
for group, part in groups(rows):
    rows.loc[part.index, "noise"] = group.noted(study.provenance, "noise")
table = rows.set_index(["m", "regime", "data"]).sort_index()
columns = ["tflops", "cublas_tflops", "speedup", "speedup_low", "speedup_high", "noise", "sm_mhz", "baseline_sm_mhz"]
table[columns].astype(float).round(4)

# %%
columns = ["watts", "baseline_watts", "pj_per_flop", "baseline_pj_per_flop", "tensor_active", "cublas_active"]
table[columns].astype(float).round(3)

# %%
COLOURS = {"tflops": "#4878a8", "cublas_tflops": "#b8b8b8"}
figure, axes = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained", sharey=True)
for axis, m in zip(axes, (4096, 8192), strict=True):
    for i, regime in enumerate(("burst", "steady")):
        for j, (arm, colour) in enumerate(COLOURS.items()):
            values = table.loc[(m, regime)].loc[KINDS, arm].astype(float)
            at = np.arange(3) + 4 * i + (j - 0.5) * 0.4
            name = {"tflops": "ours", "cublas_tflops": "cuBLAS"}[arm] if i == 0 else None
            axis.bar(at, values, width=0.38, color=colour, label=name)
            for x, value in zip(at, values, strict=True):
                axis.text(x, value + 8, f"{value:.0f}", ha="center", fontsize=8)
    axis.set_xticks([0, 1, 2, 4, 5, 6], [f"{kind}\n{regime}" for regime in ("burst", "steady") for kind in KINDS])
    axis.set_title(f"{m}^3")
axes[0].set_ylabel("TFLOP/s")
axes[0].set_ylim(0, 1060)
axes[0].legend(loc="upper left", ncols=2)
plt.show()

# %%
rates = table[["tflops", "cublas_tflops"]].astype(float).unstack("data")
gains = pd.DataFrame(
    {
        f"{name}, {kind} / normal": rates[column, kind] / rates[column, "normal"]
        for name, column in (("ours", "tflops"), ("cuBLAS", "cublas_tflops"))
        for kind in ("uniform", "zeros")
    }
)
spread = rates["tflops", "zeros"].unstack("regime")["burst"] / rates["tflops", "normal"].unstack("regime")["steady"]
for m, ratio in spread.items():
    print(f"{m}^3, ours: zeros in burst / normal in steady state = {ratio:.3f}")
gains.round(3)

# %% [markdown]
# Zeros are worth 12 to 16 % in burst and 18 to 23 % in the steady state. Between the best light and the worst, zeros
# in a burst and normal data in the steady state, one kernel on one problem differs by 36 to 38 %: more than nearly
# any single step of the ladder. Uniform data are 0.5 to 0.6 % faster than normal ones in burst; in the steady state
# the difference drowns in the noise.
#
# ## Clock, not work
#
# For one kernel, problem and regime the tensor cores are equally busy whatever the data, within a point. What the
# data change is the clock:

# %%
activity = table[["tensor_active", "cublas_active"]].astype(float).groupby(["m", "regime"]).agg(["min", "max"])
activity.round(1)

# %% [markdown]
# In the steady state the counter of energy says why: a FLOP on zeros costs about half. Flipping bits costs energy,
# and zeros flip none; multiplying them takes as many clocks.
#
# How many bits do flip? From one random element to an independent one a bit that is set with probability p flips with
# 2 p (1 - p). No more than a sketch of what happens inside the tensor cores, but it may be computed:


# %%
def bf16_bits(values: np.ndarray) -> np.ndarray:
    """The sixteen bits of numbers rounded to bf16, the sign first; shape (values, 16)."""
    raw = values.astype(np.float32).view(np.uint32)
    rounded = ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint32)
    return rounded[:, None] >> np.arange(15, -1, -1) & 1


draw = np.random.default_rng(0)
filled = {"normal": draw.standard_normal(1_000_000), "uniform": draw.uniform(-1, 1, 1_000_000), "zeros": np.zeros(2)}
set_share = {kind: bf16_bits(values).mean(axis=0) for kind, values in filled.items()}
flips = pd.DataFrame({kind: 2 * share * (1 - share) for kind, share in set_share.items()})
figure, axis = plt.subplots(figsize=(10, 3.2), layout="constrained")
for shift, kind, colour in ((-0.2, "normal", "#4878a8"), (0.2, "uniform", "#c0602b")):
    axis.bar(
        np.arange(16) + shift, flips[kind], width=0.38, color=colour, label=f"{kind}: {flips[kind].sum():.2f} bits"
    )
names = ["sign", *(f"exponent {i}" for i in range(7, -1, -1)), *(f"mantissa {i}" for i in range(6, -1, -1))]
axis.set_xticks(range(16), names, rotation=45, ha="right", fontsize=8)
axis.set_ylabel("flips for an element")
axis.set_ylim(0, 0.62)
axis.legend(loc="upper left", ncols=2, fontsize=9)
plt.show()

# %% [markdown]
# Normal and uniform data differ only in the exponent: 5.63 flips for an element against 5.15, of which 4 are sign and
# mantissa of either. Normal numbers often step between [1, 2) and [0.5, 1), the exponents 127 and 126, and now and
# then over 127 to 128, which flips all eight bits; uniform ones hardly ever reach 127. So a little less power for
# uniform data is expected, and the direction is right: 0.5 to 0.6 % more rate in burst. The size of it this sketch
# cannot give. In the file normal was timed first; cuBLAS got slightly slower while normal data ran, so that a warming
# GPU would work against what is seen:

# %%
(_, names), *lines = records(study.path / "samples.csv")
every = pd.DataFrame([values for _, values in lines], columns=names).rename(columns={"cublas_us": "baseline_us"})
every = every.astype({"m": int, "ours_us": float, "baseline_us": float})
samples = every.query("regime == 'burst'")
figure, axes = plt.subplots(1, 2, figsize=(12, 3.6), layout="constrained")
for axis, (m, part) in zip(axes, samples.groupby("m"), strict=True):
    part = part.reset_index(drop=True)
    base = part.query("data == 'normal'")["baseline_us"].median()
    for kind, colour in zip(KINDS, ("#4878a8", "#c0602b", "#4d8f4d"), strict=True):
        for stage, marker in (("control", "o"), ("sweep", "x")):
            pairs = part[(part["data"] == kind) & (part["stage"] == stage)]
            name = f"{kind}, {'with itself' if stage == 'control' else 'with ours'}"
            axis.plot(
                pairs.index, 100 * (pairs["baseline_us"] / base - 1), marker, color=colour, markersize=4, label=name
            )
    axis.set_title(f"{m}^3, burst")
    axis.set_xlabel("pair, in the order of the file")
axes[0].set_ylabel("cuBLAS's time against normal's median, %")
axes[1].legend(fontsize=8, loc="lower left")
plt.show()

# %% [markdown]
# ## The ratio
#
# If data changed only what the chip gives to both, the ratio would stand. A ratio of rates is the ratio of the
# activities times that of the clocks:

# %%
parts = pd.DataFrame(
    {
        "speedup": table["speedup"],
        "activity": table["tensor_active"] / table["cublas_active"],
        "clock": table["sm_mhz"] / table["baseline_sm_mhz"],
        "low": table["speedup_low"],
        "high": table["speedup_high"],
    }
).astype(float)
figure, axes = plt.subplots(1, 4, figsize=(14, 3.6), layout="constrained", sharey=True)
for axis, place in zip(axes, PLACES, strict=True):
    part = parts.loc[place].loc[KINDS]
    bars = np.abs(part[["low", "high"]].to_numpy().T - part["speedup"].to_numpy())
    axis.errorbar(range(3), part["speedup"], bars, fmt="-o", color="black", capsize=3, label="speedup")
    axis.plot(range(3), part["activity"], "-s", color="#4878a8", markersize=5, label="ratio of activities")
    axis.plot(range(3), part["clock"], "-^", color="#c0602b", markersize=5, label="ratio of clocks")
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.set_xticks(range(3), KINDS)
    axis.set_xlim(-0.3, 2.3)
    axis.set_title(f"{place[0]}^3, {place[1]}")
axes[0].set_ylabel("ours / cuBLAS")
axes[0].legend(fontsize=8, loc="upper left")
plt.show()
parts.round(4)

# %% [markdown]
# The ratio of the activities hardly depends on the data: 1.031 to 1.037 at 8192^3. On normal data part of it is lost
# in the clock: cuBLAS leaves its tensor cores a little less busy, which should save power, and clocks 1 to 2 %
# higher. In a burst on zeros power is no matter, both clocks are equal to 0.2 %, and the speedup is the bare ratio of
# the activities: 1.033 at 8192^3 instead of 1.021, twenty times the noise.
#
# So the ratio does change, in the direction that one would predict: zeros show who wastes fewer clocks, normal data
# who needs fewer joules. The largest change is 1.020 to 1.062 at 8192^3 in the steady state (where the normal row is
# good to 2.5 %). Half of it is the activity as before; the other half is a clock 3 % *higher* than that of cuBLAS,
# and that no one can put down to the 700 W cap, for both draw little more than 400 W.
#
# ### A caution about zeros at 4096^3
#
# cuBLAS's own time moved between its comparison with itself and that with ours (crosses and dots above):

# %%
medians = every.groupby(["m", "regime", "data", "stage"])[["ours_us", "baseline_us"]].median().unstack("stage")
pd.DataFrame(
    {
        "cuBLAS with itself, us": medians["baseline_us", "control"],
        "cuBLAS with ours, us": medians["baseline_us", "sweep"],
        "moved by %": 100 * (medians["baseline_us", "sweep"] / medians["baseline_us", "control"] - 1),
        "speedup of the pairs": medians["baseline_us", "sweep"] / medians["ours_us", "sweep"],
        "against the control": medians["baseline_us", "control"] / medians["ours_us", "sweep"],
    }
).round(3)

# %% [markdown]
# On zeros at 4096^3 cuBLAS took 0.7 to 0.9 % longer beside our kernel than beside itself, in both regimes and far
# outside of the noise. Compared with the control, the speedups there are 1.013 and 1.001, not 1.023 and 1.010. What
# moved is not recorded. The other rows moved by 0.2 % at most, so that only 8192^3 carries the argument above.
#
# ## What holds the clock on zeros?
#
# From first principles: at 700 W and so many joules a FLOP the cap allows a certain rate, and the chip at its highest
# clock another one. The lesser of the two should be seen.

# %%
steady = table.xs("steady", level="regime")
predicted = pd.DataFrame(
    {
        "the cap allows": CAP / steady["pj_per_flop"],
        f"{MHZ_MAX} MHz allow": steady["tensor_active"] / 100 * PEAK_PER_MHZ * MHZ_MAX,
        "measured": steady["tflops"],
    }
).astype(float)
predicted["measured / lesser"] = predicted["measured"] / predicted[predicted.columns[:2]].min(axis=1)
predicted.round(2)

# %% [markdown]
# On normal and uniform data the first column is near by construction (energy is power times time). On zeros it is a
# prediction, and it fails: the kernel should reach 980 to 1020 TFLOP/s at 1980 MHz, and stays at 810 to 825. In burst
# it does not run at 1980 MHz either. All steady rows of the first eleven studies, and the highest clock of any of
# their rows:

# %%
figure, axis = plt.subplots(figsize=(8.5, 5), layout="constrained")
THAT_DAY = ("data", "l2-promotion", "ladder-first", "options", "raster", "seed-table-first", "stagger")
THAT_DAY += ("stagger-steady", "tile-shape", "tune-2304x2304x4096-burst", "tune-8192x6144x4096-burst")
highest: dict[str, float] = {}
boards: set[str] = set()
for name in THAT_DAY:
    other = read_study(results / name)
    ran = rows_of(other, "sweep").query("status == 'ok'")
    highest[name] = float(ran[["sm_mhz", "baseline_sm_mhz"]].max(axis=None))
    boards.add(other.provenance["gpu"]["uuid"])
    if name != "data":
        settled = ran[ran["regime"] == "steady"]
        axis.plot(settled["sm_mhz"], settled["watts"], ".", color="#c8c8c8", markersize=4)
axis.plot([], [], ".", color="#c8c8c8", label="other studies, ours, normal data")
for kind, colour in zip(KINDS, ("#4878a8", "#c0602b", "#4d8f4d"), strict=True):
    part = steady.xs(kind, level="data")
    axis.plot(part["sm_mhz"], part["watts"], "o", color=colour, label=f"{kind}, ours")
    axis.plot(
        part["baseline_sm_mhz"], part["baseline_watts"], "s", color=colour, fillstyle="none", label=f"{kind}, cuBLAS"
    )
axis.axhline(CAP, color="#b03a2e", linewidth=1, linestyle="--")
axis.axvline(MHZ_MAX, color="#b03a2e", linewidth=1, linestyle="--")
axis.text(1120, CAP - 14, f"cap {CAP:.0f} W", color="#b03a2e", fontsize=9, va="top")
axis.text(MHZ_MAX - 6, 420, f"{MHZ_MAX} MHz", color="#b03a2e", fontsize=9, rotation=90, ha="right")
axis.set_xlabel("SM clock, MHz")
axis.set_ylabel("W, steady state")
axis.set_ylim(380, 730)
axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 0.05))
plt.show()
print(f"highest clock of any row, {len(boards)} boards:", {name: round(value) for name, value in highest.items()})

# %% [markdown]
# On zeros the kernels sit at 1558 to 1645 MHz and 409 to 443 W, far from both limits, and hold still there: the noise
# floor is 0.03 and 0.08 %, against 0.6 to 2.4 % under the cap. cuBLAS at 8192^3 draws the least, 409 W, and has the
# lowest clock, so that it is not board power that decides. Nor had any row of these studies reached 1850 MHz (later
# ones did: 1980 at 512x512x65536); those that leave the tensor cores idle on normal data, and so draw less than the
# cap, stay between 1680 and 1800. Some other limit holds the clock, of current, of a part of the chip, or a setting
# of the boards; the reasons that the driver gives were not recorded, except that no thermal or hardware slowdown was
# among them (such a timing would have been void).
#
# ## Reading other people's figures
#
# What a tuner would do on zeros can be guessed from the ladder: its rungs differ in activity and in clock, and on
# zeros in burst clocks were equal. An estimate, not a measurement: rank two rungs by activity alone.

# %%
ladder = rows_of(read_study(results / "ladder-first"), "sweep").query("regime == 'burst' and schedule != 'multistage'")
tuned = ladder.query("code == @rows.code.iloc[0]").set_index("m")
pingpong = ladder.query("schedule == 'pingpong' and tile == '128x128'").set_index("m")
pd.DataFrame(
    {
        "pingpong 128x128 / tuned, normal, measured": pingpong["tflops"] / tuned["tflops"],
        "the same by activity alone": pingpong["tensor_active"] / tuned["tensor_active"],
    }
).astype(float).round(3)

# %% [markdown]
# Normal data say that pingpong with the smaller tile is 2 to 5 % slower; by activity alone it would be 1 to 2 %
# faster. A tuner on zeros might well pick it.
#
# ## What we take from it
#
# - Zeros are worth 12 to 16 % of a rate in burst and 18 to 23 % in the steady state, all of it clock; with the
#   regime, up to 38 %. A rate without a word on data and regime cannot be compared with another one.
# - A FLOP on zeros costs about half the energy. The other half is the price of flipping bits, roughly: the two were
#   measured at different clocks, and so at different voltages.
# - The ratio to cuBLAS is sturdier than the rate, but it moves too: 1.021 to 1.033 at 8192^3 in burst, 1.020 to 1.062
#   in the steady state. Zeros flatter whoever keeps the tensor cores busier at a higher price in energy.
# - Uniform data in [-1, 1) are as good as normal ones for a ratio: 0.0 to 0.1 % apart in burst, within the noise in
#   the steady state. As rates they are 0.5 to 0.6 % higher in burst.
# - Not known: what holds the clock on zeros in the steady state, why that limit treats our kernel better than cuBLAS
#   at 8192^3, and what moved cuBLAS on zeros at 4096^3.
