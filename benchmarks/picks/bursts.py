"""Recorded bursts by problem and kernel, for what is fitted to them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.fresh import LAST_OF_FP8, LAST_SEEDS, SINCE
from docs.generate.measurements import measurement
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once, clusters_launched, work_items
from hopper_gemm.model.tuned import slug
from hopper_gemm.serve.call import GATED
from hopper_gemm.tune.limits import CHIPS
from hopper_gemm.tune.study.reader import read_study, recorded_folders
from hopper_gemm.tune.study.row import Row

LEAST = 5
"""Kernels of a problem at least."""

HASTY = 4.0
"""Microseconds of torch.mm below which rows of a single pair are left out. Of the 18 recorded searches' rows there with
several pairs two began with a pair that was off by a fourth, one with a pair off by 6 %."""

WHOLE, MOVED = "2026-11-24 19:30 UTC", "2026-11-25 02:00 UTC"
"""Since when split-K launches hold whole tiles: earlier rows of those that did not are left out; and since when the
last tile moves back to end with the matrix."""

STEADY = 0.1
"""Rows count whose torch.mm took its median time of their problem, within this share: on some problems it has two."""


class ReachingOut(Kernel):
    """A kernel of before :data:`MOVED`, whose last tile reaches beyond the matrix."""

    may_move_back = False  # type: ignore[assignment]


@dataclass(frozen=True)
class Bursts:
    """Bursts of one problem.

    Args:
        problem: what was multiplied.
        kernels: that were measured, each once; none of the design study's. Those of before :data:`MOVED` are
            :class:`ReachingOut`.
        seconds: of a launch of each: torch.mm's time over the median of its speedups.
        share: speed of each, as a share of the fastest one's.
        torch_us: torch.mm's time, median over all rows, microseconds.
        chip: the kind of GPU that ran them.
        finish: of the product, if any.
    """

    problem: GemmProblem
    kernels: tuple[Kernel, ...]
    seconds: np.ndarray
    share: np.ndarray
    torch_us: float
    chip: Chip = SXM
    finish: Epilogue | None = None

    def of(self, rows: np.ndarray) -> Bursts:
        """Some of the kernels; shares stay those of the fastest of all."""
        kernels = tuple(self.kernels[index] for index in rows)
        return replace(self, kernels=kernels, seconds=self.seconds[rows], share=self.share[rows])


@cache
def bursts_of(context: str, folders: Sequence[Path] | None = None, fp8: bool = False) -> tuple[Bursts, ...]:
    """The recorded bursts of a context over torch on random normal data, of sweeps, finals and maps, problem by
    problem, those of one kind of GPU at a time: of operands that TMA reaches, and at least :data:`LEAST` kernels;
    isolated without PDL, which is not picked there.

    Args:
        context: isolated or chained.
        folders: results folders, by default all recorded ones but those that judge.
        fp8: True for operands of 8 bits, else of 16.
    """
    found: dict[tuple[GemmProblem, str], dict[Kernel, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for study in map(read_study, _fitted_to() if folders is None else folders):
        kind = slug(study.provenance["gpu"]["name"])
        torn, reaching = (study.provenance["created"] < since for since in (WHOLE, MOVED))
        for row in study.stage("sweep", "final", "map"):
            if row.ok and row.point.problem.is_fp8 == fp8 and _usual(row, context) and not (torn and _torn(row)):
                kernel = row.point.config
                found[row.point.problem, kind][ReachingOut.like(kernel) if reaching else kernel].append(row)
    return tuple(
        _bursts(problem, CHIPS[kind], kernels)
        for (problem, kind), kernels in found.items()
        if kind in CHIPS and len(kernels) >= LEAST
    )


@cache
def gated_bursts() -> tuple[Bursts, ...]:
    """The recorded lists of gated layers (benchmarks/gates.py)."""
    found = []
    for line in measurement("measurements/gated.jsonl").read_text().splitlines():
        row = json.loads(line)
        timed = {
            resolve(GemmConfig.of(config)): median(us)
            for name, config in row["configs"].items()
            if (us := row["us"].get(name))
        }
        seconds, torch_us = np.array([*timed.values()]) * 1e-6, median(row["us"]["torch.mm"])
        about = {"chip": CHIPS[slug(row["gpu"])], "finish": GATED}
        share = seconds.min() / seconds
        found.append(Bursts(GemmProblem(*row["problem"]), tuple(timed), seconds, share, torch_us, **about))
    return tuple(found)


def _fitted_to() -> list[Path]:
    return [folder for folder in recorded_folders() if folder.name not in (*LAST_SEEDS, LAST_OF_FP8, *SINCE)]


def _usual(row: Row, context: str) -> bool:
    point = row.point
    if (point.regime, point.context, point.data, point.against) != ("burst", context, "normal", "cublas"):
        return False
    if point.is_baseline or type(point.config) is not Kernel or point.problem.out_of_reach:
        return False
    hasty = float(row.figures["baseline_us"]) < HASTY and int(row.figures["pairs"]) == 1
    return not hasty and not (context == "isolated" and point.config.pdl)


def _torn(row: Row) -> bool:
    """Return True if a round of the launch left some parts of a tile to the next one."""
    kernel, problem = row.point.config, row.point.problem
    at_once = clusters_at_once(kernel.cluster_size) * kernel.ctas_per_sm
    return clusters_launched(kernel, at_once) < min(at_once, work_items(kernel, problem))


def _bursts(problem: GemmProblem, chip: Chip, rows: dict[Kernel, list[Row]]) -> Bursts:
    torch_us = median(row.figures["baseline_us"] for of in rows.values() for row in of)
    able = {
        kernel: speeds
        for kernel, of in rows.items()
        if (speeds := [one.figures["speedup"] for one in of if abs(one.figures["baseline_us"] / torch_us - 1) < STEADY])
    }
    speeds = np.array([median(of) for of in able.values()])
    return Bursts(problem, tuple(able), torch_us * 1e-6 / speeds, speeds / speeds.max(), torch_us, chip)
