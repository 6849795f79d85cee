"""Studies of version 1 of the schema in the terms of now: rows in several files, samples in files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.point import Sample
from hopper_gemm.tune.parameters import DEFAULTS, all_values
from hopper_gemm.tune.study.row import ResultsError, Row, RowKey, RowParser
from hopper_gemm.tune.study.schema import ALIASES

FILES = {"trials.csv": "sweep", "final.csv": "final", "compare.csv": "compare", "counters.csv": "counters"}
"""Files that hold rows, with the stage of each."""

COUNTED = {"instructions": "executed"}
"""Columns of counters that another column is called now."""

SAMPLES = {"samples.csv": ("sweep", "final", "control"), "compare-samples.csv": ("compare",)}
"""Files that hold pairs of times, with the stages of each."""

READ = (*FILES, *SAMPLES)
ABOUT = ("compare.json", "counters.json")
"""What stands for the provenance of a comparison, and of counters."""

Records = Iterator[tuple[str, list[str]]]


def read_rows(files: Mapping[str, Records], folder: Path) -> list[Row]:
    """Rows with their samples.

    Args:
        files: place and values of each line, names first, by the names of :data:`READ`.
        folder: where they lie.

    Raises:
        ResultsError: a line is damaged.
    """
    found: dict[RowKey, Row] = {}
    for name, stage in FILES.items():
        if name in files:
            for row in _rows(files[name], stage, folder / name):
                found[row.key] = row
    samples = _samples(files, folder)
    return [replace(row, samples=samples.get(_key(row), ())) for row in found.values()]


def in_terms_of_now(about: dict[str, Any]) -> dict[str, Any]:
    """Provenance of version 1 with the context that it does not name: launches were chained, and so was every place."""
    spec = about.get("spec")
    if isinstance(spec, dict):
        about = {**about, "spec": {**spec, "contexts": spec.get("contexts", ["chained"])}}
    for name in ("noise", "even", "importance"):
        if isinstance(about.get(name), dict):
            about[name] = {_place(place): value for place, value in about[name].items()}
    return about


def _place(place: str) -> str:
    """``4096x4096x4096 burst zeros`` with the context behind the regime."""
    words = place.split()
    return place if "chained" in words else " ".join([*words[:2], "chained", *words[2:]])


def _rows(records: Records, stage: str, path: Path) -> Iterator[Row]:
    names = [COUNTED.get(name, name) if stage == "counters" else name for name in next(records, ("", []))[1]]
    now = [ALIASES.get(name, name) for name in names]
    tile, arm = now.index("tile_m") if "tile_m" in now else None, now.index("arm") if "arm" in now else None
    parser = RowParser([*names, "stage"])
    for place, values in records:
        if arm is not None and tile is not None and values[arm] == "cublas":
            values[tile] = ""
        try:
            yield parser.row([*values, stage])
        except ValueError as error:
            raise ResultsError(f"{path}, {place}: {error}; restore the file") from None


def _samples(files: Mapping[str, Records], folder: Path) -> dict[tuple[str, ...], tuple[Sample, ...]]:
    """Pairs, which stood under the label or the code of the config."""
    found: dict[tuple[str, ...], list[Sample]] = {}
    for name, stages in SAMPLES.items():
        if name not in files:
            continue
        names = next(files[name], ("", []))[1]
        for place, values in files[name]:
            record = dict(zip(names, values, strict=True))
            try:
                stage = record.get("stage", stages[0])
                config = record["config"] if "config" in record else record["code"]
                process = record["process"] if stage == "compare" else "0"
                about = (record.get("data") or "normal", record["regime"], record.get("against", "cublas"), process)
                theirs = record["cublas_us"] if "cublas_us" in record else record["theirs_us"]
                sample = Sample(int(record["process"]), float(record["ours_us"]), float(theirs))
                found.setdefault((stage, record["m"], record["n"], record["k"], *about, config), []).append(sample)
            except (KeyError, ValueError) as error:
                why = f"the column {error} is missing" if isinstance(error, KeyError) else error
                raise ResultsError(f"{folder / name}, {place}: {why}; restore the file") from None
    return {key: tuple(samples) for key, samples in found.items()}


def _key(row: Row) -> tuple[str, ...]:
    point = row.point
    config = row.figures.get("code", "") if row.stage == "compare" else old_label(point.config)
    sizes = (str(point.problem.m), str(point.problem.n), str(point.problem.k))
    process = str(row.process) if row.stage == "compare" else "0"
    return (row.stage, *sizes, point.data, point.regime, point.against, process, config)


LATER = (
    *("persistent", "loads", "stores", "unroll", "ring_state", "arrivals", "full_barriers", "l2_promotion", "split_k"),
    *("swap_ab", "stream_k", "pdl", "reduction", "prefetch", "ctas_per_sm", "multicast", "reverse_k", "pace"),
    *("evict_c", "staging", "scheduler", "skew", "interleave_k", "part_order", "rotate_k", "ring", "waits", "spills"),
)
"""Parameters that a label names where they differ from their defaults, in its order."""


def old_label(config: GemmConfig | None) -> str:
    """The label under which version 1 kept a config's samples."""
    if config is None:
        return "cublas"
    values = all_values(config)
    walk = f"{config.raster}{config.swizzle}{'serp' if config.serpentine else ''}"
    peek = "" if config.peek is False else " peek" if config.peek is True else f" peek-{config.peek}"
    names = {"pdl": "early", "reverse_k": "zigzag"}
    words = {"alternate": "turns", "split": "rows"}
    later = "".join(
        f" {names.get(name, name)}={words.get(value, value) if name == 'multicast' else value}"
        for name in LATER
        if (value := values[name]) != DEFAULTS[name]
    )
    return (
        f"{config.tile_m}x{config.tile_n}x{config.tile_k} s{config.stages} lag{config.stagger} "
        f"{config.consumers}{config.split} {config.schedule[:4]} {config.cluster_m}x{config.cluster_n} {walk} "
        f"epi{config.epi_n}x{config.epi_buffers}{peek}{later}"
    )
