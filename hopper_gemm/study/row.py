"""A row: a point, its status, its figures, its samples; as a value and as text."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from hopper_gemm.model.config import FIELDS, PARAMETERS, GemmConfig
from hopper_gemm.model.point import Point, Sample
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.study.schema import ALIASES, BY_NAME, CARRIED, FIGURES, NAMES, STAGES, STATUSES

FLAGS = {"true": True, "false": False}

SUM = "crc"
"""Last column of a file: CRC-32 of the line before it. A line that was changed or torn is told from a whole one."""

KINDS = {"integer": "an integer", "number": "a finite number"}


class ResultsError(ValueError):
    """A results folder or file is not what it should be; the message says which, where in it, and what to do."""


@dataclass(frozen=True)
class Row:
    """One answer, as it stands on disk.

    Args:
        point: what was measured.
        status: of :data:`hopper_gemm.study.schema.STATUSES`.
        reason: why it is not ok; else a remark.
        figures: by column name, of :data:`hopper_gemm.study.schema.CARRIED`.
        samples: pairs behind the figures; they are part of the row.
        stage: of :data:`hopper_gemm.study.schema.STAGES`.
        process: number of the fresh process that measured it.
        study, source, gpu, board: where it comes from.
    """

    point: Point
    status: str
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    stage: str = "sweep"
    process: int = 0
    study: str = ""
    source: str = "measured"
    gpu: str = ""
    board: str = "unknown"

    @property
    def ok(self) -> bool:
        """Whether it has figures."""
        return self.status == "ok"

    @property
    def key(self) -> RowKey:
        """What tells it from the other rows of its study. The noise floor is one row for each board."""
        return RowKey(self.stage, self.point, self.process, self.board if self.stage == "control" else "")

    def as_dict(self) -> dict[str, Any]:
        """Values by column name; columns without a value are left out."""
        point, config = self.point, self.point.config
        return {
            **{name: getattr(self, name) for name in ("study", "source", "gpu", "board", "stage")},
            **{name: getattr(point.problem, name) for name in ("m", "n", "k", "dtype", "layouts")},
            **{name: getattr(point, name) for name in ("data", "regime", "context", "against")},
            "process": self.process,
            **({} if config is None else config.as_dict()),
            "status": self.status,
            "reason": self.reason,
            "samples": samples_text(self.samples),
            **self.figures,
        }

    def line(self, names: Sequence[str] = NAMES) -> str:
        """The line of a file that holds it, with its check sum.

        Args:
            names: the file's columns but the last, :data:`SUM`.
        """
        values = self.as_dict()
        return summed([as_text(values.get(name)) for name in names])


class RowKey(NamedTuple):
    """What tells a row from the others of its study; ``board`` only where it does."""

    stage: str
    point: Point
    process: int = 0
    board: str = ""


def figures_of(status: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of a status may carry: timings and counts only where it is ok."""
    allowed = CARRIED if status == "ok" else [name for name in CARRIED if name not in FIGURES]
    return {name: figures[name] for name in allowed if as_text(figures.get(name))}


