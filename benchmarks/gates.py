"""Choose the kernels for gated layers that join the menu, and time such kernels beside the pick.

Few kernels of the menu hold gate and up of a column where one thread can multiply them. ``python -m benchmarks.gates
choose > hopper_gemm/model/gates.json`` adds to them the fastest kernel of each recorded list, then one after the other
the kernel that gains most (greedy) by the times that the model and the trees expect for the gates of eleven models at 1
to 8192 tokens.
``python -m benchmarks.gates time --out gated.jsonl [TOKENS...]`` times the best of that space for Llama-3-8B's gate,
and the pick, the plain product and torch beside them, isolated, a line of JSON for each number of tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from benchmarks import need_hopper
from benchmarks.menu import text_of
from benchmarks.picks.bursts import gated_bursts
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.correction import features, shipped
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import ROUNDS, binaries, choose, launches
from hopper_gemm.model.predict import Fixed, predict_fixed
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.call import GATED
from hopper_gemm.tune.limits import CHIPS

WEIGHTS = (
    *((28672, 4096), (37888, 3584), (57344, 8192), (16384, 2048), (27648, 5120), (22016, 4096), (11008, 2048)),
    *((17408, 5120), (59136, 8192), (13824, 5120), (12288, 2048)),
)
"""n and k of gates: both halves."""

TOKENS = (1, 4, 8, 16, 24, 32, 64, 100, 128, 160, 192, 257, 300, 384, 512, 640, 777, 1024, 1500, 2048, 4096, 8192)
CLUSTERS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2))
CHIP = CHIPS["h100"]

COUNT = 32
"""Kernels that join the menu, and what recorded lists found."""

EACH, OF_A_TILE = 30, 3
"""Kernels that are timed for a number of tokens, and how many of one tile at most."""

LLAMA = (28672, 4096)
TIMED = (1, 16, 48, 128, 257, 1024, 8192)


def space() -> list[Kernel]:
    """Kernels that gate tiles, with the widest epilogue that is legal."""
    found: dict[Kernel, None] = {}
    for config in _configs():
        for epi_n in ("wide", 64, 32, 16, 8):
            if is_legal(one := replace(config, epi_n=epi_n)) and is_legal(one, GemmProblem(8192, *LLAMA), GATED):
                found[resolve(one)] = None
                break
    return list(found)


def _configs() -> Iterator[GemmConfig]:
    techniques = product(("cooperative", "pingpong"), (0, 1), ("static", "dynamic"))
    for (schedule, stagger, scheduler), (down, across), k_depth in product([*techniques], CLUSTERS, (4, 8)):
        like = GemmConfig(schedule=schedule, stagger=stagger, scheduler=scheduler, k_depth=k_depth)  # type: ignore[arg-type]
        like = replace(like, cluster_m=down, cluster_n=across)
        for tile_m in (64, 128, 192, 256):
            for tile_n in range(32, 257, 16):
                yield replace(like, tile_m=tile_m, tile_n=tile_n)
            for tile_n in range(8, 257, 8):
                swapped = replace(like, tile_m=tile_m, tile_n=tile_n, swap_ab=True)
                yield swapped
                if tile_m == 2 * hopper.WGMMA_M:
                    yield replace(swapped, consumers=1)


def expected(kernel: Kernel, problems: Sequence[GemmProblem]) -> np.ndarray:
    """Seconds for each problem, by the model and the trees, of the best way to launch the kernel; infinite where it
    cannot run, and where a launch is too short for the dynamic scheduler."""
    ways, seconds = [Fixed(way) for way in launches(kernel)], np.full(len(problems), np.inf)
    for number, problem in enumerate(problems):
        if is_legal(kernel, problem, GATED):
            told = [(predict_fixed(way, problem, CHIP, GATED), way) for way in ways]
            best, way = min(told, key=lambda one: one[0].seconds)
            if kernel.scheduler == "static" or best.seconds >= ROUNDS:
                row = features(way, best, problem, CHIP, GATED)
                seconds[number] = best.seconds * float(shipped()([row])[0])
    return seconds


def _expected(kernel: Kernel) -> np.ndarray:
    return expected(kernel, [GemmProblem(m, n, k) for n, k in WEIGHTS for m in TOKENS])


def recorded() -> list[Kernel]:
    """The fastest kernel of each recorded list, each once."""
    return list(dict.fromkeys(one.kernels[one.share.argmax()].compiled() for one in gated_bursts()))


def chosen() -> list[Kernel]:
    """The fastest recorded kernels, and those that gain most beside them and the menu's."""
    listed = [kernel for kernel in recorded() if kernel not in binaries()]
    offered = [*(one for one in binaries() if is_legal(one, GemmProblem(8192, *LLAMA), GATED)), *listed]
    kernels = [*offered, *(kernel for kernel in space() if kernel not in offered)]
    with Pool() as pool:
        table = np.array(pool.map(_expected, kernels, chunksize=20)).T
    best, found = table[:, : len(offered)].min(axis=1), listed
    while len(found) < COUNT:
        gain = (np.log(best)[:, None] - np.log(np.minimum(table, best[:, None]))).mean(axis=0)
        at = int(gain.argmax())
        found.append(kernels[at])
        best = np.minimum(best, table[:, at])
    return found


def candidates(problem: GemmProblem) -> dict[str, GemmConfig]:
    """The kernels of the space that are expected to be the fastest, few of a tile, with their best way to launch."""
    default, told, tiles = choose(problem, CHIP, GATED), [], dict[tuple[int, int, bool], int]()
    for kernel in space():
        told.append((float(expected(kernel, [problem])[0]), kernel))
    found: dict[str, GemmConfig] = {}
    for seconds, kernel in sorted(told, key=lambda one: one[0]):
        tile = kernel.tile_m, kernel.tile_n, kernel.swap_ab
        if len(found) == EACH or not np.isfinite(seconds):
            break
        if tiles.setdefault(tile, 0) < OF_A_TILE and kernel != default.compiled():
            tiles[tile] += 1
            way = min(launches(kernel), key=lambda way: predict_fixed(Fixed(way), problem, CHIP, GATED).seconds)
            found[str(way)] = way
    return found


def measure(out: Path, tokens: Sequence[int]) -> None:
    """Time the candidates of each number of tokens and append the rows."""
    from benchmarks.linear import timed, told
    from hopper_gemm.compiler.store import KernelId, default_store
    from hopper_gemm.serve.kernels import default_config
    from tests.verify.harness import compile_all

    need_hopper()
    jobs = [(problem, candidates(problem)) for problem in (GemmProblem(m, *LLAMA) for m in tokens)]
    wanted = [KernelId.of(one, problem, finish=GATED) for problem, more in jobs for one in more.values()]
    wanted += [
        KernelId.of(default_config(problem, 0, finish), problem, finish=finish)
        for problem, _ in jobs
        for finish in (GATED, None)
    ]
    compile_all(list(dict.fromkeys(wanted)), default_store())
    for problem, more in jobs:
        row = timed(problem, GATED, 7, False, more)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(told(row), flush=True)


def main(given: Sequence[str] | None = None) -> None:
    """Choose and print, or time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("choose", "time"))
    parser.add_argument("tokens", type=int, nargs="*", default=TIMED)
    parser.add_argument("--out", type=Path, help="file to which rows are appended")
    asked = parser.parse_intermixed_args(given)
    if asked.what == "choose":
        sys.stdout.write(text_of(chosen()))
    elif asked.out is None:
        parser.error("time needs --out FILE")
    else:
        measure(asked.out, asked.tokens)


if __name__ == "__main__":
    main()
