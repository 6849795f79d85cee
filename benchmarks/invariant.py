"""Time what batch invariance costs: our kernels with and without it, torch.mm, and the Triton kernel that servers use.

All arms of a problem run in one process, isolated, in bursts, in rotating order; our kernels are those that ``matmul``
runs. One line of JSON for each problem is appended to the file, as in ``results/measurements/invariance.jsonl``.
Nothing else may run on the GPU. From the repository's root::

    python -m benchmarks.invariant --out invariance.jsonl
    CUBLAS_WORKSPACE_CONFIG=:16:8 python -m benchmarks.invariant --arms ours torch --out invariance.jsonl

``--list rows`` takes problems of 256 to 8192 rows and adds the Triton kernel of the package batch_invariant_ops
(github.com/thinking-machines-lab/batch_invariant_ops), which must be installed; ``--list rows-fp16`` the same in
fp16 with the second matrix contiguous along n, for which that kernel has another tile; ``--list deep`` problems whose k
is cut, ``--list held-out`` some of the map's that nothing was fitted to; ``--compile-only`` needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import need_hopper
from benchmarks.ideas import in_turns, sizes
from docs.generate.todays_code import code_columns
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.lookup import Pick, Table, find, tables
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.model.tuned import slug
from hopper_gemm.tune.measure.arms import Arm, Launch, cublas_launch, kernel_launch, load_any, seconds_per_launch, touch
from hopper_gemm.tune.measure.correctness import check, poison
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import MatrixSet, Workload, make_workload
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.study.files import suite_file
from hopper_gemm.tune.study.shapes import read_shapes
from tests.verify.harness import compile_all

ROWS = tuple(
    GemmProblem(m, n, k)
    for m, n, k in (
        (256, 4096, 4096),
        (512, 6144, 4096),
        (1024, 4096, 4096),
        (1024, 28672, 4096),
        (2048, 4096, 14336),
        (2048, 8192, 8192),
        (4096, 6144, 4096),
        (4096, 10240, 8192),
        (8192, 4096, 4096),
        (8192, 8192, 8192),
    )
)
"""Layers of language models at 256 to 8192 rows."""

DEEP = tuple(
    GemmProblem(m, n, k)
    for n, k in ((512, 65536), (512, 16384), (1024, 16384), (256, 7168))
    for m in (16, 256, 1024, 8192)
)
"""Few columns and a long k: sides that are cut into eight parts, and two that are cut into four."""

HELD_OUT = 24
"""Number of problems of the map that are drawn among those held out."""

ARMS = ("torch", "ours", "plain", "triton")
"""``ours`` is batch-invariant, ``plain`` is ours without that condition."""


def held_out() -> list[GemmProblem]:
    """Some problems of the map that nothing was fitted to, drawn by a seed."""
    read = read_shapes(suite_file().with_name("map.toml"))
    return random.Random(28).sample([one.problem() for one in read.problems if one.held_out], HELD_OUT)


LISTS: dict[str, Callable[[], Sequence[GemmProblem]]] = {
    "suite": lambda: read_shapes().of_regime("burst"),
    "rows": lambda: ROWS,
    "rows-fp16": lambda: [replace(one, dtype="fp16", layouts="kn") for one in ROWS],
    "deep": lambda: DEEP,
    "held-out": held_out,
}
"""Lists of problems by name."""


def picks(problem: GemmProblem, among: Sequence[Table]) -> dict[str, Pick]:
    """Our kernels for a problem, with the condition and without."""
    reached = filled_up(problem)
    return {"ours": find(among, replace(reached, batch_invariant=True)), "plain": find(among, reached)}


class TritonLaunch:
    """Launches of batch_invariant_ops' Triton kernel, which makes its output; the outputs of as many launches as there
    are sets of matrices are kept, so that a launch writes where nothing is in the L2.

    Attributes:
        products: by the identity of a set of matrices.
    """

    def __init__(self) -> None:
        self.products: dict[int, torch.Tensor] = {}

    def __call__(self, operands: MatrixSet) -> None:
        from batch_invariant_ops import matmul_persistent

        self.products[id(operands)] = matmul_persistent(operands.a, operands.b.t())


def launches(problem: GemmProblem, among: Sequence[Table], arms: Sequence[str]) -> dict[str, Launch]:
    """What the arms of a problem launch."""
    found: dict[str, Launch] = {"torch": cublas_launch, "triton": TritonLaunch()}
    for name, pick in picks(problem, among).items():
        if name in arms:
            found[name] = kernel_launch(load_any(pick.config, problem))
    return {name: found[name] for name in arms}


def checked(work: Workload, launch: Launch) -> str:
    """What is wrong with an arm's product, empty if nothing."""
    first = work.sets[0]
    for out in (first.ours, first.theirs):
        poison(out)
    launch(first)
    made = launch.products.values() if isinstance(launch, TritonLaunch) else (first.ours, first.theirs)
    outputs = [out for out in made if not torch.isnan(out[0, 0])]
    return check(outputs[0], work.reference, work.problem.k).reason or "" if outputs else "nothing was written"


