"""A row: a point, its status, its figures, its samples; as a value and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.point import Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.study.schema import ALIASES, BY_NAME, CARRIED, KEY, NAMES, STAGES, STATUSES

FLAGS = {"true": True, "false": False}


class ResultsError(ValueError):
    """A results folder or file is not what it should be; the message says which, where in it, and what to do."""


class Sample(NamedTuple):
    """A pair of times, microseconds per launch.

    Args:
        process: which process took it.
        ours_us, baseline_us: as measured; isolated with the spacer in them.
        spacer_us: of the spacer alone, in the same round; None where launches are chained.
    """

    process: int
    ours_us: float
    baseline_us: float
    spacer_us: float | None = None

    @property
    def ratio(self) -> float:
        """Speedup: baseline time over ours, the spacer taken off both."""
        spacer = self.spacer_us or 0.0
        return (self.baseline_us - spacer) / (self.ours_us - spacer)


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
    def key(self) -> tuple[str, ...]:
        """What tells it from the other rows of its study, as text."""
        return point_key(self.point, self.stage, self.process)

    def as_dict(self) -> dict[str, Any]:
        """By column name; columns without a value are left out."""
        about = {"study": self.study, "source": self.source, "gpu": self.gpu, "board": self.board}
        told = {"status": self.status, "reason": self.reason, "samples": samples_text(self.samples)}
        return {**about, **point_dict(self.point, self.stage, self.process), **told, **self.figures}


def point_dict(point: Point, stage: str = "sweep", process: int = 0) -> dict[str, Any]:
    """The columns that tell a row from another."""
    problem = point.problem
    return {
        "stage": stage,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype,
        "layouts": problem.layouts,
        "data": point.data,
        "regime": point.regime,
        "context": point.context,
        "against": point.against,
        "process": process,
        **({} if point.config is None else point.config.as_dict()),
    }


def point_key(point: Point, stage: str = "sweep", process: int = 0) -> tuple[str, ...]:
    """The key of a row that answers a point."""
    values = point_dict(point, stage, process)
    return tuple(as_text(values.get(name)) for name in KEY)


def row_of(record: Mapping[str, Any]) -> Row:
    """A row from values by column name: text as a file holds it, or typed. Earlier names and words are understood.

    Raises:
        ValueError: a value is not of its column's kind, or a status, stage or point that nobody knows.
    """
    values = {name: typed(name, value) for name, value in renamed(record).items() if name in BY_NAME}
    for name, column in BY_NAME.items():
        if values.get(name) is None and column.before is not None:
            values[name] = column.before
    config = None
    if values.get("tile_m") is not None and record.get("tile_m") not in (None, ""):
        given = {name: values[name] for name in FIELDS if values.get(name) is not None}
        config = GemmConfig.of(given)
    for name, known in (("status", STATUSES), ("stage", STAGES)):
        if values[name] not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)} but got {values[name]!r}")
    missing = [name for name in ("m", "n", "k", "dtype", "layouts") if values.get(name) is None]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    problem = GemmProblem(*(values[name] for name in ("m", "n", "k", "dtype", "layouts")))
    point = Point(problem, config, values["regime"], values["context"], values["against"], values["data"])
    figures = {name: values[name] for name in CARRIED if values.get(name) not in (None, "")}
    about = {name: values.get(name) or "" for name in ("study", "source", "gpu", "board")}
    told = {"stage": values["stage"], "process": values["process"]}
    return Row(point, values["status"], values["reason"], figures, samples_of(values["samples"]), **told, **about)


def renamed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the column names of now."""
    return {ALIASES.get(name, name): value for name, value in record.items()}


def typed(name: str, value: Any) -> Any:
    """A value in its column's kind; None where it is missing.

    Raises:
        ValueError: it cannot be one.
    """
    if value is None or value == "" or (isinstance(value, float) and value != value) or str(value) == "<NA>":
        return None
    kind = BY_NAME[name].kind
    if not isinstance(value, str):
        value = value.item() if hasattr(value, "item") else value
        if kind == "integer" and isinstance(value, float):
            value = int(value)
        return value
    try:
        if kind == "integer":
            return int(value)
        if kind == "number":
            return float(value)
    except ValueError:
        raise ValueError(
            f"{name} must be {'an integer' if kind == 'integer' else 'a number'} but got {value!r}"
        ) from None
    return FLAGS.get(value, value) if kind == "flag" else value


def as_text(value: Any) -> str:
    """A value as a file holds it: six digits of a figure, nothing for what is missing."""
    if value is None or str(value) == "<NA>" or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def samples_text(samples: tuple[Sample, ...]) -> str:
    """Samples as the column holds them."""
    return " ".join(":".join(as_text(one) for one in sample if one is not None) for sample in samples)


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
            raise ValueError(f"samples must be process:ours_us:baseline_us[:spacer_us] but got {word!r}") from None
    return tuple(found)


def header(rows: list[Row]) -> tuple[str, ...]:
    """The columns that a file of these rows needs, in the schema's order."""
    used = {name for row in rows for name, value in row.as_dict().items() if as_text(value)}
    return tuple(name for name in NAMES if name in used)
