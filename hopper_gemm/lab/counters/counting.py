"""Counting launches under the profiler: all in one run of it, or one by one if a launch hangs or crashes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.lab.counters.figures import METRICS, figures_of
from hopper_gemm.lab.counters.profiler import (
    ProfiledLaunch,
    ProfilerError,
    Ran,
    command,
    complaint,
    last_words,
    read_launches,
    refusal,
    run,
)
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_of
from hopper_gemm.tune.point import Point

START_SECONDS = 240.0
POINT_SECONDS = 45.0
"""Allowance for the profiler and the program to start, and for each kernel: its matrices, its check, its replays."""

OURS = "kernel_cutlass"
"""Part of the name of every CuTe DSL kernel; ours goes on ``_kernel_hopper_gemm...HopperGemm``."""


@dataclass(frozen=True)
class Counted:
    """The counters of a point."""

    point: Point  # our kernel, or cuBLAS by torch.mm; regime and context do not matter
    kernel: str = ""  # name of the kernel; several are joined by +
    # figures by the names of COUNTERS, or of FIGURES; without figures that were not counted
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""  # figures that are missing
    reason: str = ""  # why there are no figures; else empty


Stage = Literal["begun", "profiling", "counted", "failed"]
"""Steps of the program with a point; each is written to the journal before the next begins."""

REACHED, ENDED = {"profiling", "counted"}, {"counted", "failed"}


def count(
    points: Sequence[Point],
    gpu: GpuId,
    ncu: Path,
    *,
    store: Path | None = None,
    point_seconds: float = POINT_SECONDS,
    start_seconds: float = START_SECONDS,
) -> list[Counted]:
    """Count launches of points, all in one run of the profiler ``ncu`` unless a launch hangs, crashes or matches no
    point for certain; return the counters of each point, in order. Kernels that are not in the store are compiled
    first, one by one. There are time limits for each point and for the start of a run.

    Raises:
        ProfilerError: the profiler cannot work here, or no launch could be counted and no point is to blame.
    """
    settled: dict[Point, Counted] = {}
    alone = False
    while todo := [point for point in dict.fromkeys(points) if point not in settled]:
        batch = todo[:1] if alone else todo
        seconds = start_seconds + point_seconds * len(batch)
        ran, stages = _profile(batch, ncu, gpu, seconds, store)
        if (reason := refusal(ran.text)) is not None:
            raise ProfilerError(reason)
        launches = read_launches(ran.log)
        if not stages:
            reason = "did not start in time" if ran.code is None else f"did not start: {last_words(ran)}"
            raise ProfilerError(f"the program to be profiled {reason}")
        reached = {stage for stage, _ in stages.values()}
        tried = not launches and ran.code is not None and bool(reached & REACHED)
        if tried and (reached <= ENDED or complaint(ran) is not None):
            raise ProfilerError(f"the profiler counted nothing: {last_words(ran)}")
        end = "hung; killed" if ran.code is None else f"the process died: {last_words(ran)}"
        outcomes = settle(batch, stages, launches, end)
        alone = alone or not outcomes
        settled.update(outcomes)
    return [settled[point] for point in points]


def settle(
    batch: Sequence[Point], stages: dict[int, tuple[Stage, str]], launches: Sequence[ProfiledLaunch], end: str = ""
) -> dict[Point, Counted]:
    """Return the outcomes of a run's points, without points to be run again because their outcome is uncertain.

    Launches that the profiler saw are matched to points by their order, if there is a launch for each counted point and
    the names fit. A point that ran alone takes all launches. ``stages`` are the last step of each point by its number,
    with the reason of a failure; ``end`` is the reason for points that the program did not finish.
    """
    counted = [number for number, (stage, _) in stages.items() if stage == "counted"]
    outcomes = {
        batch[number]: Counted(batch[number], reason=reason if stage == "failed" else end)
        for number, (stage, reason) in stages.items()
        if stage != "counted"
    }
    if not counted:
        return outcomes
    if len(batch) == 1:
        groups = [list(launches)]
    else:
        groups = [[launch] for launch in launches]
        last = max(stages)
        if len(groups) == len(counted) + 1 and last not in counted and _fits(batch[last], groups[-1]):
            groups.pop()  # the program died in this very launch
    if len(groups) == len(counted) and all(_fits(batch[i], group) for i, group in zip(counted, groups, strict=True)):
        for number, group in zip(counted, groups, strict=True):
            outcomes[batch[number]] = _counted(batch[number], group)
    elif len(batch) == 1:
        seen = ", ".join(launch.kernel for launch in launches) or "none"
        outcomes[batch[0]] = Counted(batch[0], reason=f"the profiler saw another kernel than was launched: {seen}")
    return outcomes


def _fits(point: Point, launches: Sequence[ProfiledLaunch]) -> bool:
    return bool(launches) and (OURS in launches[0].kernel) != point.is_baseline


def _counted(point: Point, launches: Sequence[ProfiledLaunch]) -> Counted:
    figures, note = figures_of(launches)
    names = "+".join(dict.fromkeys(launch.kernel for launch in launches))
    reason = "" if figures else "the profiler saw it but could count nothing of it"
    return Counted(point, names, figures, note if figures else "", reason)


def _profile(
    batch: Sequence[Point], ncu: Path, gpu: GpuId, timeout: float, store: Path | None
) -> tuple[Ran, dict[int, tuple[Stage, str]]]:
    """Run the program under the profiler; return the run, and the journal's last step of each point. A line torn by a
    kill is skipped."""
    stages: dict[int, tuple[Stage, str]] = {}
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-counters-") as scratch:
        file, journal, log = (Path(scratch) / name for name in ("job.json", "journal.jsonl", "ncu.csv"))
        points = [asdict(point) for point in batch]
        folder = None if store is None else str(store.absolute())
        file.write_text(json.dumps({"store": folder, "journal": str(journal), "points": points}))
        program = [sys.executable, "-m", "hopper_gemm.lab.counters.program", str(file)]
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        ran = run(command(ncu, METRICS, log, program), log, environment, timeout)
        for line in journal.read_text().splitlines() if journal.is_file() else []:
            with suppress(ValueError):
                entry = json.loads(line)
                stages[entry["point"]] = (entry["stage"], entry["reason"])
    return ran, stages


def point_of(raw: dict[str, Any]) -> Point:
    """Return a point from its fields in JSON."""
    subject = raw["subject"]
    subject = subject if isinstance(subject, str) else kernel_of(subject)
    return Point(**{**raw, "problem": GemmProblem(**raw["problem"]), "subject": subject})
