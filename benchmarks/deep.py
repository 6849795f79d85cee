"""Time the picks of deep and narrow problems beside the model's next choices and beside named tiles.

    python -m benchmarks.deep --out FILE [--choices N] [--pairs N]

On :data:`NAMED` a tile with a number of parts was once far ahead of the pick; on :data:`NARROW` every kernel was behind
torch.mm. Of each problem the model's pick for this GPU, whatever the tables have, is timed over torch.mm and over the
fastest of cuBLASLt's list, and the others over torch.mm, isolated, in bursts, on one board in one process. Each row of
the CSV file is written as it comes. Kernels are compiled ahead on all cores. Nothing else may run on the GPU.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarks import need_hopper
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import chip_of
from hopper_gemm.tune.measure.arms import load_any
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point
from tests.verify.harness import compile_all

NAMED = {
    (716, 296, 29824, "kk"): [(128, 160, False, 10)],
    (752, 536, 30656, "mk"): [(128, 160, False, 7), (128, 128, False, 7), (128, 192, False, 7)],
    (1426, 432, 51008, "kk"): [(128, 160, False, 5), (128, 144, False, 5), (128, 216, False, 5)],
    (568, 120, 42752, "mn"): [(64, 192, True, 22)],
    (1024, 1024, 16384, "kk"): [(128, 128, False, 2), (256, 128, False, 4), (128, 256, False, 4)],
    (2304, 2304, 4096, "kk"): [(128, 80, False, 1), (128, 80, False, 2)],
    (267, 2944, 7616, "kk"): [(128, 64, True, 1), (128, 64, True, 2)],
}
"""m, n, k and layouts, with rows and columns of a tile, whether operands are swapped, and the number of parts."""

NARROW = ((9200, 80, 360, "kk"), (5519, 440, 856, "kk"), (11411, 160, 968, "kk"), (1540, 104, 3216, "kn"))
NARROW += ((8, 19648, 4416, "mn"), (40, 1536, 6464, "mn"), (8, 1344, 2176, "mk"))
"""m, n, k and layouts."""

COLUMNS = ("m", "n", "k", "layouts", "role", "rank", "against", "status", "speedup", "low", "high")
COLUMNS += ("time_us", "baseline_us", "config", "gpu", "board")


def named(problem: GemmProblem) -> list[Kernel]:
    """The kernels of the named tiles, with either stagger and either reduction that is legal."""
    tiles = NAMED.get((problem.m, problem.n, problem.k, problem.layouts), ())

    def kernels() -> Iterator[Kernel]:
        for (tile_m, tile_n, swap_ab, parts), stagger, meet in product(tiles, (0, 1), (False, True)):
            way = {"split_k": parts, "reduction": "cluster" if meet or parts == 1 else "workspace"}
            yield resolve(GemmConfig(tile_m=tile_m, tile_n=tile_n, swap_ab=swap_ab, stagger=stagger, **way))

    return [kernel for kernel in dict.fromkeys(kernels()) if is_legal(kernel, problem)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file, written anew")
    parser.add_argument("--choices", type=int, default=10, help="of the model, the pick first (default 10)")
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    need_hopper()
    device = describe_current()
    problems = [GemmProblem(m, n, k, "bf16", layouts) for m, n, k, layouts in (*NAMED, *NARROW)]
    cases = {problem: (choices(problem, options.choices, chip_of()), named(problem)) for problem in problems}
    wanted = (KernelId.of(kernel, problem) for problem, kernels in cases.items() for of in kernels for kernel in of)
    compile_all(list(dict.fromkeys(wanted)), default_store(), print)
    bench, protocol = Bench(device, load=load_any), Burst(rest=0.01, warm=0.002, timed=0.008, pairs=options.pairs)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for problem, ((pick, *others), tiles) in cases.items():
            roles = [
                ("pick", pick),
                *(("choice", kernel) for kernel in others),
                *(("named", kernel) for kernel in tiles),
            ]
            for rank, (role, kernel) in enumerate(roles):
                for against in ("cublas", "heuristics") if role == "pick" else ("cublas",):
                    measured = bench.measure(Point(problem, kernel, against=against), protocol)
                    names = ("speedup", "speedup_low", "speedup_high", "time_us", "baseline_us")
                    figures = [measured.figures.get(name) for name in names]
                    row = problem.m, problem.n, problem.k, problem.layouts, role, rank, against, measured.status
                    writer.writerow([*row, *figures, kernel, device.name, device.uuid])
                    file.flush()
                    print(f"{problem} {role} {kernel}: {figures[0] or measured.reason}", flush=True)


if __name__ == "__main__":
    main()
