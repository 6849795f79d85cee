"""Time kernels with split-K parts through a workspace on deep, narrow and small problems.

    python -m benchmarks.parts > FILE

For each tile and problem below the times at 2, 4 and 8 parts, and at the numbers that fill one, two and three rounds of
the GPU, isolated, beside torch.mm; one row of CSV each. Nothing else may run on the GPU. Run it from the repository's
root.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import need_hopper
from hopper_gemm.compiler.store import default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.questions.map import parts_for

PROTOCOL = Burst(rest=0.010, pairs=15)
PARTS = (2, 4, 8)
APART = GemmConfig(reduction="workspace", stagger=0)
TILES = {
    "128x128": replace(APART, tile_m=128, tile_n=128),
    "128x256 2x1": replace(APART, tile_m=128, tile_n=256, cluster_m=2),
    "64x192 swapped": replace(APART, tile_m=64, tile_n=192, swap_ab=True),
}
PROBLEMS = [
    GemmProblem(716, 296, 29824),
    GemmProblem(752, 536, 30656, layouts="mk"),
    GemmProblem(1426, 432, 51008),
    GemmProblem(568, 120, 42752, layouts="mn"),
    GemmProblem(1024, 1024, 16384),
    GemmProblem(2304, 2304, 4096),
    GemmProblem(267, 2944, 7616),
]
COLUMNS = ("speedup", "speedup_low", "speedup_high", "time_us", "baseline_us")


def points() -> Iterator[tuple[str, Point]]:
    """Everything to time, each with the name of its tile."""
    for problem in PROBLEMS:
        for name, tile in TILES.items():
            binary = resolve(replace(tile, split_k=PARTS[0]))
            filling = parts_for(binary, problem)
            for parts in sorted({*PARTS, *filling}):
                fitting = [replace(tile, split_k=parts, part_order=order) for order in ("part", "tile")]
                able = [resolve(config) for config in fitting if is_legal(config, problem)]
                if able:
                    yield name, Point(problem, able[0])


def main() -> None:
    """Measure everything; what could not be measured is named on stderr."""
    need_hopper()
    bench = Bench(describe_current(), default_store())
    out = csv.writer(sys.stdout)
    out.writerow(("problem", "layouts", "tile", "parts", "part_order", *COLUMNS, "code"))
    for name, point in points():
        outcome, config = bench.measure(point, PROTOCOL), point.config
        if outcome.status != "ok":
            print(f"{point.problem} {config}: {outcome.status} {outcome.reason}", file=sys.stderr)
            continue
        found = outcome.figures
        key = point.problem, point.problem.layouts, name, config.split_k, config.part_order
        out.writerow((*key, *(f"{found[column]:.4f}" for column in COLUMNS), found.get("code", "")))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
