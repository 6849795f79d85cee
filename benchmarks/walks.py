"""Time kernels of single CTAs with every walk through the tiles: what neighbours on a GPC share is worth.

    python -m benchmarks.walks --out FILE [--pairs N]

Each kernel of :data:`KERNELS` runs its problem with either raster and :data:`SWIZZLES`, isolated, in bursts, over
torch.mm, on one board, in a process. The walk belongs to the launch, so that a kernel is compiled once. Each row of the
CSV file is written as it comes. Nothing else may run on the GPU.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import need_hopper
from docs.generate.measurements import measurement
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.walk import abreast
from hopper_gemm.tune.measure.arms import load_any
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point
from tests.verify.harness import compile_all

SWIZZLES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24)

KERNELS: dict[tuple[int, int, int, str], list[dict[str, Any]]] = {
    (267, 2944, 7616, "kk"): [
        {"tile_m": 128, "tile_n": 64, "swap_ab": True},
        {"tile_m": 128, "tile_n": 72, "swap_ab": True},
        {"tile_m": 64, "tile_n": 128},
        {"tile_m": 128, "tile_n": 56, "swap_ab": True},
        {"tile_m": 64, "tile_n": 136, "swap_ab": True},
        {"tile_m": 128, "tile_n": 64},
    ],
    (1024, 1024, 8192, "kk"): [{"tile_m": 128, "tile_n": 64}],
    (320, 3072, 8192, "kk"): [{"tile_m": 128, "tile_n": 64, "swap_ab": True}, {"tile_m": 64, "tile_n": 128}],
    (640, 1536, 6144, "kk"): [
        {"tile_m": 128, "tile_n": 64, "swap_ab": True},
        {"tile_m": 64, "tile_n": 128, "swap_ab": True},
    ],
    (4096, 512, 4096, "kk"): [{"tile_m": 128, "tile_n": 128}],
    (2304, 2304, 4096, "kk"): [
        {"tile_m": 128, "tile_n": 128},
        {"tile_m": 128, "tile_n": 168, "swap_ab": True},
    ],
    (1600, 1100, 8192, "kk"): [{"tile_m": 128, "tile_n": 128}],
    (716, 296, 29824, "kk"): [{"tile_m": 128, "tile_n": 80, "split_k": 5}],
    (752, 536, 30656, "mk"): [{"tile_m": 128, "tile_n": 184, "split_k": 7}],
    (1024, 1024, 16384, "kk"): [{"tile_m": 128, "tile_n": 128, "split_k": 2, "swap_ab": True}],
    (4096, 4096, 2048, "kk"): [{"tile_m": 128, "tile_n": 128}],
    (3000, 1800, 6000, "kk"): [{"tile_m": 128, "tile_n": 96}],
    (192, 16384, 4096, "kk"): [{"tile_m": 64, "tile_n": 256}],
    (384, 5120, 5120, "kk"): [{"tile_m": 64, "tile_n": 192}],
    (200, 8192, 4096, "kk"): [{"tile_m": 64, "tile_n": 208}],
    (512, 4096, 4096, "kk"): [{"tile_m": 128, "tile_n": 128, "swap_ab": True}],
    (1000, 1500, 5000, "kn"): [{"tile_m": 128, "tile_n": 96}],
}
"""Configs by m, n, k and layouts; split-K parts go through a workspace, all tiles of a part side by side."""

COLUMNS = (
    *("m", "n", "k", "layouts", "tile_m", "tile_n", "swap_ab", "split_k", "part_order", "raster", "swizzle"),
    *("status", "time_us", "baseline_us", "speedup", "gpu", "board"),
)


def kernels() -> Iterator[tuple[GemmProblem, Kernel]]:
    """All problems with their kernels, each once with each walk of :data:`SWIZZLES`."""
    for (m, n, k, layouts), configs in KERNELS.items():
        for values, raster, swizzle in product(configs, ("m", "n"), SWIZZLES):
            parted = {"reduction": "workspace", "part_order": "part"} if "split_k" in values else {}
            config = GemmConfig(stagger=0, raster=raster, swizzle=swizzle, **values, **parted)  # type: ignore[arg-type]
            yield GemmProblem(m, n, k, layouts=layouts), resolve(config)


def speeds() -> list[dict[str, float]]:
    """A dictionary for each recorded problem and tile: the speed of the walk in groups of four along m, along n, and of
    the picked walk, each divided by the speed of the best walk."""
    times: dict[tuple[str, ...], dict[tuple[str, int], float]] = {}
    with measurement("measurements/walks.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "ok":
                case = tuple(row[name] for name in COLUMNS[:9])
                times.setdefault(case, {})[row["raster"], int(row["swizzle"])] = float(row["time_us"])
    shares = []
    for (m, n, k, layouts, tile_m, tile_n, swap_ab, split_k, order), by_walk in times.items():
        parted = {"reduction": "workspace", "split_k": int(split_k), "part_order": order} if int(split_k) > 1 else {}
        tile = {"tile_m": int(tile_m), "tile_n": int(tile_n), "swap_ab": swap_ab == "True"}
        kernel = resolve(GemmConfig(stagger=0, **tile, **parted))  # type: ignore[arg-type]
        walk = abreast(kernel, GemmProblem(int(m), int(n), int(k), layouts=layouts))
        shown = {"m": ("m", 4), "n": ("n", 4), "picked": (walk.raster, walk.swizzle)}
        shares.append({name: min(by_walk.values()) / by_walk[way] for name, way in shown.items()})
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file, written anew")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    need_hopper()
    cases, device = list(kernels()), describe_current()
    compile_all(list(dict.fromkeys(KernelId.of(kernel, problem) for problem, kernel in cases)), default_store(), print)
    bench, protocol = Bench(device, load=load_any), Burst(rest=0.01, warm=0.002, timed=0.006, pairs=options.pairs)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for problem, kernel in cases:
            measured = bench.measure(Point(problem, kernel, against="cublas"), protocol)
            sizes = problem.m, problem.n, problem.k, problem.layouts
            config = (getattr(kernel, name) for name in COLUMNS[4:11])
            figures = [measured.figures.get(name) for name in ("time_us", "baseline_us", "speedup")]
            writer.writerow([*sizes, *config, measured.status, *figures, device.name, device.uuid])
            file.flush()
            print(f"{problem} {kernel}: {figures[0] or measured.reason}", flush=True)


if __name__ == "__main__":
    main()
