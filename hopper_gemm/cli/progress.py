"""Progress of a sweep: a bar on a terminal, plain lines elsewhere; always with the best so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopper_gemm.run.questions.sweep import Progress, Watcher


@contextmanager
def watching(open_points: int) -> Iterator[tuple[Watcher, Callable[[str], None]]]:
    """A watcher for a sweep, and what prints a line beside it, on stderr.

    Args:
        open_points: points to be measured now.
    """
    if sys.stderr.isatty():
        with _bar(open_points) as both:
            yield both
    else:
        yield _lines()


def describe(progress: Progress) -> str:
    """One line on a row."""
    from hopper_gemm.study.space import place_of

    row = progress.row
    if row.ok:
        figures = row.figures
        interval = f"[{figures['speedup_low']:.3f}, {figures['speedup_high']:.3f}]"
        result = f"{figures['speedup']:.3f}x {interval} {figures['tflops']:.0f} TFLOP/s"
    else:
        result = f"{row.status.replace('_', ' ')}: {row.reason}"
    best = "" if progress.best is None else f", best {_goal(progress)}"
    count = f"{progress.worker}: {row.stage} {progress.done}/{progress.total}"
    return f"{count} {place_of(row.point)} {row.point.config}: {result}{best}"


def _goal(progress: Progress) -> str:
    return f"{progress.best:.3f}x" if progress.goal == "speedup" else f"{progress.best:.3f} pJ/FLOP"


def _lines() -> tuple[Watcher, Callable[[str], None]]:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f}s {text}", file=sys.stderr, flush=True)

    return lambda progress: say(describe(progress)), say


@contextmanager
def _bar(open_points: int) -> Iterator[tuple[Watcher, Callable[[str], None]]]:
    from rich import progress as bars
    from rich.console import Console

    from hopper_gemm.study.space import place_of

    columns = (
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.description}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=open_points)

        def watch(progress: Progress) -> None:
            best = "" if progress.best is None else f"best {_goal(progress)}, "
            bar.update(task, description=f"{best}{place_of(progress.row.point)}")
            if progress.row.stage == "sweep":
                bar.advance(task)
            if not progress.row.ok:
                bar.console.print(describe(progress))

        yield watch, bar.console.print
