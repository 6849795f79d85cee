"""``hopper_gemm.autotune``: tune what a program multiplies, from inside the program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import torch

from hopper_gemm.compiler.store import AnyId, KernelId, PaddingId
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.lookup import Pick, find
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import GemmProblem, shown
from hopper_gemm.model.tuned import CHANGES, WARMUP, TunedEntry, own_paths, write_tuned
from hopper_gemm.serve.kernels import CALLED, chip_of, tables_for
from hopper_gemm.serve.prebuild import build
from hopper_gemm.tune.measure.arms import load_any
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import GpuId, describe_current, find_hopper
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.coordinator import Coordinator
from hopper_gemm.tune.run.questions.finals import entry_of
from hopper_gemm.tune.run.questions.sweep import Progress, Sweep
from hopper_gemm.tune.run.questions.tune import FAR, PAIRS, REST, question
from hopper_gemm.tune.run.source import Source
from hopper_gemm.tune.run.task import Job, ratio_of
from hopper_gemm.tune.statistics import Look, Race, noise_floor
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.warmup import say_line

PICKS = 4
"""Picks of the model that are timed of a problem."""

GROUP_PICKS = 16
"""Picks that are timed of a problem of groups, which has no search."""


class Case(NamedTuple):
    """A problem in the context in which it was called."""

    problem: GemmProblem
    context: str

    def __str__(self) -> str:
        problem, rule = self.problem, ", batch-invariant" * self.problem.batch_invariant
        return f"{problem} {problem.dtype} {problem.layouts}, {self.context}{rule}"

    @property
    def searched(self) -> bool:
        """Return True for a single product. Groups and batches have no search: their best picks are timed."""
        return not isinstance(self.problem, GroupedProblem)

    def line(self, entry: TunedEntry) -> str:
        """Return the speedup of an entry with the name of its baseline."""
        grouping = getattr(self.problem, "grouping", "")
        baseline = "torch.mm" if self.searched else "grouped_mm" if grouping in ("rows", "depth") else "torch.bmm"
        return f"{entry.speedup:.3f}x {baseline}"


@dataclass
class Autotuned:
    """What was called within :func:`autotune`, and what was measured of it.

    Args:
        called: problems with their contexts, in the order of their first calls.
        untuned: groups of FP8 that were called, which no table has: the model picks.
        measured: entries that were written to the user's table.
        failed: what has no entry, with the reason.
        seconds: that measuring took.
    """

    seconds_each: float | None
    candidates: int | None
    say: Callable[[str], None]
    called: dict[Case, None] = field(default_factory=dict)
    untuned: dict[Case, None] = field(default_factory=dict)
    measured: list[TunedEntry] = field(default_factory=list)
    failed: dict[Case, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"{len(self.called)} problems called, {len(self.measured)} measured in {self.seconds:.1f} s"]
        if not (self.called or torch.cuda.is_available()):
            lines[0] += "; no GPU is here, and calls that torch runs are not counted"
        for entry in self.measured:
            case = Case(entry.problem, entry.context)
            lines.append(f"  {case}: {entry.config}, {case.line(entry)}")
        return "\n".join([*lines, *(f"  {case} failed: {why}" for case, why in self.failed.items())])

    @property
    def open(self) -> list[Case]:
        """What was called and no table has: neither the entry of a search nor, where nothing is searched, the best of a
        few picks."""
        timed = "tuned", "warmup", "other regime", "k forward", "other type"

        def served(case: Case) -> bool:
            return _pick(case).how in (timed[:1] if self.seconds_each and case.searched else timed)

        return [case for case in self.called if case not in self.failed and not served(case)]

    def measure(self) -> None:
        """Measure what is open, now; the end of the block does. Nothing else should use the GPU meanwhile."""
        if not (cases := self.open):
            return
        if torch.cuda.is_current_stream_capturing():
            self.say(f"{len(cases)} problems are left, since a CUDA graph is captured; call measure() behind it")
            return
        began, device = time.perf_counter(), torch.cuda.current_device()
        torch.cuda.synchronize()
        try:
            searched = [case for case in cases if self.seconds_each and case.searched]
            with _plain_torch():
                _time_picks(self, [case for case in cases if case not in searched], device)
                _search(self, searched, device)
        finally:
            torch.cuda.empty_cache()
            self.seconds += time.perf_counter() - began
            self.say(str(self))


@contextmanager
def autotune(
    seconds: float | None = None, candidates: int | None = None, *, say: Callable[[str], None] = say_line
) -> Iterator[Autotuned]:
    """Context in which the problems that are called are noted, and behind which those that no table has are measured;
    the fastest configs go to the user's own table, which later calls and later processes read.

    Every call counts whose config is looked up: of functions, operators, patched layers and compiled code, forward and
    backward, each in its context (:func:`hopper_gemm.chained`) and batch-invariant if it is; of FP8 in groups, which no
    table has, a line says how many there were. Within the block nothing is measured, unless ``measure()`` of what it
    yields is called between two calls; never while a CUDA graph is captured. An exception in the block ends it without
    measuring.

    Each entry is written as soon as it is measured, and a search keeps every row: a program that was killed goes on
    where it stopped, and one that runs again measures nothing. With several processes on one host let one of them tune.

    Args:
        seconds: search each problem for so long, as ``hopper-gemm tune M N K --seconds`` does, in its folder and by
            processes of their own. None: time the model's best picks alone, in this process, some seconds a problem; a
            search replaces them. Of groups and batches picks are timed in any case.
        candidates: picks to time, :data:`PICKS` by default, :data:`GROUP_PICKS` of groups and batches; of a search the
            configs that it measures at most.
        say: called with lines of progress; by default they go to stderr.

    Returns:
        A context manager of an :class:`Autotuned`, whose ``str()`` is a summary.

    Raises:
        RuntimeError: a CUDA graph is being captured when the block begins.

    Example:
        >>> with hopper_gemm.autotune(seconds=10):                                  # doctest: +SKIP
        ...     for tokens in (1, 16, 256):
        ...         model(torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16))
    """
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise ValueError(f"seconds must be a number above 0 but got {shown(seconds)}; leave it out to time picks alone")
    if candidates is not None and (type(candidates) is not int or candidates < 1):
        raise ValueError(f"candidates must be 1 or more but got {shown(candidates)}")
    if not callable(say):
        raise TypeError(f"say must be called with a line but is {shown(say)}; give a function, or leave it out")
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("autotune must not begin while a CUDA graph is captured; begin it before")
    tuning = Autotuned(seconds, candidates, say)

    def note(problem: GemmProblem, context: str) -> None:
        case = Case(problem, context)
        (tuning.called if case.searched or not problem.is_fp8 else tuning.untuned).setdefault(case)

    CALLED.append(note)
    CHANGES.happened()  # a launch that is kept would not be noted
    try:
        yield tuning
    finally:
        CALLED.remove(note)
    if tuning.untuned:
        say(f"{len(tuning.untuned)} problems of scaled_grouped_mm run as picked: no table has groups of FP8")
    tuning.measure()


@contextmanager
def _plain_torch() -> Iterator[None]:
    """Context without the program's settings of torch: baseline and reference are those of a process of ``tune``."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(0)
    try:
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def _pick(case: Case) -> Pick:
    """Return what matmul runs on the current device."""
    device = torch.cuda.current_device()
    return find(tables_for(device), case.problem, context=case.context, chip=chip_of(device))


