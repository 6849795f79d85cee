"""What a launch costs the host: the time until the call returns, not until the GPU is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.measure.workload import make_workload
from hopper_gemm.model.problem import GemmProblem

BLOCK = 200
"""Calls between two synchronisations: fewer than the driver queues before a call has to wait."""

BLOCKS = 50


def host_times(
    calls: Mapping[str, Callable[[], object]],
    synchronise: Callable[[], None],
    block: int = BLOCK,
    blocks: int = BLOCKS,
    clock: Callable[[], int] = perf_counter_ns,
) -> dict[str, float]:
    """Median host microseconds of each call.

    The calls take turns block by block, in the opposite order every other time, so that what drifts drifts for all.
    The GPU's work must be shorter than the host's, or the queue fills: take a tiny problem.

    Args:
        calls: by name.
        synchronise: waits for the GPU; not timed.
        block: calls of one block, whose mean is one sample.
        blocks: samples of each.
        clock: nanoseconds.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(block):
            call()
    for number in range(blocks):
        for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
            call = calls[name]
            synchronise()
            start = clock()
            for _ in range(block):
                call()
            samples[name].append((clock() - start) / 1000 / block)
    synchronise()
    return {name: median(times) for name, times in samples.items()}


def launch_times(problem: GemmProblem, kernel: LoadedKernel, matmul: Callable[..., Any]) -> dict[str, float]:
    """Median host microseconds of a launch, each into a given output: ``torch.mm``, ``hopper_gemm.matmul``, and
    ``kernel``, the loaded kernel alone.

    Args:
        problem: a tiny one.
        kernel: loaded for it.
        matmul: the drop-in.
    """
    first = make_workload(problem, l2_bytes=0).sets[0]
    a, b, right, out = first.a, first.b, first.b.t(), first.ours
    calls = {
        "torch.mm": lambda: torch.mm(a, right, out=out),
        "hopper_gemm.matmul": lambda: matmul(a, right, out=out),
        "kernel": lambda: kernel(a, b, out),
    }
    return host_times(calls, torch.cuda.synchronize)
