"""Counting launches under the profiler: all in one run of it, or one by one if a launch hangs or crashes; and their
figures, by the columns of :data:`hopper_gemm.tune.study.schema.COUNTED`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

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


class HardwareCounter(NamedTuple):
    """A figure: a metric times a factor, from seconds, bytes or hertz to the figure's unit; divided by the metric
    ``over`` if there is one. If ``adds``, the figures of several kernels add up; else the longest kernel's stands for
    all."""

    metric: str
    factor: float = 1.0
    over: str = ""
    adds: bool = True


COUNTERS = {
    "tensor_active_hw": HardwareCounter(  # wgmma counts as hmma
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active", adds=False
    ),
    "sm_ghz": HardwareCounter("sm__cycles_elapsed.avg.per_second", 1e-9, adds=False),
    "duration_us": HardwareCounter("gpu__time_duration.sum", 1e6),  # of a replay from a cold start, which is no timing
    "dram_read_bytes": HardwareCounter("dram__bytes_read.sum"),
    "dram_write_bytes": HardwareCounter("dram__bytes_write.sum"),  # without what is still in the L2 at the end
    "l2_read_sectors": HardwareCounter("lts__t_sectors_op_read.sum"),
    "l2_hit_pct": HardwareCounter("lts__t_sector_hit_rate.pct", adds=False),
    "l2_read_hit_pct": HardwareCounter("lts__t_sector_op_read_hit_rate.pct", adds=False),
    "l2_load_hit_pct": HardwareCounter(  # in these kernels TMA loads, which no metric of the L2 tells apart
        "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
        100,
        over="lts__t_sectors_srcunit_tex_op_read.sum",
        adds=False,
    ),
    "tma_load_bytes": HardwareCounter("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"),
    "shared_bank_reads": HardwareCounter("l1tex__data_bank_reads.sum"),  # of the L1 data array, wgmma's above all
    "executed": HardwareCounter("smsp__inst_executed.sum"),  # spinning and waiting included
}
"""Counters by column, in the order of the schema. Nsight Compute lists metrics by ``--query-metrics --chips gh100``;
version 2025.3.1 counts all of these."""

METRICS = tuple(dict.fromkeys(name for counter in COUNTERS.values() for name in (counter.metric, counter.over) if name))
"""Full names of all metrics."""


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


def figures_of(launches: Sequence[ProfiledLaunch]) -> tuple[dict[str, float], str]:
    """Return the figures of a launch, or of the several kernels that one call started, and the note on figures that are
    missing."""
    longest = max(launches, key=lambda launch: launch.values.get("gpu__time_duration.sum", 0.0))
    figures, remarks = {}, []
    for name, counter in COUNTERS.items():
        counted = [launch.values for launch in (launches if counter.adds else [longest])]
        below = [values.get(counter.over, 0.0) if counter.over else 1.0 for values in counted]
        if all(below) and all(counter.metric in values for values in counted):
            shares = (values[counter.metric] / over for values, over in zip(counted, below, strict=True))
            figures[name] = counter.factor * sum(shares)
        else:
            remarks.append(f"no {name}")
    if len(launches) > 1:
        remarks.append(f"{len(launches)} kernels")
    return figures, "; ".join(remarks)


def point_of(raw: dict[str, Any]) -> Point:
    """Return a point from its fields in JSON."""
    subject = raw["subject"]
    subject = subject if isinstance(subject, str) else kernel_of(subject)
    return Point(**{**raw, "problem": GemmProblem(**raw["problem"]), "subject": subject})
