"""Rows and study folders for the tests of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import FIELDS, config_of
from hopper_gemm.tune.point import Point, Sample
from hopper_gemm.tune.study.files import write_sealed
from hopper_gemm.tune.study.reader import digest_of
from hopper_gemm.tune.study.row import Row, header
from hopper_gemm.tune.study.schema import TIMED

FIGURES: dict[str, Any] = {
    **{column.name: 1.0 for column in TIMED if column.kind == "number"},
    "pairs": 3,
    "processes": 1,
    "time_us": 100.0,
    "baseline_us": 100.0,
    "tflops": 700.0,
    "baseline_kernel": "nvjet",
}
ABOUT: dict[str, Any] = {
    "schema_version": 3,
    "study": "s",
    "question": "Which is the fastest?",
    "source": "measured",
    "created": "2026-11-23 08:00 UTC",
    "seed": 0,
    "rows": "tile_m",
    "cols": "k_depth",
    "gpu": {"name": "NVIDIA H200", "driver": "580"},
    "spec": {"space": {}, "burst": {"rest": 0.02, "warm": 0.002, "timed": 0.008}},
    "noise": {},
}


def row(
    status: str = "ok",
    reason: str = "",
    *,
    sizes: tuple[int, int, int] = (64, 64, 64),
    dtype: str = "bf16",
    baseline: bool = False,
    regime: str = "burst",
    context: str = "isolated",
    against: str = "cublas",
    data: str = "normal",
    board: str = "GPU-1",
    stage: str = "sweep",
    process: int = 0,
    pairs: tuple[tuple[float, float], ...] = (),
    **fields: Any,
) -> Row:
    """A row; keywords that are kernel parameters make its config, the others its figures."""
    config = against if baseline else resolve(config_of({name: fields.pop(name) for name in FIELDS if name in fields}))
    point = Point(GemmProblem(*sizes, dtype), config, regime, context, against, data)
    figures = {**FIGURES, **fields} if status == "ok" and stage != "counters" else fields
    samples = tuple(Sample(process, ours, theirs, 0.0) for ours, theirs in pairs)
    about = {"study": "s", "gpu": "NVIDIA H200", "board": board}
    return Row(point, status, reason, figures, samples, stage, process, **about)


def write_study(folder: Path, *rows: Row, ended: bool = False, **about: Any) -> Path:
    """A results folder with these rows; one that has ended says how many and which."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [header(), *(row.line() for row in rows)]
    about |= {"finished": {"rows": len(rows), "digest": digest_of(lines)}} if ended else {}
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    write_sealed(folder / "provenance.json", {**ABOUT, **about})
    return folder
