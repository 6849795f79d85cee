"""Messages between coordinator and worker: tasks out, rows in; and the replies of a worker's children.

Children alone hold a CUDA context, and may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.compiler.child import Handler
from hopper_gemm.compiler.pool import compiling
from hopper_gemm.tune.measure.device import GpuId, find_hopper
from hopper_gemm.tune.measure.protocol import Protocol
from hopper_gemm.tune.parameters import HOST_FIELDS, all_values
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.statistics import ALONE, Race, Ratio
from hopper_gemm.tune.study.row import Row, RowKey

NAMED = ("control", "compare")
"""Stages whose rows name the kernel that the baseline ran."""


@dataclass(frozen=True)
class LaunchCounter:
    """A counter of launches. It runs in processes of its own while the worker waits: it needs the GPU to itself."""

    # takes points, the GPU and the folder of kernels; returns the counts of each point. A module-level function,
    # because it is pickled. It raises a ValueError if it cannot count on this host.
    count: Callable[[Sequence[Point], GpuId, Path], Sequence[Any]]
    observer: str = ""  # observer of the kernels that it runs; see KernelId


@dataclass(frozen=True)
class Task:
    """Points for one worker, measured one after the other, with what the worker must know of other points."""

    points: tuple[Point, ...]
    method: Protocol | LaunchCounter  # a protocol times the points; a counter counts a launch of each
    stage: str = "sweep"  # of the rows
    process: int = 0  # number of the fresh process, noted with each pair
    child: str = ""  # name of the measuring process, which measures tasks of one name only; empty: any process
    race: Race = ALONE  # when a hopeless config is dropped, and which config it is compared with
    # recipes by baseline, from an earlier search, among which the baseline's candidate is chosen; see choose_again
    finalists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # configs whose machine code was measured with the same launch, by digest; it is not measured again
    twins: Mapping[str, str] = field(default_factory=dict)
    board: str = ""  # UUID of the only board that may measure the points; empty: any board

    def row(self, point: Point, board: str, status: str, reason: str = "", **measured: Any) -> Row:
        """Return the row of a point on a board, with what was measured, but without study, source and GPU. The status
        is of the results schema; ``"twin"`` if the reason names a config that ran the same machine code; or empty if a
        replayed study has no such row."""
        return Row(point, status, reason, stage=self.stage, process=self.process, board=board, **measured)

    def without(self, row: Row) -> Task | None:
        """Return the task without the point of a row; None if the row is not of this task."""
        if row.point not in self.points or (row.stage, row.process) != (self.stage, self.process):
            return None
        return replace(self, points=tuple(point for point in self.points if point != row.point))


Request = tuple[Literal["describe", "prepare", "measure"], dict[str, Any]]
"""A request to a measuring child: a step and its arguments by name. ``prepare`` and ``measure`` are methods of
:class:`hopper_gemm.tune.measure.bench.Bench`."""


def measuring(store: Path | None, seed: int) -> Handler:
    """Return the handler of a measuring child. It is made early to load modules; the first request opens the GPU."""
    from hopper_gemm.tune.measure.baselines import missing
    from hopper_gemm.tune.measure.bench import Bench
    from hopper_gemm.tune.measure.device import describe_current

    @cache
    def bench() -> Bench:
        return Bench(describe_current(), store, seed)

    def handle(request: Request) -> Any:
        step, arguments = request
        if step == "describe":
            return asdict(bench().device), missing(**arguments)
        return getattr(bench(), step)(**arguments)

    return handle


def naming() -> Handler:
    """Return the handler of the child that names baselines' kernels. It has a process of its own, because the profiler
    slows later launches of its process."""
    from hopper_gemm.tune.measure.baselines import baseline_kernel

    return lambda arguments: baseline_kernel(*arguments)


@dataclass(frozen=True)
class Rig:
    """Injectable dependencies of a worker; module-level functions, because they are pickled."""

    # returns a GPU by its index among the visible ones, without a CUDA context
    find: Callable[[int], GpuId] = find_hopper
    # make the handlers of the processes that measure, name and compile
    measuring: Callable[..., Handler] = measuring
    naming: Callable[..., Handler] = naming
    compiling: Callable[[Path], Handler] = compiling


@dataclass(frozen=True)
class Job:
    """The settings of a run, sent to every worker."""

    study: str  # its name
    seed: int = 0  # of the matrices and the bootstrap
    store: Path | None = None  # folder of compiled kernels; None for the default of the worker's host
    log: Path | None = None  # file for the output of the worker's processes; None for the default of its host
    fresh: int = 0  # number of fresh processes of a task series; spares load their modules ahead
    against: tuple[str, ...] = ("cublas",)  # baselines that the tasks will name
    verbose: bool = False  # report for each row where its seconds went
    rig: Rig = field(default_factory=Rig)


@dataclass(frozen=True)
class Joined:
    """A worker that is ready."""

    gpu: dict[str, Any]  # fields of DeviceInfo
    missing: Mapping[str, str] = field(default_factory=dict)  # baselines that cannot run there, with the reason
    name: str = ""  # such as GPU 0, which its executor knows

    @property
    def board(self) -> str:
        """UUID of its board."""
        return str(self.gpu.get("uuid", "unknown"))


@dataclass(frozen=True)
class Said:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class Begun:
    """The point of a row is being measured."""

    key: RowKey


@dataclass(frozen=True)
class Left:
    """A worker is gone; ``for_good`` if its GPU cannot be used."""

    reason: str
    for_good: bool = False


Event = Joined | Said | Begun | Row | Left


@lru_cache(4096)
def launch_key(point: Point) -> tuple[Any, ...]:
    """Return the values that two points of equal machine code must share to be one measurement."""
    kernel = point.config
    values = all_values(point.config)
    host = tuple(values[name] for name in HOST_FIELDS)
    conditions = (point.problem, point.regime, point.context, point.against, point.data)
    return (*conditions, kernel.smem_bytes, kernel.threads, kernel.chunk_n, *host)


def ratio_of(figures: Mapping[str, Any]) -> Ratio:
    """Return the speedup among figures, with its interval."""
    median, low, high = (float(figures[name]) for name in ("speedup", "speedup_low", "speedup_high"))
    return Ratio(median, low, high, int(figures["pairs"]))
