"""The model on GPUs with other numbers of SMs: every choice runs there, and fewer SMs take longer."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from hopper_gemm.model.bounds import LowerBounds
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import choices, choose
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip, best_swizzle, clusters_at_once, parts_meet
from hopper_gemm.tune.limits import CHIPS as KINDS
from hopper_gemm.tune.limits import limit_seconds, waves
from hopper_gemm.tune.tables.explain import explain
from tests.conftest import ROOT

CHIPS = [Chip(sms) for sms in (78, 114, 132, 144)]
PROBLEMS = [
    GemmProblem(8, 8, 8),
    GemmProblem(16, 6144, 4096),
    GemmProblem(512, 512, 65536),
    GemmProblem(1024, 1024, 16384),
    GemmProblem(2304, 2304, 4096),
    GemmProblem(8192, 8192, 8192),
]


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: f"{chip.sms} SMs")
def test_the_choice_is_legal_and_its_parts_meet_on_every_chip(chip):
    for problem in PROBLEMS:
        best = choose(problem, chip)
        assert is_legal(best, problem)
        assert parts_meet(best, problem, chip)
        assert waves(best, problem, chip).slots <= chip.sms * best.ctas_per_sm


def test_parts_that_would_not_run_at_once_are_left_out_on_a_smaller_chip():
    """A part would wait for another of a later wave."""
    problem, small = GemmProblem(1024, 1024, 65536), Chip(78)
    assert not all(parts_meet(kernel, problem, small) for kernel in choices(problem, 200))
    assert all(parts_meet(kernel, problem, small) for kernel in choices(problem, 200, small))


@pytest.mark.parametrize("kind", KINDS)
def test_the_chip_of_a_kind_is_as_the_driver_described_the_boards_that_were_measured(kind):
    """Provenance from before the rate was read has none, that of time stamps the board alone; boards of a kind differ
    in their memory's clock."""
    recorded = [json.loads(path.read_text()).get("gpu") for path in ROOT.glob(f"results/{kind}/**/provenance.json")]
    gpus = [gpu for gpu in recorded if gpu and "driver" in gpu]
    assert gpus
    assert {(gpu["sms"], gpu["l2_bytes"]) for gpu in gpus} == {(KINDS[kind].sms, KINDS[kind].l2_bytes)}
    rates = [gpu["memory_rate"] for gpu in gpus if "memory_rate" in gpu]
    assert rates == pytest.approx([KINDS[kind].memory_rate] * len(rates), rel=0.03)


def test_fewer_sms_take_longer_and_have_a_longer_limit():
    square = GemmProblem(8192, 8192, 8192)
    for small, large in pairwise(CHIPS):
        taken = [predict(choose(square, chip), square, chip).seconds for chip in (small, large)]
        assert taken[0] > taken[1]
        assert limit_seconds(square, small) >= limit_seconds(square, large)
    assert limit_seconds(square, CHIPS[0]) > limit_seconds(square)


def test_a_slower_memory_takes_longer_where_memory_is_the_limit():
    """An H100 has as many SMs as an H200, and a slower memory."""
    slower = Chip(memory_rate=2.93e12)
    row, square = GemmProblem(8, 28672, 4096), GemmProblem(8192, 8192, 8192)
    for problem, least, most in ((row, 1.3, 4.3 / 2.93), (square, 1.0, 1.05)):
        pick = choose(problem)
        times = [predict(pick, problem, chip).seconds for chip in (SXM, slower)]
        assert least <= times[1] / times[0] <= most
        assert LowerBounds([(0, pick)], slower)(problem, np.array([0]), np.array([pick.split_k])) <= times[1]
        assert limit_seconds(problem, slower) >= limit_seconds(problem)


def test_a_launch_of_one_round_on_a_large_chip_has_two_on_a_small_one():
    tile, problem = resolve(GemmConfig(tile_m=128, tile_n=128)), GemmProblem(128 * 11, 128 * 12, 4096)
    assert [waves(tile, problem, chip).waves for chip in CHIPS] == [2, 2, 1, 1]
    assert [predict(tile, problem, chip).waves for chip in CHIPS] == [2, 2, 1, 1]


def test_the_count_of_the_driver_comes_before_the_estimate():
    told = Chip(132, resident=(132, 64, 28, 12))
    assert [clusters_at_once(size, told) for size in (1, 2, 4, 8)] == [132, 64, 28, 12]
    assert [clusters_at_once(size, Chip(144)) for size in (1, 2, 4, 8)] == [144, 72, 32, 16]
    assert clusters_at_once(8, Chip(4)) == 1


def test_the_swizzle_that_reads_least_grows_with_the_chip():
    config = GemmConfig(tile_m=128, tile_n=128)
    wide = [best_swizzle(config, chip) for chip in CHIPS]
    assert wide == sorted(wide)
    assert wide[2] == best_swizzle(config, SXM)


def test_explain_counts_the_waves_of_the_chip():
    tile, problem = GemmConfig(tile_m=128, tile_n=128), GemmProblem(128 * 11, 128 * 12, 4096)
    small, large = (explain(tile, problem, Chip(sms)) for sms in (78, 132))
    assert (small["sms"], small["waves"], large["waves"]) == (78, 2, 1)
    assert small["predicted_us"] > large["predicted_us"]
