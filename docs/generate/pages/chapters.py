"""The chapters on a Hopper GEMM: what each rung of the ladder changes in the kernel, how fast it is, when what runs."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from docs.generate.pages.comparisons import todays_code
from docs.generate.pages.counted import tile_order
from docs.generate.pages.pictures import patch, timeline
from docs.generate.pages.rings import SIDES, traced
from docs.generate.pages.rings import rungs as ladder_rungs
from docs.generate.pages.sources import recorded, short_name
from docs.generate.pages.specialised import source_of
from docs.generate.pages.wording import percent, wrapped
from docs.generate.todays_code import CURRENT, EARLIER, Measured
from hopper_gemm.compiler.store import DSL
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import clusters_at_once, work_items
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.parameters import all_values, kernel_of
from hopper_gemm.tune.tables.ladder import Result
from hopper_gemm.tune.tables.pivot import markdown, markdown_table, plain, rows_of
from hopper_gemm.tune.tables.style import STYLE, save

PROBLEM = GemmProblem(8192, 8192, 8192)
WIDE = 6000
"""Clocks that a timeline shows."""

INCHES = 6
"""Width of a figure: at most 1.6 times that of a phone, so that its text can be read there."""

SHOWN = ("tile", "stages", "stagger", "schedule", "cluster", "raster", "swizzle", "serpentine", "peek", "persistent")
"""Parameters at the head of a diff."""

LADDERS = {"NVIDIA H100": "ladder-on-h100", "NVIDIA H200": "ladder"}
"""The recorded ladder of each GPU."""

PRINTED = results_root() / "measurements/chapters.jsonl"
"""Rows of ``make chapters``: the printed code of each chapter, timed."""

COLUMNS = 90
"""Columns of a listing: as many as a page of the site shows."""

WIDTHS = (1, 4, 8, 16)
"""Widths of a group whose first wave is drawn."""


@dataclass(frozen=True)
class Window:
    """A stretch of a trace.

    Args:
        kernel: name of the traced kernel.
        since: what it begins with, and the stage of that.
        told: title; None for what the study says of the kernel.
        study, m: the trace, and the rows of its problem.
    """

    kernel: str
    since: tuple[str, int] = ("math", 16)
    told: str | None = None
    study: str = "timeline"
    m: int = 4096

    @property
    def found(self) -> tuple[dict[str, Any], pd.DataFrame]:
        """The kernel as its sweep has it, and what its roles did when."""
        return traced(self.study, self.m)[self.kernel]

    @property
    def title(self) -> str:
        """Line above the timeline."""
        return self.told or f"{self.kernel}: {self.found[0]['adds']}"


@dataclass(frozen=True)
class Chapter:
    """One chapter.

    Args:
        page: name of its file, without suffix.
        title: of the page, without the number.
        idea: in a few words.
        rungs: of the ladder, that it adds; the diff is of the last.
        windows: that its timeline shows.
    """

    page: str
    title: str
    idea: str
    rungs: tuple[str, ...]
    windows: tuple[Window, ...] = ()


FIRST = Window("whole", ("issues", 0), "the first tile of a CTA", "timeline-deep-k", 1024)
SECOND = Window("whole", ("issues", 0), "the second tile of a persistent CTA", "timeline-deep-k", 2048)
PAIRED, LARGER = (Window(name, study="timeline-ladder") for name in ("cluster 1x2", "256x192"))
CHAPTERS = (
    Chapter("1-serial", "One stage", "load, wait, multiply, wait", ("serial",), (Window("one stage"),)),
    Chapter(
        "2-stages",
        "A ring of stages",
        "load the next while this one is multiplied",
        ("two stages", "multistage"),
        (Window("two stages"), Window("three stages")),
    ),
    Chapter(
        "3-producer",
        "A producer of its own",
        "who loads does not multiply",
        ("specialised", "full ring"),
        (Window("one consumer, stagger 0"),),
    ),
    Chapter(
        "4-order",
        "The order of the tiles",
        "what runs at the same time should read the same",
        ("swizzle 2", "swizzle 4", "swizzle 8"),
    ),
    Chapter(
        "5-consumers",
        "Two consumers",
        "a larger tile, and a second warpgroup to feed the tensor cores",
        ("two consumers", "stagger 1"),
        (Window("stagger 0"), Window("stagger 1")),
    ),
    Chapter(
        "6-persistent",
        "A persistent kernel",
        "one CTA an SM, walking over tiles; PDL",
        ("persistent",),
        (FIRST, SECOND),
    ),
    Chapter(
        "7-store",
        "A tile leaves by TMA",
        "the epilogue through shared memory",
        ("TMA store",),
        (Window("stagger 1", ("math", 60), "the last four stages of a tile"),),
    ),
    Chapter(
        "8-cluster",
        "Clusters, and the real kernel",
        "two CTAs load for each other",
        ("cluster 1x2", "serpentine", "peek", "256x192"),
        (PAIRED, LARGER),
    ),
)


def kernel(rung: str) -> Kernel:
    """The kernel of a rung, resolved."""
    return kernel_of(ladder_rungs("ladder")[rung].config)


def rates(number: int) -> str:
    """Table of the last rung of each chapter before and of all rungs of this one: TFLOP/s at 8192^3 in both regimes,
    and what each takes of an SM."""
    taken, lines = _bursts("ladder"), {}
    before = [chapter.rungs[-1] for chapter in CHAPTERS[: number - 1]]
    for rung in (*before, *CHAPTERS[number - 1].rungs):
        one_burst, steady = burst(rung), _result(rung, "steady")
        row, one = taken[kernel(rung)], kernel(rung)
        ring = one.stages * one.stage_bytes if isinstance(one.stages, int) else 0
        lines[rung] = {
            "over cuBLAS": f"{one_burst.speedup:.3f}x",
            "TFLOP/s, burst": f"{one_burst.tflops:.0f}",
            "steady": f"{steady.tflops:.0f}",
            "tensor cores busy": f"{row['tensor_active']:.0f} %",
            "MHz": f"{row['sm_mhz']:.0f}",
            "ring": f"{ring / 1024:.0f} KiB",
            "registers": f"{row['registers']:.0f}",
        }
    return markdown_table(pd.DataFrame(lines).T, "rung")


def overview() -> str:
    """The chapters with the rate of each one's last rung at 8192^3 in a burst on each GPU, and where the printed code
    was timed."""
    columns = [
        "chapter",
        "the idea",
        *(f"{gpu.split()[-1]}: {what}" for gpu in LADDERS for what in ("TFLOP/s", "over cuBLAS")),
    ]
    lines = []
    for number, chapter in enumerate(CHAPTERS, 1):
        found = [_bursts(name)[kernel(chapter.rungs[-1])] for name in LADDERS.values()]
        figures = (figure for row in found for figure in (f"{row['tflops']:.0f}", f"{row['speedup']:.3f}x"))
        lines.append((f"[{number}. {chapter.title}]({chapter.page}.md)", chapter.idea, *figures))
    printed = _printed()
    return markdown(columns, lines) + (f"\n\n{_told_of(printed)}" if printed else "")


def _printed() -> dict[tuple[str, int], dict[str, Any]]:
    """The last recorded row of the printed code of each chapter that multiplied, by GPU; none where none is
    recorded."""
    if not PRINTED.is_file():
        return {}
    rows = map(json.loads, PRINTED.read_text().splitlines())
    return {(short_name(row["gpu"]), row["chapter"]): row for row in rows if row["status"] == "ok"}


def _told_of(printed: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    """Sentence on where the printed code was timed, and how far it is from the ladder of that GPU."""
    ratios = [
        row["speedup"] / _bursts(LADDERS[gpu])[kernel(CHAPTERS[number - 1].rungs[-1])]["speedup"]
        for (gpu, number), row in printed.items()
    ]
    on = " and ".join(dict.fromkeys(f"an {gpu} ({row['created'][:10]})" for (gpu, _), row in printed.items()))
    return wrapped(
        f"`make chapters` built the listings of the pages, as they were then, and timed them on {on} "
        f"([rows](../../results/measurements/{PRINTED.name})); their speeds over `torch.mm` are {min(ratios):.3f} to "
        f"{max(ratios):.3f} times those of the kernels. {_today(printed)}"
    )


def measured() -> list[Measured]:
    """The kernels of the printed code that was timed. A listing compiles to the machine code of its rung."""
    return list(dict.fromkeys(_measured(number, row) for (_, number), row in _printed().items()))


def _measured(number: int, row: Mapping[str, Any]) -> Measured:
    dsl = row.get("versions", {}).get(DSL, "")
    return Measured(kernel(CHAPTERS[number - 1].rungs[-1]), PROBLEM, row.get("code", ""), dsl)


def _today(printed: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    """Sentence on what the listings compile to today, beside what was timed."""
    timed = dict.fromkeys(_measured(number, row) for (_, number), row in printed.items())
    standings = [todays_code().standing(one) for one in timed]
    other, total = standings.count(EARLIER), len(standings)
    if other:
        which = f"all {total} listings compile" if other == total else f"{other} of the {total} listings compile"
        return f"Today {which} to other machine code than was timed then, and were not timed again."
    if standings.count(CURRENT) == total:
        return "Today they compile to the same machine code."
    return "What was timed then was not compared with what they compile to today."


def again() -> str:
    """Sentence on the rungs of the chapters, built and timed once more with a later kernel."""
    first, later = _bursts("ladder"), _bursts("ladder-burst")
    rungs = [kernel(rung) for chapter in CHAPTERS for rung in chapter.rungs]
    ratios = sorted(later[one]["speedup"] / first[one]["speedup"] for one in rungs)
    about = recorded("ladder-burst").provenance
    return wrapped(
        f"The {len(rungs)} kernels of the chapters were built and timed once more in a burst, with the sources of "
        f"{about['created'][:10]} on another H200 ([rows](../../results/archive/h200/2026-11-24-ladder-burst)): their "
        f"speeds over `torch.mm` were {ratios[0]:.3f} to {ratios[-1]:.3f} times those of the tables."
    )


def order() -> str:
    """Sentences on what the order of the tiles is worth on either GPU, and of what the gain consists on an H100."""
    rows = {gpu: [_bursts(name)[kernel(rung)] for rung in ("full ring", "swizzle 8")] for gpu, name in LADDERS.items()}
    told = ", ".join(
        f"{percent(good['speedup'] / bad['speedup'])} on an {gpu} ({bad['speedup']:.3f}x to {good['speedup']:.3f}x)"
        for gpu, (bad, good) in rows.items()
    )
    busy, mhz = ([row[name] for row in rows["NVIDIA H100"]] for name in ("tensor_active", "sm_mhz"))
    return wrapped(
        f"Over single columns groups of eight gain {told}. Single columns read more from DRAM ([counted on an "
        "H200](../sources.md)), whose peak is 3.35 TB/s on an H100 and 4.8 on an H200. On the H100 the tensor cores go "
        f"from {busy[0]:.0f} to {busy[1]:.0f} % busy at much the same clock ({mhz[0]:,.0f} and {mhz[1]:,.0f} MHz)."
    )


def sizes() -> str:
    """Table of the rungs around clusters of two and the larger tile: over cuBLAS in a burst at each size."""
    rungs = "TMA store", "cluster 1x2", "cluster 2x1", "peek", "256x192"
    lines = [(rung, *(f"{_result(rung, 'burst', m).speedup:.3f}x" for m in SIDES)) for rung in rungs]
    return markdown(("over cuBLAS, burst", *(f"{m}^3" for m in SIDES)), lines)


def _bursts(name: str) -> dict[Kernel, Mapping[str, Any]]:
    """The rows of a ladder at 8192^3 in a burst, by kernel."""
    frame = rows_of(recorded(name), "sweep").query("m == 8192 and regime == 'burst'")
    names = all_values(kernel("serial"))
    return {kernel_of({one: plain(row[one]) for one in names}): row for _, row in frame.iterrows()}


def burst(rung: str) -> Result:
    """Recorded figures of a rung at 8192^3 in a burst."""
    return _result(rung, "burst")


def _result(rung: str, regime: str, m: int = 8192) -> Result:
    (found,) = (one for one in ladder_rungs("ladder")[rung].results if (one.group.m, one.group.regime) == (m, regime))
    return found


def diff(number: int) -> str:
    """Diff of the kernel of a chapter's last rung, beside the last rung of the chapter before; a hunk that
    begins within a function names it."""
    own = head(CHAPTERS[number - 1].rungs[-1]) + formatted(source_of(kernel(CHAPTERS[number - 1].rungs[-1])))
    if number == 1:
        return f"```python\n{own}```"
    before = CHAPTERS[number - 2].rungs[-1]
    lines = difflib.unified_diff(
        (head(before) + formatted(source_of(kernel(before)))).splitlines(), own.splitlines(), lineterm="", n=2
    )
    shown = [_named(line, own.splitlines()) for line in lines if not line.startswith(("---", "+++"))]
    return "\n".join(["```diff", *shown, "```"])


def _named(line: str, own: list[str]) -> str:
    """A line of a diff; the head of a hunk with the function that it begins within, if any, not line numbers."""
    begins = re.match(r"@@ -\S+ \+(\d+)", line)
    if begins is None:
        return line
    first = int(begins[1]) - 1
    names = [found[1] for one in own[:first] if (found := re.match(r"def (\w+)", one))]
    return f"@@ {names[-1]} @@" if own[first].startswith(" ") else "@@ @@"


def head(rung: str) -> str:
    """Facts of a rung as comments: parameters, and the launch at 8192^3."""
    one = kernel(rung)
    values = all_values(one)
    values |= {
        "tile": f"{one.tile_m} x {one.tile_n}, {one.tile_k} deep",
        "cluster": f"{one.cluster_m} x {one.cluster_n}",
    }
    tiles = work_items(one, PROBLEM)
    clusters = min(tiles, clusters_at_once(one.cluster_size)) if values["persistent"] else tiles
    facts = [f"# {name}: {str(values[name]).lower()}" for name in SHOWN]
    facts.append(f"# threads of a CTA: {one.threads}; registers: {_registers(one)}")
    facts.append(f"# launch at 8192^3: {clusters * one.cluster_size} CTAs for {tiles * one.cluster_size} tiles")
    return "\n".join([*facts, "", "", ""])


def _registers(one: Kernel) -> str:
    found = one.registers
    return f"{found.producer} of a producer, {found.consumer} of a consumer" if found.moved else "as at the launch"


@cache
def formatted(source: str) -> str:
    """Source in the house style, :data:`COLUMNS` wide; without ruff as it is."""
    import subprocess
    import sys
    from importlib.util import find_spec

    if find_spec("ruff") is None:
        return source
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(COLUMNS), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


@plt.rc_context(STYLE)
def pictures(folder: Path) -> None:
    """Draw the timeline of each chapter whose kernels were traced, as ``PAGE.svg``, and the patches of chapter 4."""
    told = (
        "One CTA of an NVIDIA H200, by its own clock. Blue: math; faint blue: math that is queued; green: a load; "
        "faint grey: a wait; grey: loads are issued; orange: the tile is stored. Numbers are stages."
    )
    for chapter in CHAPTERS:
        if chapter.windows:
            save(timelines(chapter.windows), folder / f"{chapter.page}.svg", told)
    save(patches(), folder / "4-order.svg", "Tiles of the first wave at 8192^3, and (faint) the panels that they read.")


@plt.rc_context(STYLE)
def timelines(windows: Sequence[Window]) -> Figure:
    """Timelines, one below the other, each :data:`WIDE` clocks."""
    lanes = [1 + one.found[0]["config"]["stages"] + one.found[0]["config"]["consumers"] for one in windows]
    titles = [fill(one.title, 64) for one in windows]
    size = (INCHES, 0.27 * sum(lanes) + 0.6 * len(windows) + 0.15 * "".join(titles).count("\n") + 0.5)
    figure, axes = plt.subplots(len(windows), 1, figsize=size, height_ratios=lanes, layout="constrained", squeeze=False)
    for axis, window, title in zip(axes.flat, windows, titles, strict=True):
        rung, found = window.found
        what, stage = window.since
        since = found[(found["what"] == what) & (found["stage"] == stage)]["start"].min()
        part = found[(found["end"] > since) & (found["start"] < since + WIDE)].copy()
        part[["start", "end"]] = part[["start", "end"]].clip(since, since + WIDE) - since
        timeline(axis, part, rung["config"]["stages"])
        axis.set_xlim(0, WIDE)
        axis.set_title(title, fontsize=9, loc="left")
        axis.label_outer()
    return figure


@plt.rc_context(STYLE)
def patches() -> Figure:
    """The first wave of 64 x 64 tiles by the width of the group."""
    figure, axes = plt.subplots(1, len(WIDTHS), figsize=(INCHES, 2.1), layout="constrained")
    for axis, width in zip(axes, WIDTHS, strict=True):
        order = tile_order(64, 64, "m", width, serpentine=False, most=hopper.SM_COUNT)
        patch(axis, order, (64, 64), hopper.SM_COUNT)
        axis.grid(visible=False)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel("single columns" if width == 1 else f"groups of {width} columns")
    return figure
