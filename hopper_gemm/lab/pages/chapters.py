"""The chapters on a Hopper GEMM: rungs of the ladder, what each changes in the kernel, how fast it is, when what runs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from hopper_gemm.lab.pages.rings import traced
from hopper_gemm.lab.pages.sources import recorded
from hopper_gemm.lab.pages.specialised import source_of
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import clusters_at_once, work_items
from hopper_gemm.tune.parameters import all_values, kernel_of
from hopper_gemm.tune.tables.ladder import Step, ladder
from hopper_gemm.tune.tables.pivot import markdown_table, plain, rows_of
from hopper_gemm.tune.tables.plots import timeline
from hopper_gemm.tune.tables.style import STYLE, save

PROBLEM = GemmProblem(8192, 8192, 8192)
WIDE, FROM_STAGE = 6000, 16
"""Clocks that a timeline shows, and the stage with which it begins."""

SHOWN = ("tile", "stages", "stagger", "schedule", "cluster", "raster", "swizzle", "serpentine", "peek", "persistent")
"""Parameters at the head of a diff."""


@dataclass(frozen=True)
class Chapter:
    """One chapter.

    Args:
        page: name of its file, without suffix.
        rungs: of the ladder, that it adds; the diff is of the last.
        traces: traced kernels that its timeline shows.
    """

    page: str
    rungs: tuple[str, ...]
    traces: tuple[str, ...] = ()


CHAPTERS = (
    Chapter("1-serial", ("serial",), ("one stage",)),
    Chapter("2-stages", ("two stages", "multistage"), ("two stages", "three stages")),
    Chapter("3-producer", ("specialised", "full ring"), ("one consumer, stagger 0",)),
    Chapter("4-order", ("swizzle 2", "swizzle 4", "swizzle 8")),
    Chapter("5-consumers", ("two consumers", "stagger 1"), ("stagger 0", "stagger 1")),
    Chapter("6-persistent", ("persistent",)),
    Chapter("7-store", ("TMA store",)),
    Chapter("8-cluster", ("cluster 1x2", "serpentine", "peek", "256x192")),
)


@cache
def steps() -> dict[str, Step]:
    """The rungs of the recorded ladder by name."""
    study = recorded("ladder")
    return {step.name: step for step in ladder(rows_of(study, "sweep"), study.provenance["rungs"])}


def kernel(rung: str) -> Kernel:
    """The kernel of a rung, resolved."""
    return kernel_of(steps()[rung].config)


def rates(number: int) -> str:
    """Table of the rungs up to a chapter: TFLOP/s at 8192^3 in both regimes, and what each takes of an SM."""
    frame = rows_of(recorded("ladder"), "sweep").query("m == 8192 and regime == 'burst'")
    taken = {kernel_of({name: plain(row[name]) for name in all_values(kernel("serial"))}): row for _, row in frame.iterrows()}
    lines = {}
    for at, chapter in enumerate(CHAPTERS[:number], 1):
        for rung in chapter.rungs:
            burst, steady = (_result(rung, regime) for regime in ("burst", "steady"))
            row, one = taken[kernel(rung)], kernel(rung)
            ring = one.stages * one.stage_bytes if isinstance(one.stages, int) else 0
            lines[rung] = {
                "chapter": str(at),
                "burst": f"{burst.tflops:.0f}",
                "steady": f"{steady.tflops:.0f}",
                "over cuBLAS": f"{burst.speedup:.3f}x",
                "tensor cores busy": f"{row['tensor_active']:.0f} %",
                "ring": f"{ring / 1024:.0f} KiB",
                "registers": f"{row['registers']:.0f}",
            }
    return markdown_table(pd.DataFrame(lines).T, "rung")


def _result(rung: str, regime: str):
    (found,) = (one for one in steps()[rung].results if (one.group.m, one.group.regime) == (8192, regime))
    return found


def diff(number: int) -> str:
    """What a chapter's last rung changes in the kernel, beside the last rung of the chapter before."""
    own = head(CHAPTERS[number - 1].rungs[-1]) + formatted(source_of(kernel(CHAPTERS[number - 1].rungs[-1])))
    if number == 1:
        return f"```python\n{own}```"
    before = CHAPTERS[number - 2].rungs[-1]
    lines = difflib.unified_diff(
        (head(before) + formatted(source_of(kernel(before)))).splitlines(), own.splitlines(), lineterm="", n=2
    )
    shown = [line for line in lines if not line.startswith(("---", "+++"))]
    return "\n".join(["```diff", *shown, "```"])


def head(rung: str) -> str:
    """Facts of a rung as comments: parameters, and the launch at 8192^3."""
    one = kernel(rung)
    values = all_values(one)
    values |= {"tile": f"{one.tile_m} x {one.tile_n}, {one.tile_k} deep", "cluster": f"{one.cluster_m} x {one.cluster_n}"}
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
    """Source in the house style, 100 columns wide."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "100", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def pictures(folder: Path) -> None:
    """Draw the timeline of each chapter whose kernels were traced, as ``PAGE.svg``."""
    for chapter in CHAPTERS:
        if chapter.traces:
            draw(chapter, folder / f"{chapter.page}.svg")


@plt.rc_context(STYLE)
def draw(chapter: Chapter, path: Path) -> None:
    """Draw the traced kernels of a chapter, one below the other, from stage :data:`FROM_STAGE` on."""
    chosen = [traced()[name] for name in chapter.traces]
    lanes = [1 + rung["config"]["stages"] + rung["config"]["consumers"] for rung, _ in chosen]
    size = (8, 0.27 * sum(lanes) + 0.6 * len(chosen) + 0.5)
    figure, axes = plt.subplots(
        len(chosen), 1, figsize=size, height_ratios=lanes, layout="constrained", squeeze=False
    )
    for axis, (rung, found) in zip(axes.flat, chosen, strict=True):
        since = found[(found["what"] == "math") & (found["stage"] == FROM_STAGE)]["start"].min()
        part = found[(found["end"] > since) & (found["start"] < since + WIDE)].copy()
        part[["start", "end"]] = part[["start", "end"]].clip(since, since + WIDE) - since
        timeline(axis, part, rung["config"]["stages"])
        axis.set_xlim(0, WIDE)
        axis.set_title(f"{rung['name']}: {rung['adds']}", fontsize=9, loc="left")
        axis.label_outer()
    save(figure, path, "One CTA on an NVIDIA H200, 4096^3, by its own clock. Dark: math; green: loads; grey: waits.")


def patch_of(width: int) -> tuple[int, int, int]:
    """Panels of A and of B that the first wave reads in groups of so many columns of tiles, and CTAs of the wave."""
    from hopper_gemm.model.roofline import tile_order

    wave = tile_order(64, 64, "m", width, serpentine=False, most=hopper.SM_COUNT)
    return len({m for m, _ in wave}), len({n for _, n in wave}), len(wave)


def order() -> str:
    """Table of what the first wave of tiles reads, by the width of the group."""
    lines = {}
    for width in (1, 2, 4, 8, 16):
        a, b, _ = patch_of(width)
        lines[str(width)] = {"panels of A": str(a), "panels of B": str(b), "both": str(a + b)}
    return markdown_table(pd.DataFrame(lines).T, "group of")
