"""Hardware counters of kernels: what each figure is, which metric is behind it, and how many launches are counted."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.measure.device import GpuId
from hopper_gemm.measure.profiler import (
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
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem

SECTOR_BYTES = 32
"""The grain of the L2 and of device memory."""

START_SECONDS = 240.0
REQUEST_SECONDS = 45.0
"""Allowance for the profiler and the program to start, and for each kernel: its matrices, its check, its replays."""

OURS = "kernel_cutlass"
"""What the name of every CuTe DSL kernel holds; ours goes on ``_kernel_hopper_gemm...HopperGemm``."""

FAILED_LOG = "counters-failed.log"
"""Raw output of the last run that could not be understood, kept beside the results."""


@dataclass(frozen=True)
class Source:
    """A metric that a figure may come from.

    Args:
        metric: full name.
        factor: from seconds, bytes, hertz, percent or a plain number to the figure's unit.
        over: a second metric by which the first is divided.
    """

    metric: str
    factor: float = 1.0
    over: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics that it takes."""
        return (self.metric,) if self.over is None else (self.metric, self.over)

    def value(self, values: dict[str, float]) -> float | None:
        """The figure, or None where a metric is not there."""
        if not all(name in values for name in self.metrics):
            return None
        below = 1.0 if self.over is None else values[self.over]
        return self.factor * values[self.metric] / below if below else None


@dataclass(frozen=True)
class Counter:
    """A figure of a launch.

    Args:
        name: as in results.
        unit: of the figure.
        meaning: what it counts.
        sources: metrics it may come from, the best first.
        adds: whether the figures of several kernels add up; otherwise the longest kernel's stands for all.
    """

    name: str
    unit: str
    meaning: str
    sources: tuple[Source, ...]
    adds: bool = True

    def value(self, values: dict[str, float]) -> tuple[float | None, Source | None]:
        """The figure and where it is from. A source that counted nothing gives way to one that did: a metric can be
        there and not know the instruction."""
        known = [(value, source) for source in self.sources if (value := source.value(values)) is not None]
        return next((pair for pair in known if pair[0] > 0), known[0] if known else (None, None))


def _active(unit: str) -> Source:
    return Source(f"{unit}.avg.pct_of_peak_sustained_active")


COUNTERS = (
    Counter(
        "tensor_active_hw",
        "%",
        "cycles in which the tensor cores compute, of those in which an SM has work; wgmma counts as hmma",
        (
            _active("sm__pipe_tensor_op_hmma_cycles_active"),
            _active("sm__pipe_tensor_cycles_active"),
            _active("sm__pipe_tensor_op_gmma_cycles_active"),
            _active("sm__inst_executed_pipe_tensor_op_gmma"),
        ),
        adds=False,
    ),
    Counter(
        "sm_ghz",
        "GHz",
        "mean SM clock during the launch",
        tuple(Source(f"{unit}__cycles_elapsed.avg.per_second", 1e-9) for unit in ("sm", "smsp", "gpc")),
        adds=False,
    ),
    Counter(
        "duration_us",
        "us",
        "time of the replay in which it was taken, from a cold start; no substitute for a timing",
        (Source("gpu__time_duration.sum", 1e6),),
    ),
    Counter(
        "dram_read_bytes",
        "B",
        "bytes read from device memory",
        (Source("dram__bytes_read.sum"), Source("dram__sectors_read.sum", SECTOR_BYTES)),
    ),
    Counter(
        "dram_write_bytes",
        "B",
        "bytes written to device memory; what is still in the L2 at the end is not among them",
        (Source("dram__bytes_write.sum"), Source("dram__sectors_write.sum", SECTOR_BYTES)),
    ),
    Counter(
        "l2_read_sectors",
        "sectors",
        "sectors of 32 bytes read in the L2",
        (Source("lts__t_sectors_op_read.sum"),),
    ),
    Counter(
        "l2_hit_pct",
        "%",
        "sectors found in the L2, of all that were looked up, reads and writes",
        (
            Source("lts__t_sector_hit_rate.pct"),
            Source("lts__t_sectors_lookup_hit.sum", 100, over="lts__t_sectors.sum"),
        ),
        adds=False,
    ),
    Counter(
        "l2_read_hit_pct",
        "%",
        "the same of reads alone",
        (
            Source("lts__t_sector_op_read_hit_rate.pct"),
            Source("lts__t_sectors_op_read_lookup_hit.sum", 100, over="lts__t_sectors_op_read.sum"),
        ),
        adds=False,
    ),
    Counter(
        "l2_load_hit_pct",
        "%",
        "the same of reads that SMs asked for: in these kernels TMA loads, which no metric of the L2 tells apart",
        (
            Source(
                "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum", 100, over="lts__t_sectors_srcunit_tex_op_read.sum"
            ),
        ),
        adds=False,
    ),
    Counter(
        "tma_load_bytes",
        "B",
        "bytes that TMA loads brought into the SMs",
        (
            Source("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"),
            Source("l1tex__m_xbar2l1tex_read_bytes_pipe_tma.sum"),
        ),
    ),
    Counter(
        "shared_bank_reads",
        "reads",
        "reads of a 4-byte bank of shared memory (of the L1 data array, to be exact), wgmma's operands above all",
        (Source("l1tex__data_bank_reads.sum"),),
    ),
    Counter(
        "instructions",
        "",
        "warp instructions executed, spinning and waiting included",
        (Source("smsp__inst_executed.sum"), Source("sm__inst_executed.sum")),
    ),
)
"""The figures, in the order in which tables show them. Metrics: Nsight Compute, ``--query-metrics --chips gh100``."""


