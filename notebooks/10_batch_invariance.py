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
# # What batch invariance costs
#
# **Question.** What does it cost that the bits of a row do not depend on how many rows there are?
#
# **Answer.** Less than a percent on the suite and about a percent on problems that nobody tuned, beside our own kernels
# without the condition; most where few columns and a long k want to be cut.
#
# Computed from `results/measurements/invariance.jsonl`; no GPU is needed to run it again. Every timing is isolated
# (another kernel between any two launches), not chained. A ratio is the median of the rounds of one process; intervals
# of means hold for other processes and boards.

# %%
import matplotlib.pyplot as plt
import pandas as pd

from notebooks.helpers import invariance, show_small

show_small(90)
LISTS = {"suite": "the suite", "held-out": "problems that nobody tuned", "deep": "few columns, long k"}
ratios = {name: invariance(name) for name in LISTS}
for name, part in ratios.items():
    print(f"{LISTS[name]}: {len(part)} problems; {', '.join(part.attrs['boards'])}")

# %% [markdown]
# ## Beside our own kernels without the condition

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=True)
for axis, (name, part) in zip(axes, ratios.items(), strict=True):
    axis.scatter(part["us"], part["plain"], s=14, label="over ours without the condition")
    axis.scatter(part["us"], part["torch"], s=14, marker="x", label="over torch.mm")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("torch.mm, us")
    axis.set_title(LISTS[name], fontsize=10)
axes[0].set_ylabel("speed of the batch-invariant kernel")
axes[0].legend(fontsize=8)
plt.show()

# %%
pd.DataFrame({LISTS[name]: part.attrs["means"] for name, part in ratios.items()}).T

# %% [markdown]
# ## Where it costs most

# %%
pd.concat(ratios).nsmallest(8, "plain")[["us", "plain", "torch"]].round(3)
