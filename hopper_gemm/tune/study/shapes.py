"""Lists of problems, read from TOML: the suite that the kernel is judged by, and shapes drawn to see that it is not
tuned to the suite alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.limits import limit_seconds
from hopper_gemm.tune.study.files import suite_file
from hopper_gemm.tune.study.spec import ProblemSection, Section, SpecError, lines_of, read_toml


class ShapeSection(ProblemSection):
    """One problem of a list, as in a sweep."""

    steady: bool = False  # it belongs to the steady regime too
    part: Literal["", "people", "uniform", "ragged"] = ""  # of the map: sizes that people run, log-uniform, or ragged
    family: str = ""  # the model or public list that its size is from
    held_out: bool = False  # nothing is fitted to it
    search: bool = False  # the map's whole space is searched on it


class Shapes(Section):
    """A list of problems."""

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

    def of_regime(self, regime: str, marked: bool = False) -> tuple[GemmProblem, ...]:
        """Return the problems of a regime, in steady state those marked ``steady``; if ``marked``, those to search."""
        chosen = (section for section in self.problems if regime == "burst" or section.steady)
        return tuple(section.problem() for section in chosen if section.search or not marked)


def read_shapes(path: Path | None = None) -> Shapes:
    """Read a list of problems, the suite if no path is given. A SpecError has all mistakes at once, one line each."""
    path = path or suite_file()
    try:
        return Shapes(**read_toml(path, "sweeps/shapes/suite.toml"))
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {line}" for line in lines_of(error, "a list of problems"))) from None


def problems_of(shapes: Path | None, sizes: Sequence[int], regime: str) -> tuple[str, str, tuple[GemmProblem, ...]]:
    """Return name, question and problems of a list, or of sizes: m, n and k of one problem after the other. Without
    either it is the suite. In steady state a list has only the problems that are marked so. SpecError or ValueError for
    a mistake in the file or the sizes; one line each."""
    if sizes:
        if shapes is not None:
            raise ValueError("give the problems as M N K or as a list with --shapes, not both")
        if len(sizes) % 3:
            raise ValueError(f"problems are M N K, one after the other, but got {len(sizes)} numbers")
        triples = zip(*(iter(sizes),) * 3, strict=True)
        return "shapes", "", tuple(dict.fromkeys(GemmProblem(*triple) for triple in triples))
    listed = read_shapes(shapes)
    problems = listed.of_regime(regime)
    if not problems:
        raise ValueError(f"no problem of {listed.name} is marked steady; mark one, or give problems as M N K")
    return listed.name, listed.question, problems


STRATA = (4e-6, 8e-6, 30e-6, 150e-6, float("inf"))
"""Ends of the strata by torch.mm's time, seconds: a stratum begins where the one before it ends."""


def stratum_of(seconds: float) -> int:
    """Return the index of the stratum of a time of torch.mm.

    Example:
        >>> [stratum_of(us * 1e-6) for us in (3, 4, 200)]
        [0, 1, 4]
    """
    return next(index for index, end in enumerate(STRATA) if seconds < end)


def expected_seconds(problem: GemmProblem) -> float:
    """Return the expected time of torch.mm, which sorts problems into strata: roofline and 1.3 us. From 64 us on the
    roofline alone is within 10 % of most recorded times, below it torch.mm takes 1 to 4 us longer."""
    return limit_seconds(problem) + 1.3e-6
