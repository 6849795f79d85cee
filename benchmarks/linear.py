"""Time linear and swiglu beside torch, beside torch.compile, and beside our plain product, in one process.

``linear`` is a product of an (n, k) weight with a bias and gelu, ``swiglu`` one whose n columns are gate and up. Each
arm is timed in bursts, isolated, in rotating order; the time of the kernel in between is taken off. One line of JSON
for each problem is appended to the file. Nothing else may run on the GPU. From the repository's root::

    python -m benchmarks.linear --out linear.jsonl --compile

``--candidates 5`` also times the five best configs of the model and the best one with pingpong, ``--variants`` the
default config with kernels one step away from the one that is (:mod:`benchmarks.finishes`); both add products with a
bias alone. A table of all
arms follows the last problem. An arm that is wrong is not timed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from benchmarks import finishes, need_hopper
from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.kernels import chip_of, default_config, kernel_for
from hopper_gemm.serve.reference import finished
from hopper_gemm.tune.measure.arms import Arm, Launch, cublas_launch, kernel_launch, seconds_per_launch, touch
from hopper_gemm.tune.measure.correctness import poison
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import MatrixSet, Workload, make_workload
from hopper_gemm.tune.parameters import kernel_digest
from tests.verify.harness import compile_all

PROBLEMS = [(8192, 14336, 4096), (2048, 14336, 4096), (128, 14336, 4096)]
GATED_PROBLEMS = [(m, 2 * n, k) for m, n, k in PROBLEMS]
BIAS_GELU, GATED, BIAS = (
    Epilogue(bias=True, activation="gelu"),
    Epilogue(activation="silu", gated=True),
    Epilogue(bias=True),
)
BIAS_TANH = Epilogue(bias=True, activation="gelu_tanh")

OURS, PLAIN, QUACK = "ours", "plain product", "quack"
"""Names of three arms."""

Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def linear_gelu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The first layer, as a model of torch writes it."""
    return functional.gelu(functional.linear(x, w, bias))


