"""The columns of a row: names, kinds, units, meaning. One schema for every question, versioned and open.

A row holds one measurement: a :class:`hopper_gemm.tune.point.Point`, its stage, its status, its figures and its
samples. Figures stand only where ``status`` is ``ok``. A file may leave out figures that none of its rows has, and
parameters that stand at their default in all of them; later schemas can so add columns without a new version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.parameters import FIELDS, PARAMETERS, WIDEST

SCHEMA_VERSION = 3
"""Version of the files of a results folder; no other is read."""

STATUSES = {
    "ok": "measured",
    "illegal": "refused by a rule before any compiler was asked",
    "compile_error": "the compiler refused it",
    "spilled": "compiled, but with registers spilled to local memory; not timed",
    "wrong_result": "ran, but the product was wrong; not timed",
    "timeout": "compiling or running took longer than allowed; killed",
    "crash": "the process that ran it died",
    "unstable": "a slowdown or other disturbance voided every try",
    "no_baseline": "the baseline cannot run the problem",
}

STAGES = {
    "sweep": "a point of the study's space",
    "final": "the best points again, in fresh processes",
    "control": "the baseline against itself: the noise floor",
    "compare": "the chosen config against one baseline, in one process",
    "map": "a kernel of the menu on a problem of a map",
    "check": "the recorded kernel against today's",
    "counters": "one launch under the profiler, or metered",
}

Kind = Literal["text", "integer", "number", "flag"]


@dataclass(frozen=True)
class Column:
    """One column; ``unit`` is empty for ratios, counts, words and parameters."""

    name: str
    kind: Kind
    doc: str
    unit: str = ""

    @property
    def type(self) -> str:
        """Type in a typed file, in the words of a Table Schema. A flag that takes words too is a string."""
        if self.kind == "flag":
            return "string" if self.name in PARAMETERS and PARAMETERS[self.name].words else "boolean"
        return "string" if self.kind == "text" else self.kind


_RESOLVED: dict[str, Any] = resolve(WIDEST()).as_dict()
"""The default config as a row holds it: its values have the kinds of their columns."""


def _parameter(name: str) -> Column:
    value = _RESOLVED[name]
    kind: Kind = "flag" if isinstance(value, bool) else "integer" if isinstance(value, int) else "text"
    return Column(name, kind, f"{PARAMETERS[name].doc}; resolved")


IDENTITY = (
    Column("study", "text", "name of the study"),
    Column("stage", "text", "; ".join(f"{name}: {meaning}" for name, meaning in STAGES.items())),
    Column("m", "integer", "rows of A and C"),
    Column("n", "integer", "columns of B and C"),
    Column("k", "integer", "depth of the product"),
    Column("dtype", "text", "bf16 or fp16, of operands and output; others, as e4m3_bf16: operands, then output"),
    Column("layouts", "text", "contiguous axis of A, then of B; kk is BLAS's TN"),
    Column("batch_invariant", "flag", "true if a row's bits may not depend on m; false where the column is missing"),
    Column("promote", "integer", "of FP8, elements of k from one promotion of the sums to the next; 0: fast sums"),
    Column("scales", "text", "of FP8 operands: tensor, row or blocks"),
    Column("data", "text", "how the matrices were filled: normal, uniform in [-1, 1), or zeros"),
    Column("regime", "text", "burst or steady"),
    Column("context", "text", "isolated: another kernel between any two launches; chained: back to back"),
    Column("against", "text", "the baseline; cublas is torch.mm, and of FP8 torch's scaled_mm of the same recipe"),
    Column("process", "integer", "number of the fresh process that measured it"),
    *(_parameter(name) for name in FIELDS),
)

OUTCOME = (
    Column("status", "text", "; ".join(f"{name}: {meaning}" for name, meaning in STATUSES.items())),
    Column("reason", "text", "why the status is not ok; else a remark"),
)

TIMED = (
    Column("speedup", "number", "baseline time over our time, median of the pairs; above 1 we are faster"),
    Column("speedup_low", "number", "lower end of the 95 % interval of its pairs"),
    Column("speedup_high", "number", "upper end of the 95 % interval of its pairs"),
    Column("pairs", "integer", "pairs of times behind the speedup"),
    Column("processes", "integer", "fresh processes that took them"),
    Column("noise", "number", "noise floor: the baseline against itself, as a fraction"),
    Column("time_us", "number", "our median time of a launch, microseconds; isolated: the spacer taken off", "us"),
    Column("baseline_us", "number", "the baseline's, likewise", "us"),
    Column("spacer_us", "number", "isolated: median time of the kernel between two launches, microseconds", "us"),
    Column("tflops", "number", "our rate, 10^12 FLOP/s", "TFLOP/s"),
    Column("sm_mhz", "number", "mean SM clock while ours ran, from cycle counters", "MHz"),
    Column("baseline_sm_mhz", "number", "the same for the baseline", "MHz"),
    Column("watts", "number", "mean power while ours ran; empty in a burst, shorter than a step of the counter", "W"),
    Column("baseline_watts", "number", "the same for the baseline", "W"),
    Column("pj_per_flop", "number", "our energy per operation, picojoules", "pJ/FLOP"),
    Column("baseline_pj_per_flop", "number", "the baseline's", "pJ/FLOP"),
    Column("tensor_active", "number", "percent of the tensor cores' peak at sm_mhz", "%"),
    Column("rel_err", "number", "relative Frobenius error of our product against fp32"),
    Column("baseline_rel_err", "number", "of the baseline's"),
)
"""Figures of a timing."""

COUNTED = (
    Column(
        "tensor_active_hw", "number", "percent of cycles with the tensor cores at work, as the profiler counts it", "%"
    ),
    Column("sm_ghz", "number", "SM clock during the profiled launch", "GHz"),
    Column("duration_us", "number", "duration of the profiled launch", "us"),
    Column("dram_read_bytes", "number", "bytes read from DRAM", "B"),
    Column("dram_write_bytes", "number", "bytes written to DRAM", "B"),
    Column("l2_read_sectors", "number", "32-byte sectors read from the L2"),
    Column("l2_hit_pct", "number", "L2 hits in percent of all accesses", "%"),
    Column("l2_read_hit_pct", "number", "L2 hits in percent of reads", "%"),
    Column("l2_load_hit_pct", "number", "L2 hits in percent of loads from the SMs", "%"),
    Column("tma_load_bytes", "number", "bytes that TMA loaded", "B"),
    Column("shared_bank_reads", "number", "reads of a shared-memory bank"),
    Column("executed", "number", "warp instructions executed"),
    Column("producer_hit_pct", "number", "producer's probes that found the slot empty, percent of stages", "%"),
    Column("consumer_hit_pct", "number", "consumers' probes that found the slot full, percent of stages", "%"),
    Column("producer_wait_pct", "number", "cycles that the producer waited for a slot, percent of its cycles", "%"),
    Column("consumer_wait_pct", "number", "cycles that the consumers waited for a slot, percent of their cycles", "%"),
)
"""Figures of the profiler and of the kernel's own meter."""

