"""Time kernels of several source trees beside each other and beside torch.mm, in one process: is a change worth having?

A tree is a folder that holds ``hopper_gemm``, such as a checkout of another commit. Each tree compiles the tuned config
of each problem in processes of its own; all kernels are then loaded into one process, checked, and timed in bursts,
isolated, in rotating order. One line of JSON for each problem is appended to the file, as in
``results/h200/ideas.jsonl``. Nothing else may run on the GPU. From the repository's root::

    git worktree add /tmp/before HEAD~1
    python -m benchmarks.ideas before=/tmp/before after=. --problems 1024x1024x1024 8192x8192x8192 --out ideas.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import need_hopper
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import LoadedKernel, launcher_of
from hopper_gemm.lab.guard.binaries import EARLIER_ARGUMENTS, with_arguments
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.lookup import pick
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.arms import Arm, Launch, cublas_launch, kernel_launch, seconds_per_launch, touch
from hopper_gemm.tune.measure.correctness import check, poison
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import make_workload
from hopper_gemm.tune.study.files import recorded_entries

COMPILE = """
import json, multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

def compiled(job):
    from dataclasses import asdict
    from hopper_gemm.compiler.loader import compile_into
    from hopper_gemm.compiler.store import KernelId, KernelStore
    from hopper_gemm.model.config import GemmConfig
    from hopper_gemm.model.problem import GemmProblem
    problem, config, store = job
    kernels, kernel = KernelStore(Path(store)), KernelId.of(GemmConfig.of(config), GemmProblem(*problem))
    report = compile_into(kernels, kernel)
    try:
        from hopper_gemm.compiler.abi import ARGUMENTS
        arguments = [argument.name for argument in ARGUMENTS]
    except ImportError:
        arguments = None
    return str(kernels.object_file(kernel)), asdict(report), arguments

if __name__ == "__main__":
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        json.dump(list(pool.map(compiled, json.load(sys.stdin))), sys.stdout)
"""
"""Script run in each source tree: reads problems and configs on stdin, writes object files and reports to stdout."""

Built = tuple[str, dict[str, Any], list[str] | None]
"""An object file, the compiler's report, and the names of its launcher's arguments; None for the earlier ones."""


def sizes(problem: GemmProblem) -> list[Any]:
    """A problem as a list of m, n, k, types and layouts."""
    return [problem.m, problem.n, problem.k, problem.dtype, problem.layouts]


def compiled(tree: str, jobs: Sequence[tuple[GemmProblem, GemmConfig]], folder: Path) -> list[Built]:
    """Compile each problem's config by a tree's sources.

    Raises:
        RuntimeError: the tree's process failed; its last line of stderr.
    """
    store = folder / "store"
    store.mkdir(mode=0o700)
    program = folder / "compile_kernels.py"
    program.write_text(COMPILE)
    asked = json.dumps([(sizes(problem), config.as_dict(), str(store)) for problem, config in jobs])
    paths = os.pathsep.join([str(Path(tree).resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(program)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    if done.returncode:
        raise RuntimeError(f"{tree} must compile but: {(done.stderr.splitlines() or [''])[-1]}")
    return [(path, report) for path, report in json.loads(done.stdout)]


def timed(problem: GemmProblem, config: GemmConfig, built: Mapping[str, Built], rounds: int) -> dict[str, Any]:
    """Microseconds of every arm, round by round, without the spacer's; none of an arm whose product is wrong."""
    device, protocol = describe_current(), Burst()
    timer, spacer, work = Timer(device), touch(device.sms), make_workload(problem, device.l2_bytes)
    alone = Arm(spacer, work.sets, seconds_per_launch(spacer, work.sets))

    def arm(launch: Launch) -> Arm:
        return Arm(launch, work.sets, seconds_per_launch(launch, work.sets) + alone.seconds, spacer)

    arms, about, bits = {"torch.mm": arm(cublas_launch)}, {}, None
    for name, (path, report, arguments) in built.items():
        launcher, first = with_arguments(launcher_of(Path(path)), arguments or EARLIER_ARGUMENTS), work.sets[0]
        kernel = LoadedKernel.of(resolve(config), CubinReport(**report), launcher)
        poison(first.ours)
        kernel(first.a, first.b, first.ours)
        found = check(first.ours, work.reference, problem.k)
        bits = first.ours.clone() if bits is None else bits
        same = torch.equal(first.ours, bits)
        about[name] = {**report, "right": found.ok, "rel_err": found.rel_err, "bits_of_first_tree": same}
        if found.ok:
            arms[name] = arm(kernel_launch(kernel))
    us = in_turns(timer, protocol, arms, alone, rounds)
    return {"board": device.uuid, "gpu": device.name, "driver": device.driver, "us": us, "about": about}


def in_turns(timer: Timer, protocol: Burst, arms: Mapping[str, Arm], alone: Arm, rounds: int) -> dict[str, list[float]]:
    """Microseconds of every arm, round by round in rotating order, without the spacer's, which ``alone`` launches."""
    us: dict[str, list[float]] = {name: [] for name in arms}
    with timer.telemetry(protocol) as telemetry:
        for number in range(rounds):
            order = [*arms][number % len(arms) :] + [*arms][: number % len(arms)]
            (rest,) = timer.time(alone, protocol.of_spacer, telemetry).us
            for name in order if number % 2 == 0 else order[::-1]:
                us[name].append(round(timer.time(arms[name], protocol, telemetry).us[0] - rest, 3))
    return us


def problems(texts: Sequence[str]) -> Iterator[GemmProblem]:
    """Problems from texts such as ``1024x1024x1024``."""
    for text in texts:
        yield GemmProblem(*map(int, text.split("x")))


def main() -> None:
    """Compile, measure, print and append."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trees", nargs="+", metavar="NAME=TREE", help="an arm, and the folder that holds its sources")
    parser.add_argument("--problems", nargs="+", required=True, metavar="MxNxK")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True, help="file to which the rows are appended")
    asked = parser.parse_args()
    need_hopper()
    entries = recorded_entries()
    jobs = [(problem, pick(entries, problem).config) for problem in problems(asked.problems)]
    with tempfile.TemporaryDirectory() as scratch:
        built: dict[str, list[Built]] = {}
        for name, _, tree in (one.partition("=") for one in asked.trees):
            folder = Path(scratch) / str(len(built))
            folder.mkdir()
            built[name] = compiled(tree, jobs, folder)
        for number, (problem, config) in enumerate(jobs):
            row = timed(problem, config, {name: found[number] for name, found in built.items()}, asked.rounds)
            us = row["us"]
            about = {"problem": sizes(problem), "context": "isolated", "config": config.as_dict()}
            with asked.out.open("a") as file:
                file.write(json.dumps({**about, **row, "torch": torch.__version__}) + "\n")
            over = {name: median(map(truediv, us["torch.mm"], own)) for name, own in us.items()}
            print(problem, *(f"{name} {ratio:.4f}x" for name, ratio in over.items()))


if __name__ == "__main__":
    main()
