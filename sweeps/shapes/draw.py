"""Draws the problems of drawn.toml: ``python sweeps/shapes/draw.py > sweeps/shapes/drawn.toml``."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from hopper_gemm.model.problem import GemmProblem

DRAWN_SEED, DRAWN_COUNT = 2024, 20
"""Of drawn.toml."""

SIDE_MIN, SIDE_MAX = 64, 16384
SKINNY_MAX = 256
"""What a skinny problem's short side, m or n, is drawn up to."""
STEP = 64
"""Sides are rounded to multiples of it, except those of ragged problems."""

KINDS = ("plain", "ragged", "skinny")


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
    """The text of drawn.toml."""
    lines = [
        f"# {DRAWN_COUNT} problems drawn with seed {DRAWN_SEED}; written anew by python sweeps/shapes/draw.py",
        'name = "drawn"',
        'question = "Is the kernel ahead only on the suite, or on problems that nobody chose?"',
        "problems = [",
    ]
    for kind, problem in drawn():
        lines.append(f"  {{ m = {problem.m}, n = {problem.n}, k = {problem.k} }},  # {kind}")
    return "\n".join([*lines, "]", ""])


if __name__ == "__main__":
    print(drawn_file(), end="")
