"""Kernels beside the menu for numbers of rows between its tiles: a sweep that times them, and a verdict.

    python -m benchmarks.between sweep > between.toml                    # needs no GPU
    hopper-gemm sweep between.toml
    python -m benchmarks.between judge results/local/h200/between       # the best of the menu, and of the others
    python -m benchmarks.between exchange 24 --rows results/local/h200/between    # a menu with 24 kernels exchanged

The problems are the products of a Llama-3-8B layer at 100, 257 and 777 rows. Of each the eight best picks are timed,
and of a space with every width of a tile the kernels outside the menu that the model expects to be fastest: one for
each shape of tile and number of parts.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.held_out import read_held_out
from benchmarks.menu import Case, Searched, plain, searched, shares, summary, text_of, weights_of
from benchmarks.menu import exchanged as exchanged_columns
from hopper_gemm.model.config import DEFAULTS, GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal, pair_reasons
from hopper_gemm.model.lookup import without_pdl
from hopper_gemm.model.menu import Offers, binaries, choices, launches
from hopper_gemm.model.predict import predict, predict_fixed
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, parts_meet
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.tune.run.questions.map import parts_for
from hopper_gemm.tune.study.files import suite_file
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.shapes import read_shapes

SIDES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
PROBLEMS = [GemmProblem(m, n, k) for m in (100, 257, 777) for n, k in SIDES]

SEED, ROWS, LARGEST_N = 29, np.array([65, 1100]), 100_000
"""Seed, least and greatest of the drawn numbers of rows; and the n up to which weights count."""

OFFERED, MISSED = 5, 0.03
"""Kernels outside the menu that each of these problems offers; and the loss of a problem that forbids an exchange."""

PICKS, BEYOND = 8, 16
"""Kernels of a problem: of the menu, and outside of it."""

BROUGHT, CLOSE = 24, 0.1
"""Kernels that an exchange would bring into the menu: timed too where the model expects them to be near the best."""

CLUSTERS = ((1, 1), (2, 1), (1, 2))
WIDTHS = range(8, 257, 8)

HEAD = '''# Numbers of rows between the menu's tiles: written by benchmarks/between.py.
name = "between"
question = """
What do kernels outside the menu gain on the products of a Llama-3-8B layer at 100, 257 and 777 rows, which fill the
last of the menu's tiles badly?
"""
seed = 0
regimes = ["burst"]
contexts = ["isolated"]
skip_illegal = true

[space]
tile = "256x128"

[burst]
rest = 0.01
timed = 0.005
pairs = 5

[race]
far = 0.04

[final]
best = 0

[table]
rows = "tile_m"
cols = "tile_n"
'''


@cache
def wide() -> tuple[Kernel, ...]:
    """Binaries outside the menu, in every width of a tile."""
    found = dict.fromkeys(resolve(one).compiled() for one in _space() if is_legal(one))
    return tuple(one for one in found if one not in set(binaries()))


def _space() -> Iterator[GemmConfig]:
    ways = product(WIDTHS, CLUSTERS, (False, True), (0, 1))
    for tile_n, (cluster_m, cluster_n), swap_ab, stagger in ways:
        how: dict[str, Any] = {"tile_n": tile_n, "swap_ab": swap_ab, "stagger": stagger}
        both: dict[str, Any] = {**how, "cluster_m": cluster_m, "cluster_n": cluster_n}
        for tile_m, k_depth in product((64, 128, 192, 256, 384), (4, 8)):
            yield GemmConfig(tile_m, k_depth=k_depth, epi_n="wide", **both)
        for tile_m in (64, 128):
            yield GemmConfig(tile_m, schedule="pingpong", **both)
            yield GemmConfig(tile_m, ctas_per_sm=2, **both)
        for tile_m in (64, 128, 192, 256):
            yield GemmConfig(tile_m, split_k=2, reduction="workspace", **both)
            if cluster_m == cluster_n:
                yield from (GemmConfig(tile_m, split_k=split_k, **how) for split_k in (2, 4, 8))


@cache
def _offers() -> Offers:
    ways = [(number, way) for number, kernel in enumerate(wide()) for way in launches(kernel)]
    return Offers(ways, SXM)


def beyond(problem: GemmProblem, count: int) -> list[Kernel]:
    """The kernels outside the menu that the model expects to be fastest, one for each shape."""
    best: dict[tuple[Any, ...], tuple[float, Kernel]] = {}
    for bound, _, fixed in _offers().by_bound(problem):
        if len(best) >= count and bound > sorted(best.values(), key=lambda one: one[0])[count - 1][0]:
            break
        way = fixed.kernel
        if not pair_reasons(way, problem):
            seconds = predict_fixed(fixed, problem).seconds
            shape = way.tile_m, way.tile_n, way.swap_ab, way.split_k, way.schedule
            best[shape] = min(best.get(shape, (seconds, way)), (seconds, way), key=lambda one: one[0])
    return [kernel for _, kernel in sorted(best.values(), key=lambda one: one[0])[:count]]


def asked(problem: GemmProblem, brought: Sequence[Kernel]) -> list[Kernel]:
    """The kernels that are timed on a problem: the picks, the best outside the menu, and those of some others that the
    model expects to be :data:`CLOSE` to these."""
    found = [*choices(problem, PICKS), *beyond(problem, BEYOND)]
    least = min(predict(one, problem).seconds for one in found)
    for kernel in brought:
        ways = (way.but(split_k=parts) for parts in parts_for(kernel, problem) for way in launches(kernel))
        able = [way for way in ways if not pair_reasons(way, problem) and parts_meet(way, problem, SXM)]
        seconds, _, best = min(
            ((predict(one, problem).seconds, number, one) for number, one in enumerate(able)), default=(inf, 0, kernel)
        )
        if seconds < least * (1 + CLOSE):
            found.append(best)
    return list(dict.fromkeys(found))


def sweep_text(brought: Sequence[Kernel]) -> str:
    """The file of the sweep, with some kernels that are timed beside the others."""
    lines = [HEAD]
    for problem in PROBLEMS:
        lines += ["[[problems]]", *(f"{side} = {getattr(problem, side)}" for side in "mnk")]
        lines.append("known = [")
        for one in asked(problem, brought):
            values = {name: value for name, value in one.as_dict().items() if value != DEFAULTS[name]}
            told = ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
            lines.append(f"    {{ {told} }},")
        lines += ["]", ""]
    return "\n".join(lines)


def judged(folder: Path) -> list[str]:
    """A line for each problem: speedups over torch.mm of the pick, of the best of the menu and of the others."""
    lines, menu = [], set(binaries())
    rows = [row for row in read_study(folder).stage("sweep", "map") if row.ok and row.point.against == "cublas"]
    for problem in dict.fromkeys(row.point.problem for row in rows):
        speeds = {row.point.config: row.figures["speedup"] for row in rows if row.point.problem == problem}
        first = choices(problem, 1)[0]
        inside = {one: speed for one, speed in speeds.items() if without_pdl(one).compiled() in menu}
        outside = {one: speed for one, speed in speeds.items() if one not in inside}
        told = [f"{problem}: pick {speeds.get(first, float('nan')):.3f}"]
        for name, some in (("menu", inside), ("beyond", outside)):
            if some:
                best = max(some, key=some.__getitem__)
                told.append(f"{name} {some[best]:.3f} ({best})")
        lines.append(", ".join(told))
    return lines


# Another menu ---------------------------------------------------------------------------------


def rows_between() -> list[GemmProblem]:
    """Weights that people run, those held out aside, with drawn numbers of rows between the menu's tiles."""
    listed = read_shapes(suite_file().with_name("map.toml")).problems
    people = [one.problem() for one in listed if one.part == "people" and not one.held_out]
    sides = sorted({(one.n, one.k) for one in people if one.layouts == "kk" and one.n < LARGEST_N})
    drawn, held = random.Random(SEED), read_held_out()
    found = [GemmProblem(round(drawn.uniform(*ROWS**0.5) ** 2), n, k) for n, k in sides for _ in range(2)]
    return [one for one in dict.fromkeys([*found, *PROBLEMS]) if not held.has(one)]


