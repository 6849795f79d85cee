"""Print what the first product of a fresh process takes by torch.mm and by ours, and what each further problem takes.

A time of a process is that from its start until the product is there, imports included. Processes alternate, ours and
torch's; medians. The kernels are compiled before, unless the package brings them, and no call is torch's. Each further
problem is a new one for the process: its pick, its kernel's load and its launch. Then the parts of one first product,
in order, and the picks of the problems that were drawn last. Run it from the repository's root, on an idle machine:
``python -m benchmarks.first [--processes 20]``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median, quantiles

from benchmarks import need_hopper
from benchmarks.fresh import LAST_SEEDS, drawn
from hopper_gemm.model.menu import choose
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import Chip
from hopper_gemm.serve.kernels import chip_of

PROBLEMS = [(m, n, k) for m in (3, 17, 250, 4000) for n, k in ((4104, 4096), (6152, 4096), (4104, 14336))]
"""The first, and further ones; in no tuned table, so that each is picked."""

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""An installed package has its bytecode."""

PROCESS = """
import json, sys, time
import torch
problems, ours = json.loads(sys.argv[1]), sys.argv[2] == "ours"
if ours:
    from hopper_gemm import compiling, matmul as multiply
else:
    multiply = torch.mm
taken = []
for m, n, k in problems:
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16().t()
    torch.cuda.synchronize()
    began = time.perf_counter()
    multiply(a, b)
    torch.cuda.synchronize()
    taken.append(time.perf_counter() - began)
    if len(taken) == 1:
        print(flush=True)
assert not ours or not compiling().by_torch, "no kernel was compiled before"
print(json.dumps(taken))
"""

PARTS = """
import sys, time
import torch
torch.cuda.synchronize()
began, parts = time.perf_counter(), []
def part(name):
    global began
    torch.cuda.synchronize()
    parts.append(f"{name} {1e3 * (time.perf_counter() - began):.1f}")
    began = time.perf_counter()
from hopper_gemm import GemmProblem, matmul
part("import hopper_gemm")
from hopper_gemm.compiler.store import KernelId, compiled_in
from hopper_gemm.serve import kernels
problem = GemmProblem(*map(int, sys.argv[1:]))
kernels.chip_of(0)
part("look at the GPU")
kernels.tables_for(0)
part("read the tables")
config = kernels.default_config(problem)
part("pick")
found = compiled_in(KernelId.of(config, problem))
part(f"look into the store: {found}")
import tvm_ffi
part("import tvm_ffi")
kernels.kernel_for(problem, 0)
part("load")
a, b = (torch.ones(rows, problem.k, device="cuda").bfloat16() for rows in (problem.m, problem.n))
part("operands")
matmul(a, b.t())
part("first call")
print(f"ms: {', '.join(parts)}; the DSL is {'' if 'cutlass' in sys.modules else 'not '}imported")
"""


def first(way: str) -> tuple[float, list[float]]:
    """Seconds from the start of a process to its first product, and those of each product."""
    began = time.perf_counter()
    command = [sys.executable, "-c", PROCESS, json.dumps(PROBLEMS), way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        there = time.perf_counter() - began
        return there, json.loads(process.stdout.read())


def picks(seed: int, chip: Chip) -> list[float]:
    """Milliseconds of the pick of each problem that a seed draws, in a process that has picked before."""
    taken = []
    choose(GemmProblem(*PROBLEMS[0]), chip)
    for _, problem in drawn(seed):
        began = time.perf_counter()
        choose(problem, chip)
        taken.append(1e3 * (time.perf_counter() - began))
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=20)
    count = parser.parse_args().processes
    need_hopper()
    compiled = "import hopper_gemm, json, sys, torch; print(hopper_gemm.prebuild(map(tuple, json.loads(sys.argv[1])), "
    compiled += "gpu=torch.cuda.get_device_name()))"
    subprocess.run([sys.executable, "-c", compiled, json.dumps(PROBLEMS)], check=True)
    runs: dict[str, list[tuple[float, list[float]]]] = {"torch": [], "ours": []}
    for _ in range(1 + count):
        for way, taken in runs.items():
            taken.append(first(way))
    for way, taken in runs.items():
        start, further = median(there for there, _ in taken[1:]), [all_of[1:] for _, all_of in taken[1:]]
        each = [1e3 * median(times) for times in zip(*further, strict=True)]
        print(f"{way}: first product after {start:.3f} s")
        print(f"{way}: a further problem {median(each):.1f} ms, the slowest {max(each):.1f} ms")
    gap = median(ours - theirs for (ours, _), (theirs, _) in zip(runs["ours"][1:], runs["torch"][1:], strict=True))
    print(f"ours is {gap:.3f} s behind")
    subprocess.run([sys.executable, "-c", PARTS, *map(str, PROBLEMS[0])], env=ENVIRONMENT, check=True)
    for name in LAST_SEEDS:
        each = picks(int(name.removeprefix("fresh-")), chip_of(0))
        most = f"nine in ten {quantiles(each, n=10)[-1]:.3f}, most {max(each):.3f}"
        print(f"a pick of {name}: {median(each):.3f} ms, {most}")


if __name__ == "__main__":
    main()
