"""The columns of ``trials.csv``: names, kinds, units, meaning. Versioned and open.

A file holds one row per (problem, regime, config). Figures stand only where ``status`` is ``ok``. Columns may be added
without a new version as long as :data:`BEFORE` says what held before there was one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.footprint import resolve

SCHEMA_VERSION = 1

STATUSES = {
    "ok": "measured",
    "illegal": "refused by a rule before any compiler was asked",
    "compile_error": "the compiler refused it",
    "spilled": "compiled, but with registers spilled to local memory; not timed",
    "wrong_result": "ran, but the product was wrong; not timed",
    "timeout": "compiling or running took longer than allowed; killed",
    "crash": "the process that ran it died",
    "unstable": "a slowdown or other disturbance voided every try",
}

Kind = Literal["text", "integer", "number", "flag"]


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: as in the file's first line.
        kind: of its values; a flag is true or false, or a word that refines true.
        doc: meaning and unit.
    """

    name: str
    kind: Kind
    doc: str


_RESOLVED: dict[str, Any] = resolve(GemmConfig()).as_dict()
"""The default config as a row would hold it: its values have the kinds of their columns."""


def _kind(value: Any) -> Kind:
    return "flag" if isinstance(value, bool) else "integer" if isinstance(value, int) else "text"


COLUMNS = (
    Column("study", "text", "name of the sweep"),
    Column("m", "integer", "rows of A and C"),
    Column("n", "integer", "columns of B and C"),
    Column("k", "integer", "depth of the product"),
    Column("dtype", "text", "bf16 or fp16, of operands and output; bf16_fp32 or fp16_fp32: operands, then output"),
    Column("layouts", "text", "contiguous axis of A, then of B; kk is BLAS's TN"),
    Column("data", "text", "how the matrices were filled: normal, uniform in [-1, 1), or zeros"),
    Column("regime", "text", "burst or steady"),
    *(Column(name, _kind(_RESOLVED[name]), f"kernel parameter {name}, resolved") for name in FIELDS),
    Column("status", "text", "; ".join(f"{name}: {meaning}" for name, meaning in STATUSES.items())),
    Column("reason", "text", "why the status is not ok; else whose figures these are, or that wgmma was serialised"),
    Column("speedup", "number", "cuBLAS time over our time, median of the pairs; above 1 we are faster"),
    Column("speedup_low", "number", "lower end of the 95 % bootstrap interval"),
    Column("speedup_high", "number", "upper end of the 95 % bootstrap interval"),
    Column("pairs", "integer", "pairs of times behind the speedup"),
    Column("processes", "integer", "fresh processes that took them"),
    Column("time_us", "number", "our median time of a launch, microseconds"),
    Column("cublas_us", "number", "cuBLAS's median time of a launch, microseconds"),
    Column("tflops", "number", "our rate, 10^12 FLOP/s"),
    Column("sm_mhz", "number", "mean SM clock while ours ran, from cycle counters"),
    Column("cublas_sm_mhz", "number", "the same while cuBLAS ran"),
    Column("watts", "number", "mean power while ours ran; empty in a burst, shorter than a step of the counter"),
    Column("cublas_watts", "number", "the same while cuBLAS ran"),
    Column("pj_per_flop", "number", "our energy per operation, picojoules"),
    Column("cublas_pj_per_flop", "number", "cuBLAS's"),
    Column("tensor_active", "number", "percent of the tensor cores' peak at sm_mhz"),
    Column("rel_err", "number", "relative Frobenius error against fp32"),
    Column("cublas_kernel", "text", "kernel that cuBLAS ran"),
    Column("registers", "integer", "registers per thread at launch"),
    Column("smem_bytes", "integer", "shared memory of a CTA"),
    Column("code", "text", "digest of the machine code; equal ones are one kernel"),
    Column("source", "text", "measured or replayed"),
    Column("gpu", "text", "name of the GPU"),
)

NAMES = tuple(column.name for column in COLUMNS)

PAIRS = {"tile": ("tile_m", "tile_n"), "cluster": ("cluster_m", "cluster_n")}
"""Two parameters as one, ``256x128``: a sweep may vary them together, and every reader of rows finds them as a column
beside the two. No file holds them."""
FIGURES = NAMES[NAMES.index("speedup") : NAMES.index("cublas_kernel")]
"""Columns that stand only where the status is ok."""

CARRIED = (*FIGURES, "cublas_kernel", "registers", "smem_bytes", "code")
"""What a row says of a measurement, beside its status."""

KEY = ("m", "n", "k", "dtype", "layouts", "data", "regime", *FIELDS)
"""Columns that tell one row from another."""

BEFORE: dict[str, Any] = {
    **{name: value for name, value in GemmConfig().as_dict().items() if value == _RESOLVED[name]},
    "data": "normal",
    "code": "",
}
"""What a row holds of a column that its file was written without. A parameter that is left to be resolved has no such
value: what it stood for followed from the rest of its row."""
