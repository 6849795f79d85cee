"""Draw problems that nobody chose: ``python -m benchmarks.fresh SEED > FILE.toml``, ten of each of six kinds; with
``--fp8`` of FP8, and with ``--each N`` that many of a kind.

A seed is used once, after everything is fitted: a model that was looked at on its problems can no longer be judged by
them. ``hopper-gemm map --shapes FILE.toml --out results/<gpu>/fresh/SEED`` measures them; the rows become training data
when the next seed is drawn. docs/menu.md shows every seed that was drawn, in order, with what the picks were worth.

Kinds, sizes log-uniform:

* tokens: 1 to 256 rows, weights (n, k) of 512 to 32768 in multiples of 64;
* many: 256 to 16384 rows, weights of 512 to 16384 in multiples of 64;
* square: three equal sides of 256 to 8192 in multiples of 64;
* ragged: sides of 64 to 8192 in multiples of 8;
* deep: m and n of 64 to 2048, k of 8192 to 65536, in multiples of 8;
* wide: m or n of 8 to 512, the other of 4096 to 65536, k of 64 to 8192, in multiples of 8.

The four layouts take turns within a kind. Rows of A contiguous along k may be any number, others a multiple of 8, which
TMA reaches. Those of FP8 lie along k, n in multiples of 16 and k of 128, and take turns among :data:`RECIPES`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from math import log2

from hopper_gemm.model.problem import BLOCK, GemmProblem
from hopper_gemm.model.recipe import ScaledProblem

LAST_SEEDS = ("fresh-28", "fresh-29")
"""Studies of problems that were drawn after the last fit of the model: they judge it, and nothing is fitted to them."""

LAST_OF_FP8 = "fresh-fp8-107"
"""Study of the problems of FP8 that were drawn after it."""

AGAIN = (
    *("seed-table", "ladder", "ladder-on-h100", "ring-on-h100", "2026-11-28-deep-k-at-launch"),
    *("alone-steady", "part-order", "rotate-deep", "rotate-square", "walk", "way-out"),
    *("steady-i", "steady-j", "steady-k", "steady-layers"),
    *("joint", "one-consumer", "consumers", "tilus-grid", "peek", "raster", "ring", "naive-320", "fp16"),
)
"""Studies recorded after the last fit and the last choice of the menu, which leave them out: of those that had been
measured before, they have the archived rows."""

SINCE = ("suite-picks-on-h100", "2026-11-28-suite-picks-of-nine", "2026-11-28-suite-picks-of-88", *AGAIN)
"""Other studies that were recorded since the last fit, which leaves them out."""

KINDS = ("tokens", "many", "square", "ragged", "deep", "wide")
EACH, LAYOUTS = 10, ("kk", "mk", "kn", "mn")
LARGEST = 2**41
"""Most m * n * k: some 6 ms."""

RECIPES = (("tensor", 0), ("row", BLOCK), ("blocks", BLOCK))
"""Scales of FP8 problems, and the elements of k between promotions."""


def drawn(seed: int, each: int = EACH) -> Iterator[tuple[str, GemmProblem]]:
    """Problems with their kinds; the same seed gives the same ones."""
    rng = random.Random(seed)

    def side(least: int, most: int, step: int) -> int:
        return step * max(1, round(2 ** rng.uniform(log2(least), log2(most)) / step))

    def wide() -> tuple[int, int, int]:
        short, long = side(8, 512, 8), side(4096, 65536, 8)
        m, n = rng.sample((short, long), 2)
        return m, n, side(64, 8192, 8)

    kinds: dict[str, Callable[[], tuple[int, int, int]]] = {
        "tokens": lambda: (side(1, 256, 1), side(512, 32768, 64), side(512, 32768, 64)),
        "many": lambda: (side(256, 16384, 1), side(512, 16384, 64), side(512, 16384, 64)),
        "square": lambda: (side(256, 8192, 64),) * 3,
        "ragged": lambda: (side(64, 8192, 8), side(64, 8192, 8), side(64, 8192, 8)),
        "deep": lambda: (side(64, 2048, 8), side(64, 2048, 8), side(8192, 65536, 8)),
        "wide": wide,
    }
    for kind, sides in kinds.items():
        for number in range(each):
            m, n, k = sides()
            while m * n * k > LARGEST:
                m, n, k = sides()
            layouts = LAYOUTS[number % len(LAYOUTS)]
            yield kind, GemmProblem(8 * max(1, round(m / 8)) if layouts[0] == "m" else m, n, k, layouts=layouts)


def drawn_in_fp8(seed: int, each: int = EACH) -> Iterator[tuple[str, ScaledProblem]]:
    """Problems of FP8 with their kinds."""
    for number, (kind, problem) in enumerate(drawn(seed, each)):
        n, k = (max(step, step * round(side / step)) for side, step in ((problem.n, 16), (problem.k, BLOCK)))
        scales, promote = RECIPES[number % len(RECIPES)]
        yield kind, ScaledProblem(problem.m, n, k, "e4m3_bf16", promote=promote, scales=scales)


def shapes(seed: int, each: int = EACH, fp8: bool = False) -> str:
    """The text of a list of problems."""
    lines = [
        f'name = "fresh-{"fp8-" if fp8 else ""}{seed}"',
        'question = "What are picks worth on problems that nobody chose?"',
        "problems = [",
    ]
    for kind, p in dict.fromkeys(drawn_in_fp8(seed, each) if fp8 else drawn(seed, each)):
        recipe = f', dtype = "{p.dtype}", scales = "{p.scales}", promote = {p.promote}' if fp8 else ""
        lines.append(f'  {{ m = {p.m}, n = {p.n}, k = {p.k}, layouts = "{p.layouts}"{recipe}, family = "{kind}" }},')
    return "\n".join([*lines, "]", ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fresh", description=__doc__.partition("\n\n")[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--each", type=int, default=EACH, metavar="N")
    parser.add_argument("--fp8", action="store_true")
    given = parser.parse_args()
    print(shapes(given.seed, given.each, given.fp8), end="")
