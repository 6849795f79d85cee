"""``hopper_gemm.warmup``: load what a program will multiply, and time a few picks of each problem that nobody tuned."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median

import torch

from hopper_gemm.compiler.padded import behind_padding
from hopper_gemm.compiler.store import AnyId, KernelId, PaddingId
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import GemmProblem, listed, shown, types_of
from hopper_gemm.model.roofline import Chip
from hopper_gemm.model.tuned import WARMUP, TunedEntry, own_paths, slug, write_tuned
from hopper_gemm.serve.checks import DTYPES, check_device
from hopper_gemm.serve.kernels import MODE, chip_of, kernel_for, pick_for
from hopper_gemm.serve.prebuild import build
from hopper_gemm.serve.reference import launch_torch

ROUNDS, UNTIMED = 20, 2
"""Timed launches of each candidate, and launches before these."""

Problems = Iterable[GemmProblem | tuple[int, int, int]]


@dataclass(frozen=True)
class Warmed:
    """The result of a warm-up: problems whose kernel was only loaded, since they have an entry in a tuned table or a
    single candidate; the entries of the others, now in the user's table; problems of which no candidate could be
    compiled, with the reason; and the seconds that it took."""

    loaded: list[GemmProblem]
    timed: list[TunedEntry]
    failed: dict[GemmProblem, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} problems loaded, {len(self.timed)} timed, in {self.seconds:.1f} s"]
        for entry in self.timed:
            lines.append(f"  {_described(entry.problem)}: {entry.config}, {entry.speedup:.3f}x torch.mm")
        return "\n".join([*lines, *(f"  {_described(problem)} failed: {why}" for problem, why in self.failed.items())])


def say_line(line: str) -> None:
    """Print a line of progress to stderr."""
    print(f"hopper-gemm: {line}", file=sys.stderr, flush=True)


def warmup(
    what: torch.nn.Module | Problems,
    candidates: int = 4,
    *,
    tokens: Iterable[int] = (),
    say: Callable[[str], None] = say_line,
) -> Warmed:
    """Load the kernels of problems before they are needed; of each problem without an entry in a tuned table time the
    picks of the model, and keep the fastest in the user's own table.

    Later calls of :func:`hopper_gemm.matmul`, of this process and of later ones, run what was kept. An entry of
    ``hopper-gemm tune`` comes before it and replaces it. What is not in the store is compiled first, as by
    :func:`hopper_gemm.prebuild`, the extension of torch too.

    A launch is timed :data:`ROUNDS` times by events, between copies that fill the L2, beside torch.mm in the same
    rounds. The GPU should be idle otherwise. Once compiled, a problem takes a tenth of a second.

    Args:
        what: :class:`hopper_gemm.GemmProblem`, or (m, n, k) of bf16 operands, both contiguous along k; or a model: its
            ``torch.nn.Linear`` layers of bf16 or fp16. Sizes and layers are batch-invariant problems within
            :func:`hopper_gemm.batch_invariant`.
        candidates: picks to time, the model's first choice among them; 1 only loads that.
        tokens: rows of the activations, with a model: one problem for each count and kind of layer.
        say: called with a line of progress for every problem; by default they go to stderr.

    Raises:
        RuntimeError: no Hopper GPU is current, a CUDA graph is being captured, the call is within
            :func:`hopper_gemm.chained`, or none of the kernels could be compiled.
        ValueError: no problem, sizes that are no problem, or a model without ``tokens``.

    Example:
        >>> hopper_gemm.warmup([(tokens, 4096, 4096) for tokens in (1, 16, 257)])       # doctest: +SKIP
        >>> hopper_gemm.warmup(model, tokens=(1, 128))                                  # doctest: +SKIP
    """
    began = time.perf_counter()
    rows = listed("tokens", tokens, "numbers of rows")
    if not callable(say):
        raise TypeError(f"say must be called with a line but is {shown(say)}; give a function, or leave it out")
    if type(candidates) is not int or candidates < 1:
        raise ValueError(f"candidates must be 1 or more but got {shown(candidates)}")
    problems = list(dict.fromkeys(_problems(what, rows)))
    if fp8 := [problem for problem in problems if problem.is_fp8]:
        raise ValueError(f"warmup times products of 16 bits but got {fp8[0].dtype}; hopper_gemm.prebuild compiles FP8")
    if groups := [problem for problem in problems if isinstance(problem, GroupedProblem)]:
        raise ValueError(f"warmup times single products but got {groups[0]}; hopper_gemm.autotune times groups")
    device = _ready()
    if not problems:
        raise ValueError("warmup has nothing to multiply; give problems, or a model with nn.Linear of bf16 or fp16")
    chip, runs = chip_of(device), dict[GemmProblem, list[Kernel]]()
    for problem in problems:
        pick = pick_for(problem, device)
        runs[problem] = [pick.config]
        if pick.entry is None or pick.how == "other GPU":  # other binaries that the model expects to be fast
            others = choices(problem, candidates, chip)
            runs[problem] += [kernel for kernel in others if kernel.compiled() != pick.config.compiled()]
            del runs[problem][candidates:]
    kernels: list[AnyId] = [KernelId.of(config, problem) for problem, configs in runs.items() for config in configs]
    kernels += [PaddingId() for problem in problems if problem.padded]
    built = build(list(dict.fromkeys(kernels)), watch=lambda done, total: say(f"{done} of {total} kernels compiled"))
    loaded, timed, failed = list[GemmProblem](), list[TunedEntry](), dict[GemmProblem, str]()
    try:
        for number, (problem, configs) in enumerate(runs.items(), 1):
            binaries = {config: str(KernelId.of(config, problem).config) for config in configs}
            able = [config for config, name in binaries.items() if name not in built.failed]
            if not able:
                failed[problem] = built.failed[binaries[configs[0]]]
            elif len(configs) == 1:
                behind_padding(kernel_for(problem, device, able[0]), problem)
                loaded.append(problem)
            else:
                timed.append(_fastest(problem, able, device, chip))
                line = f"{timed[-1].config}, {timed[-1].speedup:.3f}x torch.mm"
                say(f"{number} of {len(runs)}: {_described(problem)}: {line}")
    finally:
        if timed:
            path = own_paths(slug(torch.cuda.get_device_properties(device).name))[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tuned(path, timed)
    return Warmed(loaded, timed, failed, time.perf_counter() - began)


def _ready() -> int:
    """The current device, if it can be warmed up."""
    if not torch.cuda.is_available():
        raise RuntimeError("warmup times launches on a Hopper GPU but torch sees none; prebuild compiles without one")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("warmup must not run while a CUDA graph is captured; call it before")
    if MODE.context != "isolated":
        raise RuntimeError("warmup times launches between other kernels; call it outside of hopper_gemm.chained()")
    device = torch.cuda.current_device()
    check_device(torch.device("cuda", device))
    return device


def _problems(what: torch.nn.Module | Problems, tokens: Sequence[int]) -> list[GemmProblem]:
    rule = MODE.batch_invariant
    if not isinstance(what, torch.nn.Module):
        return [GemmProblem.of(given, rule) for given in listed("what", what, "problems, or a torch.nn.Module,")]
    if not tokens:
        raise ValueError("tokens must be given with a model, such as (1, 128): the rows of its activations")
    weights = [layer.weight for layer in what.modules() if isinstance(layer, torch.nn.Linear)]
    return [
        GemmProblem(rows, weight.shape[0], weight.shape[1], DTYPES[weight.dtype], batch_invariant=rule)
        for weight in weights
        if weight.dtype in DTYPES
        for rows in tokens
    ]


def _operands(problem: GemmProblem) -> tuple[torch.Tensor, ...]:
    """Random matrices of a problem: a (m, k), b (n, k), out (m, n)."""
    types = {name: dtype for dtype, name in DTYPES.items()} | {"fp32": torch.float32}
    operand, result = (types[name] for name in types_of(problem.dtype))
    a, b = (
        torch.randn((rows, problem.k) if axis == "k" else (problem.k, rows), device="cuda", dtype=operand)
        for rows, axis in zip((problem.m, problem.n), problem.layouts, strict=True)
    )
    out = torch.empty(problem.m, problem.n, device="cuda", dtype=result)
    return a if problem.layouts[0] == "k" else a.t(), b if problem.layouts[1] == "k" else b.t(), out


def _fastest(problem: GemmProblem, configs: Sequence[Kernel], device: int, chip: Chip) -> TunedEntry:
    """The entry of the config whose median time is least, its speedup over torch.mm paired round by round."""
    kernels = [behind_padding(kernel_for(problem, device, config), problem) for config in configs]
    operands = _operands(problem)
    launches = [lambda kernel=kernel: kernel(*operands) for kernel in (launch_torch, *kernels)]
    theirs, *ours = isolated_seconds(launches, ROUNDS, chip.l2_bytes)
    kernel, times = min(zip(kernels, ours, strict=True), key=lambda timed: median(timed[1]))
    speedups = sorted(torch_time / our_time for torch_time, our_time in zip(theirs, times, strict=True))
    middle, gpu = median(theirs), torch.cuda.get_device_properties(device)
    figures = {name: getattr(kernel.report, name) for name in ("registers", "wgmma", "instructions", "code")}
    half = round(0.98 * sqrt(len(speedups)))  # order statistics: 95 % for the median
    return TunedEntry(
        problem=problem,
        regime="burst",
        config=kernel.config,
        speedup=median(speedups),
        speedup_low=speedups[len(speedups) // 2 - half],
        speedup_high=speedups[(len(speedups) - 1) // 2 + half],
        noise=median(abs(seconds - middle) for seconds in theirs) / middle,
        **figures,
        study=WARMUP,
        gpu=gpu.name,
        context="isolated",
        board=f"GPU-{gpu.uuid}",
    )


def isolated_seconds(launches: Sequence[Callable[[], object]], rounds: int, l2_bytes: int) -> list[list[float]]:
    """Seconds of every launch in each timed round, on the current stream of the current device, to rank picks.

    A round runs each launch once, odd rounds in reverse. Before each, a copy reads and writes twice the L2: operands
    are cold, another kernel runs between any two launches, and the host is ahead of the GPU while the copy runs. The
    time between two events includes some microseconds beside the launch, the same for all, so that speedups of short
    launches come out closer to 1; the study's timer is more exact."""
    source, target = (torch.zeros(2 * l2_bytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    marks: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in launches]
    for number in range(UNTIMED + rounds):
        order = list(zip(launches, marks, strict=True))
        for launch, noted in reversed(order) if number % 2 else order:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            target.copy_(source)
            begin.record()
            launch()
            end.record()
            noted.append((begin, end))
    torch.cuda.synchronize()
    return [[begin.elapsed_time(end) / 1e3 for begin, end in noted[UNTIMED:]] for noted in marks]


def _described(problem: GemmProblem) -> str:
    return f"{problem} {problem.dtype} {problem.layouts}{' batch-invariant' * problem.batch_invariant}"
