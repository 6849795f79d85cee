"""A row: a point, its status, its figures, its samples; as a value and as text."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.recipe import problem_from
from hopper_gemm.model.sealed import printable
from hopper_gemm.tune.parameters import FIELDS, WIDEST, all_values
from hopper_gemm.tune.point import Point, Sample
from hopper_gemm.tune.study.schema import BY_NAME, CARRIED, FIGURES, NAMES, REQUIRED, STAGES, STATUSES

FLAGS = {"true": True, "false": False}

SUM = "crc"
"""Last column of a file: CRC-32 of the line of column names, a line break and the row's values. A row that was changed
or torn, or that stands under other names than it was written under, is detected."""

PROBLEM = ("m", "n", "k", "dtype", "layouts", "batch_invariant", "promote", "scales")
WAY = ("regime", "context", "against", "data")
"""Columns of a point: its problem, and how that is measured, in the order of the point's fields."""

ORIGIN = ("study", "source", "gpu", "board")
"""Columns that say where a row comes from."""


class ResultsError(ValueError):
    """A results folder or file is not what it should be; the message says which, where in it, and what to do."""


@dataclass(frozen=True)
class Row:
    """One measured point, as it stands on disk."""

    point: Point
    status: str  # of STATUSES
    reason: str = ""  # why it is not ok; else a remark
    figures: Mapping[str, Any] = field(default_factory=dict)  # by column name, of CARRIED
    samples: tuple[Sample, ...] = ()  # pairs behind the figures; they are part of the row
    stage: str = "sweep"  # of STAGES
    process: int = 0
    study: str = ""
    source: str = "measured"
    gpu: str = ""
    board: str = "unknown"
    # of the baseline's search, for the processes that follow. Not of the file: the provenance notes them.
    finalists: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return True if the row has figures."""
        return self.status == "ok"

    @property
    def key(self) -> RowKey:
        """Key of the row among those of its study. The noise floor is one row for each board."""
        return RowKey(self.stage, self.point, self.process, self.board if self.stage == "control" else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the values by column name; columns without a value are left out."""
        point = self.point
        pairs = (":".join([as_text(value) for value in pair if value is not None]) for pair in self.samples)
        return {
            **{name: getattr(self, name) for name in (*ORIGIN, "stage")},
            **{name: getattr(point.problem, name, "") for name in PROBLEM},
            **{name: getattr(point, name) for name in WAY},
            "process": self.process,
            **({} if point.is_baseline else all_values(point.config)),
            "status": self.status,
            "reason": self.reason,
            "samples": " ".join(pairs),
            **self.figures,
        }

    def line(self, names: Sequence[str] = NAMES) -> str:
        """Return the line of a file that holds it, with its check sum."""
        values = self.as_dict()
        return summed([as_text(values.get(name)) for name in names], names)


class RowKey(NamedTuple):
    """Key of a row among those of its study; ``board`` only where rows differ by it."""

    stage: str
    point: Point
    process: int = 0
    board: str = ""