def linear_tanh(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same with the approximate gelu, the one that quack has."""
    return functional.gelu(functional.linear(x, w, bias), approximate="tanh")


def gated(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The second one."""
    gate, up = functional.linear(x, w).chunk(2, -1)
    return functional.silu(gate) * up


def layer_of(finish: Epilogue) -> Layer:
    """A finish as a model of torch writes it."""
    by_activation = {"gelu": linear_gelu, "gelu_tanh": linear_tanh}
    return gated if finish.gated else by_activation.get(finish.activation, functional.linear)


def by_quack(finish: Epilogue) -> Layer | None:
    """A finish by quack's fused call, tuned by its autotuner; None where quack has no such call."""
    from quack.gemm_interface import gemm_act

    if not finish.gated and finish.activation != "gelu_tanh":
        return None
    _let_quack_name_all()
    how = {"activation": "swiglu", "concat_layout": ("B",)} if finish.gated else {"activation": "gelu_tanh_approx"}
    return lambda x, w, bias: gemm_act(x, w.t(), bias=bias, store_preact=False, tuned=True, **how)[1]


def _let_quack_name_all() -> None:
    """Let quack 0.6.5 name its epilogues although the decorators of this DSL hold what it has no name for, such as
    context variables: by their type and name."""
    from quack.gemm_runtime import identity

    known = identity.semantic_value_key

    def key(value: Any, seen: Any) -> Any:
        try:
            return known(value, seen)
        except TypeError:
            return "named", type(value).__qualname__, getattr(value, "__qualname__", getattr(value, "name", ""))

    if known.__module__ == identity.__name__:
        identity.semantic_value_key = key


def kernels(
    problem: GemmProblem, finish: Epilogue, more: Mapping[str, GemmConfig | LoadedKernel]
) -> dict[str, LoadedKernel]:
    """Our kernels of a problem, the default config's first."""
    index = torch.cuda.current_device()
    found = {OURS: kernel_for(problem, index, None, finish)}
    for name, one in more.items():
        found[name] = kernel_for(problem, index, one, finish) if isinstance(one, GemmConfig) else one
    return found


def launches(
    work: Workload,
    finish: Epilogue,
    bias: torch.Tensor | None,
    tuned: bool,
    quack: bool,
    more: Mapping[str, GemmConfig | LoadedKernel],
) -> tuple[dict[str, Launch], dict[str, str]]:
    """Every arm's launch on a set of matrices, ours first; and what is wrong with the first result of others.

    Raises:
        RuntimeError: our own result is wrong.
    """
    problem, index = work.problem, torch.cuda.current_device()
    columns = problem.n // 2 if finish.gated else problem.n
    outputs = {id(one): torch.empty(problem.m, columns, device="cuda", dtype=one.a.dtype) for one in work.sets}
    layer = layer_of(finish)

    def ours(kernel: LoadedKernel) -> Launch:
        return lambda one: kernel(one.a, one.b, outputs[id(one)], bias, None, None)

    def by(call: Layer) -> Launch:
        def launch(one: MatrixSet) -> None:
            call(one.a, one.b, bias)

        return launch

    first = work.sets[0]
    kind = "swiglu" if finish.gated else "linear"
    exact = finished(work.reference, Call(first.a, first.b, bias, finish.activation or None, kind=kind))
    arms, wrong = {}, {}
    for name, launch in {name: ours(kernel) for name, kernel in kernels(problem, finish, more).items()}.items():
        poison(outputs[id(first)])
        launch(first)
        error = float((outputs[id(first)] - exact).norm() / exact.norm())
        if error < 3e-3:
            arms[name] = launch
        elif name == OURS:
            raise RuntimeError(f"{problem} with {finish} must be right but is off by {error:.1e}")
        else:
            wrong[name] = f"off by {error:.1e}"
    arms |= {PLAIN: kernel_launch(kernel_for(problem, index)), "torch.mm": cublas_launch, "eager": by(layer)}
    if tuned:
        compiled = torch.compile(layer, mode="max-autotune-no-cudagraphs", dynamic=False)
        compiled(first.a, first.b, bias)
        arms["compiled"] = by(compiled)
    if quack and (call := by_quack(finish)) is not None:
        try:
            error = float((call(first.a, first.b, bias) - exact).norm() / exact.norm())
        except Exception as raised:  # whatever it meets in another version of the DSL
            wrong[QUACK] = f"{type(raised).__name__}: {str(raised)[:200]}"
        else:
            if error < 3e-3:
                arms[QUACK] = by(call)
            else:
                wrong[QUACK] = f"off by {error:.1e}"
    return arms, wrong


def timed(
    problem: GemmProblem,
    finish: Epilogue,
    rounds: int,
    tuned: bool,
    more: Mapping[str, GemmConfig | LoadedKernel] = MappingProxyType({}),
    *,
    quack: bool = False,
) -> dict[str, Any]:
    """Microseconds of every arm, round by round, without the spacer's; ``more`` are further configs and kernels of
    ours."""
    device, protocol = describe_current(), Burst()
    timer, spacer, work = Timer(device), touch(device.sms), make_workload(problem, device.l2_bytes)
    for one in work.sets:
        one.b.mul_(problem.k**-0.5)  # a power of two: exact
    work.reference.mul_(problem.k**-0.5)
    bias = torch.randn(problem.n, device="cuda").to(work.sets[0].a.dtype) if finish.bias else None
    alone = Arm(spacer, work.sets, seconds_per_launch(spacer, work.sets))
    ready, wrong = launches(work, finish, bias, tuned, quack, more)
    arms = {
        name: Arm(launch, work.sets, seconds_per_launch(launch, work.sets) + alone.seconds, spacer)
        for name, launch in ready.items()
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
    configs = {name: one.as_dict() for name, one in more.items() if isinstance(one, GemmConfig)}
    return {**about, "config": config.as_dict(), **({"configs": configs} if configs else {}), "wrong": wrong, "us": us}


RANKED = 40
"""Configs of the model among which the best one with pingpong is looked for."""


def offered(problem: GemmProblem, finish: Epilogue, count: int) -> dict[str, GemmConfig]:
    """The best configs of the model but the default one, and the best with pingpong, which hides a finish altogether;
    by what tells them apart."""
    default = default_config(problem, 0, finish)
    found = [one for one in choices(problem, RANKED, chip=chip_of(), finish=finish) if one != default] if count else []
    pingpong = [one for one in found[count:] if one.schedule == "pingpong"][:1]
    return {str(one): one for one in [*found[:count], *pingpong]}


def built(jobs: Sequence[tuple[GemmProblem, Epilogue]], count: int, folder: Path | None) -> list[dict[str, Any]]:
    """Compile ahead, on all cores, what every job needs; the further arms of each.

    Args:
        jobs: problems and finishes.
        count: configs of the model.
        folder: of the variants; None for no variants.
    """
    more: list[dict[str, Any]] = [{**offered(*job, count)} for job in jobs]
    wanted = [KernelId.of(default_config(problem, 0, finish), problem, finish=finish) for problem, finish in jobs]
    wanted += [KernelId.of(default_config(problem), problem) for problem, _ in jobs]
    for (problem, finish), configs in zip(jobs, more, strict=True):
        wanted += [KernelId.of(config, problem, finish=finish) for config in configs.values()]
    compile_all(wanted, default_store())
    if folder is not None:
        asked = [
            [(name, default_config(problem, 0, finish), problem, finish) for name in finishes.VARIANTS]
            for problem, finish in jobs
        ]
        found = finishes.compiled_all([one for of in asked for one in of], folder)
        for job, of, configs in zip(jobs, asked, more, strict=True):
            codes = {kernel_for(job[0], 0, None, job[1]).report.code}
            for one in of:
                if one in found and found[one][1].code not in codes:
                    codes.add(found[one][1].code)
                    configs[one[0]] = finishes.loaded(one, found[one])
    return more


def told(row: Mapping[str, Any]) -> str:
    """A table of a row's arms, the fastest first: microseconds, and the speed relative to the plain product."""
    us, plain = row["us"], row["us"][PLAIN]
    lines = [f"{'x'.join(map(str, row['problem']))} {row['finish']}"]
    for name in sorted(us, key=lambda name: median(us[name])):
        over = median(a / b for a, b in zip(plain, us[name], strict=True))
        lines.append(f"  {median(us[name]):9.2f} us  {over:.4f}  {name}")
    return "\n".join([*lines, *(f"  not timed: {name}, {reason}" for name, reason in row["wrong"].items())])


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="also time torch.compile(mode='max-autotune')")
    parser.add_argument("--quack", action="store_true", help="also time quack's fused calls, with the approximate gelu")
    parser.add_argument("--candidates", type=int, default=0, help="time so many of the model's best configs as well")
    parser.add_argument("--variants", action="store_true", help="time variants of the kernel as well")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further problem after so long")
    parser.add_argument("--out", type=Path, required=True, help="file to which the rows are appended")
    asked, begun = parser.parse_args(given), time.monotonic()
    need_hopper()
    jobs = [(GemmProblem(*one), BIAS_GELU) for one in PROBLEMS] + [(GemmProblem(*one), GATED) for one in GATED_PROBLEMS]
    if asked.quack:
        jobs = [*jobs[len(PROBLEMS) :], *((GemmProblem(*one), BIAS_TANH) for one in PROBLEMS), *jobs[: len(PROBLEMS)]]
    if asked.variants or asked.candidates:
        jobs += [(GemmProblem(*one), BIAS) for one in PROBLEMS[:2]]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        more = built(jobs, asked.candidates, Path(scratch) if asked.variants else None)
        for (problem, finish), arms in zip(jobs, more, strict=True):
            if time.monotonic() - begun > asked.seconds:
                break
            row = timed(problem, finish, asked.rounds, asked.compile, arms, quack=asked.quack)
            torch.cuda.empty_cache()
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            rows.append(row)
            print(f"{time.monotonic() - begun:.0f} s: {problem} {finish}", flush=True)
    print("\n".join(map(told, rows)), flush=True)


if __name__ == "__main__":
    main()
