"""``counters.csv``: hardware counters of the configs of a study and of cuBLAS, beside its trials; and the waits that
our kernel counts itself.

The two come from different runs, perhaps of different days: a config may have a row for each, and is read as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.model import hopper
from hopper_gemm.model.roofline import best_swizzle
from hopper_gemm.tables import schema
from hopper_gemm.tables.report import markdown_table
from hopper_gemm.tables.schema import Column
from hopper_gemm.tables.trials import AppendFile, ResultsError, config_of, row_key, whole_rows, with_kinds

FILE, ABOUT = "counters.csv", "counters.json"

ARMS = {"ours": "our kernel", "cublas": "torch.mm; its rows have no kernel parameters"}

_KEY = tuple(name for name in schema.KEY if name != "regime")

PROFILED_COLUMNS = (
    Column("tensor_active_hw", "number", "percent of the cycles in which the tensor cores compute, counted"),
    Column("sm_ghz", "number", "mean SM clock of the launch, GHz"),
    Column("duration_us", "number", "time of one launch under the profiler, microseconds; no substitute for a timing"),
    Column("dram_read_bytes", "number", "bytes read from device memory"),
    Column("dram_write_bytes", "number", "bytes written to device memory before the launch ended"),
    Column("l2_read_sectors", "number", "sectors of 32 bytes read in the L2"),
    Column("l2_hit_pct", "number", "percent of all sectors looked up in the L2 that were there"),
    Column("l2_read_hit_pct", "number", "the same of reads"),
    Column("l2_load_hit_pct", "number", "the same of reads that SMs asked for, here by TMA"),
    Column("tma_load_bytes", "number", "bytes that TMA loads brought into the SMs"),
    Column("shared_bank_reads", "number", "reads of a 4-byte bank of shared memory"),
    Column("instructions", "number", "warp instructions executed"),
)
"""The profiler's figures, by the names that :data:`hopper_gemm.measure.counters.COUNTERS` gives them."""

METERED_COLUMNS = (
    Column("producer_hit_pct", "number", "percent of stages that the producer's probe found empty; only if it peeks"),
    Column("consumer_hit_pct", "number", "percent of stages that the consumer's probe found full; only if it peeks"),
    Column("producer_wait_pct", "number", "percent of the producer's cycles in which it waits for an empty stage"),
    Column("consumer_wait_pct", "number", "percent of the first consumer's cycles in which it waits for a full stage"),
)
"""What our kernel counts itself, by the names of :data:`hopper_gemm.measure.waits.FIGURES`; cuBLAS has none."""

COLUMNS = (
    *(column for column in schema.COLUMNS if column.name in _KEY),
    Column("arm", "text", "; ".join(f"{name}: {meaning}" for name, meaning in ARMS.items())),
    *PROFILED_COLUMNS,
    *METERED_COLUMNS,
    Column("kernel", "text", "name of the kernel that ran"),
    Column("code", "text", "digest of our machine code, as in the trials"),
    Column("note", "text", "figures that the profiler could not count, or took from a second-best metric"),
    Column("gpu", "text", "name of the GPU"),
)
NAMES = tuple(column.name for column in COLUMNS)
PROFILED = tuple(column.name for column in PROFILED_COLUMNS)
METERED = tuple(column.name for column in METERED_COLUMNS)
FIGURES = (*PROFILED, *METERED)
KEY = (*_KEY, "arm")
"""Columns that tell one row from another, ``data`` being empty in all. The regime is none of them: traffic and
instructions depend on neither."""


