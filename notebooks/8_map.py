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
# # Picks and the map
#
# **Question.** On problems that nobody tuned, how good is the kernel that the model picks, and where is it behind?
#
# **Answer.** A few percent ahead of `torch.mm` in the mean, at most times of a launch, and near the best kernel that
# was timed beside it. It is behind on 5 to 22 % of the problems of a class of times, furthest on thin or ragged shapes.
#
# Computed from the rows of `results/h200/map` and, for the held-out problems, `results/h200/map-held-out`, measured on
# NVIDIA H200s, and `results/h100/untuned/map-held-out-again`, measured on NVIDIA H100s. No GPU is needed to run it
# again. Every timing is isolated (another kernel between any two launches), not chained. A point is one process on one
# board; intervals hold for other processes and boards.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import boards_of, map_points, show_small

show_small(90)
studies = {
    "map": "h200/map",
    "held out, H200": "h200/map-held-out",
    "held out, H100": "h100/untuned/map-held-out-again",
}
points = {name: map_points(folder) for name, folder in studies.items()}
for name, folder in studies.items():
    print(f"{name}: {len(points[name])} problems, boards {boards_of(folder)}")

# %% [markdown]
# ## Speedup of the pick by the time of torch.mm

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=True)
for axis, (name, part) in zip(axes, points.items(), strict=True):
    colours = np.where(part["low"] > 1, "#1f5f9f", np.where(part["high"] < 1, "#c0652a", "#aaaaaa"))
    axis.scatter(part["torch_us"], part["pick"], s=9, c=colours)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_yticks([0.5, 0.7, 1, 1.5, 2, 3], ["0.5", "0.7", "1", "1.5", "2", "3"])
    axis.set_yticks([], minor=True)
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("torch.mm, us")
axes[0].set_ylabel("the pick over torch.mm")
plt.show()

# %% [markdown]
# Blue: ahead by its whole interval; orange: behind; grey: neither. The problems far above 1 have rows that TMA cannot
# reach in place, which are slow in `torch.mm` too; without them:

# %%
CLASSES = [0, 8, 30, 150, np.inf]
NAMES = ["up to 8 us", "8 to 30 us", "30 to 150 us", "longer"]
summary = {}
for name, part in points.items():
    reached = part[~part["padded"]]
    for label, group in reached.groupby(pd.cut(reached["torch_us"], CLASSES, labels=NAMES), observed=True):
        summary[name, label] = {
            "problems": len(group),
            "pick": np.exp(np.log(group["pick"]).mean()),
            "least": group["pick"].min(),
            "behind": (group["high"] < 1).mean(),
            "of the best timed": np.exp(np.log(group["share"]).mean()),
        }
pd.DataFrame(summary).T.round(3)

# %% [markdown]
# ## How far the pick is from the best kernel that was timed

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, part in points.items():
    axis.plot(np.sort(part["share"]), np.linspace(0, 1, len(part)), label=name)
axis.set_xlim(0.7, 1.005)
axis.set_xlabel("speed of the pick over that of the best timed")
axis.set_ylabel("share of the problems")
axis.legend(fontsize=8)
plt.show()
pd.DataFrame({name: part["share"].quantile([0.05, 0.25, 0.5]) for name, part in points.items()}).round(3)

# %% [markdown]
# ## Where the pick is furthest behind torch.mm

# %%
held = points["held out, H200"]
held[~held["padded"]].nsmallest(8, "pick")[["torch_us", "pick", "best", "share", "kernel"]].round(3)
