"""A failure shrinks to the least that still fails."""

from __future__ import annotations

from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import DEFAULTS, all_values
from tests.verify.drawing import Pair, fp8_pairs, pairs
from tests.verify.shrink import shrink, smaller

BIG = Pair(
    LadderConfig(tile_m=128, tile_n=64, k_depth=2, stagger=3, cluster_m=2, peek=False, evict_c=True, raster="n"),
    GemmProblem(1232, 1000, 2056, "fp16_fp32", "mk"),
)


def test_what_the_failure_does_not_need_goes_back_to_its_default_or_gets_small():
    least = shrink(BIG, lambda pair: pair.config.stagger >= 3 and pair.problem.k >= 100, tries=500)
    changed = {name for name, value in all_values(least.config).items() if value != DEFAULTS[name]}
    assert changed == {"stagger"} | (changed & {"k_depth", "tile_m", "tile_n"}), "stages for the stagger"
    assert (least.problem.m, least.problem.dtype, least.problem.layouts) == (1, "bf16", "kk")
    assert least.problem.n == 1
    assert 100 <= least.problem.k < 140


def test_every_step_is_legal_and_smaller_so_that_it_ends():
    for pair in (*pairs(7, 30), *fp8_pairs(7, 30)):
        for less in smaller(pair):
            assert less.legal
            assert less != pair
    assert shrink(BIG, lambda pair: True, tries=10_000).problem == GemmProblem(1, 1, 1)


def test_nothing_is_tried_twice_nor_more_often_than_allowed():
    tried = []
    assert shrink(BIG, lambda pair: bool(tried.append(pair)), tries=5) == BIG
    assert len(tried) == len(set(tried)) == 5