# The best picks, timed in this process -----------------------------------------------------------


def _time_picks(tuning: Autotuned, cases: Sequence[Case], device: int) -> None:
    """Compile the picks of all cases on all cores, then time them case by case."""
    if not cases:
        return
    most = {case: tuning.candidates or (PICKS if case.searched else GROUP_PICKS) for case in cases}
    runs = {case: _contenders(case, most[case], device) for case in cases}
    kernels: list[AnyId] = [KernelId.of(config, case.problem) for case, configs in runs.items() for config in configs]
    kernels += [PaddingId() for case in cases if case.problem.padded]
    built = build(list(dict.fromkeys(kernels)), watch=lambda done, of: tuning.say(f"{done} of {of} kernels compiled"))
    bench = Bench(describe_current(), load=load_any)
    for number, (case, configs) in enumerate(runs.items(), 1):
        names = {config: str(KernelId.of(config, case.problem).config) for config in configs}
        reasons = [built.failed[name] for name in names.values() if name in built.failed]
        entry = None
        try:
            compiled = [config for config, name in names.items() if name not in built.failed]
            entry = _fastest(bench, case, compiled, reasons)
        except torch.cuda.OutOfMemoryError as error:
            reasons.append(f"the GPU's memory is full: {str(error).partition(chr(10))[0]}")
        if entry is not None:
            path = own_paths(entry.kind)[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tuned(path, [entry])
        why = "; ".join(dict.fromkeys(reasons)) or "nothing was measured"
        _note(tuning, case, entry, why, f"{number} of {len(runs)}: {case}")


def _contenders(case: Case, most: int, device: int) -> list[Kernel]:
    """Return what matmul runs now, then other binaries that are expected to be fast; chained each of them also
    with programmatic dependent launch, which pays there."""
    first = _pick(case).config
    others = choices(case.problem, most, chip_of(device))
    picks = [first, *(kernel for kernel in others if kernel.compiled() != first.compiled())]
    if case.context == "chained":
        picks = [kernel for pick in picks for kernel in (pick, pick.but(pdl=True))]
    return [*dict.fromkeys(picks)][:most]


def _fastest(bench: Bench, case: Case, configs: Sequence[Kernel], reasons: list[str]) -> TunedEntry | None:
    """Return the entry of the fastest config, timed as a search times it; None, and reasons, where none ran."""
    protocol, best = Burst(pairs=PAIRS, rest=REST), dict[str, Any]()
    points = [Point(case.problem, config, context=case.context) for config in configs]
    for point in points:
        leader = ratio_of(best) if best else None
        outcome = bench.measure(point, protocol, race=Race((Look(1, FAR),), leader))
        if outcome.status != "ok":
            reasons.append(f"{outcome.status.replace('_', ' ')}: {outcome.reason}")
        elif outcome.figures["speedup"] > best.get("speedup", 0.0):
            best = {**outcome.figures, "point": point}
    if not best:
        return None
    control, best_point = bench.measure(points[0].control, protocol), best.pop("point")
    noise = noise_floor(ratio_of(control.figures)) if control.status == "ok" else 0.0
    figures = best | vars(load_any(best_point.config, case.problem).report)
    return entry_of(best_point, figures, noise, study=WARMUP, gpu=bench.device.name, board=bench.device.uuid)


def _note(tuning: Autotuned, case: Case, entry: TunedEntry | None, why: str, said: str) -> None:
    """Note the entry of a case, or why it has none; say so in a line that begins with ``said``."""
    if entry is None:
        tuning.failed[case] = why
    else:
        tuning.measured.append(entry)
    tuning.say(f"{said}: {case.line(entry) if entry else why}")


def time_groups(
    problem: GroupedProblem, context: str, candidates: int | None = None, *, say: Callable[[str], None] = say_line
) -> Autotuned:
    """Time the best picks of groups or a batch, whether or not a table has an entry; the fastest goes to the user's own
    table. Arguments are as of :func:`autotune`."""
    if problem.is_fp8:
        raise ValueError(f"groups are tuned with operands of 16 bits but got {problem.dtype}; the model picks for FP8")
    tuning = Autotuned(None, candidates, say, dict.fromkeys([Case(problem, context)]))
    with _plain_torch():
        _time_picks(tuning, [*tuning.called], torch.cuda.current_device())
    return tuning


# Searches, each in its folder ----------------------------------------------------------------------


def _search(tuning: Autotuned, cases: Sequence[Case], device: int) -> None:
    """Search case by case, by workers that stay; each search is that of ``hopper-gemm tune``."""
    if not cases:
        return
    torch.cuda.empty_cache()  # the measuring processes need memory too
    source, coordinator = Source((_gpu(device),)), None
    try:
        for number, case in enumerate(cases, 1):
            said = f"{number} of {len(cases)}: {case}"
            try:
                sweep = _sweep(tuning, case, source, said)
                if not sweep.finished:
                    tuning.say(f"{said}: a search of {tuning.seconds_each:g} s into {sweep.out}")
                    job = Job("autotune", fresh=sweep.spec.final.fresh)
                    coordinator = coordinator or Coordinator(source.executor(job, tuning.say), tuning.say)
                    coordinator.run(sweep)
                pick = _pick(case)
                entry = pick.entry if pick.how == "tuned" else None
                why = f"no config ran; the rows in {sweep.out} say why"
            except (ValueError, RuntimeError) as error:  # such as a folder in which another process searches
                entry, why = None, str(error)
                if coordinator is not None:
                    coordinator.close()  # its workers may have tasks left
                    coordinator = None
            _note(tuning, case, entry, why, said)
    finally:
        if coordinator is not None:
            coordinator.close()


def _gpu(device: int) -> GpuId:
    """Return the GPU of torch's index, which may count otherwise than NVML does."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return next(gpu for gpu in map(find_hopper, range(torch.cuda.device_count())) if gpu.uuid == uuid)


def _sweep(tuning: Autotuned, case: Case, source: Source, said: str) -> Sweep:
    """Return the search of a case in its folder, or in the next one where that is of another kernel or question."""
    budget = {"seconds": tuning.seconds_each, **({"trials": tuning.candidates} if tuning.candidates else {})}
    spec = question([case.problem], {"contexts": [case.context], "budget": budget})
    last = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > 5.0:  # seconds between two lines
            last = time.monotonic()
            best = "" if progress.best is None else f", best {progress.best:.3f}x torch.mm"
            tuning.say(f"{said}: {progress.row.stage}, {progress.done} configs{best}")

    folder = source.folder(spec)
    for version in count(2):
        try:
            return Sweep(spec, folder, source.provenance, watch=watch, say=tuning.say)
        except ResultsError:
            if version > 9:
                raise
            folder = folder.with_name(f"{spec.name}-{version}")
    raise AssertionError