@dataclass(frozen=True)
class CountRequest:
    """One launch to count: our kernel by a config on a problem, or cuBLAS where there is no config."""

    problem: GemmProblem
    config: GemmConfig | None = None

    def __str__(self) -> str:
        return f"{self.problem} {self.problem.dtype} {'cublas' if self.config is None else self.config}"


@dataclass(frozen=True)
class Counted:
    """What came of a request.

    Args:
        request: the request.
        kernel: name of the kernel; several are joined by ``+``.
        figures: by the names of :data:`COUNTERS`, or of :data:`hopper_gemm.measure.waits.FIGURES`; what was not
            counted is not there.
        note: which figures are not there, and which come from another metric than the first.
        reason: why there are no figures, or not those of either kind.
    """

    request: CountRequest
    kernel: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""
    reason: str = ""


Stage = Literal["begun", "profiling", "counted", "failed"]
"""How far the program got with a request; it writes each step down before it goes on."""

REACHED, ENDED = ("profiling", "counted"), ("counted", "failed")


def wanted_metrics(profiler: Profiler) -> list[str]:
    """The metrics to ask for: those that the profiler knows, and for a figure of which it knows none, all of them."""
    wanted: list[str] = []
    for counter in COUNTERS:
        known = [source for source in counter.sources if all(map(profiler.knows, source.metrics))]
        for source in known or counter.sources:
            wanted += source.metrics
    return list(dict.fromkeys(wanted))


def figures_of(launches: Sequence[ProfiledLaunch]) -> tuple[dict[str, float], str]:
    """The figures of a request's launches, and the note on what is missing or second-best.

    Args:
        launches: one; or the several kernels that one call started.
    """
    longest = max(launches, key=lambda launch: launch.values.get("gpu__time_duration.sum", 0.0))
    figures, remarks = {}, []
    for counter in COUNTERS:
        values = [counter.value(launch.values) for launch in (launches if counter.adds else [longest])]
        numbers = [value for value, _ in values if value is not None]
        if len(numbers) < len(values):
            remarks.append(f"no {counter.name}")
            continue
        figures[counter.name] = sum(numbers)
        source = values[0][1]
        if source is not None and source != counter.sources[0]:
            remarks.append(f"{counter.name} from {source.metric}")
    if len(launches) > 1:
        remarks.append(f"{len(launches)} kernels")
    return figures, "; ".join(remarks)


def count(
    requests: Sequence[CountRequest],
    gpu: GpuId,
    profiler: Profiler,
    *,
    store: Path | None = None,
    seed: int = 0,
    keep: Path | None = None,
    request_seconds: float = REQUEST_SECONDS,
    start_seconds: float = START_SECONDS,
) -> list[Counted]:
    """Count launches, all in one run of the profiler unless one of them hangs, crashes or cannot be told apart.

    Args:
        requests: what to count; kernels that are not in the store are compiled first, one by one.
        gpu: where.
        profiler: by what.
        store: folder of compiled kernels, or None for the default.
        seed: of the matrices.
        keep: folder for the raw output of a run that could not be understood.
        request_seconds, start_seconds: allowed for each request, and beside them for a run.

    Returns:
        One answer for each request, in their order.

    Raises:
        ProfilerError: the profiler cannot work here, or not a single launch could be counted and no request is to
            blame.
    """
    settled: dict[CountRequest, Counted] = {}
    metrics = wanted_metrics(profiler)
    alone = False
    while todo := [request for request in dict.fromkeys(requests) if request not in settled]:
        batch = todo[:1] if alone else todo
        with tempfile.TemporaryDirectory(prefix="hopper-gemm-counters-") as scratch:
            job = _Job(Path(scratch), batch, store, seed)
            ran = job.run(profiler, metrics, gpu, start_seconds + request_seconds * len(batch))
            stages = job.stages()
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
        found = settle(batch, stages, launches, end)
        if not found:
            _kept(ran, keep)
            alone = True
        settled.update(found)
    return [settled[request] for request in requests]


