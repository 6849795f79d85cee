"""The two sides of a comparison, as CUDA graphs over rotating buffers, and the clock around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import torch

from hopper_gemm.compiler.probe import load_clock_probe
from hopper_gemm.measure.workload import Operands, Workload

Launch = Callable[[Operands], None]

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Multiplies A (m, k) by the transpose of B (n, k) into C (m, n): a :class:`hopper_gemm.compiler.loader.LoadedKernel`, or
what stands for one."""


def kernel_launch(kernel: Kernel) -> Launch:
    """One launch of our kernel on a set of matrices."""

    def launch(operands: Operands) -> None:
        kernel(operands.a, operands.b, operands.ours)

    return launch


def cublas_launch(operands: Operands) -> None:
    """One launch of the baseline: torch.mm, which is cuBLAS, on the same matrices and to the same type."""
    a, b, out = operands.a, operands.b.t(), operands.theirs
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


@dataclass(frozen=True)
class Arm:
    """One side of a comparison, captured.

    Args:
        warm: graph that brings the GPU up to speed.
        timed: graph that is timed.
        launches: launches in ``timed``.
        stretched: how many times longer than was asked both take together, where launches are long; else 1.
    """

    warm: torch.cuda.CUDAGraph
    timed: torch.cuda.CUDAGraph
    launches: int
    stretched: float = 1.0


def make_arm(
    launch: Launch, workload: Workload, warm_seconds: float, timed_seconds: float, seconds: float | None = None
) -> Arm:
    """Capture a side. Graphs keep the host's launch cost, up to a quarter of a short kernel, out of the figures.

    Args:
        launch: what runs.
        workload: on which matrices, set after set.
        warm_seconds: of the graph that warms up.
        timed_seconds: of the graph that is timed.
        seconds: of one launch, where that is known; measured if None.
    """
    seconds = seconds_per_launch(launch, workload) if seconds is None else seconds
    warm, timed = (max(2, ceil(span / seconds)) for span in (warm_seconds, timed_seconds))
    stretched = max(1.0, (warm + timed) * seconds / (warm_seconds + timed_seconds))
    return Arm(_capture(launch, workload, warm), _capture(launch, workload, timed), timed, stretched)


class Clock:
    """Mean SM clock between two marks, by a probe that reads every SM's cycle counter.

    Args:
        sms: SMs of the GPU.
    """

    def __init__(self, sms: int) -> None:
        self._sms = sms
        self._probe = load_clock_probe()

    def mark(self) -> Any:
        """Queue a reading on the current stream."""
        readings = torch.zeros(self._sms, 2, dtype=torch.int64, device="cuda")
        self._probe(readings, self._sms)
        return readings

    def mhz(self, start: Any, end: Any) -> float:
        """Mean clock between two marks, in MHz; NaN where no SM was read both times."""
        seen = (start[:, 1] > 0) & (end[:, 1] > start[:, 1])
        spans = (end - start)[seen].double()
        return float((spans[:, 0] / spans[:, 1]).median() * 1000) if len(spans) else float("nan")


def seconds_per_launch(launch: Launch, workload: Workload) -> float:
    """Roughly, launched one by one: of a short kernel this is the host's time."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for operands in workload.sets:
        launch(operands)
    start.record()
    for operands in workload.sets:
        launch(operands)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / len(workload.sets)


def _capture(launch: Launch, workload: Workload, launches: int) -> torch.cuda.CUDAGraph:
    """As torch.cuda.graph does, without giving back the memory that the next check will ask for again."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(_capture_stream()):
        graph.capture_begin()
        try:
            for i in range(launches):
                launch(workload.sets[i % len(workload.sets)])
        finally:
            graph.capture_end()
    return graph


@cache
def _capture_stream() -> torch.cuda.Stream:
    """One for all, since a kernel keeps a workspace for each stream."""
    return torch.cuda.Stream()
