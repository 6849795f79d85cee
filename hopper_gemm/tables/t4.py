"""A study in T4, the open results format of the autotuning community, so that other tuners can be run on our data.

T4 is Kernel Tuner's output format and has schemas for results and for metadata, both at version 1.0.0:
https://github.com/KernelTuner/kernel_tuner/tree/master/kernel_tuner/schema/T4. The ``metadata`` of a results file are
those of the later schema in AutoTuningAssociation/autotuning_methodology, which 1.0.0 allows. A file holds one search
space, here one problem in one regime: figures of two are never compared. Times are in milliseconds, as Kernel Tuner
writes them.

What T4 names and we do not record is left out rather than set to zero: compilation and validation times, and the moment
of each trial (``timestamp`` is when the study was begun). ``benchmark`` follows from the protocol and the number of
pairs. ``correctness`` is 1 where every element was checked against fp32 and was right, else 0. The finals, measured
again in fresh processes, have no place in T4 and stay in ``final.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.model.config import FIELDS
from hopper_gemm.tables.pivot import Group, groups
from hopper_gemm.tables.report import Study, read_study
from hopper_gemm.tables.trials import ResultsError, config_of, read_samples, write_json

VERSION = "1.0.0"
"""Of T4's schemas."""

INVALIDITY = {
    "ok": "correct",
    "illegal": "constraints",
    "compile_error": "compile",
    "spilled": "compile",
    "wrong_result": "correctness",
    "timeout": "timeout",
    "crash": "runtime",
    "unstable": "runtime",
}
"""T4's word for each of our statuses. What spilled was compiled and then refused; what was unstable ran, but never long
enough undisturbed."""

UNITS = {
    "time": "ms",
    "cublas_time": "ms",
    "tflops": "TFLOP/s",
    "sm_mhz": "MHz",
    "cublas_sm_mhz": "MHz",
    "watts": "W",
    "cublas_watts": "W",
    "pj_per_flop": "pJ/FLOP",
    "cublas_pj_per_flop": "pJ/FLOP",
    "tensor_active": "%",
    "smem_bytes": "B",
    "cublas_runtimes": "ms",
}
"""Of measurements; the others are ratios, counts or words."""

MEASURED = (
    "speedup",
    "speedup_low",
    "speedup_high",
    "pairs",
    "processes",
    "tflops",
    "sm_mhz",
    "cublas_sm_mhz",
    "watts",
    "cublas_watts",
    "pj_per_flop",
    "cublas_pj_per_flop",
    "tensor_active",
    "rel_err",
    "cublas_kernel",
    "registers",
    "smem_bytes",
    "code",
    "reason",
)
"""Columns that become measurements by their own names; time_us and cublas_us become ``time`` and ``cublas_time``."""


def results(study: Study, group: Group, rows: pd.DataFrame, samples: pd.DataFrame) -> dict[str, Any]:
    """One problem and regime as a T4 results document.

    Args:
        study: that the rows are of.
        group: problem, data, regime.
        rows: of the group.
        samples: pairs of times, as :func:`hopper_gemm.tables.trials.read_samples` gives them; they become ``runtimes``
            and the measurement ``cublas_runtimes``, in the same order.
    """
    about = study.provenance
    begun = datetime.strptime(about["created"], "%Y-%m-%d %H:%M UTC").isoformat() + "Z"
    objectives = about["spec"].get("objective", ["speedup"])
    pairs = _pairs(group, samples)
    seconds = _pair_seconds(about, group.regime)
    found = [
        _result(row, pairs.get(str(config_of(row))), seconds, begun, objectives) for row in rows.to_dict("records")
    ]
    run = {
        "compute_api": "CUDA",
        "device": about["gpu"]["name"],
        "autotuner": "hopper-gemm",
        "timestamp": begun,
        "timeunit": "milliseconds",
        "kernel": "gemm",
        "problem": {"m": group.m, "n": group.n, "k": group.k, "dtype": group.dtype, "data": group.data},
        "regime": group.regime,
        "question": about.get("question", "").strip(),
    }
    return {"schema_version": VERSION, "metadata": run, "results": found}


