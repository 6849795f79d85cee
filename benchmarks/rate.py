"""Print how fast a Hopper GPU is searched: points a second of a raced sweep at 4096^3, in either context.

Kernels are compiled beforehand. Every product is checked; each config but the first is raced against the best so far.
Nothing else may run on the GPU. Run it from the repository's root: ``python -m benchmarks.rate``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

from benchmarks import need_hopper
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.statistics import Look, Race, Ratio
from tests.verify.harness import compile_all

PROBLEM, POINTS = GemmProblem(4096, 4096, 4096), 96
PROTOCOL, LOOKS, NOISE = Burst(rest=0.010, pairs=6), (Look(1, 0.015),), 0.002


def points(context: str) -> list[Point]:
    """The first legal configs of a grid over tiles, clusters and stages."""
    grid = product((64, 128, 192, 256, 320), (64, 128, 160, 192, 208, 256), ((1, 1), (2, 1), (1, 2)), ("max", 3))
    configs = [
        GemmConfig(tile_m=m, tile_n=n, cluster_m=rows, cluster_n=columns, stages=stages, pdl=context == "chained")
        for m, n, (rows, columns), stages in grid
    ]
    legal = [config for config in configs if is_legal(config, PROBLEM)]
    return [Point(PROBLEM, config, context=context) for config in legal[:POINTS]]


def raced(bench: Bench, asked: Sequence[Point]) -> list[int]:
    """Measure points as a sweep does; how many pairs each took.

    Raises:
        RuntimeError: a point could not be measured.
    """
    leader: Ratio | None = None
    pairs = []
    for point, following in zip(asked, [*asked[1:], None], strict=True):
        outcome = bench.measure(point, PROTOCOL, race=Race(LOOKS, leader, NOISE), following=following)
        if outcome.status != "ok":
            raise RuntimeError(f"{point.subject} must be measured but got {outcome.status}: {outcome.reason}")
        figures = outcome.figures
        pairs.append(figures["pairs"])
        if figures["pairs"] == PROTOCOL.pairs and (leader is None or figures["speedup"] > leader.median):
            leader = Ratio(figures["speedup"], figures["speedup_low"], figures["speedup_high"], figures["pairs"])
    return pairs


def main() -> None:
    """Measure both contexts."""
    need_hopper()
    bench = Bench(describe_current())
    asked = {context: points(context) for context in ("chained", "isolated")}
    kernels = [KernelId.of(point.config, PROBLEM) for own in asked.values() for point in own]
    compile_all(kernels, default_store())
    for context, own in asked.items():
        bench.measure(Point(PROBLEM, "cublas", context=context), PROTOCOL)
        begun = time.perf_counter()
        pairs = raced(bench, own)
        rate, mean = len(own) / (time.perf_counter() - begun), sum(pairs) / len(pairs)
        print(f"{context}: {len(own)} points, {rate:.1f} a second, {mean:.2f} pairs a point")


if __name__ == "__main__":
    main()
