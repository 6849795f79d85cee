"""Time picked kernels of groups beside torch's grouped_mm, and of batches beside torch.bmm, isolated, in bursts.

    python -m benchmarks.groups --out FILE [--pairs N] [--routings NAME ...] [--rows G,R,N,K ...] [--bmm B,M,N,K ...]
        [--weights G,R,N,K ...] [--picks N] [--dynamic]

Problems are groups, rows of a group in the mean, n and k; or batch, m, n and k; and the gradients of weights of the
first, of k by n each, grouped along their rows. Routings: ``uniform``; ``zipf0`` to
``zipf2``, rows drawn by Zipf's law of exponent 1.1 over groups in an order drawn by the seed; ``half``, half of the
groups empty; ``one``, all rows in one group. Each row of the CSV file is written as it comes: the median of the pairs'
ratios with its interval, times without the spacer, and the largest relative Frobenius error of a group. A product that
is further off than :data:`MOST` is not timed. Nothing else may run on the GPU.
"""

from __future__ import annotations

import argparse
import csv
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import need_hopper
from benchmarks.fp8 import timed
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import choices
from hopper_gemm.serve.kernels import chip_of, kernel_for
from hopper_gemm.tune.measure.arms import Launch
from hopper_gemm.tune.measure.device import DeviceInfo, describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import MatrixSet, sets_of
from tests.verify.harness import compile_all

ROWS = ((8, 4096, 4096, 7168), (8, 4096, 7168, 2048), (32, 2048, 2048, 6144), (128, 256, 2048, 768))
ROWS += ((64, 64, 4096, 2048), (128, 1, 2048, 7168))
"""Groups, rows of each in the mean, n, k."""

WEIGHTS = (ROWS[0], ROWS[2], ROWS[3])
"""Groups, rows of each in the mean, n and k whose gradients of weights are timed."""

BMM = ((32, 2048, 2048, 128), (32, 2048, 128, 2048), (128, 512, 512, 64), (128, 512, 64, 512), (16, 1, 512, 128))
BMM += ((128, 16, 512, 128), (128, 16, 128, 512), (8, 4096, 4096, 1024), (64, 256, 256, 256), (1024, 64, 64, 64))
"""Batch, m, n, k."""

ROUTINGS = ("uniform", "zipf0", "zipf1", "zipf2", "half", "one")

MOST = 3e-3
"""Largest relative error that is timed; bf16's rounding alone is 1.7e-3."""

COLUMNS = (
    *("kind", "groups", "rows", "n", "k", "routing", "status", "speedup", "low", "high", "pairs", "time_us"),
    *("baseline_us", "tflops", "rel_err", "spacer_us", "sm_mhz", "config", "gpu", "board", "torch"),
)


