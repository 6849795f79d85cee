"""Kernels beside the menu for numbers of rows between its tiles: a sweep that times them, gated layers, and a verdict.

    python -m benchmarks.between sweep > sweeps/archive/between.toml    # needs no GPU
    hopper-gemm sweep sweeps/archive/between.toml
    python -m benchmarks.between judge results/local/h200/between       # the best of the menu, and of the others
    python -m benchmarks.between gated --out gated.jsonl                # swiglu by the pick and by other kernels

The problems are the products of a Llama-3-8B layer at 100, 257 and 777 rows. Of each the eight best picks are timed,
and of a space with every width of a tile the kernels outside the menu that the model expects to be fastest: one for
each shape of tile and number of parts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from hopper_gemm.model.config import DEFAULTS, GemmConfig
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.hopper import SXM
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal, pair_reasons
from hopper_gemm.model.menu import binaries, choices, launches
from hopper_gemm.model.predict import lower_bound, predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import parts_meet
from hopper_gemm.model.tuned import without_pdl
from hopper_gemm.tune.study.reader import read_study

SIDES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
PROBLEMS = [GemmProblem(m, n, k) for m in (100, 257, 777) for n, k in SIDES]
GATED_ROWS = (1, 23, 100, 257, 777, 1500)
GATED = Finish(activation="silu", gated=True)

PICKS, BEYOND, BEYOND_GATED = 8, 16, 6
"""Kernels of a problem: of the menu, and outside of it; and of a gated layer."""

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
        for tile_m, split_k in product((64, 128, 192, 256), (2, 3, 4, 6, 8)):
            yield GemmConfig(tile_m, split_k=split_k, reduction="workspace", **both)
            if cluster_m == cluster_n:
                yield GemmConfig(tile_m, split_k=split_k, **how)
                yield GemmConfig(tile_m, split_k=split_k, reduction="workspace", part_order="part", **how)


@cache
def _bounded() -> list[tuple[Any, Kernel]]:
    return [(lower_bound(kernel), kernel) for kernel in wide()]


def beyond(problem: GemmProblem, count: int, finish: Finish | None = None) -> list[Kernel]:
    """The kernels outside the menu that the model expects to be fastest, one for each shape."""
    best: dict[tuple[Any, ...], tuple[float, Kernel]] = {}
    for bound, kernel in sorted(((bound(problem), kernel) for bound, kernel in _bounded()), key=lambda one: one[0]):
        if len(best) >= count and bound > sorted(best.values(), key=lambda one: one[0])[count - 1][0]:
            break
        able = [one for one in launches(kernel) if not pair_reasons(one, problem, finish)]
        for one in able:
            if parts_meet(one, problem, SXM):
                seconds = predict(one, problem, finish=finish).seconds
                shape = one.tile_m, one.tile_n, one.swap_ab, one.split_k, one.schedule
                best[shape] = min(best.get(shape, (seconds, one)), (seconds, one), key=lambda one: one[0])
    return [kernel for _, kernel in sorted(best.values(), key=lambda one: one[0])[:count]]


def sweep_text() -> str:
    """The file of the sweep."""
    lines = [HEAD]
    for problem in PROBLEMS:
        lines += ["[[problems]]", *(f"{side} = {getattr(problem, side)}" for side in "mnk")]
        kernels = [*choices(problem, PICKS), *beyond(problem, BEYOND)]
        lines.append("known = [")
        for one in kernels:
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


def time_gated(out: Path, rows: Sequence[int], rounds: int) -> None:
    """Time swiglu by the pick, by other kernels, and by torch; a line of JSON for each number of rows."""
    import torch

    from benchmarks.linear import timed
    from hopper_gemm.compiler.store import KernelId, default_store
    from hopper_gemm.lab.verify.harness import compile_all
    from hopper_gemm.serve.kernels import default_config

    problems = [GemmProblem(m, 28672, 4096) for m in rows]
    more = {one: {str(kernel): kernel for kernel in beyond(one, BEYOND_GATED, GATED)} for one in problems}
    picks = [(default_config(one, 0, GATED), one) for one in problems]
    wanted = [*picks, *((kernel, one) for one, others in more.items() for kernel in others.values())]
    compile_all([KernelId.of(kernel, one, finish=GATED) for kernel, one in wanted], default_store())
    for problem, others in more.items():
        row = timed(problem, GATED, rounds, False, others)
        torch.cuda.empty_cache()
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(problem, {name: sorted(us)[len(us) // 2] for name, us in row["us"].items()}, flush=True)


def main() -> None:
    """Print the sweep, judge its rows, or time gated layers."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = asked.add_subparsers(dest="what", required=True)
    kinds.add_parser("sweep")
    kinds.add_parser("judge").add_argument("folder", type=Path)
    gated = kinds.add_parser("gated")
    gated.add_argument("--out", type=Path, required=True, help="file to which the rows are appended")
    gated.add_argument("--rows", type=int, nargs="+", default=GATED_ROWS)
    gated.add_argument("--rounds", type=int, default=7)
    given = asked.parse_args()
    if given.what == "sweep":
        print(sweep_text(), end="")
    elif given.what == "judge":
        print("\n".join(judged(given.folder)))
    else:
        time_gated(given.out, given.rows, given.rounds)


if __name__ == "__main__":
    main()
