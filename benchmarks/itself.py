"""Print torch.mm timed against itself, in either context: how far two equal sides differ, and what a context costs.

The gap between two launches of a graph is 0.35 us longer in some rows than in others, so below 20 us two equal sides
differ by that much at times (docs/measuring.md). Nothing else may run on the GPU or load the host. Run it from the
repository's root: ``python -m benchmarks.itself``.
"""

from __future__ import annotations

from benchmarks import need_hopper
from hopper_gemm.compiler.store import default_store
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point

PROTOCOL = Burst(rest=0.010, pairs=15)
PROBLEMS = [(1024, 1024, 1024), (2048, 512, 1024), (128, 2048, 1024), (2048, 2048, 2048), (4096, 4096, 4096)]


def main() -> None:
    """Measure every problem in both contexts.

    Raises:
        RuntimeError: a point could not be measured.
    """
    need_hopper()
    bench = Bench(describe_current(), default_store())
    print("problem context speedup low high us baseline_us")
    for problem in (GemmProblem(*sizes) for sizes in PROBLEMS):
        for context in ("isolated", "chained"):
            outcome = bench.measure(Point(problem, "cublas", context=context), PROTOCOL)
            if outcome.status != "ok":
                raise RuntimeError(f"{problem} must be measured but got {outcome.status}: {outcome.reason}")
            names = ("speedup", "speedup_low", "speedup_high", "time_us", "baseline_us")
            print(problem, context, *(f"{outcome.figures[name]:.4f}" for name in names))


if __name__ == "__main__":
    main()
