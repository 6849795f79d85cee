"""A table of chapters: what their listings reached here beside what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docs.generate.chapters.build import Built
from docs.generate.pages.chapters import burst

FINE = ("ok", "built")
"""Statuses of a listing that did as it should."""

Row = Mapping[str, Any]
Cells = Mapping[str, Callable[[Row], str]]

RECORDED: Cells = {
    "recorded TFLOP/s": lambda row: f"{burst(row['rung']).tflops:.0f}",
    "recorded over torch.mm": lambda row: f"{burst(row['rung']).speedup:.3f}x",
}
TIMED: Cells = {
    "TFLOP/s": lambda row: f"{row['tflops']:.0f}",
    "over torch.mm": lambda row: f"{row['speedup']:.3f}x",
    "tensor cores busy": lambda row: f"{row['tensor_active']:.0f} %",
    "MHz": lambda row: f"{row['sm_mhz']:.0f}",
    **RECORDED,
}
BUILT: Cells = {
    "registers": lambda row: str(row["registers"]),
    "instructions": lambda row: str(row["instructions"]),
    "wgmma": lambda row: str(row["wgmma"]),
    **RECORDED,
}


def built_rows(built: Mapping[int, Built], rungs: Mapping[int, str]) -> list[dict[str, Any]]:
    """A row for each listing that was built and not run."""
    found: list[dict[str, Any]] = []
    for number, one in built.items():
        about: dict[str, Any] = {"chapter": number, "rung": rungs[number]}
        if one.report is None:
            found.append({**about, "status": "compile_error", "reason": one.error})
        else:
            figures = {name: getattr(one.report, name) for name in ("registers", "instructions", "wgmma", "code")}
            found.append({**about, "status": "built", "reason": "", **figures})
    return found


def table(rows: Sequence[Row]) -> str:
    """A line for each chapter, aligned; what is wrong with a listing stands below.

    Args:
        rows: of one run: all timed, or all built only.
    """
    columns = TIMED if any(row["status"] == "ok" for row in rows) else BUILT
    lines = [["chapter", "kernel", *columns]]
    for row in rows:
        shown = [cell(row) if row["status"] in FINE else "" for cell in columns.values()]
        lines.append([str(row["chapter"]), str(row["rung"]), *shown])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    told = [" | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in lines]
    wrong = [f"chapter {row['chapter']}: {row['status']}: {row['reason']}" for row in rows if row["status"] not in FINE]
    return "\n".join([*(f"| {line} |" for line in told), *wrong])
