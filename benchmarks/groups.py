"""Time kernels of groups beside torch's grouped_mm, and of batches beside torch.bmm, isolated, in bursts.

    python -m benchmarks.groups --out FILE [--pairs N] [--routings NAME ...] [--rows G,R,N,K ...] [--bmm B,M,N,K ...]
        [--weights G,R,N,K ...] [--masked G,R,N,K ...] [--fp8 G,R,N,K ...] [--recipes row blocks]
        [--picks N] [--dynamic] [--tuned] [--tune N]

Problems are groups, rows of a group in the mean, n and k; or batch, m, n and k; and the gradients of weights of the
first, of k by n each, grouped along their rows. Routings: ``uniform``; ``zipf0`` to
``zipf2``, rows drawn by Zipf's law of exponent 1.1 over groups in an order drawn by the seed; ``half``, half of the
groups empty; ``one``, all rows in one group. Masked groups have room for R rows, of which half are routed; torch.bmm
multiplies the whole room. FP8 by rows, with fast sums, stands beside torch's scaled_grouped_mm; by blocks, which torch
has not in groups, beside our dense product of as many rows with one of the matrices.

Kernels are the model's best ``--picks``; with ``--tuned`` what the tables serve instead; with ``--tune N`` the best
of N picks, timed first as by ``hopper-gemm tune --groups``, which the user's table then has. Each row of the CSV file
is written as it comes: the median of the pairs' ratios with its interval, times without the spacer, and the largest
relative Frobenius error of a group. A product that is further off than :data:`MOST` is not timed. Nothing else may
run on the GPU.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import need_hopper
from benchmarks.fp8 import timed
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import BLOCK
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.serve.kernels import chip_of, default_config, kernel_for, pick_for
from hopper_gemm.tune.autotune import time_groups
from hopper_gemm.tune.measure.arms import Launch, cublas_launch
from hopper_gemm.tune.measure.device import DeviceInfo, describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import MatrixSet, make_workload
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

MOST = {"": 3e-3, "row": 1e-2, "blocks": 1e-2}
"""Largest relative error that is timed, by the scales; bf16's rounding alone is 1.7e-3."""

COLUMNS = (
    *("kind", "groups", "rows", "n", "k", "routing", "status", "speedup", "low", "high", "pairs", "time_us"),
    *("baseline_us", "tflops", "rel_err", "spacer_us", "sm_mhz", "config", "source", "gpu", "board", "torch"),
)