def figures_of(status: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that a row of a status may carry: timings and counts only where it is ok."""
    allowed = CARRIED if status == "ok" else [name for name in CARRIED if name not in FIGURES]
    return {name: figures[name] for name in allowed if as_text(figures.get(name))}


class RowParser:
    """Parser of the lines of a file with these columns; a parameter without a column stands at its default. Points that
    recur are made once."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._cache: dict[tuple[Any, ...], Any] = {}

    def row(self, values: Sequence[str]) -> Row:
        """Return the row of a line; ValueError if a value is not of its column's kind, or a status, stage or point is
        invalid."""
        shown = [text if text.isprintable() else printable(text) for text in values]
        texts = dict.fromkeys(REQUIRED, "") | dict(zip(self._names, shown, strict=True))
        for name, allowed in (("status", STATUSES), ("stage", STAGES)):
            if texts[name] not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)} but got {texts[name][:40]!r}")
        if missing := [name for name in PROBLEM if name in REQUIRED and not texts[name]]:
            raise ValueError(f"{missing[0]} is missing")
        problem = self._made(problem_from, PROBLEM, texts)
        subject = self._made(_config, FIELDS, texts) if texts.get("tile_m") else texts["against"]
        point = Point(problem, subject, *[texts[name] for name in WAY])
        figures = {name: _CONVERT[name](text) for name in CARRIED if (text := texts.get(name))}
        samples, process = samples_of(texts["samples"]), _CONVERT["process"](texts["process"])
        origin: dict[str, Any] = {name: texts[name] for name in ORIGIN}
        return Row(point, texts["status"], texts["reason"], figures, samples, texts["stage"], process, **origin)

    def _made(self, kind: Callable[..., Any], names: Iterable[str], texts: Mapping[str, str]) -> Any:
        """Return a config or a problem, from the cache if the texts recur."""
        key = tuple([texts.get(name) for name in names])
        if (kind, key) not in self._cache:
            given = {name: _CONVERT[name](text) for name, text in zip(names, key, strict=True) if text}
            self._cache[kind, key] = kind(**given)
        return self._cache[kind, key]


def _config(**values: Any) -> Kernel:
    return resolve(WIDEST(**values)).narrowed()


def _converter(name: str, kind: str) -> Callable[[str], Any]:
    if kind in ("text", "flag"):
        return lambda text: FLAGS.get(text, text) if kind == "flag" else text

    wanted = "an integer" if kind == "integer" else "a finite number"

    def number(text: str) -> float | int:
        try:
            if kind == "integer":
                return int(text)
            if isfinite(value := float(text)):
                return value
        except ValueError:
            pass
        raise ValueError(f"{name} must be {wanted} but got {text[:40]!r}")

    return number


_CONVERT = {name: _converter(name, column.kind) for name, column in BY_NAME.items()}


def as_text(value: Any) -> str:
    """Return a value as a file holds it: six digits of a figure, nothing for none, control characters shown."""
    value = value.item() if hasattr(value, "item") else value  # numpy's as Python's own
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text.isprintable() else printable(" ".join(text.splitlines()))


def header(names: Iterable[str] = NAMES) -> str:
    """Return the first line of a file with these columns, without a line break."""
    return ",".join((*names, SUM))


@lru_cache(8)
def _start(names: tuple[str, ...]) -> int:
    return zlib.crc32(f"{header(names)}\n".encode())


def summed(texts: Sequence[str], names: Sequence[str]) -> str:
    """Return values as a line of CSV, with its check sum as :data:`SUM` and without a line break."""
    line = ",".join(texts)
    if '"' in line or line.count(",") >= len(texts):
        file = io.StringIO()
        csv.writer(file, lineterminator="").writerow(texts)
        line = file.getvalue()
    return f"{line},{zlib.crc32(line.encode(), _start(tuple(names))):08x}"


def values_of(line: str, names: Sequence[str]) -> list[str]:
    """Return the values of a :func:`summed` line without its check sum; ValueError if it has more values or fewer, or
    was changed, or was written under other names."""
    try:
        *values, _ = next(csv.reader([line], strict=True)) if '"' in line else line.split(",")
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if len(values) != len(names):
        raise ValueError(f"{len(values) + 1} values for {len(names) + 1} columns")
    if summed(values, names) != line:
        raise ValueError("the row was changed since it was written")
    return values


def samples_of(text: str) -> tuple[Sample, ...]:
    """Return the samples that a column holds; ValueError if it is no list of samples."""
    samples = []
    for word in text.split():
        parts = word.split(":")
        try:
            samples.append(Sample(int(parts[0]), *map(float, parts[1:])))
        except (TypeError, ValueError):
            raise ValueError(f"samples must be process:ours_us:baseline_us[:spacer_us] but got {word[:40]!r}") from None
    return tuple(samples)
