"""Shared by the measuring commands: run a question on GPUs or in a replay, show its progress, publish its pages."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console

from hopper_gemm.cli.app import INTERRUPTED, LINE_SECONDS, fail, stderr
from hopper_gemm.cli.options import gpus_of
from hopper_gemm.cli.reading import show
from hopper_gemm.cli.shorthand import EXPLANATION, wording
from hopper_gemm.tune.measure.device import GpuId, NoHopperError, busy
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.run.question import Question, Recording
from hopper_gemm.tune.run.questions.sweep import Progress, Sweep, Watcher
from hopper_gemm.tune.run.source import Source, find
from hopper_gemm.tune.run.task import Job
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.study.spec import Spec
from hopper_gemm.tune.tables.pivot import interval, words

Say = Callable[[str], None]
Reporter = tuple[Watcher, Say]

ALARMING = ("wrong_result", "timeout", "crash")
"""Statuses that are printed whenever they come."""


def local_source(gpus: str, what: str, instead: str = "") -> Source:
    """Return GPUs of this host, for a command that measures; ``instead`` says what to do without a GPU."""
    try:
        return Source(find(gpus_of(gpus), "cuda")[0])
    except NoHopperError as error:
        raise NoHopperError(f"{str(error).split(';')[0]}; {what} is measured on an H100 or H200{instead}") from None


def name_tenants(gpus: Sequence[GpuId], say: Say, shared: bool = True) -> None:
    """Say which GPUs other processes keep busy.

    Raises:
        NoHopperError: there is one and GPUs may not be shared.
    """
    for tenant in filter(None, map(busy, gpus)):
        if not shared:
            fix = "wait for it, name another with --gpus, or measure all the same with --shared"
            raise NoHopperError(f"{tenant}; {fix}")
        say(f"{tenant}; times measured beside it are not those of an idle GPU")


def run_question(
    question: Question, source: Source, name: str, say: Say, left: Any = None, *, shared: bool = True, **job: Any
) -> None:
    """Run a question; when interrupted, say what is left. First name busy GPUs: an error unless ``shared``."""
    name_tenants(source.gpus, say, shared)
    try:
        run(question, source.executor(Job(name, **job), say), say)
    except KeyboardInterrupt:
        kept = f" with {left.open} to go; what was measured is in {left.out}, run the same command" if left else ""
        fail(f"stopped{kept}", INTERRUPTED)


def conclude(question: Recording, keys: dict[str, Any], note: str, as_json: bool, long: bool = False) -> None:
    """Write the pages of a comparison or a map, and print its table: as JSON beside keys, or with a note below."""
    from hopper_gemm.tune.tables.pages.publish import publish  # loads Matplotlib
    from hopper_gemm.tune.tables.view import view

    for baseline, reason in question.missing.items():
        stderr(f"without {baseline}: {reason}")
    publish(question.out)
    result = view(read_study(question.out))
    if as_json:
        print(json.dumps({"out": str(question.out), **keys, **result.as_dict()}))
        return
    show(result, long=long)
    print(f"\n{note}")


def open_sweep(spec: Spec, source: Source, out: Path | None, **options: Any) -> Sweep:
    """Return a sweep from its source, in its folder; nothing is measured yet."""
    only = None if source.recorded is None else {row.point for row in source.recorded.stage("sweep")}
    return Sweep(spec, out or source.folder(spec), source.provenance, source=source.word, only=only, **options)


def run_sweep(
    spec: Spec, source: Source, out: Path | None, verb: str, say: Say, verbose: bool, long: bool, **options: Any
) -> Path:
    """Run a sweep under a progress bar, write its pages, and return its folder. Progress names the parameters of
    configs if ``long``; else their shorthand is explained first."""
    from hopper_gemm.tune.tables.pages.publish import publish  # loads Matplotlib

    question = open_sweep(spec, source, out, **options)
    plan, trials = question.plan(), options.get("trials")
    say(source.opening(verb, spec.name, question.out))
    if not long:
        say(f"Configs: {EXPLANATION}.")
    if source.recorded is not None and question.unrecorded:
        stderr(f"{question.unrecorded} points are not recorded in {shown(source.recorded.path)} and are left out")
    with watching(plan.open if trials is None else min(trials, plan.open), verbose, long) as (watch, line):
        question.watch, question.say = watch, line
        if not question.finished:
            run_question(question, source, spec.name, line, question, seed=spec.seed, fresh=spec.final.fresh)
    publish(question.out)
    say(f"Written to {shown(question.out)}")
    return question.out


@contextmanager
def watching(open_points: int, verbose: bool = False, long: bool = False) -> Iterator[Reporter]:
    """Give a watcher for a sweep and a printer of lines beside it, on stderr: a bar on a terminal, plain lines
    elsewhere; ``verbose``: a line for every point, ``long``: with the parameters of configs by name."""
    if not sys.stderr.isatty():
        yield _lines(verbose, long)
        return
    columns = (bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeRemainingColumn(), "{task.description}")
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=open_points)

        def watch(progress: Progress) -> None:
            best = "" if progress.best is None else f"best {progress.best:.3f}x, "
            bar.update(task, description=f"{best}{place_of(progress.row.point)}")
            if progress.row.stage == "sweep":
                bar.advance(task)
            if verbose or progress.row.status in ALARMING:
                bar.console.print(describe(progress, long))

        yield watch, bar.console.print


def _lines(verbose: bool, long: bool) -> Reporter:
    started = time.monotonic()
    last_line = started - LINE_SECONDS

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f}s {text}", file=sys.stderr, flush=True)

    def watch(progress: Progress) -> None:
        nonlocal last_line
        now = time.monotonic()
        if verbose or now - last_line >= LINE_SECONDS or progress.row.status in ALARMING:
            last_line = now
            say(describe(progress, long))

    return watch, say


def describe(progress: Progress, long: bool) -> str:
    """Return a row as one line of text; its config with parameters by name if ``long``."""
    row = progress.row
    result = f"{words(row.status)}: {row.reason}"
    if row.ok:
        result = f"{interval(row.figures)} {row.figures['tflops']:.0f} TFLOP/s"
    best = "" if progress.best is None else f", best {progress.best:.3f}x"
    count = f"{progress.worker}: {row.stage} {progress.done}/{progress.total}"
    return wording(long)(f"{count} {place_of(row.point)} {row.point.subject}: {result}{best}")


def summary(folder: Path) -> dict[str, Any]:
    """Return the fastest config of each problem, regime, context and data, for JSON."""
    study = read_study(folder)
    rows, best = study.stage("sweep"), {}
    for row in sorted((row for row in rows if row.ok), key=lambda row: row.figures["speedup"]):
        names = ("tile_m", "tile_n", "k_depth", "stages", "stagger", "speedup", "speedup_low", "speedup_high", "tflops")
        best[place_of(row.point)] = {name: row.as_dict()[name] for name in names}
    status = dict(Counter(row.status for row in rows))
    return {"out": str(folder), "source": study.provenance["source"], "status": status, "best": best}
