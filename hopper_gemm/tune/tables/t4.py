"""A study in T4, the open results format of the autotuning community, so that other tuners can be run on our data.

T4 is Kernel Tuner's output format and has schemas for results and for metadata, both at version 1.0.0:
https://github.com/KernelTuner/kernel_tuner/tree/master/kernel_tuner/schema/T4. The ``metadata`` of a results file are
those of the later schema in AutoTuningAssociation/autotuning_methodology, which 1.0.0 allows. A file holds one search
space, here one problem in one regime and context: figures of two are never compared. Times are in milliseconds, as
Kernel Tuner writes them; isolated, the spacer is taken off.

Fields of T4 that we do not record are left out, not set to zero: compilation and validation times, and the moment of
each trial (``timestamp`` is the start of the study). ``benchmark`` follows from the protocol and the number of pairs.
``correctness`` is 1 where every element was compared with fp32 and was right, else 0. The finals, measured again in
fresh processes, have no field in T4 and stay in the study's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from hopper_gemm.tune.study.files import write_json
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.provenance import MOMENT
from hopper_gemm.tune.study.reader import Study, read_study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.schema import COLUMNS, TIMED
from hopper_gemm.tune.study.space import place_of

VERSION = "1.0.0"
"""Version of T4's schemas."""

INVALIDITY = {
    "ok": "correct",
    "illegal": "constraints",
    "compile_error": "compile",
    "spilled": "compile",
    "wrong_result": "correctness",
    "timeout": "timeout",
    "crash": "runtime",
    "unstable": "runtime",
    "no_baseline": "runtime",
}
"""T4's word for each of our statuses. A spilled config was compiled and then refused; an unstable one ran, but never
long enough undisturbed."""

UNITS = {
    **{column.name: column.unit for column in COLUMNS},
    **dict.fromkeys(("time", "baseline_time", "baseline_runtimes"), "ms"),
}
"""Units of measurements; empty for ratios, counts and words."""

MEASURED = (
    *("time", "baseline_time"),
    *(column.name for column in TIMED if column.name not in ("time_us", "baseline_us")),
    *("baseline_kernel", "registers", "smem_bytes", "code", "reason", "baseline_runtimes"),
)
"""Measurements, most of them by their columns' own names; ``time`` and ``baseline_time`` are time_us and baseline_us in
milliseconds, ``baseline_runtimes`` the baseline's part of the pairs."""


def results(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows of a group of a sweep as a T4 results document; their pairs become ``runtimes`` and the
    measurement ``baseline_runtimes``, in the same order."""
    provenance, point = study.provenance, rows[0].point
    created = provenance.get("created")
    begun = datetime.strptime(created, MOMENT).isoformat() + "Z" if created else ""
    seconds = _pair_seconds(provenance, point.regime)
    run = {
        "compute_api": "CUDA",
        "device": provenance["gpu"]["name"],
        "autotuner": "hopper-gemm",
        "timestamp": begun,
        "timeunit": "milliseconds",
        "kernel": "gemm",
        "problem": {**asdict(point.problem), "data": point.data},
        "regime": point.regime,
        "context": point.context,
        "baseline": point.against,
        "boards": list(dict.fromkeys(row.board for row in rows)),
        "question": provenance.get("question", "").strip(),
    }
    return {
        "schema_version": VERSION,
        "metadata": run,
        "results": [_result(row, seconds, begun) for row in rows],
    }


def metadata(study: Study) -> dict[str, Any]:
    """Return the provenance as a T4 metadata document."""
    provenance = study.provenance
    versions = provenance.get("versions", {})
    packages = [f"{name}=={version}" for name, version in versions.items() if version and name != "python"]
    return {
        "schema_version": VERSION,
        "metadata": {
            "zenodo": {"title": f"hopper-gemm: {provenance['study']}", "description": provenance.get("question", "")},
            "hardware": {"hardware_description": [provenance["gpu"]]},
            "environment": {"device_query": provenance["gpu"], "requirements": packages},
            "provenance": {
                name: provenance.get(name) for name in ("commit", "kernel", "seed", "protocols", "noise", "source")
            },
        },
    }


def export(folder: Path, out: Path | None = None) -> list[Path]:
    """Write a study as T4; return the files: a results file for each problem, regime and context, and last one of
    metadata.

    The results file is by default ``t4.json`` in the current folder; where there are several, each has its own name,
    such as ``t4-4096x4096x4096-burst-chained.json``. The metadata go into ``t4-metadata.json`` beside it. ResultsError
    if the folder is no study, or has no rows of a sweep, or the files cannot be written."""
    study, target = read_study(folder), out or Path("t4.json")
    if not study.stage("sweep"):
        stages = ", ".join(dict.fromkeys(row.stage for row in study.rows)) or "none"
        raise ResultsError(
            f"T4 needs rows of a sweep but {folder} has {stages}; hopper-gemm export --format csv writes those"
        )
    if target.is_dir():
        inside = target / "t4.json"
        raise ResultsError(f"--out must be a file but {target} is a folder; name one in it, such as {inside}")
    parts = grouped(study.stage("sweep"), lambda row: place_of(row.point))
    written = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for case, rows in parts.items():
            path = target if len(parts) == 1 else _named(target, case.replace(" ", "-"))
            write_json(path, results(study, rows))
            written.append(path)
        path = _named(target, "metadata")
        write_json(path, metadata(study))
    except OSError as error:
        raise ResultsError(f"{target} cannot be written ({error.strerror}); name another file with --out") from None
    return [*written, path]


def _result(row: Row, seconds: float, begun: str) -> dict[str, Any]:
    figures, times = {**row.figures, "reason": row.reason or None}, {}
    for name, column in (("time", "time_us"), ("baseline_time", "baseline_us")):
        if column in figures:
            figures[name] = _milliseconds(figures[column])
    if row.samples and row.ok:
        ours, theirs = zip(*(sample.bare_us for sample in row.samples), strict=True)
        times = {"runtimes": [*map(_milliseconds, ours)], "benchmark": round(1e3 * seconds * len(ours), 3)}
        figures["baseline_runtimes"] = [*map(_milliseconds, theirs)]
    return {
        "timestamp": begun,
        "configuration": {} if row.point.is_baseline else row.point.config.as_dict(),
        "objectives": ["speedup"],
        "times": times,
        "invalidity": INVALIDITY[row.status],
        "correctness": int(row.ok),
        "measurements": [
            {"name": name, "value": figures[name], "unit": UNITS[name]}
            for name in MEASURED
            if figures.get(name) is not None
        ],
    }


def _milliseconds(us: float) -> float:
    return round(us / 1e3, 9)


def _pair_seconds(provenance: Mapping[str, Any], regime: str) -> float:
    """Return the seconds of a pair, both arms, by the protocol."""
    protocol = provenance["spec"].get(regime)
    if protocol is None:
        raise ResultsError(
            f"{provenance['study']}: its provenance lacks spec.{regime}, how long a pair takes; restore it"
        )
    names = ("rest", "warm", "timed") if regime == "burst" else ("settle", "window")
    return 2 * sum(protocol[name] for name in names)


def _named(target: Path, what: str) -> Path:
    return target.with_name(f"{target.stem}-{what}{target.suffix or '.json'}")
