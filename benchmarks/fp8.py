"""Time picked FP8 kernels beside torch's scaled_mm of the same recipe, isolated, in bursts, pair after pair.

    python -m benchmarks.fp8 --out FILE [--recipes tensor row:128 ...] [--pairs N] [--problems M,N,K ...] [--drawn SEED]

A recipe is the scales, ``tensor`` or ``row``, with fast sums, or behind a colon the elements of k between promotions;
torch then runs without fast accumulation. ``blocks`` are scales of 1x128 of A and 128x128 of B, promoted each 128 by
both. Fast sums are never compared with promoted ones. Each row of the CSV file is
written as it comes: the median of the pairs' ratios with its interval, times without the spacer, and the relative
Frobenius errors of both sides against fp32 arithmetic on the dequantised operands. A product that is further off than
:data:`MOST` is not timed. Kernels are compiled ahead on all cores. Nothing else may run on the GPU.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import need_hopper
from benchmarks.fresh import drawn_in_fp8
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.lookup import use_table
from hopper_gemm.model.problem import BLOCK
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.serve.kernels import default_config, kernel_for
from hopper_gemm.tune.measure.arms import Arm, Launch, kernel_launch, scaled_launch, seconds_per_launch, touch
from hopper_gemm.tune.measure.correctness import poison
from hopper_gemm.tune.measure.device import DeviceInfo, describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import MatrixSet, make_workload
from hopper_gemm.tune.point import Sample
from hopper_gemm.tune.statistics import speedup
from tests.verify.harness import compile_all

WIDE = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
PROBLEMS = [(m, n, k) for n, k in WIDE for m in (64, 128, 4096)]
PROBLEMS += [(size, size, size) for size in (1024, 2048, 4096, 8192, 16384)]
PROBLEMS += [(1024, 28672, 4096)]
"""m, n, k."""

RECIPES = ("tensor", "row:128", "blocks")

MOST = 1e-2
"""Largest relative error that is timed: thrice what fast sums lose at k = 16384."""

COLUMNS = (
    *("m", "n", "k", "recipe", "status", "speedup", "low", "high", "pairs", "time_us", "baseline_us", "tflops"),
    *("rel_err", "baseline_rel_err", "spacer_us", "sm_mhz", "config", "gpu", "board", "torch"),
)


def drawn_sizes(seed: int) -> list[tuple[int, int, int]]:
    """Sizes that nobody chose: four of each kind. A seed is used once, and not by :mod:`benchmarks.fresh` as well: it
    would draw some of the same sizes."""
    return [(problem.m, problem.n, problem.k) for _, problem in drawn_in_fp8(seed, 4)]


def problem_of(sizes: tuple[int, int, int], recipe: str) -> ScaledProblem:
    """The problem of a recipe."""
    scales, _, promote = recipe.partition(":")
    step = BLOCK if scales == "blocks" else int(promote or 0)
    return ScaledProblem(*sizes, "e4m3_bf16", promote=step, scales=scales)


def timed(
    sets: Sequence[MatrixSet],
    launches: tuple[Launch, Launch],
    flop: float,
    device: DeviceInfo,
    timer: Timer,
    protocol: Burst,
) -> dict[str, Any]:
    """The figures of pairs of times in alternating order, isolated."""
    spacer = touch(device.sms)
    alone = Arm(spacer, sets, seconds_per_launch(spacer, sets))
    arms = [Arm(launch, sets, seconds_per_launch(launch, sets) + alone.seconds, spacer) for launch in launches]
    samples, clocks = [], []
    with timer.telemetry(protocol) as telemetry:
        for number in range(protocol.pairs):
            order = arms if number % 2 == 0 else arms[::-1]
            first = timer.time(order[0], protocol, telemetry)
            rest = timer.time(alone, protocol.of_spacer, telemetry)
            pair = (first, timer.time(order[1], protocol, telemetry))
            mine, other = pair if number % 2 == 0 else pair[::-1]
            samples.append(Sample(0, mine.us[0], other.us[0], rest.us[0]))
            clocks.append(mine.sm_mhz)
    if telemetry.harm is not None:
        print(f"the GPU was slowed down: {telemetry.harm}", file=sys.stderr, flush=True)
    ratio, us = speedup(samples), median(sample.bare_us[0] for sample in samples)
    return {
        "speedup": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "pairs": ratio.pairs,
        "time_us": us,
        "baseline_us": median(sample.bare_us[1] for sample in samples),
        "tflops": flop / us / 1e6,
        "spacer_us": median(sample.spacer_us or 0 for sample in samples),
        "sm_mhz": median(clocks),
    }


def measured(problem: ScaledProblem, device: DeviceInfo, timer: Timer, protocol: Burst) -> dict[str, Any]:
    """The row of a problem."""
    torch.cuda.empty_cache()
    work, kernel = make_workload(problem, device.l2_bytes), kernel_for(problem, torch.cuda.current_device())
    first, launches = work.sets[0], (kernel_launch(kernel), scaled_launch(problem.scales, not problem.promote))
    poison(first.ours)
    for launch in launches:
        launch(first)
    ours, theirs = (work.check(out).rel_err for out in (first.ours, first.theirs))
    row: dict[str, Any] = {"status": "ok", "rel_err": ours, "baseline_rel_err": theirs, "config": str(kernel.config)}
    if not ours <= MOST:
        return row | {"status": "wrong"}
    return row | timed(work.sets, launches, problem.flop, device, timer, protocol)


def main() -> None:
    """Measure every problem and recipe."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file, written anew")
    parser.add_argument(
        "--recipes", nargs="+", default=RECIPES, help="such as tensor, row:128, blocks (default: these)"
    )
    parser.add_argument("--problems", nargs="+", help="such as 64,7168,2048 (default: the list)")
    parser.add_argument("--drawn", type=int, metavar="SEED", help="24 problems that are drawn instead")
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    need_hopper()
    given = [tuple(map(int, text.split(","))) for text in options.problems or ()]
    problems: list[Any] = given or (PROBLEMS if options.drawn is None else drawn_sizes(options.drawn))
    use_table(None, alone=True)  # picks, whatever was tuned
    device, protocol = describe_current(), Burst(rest=0.01, warm=0.002, timed=0.006, pairs=options.pairs)
    timer, wanted = Timer(device), [problem_of(sizes, recipe) for sizes in problems for recipe in options.recipes]
    compile_all(
        [KernelId.of(default_config(problem), problem) for problem in wanted],
        default_store(),
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    same = {"gpu": device.name, "board": device.uuid, "torch": torch.__version__}
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for problem in wanted:
            row: dict[str, Any] = {name: getattr(problem, name) for name in ("m", "n", "k", "recipe")} | same
            try:
                row |= measured(problem, device, timer, protocol)
            except RuntimeError as error:  # torch refuses some recipes of some sizes
                row["status"] = f"error: {' '.join(str(error).split())[:200]}"
            writer.writerow(row)
            file.flush()
            ratio = f"{row['speedup']:.3f}" if "speedup" in row else row["status"]
            print(problem, problem.recipe, ratio, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