def metadata(study: Study) -> dict[str, Any]:
    """Where the figures come from, as a T4 metadata document: what provenance knows, nothing of this machine."""
    about = study.provenance
    packages = [f"{name}=={of}" for name, of in about.get("versions", {}).items() if of and name != "python"]
    return {
        "schema_version": VERSION,
        "metadata": {
            "zenodo": {"title": f"hopper-gemm: {about['study']}", "description": about.get("question", "")},
            "hardware": {"hardware_description": [about["gpu"]]},
            "environment": {"device_query": about["gpu"], "requirements": packages},
            "provenance": {
                name: about.get(name) for name in ("commit", "kernel", "seed", "protocols", "noise", "source")
            },
        },
    }


def export(folder: Path, out: Path | None = None) -> list[Path]:
    """Write a study as T4: a results file for each problem and regime, and one of metadata.

    Args:
        folder: of the study.
        out: the results file, by default ``t4.json`` in the current folder; where the study has several problems or
            regimes each has its file, such as ``t4-4096x4096x4096-burst.json``. The metadata go beside it, into
            ``t4-metadata.json``.

    Returns:
        The files, the metadata last.

    Raises:
        ResultsError: the folder is no study, or the files cannot be written.
    """
    study = read_study(folder)
    target = out or Path("t4.json")
    if target.is_dir():
        raise ResultsError(
            f"--out must be a file but {target} is a folder; name one in it, such as {target / 't4.json'}"
        )
    samples = read_samples(folder)
    parts = groups(study.trials)
    written = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for group, rows in parts:
            path = target if len(parts) == 1 else _named(target, group.label.replace(" ", "-"))
            write_json(path, results(study, group, rows, samples))
            written.append(path)
        path = _named(target, "metadata")
        write_json(path, metadata(study))
    except OSError as error:
        raise ResultsError(f"{target} cannot be written ({error.strerror}); name another file with --out") from None
    return [*written, path]


def _result(
    row: Mapping[str, Any], pairs: pd.DataFrame | None, seconds: float, begun: str, objectives: list[str]
) -> dict[str, Any]:
    times: dict[str, Any] = {}
    measurements = []
    for name, column in (("time", "time_us"), ("cublas_time", "cublas_us")):
        if not pd.isna(row[column]):
            measurements.append(_measurement(name, round(row[column] / 1e3, 9)))
    measurements += [_measurement(name, row[name]) for name in MEASURED if not pd.isna(row[name]) and row[name] != ""]
    if pairs is not None and row["status"] == "ok":
        times["runtimes"] = [round(us / 1e3, 9) for us in pairs["ours_us"]]
        theirs = [round(us / 1e3, 9) for us in pairs["cublas_us"]]
        measurements.append({"name": "cublas_runtimes", "value": theirs, "unit": UNITS["cublas_runtimes"]})
        times["benchmark"] = round(1e3 * seconds * len(pairs), 3)
    return {
        "timestamp": begun,
        "configuration": {name: _plain(row[name]) for name in FIELDS},
        "objectives": objectives,
        "times": times,
        "invalidity": INVALIDITY[row["status"]],
        "correctness": 1 if row["status"] == "ok" else 0,
        "measurements": measurements,
    }


def _measurement(name: str, value: Any) -> dict[str, Any]:
    return {"name": name, "value": _plain(value), "unit": UNITS.get(name, "")}


def _pairs(group: Group, samples: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The sweep's pairs of one group, by the config's label."""
    of = {"m": group.m, "n": group.n, "k": group.k, "data": group.data, "regime": group.regime, "stage": "sweep"}
    chosen = samples[(samples[list(of)] == pd.Series(of)).all(axis=1)]
    return {str(config): part for config, part in chosen.groupby("config", sort=False)}


def _pair_seconds(about: Mapping[str, Any], regime: str) -> float:
    """How long a pair takes by the protocol, both arms."""
    protocol = about["spec"][regime]
    names = ("rest", "warm", "timed") if regime == "burst" else ("settle", "window")
    return 2 * sum(protocol[name] for name in names)


def _named(target: Path, what: str) -> Path:
    return target.with_name(f"{target.stem}-{what}{target.suffix or '.json'}")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
