"""What the GPU tests draw. That there is enough of it is tested where there is no GPU, by tests/test_drawn_cases.py."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from tests.gpu.checking import Case
from tests.model.test_legality import drawn_configs

DRAWS = 20_000
SWIZZLES = (1, 2, 4, 8, 11, 16)


def drawn_cases() -> list[Case]:
    """Configs from all over the space, each on a problem of its own, walked in any order."""

    def found() -> Iterable[Case]:
        rng = random.Random(17)
        for config in filter(is_legal, drawn_configs(DRAWS, seed=19)):
            walk = {"raster": rng.choice("mn"), "swizzle": rng.choice(SWIZZLES), "serpentine": rng.random() < 0.5}
            sizes = rng.randint(1, 3000), 8 * rng.randint(1, 400), 8 * rng.randint(1, 300)
            problem = GemmProblem(*sizes, rng.choice(("bf16", "fp16")))
            if is_legal(config, problem):
                yield Case(replace(config, **walk), problem)

    return list(islice(found(), 200))


def fp32_cases(layouts: str) -> list[Case]:
    """Configs with an fp32 output."""

    def found() -> Iterable[Case]:
        rng = random.Random(23)
        for config in drawn_configs(DRAWS, seed=47):
            sizes = (8 * rng.randint(1, 300) for _ in range(3))
            problem = GemmProblem(*sizes, rng.choice(("bf16_fp32", "fp16_fp32")), layouts)
            if is_legal(config, problem):
                yield Case(config, problem)

    return list(islice(found(), 50))


def cases_by_rows(layouts: str) -> list[Case]:
    """Operands contiguous along their rows, on ragged, flat and long problems."""
    ragged = (1024, 1000, 517) if layouts == "mn" else (1024, 1000, 520)
    problems = [GemmProblem(*sizes, layouts=layouts) for sizes in (ragged, (72, 2048, 64), (3000, 264, 2056))]
    legal = filter(is_legal, drawn_configs(DRAWS, seed=41))
    found = (Case(config, problem) for config in legal for problem in problems if is_legal(config, problem))
    return list(islice(found, 120))
