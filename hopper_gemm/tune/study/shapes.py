"""Lists of problems, read from TOML: the suite that the kernel is judged by, and shapes drawn to see that it is not
tuned to the suite alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.files import suite_file
from hopper_gemm.tune.study.spec import ProblemSection, SpecError, lines_of, read_toml


class ShapeSection(ProblemSection):
    """One problem of a list; as in a sweep, and whether it belongs to the steady regime too."""

    steady: bool = False


class Shapes(BaseModel):
    """A list of problems.

    Args:
        name: of the list, and of the folder of a comparison over it.
        question: what the list is for, in a sentence.
        problems: each once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    question: str = ""
    problems: Annotated[tuple[ShapeSection, ...], Field(min_length=1, max_length=10_000)]

    @field_validator("problems")
    @classmethod
    def _each_once(cls, problems: tuple[ShapeSection, ...]) -> tuple[ShapeSection, ...]:
        times = Counter(section.problem() for section in problems)
        if twice := [problem for problem, count in times.items() if count > 1]:
            raise ValueError(f"must name each problem once but got {twice[0]} twice")
        return problems

    def of_regime(self, regime: str) -> tuple[GemmProblem, ...]:
        """The problems to measure in a regime: all of them in burst, those marked ``steady`` in steady state."""
        return tuple(section.problem() for section in self.problems if regime == "burst" or section.steady)


def read_shapes(path: Path | None = None) -> Shapes:
    """Read a list of problems.

    Args:
        path: of the file, or None for the suite.

    Raises:
        SpecError: no such file, not TOML, or not such a list; all mistakes at once, one line each.
    """
    path = path or suite_file()
    try:
        return Shapes(**read_toml(path))
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {line}" for line in lines_of(error, "a list of problems"))) from None
