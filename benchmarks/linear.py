"""Time linear and swiglu beside torch, beside torch.compile, and beside our plain product, in one process.

``linear`` is a product of an (n, k) weight with a bias and gelu, ``swiglu`` one whose n columns are gate and up. Each
arm is timed in bursts, isolated, in rotating order; the time of the kernel in between is taken off. One line of JSON
for each problem is appended to the file. Nothing else may run on the GPU. From the repository's root::

    python -m benchmarks.linear --out linear.jsonl --compile
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import default_config, kernel_for
from hopper_gemm.serve.linear_ops import Call, finished, halved
from hopper_gemm.tune.measure.arms import Arm, Launch, cublas_launch, kernel_launch, seconds_per_launch, touch
from hopper_gemm.tune.measure.correctness import poison
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import MatrixSet, Workload, make_workload
from hopper_gemm.tune.parameters import kernel_digest

PROBLEMS = [(8192, 14336, 4096), (2048, 14336, 4096), (128, 14336, 4096)]
GATED_PROBLEMS = [(m, 2 * n, k) for m, n, k in PROBLEMS]
BIAS_GELU, GATED = Finish(bias=True, activation="gelu"), Finish(activation="silu", gated=True)

Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def linear_gelu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The first layer, as a model of torch writes it."""
    return functional.gelu(functional.linear(x, w, bias))


def gated(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The second one."""
    gate, up = functional.linear(x, w).chunk(2, -1)
    return functional.silu(gate) * up


def launches(
    work: Workload, finish: Finish, bias: torch.Tensor | None, tuned: bool, more: Mapping[str, GemmConfig]
) -> dict[str, Launch]:
    """Every arm's launch on a set of matrices, ours first; the first result of each of ours is checked.

    Raises:
        RuntimeError: our result is wrong.
    """
    problem, index = work.problem, torch.cuda.current_device()
    configs: dict[str, GemmConfig | None] = {"ours": None, **more}
    columns = problem.n // 2 if finish.gated else problem.n
    outputs = {id(one): torch.empty(problem.m, columns, device="cuda", dtype=one.a.dtype) for one in work.sets}
    layer: Layer = gated if finish.gated else linear_gelu

    def ours(config: GemmConfig | None) -> Launch:
        kernel = kernel_for(problem, index, config, finish)
        return lambda one: kernel(one.a, one.b, outputs[id(one)], None, bias, None, None)

    def by(call: Layer) -> Launch:
        def launch(one: MatrixSet) -> None:
            call(one.a, one.b, bias)

        return launch

    first, arms = work.sets[0], {name: ours(config) for name, config in configs.items()}
    exact = (
        halved(work.reference)
        if finish.gated
        else finished(work.reference, Call(first.a, first.b, bias, finish.activation))
    )
    for name, launch in arms.items():
        poison(outputs[id(first)])
        launch(first)
        error = float((outputs[id(first)] - exact).norm() / exact.norm())
        if not error < 3e-3:
            raise RuntimeError(f"{name} of {problem} with {finish} must be right but is off by {error:.1e}")
    arms |= {
        "plain product": kernel_launch(kernel_for(problem, index)),
        "torch.mm": cublas_launch,
        "eager": by(layer),
    }
    if tuned:
        compiled = torch.compile(layer, mode="max-autotune-no-cudagraphs", dynamic=False)
        compiled(first.a, first.b, bias)
        arms["compiled"] = by(compiled)
    return arms


def timed(
    problem: GemmProblem,
    finish: Finish,
    rounds: int,
    tuned: bool,
    more: Mapping[str, GemmConfig] = MappingProxyType({}),
) -> dict[str, Any]:
    """Microseconds of every arm, round by round, without the spacer's; ``more`` are further configs of ours."""
    device, protocol = describe_current(), Burst()
    timer, spacer, work = Timer(device), touch(device.sms), make_workload(problem, device.l2_bytes)
    for one in work.sets:
        one.b.mul_(problem.k**-0.5)  # a power of two: exact
    work.reference.mul_(problem.k**-0.5)
    bias = torch.randn(problem.n, device="cuda").to(work.sets[0].a.dtype) if finish.bias else None
    alone = Arm(spacer, work.sets, seconds_per_launch(spacer, work.sets))
    arms = {
        name: Arm(launch, work.sets, seconds_per_launch(launch, work.sets) + alone.seconds, spacer)
        for name, launch in launches(work, finish, bias, tuned, more).items()
    }
    us: dict[str, list[float]] = {name: [] for name in arms}
    with timer.telemetry(protocol) as telemetry:
        for number in range(rounds):
            order = [*arms][number % len(arms) :] + [*arms][: number % len(arms)]
            (rest,) = timer.time(alone, protocol.of_spacer, telemetry).us
            for name in order if number % 2 == 0 else order[::-1]:
                us[name].append(round(timer.time(arms[name], protocol, telemetry).us[0] - rest, 3))
    config = default_config(problem, 0, finish)
    about: dict[str, Any] = {"problem": [problem.m, problem.n, problem.k], "finish": str(finish), "context": "isolated"}
    about |= {"kernel": kernel_digest(), "board": device.uuid, "gpu": device.name, "torch": torch.__version__}
    return {**about, "config": config.as_dict(), "us": us}


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="also time torch.compile(mode='max-autotune')")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further problem after so long")
    parser.add_argument("--out", type=Path, required=True, help="file to which the rows are appended")
    asked, begun = parser.parse_args(given), time.monotonic()
    jobs = [(GemmProblem(*one), BIAS_GELU) for one in PROBLEMS] + [(GemmProblem(*one), GATED) for one in GATED_PROBLEMS]
    for problem, finish in jobs:
        if time.monotonic() - begun > asked.seconds:
            break
        row = timed(problem, finish, asked.rounds, asked.compile)
        torch.cuda.empty_cache()
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        ours = row["us"].pop("ours")
        over = {name: median(b / a for a, b in zip(ours, own, strict=True)) for name, own in row["us"].items()}
        print(
            json.dumps({"problem": str(problem), "finish": str(finish), "us": median(ours), "over": over}), flush=True
        )


if __name__ == "__main__":
    main()
