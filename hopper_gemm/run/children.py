"""What a worker's children do: they alone hold a CUDA context, and may be killed at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hopper_gemm.compiler.child import Handler
from hopper_gemm.measure.device import GpuId
from hopper_gemm.measure.protocol import Protocol
from hopper_gemm.measure.race import Look
from hopper_gemm.measure.statistics import Ratio
from hopper_gemm.model.point import Point

if TYPE_CHECKING:
    from hopper_gemm.measure.counters import Counted


@dataclass(frozen=True)
class Ask:
    """One thing to do on the GPU.

    Args:
        kind: ``"describe"`` the GPU, ``"prepare"`` for a point, ``"measure"`` it, take its ``"host"`` time.
        point: what the kind needs of one.
        protocol, process, looks, leader, noise, following: of :meth:`hopper_gemm.measure.bench.Bench.measure`.
        against: baselines to look for.
    """

    kind: Literal["describe", "prepare", "measure", "host"]
    point: Point | None = None
    protocol: Protocol | None = None
    process: int = 0
    looks: tuple[Look, ...] = ()
    leader: Ratio | None = None
    noise: float = 0.0
    following: Point | None = None
    against: tuple[str, ...] = ()


def measuring(store: Path | None, seed: int) -> Handler:
    """The handler of a measuring child. Made early it only loads modules; the first request touches the GPU."""
    from hopper_gemm.measure.baselines import missing
    from hopper_gemm.measure.bench import Bench
    from hopper_gemm.measure.device import describe_current

    @cache
    def bench() -> Bench:
        return Bench(describe_current(), store, seed)

    def handle(ask: Ask) -> Any:
        if ask.kind == "describe":
            return bench().device.as_dict(), missing(ask.against)
        assert ask.point is not None
        if ask.kind == "prepare":
            return bench().prepare(ask.point)
        if ask.kind == "host":
            return bench().host_times(ask.point.problem)
        assert ask.protocol is not None
        told: dict[str, Any] = {"process": ask.process, "looks": ask.looks, "leader": ask.leader, "noise": ask.noise}
        return bench().measure(ask.point, ask.protocol, following=ask.following, **told)

    return handle


def naming() -> Handler:
    """The handler of the child that names baselines' kernels: the profiler slows what its process launches later."""
    from hopper_gemm.measure.naming import baseline_kernel

    return lambda asked: baseline_kernel(*asked)


def profile(points: Sequence[Point], gpu: GpuId, store: Path) -> Sequence[Counted]:
    """What the profiler counts of one launch of each point; one answer for each. It must have the GPU to itself
    meanwhile.

    Raises:
        ProfilerError: the profiler is missing or cannot work here.
    """
    from hopper_gemm.measure.counters import count
    from hopper_gemm.measure.counters.profiler import open_profiler

    return count(points, gpu, open_profiler(), store=store)


def meter(points: Sequence[Point], gpu: GpuId, store: Path) -> Sequence[Counted]:
    """How long the roles of each point's kernel wait, as the kernel itself counts; one answer for each."""
    from hopper_gemm.measure.counters.waits import WaitMeter

    meter = WaitMeter(gpu, store)
    try:
        return [meter.measure(point) for point in points]
    finally:
        meter.close()
