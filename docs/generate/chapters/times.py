"""Built listings on a GPU: each product is checked, each kernel is timed in bursts in turns with torch.mm.

Launches are chained, as in the recorded ladder. A listing that a reader changed may hang or crash: all run in a process
of their own, which is begun anew after one that did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docs.generate.chapters.build import Built
from docs.generate.pages.chapters import CHAPTERS, PROBLEM, kernel
from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.measure.protocol import Burst, Outcome, protocol_dict
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.provenance import fresh

START_SECONDS = 60.0
"""Allowance for a process that begins: modules and the GPU."""

LISTING_SECONDS = 30.0
"""Time after which a listing counts as hung; it takes about a second."""

STATUSES = {"raised": "crash", "died": "crash", "timeout": "timeout"}
"""Status of a listing by the reply that stands for an outcome."""


@dataclass(frozen=True)
class Request:
    """A built listing to be timed.

    Args:
        point: problem and config.
        object_file, report: see :class:`docs.generate.chapters.build.Built`.
        protocol: of the timing.
    """

    point: Point
    object_file: Path
    report: CubinReport
    protocol: Burst


def timing() -> Handler:
    """The handler of a process that times listings: the outcome of each :class:`Request`; asked nothing, the device."""
    from hopper_gemm.compiler.loader import LoadedKernel, launcher_of
    from hopper_gemm.model.kernel import resolve
    from hopper_gemm.tune.measure.bench import Bench
    from hopper_gemm.tune.measure.device import describe_current

    built: dict[Any, LoadedKernel] = {}
    device = describe_current()
    bench = Bench(device, load=lambda config, problem, store: built[config])

    def handle(asked: Request | None) -> Outcome | dict[str, Any]:
        if asked is None:
            return asdict(device)
        loaded = LoadedKernel.of(resolve(asked.point.config), asked.report, launcher_of(asked.object_file))
        built[asked.point.config] = loaded
        return bench.measure(asked.point, asked.protocol)

    return handle


def rows(
    built: Mapping[int, Built], gpu: GpuId, protocol: Burst | None = None, factory: Callable[[], Handler] = timing
) -> Iterator[dict[str, Any]]:
    """A row for each listing, ready for JSON, as it is timed.

    Args:
        built: by chapter.
        gpu: where.
        protocol: of the timing; None for that of the recorded ladder.
        factory: makes the handler of the process that times.
    """
    asked = protocol or Burst(pairs=9)
    about = {"gpu": gpu.name, "board": gpu.uuid, "kernel": kernel_digest(), "protocol": protocol_dict(asked)}
    begun = fresh("chapters", "", "measured")
    about |= {name: begun[name] for name in ("created", "commit", "versions")}
    child = Child(factory, environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})
    try:
        child.start()
        for number, one in built.items():
            yield {**_row(number, one, child, asked), **about}
    finally:
        child.close()


def _row(number: int, one: Built, child: Child, protocol: Burst) -> dict[str, Any]:
    """What is known of a listing once it was timed."""
    rung = CHAPTERS[number - 1].rungs[-1]
    point = Point(PROBLEM, kernel(rung), "burst", "chained")
    row: dict[str, Any] = {"chapter": number, "rung": rung, "m": PROBLEM.m, "n": PROBLEM.n, "k": PROBLEM.k}
    row |= {"regime": point.regime, "context": point.context, "against": point.against}
    if one.object_file is None or one.report is None:
        return {**row, "status": "compile_error", "reason": one.error}
    row |= {"code": one.report.code, "registers": one.report.registers}
    if one.report.spills:
        return {**row, "status": "spilled", "reason": "registers spill to local memory; not timed"}
    started = child.ask(None, START_SECONDS)  # so that a listing that hangs is not given the time of a start
    if started.kind != "answer":
        return {**row, "status": STATUSES[started.kind], "reason": started.error}
    reply = child.ask(Request(point, one.object_file, one.report, protocol), LISTING_SECONDS)
    if reply.kind != "answer":
        return {**row, "status": STATUSES[reply.kind], "reason": reply.error}
    outcome, device = reply.value, started.value
    us = [[sample.ours_us, sample.baseline_us] for sample in outcome.samples]
    row |= {"status": outcome.status, "reason": outcome.reason, **outcome.figures, "us": us}
    return {**row, "driver": device["driver"], "cuda": device["cuda"], "power_limit_watts": device["power_limit_watts"]}
