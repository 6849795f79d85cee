"""Messages between a coordinator, its workers and their children, and how a child answers them.

Children alone hold a CUDA context, and may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.compiler.child import Handler
from hopper_gemm.compiler.pool import compiling
from hopper_gemm.model.footprint import footprint_of
from hopper_gemm.model.point import Point, Sample
from hopper_gemm.tune.measure.device import GpuId, find_hopper
from hopper_gemm.tune.measure.protocol import Outcome, Protocol
from hopper_gemm.tune.measure.race import ALONE, Look, Race
from hopper_gemm.tune.measure.statistics import Ratio
from hopper_gemm.tune.parameters import HOST_FIELDS, all_values

NAMED = ("control", "compare")
"""Stages whose rows name the kernel that the baseline ran."""


@dataclass(frozen=True)
class Counter:
    """What counts launches, in processes of its own; it blocks, and has the GPU to itself.

    Args:
        count: takes points, the GPU and the folder of kernels; returns one answer for each point. A function of a
            module, since it travels. It raises a ValueError if it cannot count on this host.
        observer: of the kernels that it runs; see :class:`hopper_gemm.compiler.store.KernelId`.
    """

    count: Callable[[Sequence[Point], GpuId, Path], Sequence[Any]]
    observer: str = ""


@dataclass(frozen=True)
class Task:
    """Points for one worker, measured one after the other.

    Args:
        points: what is measured.
        kind: ``"time"`` them; take their ``"host"`` time; ``"count"`` launches of each.
        counter: what counts.
        stage: of the rows.
        protocol: how they are timed.
        process: number of the fresh process, noted with each pair.
        child: name of the process that measures them, which has measured nothing of another name; any where empty.
        looks: when a hopeless config is dropped.
        leader: the best so far.
        noise: noise floor of the place on the worker's board, where it is known.
        known: machine code that was measured with the same launch, by digest, with the config that ran it.
        pinned: whether it is for the board of the worker that it was made for, and no other.
    """

    points: tuple[Point, ...]
    kind: Literal["time", "host", "count"] = "time"
    counter: Counter | None = None
    stage: str = "sweep"
    protocol: Protocol | None = None
    process: int = 0
    child: str = ""
    looks: tuple[Look, ...] = ()
    leader: Ratio | None = None
    noise: float | None = None
    known: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False


@dataclass(frozen=True)
class Ask:
    """One thing to do on the GPU.

    Args:
        kind: ``"describe"`` the GPU, ``"prepare"`` for a point, ``"measure"`` it, take its ``"host"`` time.
        point: what the kind needs of one.
        protocol, process, race, following: of :meth:`hopper_gemm.tune.measure.bench.Bench.measure`.
        against: baselines to look for.
    """

    kind: Literal["describe", "prepare", "measure", "host"]
    point: Point | None = None
    protocol: Protocol | None = None
    process: int = 0
    race: Race = ALONE
    following: Point | None = None
    against: tuple[str, ...] = ()


def measuring(store: Path | None, seed: int) -> Handler:
    """The handler of a measuring child. Made early it only loads modules; the first request touches the GPU."""
    from hopper_gemm.tune.measure.baselines import missing
    from hopper_gemm.tune.measure.bench import Bench
    from hopper_gemm.tune.measure.device import describe_current

    @cache
    def bench() -> Bench:
        return Bench(describe_current(), store, seed)

    def handle(ask: Ask) -> Any:
        if ask.kind == "describe":
            return asdict(bench().device), missing(ask.against)
        assert ask.point is not None
        if ask.kind == "prepare":
            return bench().prepare(ask.point)
        if ask.kind == "host":
            return Outcome("ok", figures=bench().host_times(ask.point.problem))
        assert ask.protocol is not None
        return bench().measure(ask.point, ask.protocol, process=ask.process, race=ask.race, following=ask.following)

    return handle


def naming() -> Handler:
    """The handler of the child that names baselines' kernels: the profiler slows what its process launches later."""
    from hopper_gemm.tune.measure.naming import baseline_kernel

    return lambda asked: baseline_kernel(*asked)


@dataclass(frozen=True)
class Rig:
    """What a worker is made of. Tests make it of other parts; all are module-level functions, since they travel.

    Args:
        find: a GPU by its index among the visible ones, without a CUDA context.
        measuring, naming, compiling: handlers of the processes that do so.
    """

    find: Callable[[int], GpuId] = find_hopper
    measuring: Callable[..., Handler] = measuring
    naming: Callable[..., Handler] = naming
    compiling: Callable[[Path], Handler] = compiling


@dataclass(frozen=True)
class Job:
    """What every worker of a run is told.

    Args:
        study: its name.
        seed: of the matrices and the bootstrap.
        store: folder of compiled kernels; None for the default of the worker's host.
        log: file that takes what its processes print; None for the default of its host.
        fresh: processes that finals will take.
        against: baselines that will be asked for.
        rig: parts.
    """

    study: str
    seed: int = 0
    store: Path | None = None
    log: Path | None = None
    fresh: int = 0
    against: tuple[str, ...] = ("cublas",)
    rig: Rig = field(default_factory=Rig)


@dataclass(frozen=True)
class Joined:
    """A worker is ready.

    Args:
        gpu: fields of :class:`hopper_gemm.tune.measure.device.DeviceInfo`.
        missing: baselines that cannot be asked here, with the reason.
    """

    gpu: dict[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class Begun:
    """A point of a task is being measured."""

    number: int
    index: int


@dataclass(frozen=True)
class Answer:
    """The result of a point.

    Args:
        number: of the task.
        index: of the point in it.
        status: of the results schema; empty where the point was left out, since it failed in an earlier process.
        reason: why it is not ok; else a remark.
        figures: by column.
        samples: pairs of times.
        twin: the config that ran the same machine code with the same launch and stands for this one.
    """

    number: int
    index: int
    status: str
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    twin: str = ""


@dataclass(frozen=True)
class Left:
    """A worker is gone.

    Args:
        reason: one line.
        for_good: whether it will not come back: its GPU cannot be used.
    """

    reason: str
    for_good: bool = False


Event = Joined | Said | Begun | Answer | Left


def launch_key(point: Point) -> tuple[Any, ...]:
    """What two points must share, beside their machine code, to be one measurement."""
    footprint = footprint_of(point.config)
    values = all_values(point.config)
    host = tuple(values[name] for name in HOST_FIELDS)
    about = (point.problem, point.regime, point.context, point.against, point.data)
    return (*about, footprint.smem_bytes, footprint.threads, footprint.chunk_n, *host)


def ratio_of(figures: Mapping[str, Any]) -> Ratio:
    """The speedup among figures, with its interval."""
    median, low, high = (float(figures[name]) for name in ("speedup", "speedup_low", "speedup_high"))
    return Ratio(median, low, high, int(figures["pairs"]))
