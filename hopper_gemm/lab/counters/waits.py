"""Waits of the kernel's roles for the ring: how often and how long, counted by the kernel itself.

The metered kernel is another binary than the timed kernel, and slower: it reads the clock twice a stage. Its figures
are shares, which the meter changes less than times.
"""

from __future__ import annotations

from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.lab.counters.counting import Counted
from hopper_gemm.lab.ladder.ladder_config import Side
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.roofline import work_items
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.point import Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopper_gemm.compiler.loader import LoadedKernel
    from hopper_gemm.model.problem import GemmProblem
    from hopper_gemm.tune.measure.workload import MatrixSet, Workload

SIDES: tuple[Side, ...] = get_args(Side)
"""Sides of the ring; a CTA writes a row for each. The first consumer reports for all consumers."""

METER = "hopper_gemm.lab.ladder.meter:Meter"
"""The kernel's observer."""

READING = 4
"""Fields of a row: stages, hits, cycles waited, cycles."""

FIGURES = tuple(f"{side}_{figure}_pct" for figure in ("hit", "wait") for side in SIDES)
"""``hit``: probes that found the barrier ready, in percent of the stages; the first stage of a tile is not probed.
``wait``: SM cycles between asking for a stage and having it, in percent of the role's cycles, epilogues included. In
pingpong the wait for the turn is not counted: it is among the cycles."""

WARM_UP, LAUNCHES = 1, 3
"""Launches that are not counted, and launches of which the mean is taken."""

POINT_SECONDS = 60.0
"""Allowance for a kernel: its matrices, its check, its launches."""


def waits_of(launches: np.ndarray, config: GemmConfig) -> dict[str, float]:
    """Return the :data:`FIGURES` of a config, from (launches, CTAs, sides, fields), 32 bits each, read as unsigned:
    sums may have wrapped. They are means over the CTAs that did work, then over the launches.

    A side that counted nothing has none (``multistage`` has no producer, ``cp_async`` none that counts), and a side
    that does not peek has no hits.
    """
    figures: dict[str, float] = {}
    for row, side in enumerate(SIDES):
        stages, hits, waited, cycles = np.moveaxis(launches.astype(np.int32).view(np.uint32)[:, :, row], -1, 0)
        worked = (stages > 0) & (cycles > 0)
        if not worked.any(axis=1).all():
            continue
        if config.stages != 1 and config.peek in (True, side):
            figures[f"{side}_hit_pct"] = _percent(hits, stages, worked)
        figures[f"{side}_wait_pct"] = _percent(waited, cycles, worked)
    return {name: figures[name] for name in FIGURES if name in figures}


def _percent(part: np.ndarray, whole: np.ndarray, worked: np.ndarray) -> float:
    shares = np.divide(part, whole, out=np.zeros(part.shape), where=worked)
    return float(100 * shares.mean(axis=1, where=worked).mean())


def launched_ctas(kernel: LoadedKernel, problem: GemmProblem) -> int:
    """Return the CTAs of a launch."""
    return kernel.config.cluster_size * min(kernel.order[0], work_items(kernel.config, problem))


def read_meter(kernel: LoadedKernel, problem: GemmProblem, sets: list[MatrixSet]) -> np.ndarray:
    """Launch a metered kernel on a set of matrices after the other without a pause; return (launches, CTAs, sides,
    fields) of int32."""
    import torch

    shape = (len(sets), launched_ctas(kernel, problem), len(SIDES), READING)
    readings = torch.zeros(shape, dtype=torch.int32, device="cuda")
    for operands, reading in zip(sets, readings, strict=True):
        kernel(operands.a, operands.b, operands.ours, readings=reading)
    return readings.cpu().numpy()


def measure_waits(
    point: Point, workload: Workload, rotation: Iterator[MatrixSet], store: Path | None = None
) -> Counted:
    """Check the metered kernel's product once on normal matrices, warm up, and take the mean of some launches. The
    rotation has no end and takes the sets in turn, so that every launch finds the L2 cold."""
    from hopper_gemm.compiler.loader import load
    from hopper_gemm.tune.measure.correctness import poison

    problem, first = workload.problem, workload.sets[0]
    if problem.out_of_reach:
        reach = f"{problem} {problem.layouts} has matrices out of TMA's reach"
        return Counted(
            point, reason=f"the meter watches one kernel that TMA feeds and {reach}; take {filled_up(problem)}"
        )
    kernel = load(point.config, problem, store, METER)
    poison(first.ours)
    read_meter(kernel, problem, [first])
    result = workload.check(first.ours)
    if not result.ok:
        return Counted(point, reason=f"metered, the product is wrong: {result.reason}")
    readings = read_meter(kernel, problem, [next(rotation) for _ in range(WARM_UP + LAUNCHES)])
    figures = waits_of(readings[WARM_UP:], kernel.config)
    return Counted(point, figures=figures, reason="" if figures else "metered, it counted nothing")


def meter(points: Sequence[Point], gpu: GpuId, store: Path | None) -> list[Counted]:
    """Return the waits of the roles of each point's kernel, measured by a process without a profiler. If it dies over a
    point, the next point starts a new process."""
    with closing(Child(_metering, store, environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})) as child:
        replies = [child.ask(point, POINT_SECONDS) for point in points]
    return [
        reply.value if reply.kind == "answer" else Counted(point, reason=f"metered: {reply.error}")
        for point, reply in zip(points, replies, strict=True)
    ]


def _metering(store: Path | None) -> Handler:
    """Return the child's handler, which keeps the matrices of a problem from point to point."""
    import torch

    from hopper_gemm.tune.measure.device import describe_current
    from hopper_gemm.tune.measure.workload import make_workload

    l2_bytes = describe_current().l2_bytes
    kept: list[Any] = []

    def handle(point: Point) -> Counted:
        if not kept or kept[0].problem != point.problem:
            kept.clear()
            torch.cuda.empty_cache()
            workload = make_workload(point.problem, l2_bytes)
            kept[:] = workload, cycle(workload.sets)
        workload, rotation = kept
        return measure_waits(point, workload, rotation, store)

    return handle