def ends_of(routing: str, groups: int, rows: int) -> list[int]:
    """The row at which each group ends."""
    total = groups * rows
    if routing.startswith("zipf"):
        generator = torch.Generator().manual_seed(int(routing.removeprefix("zipf")))
        weights = torch.arange(1, groups + 1).double().pow(-1.1)[torch.randperm(groups, generator=generator)]
        drawn = torch.multinomial(weights, total, replacement=True, generator=generator)
        counts = torch.bincount(drawn, minlength=groups)
    elif routing == "half":
        counts = torch.tensor([0, 2 * rows]).repeat(groups // 2)
    elif routing == "one":
        counts = torch.zeros(groups, dtype=torch.int64)
        counts[groups // 2] = total
    else:
        counts = torch.full((groups,), rows)
    return counts.cumsum(0).tolist()


def matrices(problem: GroupedProblem, l2_bytes: int) -> list[MatrixSet]:
    """Sets of matrices, more than the L2 holds; B as (groups, n, k)."""
    generator = torch.Generator("cuda").manual_seed(0)
    rows = (problem.groups, problem.rows) if problem.grouping == "batch" else (problem.m,)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator, dtype=torch.bfloat16)

    def made() -> MatrixSet:
        if problem.grouping == "depth":
            ours, theirs = (normal(problem.groups, problem.m, problem.n) for _ in range(2))
            return MatrixSet(normal(problem.k, problem.m).t(), normal(problem.k, problem.n).t(), ours, theirs)
        ours, theirs = (normal(*rows, problem.n) for _ in range(2))
        return MatrixSet(normal(*rows, problem.k), normal(problem.groups, problem.n, problem.k), ours, theirs)

    return [made() for _ in range(sets_of(problem, l2_bytes))]


def error(operands: MatrixSet, ends: list[int]) -> float:
    """The largest relative Frobenius error of a group of our output."""
    errors, start, deep = [0.0], 0, operands.b.dim() == 2
    rows, out = operands.a if deep else operands.a.flatten(0, -2), operands.ours.flatten(0, -2)
    for group, end in enumerate(ends):
        if start < end:
            if deep:
                right, made = rows[:, start:end].float() @ operands.b[:, start:end].float().t(), operands.ours[group]
            else:
                right, made = rows[start:end].float() @ operands.b[group].float().t(), out[start:end]
            errors.append(float(torch.linalg.vector_norm(right - made) / torch.linalg.vector_norm(right)))
            start = end
    return max(errors) if all(value == value for value in errors) else float("nan")


def arms_of(problem: GroupedProblem, ends: torch.Tensor, config: Kernel) -> tuple[Launch, Launch, str]:
    """Our launch, torch's, and our config."""
    kernel, batch = kernel_for(problem, torch.cuda.current_device(), config), problem.grouping == "batch"

    def ours(operands: MatrixSet) -> None:
        kernel(operands.a, operands.b, operands.ours, ends=None if batch else ends)

    def theirs(operands: MatrixSet) -> None:
        if batch:
            torch.bmm(operands.a, operands.b.mT, out=operands.theirs)
        else:
            torch.nn.functional.grouped_mm(operands.a, operands.b.mT, offs=ends)

    return ours, theirs, str(kernel.config)


def measured(
    problem: GroupedProblem,
    kernel: Kernel,
    ends: list[int],
    sets: list[MatrixSet],
    device: DeviceInfo,
    timer: Timer,
    protocol: Burst,
) -> dict[str, Any]:
    """The row of a problem, a kernel and a routing."""
    ours, theirs, config = arms_of(problem, torch.tensor(ends, device="cuda", dtype=torch.int32), kernel)
    sets[0].ours.fill_(float("nan"))
    ours(sets[0])
    row: dict[str, Any] = {"status": "ok", "rel_err": error(sets[0], ends), "config": config}
    if not row["rel_err"] <= MOST:
        return row | {"status": "wrong"}
    return row | timed(sets, (ours, theirs), problem.flop, device, timer, protocol)


def main() -> None:
    """Measure every problem and routing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file, written anew")
    parser.add_argument("--routings", nargs="*", default=ROUTINGS, help="of groups of rows (default: all)")
    parser.add_argument("--rows", nargs="*", help="groups,rows,n,k (default: the list)")
    parser.add_argument("--weights", nargs="*", help="groups,rows,n,k of gradients of weights (default: the list)")
    parser.add_argument("--bmm", nargs="*", help="batch,m,n,k (default: the list)")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--picks", type=int, default=1, help="kernels of a problem, by the model's order (default 1)")
    parser.add_argument("--dynamic", action="store_true", help="each with the dynamic scheduler too")
    options = parser.parse_args()
    need_hopper()

    def problems(given: list[str] | None, listed: Any, grouping: str) -> list[GroupedProblem]:
        sizes = listed if given is None else [tuple(map(int, text.split(","))) for text in given]
        if grouping == "depth":
            return [GroupedProblem(k, n, g * r, layouts="mn", groups=g, grouping=grouping) for g, r, n, k in sizes]
        return [GroupedProblem(g * r, n, k, groups=g, grouping=grouping) for g, r, n, k in sizes]

    every = [*problems(options.rows, ROWS, "rows"), *problems(options.weights, WEIGHTS, "depth")]
    every += problems(options.bmm, BMM, "batch")
    device, protocol = describe_current(), Burst(rest=0.01, warm=0.002, timed=0.006, pairs=options.pairs)
    timer = Timer(device)
    picks = {problem: choices(problem, options.picks, chip=chip_of()) for problem in every}
    if options.dynamic:
        for kernels in picks.values():
            kernels += [other for kernel in kernels if is_legal(other := kernel.but(scheduler="dynamic"))]
    wanted = [KernelId.of(kernel, problem) for problem in every for kernel in picks[problem]]
    compile_all(wanted, default_store(), lambda line: print(line, file=sys.stderr, flush=True))
    same = {"gpu": device.name, "board": device.uuid, "torch": torch.__version__}
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for problem in every:
            sets = matrices(problem, device.l2_bytes)
            deep = problem.grouping == "depth"
            rows, k = (problem.k // problem.groups, problem.m) if deep else (problem.rows, problem.k)
            routings = ("uniform",) if problem.grouping == "batch" else options.routings
            for routing, kernel in product(routings, picks[problem]):
                sizes = {"groups": problem.groups, "rows": rows, "n": problem.n, "k": k}
                row: dict[str, Any] = {"kind": problem.grouping, **sizes, "routing": routing} | same
                try:
                    ends = ends_of(routing, problem.groups, rows)
                    row |= measured(problem, kernel, ends, sets, device, timer, protocol)
                except RuntimeError as failed:
                    row["status"] = f"error: {' '.join(str(failed).split())[:200]}"
                writer.writerow(row)
                file.flush()
                ratio = f"{row['speedup']:.3f}" if "speedup" in row else row["status"]
                print(problem.grouping, *sizes.values(), routing, ratio, file=sys.stderr, flush=True)
            del sets
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
