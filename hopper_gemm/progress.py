"""Progress of a sweep: a bar on a terminal, plain lines elsewhere; always with the best so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopper_gemm.tuning.campaign import Watcher as CampaignWatcher
    from hopper_gemm.tuning.plan import Progress, Watcher
    from hopper_gemm.tuning.supervisor import Event


@contextmanager
def watching(total: int, open_points: int) -> Iterator[Watcher]:
    """A watcher for a sweep, on stderr.

    Args:
        total: points of the sweep.
        open_points: points to be measured now.
    """
    if sys.stderr.isatty():
        with _bar(open_points) as watch:
            yield watch
    else:
        yield _lines()


def telling() -> CampaignWatcher:
    """A watcher for a list that is tuned: a line on stderr for each event, with the index of its GPU."""
    started = time.monotonic()

    def watch(event: Event) -> None:
        print(f"{time.monotonic() - started:7.1f}s GPU {event.gpu}: {told(event)}", file=sys.stderr, flush=True)

    return watch


def told(event: Event) -> str:
    """One line on what happened on a GPU."""
    if event.progress is not None:
        return describe(event.progress)
    if event.name and event.kind != "died":
        return f"{event.name} {event.kind}{f': {event.text}' if event.text else ''}"
    return event.text


def describe(progress: Progress) -> str:
    """One line on an answer."""
    point, answer = progress.point, progress.answer
    if answer.status == "ok":
        figures = answer.figures
        interval = f"[{figures['speedup_low']:.3f}, {figures['speedup_high']:.3f}]"
        result = f"{figures['speedup']:.3f}x {interval} {figures['tflops']:.0f} TFLOP/s"
    else:
        result = f"{answer.status.replace('_', ' ')}: {answer.reason}"
    best = "" if progress.best is None else f", best {_goal(progress)}"
    count = f"{progress.stage} {progress.done}/{progress.total}"
    return f"{count} {point.place} {point.config}: {result}{best}"


def _goal(progress: Progress) -> str:
    return f"{progress.best:.3f}x" if progress.goal == "speedup" else f"{progress.best:.3f} pJ/FLOP"


def _lines() -> Watcher:
    started = time.monotonic()

    def watch(progress: Progress) -> None:
        print(f"{time.monotonic() - started:7.1f}s {describe(progress)}", file=sys.stderr, flush=True)

    return watch


@contextmanager
def _bar(open_points: int) -> Iterator[Watcher]:
    from rich import progress as bars
    from rich.console import Console

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
            bar.update(task, description=f"{best}{progress.point.place}")
            if progress.stage == "sweep":
                bar.advance(task)
            if progress.answer.status != "ok":
                bar.console.print(describe(progress))

        yield watch
