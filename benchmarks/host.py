"""Print the host time of a product by every way to call it, in one run: a table, and with ``--out`` a CSV.

A time is the median of blocks of calls, until a call returns, the ways in turns; the GPU works behind. Nothing else may
run on the machine. Run it from the repository's root: ``python -m benchmarks.host [--out host.csv]``.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import hopper_gemm
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import kernel_for
from hopper_gemm.serve.ops import mm, mm_out
from hopper_gemm.tune.measure.timing import host_times

PROBLEMS = (GemmProblem(64, 64, 64), GemmProblem(16, 6144, 4096))
"""One that a GPU finishes before the host is back, and a layer of a decode step, of which the queue holds a block."""

Call = tuple[str, str, bool]
"""A way to call, the output that it writes (``new`` or ``given``), and whether a gradient is recorded."""


def calls(problem: GemmProblem) -> dict[Call, Callable[[], object]]:
    """Every way to multiply the matrices of a problem, each loaded."""
    a = torch.randn(problem.m, problem.k, device="cuda", dtype=torch.bfloat16)
    layer = torch.nn.Linear(problem.k, problem.n, bias=False, device="cuda", dtype=torch.bfloat16)
    weight = layer.weight.detach()
    b, recorded, out = weight.t(), layer.weight.t(), torch.empty(problem.m, problem.n, device="cuda", dtype=a.dtype)
    kernel = kernel_for(problem, torch.cuda.current_device())
    patched = torch.nn.Linear(problem.k, problem.n, bias=False, device="cuda", dtype=torch.bfloat16)
    hopper_gemm.patch(patched)
    ways: dict[Call, Callable[[], object]] = {
        ("torch.mm", "new", False): lambda: torch.mm(a, b),
        ("hopper_gemm.matmul", "new", False): lambda: hopper_gemm.matmul(a, b),
        ("torch.ops.hopper_gemm.mm", "new", False): lambda: mm(a, b),
        ("torch.mm", "given", False): lambda: torch.mm(a, b, out=out),
        ("hopper_gemm.matmul", "given", False): lambda: hopper_gemm.matmul(a, b, out=out),
        ("torch.ops.hopper_gemm.mm_out", "given", False): lambda: mm_out(a, b, out),
        ("a loaded kernel", "given", False): lambda: kernel(a, weight, out),
        ("torch.mm", "new", True): lambda: torch.mm(a, recorded),
        ("hopper_gemm.matmul", "new", True): lambda: hopper_gemm.matmul(a, recorded),
        ("torch.nn.Linear", "new", True): lambda: layer(a),
        ("torch.nn.Linear, patched", "new", True): lambda: patched(a),
    }
    return ways


def rows(problem: GemmProblem) -> Iterator[dict[str, object]]:
    """A row for each way, its time over that of torch.mm or torch.nn.Linear in the same position."""
    ways = calls(problem)
    times = host_times({str(call): work for call, work in ways.items()}, torch.cuda.synchronize)
    for call in ways:
        name, out, recorded = call
        peer = "torch.nn.Linear" if "Linear" in name else "torch.mm"
        us = times[str(call)]
        yield {
            "problem": str(problem),
            "call": name,
            "output": out,
            "gradient": "recorded" if recorded else "none",
            "us": round(us, 2),
            "over torch": round(us / times[str((peer, out, recorded))], 3),
        }


def main() -> None:
    """Measure, print, write."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, help="CSV to write")
    given = asked.parse_args()
    found = [row for problem in PROBLEMS for row in rows(problem)]
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
