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
# # From one GPU to the other
#
# **Question.** What is the best kernel of an H200 worth on an H100, and the reverse? Where it is worth less, why?
#
# **Answer.** Nearly all of it, about a percent less than the best there in the mean, of which a third is the luck of
# choosing from one measurement. Where less is kept, the H100 mostly wants the larger tile: it has two thirds of the
# memory's rate.
#
# Computed from four runs of the held-out problems, each on boards of its own: two on NVIDIA H200s, two on NVIDIA H100s.
# No GPU is needed to run it again. Every timing is isolated (another kernel between any two launches), not chained.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from notebooks.helpers import boards_of, portability, show_small

show_small(90)
for name, folder in portability.RUNS.items():
    print(f"{name}: {len(boards_of(folder))} boards, {', '.join(boards_of(folder))}")

# %% [markdown]
# ## What is kept
#
# Of each problem the kernels that both runs timed: the best of one run, as a share of the best of the other.

# %%
pairs = {f"{tuned} to {run}": portability.kept(tuned, run) for tuned, run in (*portability.ACROSS, *portability.ALIKE)}
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, part), style in zip(pairs.items(), ("-", "-", "--", "--"), strict=True):
    axis.plot(np.sort(part["kept"]), np.arange(1, len(part) + 1), style, label=name)
axis.set_xlabel("kept")
axis.set_ylabel("problems that keep no more")
axis.set_yscale("log")
axis.legend(fontsize=8)
plt.show()
pd.DataFrame(
    {
        name: {
            "problems": len(part),
            "geometric mean": np.exp(np.log(part["kept"]).mean()),
            "least": part["kept"].min(),
            "the same kernel": (part["kept"] == 1).mean(),
        }
        for name, part in pairs.items()
    }
).T.round(3)

# %% [markdown]
# The dashed lines are two runs on one kind of GPU: what they lose is the luck of a single measurement.
#
# ## By the time of a launch

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
for axis, (tuned, run) in zip(axes, portability.ACROSS, strict=True):
    part = portability.kept(tuned, run)
    axis.scatter(part["torch_us"], part["kept"], s=10)
    axis.set_xscale("log")
    axis.set_xlabel("torch.mm, us")
    axis.set_title(f"best of the {tuned}, run on the {run}", fontsize=10)
axes[0].set_ylabel("kept")
plt.show()

# %% [markdown]
# ## Why not there
#
# The tile of the kernel that is the best where it runs, over that of the kernel that was tuned elsewhere:

# %%
tiles = {}
for tuned, run in portability.ACROSS:
    part = portability.kept(tuned, run).query("kept < 0.97")
    best, own = (part[name].str.extract(r"(\d+)x(\d+)").astype(int).prod(axis=1) for name in ("best", "tuned"))
    ratio = best / own
    tiles[f"{tuned} to {run}"] = {"problems": len(part), "larger": (ratio > 1).sum(), "smaller": (ratio < 1).sum()}
pd.DataFrame(tiles).T

# %%
portability.kept("H200", "H100").nsmallest(8, "kept")[["torch_us", "kept", "tuned", "best"]].round(3)