def measured(folder: Path | None) -> dict[Case, Searched]:
    """The rows of a sweep, problem by problem."""
    found: dict[Case, dict[Kernel, list[tuple[float, float]]]] = {}
    for row in [] if folder is None else read_study(folder).stage("sweep"):
        if row.ok and not row.point.is_baseline:
            of = found.setdefault(Case(row.point.problem), {}).setdefault(row.point.config, [])
            of.append((float(row.figures["speedup"]), float(row.figures["baseline_us"])))
    return {case: summary(case, configs) for case, configs in found.items()}


def exchanged(count: int, folder: Path | None = None) -> list[Kernel]:
    """The menu with so many kernels exchanged, one by one: each time the kernel that adds most comes in, and the one
    that is missed least goes, of those without which no problem of the map loses more than :data:`MISSED`. Searched
    problems, the map's, and those of :func:`rows_between` have the same weight."""
    between, known = rows_between(), measured(folder)
    listed = read_shapes(suite_file().with_name("map.toml")).problems
    fitted = list(dict.fromkeys(Case(filled_up(one.problem())) for one in listed if not one.held_out))
    groups = [sorted(searched(), key=str), fitted, [Case(problem) for problem in between]]
    offered = [kernel.compiled() for one in between for kernel in beyond(one, OFFERED)]
    kernels = list(dict.fromkeys([*binaries(), *map(plain, offered)]))
    table = np.concatenate([shares(kernels, some, {**searched(), **known}) for some in groups])
    weights, shipped = weights_of(*map(len, groups)), range(len(binaries()))
    chosen = exchanged_columns(table, weights, shipped, count, -np.inf, MISSED)
    return [kernels[index] for index in chosen]


def main() -> None:
    """Print the sweep, judge its rows, or exchange kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("sweep")
    kinds.add_parser("judge").add_argument("folder", type=Path)
    exchange = kinds.add_parser("exchange")
    exchange.add_argument("count", type=int)
    exchange.add_argument("--rows", type=Path, help="folder of the sweep, once it is measured")
    given = parser.parse_args()
    if given.what == "sweep":
        print(sweep_text([one for one in exchanged(BROUGHT) if one not in set(binaries())]), end="")
    elif given.what == "judge":
        print("\n".join(judged(given.folder)))
    else:
        print(text_of(exchanged(given.count, given.rows)), end="")


if __name__ == "__main__":
    main()
