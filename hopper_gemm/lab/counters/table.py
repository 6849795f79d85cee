"""The table of a study's counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hopper_gemm.model.config import LEGEND
from hopper_gemm.model.roofline import best_swizzle
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.tables.pivot import markdown

_SHOWN = (
    ("tensor_active_hw", "tensor %", 1.0, "{:.1f}"),
    ("sm_ghz", "GHz", 1.0, "{:.3f}"),
    ("duration_us", "us", 1.0, "{:.1f}"),
    ("dram_read_bytes", "DRAM read GB", 1e-9, "{:.3f}"),
    ("dram_write_bytes", "DRAM write GB", 1e-9, "{:.3f}"),
    ("l2_read_sectors", "L2 read Msectors", 1e-6, "{:.1f}"),
    ("l2_hit_pct", "L2 hit %", 1.0, "{:.1f}"),
    ("l2_read_hit_pct", "L2 read hit %", 1.0, "{:.1f}"),
    ("l2_load_hit_pct", "L2 load hit %", 1.0, "{:.1f}"),
    ("tma_load_bytes", "TMA GB", 1e-9, "{:.2f}"),
    ("shared_bank_reads", "bank reads G", 1e-9, "{:.2f}"),
    ("executed", "instructions M", 1e-6, "{:.1f}"),
    ("producer_hit_pct", "producer hit %", 1.0, "{:.1f}"),
    ("consumer_hit_pct", "consumer hit %", 1.0, "{:.1f}"),
    ("producer_wait_pct", "producer wait %", 1.0, "{:.1f}"),
    ("consumer_wait_pct", "consumer wait %", 1.0, "{:.1f}"),
)


def counters_table(counted: Iterable[Row]) -> str:
    """Return rows of stage ``counters`` in Markdown, one table for each problem; behind each raster stands the swizzle
    that theory prefers on all SMs of an H200 or H100 SXM."""
    parts: dict[Any, dict[str, list[str]]] = {}
    for row in counted:
        problem, subject = row.point.problem, row.point.subject
        if isinstance(subject, str):
            label, raster = f"cuBLAS {row.figures.get('baseline_kernel', '')}", "-"
        else:
            label, best = str(subject), best_swizzle(subject)
            raster = f"{subject.raster}{subject.swizzle} ({best:.1f})"
        figures = [(row.figures.get(name), scale, form) for name, _, scale, form in _SHOWN]
        shown = ["-" if value is None else form.format(value * scale) for value, scale, form in figures]
        title = f"{problem.m} x {problem.n} x {problem.k} {problem.dtype}"
        parts.setdefault((title, problem), {})[label] = [label, raster, *shown]
    columns = ["kernel", "raster (best swizzle)", *(title for _, title, _, _ in _SHOWN)]
    pages = [f"{title}\n\n{markdown(columns, lines.values())}" for (title, _), lines in parts.items()]
    return "\n\n".join([*pages, f"Configs: {LEGEND}.", ""])
