"""Print times on which no test may depend: of the spacer, and what PDL gains in each context.

Nothing else may run on the GPU. Run it from the repository's root: ``python -m benchmarks.times``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks import need_hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CONTEXTS
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point

PROTOCOL = Burst(rest=0.010, pairs=15)
SHORT, LONG = (GemmProblem(size, size, size) for size in (1024, 4096))
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


def main() -> None:
    """Measure everything."""
    need_hopper()
    bench = Bench(describe_current())
    for problem in (SHORT, LONG):
        found = figures(bench, Point(problem, "cublas", context="isolated"))
        print(f"spacer at {problem}: {found['spacer_us']:.2f} us; torch.mm behind it: {found['baseline_us']:.2f} us")
    for context in CONTEXTS:
        points = [Point(SHORT, replace(CONFIG, pdl=pdl), context=context) for pdl in (False, True)]
        without, early = (figures(bench, point)["time_us"] for point in points)
        print(f"PDL at {SHORT}, {context}: {without:.2f} us without, {early:.2f} us with it")


if __name__ == "__main__":
    main()
