"""Time matrices that TMA cannot reach beside torch.mm: what matmul runs, and its parts.

All arms of a problem run in one process, in bursts, isolated, in rotating order: torch.mm; the picked kernel behind the
padding of its operands; the same with programmatic dependent launch, which overlaps its set-up with the padding's end;
the padding alone. Products are checked first. One line of JSON for each problem goes to stdout. Nothing else may run on
the GPU. From the repository's root::

    python -m benchmarks.ragged sweeps/shapes/drawn.toml sweeps/shapes/ragged.toml --rounds 9 > ragged.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import truediv
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch

from benchmarks import need_hopper
from benchmarks.host import host_times
from docs.generate.todays_code import code_columns
from hopper_gemm import matmul, while_compiling
from hopper_gemm.compiler.padded import PADDED, PaddedKernel
from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.compiler.store import AnyId, KernelId, PaddingId, default_store
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.lookup import find, tables
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.arms import Arm, Launch, cublas_launch, kernel_launch, load_any, seconds_per_launch, touch
from hopper_gemm.tune.measure.correctness import check, poison
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import make_workload
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.study.shapes import read_shapes

Arms = dict[str, Kernel]


def arms_of(problem: GemmProblem) -> Arms:
    """The configs to time: what matmul runs, and the same with PDL."""
    config = find(tables("h200"), problem).config
    early = config.but(pdl=not config.pdl)
    return {"ours": config, **({"pdl" if early.pdl else "no pdl": early} if is_legal(early, problem) else {})}


def padding(kernel: PaddedKernel) -> Launch:
    """The launch that pads the operands, alone."""
    rows = [(0, 0, 1) if one is None else (one.pitch, one.rows, one.size) for one in (kernel.a, kernel.b)]
    elements = sum(one.elements for one in (kernel.a, kernel.b) if one)

    def launch(operands: Any) -> None:
        room = PADDED.get(operands.a.get_device(), elements).room
        kernel.pad(room, operands.a.data_ptr(), *rows[0], operands.b.data_ptr(), *rows[1])

    return launch


def timed(problem: GemmProblem, configs: Arms, rounds: int) -> dict[str, Any]:
    """Microseconds of every arm, round by round, without the spacer's; none of an arm whose product is wrong."""
    device, protocol = describe_current(), Burst(rest=0.01)
    timer, spacer, work = Timer(device), touch(device.sms), make_workload(problem, device.l2_bytes)
    alone, first = Arm(spacer, work.sets, seconds_per_launch(spacer, work.sets)), work.sets[0]

    def arm(launch: Launch) -> Arm:
        return Arm(launch, work.sets, seconds_per_launch(launch, work.sets) + alone.seconds, spacer)

    arms, wrong = {"torch.mm": arm(cublas_launch)}, {}
    for name, config in configs.items():
        kernel = load_any(config, problem)
        poison(first.ours)
        kernel(first.a, first.b, first.ours)
        found = check(first.ours, work.reference, problem.k)
        if found.ok:
            arms[name] = arm(kernel_launch(kernel))
        else:
            wrong[name] = found.reason
        if isinstance(kernel, PaddedKernel):
            arms["padding"] = arm(padding(kernel))
    us: dict[str, list[float]] = {name: [] for name in arms}
    with timer.telemetry(protocol) as telemetry:
        for number in range(rounds):
            order = [*arms][number % len(arms) :] + [*arms][: number % len(arms)]
            (rest,) = timer.time(alone, protocol.of_spacer, telemetry).us
            for name in order if number % 2 == 0 else order[::-1]:
                us[name].append(round(timer.time(arms[name], protocol, telemetry).us[0] - rest, 3))
    b, out = first.b.t(), first.ours
    with while_compiling("wait"):
        host = host_times(
            {"torch.mm": lambda: torch.mm(first.a, b, out=out), "ours": lambda: matmul(first.a, b, out=out)},
            torch.cuda.synchronize,
        )
    return {
        "configs": {name: config.as_dict() for name, config in configs.items()},
        "kernel": kernel_digest(),
        **code_columns(configs, problem),
        "board": device.uuid,
        "gpu": device.name,
        "us": us,
        "wrong": wrong,
        "host_us": host,
    }


def compile_ahead(problems: Sequence[GemmProblem]) -> None:
    """Compile every arm's kernel on all cores."""
    kernels: list[AnyId] = [PaddingId()]
    kernels += [KernelId.of(config, problem) for problem in problems for config in arms_of(problem).values()]
    pool = CompilePool(default_store())
    try:
        pool.submit(kernels)
        for kernel in kernels:
            pool.result(kernel)
    finally:
        pool.close()


def rows(problems: Sequence[GemmProblem], rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each problem, until the time is over."""
    until = time.monotonic() + seconds
    for problem in problems:
        if time.monotonic() > until:
            return
        configs = arms_of(problem)
        about = {"problem": asdict(problem), "out_of_reach": problem.out_of_reach, "context": "isolated"}
        try:
            found = timed(problem, configs, rounds)
        except Exception as error:  # one problem's failure must not hide the others
            yield {**about, "error": f"{type(error).__name__}: {error}"[:300]}
            continue
        finally:
            torch.cuda.empty_cache()
        us = found["us"]
        over = {name: median(map(truediv, us["torch.mm"], own)) for name, own in us.items()}
        yield {**about, "config": str(configs["ours"]), "over_torch": over, **found, "torch": torch.__version__}


def main() -> None:
    """Compile, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="+", type=Path, help="lists of problems; those within reach are left out")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no problem is begun later than this")
    asked = parser.parse_args()
    need_hopper()
    named = dict.fromkeys(one for path in asked.shapes for one in read_shapes(path).of_regime("burst"))
    problems = [one for one in named if one.out_of_reach]
    compile_ahead(problems)
    found: dict[str, dict[str, float]] = {}
    for row in rows(problems, asked.rounds, asked.seconds):
        print(json.dumps(row), flush=True)
        if "error" not in row:
            found[str(GemmProblem(**row["problem"]))] = row["over_torch"]
    for name in ("ours", "pdl"):
        over = {problem: one[name] for problem, one in found.items() if name in one}
        if over:
            worst = min(over, key=over.__getitem__)
            told = f"{name}: {len(over)} problems, {geometric_mean(over.values()):.3f}x torch.mm"
            print(f"{told}, worst {over[worst]:.3f}x at {worst}", file=sys.stderr)


if __name__ == "__main__":
    main()
