"""Write the best sixteen configs that NVIDIA's nvMatmulHeuristics names for the problems whose whole menu was timed.

    python -m benchmarks.heuristics [--out FILE]

Needs the package nvidia-matmul-heuristics and no GPU: it is asked for CUTLASS 3 kernels of bf16 on an H200.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import read_study

FILE = results_root() / "measurements/matmul-heuristics.csv"
COLUMNS = ("m", "n", "k", "layouts", "rank", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "stages", "split_k")
MOST = 16
FORM = re.compile(
    r"stages\((?P<stages>\d+)\) cta\((?P<cta_m>\d+) (?P<cta_n>\d+) (?P<cta_k>\d+)\).* splitK\((?P<split_k>\d+)\)"
    r".* cluster\((?P<cluster_m>\d+) (?P<cluster_n>\d+)\)"
)
LAYOUTS = {"kk": "TN_ROW_MAJOR", "mk": "NN_ROW_MAJOR"}
"""Our names of the contiguous axes of A and B, and the package's; mk is written for it as its transpose."""


def main() -> None:
    """Ask for every problem of the menu's study."""
    try:
        from nvMatmulHeuristics import (
            NvMatmulHeuristicsFlags,
            NvMatmulHeuristicsInterface,
            NvMatmulHeuristicsMatmulLayout,
            NvMatmulHeuristicsNvidiaGpu,
            NvMatmulHeuristicsTarget,
        )
    except ImportError:
        sys.exit("this needs the package nvMatmulHeuristics; pip install nvidia-matmul-heuristics")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FILE)
    out = parser.parse_args().out
    asked = NvMatmulHeuristicsInterface(
        NvMatmulHeuristicsTarget.CUTLASS3,
        precision="TST",
        flags=NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )
    gpu = asked.createHardwareDescriptor()
    asked.setHardwarePredefinedGpu(gpu, NvMatmulHeuristicsNvidiaGpu.H200_SXM)
    problems = dict.fromkeys(row.point.problem for row in read_study(results_root() / "h200/menu").stage("map"))
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for problem in problems:
            layout = NvMatmulHeuristicsMatmulLayout[LAYOUTS[problem.layouts]]
            asked.loadInternalDiscoverySet(layout, gpu)
            sizes = problem.m, problem.n, problem.k
            rank, seen = 0, set()
            for config in asked.get_with_mnk(*sizes, layout, 4 * MOST, gpu):
                match = FORM.search(str(config["kernel"]))
                assert match is not None, config["kernel"]
                if rank < MOST and match.groups() not in seen:  # warps and instructions alone tell the others apart
                    seen.add(match.groups())
                    rank += 1
                    named = dict(zip("mnk", sizes, strict=True)) | {"layouts": problem.layouts, "rank": rank}
                    writer.writerow(named | match.groupdict())


if __name__ == "__main__":
    main()
