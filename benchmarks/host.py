"""Print the host time of a product by every way to call it, in one run: a table, and with ``--out`` a CSV.

A time is the median of blocks of calls, until a call returns, the ways in turns; the GPU works behind. Nothing else may
run on the machine. Ours are timed with the extension of torch, which is compiled first where it is missing, and in a
process of its own without it: ``by Python``. Each is compared with torch's way in its own process. Run it from the
repository's root: ``python -m benchmarks.host [--out host.csv]``.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch

import hopper_gemm
from benchmarks import need_hopper
from hopper_gemm.compiler import extension
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import kernel_for
from hopper_gemm.serve.ops import mm, mm_out

PROBLEMS = (GemmProblem(64, 64, 64), GemmProblem(16, 6144, 4096))
"""One that a GPU finishes before the host is back, and a layer of a decode step, of which the queue holds a block."""

BLOCK = 200
"""Calls between two synchronisations: fewer than the driver queues before a call has to wait."""

BLOCKS = 50

Call = tuple[str, str, str]
"""A way to call, the output that it writes (``new`` or ``given``), and the gradient: ``none``, ``recorded``, or
``computed``, by a backward pass behind it."""

PEERS = {"linear": "torch.nn.functional.linear", "Linear": "torch.nn.Linear"}
"""Ways of torch with which others are compared, by a word in their names; all else is compared with torch.mm."""


def host_times(
    calls: Mapping[str, Callable[[], object]],
    synchronise: Callable[[], None],
    block: int = BLOCK,
    blocks: int = BLOCKS,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, float]:
    """Return the median host microseconds of each call: until it returns, not until the GPU is done.

    The calls alternate block by block, in the opposite order every other time, so that drift affects all calls alike.
    The GPU's work must be shorter than the host's, or the queue fills: take a tiny problem.

    Args:
        calls: calls by name.
        synchronise: waits for the GPU; not timed.
        block: number of calls of a block, whose mean is a sample.
        blocks: number of samples of each call.
        clock: returns nanoseconds.
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


def calls(problem: GemmProblem) -> dict[Call, Callable[[], object]]:
    """Every way to multiply the matrices of a problem, each loaded."""
    how: Any = {"device": "cuda", "dtype": torch.bfloat16}
    a = torch.randn(problem.m, problem.k, **how)
    layer, patched = (torch.nn.Linear(problem.k, problem.n, bias=False, **how) for _ in range(2))
    hopper_gemm.patch(patched)
    weight, bias = layer.weight.detach(), torch.randn(problem.n, **how)
    b, recorded, out = weight.t(), layer.weight.t(), torch.empty(problem.m, problem.n, **how)
    x, gradient = a.clone().requires_grad_(), torch.randn_like(out)
    kernel = kernel_for(problem, torch.cuda.current_device())

    def trained(module: torch.nn.Module) -> Callable[[], object]:
        return lambda: torch.autograd.grad(module(x), (x, *module.parameters()), gradient)

    return {
        ("torch.mm", "new", "none"): lambda: torch.mm(a, b),
        ("hopper_gemm.matmul", "new", "none"): lambda: hopper_gemm.matmul(a, b),
        ("torch.ops.hopper_gemm.mm", "new", "none"): lambda: mm(a, b),
        ("torch.mm", "given", "none"): lambda: torch.mm(a, b, out=out),
        ("hopper_gemm.matmul", "given", "none"): lambda: hopper_gemm.matmul(a, b, out=out),
        ("torch.ops.hopper_gemm.mm_out", "given", "none"): lambda: mm_out(a, b, out),
        ("a loaded kernel", "given", "none"): lambda: kernel(a, weight, out),
        ("torch.nn.functional.linear", "new", "none"): lambda: torch.nn.functional.linear(a, weight, bias),
        ("hopper_gemm.linear", "new", "none"): lambda: hopper_gemm.linear(a, weight, bias),
        ("torch.mm", "new", "recorded"): lambda: torch.mm(a, recorded),
        ("hopper_gemm.matmul", "new", "recorded"): lambda: hopper_gemm.matmul(a, recorded),
        ("torch.ops.hopper_gemm.mm", "new", "recorded"): lambda: mm(a, recorded),
        ("torch.nn.Linear", "new", "recorded"): lambda: layer(a),
        ("torch.nn.Linear, patched", "new", "recorded"): lambda: patched(a),
        ("torch.nn.Linear", "new", "computed"): trained(layer),
        ("torch.nn.Linear, patched", "new", "computed"): trained(patched),
    }


def rows_by_python() -> list[dict[str, object]]:
    """A row for each of our ways but the bare kernel, in this process without the extension of torch."""
    extension.extension_of = lambda source: None  # before matmul is imported
    with hopper_gemm.while_compiling("wait"):
        found = [row for problem in PROBLEMS for row in rows(problem)]
    return [
        {**row, "call": f"{row['call']}, by Python"}
        for row in found
        if "hopper" in row["call"] or "patched" in row["call"]
    ]


def rows(problem: GemmProblem) -> Iterator[dict[str, Any]]:
    """A row for each way, its time over that of torch's way in the same position."""
    ways = calls(problem)
    times = host_times({str(call): work for call, work in ways.items()}, torch.cuda.synchronize)
    for call in ways:
        name, out, gradient = call
        peer = next((peer for word, peer in PEERS.items() if word in name), "torch.mm")
        us = times[str(call)]
        yield {
            "problem": str(problem),
            "call": name,
            "output": out,
            "gradient": gradient,
            "us": round(us, 2),
            "over torch": round(us / times[str((peer, out, gradient))], 3),
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
        }


def main() -> None:
    """Measure, print, write."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, help="CSV to write")
    given = asked.parse_args()
    need_hopper()
    found = []
    if hopper_gemm.prebuild().extension:
        with hopper_gemm.while_compiling("wait"):
            found = [row for problem in PROBLEMS for row in rows(problem)]
    else:
        print("the extension of torch cannot be built; hopper-gemm doctor says what it needs", file=sys.stderr)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found += pool.submit(rows_by_python).result()
    names = list(found[0])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    for row in found:
        print(f"| {' | '.join(map(str, row.values()))} |")
    if given.out is not None:
        with given.out.open("w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(found)


if __name__ == "__main__":
    main()
