"""On the GPU every legal config computes the right product, and the same bits every time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hopper_gemm.build.child import Child
from hopper_gemm.build.pool import CompilePool
from hopper_gemm.build.store import KernelId
from hopper_gemm.model.config import SWIZZLES, GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from tests.build.test_compile import grid
from tests.gpu.checking import ANSWER_SECONDS, Case, checking
from tests.model.test_legality import drawn_configs

pytestmark = pytest.mark.gpu

RAGGED = GemmProblem(1234, 1000, 520)
"""No side is a multiple of any tile; k ends within a stage."""


@pytest.fixture(scope="module")
def wrong(kernel_store):
    """What is wrong with cases, one line each; kernels compile ahead in parallel."""
    pool, child = CompilePool(kernel_store), Child(checking, kernel_store)

    def ask(cases):
        pool.submit(KernelId.of(case.config, case.problem) for case in cases)
        found = []
        for case in cases:
            built = pool.result(KernelId.of(case.config, case.problem))
            if built.status != "ok":
                found.append(f"{case}: {built.status} {built.reason}")
                continue
            reply = child.ask(case, ANSWER_SECONDS)
            if reply.kind != "answer" or reply.value is not None:
                found.append(f"{case}: {reply.error or reply.value}")
        return found

    yield ask
    child.close()
    pool.close()


def test_the_published_grid_on_a_ragged_problem(wrong):
    assert wrong([Case(config, RAGGED) for config in grid()]) == []


def test_drawn_configs_on_drawn_problems(wrong):
    rng = random.Random(17)
    cases = []
    for config in filter(is_legal, drawn_configs(3000, seed=19)):
        walk = {"raster": rng.choice("mn"), "swizzle": rng.choice(SWIZZLES), "serpentine": rng.random() < 0.5}
        problem = GemmProblem(
            rng.randint(1, 3000), 8 * rng.randint(1, 400), 8 * rng.randint(1, 300), rng.choice(("bf16", "fp16"))
        )
        cases.append(Case(replace(config, **walk), problem))
    cases = cases[:200]
    assert len(cases) == 200
    assert wrong(cases) == []


@pytest.mark.parametrize("sizes", [(1, 8, 8), (1, 8192, 64), (8191, 8, 8), (64, 128, 8), (255, 264, 4096)], ids=str)
def test_the_smallest_and_the_oddest_problems(wrong, sizes):
    configs = [
        GemmConfig(),
        GemmConfig(cluster_n=2),
        GemmConfig(tile_m=64, tile_n=8, cluster_n=2),
        GemmConfig(tile_m=320, cluster_m=2),
    ]
    assert wrong([Case(config, GemmProblem(*sizes)) for config in configs]) == []


def test_thousands_of_k_iterations_give_the_same_bits_in_every_run(wrong):
    """Every stage count and stagger of one tile, both splits, clusters: a race would show as a changing bit."""
    problem = GemmProblem(512, 512, 65536)
    cases = []
    for stages in (1, 2, 3, 6):
        for stagger in range(min(stages, 4)):
            for split, cluster in (("m", (1, 1)), ("n", (2, 1)), ("m", (1, 2))):
                config = GemmConfig(
                    tile_m=128,
                    tile_n=128,
                    stages=stages,
                    stagger=stagger,
                    consumers=2,
                    split=split,
                    cluster_m=cluster[0],
                    cluster_n=cluster[1],
                )
                cases.append(Case(config, problem, runs=10))
    assert len(cases) == 30
    assert wrong(cases) == []