def counter_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells a row from another, as text; parameters that are missing (cuBLAS has none) are empty.

    Neither the regime nor the data belong to it: everything is counted once, on normal data.
    """
    return (*row_key({**dict.fromkeys(schema.KEY), **row, "regime": "", "data": ""}), str(row["arm"]))


def write_counters(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to the folder's file; they are on the disk when this returns.

    Args:
        folder: of a study; made if need be.
        rows: with the names of :data:`NAMES`; what is missing stays empty.

    Raises:
        ResultsError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"{folder} cannot be made ({error.strerror}); name another folder with --out") from None
    AppendFile(folder / FILE, NAMES).append(rows)


def recorded_keys(folder: Path, figures: Collection[str] = FIGURES) -> set[tuple[str, ...]]:
    """The keys of the rows that the folder has already; none where it has no counters yet.

    Args:
        folder: of a study.
        figures: only rows that have one of these count, such as :data:`PROFILED`.

    Raises:
        ResultsError: the file is not of this version: rows could not be added to it.
    """
    rows = _rows(folder / FILE, older=False) if (folder / FILE).is_file() else []
    return {counter_key(row) for row in rows if any(row[name] for name in figures)}


def read_counters(folder: Path) -> pd.DataFrame:
    """The folder's counters with their kinds; parameters of cuBLAS's rows are missing values.

    Raises:
        ResultsError: there are none, or the file is not of this version.
    """
    path = folder / FILE
    if not path.is_file():
        raise ResultsError(f"{path} does not exist; run hopper-gemm counters on a Hopper GPU first")
    frame = pd.DataFrame(_rows(path, older=True), columns=list(NAMES), dtype=object)
    return with_kinds(frame, COLUMNS)


def with_counters(trials: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Trials with the counters of their config, and those of cuBLAS on their problem, beside their figures.

    Args:
        trials: as :func:`hopper_gemm.tables.trials.read_trials` gives them.
        counters: as :func:`read_counters` gives them.

    Returns:
        The same rows in the same order, with the columns of :data:`FIGURES`, and those of :data:`PROFILED` again with
        ``cublas_`` before each; empty where nothing was counted, or where it was counted of other machine code than
        the trial ran.
    """
    rows = {counter_key(row): row for row in counters.to_dict("records")}
    joined: dict[str, list[Any]] = {name: [] for name in (*FIGURES, *_CUBLAS)}
    for trial in trials.to_dict("records"):
        ours = rows.get(counter_key({**trial, "arm": "ours"}), {})
        codes = {code for code in (trial.get("code"), ours.get("code")) if isinstance(code, str) and code}
        if len(codes) > 1:
            ours = {}
        problem = {name: trial[name] for name in ("m", "n", "k", "dtype", "layouts")}
        theirs = rows.get(counter_key({**problem, "arm": "cublas"}), {})
        for name in FIGURES:
            joined[name].append(ours.get(name))
        for name, figure in _CUBLAS.items():
            joined[name].append(theirs.get(figure))
    figures = {name: pd.array(values, dtype="Float64") for name, values in joined.items()}
    return trials.assign(**figures)


def counters_table(counters: pd.DataFrame, sms: int = hopper.SM_COUNT) -> str:
    """Markdown, one table for each problem; behind each raster stands the swizzle that theory likes best.

    Args:
        counters: as :func:`read_counters` gives them.
        sms: SMs of the GPU.
    """
    parts = []
    for (m, n, k, dtype), part in counters.groupby(["m", "n", "k", "dtype"], sort=False):
        records = part.to_dict("records")
        cells = pd.DataFrame(
            [[_shown(row.get(name), scale, form) for name, _, scale, form in _SHOWN] for row in records],
            columns=[title for _, title, _, _ in _SHOWN],
        )
        cells.insert(0, "raster (best swizzle)", [_raster(row, sms) for row in records])
        cells.index = pd.Index([_label(row) for row in records])
        parts.append(f"{m} x {n} x {k} {dtype}\n\n{markdown_table(cells, 'kernel')}\n")
    return "\n".join(parts)


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
    ("instructions", "instructions M", 1e-6, "{:.1f}"),
    ("producer_hit_pct", "producer hit %", 1.0, "{:.1f}"),
    ("consumer_hit_pct", "consumer hit %", 1.0, "{:.1f}"),
    ("producer_wait_pct", "producer wait %", 1.0, "{:.1f}"),
    ("consumer_wait_pct", "consumer wait %", 1.0, "{:.1f}"),
)

_CUBLAS = {f"cublas_{name}": name for name in PROFILED}


def _shown(value: Any, scale: float, form: str) -> str:
    return "-" if value is None or pd.isna(value) else form.format(value * scale)


def _label(row: Mapping[str, Any]) -> str:
    return f"cuBLAS {row['kernel']}" if row["arm"] == "cublas" else str(config_of(row))


def _raster(row: Mapping[str, Any], sms: int) -> str:
    if row["arm"] == "cublas":
        return "-"
    config = config_of(row)
    return f"{config.raster}{config.swizzle} ({best_swizzle(config, sms):.1f})"


def _rows(path: Path, older: bool) -> list[dict[str, str]]:
    """A file's rows as text, one for each key; a torn last line is passed over.

    Of several rows of one key the later fills in what the earlier lacks, or takes its place where it is of other
    machine code.
    """
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in whole_rows(path, NAMES, "move it away and count again", older=older):
        key = counter_key(row)
        before = rows.get(key, {})
        kept = before if before.get("code") == row["code"] else {}
        rows[key] = {name: row[name] or kept.get(name, "") for name in NAMES}
    return list(rows.values())
