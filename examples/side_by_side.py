"""Times of several ways to do the same work, taken in turns on one device, and a table of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import progress
import torch

Row = dict[str, Any]


def captured(work: Callable[[], object]) -> Callable[[], object]:
    """The work as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def milliseconds(ways: Mapping[str, Callable[[], object]], device: str, rounds: int = 20) -> dict[str, float]:
    """Median milliseconds of each, the ways in turns; on a GPU by events, with the host a round ahead."""
    times: dict[str, list[Any]] = {name: [] for name in ways}
    for number in range(rounds + 3):
        for name, work in list(ways.items())[:: -1 if number % 2 else 1]:
            if device == "cuda":
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                marks[0].record()
                work()
                marks[1].record()
                times[name].append(marks)
            else:
                began = time.perf_counter()
                work()
                times[name].append(1e3 * (time.perf_counter() - began))
    if device == "cuda":
        torch.cuda.synchronize()
        times = {name: [begin.elapsed_time(end) for begin, end in marks] for name, marks in times.items()}
    return {name: median(taken[3:]) for name, taken in times.items()}


UNCOMPARED = "no Hopper GPU here: torch multiplies on both sides, and no times are compared"


def hopper() -> bool:
    """Return True if the current device is a Hopper GPU; elsewhere torch runs everything."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def device_for(tiny: bool) -> str:
    """Return ``"cuda"`` where there is a GPU, else ``"cpu"``; say what a full size takes without a Hopper GPU."""
    if not tiny and not hopper():
        progress.step("no Hopper GPU here: torch multiplies at full size, for minutes; --tiny ends within one")
    return "cuda" if torch.cuda.is_available() else "cpu"


def show(title: str, rows: Sequence[Row], out: Path | None = None) -> None:
    """Print rows as a Markdown table, and :func:`keep` them."""
    print(f"\n{title}\n")
    names = list(rows[0])
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    for row in rows:
        words = [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()]
        print(f"| {' | '.join(words)} |")
    keep(title, rows, out)


def keep(title: str, rows: Sequence[Row], out: Path | None) -> None:
    """Append rows as a line of JSON to a file if one is given. Of lines with one title the last counts."""
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps({"table": title, **machine(), "rows": rows}) + "\n")


def recorded(title: str, out: Path | None) -> list[Row]:
    """The rows of the newest table with a title that a file has from this kind of device and this torch."""
    lines = out.read_text().splitlines() if out is not None and out.is_file() else []
    tables = [table for table in map(json.loads, lines) if table.items() >= {"table": title, **machine()}.items()]
    return tables[-1]["rows"] if tables else []


def machine() -> dict[str, str]:
    """Device and version of torch with which a table was measured."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": device, "torch": torch.__version__}