def settle(
    batch: Sequence[CountRequest],
    stages: dict[int, tuple[Stage, str]],
    launches: Sequence[ProfiledLaunch],
    end: str = "",
) -> dict[CountRequest, Counted]:
    """What a run says of its requests; those of which it says nothing for sure are left out and are to be run again.

    Launches are matched to requests by their order, which holds only where there is one for each that was counted and
    the names fit. A request that ran alone takes all launches, however many.

    Args:
        batch: the requests of the run.
        stages: by number of the request, how far the program got with it, and why it failed.
        launches: as the profiler saw them.
        end: what became of a request with which the program did not come to an end.
    """
    counted = [number for number, (stage, _) in stages.items() if stage == "counted"]
    found = {
        batch[number]: Counted(batch[number], reason=reason if stage == "failed" else end)
        for number, (stage, reason) in stages.items()
        if stage != "counted"
    }
    if not counted:
        return found
    if len(batch) == 1:
        groups = [list(launches)]
    else:
        groups = [[launch] for launch in launches]
        last = max(stages)
        if len(groups) == len(counted) + 1 and last not in counted and _fits(batch[last], groups[-1]):
            groups.pop()  # the program died in this very launch
    if len(groups) == len(counted) and all(_fits(batch[i], group) for i, group in zip(counted, groups, strict=True)):
        for number, group in zip(counted, groups, strict=True):
            found[batch[number]] = _counted(batch[number], group)
    elif len(batch) == 1:
        seen = ", ".join(launch.kernel for launch in launches) or "none"
        found[batch[0]] = Counted(batch[0], reason=f"the profiler saw another kernel than was launched: {seen}")
    return found


def _fits(request: CountRequest, launches: Sequence[ProfiledLaunch]) -> bool:
    return bool(launches) and (OURS in launches[0].kernel) == (request.config is not None)


def _counted(request: CountRequest, launches: Sequence[ProfiledLaunch]) -> Counted:
    figures, note = figures_of(launches)
    names = "+".join(dict.fromkeys(launch.kernel for launch in launches))
    if not figures:
        return Counted(request, names, reason="the profiler saw it but could count nothing of it")
    return Counted(request, names, figures, note)


class _Job:
    """The files of one run, and the run."""

    def __init__(self, folder: Path, batch: Sequence[CountRequest], store: Path | None, seed: int) -> None:
        self._file, self._journal, self._log = folder / "job.json", folder / "journal.jsonl", folder / "ncu.csv"
        job = {
            "store": None if store is None else str(store.absolute()),
            "seed": seed,
            "journal": str(self._journal),
            "requests": [request_dict(request) for request in batch],
        }
        self._file.write_text(json.dumps(job))

    def run(self, profiler: Profiler, metrics: Sequence[str], gpu: GpuId, timeout: float) -> Ran:
        program = [sys.executable, "-m", "hopper_gemm.measure.counted", str(self._file)]
        places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        return run(command(profiler, metrics, self._log, program), self._log, environment, timeout)

    def stages(self) -> dict[int, tuple[Stage, str]]:
        """The last step written down of each request; a line torn by a kill is passed over."""
        found: dict[int, tuple[Stage, str]] = {}
        for line in self._journal.read_text().splitlines() if self._journal.is_file() else []:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            found[entry["request"]] = (entry["stage"], entry["reason"])
        return found


def request_dict(request: CountRequest) -> dict[str, Any]:
    """A request for JSON."""
    return {"problem": asdict(request.problem), "config": None if request.config is None else request.config.as_dict()}


def request_of(raw: dict[str, Any]) -> CountRequest:
    """A request from JSON."""
    config = None if raw["config"] is None else GemmConfig(**raw["config"])
    return CountRequest(GemmProblem(**raw["problem"]), config)


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
    try:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / FAILED_LOG).write_text(ran.text)
    except OSError:
        return ""
    return f"; its output is in {keep / FAILED_LOG}"
