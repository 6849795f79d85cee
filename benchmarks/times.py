"""Print times on which no test may depend: of a launch on the host, of the spacer, and what PDL gains in each context.

Nothing else may run on the GPU. Run it from the repository's root: ``python -m benchmarks.times``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hopper_gemm import fallback, matmul
from hopper_gemm.compiler.loader import load
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.lookup import find, tables
from hopper_gemm.model.point import CONTEXTS, Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import host_times
from hopper_gemm.tune.measure.workload import make_workload

PROTOCOL = Burst(rest=0.010, pairs=15)
TINY, SHORT, LONG = (GemmProblem(size, size, size) for size in (64, 1024, 4096))
CONFIG = GemmConfig(tile_m=128, tile_n=64)


def figures(bench: Bench, point: Point) -> dict[str, Any]:
    """Measure a point.

    Raises:
        RuntimeError: it could not be measured.
    """
    outcome = bench.measure(point, PROTOCOL)
    if outcome.status != "ok":
        raise RuntimeError(f"{point} must be measured but got {outcome.status}: {outcome.reason}")
    return outcome.figures


def launches(problem: GemmProblem, slug: str) -> dict[str, Callable[[], object]]:
    """Launches of a product into a given output: ``torch.mm``, ``hopper_gemm.matmul`` and ``kernel``, the loaded kernel
    alone.

    Args:
        problem: what is multiplied.
        slug: of the kind of GPU, whose tuned table gives the kernel.
    """
    kernel = load(find(tables(slug), problem).config, problem)
    first = make_workload(problem, l2_bytes=0).sets[0]
    a, b, right, out = first.a, first.b, first.b.t(), first.ours
    return {
        "torch.mm": lambda: torch.mm(a, right, out=out),
        "hopper_gemm.matmul": lambda: matmul(a, right, out=out),
        "kernel": lambda: kernel(a, b, out),
    }


def main() -> None:
    """Measure everything."""
    bench = Bench(describe_current())
    with fallback("never"):
        host = host_times(launches(TINY, bench.device.slug), torch.cuda.synchronize)
    for name, us in host.items():
        print(f"host time of {name} at {TINY}: {us:.2f} us")
    for problem in (SHORT, LONG):
        found = figures(bench, Point(problem, "cublas", context="isolated"))
        print(f"spacer at {problem}: {found['spacer_us']:.2f} us; torch.mm behind it: {found['baseline_us']:.2f} us")
    for context in CONTEXTS:
        points = [Point(SHORT, replace(CONFIG, pdl=pdl), context=context) for pdl in (False, True)]
        without, early = (figures(bench, point)["time_us"] for point in points)
        print(f"PDL at {SHORT}, {context}: {without:.2f} us without, {early:.2f} us with it")


if __name__ == "__main__":
    main()
