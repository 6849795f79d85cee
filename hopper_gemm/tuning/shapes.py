"""Lists of problems, read from TOML: the suite that the kernel is judged by, and shapes drawn to see that it is not
tuned to the suite alone."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.places import suite_file
from hopper_gemm.tuning.spec import ProblemSection, SpecError

DRAWN_SEED, DRAWN_COUNT = 2024, 20
"""Of sweeps/shapes/drawn.toml."""

SIDE_MIN, SIDE_MAX = 64, 16384
SKINNY_MAX = 256
"""What a skinny problem's short side, m or n, is drawn up to."""
STEP = 64
"""Sides are rounded to multiples of it, except those of ragged problems."""

KINDS = ("plain", "ragged", "skinny")


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
    problems: Annotated[tuple[ShapeSection, ...], Field(min_length=1)]

    @field_validator("problems")
    @classmethod
    def _each_once(cls, problems: tuple[ShapeSection, ...]) -> tuple[ShapeSection, ...]:
        seen = set()
        for section in problems:
            problem = section.problem()
            if problem in seen:
                raise ValueError(f"must name each problem once but got {problem} twice")
            seen.add(problem)
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
        return Shapes(**tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise SpecError(f"{path} does not exist; lists of problems lie in sweeps/shapes/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {_line(mistake)}" for mistake in error.errors())) from None


def _line(mistake: Any) -> str:
    where = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        return f"{where} is not a key of a list of problems; remove it or mend its spelling"
    if mistake["type"] == "missing":
        return f"{where} is missing"
    text = mistake["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" + ("" if mistake["type"] == "value_error" else f", but got {mistake['input']!r}")


def drawn(seed: int = DRAWN_SEED, count: int = DRAWN_COUNT) -> Iterator[tuple[str, GemmProblem]]:
    """Problems with sides drawn log-uniformly from 64 to 16384: a third plain, a third ragged, a third skinny.

    A ragged one has sides as they fall, n and k no multiples of 8. A skinny one has m or n below 256. All others have
    multiples of 64.

    Args:
        seed: the same seed gives the same problems.
        count: how many.

    Yields:
        Each one's kind, of :data:`KINDS`, and the problem.
    """
    rng = random.Random(seed)

    def side(most: int) -> float:
        return math.exp(math.log(SIDE_MIN) + rng.random() * math.log(most / SIDE_MIN))

    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        sides = [side(SIDE_MAX) for _ in range(3)]
        if kind == "skinny":
            sides[int(2 * rng.random())] = side(SKINNY_MAX)
        if kind == "ragged":
            m, n, k = (round(x) for x in sides)
            n, k = (x + 1 if x % 8 == 0 else x for x in (n, k))
        else:
            m, n, k = (STEP * max(1, round(x / STEP)) for x in sides)
        yield kind, GemmProblem(m, n, k)


def drawn_file() -> str:
    """The text of sweeps/shapes/drawn.toml."""
    lines = [
        f"# {DRAWN_COUNT} problems drawn with seed {DRAWN_SEED} by hopper_gemm.tuning.shapes.drawn; written anew by",
        "# python -c 'from hopper_gemm.tuning.shapes import drawn_file; print(drawn_file(), end=\"\")'",
        'name = "drawn"',
        'question = "Is the kernel ahead only on the suite, or on problems that nobody chose?"',
        "problems = [",
    ]
    for kind, problem in drawn():
        lines.append(f"  {{ m = {problem.m}, n = {problem.n}, k = {problem.k} }},  # {kind}")
    return "\n".join([*lines, "]", ""])