class RowParser:
    """Turns the lines of one file into rows. Points that recur are made once.

    Args:
        names: the columns, present names or earlier ones; those that the schema does not know are passed over.
    """

    def __init__(self, names: Iterable[str]) -> None:
        place = {ALIASES.get(name, name): i for i, name in enumerate(names)}
        self._told = [(place.get(name), as_text(BY_NAME[name].before)) for name in _TOLD]
        self._figures = [(name, i, _CONVERT[name]) for name in CARRIED if (i := place.get(name)) is not None]
        self._config = [(name, i, _CONVERT[name]) for name in FIELDS if (i := place.get(name)) is not None]
        self._before = {name: before for name in FIELDS if (before := BY_NAME[name].before) is not None}
        self._tile = place.get("tile_m")
        self._configs: dict[tuple[str, ...], GemmConfig] = {}
        self._problems: dict[tuple[str, ...], GemmProblem] = {}

    def row(self, values: Sequence[str]) -> Row:
        """The row of a line.

        Raises:
            ValueError: a value is not of its column's kind, or a status, stage or point that nobody knows.
        """
        told = [before if i is None else values[i] or before for i, before in self._told]
        status, reason, stage, process, samples = told[:5]
        for name, value, known in (("status", status, STATUSES), ("stage", stage, STAGES)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)} but got {value[:40]!r}")
        point = Point(self._problem(tuple(told[5:10])), self._config_of(values), *told[10:14])
        figures = {name: convert(text) for name, i, convert in self._figures if (text := values[i])}
        number = _CONVERT["process"](process)
        return Row(point, status, reason, figures, samples_of(samples), stage, number, *told[14:])

    def _problem(self, texts: tuple[str, ...]) -> GemmProblem:
        found = self._problems.get(texts)
        if found is None:
            missing = [name for name, text in zip(_TOLD[5:10], texts, strict=True) if not text]
            if missing:
                raise ValueError(f"{missing[0]} is missing")
            sizes = {name: _CONVERT[name](text) for name, text in zip(_TOLD[5:10], texts, strict=True)}
            found = self._problems[texts] = GemmProblem(**sizes)
        return found

    def _config_of(self, values: Sequence[str]) -> GemmConfig | None:
        if self._tile is None or not values[self._tile]:
            return None
        texts = tuple([values[i] for _, i, _ in self._config])
        found = self._configs.get(texts)
        if found is None:
            given = {name: convert(text) for name, i, convert in self._config if (text := values[i])}
            found = self._configs[texts] = GemmConfig(**{**self._before, **given})
        return found


_TOLD = (
    *("status", "reason", "stage", "process", "samples"),
    *("m", "n", "k", "dtype", "layouts"),
    *("regime", "context", "against", "data"),
    *("study", "source", "gpu", "board"),
)


def _converter(name: str, kind: str) -> Callable[[str], Any]:
    if kind in ("text", "flag"):
        words = {**(FLAGS if kind == "flag" else {}), **(PARAMETERS[name].renamed if name in PARAMETERS else {})}
        return lambda text: words.get(text, text)

    def number(text: str) -> float | int:
        try:
            if kind == "integer":
                return int(text)
            if isfinite(value := float(text)):
                return value
        except ValueError:
            pass
        raise ValueError(f"{name} must be {KINDS[kind]} but got {text[:40]!r}")

    return number


_CONVERT = {name: _converter(name, column.kind) for name, column in BY_NAME.items()}


def as_text(value: Any) -> str:
    """A value as a file holds it: six digits of a figure, nothing for what is missing, never a line break."""
    kind = type(value)
    if kind is str:
        return " ".join(value.splitlines()) if "\n" in value or "\r" in value else value
    if kind is int:
        return str(value)
    if value is None or kind.__name__ == "NAType" or value != value:
        return ""
    if kind is float:
        return f"{value:.6g}"
    if kind.__name__ in ("bool", "bool_"):
        return "true" if value else "false"
    return as_text(value.item()) if hasattr(value, "item") else as_text(str(value))


def summed(texts: Sequence[str]) -> str:
    """Values as a line of CSV, with its check sum behind them and without a line break."""
    line = ",".join(texts)
    if '"' in line or line.count(",") >= len(texts):
        file = io.StringIO()
        csv.writer(file, lineterminator="").writerow(texts)
        line = file.getvalue()
    return f"{line},{zlib.crc32(line.encode()):08x}"


def samples_text(samples: tuple[Sample, ...]) -> str:
    """Samples as the column holds them."""
    return " ".join(":".join([as_text(one) for one in sample if one is not None]) for sample in samples)


def samples_of(text: str) -> tuple[Sample, ...]:
    """The other way round.

    Raises:
        ValueError: it is no list of samples.
    """
    found = []
    for word in text.split():
        parts = word.split(":")
        try:
            found.append(Sample(int(parts[0]), *map(float, parts[1:])))
        except (TypeError, ValueError):
            raise ValueError(f"samples must be process:ours_us:baseline_us[:spacer_us] but got {word[:40]!r}") from None
    return tuple(found)