class Case(NamedTuple):
    """A problem of groups; ``scales`` is empty for 16-bit operands."""

    problem: GroupedProblem
    scales: str = ""

    @property
    def kind(self) -> str:
        """Return the value of the column ``kind``."""
        return f"fp8 {self.scales}" if self.scales else self.problem.grouping

    @property
    def sizes(self) -> dict[str, int]:
        """Return groups, rows of a group, n and k, as the command line takes them; of gradients their forward's."""
        problem = self.problem
        rows, k = (problem.k // problem.groups, problem.m) if problem.deep else (problem.rows, problem.k)
        return {"groups": problem.groups, "rows": rows, "n": problem.n, "k": k}

    @property
    def finish(self) -> Epilogue | None:
        """Return the kernel's epilogue: the scales of FP8, or None."""
        return Epilogue(scales=self.scales) if self.scales else None

    @property
    def dense(self) -> ScaledProblem:
        """The product of as many rows with one matrix."""
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        return ScaledProblem(m, n, k, self.problem.dtype, promote=self.problem.promote, scales=self.scales)

    def spans(self, routing: str) -> list[tuple[int, int]]:
        """Where each group begins and ends."""
        groups, rows = self.sizes["groups"], self.sizes["rows"]
        if self.problem.grouping == "masked":
            counts = counts_of(routing, groups, rows // 2)
            return [(at * rows, at * rows + min(count, rows)) for at, count in enumerate(counts)]
        return list(pairwise(accumulate(counts_of(routing, groups, rows), initial=0)))


def counts_of(routing: str, groups: int, rows: int) -> list[int]:
    """The rows of each group, so many in the mean."""
    total = groups * rows
    if routing.startswith("zipf"):
        generator = torch.Generator().manual_seed(int(routing.removeprefix("zipf")))
        weights = torch.arange(1, groups + 1).double().pow(-1.1)[torch.randperm(groups, generator=generator)]
        drawn = torch.multinomial(weights, total, replacement=True, generator=generator)
        return torch.bincount(drawn, minlength=groups).tolist()
    if routing == "half":
        return [0, 2 * rows] * (groups // 2)
    if routing == "one":
        return [total * (at == groups // 2) for at in range(groups)]
    return [rows] * groups


def operands_of(case: Case, l2_bytes: int) -> list[MatrixSet]:
    """Sets of matrices, more than the L2 holds, with scales as a kernel takes them."""
    problem, generator = case.problem, torch.Generator("cuda").manual_seed(1)
    deep, wide = -(-problem.k // BLOCK), -(-problem.n // BLOCK)
    shapes = ((problem.m,), (problem.groups, problem.n))
    shapes = ((deep, problem.m), (problem.groups, wide, deep)) if case.scales == "blocks" else shapes

    def scaled(operands: MatrixSet) -> MatrixSet:
        drawn = [torch.rand(*shape, device="cuda", generator=generator) + 0.5 for shape in shapes]
        return replace(operands, scales=(drawn[0], drawn[1]))

    sets = make_workload(problem, l2_bytes).sets
    return [scaled(operands) if case.scales else operands for operands in sets]


def dequantised(case: Case, operands: MatrixSet) -> MatrixSet:
    """The operands times their scales."""
    if operands.scales is None:
        return operands
    (first, second), a, b = operands.scales, operands.a.float(), operands.b.float()
    if case.scales == "row":
        return replace(operands, a=a * first[:, None], b=b * second[..., None])
    depth, rows = (torch.arange(size, device="cuda") // BLOCK for size in (case.problem.k, case.problem.n))
    return replace(operands, a=a * first.t()[:, depth], b=b * second[:, rows[:, None], depth])


def error(case: Case, operands: MatrixSet, spans: Sequence[tuple[int, int]]) -> float:
    """The largest relative Frobenius error of a group of our output."""
    errors, deep, operands = [0.0], case.problem.deep, dequantised(case, operands)
    rows, out = operands.a if deep else operands.a.flatten(0, -2), operands.ours.flatten(0, -2)
    for group, (start, end) in enumerate(spans):
        if start < end:
            if deep:
                right, made = rows[:, start:end].float() @ operands.b[:, start:end].float().t(), operands.ours[group]
            else:
                right, made = rows[start:end].float() @ operands.b[group].float().t(), out[start:end]
            errors.append(float(torch.linalg.vector_norm(right - made) / torch.linalg.vector_norm(right)))
    return max(errors) if all(value == value for value in errors) else float("nan")


def arms_of(case: Case, ends: torch.Tensor, config: Kernel) -> tuple[Launch, Launch]:
    """Our launch and torch's, or that of our dense kernel."""
    problem, device, functional = case.problem, torch.cuda.current_device(), torch.nn.functional
    kernel = kernel_for(problem, device, config, case.finish)
    named: dict[str, Any] = {} if problem.grouping == "batch" else {"ends": ends}
    dense = kernel_for(case.dense, device) if case.scales == "blocks" else None

    def ours(operands: MatrixSet) -> None:
        if operands.scales is None:
            kernel(operands.a, operands.b, operands.ours, **named)
        else:
            scales = operands.scales[0], operands.scales[1].view(-1) if case.scales == "row" else operands.scales[1]
            kernel(operands.a, operands.b, operands.ours, None, None, None, scales=scales, **named)

    def theirs(operands: MatrixSet) -> None:
        if dense is not None and operands.scales is not None:
            scales = operands.scales[0], operands.scales[1][0]
            dense(operands.a, operands.b[0], operands.theirs, scales=scales)
        elif operands.scales is not None:
            kind: Any = functional.ScalingType.RowWise
            given = operands.a, operands.b.mT, operands.scales[0], kind, operands.scales[1], kind
            functional.scaled_grouped_mm(*given, offs=ends, use_fast_accum=True)
        elif problem.grouping in ("batch", "masked"):
            cublas_launch(operands)
        else:
            functional.grouped_mm(operands.a, operands.b.mT, offs=ends)

    return ours, theirs


def measured(
    case: Case,
    kernel: Kernel,
    routing: str,
    sets: Sequence[MatrixSet],
    device: DeviceInfo,
    timer: Timer,
    protocol: Burst,
) -> dict[str, Any]:
    """The row of a problem, a kernel and a routing."""
    spans, problem = case.spans(routing), case.problem
    masked = problem.grouping == "masked"
    ends = torch.tensor([end - start * masked for start, end in spans], device="cuda", dtype=torch.int32)
    ours, theirs = arms_of(case, ends, kernel)
    sets[0].ours.fill_(float("nan"))
    ours(sets[0])
    row: dict[str, Any] = {"status": "ok", "rel_err": error(case, sets[0], spans), "config": str(kernel)}
    if not row["rel_err"] <= MOST[case.scales]:
        return row | {"status": "wrong"}
    share = sum(end - start for start, end in spans) / problem.m if masked else 1
    return row | timed(sets, (ours, theirs), problem.flop * share, device, timer, protocol)


def cases_of(options: argparse.Namespace) -> list[Case]:
    """The problems that the command line names."""

    def sizes(given: list[str] | None, listed: Any) -> list[tuple[int, ...]]:
        return list(listed) if given is None else [tuple(map(int, text.split(","))) for text in given]

    cases = [
        Case(GroupedProblem(g * r, n, k, groups=g, grouping=grouping))
        for grouping, given in (
            ("rows", sizes(options.rows, ROWS)),
            ("masked", sizes(options.masked, ())),
            ("batch", sizes(options.bmm, BMM)),
        )
        for g, r, n, k in given
    ]
    cases += [
        Case(GroupedProblem(k, n, g * r, layouts="mn", groups=g, grouping="depth"))
        for g, r, n, k in sizes(options.weights, WEIGHTS)
    ]
    cases += [
        Case(GroupedProblem(g * r, n, k, "e4m3_bf16", promote=BLOCK * (scales == "blocks"), groups=g), scales)
        for g, r, n, k in sizes(options.fp8, ())
        for scales in options.recipes
    ]
    return cases


def kernels_of(case: Case, options: argparse.Namespace) -> list[tuple[str, Kernel]]:
    """Kernels to time, each with where it comes from."""
    if options.tune and not case.scales:
        time_groups(case.problem, "isolated", options.tune)
    if options.tune or options.tuned:
        pick = pick_for(case.problem, torch.cuda.current_device(), case.finish)
        return [(pick.how, pick.config)]
    kernels = choices(case.problem, options.picks, chip=chip_of(), finish=case.finish)
    if options.dynamic:
        kernels += [other for kernel in kernels if is_legal(other := kernel.but(scheduler="dynamic"))]
        kernels += [other for kernel in kernels if is_legal(other := kernel.but(scheduler="static"))]
    return [("model", kernel) for kernel in dict.fromkeys(kernels)]


def main() -> None:
    """Measure every problem and routing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file, written anew")
    parser.add_argument("--routings", nargs="*", default=ROUTINGS, help="of groups (default: all)")
    parser.add_argument("--rows", nargs="*", help="groups,rows,n,k (default: the list)")
    parser.add_argument("--weights", nargs="*", help="groups,rows,n,k of gradients of weights (default: the list)")
    parser.add_argument("--bmm", nargs="*", help="batch,m,n,k (default: the list)")
    parser.add_argument("--masked", nargs="*", help="groups,rows,n,k of groups with room for so many rows")
    parser.add_argument("--fp8", nargs="*", help="groups,rows,n,k of FP8")
    parser.add_argument("--recipes", nargs="*", default=("row", "blocks"), help="of FP8 (default: row blocks)")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--picks", type=int, default=1, help="kernels of a problem, by the model's order (default 1)")
    parser.add_argument("--dynamic", action="store_true", help="each with either scheduler")
    parser.add_argument("--tuned", action="store_true", help="what the tables serve instead of picks")
    parser.add_argument("--tune", type=int, help="time so many picks first, and keep the best in the user's table")
    options = parser.parse_args()
    need_hopper()
    cases = cases_of(options)
    device, protocol = describe_current(), Burst(rest=0.01, warm=0.002, timed=0.006, pairs=options.pairs)
    timer = Timer(device)
    wanted = [
        KernelId.of(kernel, case.problem, finish=case.finish)
        for case in cases
        for kernel in choices(case.problem, options.tune or options.picks, chip=chip_of(), finish=case.finish)
    ]
    wanted += [KernelId.of(default_config(case.dense), case.dense) for case in cases if case.scales == "blocks"]
    compile_all(wanted, default_store(), lambda line: print(line, file=sys.stderr, flush=True))
    same = {"gpu": device.name, "board": device.uuid, "torch": torch.__version__}
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for case in cases:
            kernels = kernels_of(case, options)
            sets = operands_of(case, device.l2_bytes)
            routings = ("uniform",) if case.problem.grouping == "batch" else options.routings
            for routing, (source, kernel) in product(routings, kernels):
                row: dict[str, Any] = {"kind": case.kind, **case.sizes, "routing": routing, "source": source} | same
                try:
                    row |= measured(case, kernel, routing, sets, device, timer, protocol)
                except RuntimeError as failed:
                    row["status"] = f"error: {' '.join(str(failed).split())[:200]}"
                writer.writerow(row)
                file.flush()
                ratio = f"{row['speedup']:.3f}" if "speedup" in row else row["status"]
                print(case.kind, *case.sizes.values(), routing, source, ratio, file=sys.stderr, flush=True)
            del sets
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