ABOUT = (
    Column("baseline_kernel", "text", "kernel that the baseline ran"),
    Column("candidates", "integer", "ways of the baseline among which its fastest was chosen"),
    Column("choice", "text", "the one chosen, in the baseline's words"),
    Column(
        "how",
        "text",
        "how our config was picked: tuned, other regime, other context, k forward, other sizes, other type, other GPU, "
        "warmup, model; map: pick N, drawn",
    ),
    Column(
        "tuned_on",
        "text",
        "the problem, regime and context that it was tuned for, and the GPU if that was of another kind",
    ),
    Column("registers", "integer", "registers per thread at launch"),
    Column("wgmma", "integer", "wgmma instructions in the code"),
    Column("instructions", "integer", "instructions in the code"),
    Column("smem_bytes", "integer", "shared memory of a CTA", "B"),
    Column("code", "text", "digest of the machine code; equal ones are one kernel"),
    Column("source", "text", "measured or replayed"),
    Column("gpu", "text", "name of the GPU"),
    Column("board", "text", "UUID of the GPU's board"),
    Column("samples", "text", "process:ours_us:baseline_us[:spacer_us] of every pair, apart by spaces"),
)

COLUMNS = (*IDENTITY, *OUTCOME, *TIMED, *COUNTED, *ABOUT)
NAMES = tuple(column.name for column in COLUMNS)
BY_NAME = {column.name: column for column in COLUMNS}
FIGURES = tuple(column.name for column in (*TIMED, *COUNTED))
"""Columns that stand only where the status is ok."""

CARRIED = (*FIGURES, *NAMES[NAMES.index("baseline_kernel") : NAMES.index("source")])
"""Columns of a measurement, beside its status."""

REQUIRED = tuple(name for name in NAMES if name not in (*FIELDS, *CARRIED, "batch_invariant", "promote", "scales"))
"""Columns that every file has."""

PAIRS = {"tile": ("tile_m", "tile_n"), "cluster": ("cluster_m", "cluster_n")}
"""Two parameters as one, ``256x128``: a sweep may vary them together, and every reader of rows finds them as a column
beside the two. No file holds them."""
