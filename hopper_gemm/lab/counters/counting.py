"""Counting launches under the profiler: all in one run of it, and one by one where one of them hangs or crashes."""

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

from hopper_gemm.lab.counters.figures import figures_of, wanted_metrics
from hopper_gemm.lab.counters.profiler import (
    ProfiledLaunch,
    Profiler,
    ProfilerError,
    Ran,
    command,
    complaint,
    last_words,
    read_launches,
    refusal,
    refused_metrics,
    run,
)
from hopper_gemm.model.point import Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_of

START_SECONDS = 240.0
POINT_SECONDS = 45.0
"""Allowance for the profiler and the program to start, and for each kernel: its matrices, its check, its replays."""

OURS = "kernel_cutlass"
"""Part of the name of every CuTe DSL kernel; ours goes on ``_kernel_hopper_gemm...HopperGemm``."""

FAILED_LOG = "counters-failed.log"
"""Raw output of the last run that could not be understood, kept beside the results."""


@dataclass(frozen=True)
class Counted:
    """The counters of a point.

    Args:
        point: our kernel, or cuBLAS by torch.mm; regime and context are of no matter.
        kernel: name of the kernel; several are joined by ``+``.
        figures: by the names of :data:`hopper_gemm.lab.counters.figures.COUNTERS`, or of
            :data:`hopper_gemm.lab.counters.waits.FIGURES`; what was not counted is not there.
        note: which figures are not there, and which come from another metric than the first.
        reason: why there are no figures, or not those of either kind.
    """

    point: Point
    kernel: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""
    reason: str = ""


Stage = Literal["begun", "profiling", "counted", "failed"]
"""Steps of the program with a point; each is written down before the next begins."""

REACHED, ENDED = ("profiling", "counted"), ("counted", "failed")


def count(
    points: Sequence[Point],
    gpu: GpuId,
    profiler: Profiler,
    *,
    store: Path | None = None,
    seed: int = 0,
    keep: Path | None = None,
    point_seconds: float = POINT_SECONDS,
    start_seconds: float = START_SECONDS,
) -> list[Counted]:
    """Count launches, all in one run of the profiler unless one of them hangs, crashes or cannot be told apart.

    Args:
        points: what to count; kernels that are not in the store are compiled first, one by one.
        gpu: where.
        profiler: by what.
        store: folder of compiled kernels, or None for the default.
        seed: of the matrices.
        keep: folder for the raw output of a run that could not be understood.
        point_seconds, start_seconds: allowed for each point, and beside them for a run.

    Returns:
        One answer for each point, in their order.

    Raises:
        ProfilerError: the profiler cannot work here, or not a single launch could be counted and no point is to
            blame.
    """
    settled: dict[Point, Counted] = {}
    metrics = wanted_metrics(profiler)
    alone = False
    while todo := [point for point in dict.fromkeys(points) if point not in settled]:
        batch = todo[:1] if alone else todo
        seconds = start_seconds + point_seconds * len(batch)
        ran, stages = _profiled(batch, profiler, metrics, gpu, seconds, store, seed)
        if (why := refusal(ran.text)) is not None:
            raise ProfilerError(why)
        try:
            launches = read_launches(ran.log)
        except ProfilerError as error:
            raise ProfilerError(f"{error}{_kept(ran, keep)}") from None
        if not stages:
            why = "did not start in time" if ran.code is None else f"did not start: {last_words(ran)}"
            raise ProfilerError(f"the program to be profiled {why}{_kept(ran, keep)}")
        if not launches and ran.code is not None and any(stage in REACHED for stage, _ in stages.values()):
            fewer = _fewer(metrics, profiler, ran)
            if fewer != metrics:
                metrics = fewer
                continue
            if all(stage in ENDED for stage, _ in stages.values()) or complaint(ran) is not None:
                raise ProfilerError(f"the profiler counted nothing: {last_words(ran)}{_kept(ran, keep)}")
        end = "hung; killed" if ran.code is None else f"the process died: {last_words(ran)}"
        outcomes = settle(batch, stages, launches, end)
        if not outcomes:
            _kept(ran, keep)
            alone = True
        settled.update(outcomes)
    return [settled[point] for point in points]


def settle(
    batch: Sequence[Point],
    stages: dict[int, tuple[Stage, str]],
    launches: Sequence[ProfiledLaunch],
    end: str = "",
) -> dict[Point, Counted]:
    """Outcomes of a run's points; points without a certain outcome are left out, to be run again.

    Launches are matched to points by their order, which holds only where there is one for each that was counted and
    the names fit. A point that ran alone takes all launches, however many.

    Args:
        batch: the points of the run.
        stages: by number of the point, how far the program got with it, and why it failed.
        launches: as the profiler saw them.
        end: what became of a point with which the program did not come to an end.
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


def _profiled(
    batch: Sequence[Point],
    profiler: Profiler,
    metrics: Sequence[str],
    gpu: GpuId,
    timeout: float,
    store: Path | None,
    seed: int,
) -> tuple[Ran, dict[int, tuple[Stage, str]]]:
    """A run of the program under the profiler, and the last step that it wrote down of each point; a line torn by a
    kill is passed over."""
    stages: dict[int, tuple[Stage, str]] = {}
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-counters-") as scratch:
        file, journal, log = (Path(scratch) / name for name in ("job.json", "journal.jsonl", "ncu.csv"))
        points = [asdict(point) for point in batch]
        where = None if store is None else str(store.absolute())
        file.write_text(json.dumps({"store": where, "seed": seed, "journal": str(journal), "points": points}))
        program = [sys.executable, "-m", "hopper_gemm.lab.counters.program", str(file)]
        places = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        ran = run(command(profiler, metrics, log, program), log, environment, timeout)
        for line in journal.read_text().splitlines() if journal.is_file() else []:
            with suppress(ValueError):
                entry = json.loads(line)
                stages[entry["point"]] = (entry["stage"], entry["reason"])
    return ran, stages


def point_of(raw: dict[str, Any]) -> Point:
    """A point from JSON, where its fields stand by name."""
    subject = raw["subject"]
    subject = subject if isinstance(subject, str) else kernel_of(subject)
    return Point(**{**raw, "problem": GemmProblem(**raw["problem"]), "subject": subject})


def _fewer(metrics: list[str], profiler: Profiler, ran: Ran) -> list[str]:
    """The metrics without those that made the profiler give up: those it names, else those it never listed."""
    refused = refused_metrics(ran.text, metrics)
    left = [metric for metric in metrics if metric not in refused]
    if left and left != metrics:
        return left
    return [metric for metric in metrics if profiler.knows(metric)] or metrics


def _kept(ran: Ran, keep: Path | None) -> str:
    """Keep what was said, and say where."""
    if keep is None:
        return ""
    with suppress(OSError):
        keep.mkdir(parents=True, exist_ok=True)
        (keep / FAILED_LOG).write_text(ran.text)
        return f"; its output is in {keep / FAILED_LOG}"
    return ""