def timed(title: str, problem: GemmProblem, among: Sequence[Table], arms: Sequence[str], rounds: int) -> dict[str, Any]:
    """Microseconds of every arm, round by round, without the spacer's; none of an arm whose product is wrong."""
    device, protocol = describe_current(), Burst(rest=0.01, timed=0.006)
    timer, spacer, work = Timer(device), touch(device.sms), make_workload(problem, device.l2_bytes)
    alone = Arm(spacer, work.sets, seconds_per_launch(spacer, work.sets))
    chosen, wrong, ready = picks(problem, among), {}, {}
    for name, launch in launches(problem, among, arms).items():
        reason = checked(work, launch)
        if reason:
            wrong[name] = reason
        else:
            ready[name] = Arm(launch, work.sets, seconds_per_launch(launch, work.sets) + alone.seconds, spacer)
    return {
        "list": title,
        "problem": sizes(problem),
        "context": "isolated",
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        "configs": {name: pick.config.as_dict() for name, pick in chosen.items()},
        "how": {name: pick.how for name, pick in chosen.items()},
        "us": in_turns(timer, protocol, ready, alone, rounds),
        "wrong": wrong,
        "kernel": kernel_digest(),
        **code_columns({name: pick.config for name, pick in chosen.items() if name in arms}, problem),
        "board": device.uuid,
        "gpu": device.name,
        "driver": device.driver,
        "torch": torch.__version__,
    }


def told(row: dict[str, Any]) -> str:
    """A row in a line: each arm's speedup over torch.mm."""
    us = row["us"]
    over = {name: median(map(truediv, us["torch"], own)) for name, own in us.items() if name != "torch"}
    return " ".join([str(row["problem"]), *(f"{name} {ratio:.4f}x" for name, ratio in over.items())])


def main(clock: Callable[[], float] = time.monotonic) -> None:
    """Compile, measure, print and append."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file to which the rows are appended")
    parser.add_argument("--list", choices=tuple(LISTS), default="suite", help="problems to time")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no problem after so long")
    parser.add_argument("--gpu", default="NVIDIA H200", help="with --compile-only: the kind of GPU")
    parser.add_argument("--compile-only", action="store_true")
    asked = parser.parse_args()
    if not asked.compile_only:
        need_hopper()
    begun, problems = clock(), LISTS[asked.list]()
    arms = asked.arms or (ARMS if asked.list.startswith("rows") else ARMS[:3])
    name = asked.gpu if asked.compile_only else torch.cuda.get_device_name()
    among = tables(slug(name))
    wanted = [(pick.config, one) for one in problems for arm, pick in picks(one, among).items() if arm in arms]
    failed = compile_all([KernelId.of(config, one) for config, one in wanted], default_store())
    if asked.compile_only:
        raise SystemExit(failed)
    for problem in problems:
        if clock() - begun > asked.seconds:
            break
        try:
            row = timed(asked.list, problem, among, arms, asked.rounds)
        except (RuntimeError, ValueError) as error:
            print(f"{problem}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(told(row) if "torch" in row["us"] else row["us"], flush=True)


if __name__ == "__main__":
    main()
