"""The picture of what each idea is worth at the tuned configs."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import NullLocator

from docs.generate.pages.means import over_problems
from docs.generate.pages.sources import recorded
from docs.generate.pages.studies import worth_of_ideas
from hopper_gemm.tune.tables.pages.report import source_line
from hopper_gemm.tune.tables.style import CELL, EVEN, FAINT, OURS, STYLE, save


@plt.rc_context(STYLE)
def picture_of_ideas(path: Path) -> None:
    """Draw :func:`worth_of_ideas`: a line for each idea, a dot for each problem, and the mean with its interval."""
    worth = dict(worth_of_ideas())
    figure, axis = plt.subplots(figsize=(5.8, 1.4 + 0.24 * len(worth)), layout="constrained")
    beside = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": CELL}
    for at, of in enumerate(worth.values()):
        mean, low, high = (100 * (end - 1) for end in over_problems(ratio for ratio, _ in of))
        gains, heights = [100 * (ratio - 1) for ratio, _ in of], [at + 0.16] * len(of)
        dots = axis.plot(gains, heights, "o", color=EVEN, markersize=2.5)
        ends = [[mean - low], [high - mean]] if len(of) > 1 else None
        means = axis.errorbar(mean, at - 0.16, xerr=ends, fmt="D", color=OURS, markersize=4, elinewidth=1.0)
        axis.text(1.02, at, f"{mean:+.1f}%, {len(of)}", **beside)
    axis.text(1.02, -1.0, "mean, problems", **beside)
    axis.set_xscale("symlog", linthresh=1, linscale=0.6)
    ticks = (-10, -1, 0, 1, 10, 100)
    axis.set_xticks(ticks, [f"{tick:+d}%" if tick else "0" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_yticks(range(len(worth)), list(worth))
    axis.set_ylim(len(worth) - 0.4, -0.6)
    axis.axvline(0, color=EVEN, linewidth=1.0, zorder=0)
    axis.grid(color=FAINT, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.set_xlabel("speed of the tuned config over its speed without the idea; right of 0 the idea pays")
    names = "a problem", "mean and its 95 % interval"
    figure.legend([dots[0], means], names, loc="outside lower center", ncols=2)
    source = source_line(recorded("leave-one-out").provenance)
    save(figure, path, f"What each idea is worth at the tuned configs. {source}")
