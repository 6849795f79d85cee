"""Problems that nothing is fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.files import suite_file
from hopper_gemm.tune.study.shapes import STRATA, expected_seconds, stratum_of
from hopper_gemm.tune.study.spec import SpecError, lines_of, read_toml


class HeldOut(BaseModel):
    """Problems that nothing is fitted to: whole families of models, and an octave of m * n * k in every stratum.

    Args:
        weights: (n, k) of a layer's weights, by model. A problem is held out that multiplies such a weight or its
            transpose, or computes its gradient (layouts ``mn``), whoever else uses that size.
        octaves: for each stratum of :data:`STRATA` the exponent e: m * n * k from 2^e up to 2^(e + 1) is held out
            where torch.mm is expected to take a time of that stratum.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: dict[str, tuple[tuple[int, int], ...]]
    octaves: Annotated[tuple[int, ...], Field(min_length=len(STRATA), max_length=len(STRATA))]

    def has(self, problem: GemmProblem) -> bool:
        """Return True if a problem is held out."""
        m, n, k = problem.m, problem.n, problem.k
        sizes = {(n, k), (k, n), *([(m, n)] if problem.layouts == "mn" else [])}
        if any(pair in sizes for pairs in self.weights.values() for pair in pairs):
            return True
        return octave_of(problem) == self.octaves[stratum_of(expected_seconds(problem))]


def octave_of(problem: GemmProblem) -> int:
    """Return the exponent e of the octave, 2^e <= m * n * k < 2^(e + 1)."""
    return (problem.m * problem.n * problem.k).bit_length() - 1


def read_held_out(path: Path | None = None) -> HeldOut:
    """Read what is held out.

    Args:
        path: of the file, or None for sweeps/shapes/held_out.toml.

    Raises:
        SpecError: no such file, not TOML, or not such a list.
    """
    path = path or suite_file().with_name("held_out.toml")
    try:
        return HeldOut(**read_toml(path))
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {line}" for line in lines_of(error, "what is held out"))) from None
