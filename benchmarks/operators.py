"""Time what CUTLASS Operators runs of ours beside ``hopper_gemm.matmul``, by the paired clock, in either context.

    PYTHONPATH=build/operators:. python -m benchmarks.operators --out FILE [--pairs N] [--problems M,N,K ...]

The operator is the first that the package's search finds among ours, in the context that it is timed in:
``matmul`` runs another config where launches follow one another. Both sides take the same matrices and write the same
bits, which is checked.
Each row of the CSV file is written as it comes: the median of the pairs' ratios with its interval, and times without
the spacer. ``make operators`` brings the package. Nothing else may run on the GPU.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import cutlass.operators as library
import torch

import hopper_gemm
from benchmarks import need_hopper
from hopper_gemm.operators import HopperProvider
from hopper_gemm.tune.measure.device import describe_current

PROBLEMS = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 1024))
PROBLEMS += ((16, 6144, 4096), (64, 28672, 4096), (256, 4096, 14336), (1234, 4096, 4096))
"""m, n, k."""

COLD_BYTES = 120e6
"""Matrices that calls take in turn hold more than so much: twice the L2."""

COLUMNS = ("m", "n", "k", "context", "speedup", "low", "high", "pairs", "time_us", "baseline_us")
COLUMNS += ("config", "gpu", "board", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file, written anew")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--problems", nargs="*", help="m,n,k (default: the list)")
    options = parser.parse_args()
    need_hopper()
    device = describe_current()
    problems = [tuple(map(int, text.split(","))) for text in options.problems] if options.problems else PROBLEMS
    with (
        options.out.open("w", newline="") as file,
        hopper_gemm.while_compiling("wait"),
        hopper_gemm.fallback("never"),
    ):
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for m, n, k in problems:
            calls = []
            for _ in range(1 + int(COLD_BYTES // (2 * (m * k + n * k + m * n)))):
                a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
                out = torch.empty(m, n, device="cuda", dtype=a.dtype)
                args = library.GemmArguments(a, b.mT, out, accumulator_type=torch.float32)
                calls.append((args, a, b.mT, out))
            for context in ("isolated", "chained"):
                with hopper_gemm.chained() if context == "chained" else nullcontext():
                    operator = library.get_operators(calls[0][0], target_sm="90a", providers=[HopperProvider])[0]
                    functions = {"provider": running(operator, calls[0][0]), "matmul": called}
                    if not torch.equal(*(written(function, calls[0]) for function in functions.values())):
                        raise SystemExit(f"{m}x{n}x{k}: the provider must write the bits of matmul but does not")
                    timed = hopper_gemm.bench(functions, context=context, arguments=calls, pairs=options.pairs)
                first, second = timed["provider"], timed["matmul"]
                ratio, config = first.speedup, operator.metadata.design.config
                row = m, n, k, context, ratio.median, ratio.low, ratio.high, ratio.pairs, first.us, second.us
                writer.writerow([*row, config, device.name, device.uuid, torch.__version__])
                file.flush()
                print(f"{m}x{n}x{k} {context}: {ratio.median:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]", flush=True)


def running(operator: Any, like: Any) -> Callable[..., None]:
    """An operator, compiled for arguments like some, as a function of a call."""
    artifact = operator.compile(like)
    return lambda args, *_: operator.run(args, compiled_artifact=artifact, stream=torch.cuda.current_stream())


def called(_: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    hopper_gemm.matmul(a, b, out=out)


def written(function: Callable[..., None], call: Sequence[Any]) -> torch.Tensor:
    """Return the output of a call of a function, a copy."""
    call[-1].zero_()
    function(*call)
    return call[-1].clone()


if __name__ == "__main__":
    main()
