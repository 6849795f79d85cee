"""The question a sweep asks, read from TOML and checked as a whole."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.schema import NAMES

CLUSTER = "cluster"
"""The cluster's two fields as one choice, ``"2x1"``: they vary together."""

Scalar = bool | int | str
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class SpecError(ValueError):
    """The file is not a sweep; the message has one line for each mistake."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemSection(_Section):
    """One problem: m, n, k, and optionally dtype and layouts."""

    m: Count
    n: Count
    k: Count
    dtype: str = "bf16"
    layouts: str = "kk"

    @model_validator(mode="after")
    def _is_problem(self) -> ProblemSection:
        self.problem()
        return self

    def problem(self) -> GemmProblem:
        """As the model's type."""
        return GemmProblem(self.m, self.n, self.k, self.dtype, self.layouts)


class BurstSection(_Section):
    """Protocol of the burst regime, in seconds; see :class:`hopper_gemm.measure.regimes.Burst`."""

    rest: Positive = 0.02
    warm: Positive = 0.002
    timed: Positive = 0.008
    pairs: Count = 15


class SteadySection(_Section):
    """Protocol of the steady regime, in seconds; see :class:`hopper_gemm.measure.regimes.Steady`."""

    settle: Positive = 1.2
    window: Positive = 1.5
    slice: Positive = 0.5
    pairs: Count = 1


class FinalSection(_Section):
    """How the best of each problem and regime is measured again: in fresh processes, so many pairs in each."""

    best: Annotated[int, Field(ge=0)] = 1
    processes: Count = 3
    burst_pairs: Count = 15
    steady_pairs: Count = 2


class TableSection(_Section):
    """Which parameters span the published table."""

    rows: str = "tile_m"
    cols: str = "k_depth"

    @field_validator("rows", "cols")
    @classmethod
    def _is_column(cls, name: str) -> str:
        if name not in NAMES:
            raise ValueError(f"must be a column of the results but got {name!r}")
        return name


class SweepSpec(_Section):
    """A sweep.

    Args:
        name: of the study and its folder.
        question: what it asks, in a sentence or two.
        seed: of the matrices, the sampler and the bootstrap.
        regimes: burst, steady, or both; they are never mixed.
        problems: what is multiplied.
        space: for each parameter one value, or a list of them; the grid is their product. ``cluster = "1x2"`` sets
            both of the cluster's fields.
        lower_to_fit: parameters that are lowered to what the rules allow instead of being refused (``stagger``).
        sampler: how the space is walked.
        burst, steady: protocols.
        final: how the best is measured again.
        table: what spans the published table.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    question: str = ""
    seed: int = 0
    regimes: Annotated[list[Literal["burst", "steady"]], Field(min_length=1)] = ["burst"]
    problems: Annotated[list[ProblemSection], Field(min_length=1)]
    space: dict[str, Scalar | list[Scalar]]
    lower_to_fit: list[Literal["stagger"]] = []
    sampler: Literal["exhaustive"] = "exhaustive"
    burst: BurstSection = BurstSection()
    steady: SteadySection = SteadySection()
    final: FinalSection = FinalSection()
    table: TableSection = TableSection()

    @field_validator("space")
    @classmethod
    def _names_parameters(cls, space: dict[str, Scalar | list[Scalar]]) -> dict[str, Scalar | list[Scalar]]:
        known = [*FIELDS, CLUSTER]
        for name, values in space.items():
            if name not in known:
                raise ValueError(f"{name} is not a kernel parameter; choose among {', '.join(known)}")
            if isinstance(values, list) and not values:
                raise ValueError(f"{name} must have at least one value but got an empty list")
            for value in values if isinstance(values, list) else [values]:
                try:
                    GemmConfig(**fields_of(name, value))
                except ValueError as error:
                    raise ValueError(str(error)) from None
        return space

    @property
    def digest(self) -> str:
        """Tells this question from another under the same name."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def fields_of(name: str, value: Any) -> dict[str, Any]:
    """A choice of the space as fields of the config.

    Raises:
        ValueError: a cluster that is not written as ``"2x1"``.
    """
    if name != CLUSTER:
        return {name: value}
    m, cross, n = str(value).partition("x")
    if not (cross and m.isdigit() and n.isdigit()):
        raise ValueError(f'cluster must be written like "2x1" but got {value!r}')
    return {"cluster_m": int(m), "cluster_n": int(n)}


def read_spec(path: Path) -> SweepSpec:
    """Read a sweep file.

    Raises:
        SpecError: no such file, not TOML, or not a sweep; all mistakes at once, one line each.
    """
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SpecError(f"{path} does not exist; the sweeps lie in sweeps/, such as sweeps/seed-table.toml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from None
    try:
        return SweepSpec(**raw)
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {_line(mistake)}" for mistake in error.errors())) from None
    except TypeError as error:
        raise SpecError(f"{path}: {error}") from None


def _line(mistake: Any) -> str:
    where = ".".join(str(part) for part in mistake["loc"] if not str(part).startswith(("list[", "bool", "int", "str")))
    if mistake["type"] == "extra_forbidden":
        return f"{where} is not a key of a sweep; remove it or mend its spelling"
    if mistake["type"] == "missing":
        return f"{where} is missing"
    text = mistake["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" + ("" if mistake["type"] == "value_error" else f", but got {mistake['input']!r}")
