"""Progress of a sweep: a bar on a terminal, plain lines elsewhere; always with the best so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich import progress as bars
from rich.console import Console

from hopper_gemm.cli.app import LINE_SECONDS
from hopper_gemm.cli.shorthand import wording
from hopper_gemm.tune.run.questions.sweep import Progress, Watcher
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.tables.pivot import interval, words

Reporter = tuple[Watcher, Callable[[str], None]]

ALARMING = ("wrong_result", "timeout", "crash")
"""Statuses that are printed whenever they come."""


def watching(open_points: int, verbose: bool = False, long: bool = False) -> AbstractContextManager[Reporter]:
    """Return a watcher for a sweep and a printer of lines beside it, on stderr; ``verbose``: a line for every point,
    ``long``: with the parameters of configs by name."""
    return _bar(open_points, verbose, long) if sys.stderr.isatty() else nullcontext(_lines(verbose, long))


def describe(progress: Progress, long: bool = False) -> str:
    """Return a row as one line of text; its config with parameters by name if ``long``."""
    row = progress.row
    result = f"{words(row.status)}: {row.reason}"
    if row.ok:
        result = f"{interval(row.figures)} {row.figures['tflops']:.0f} TFLOP/s"
    best = "" if progress.best is None else f", best {progress.best:.3f}x"
    count = f"{progress.worker}: {row.stage} {progress.done}/{progress.total}"
    return wording(long)(f"{count} {place_of(row.point)} {row.point.subject}: {result}{best}")


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


@contextmanager
def _bar(open_points: int, verbose: bool, long: bool) -> Iterator[Reporter]:
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
