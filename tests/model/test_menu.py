"""The menu covers every shape, and the model's choice from it is sane."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from benchmarks.menu import SIZE, curve, curve_text, data, exchanged, greedy, losses, menu_of, text_of
from docs.generate.measurements import measurement
from hopper_gemm.model import bounds as bounds_of
from hopper_gemm.model import menu as menus
from hopper_gemm.model.bounds import LowerBounds
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal, pair_reasons
from hopper_gemm.model.menu import (
    LONG,
    PACED,
    ROUNDS,
    behind_padding,
    binaries,
    by_model,
    choices,
    choose,
    gates,
    launches,
    menu,
    of_8_bits,
    suited,
)
from hopper_gemm.model.predict import FITTED, Fixed, predict, predict_fixed
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem
from hopper_gemm.model.roofline import cluster_tiles, clusters_at_once, parts_meet
from hopper_gemm.model.walk import abreast
from hopper_gemm.tune.limits import waves
from hopper_gemm.tune.run.questions.map import parts_for
from hopper_gemm.tune.study.techniques import promising, technique
from tests.conftest import ROOT
from tests.each import each

GATED = Epilogue(activation="silu", gated=True)

SHAPES = [
    (8, 8, 8),
    (1, 8192, 64),
    (16, 6144, 4096),
    (64, 28672, 4096),
    (512, 512, 65536),
    (2304, 2304, 4096),
    (8192, 8192, 8192),
    (65536, 256, 1024),
]


def test_every_kernel_of_the_menu_is_legal_resolved_and_there_once():
    assert len(binaries()) == len({one.compiled() for one in menu()}) <= SIZE
    assert len(menu()) == len(set(menu()))
    assert all(is_legal(config) and config == resolve(config) for config in menu())
    listed = json.loads((ROOT / "hopper_gemm/model/menu.json").read_text())
    assert list(binaries()) == [resolve(GemmConfig.of(values)) for values in listed], "the file leaves no choice open"
    assert len(set(gates())) == len(gates())
    assert all(is_legal(one) and one == resolve(one) for one in gates())
    assert (ROOT / "hopper_gemm/model/gates.json").read_text() == text_of(gates())
    assert len(set(of_8_bits())) == len(of_8_bits())
    assert not {*of_8_bits()} & {*binaries()}
    assert all(is_legal(one) and one == resolve(one) for one in of_8_bits())
    assert (ROOT / "hopper_gemm/model/fp8.json").read_text() == text_of(of_8_bits())


def test_groups_choose_from_no_cluster_of_eight():
    """None was timed there."""
    for finish in (None, GATED):
        assert max(one.cluster_size for one in suited(GroupedProblem(8, 16, 8), finish)) == 4


def test_most_of_the_menu_sums_a_row_of_the_product_in_the_same_order_whatever_the_other_rows():
    plain = [one for one in binaries() if not one.reverse_k and not one.stream_k and one.split_k == 1]
    assert len(plain) >= 64


@each("sizes, dtype, layouts", product(SHAPES, DTYPES, LAYOUTS))
def test_every_problem_finds_a_config_of_the_menu_that_runs_it(sizes, dtype, layouts):
    m, n, k = sizes
    problem = GemmProblem(m if layouts[0] == "k" else -(-m // 8) * 8, n, k, dtype, layouts)
    found = choose(problem)
    assert is_legal(found, problem)
    assert found.compiled() in binaries() or found.compiled().but(reverse_k=False) in binaries()


def test_parts_fill_rounds_and_never_more_than_the_rules_allow():
    """The most parts that run at once are among them, where they are legal: they leave the fewest SMs idle."""
    for problem in drawn(200):
        for kernel in (one for one in binaries() if one.parts_at_launch):
            found = parts_for(kernel, problem)
            ways = [kernel.but(split_k=parts) for parts in found]
            assert not {reason.rule for way in ways for reason in pair_reasons(way, problem)} & {"split_k", "workspace"}
            tiles, at_once = cluster_tiles(kernel, problem), clusters_at_once(kernel.cluster_size)
            in_one_round = kernel.but(split_k=at_once // tiles, part_order="part")
            if in_one_round.split_k > 1 and is_legal(in_one_round, problem):
                assert in_one_round.split_k in found


@pytest.mark.parametrize("sizes", [(10**20, 8, 8), (8, 10**20, 8), (8, 8, 10**20)])
def test_a_kernel_is_picked_for_sizes_beyond_64_bits(sizes):
    assert is_legal(choose(GemmProblem(*sizes)), GemmProblem(*sizes))


def test_the_ranked_kernels_are_different_binaries_and_begin_with_the_choice():
    problem = GemmProblem(777, 4096, 4096)
    found = choices(problem, 8)
    assert len({one.compiled() for one in found}) == 8
    assert found[0] == choose(problem)
    times = [seconds for seconds, *_ in by_model(problem, 8)]
    assert times == sorted(times)


def drawn(count, columns=0):
    """Problems with sides from 1 to 65536, and a few more columns."""
    rng = random.Random(3)
    for _ in range(count):
        m, n, k = (8 * max(1, round(2 ** (13 * rng.random()))) for _ in range(3))
        yield GemmProblem(m - rng.randrange(8), n + columns, k, layouts=rng.choice(("kk", "kn")))


def test_no_kernel_is_predicted_to_be_faster_than_its_lower_bound():
    for problem in drawn(40):
        rng = random.Random(str(problem))
        kernels = rng.sample(menu(), 24)
        parts = [rng.randrange(2, 65) if kernel.parts_at_launch else kernel.split_k for kernel in kernels]
        bounds = LowerBounds([*enumerate(kernels)])(problem, np.arange(24), np.array(parts))
        for kernel, bound, count in zip(kernels, bounds, parts, strict=True):
            assert bound <= predict(kernel.but(split_k=count), problem).seconds * (1 + 1e-12)


def test_the_dynamic_scheduler_is_known_also_where_it_would_even_out_nothing(monkeypatch):
    """Only kernels without it read parts in their order, whatever its constants are fitted to."""
    constants = replace(FITTED, balance=0.0)
    monkeypatch.setattr(bounds_of, "FITTED", constants)
    monkeypatch.setattr(bounds_of, "Fixed", partial(Fixed, constants=constants))
    apart = [one.but(part_order="tile") for one in menu() if one.parts_at_launch and one.scheduler == "static"]
    kernels = [one for way in apart if is_legal(one := way.but(scheduler="dynamic", split_k=2))]
    rng = random.Random(3)
    for problem in drawn(40):
        drawn_kernels = rng.sample(kernels, 24)
        parts = [rng.randrange(2, 65) for _ in drawn_kernels]
        bounds = LowerBounds([*enumerate(drawn_kernels)])(problem, np.arange(24), np.array(parts))
        for kernel, bound, count in zip(drawn_kernels, bounds, parts, strict=True):
            assert bound <= predict(kernel.but(split_k=count), problem, constants=constants).seconds * (1 + 1e-12)


def test_few_of_hundreds_of_ways_are_predicted_for_a_choice(monkeypatch):
    """The bounds are close: ways whose bound is beyond the best prediction need none. By how much loads and an L2 that
    limit alike slow a launch is bounded less closely than the rest."""
    predicted = []
    monkeypatch.setattr(menus, "predict_fixed", lambda *given: predicted.append(given) or predict_fixed(*given))
    problems = [*drawn(60)]
    for problem in problems:
        by_model(problem, 1)
    assert len(predicted) < len(menu()) / 80 * len(problems)
    predicted.clear()
    for problem in problems:
        choose(problem)
    assert len(predicted) < 40 * len(problems)


@pytest.mark.parametrize("columns", [0, 1])
def test_the_ranking_is_that_of_all_predictions(columns):
    """Static kernels below 150 us; from there on also those with the dynamic scheduler, and from 1 ms on paced ones.
    With a column more operands are padded first, and kernels set themselves up meanwhile."""
    for problem in drawn(25, columns):
        ways = (one.but(split_k=parts) for one in menu() for parts in parts_for(one, problem))
        able = [one for one in ways if not pair_reasons(one, problem) and parts_meet(one, problem)]
        able = [behind_padding(one, problem) for one in able]
        seconds = {one: predict(one, problem).seconds for one in able}
        shortest = min(value for one, value in seconds.items() if one.scheduler == "static")
        least = {("static", False): 0.0, ("dynamic", False): ROUNDS, ("dynamic", True): LONG}
        suited = [one for one in seconds if least[one.scheduler, one.pace > 0] <= shortest]
        found = {}
        for one in sorted(suited, key=lambda one: seconds[one] * (PACED if one.pace else 1)):
            found.setdefault(one.compiled(), abreast(one, problem))
        wanted = list(found.values())[: menus.CORRECTED]
        assert [abreast(fixed.kernel, problem) for _, _, fixed, _ in by_model(problem, len(wanted))] == wanted
        again = choices(problem, len(wanted))
        assert again == wanted if columns else {*again} == {*wanted}
        assert choose(problem) == again[0]


@pytest.mark.parametrize("sizes", [(16384, 16384, 16384), (8192, 8192, 28672), (16384, 8192, 8192)])
def test_a_long_launch_is_paced(sizes):
    """Of two kernels of equal predicted time the one whose CTAs stay together."""
    assert choose(GemmProblem(*sizes)).pace > 0


def test_single_ctas_walk_the_patch_of_sixteen_tiles_that_reads_the_fewest_panels():
    fewest = min((1, 2, 4, 8, 16), key=lambda width: width + 16 / width)
    single = [kernel for kernel in menu() if kernel.cluster_size == 1]
    assert {way.swizzle for kernel in single for way in launches(kernel)} == {fewest}


@pytest.mark.results
@pytest.mark.timeout(900)
def test_the_menu_loses_little_to_one_that_is_chosen_anew():
    """Its machine code is shipped, so that it stays while it is good, though rows and model change."""
    kernels, _, _, table = data()
    assert tuple(kernels[: len(binaries())]) == binaries(), "those of FP8 are chosen beside these"
    place = {kernel: index for index, kernel in enumerate(kernels)}
    anew, ours = (losses(table, [place[one] for one in of]).mean() for of in (menu_of(SIZE), binaries()))
    assert ours < anew + 0.005
    assert (ROOT / "hopper_gemm/model/menu.json").read_text() == text_of(binaries())
    assert measurement("measurements/menu.csv").read_text() == curve_text(curve())


def test_the_choice_fits_the_shape():
    square = choose(GemmProblem(8192, 8192, 8192))
    assert square.tile_m * square.tile_n >= 192 * 128
    assert waves(square, GemmProblem(8192, 8192, 8192)).efficiency > 0.95
    assert choose(GemmProblem(16384, 16384, 16384)).cluster_size == 2
    few_rows = choose(GemmProblem(16, 6144, 4096))
    assert (few_rows.tile_n if few_rows.swap_ab else few_rows.tile_m) <= 64
    long_k = choose(GemmProblem(512, 512, 65536))
    assert long_k.split_k > 1
    ctas = long_k.split_k * long_k.cluster_m * long_k.cluster_n
    assert cluster_tiles(long_k, GemmProblem(512, 512, 65536)) * ctas > 66


def test_the_ctas_of_a_long_launch_meet_where_they_can():
    assert choose(GemmProblem(16384, 16384, 16384)).pace
    assert choose(GemmProblem(20000, 20000, 8192)).pace
    assert not choose(GemmProblem(4096, 4096, 4096)).pace


def test_the_promising_keep_all_their_ways_to_launch():
    problem = GemmProblem(8192, 8192, 8192)
    tiles = [GemmConfig(tile_m=256, tile_n=n, cluster_n=2) for n in (64, 128, 192)]
    configs = [resolve(replace(tile, swizzle=swizzle)) for tile in tiles for swizzle in (1, 4, 8)]
    kept = promising(configs, problem, 2)
    assert len(kept) == 6
    assert {config.tile_n for config in kept} == {128, 192}


def test_what_is_known_stays_whatever_the_model_thinks():
    problem = GemmProblem(4096, 4096, 4096)
    configs = [resolve(GemmConfig(tile_m=tile_m, stagger=0)) for tile_m in (64, 128, 256)]
    assert promising(configs, problem, 1) == {configs[2]}
    assert promising(configs, problem, 1, [configs[0].but(swizzle=2)]) == {configs[0], configs[2]}


def test_a_fourth_of_the_promising_is_dealt_out_to_the_techniques():
    """Of forty tiles four small ones would never be among the best twenty by prediction alone."""
    problem = GemmProblem(8192, 8192, 8192)
    usual = [GemmConfig(tile_m=256, tile_n=n, k_depth=k) for n in range(96, 193, 8) for k in (2, 4, 6)]
    rare = [GemmConfig(tile_m=64, tile_n=n, ctas_per_sm=2) for n in (16, 32, 64, 96)]
    configs = [resolve(config) for config in (*usual, *rare) if is_legal(config)]
    assert {technique(config) for config in configs} == {technique(resolve(usual[0])), technique(resolve(rare[0]))}
    kept = promising(configs, problem, 20)
    assert len(kept) == 20
    best = sorted(configs, key=lambda config: predict(config, problem).seconds)
    assert set(best[:17]) <= kept
    assert {config for config in best if config.ctas_per_sm == 2} & kept == set(
        [config for config in best if config.ctas_per_sm == 2][:2]
    )


def test_the_kernels_for_gated_layers_alone_run_them_and_serve_nothing_else():
    alone = {one.compiled() for one in menu(gated=True)} - set(binaries())
    assert 0 < len(alone) <= len(gates()), "the menu may hold some of them"
    assert all(is_legal(one, GemmProblem(64, 28672, 4096), GATED) for one in alone)
    found = [choose(GemmProblem(m, 28672, 4096), finish=GATED).compiled() for m in range(1, 65)]
    assert sum(one in alone for one in found) >= len(found) / 4, "of few rows few of the menu pair gate and up"
    for finish in (None, Epilogue(activation="silu"), Epilogue(residual=True)):
        assert choose(GemmProblem(16, 28672, 4096), finish=finish).compiled() not in alone


def test_kernels_are_chosen_beside_those_that_are_there_anyway():
    table = np.array([[1.0, 0.9, 0.95, 0.5], [0.5, 0.6, 0.8, 0.9], [0.5, 0.9, 0.5, 0.5]])
    assert greedy(table, np.ones(3), 2) == [1, 3]
    assert greedy(table, np.ones(3), 1, beside=2) == [3], "the first two columns are there"


def test_an_exchange_takes_in_what_adds_most_for_what_is_least_missed_while_that_pays():
    table = np.array([[1.0, 0.95, 0.6], [0.95, 1.0, 0.6], [0.6, 0.6, 1.0]])
    assert exchanged(table, np.ones(3), [0, 1]) == [1, 2]
    assert exchanged(table, np.ones(3), [1, 2]) == [1, 2]
    assert exchanged(table, np.array([1.0, 1.0, 0.0]), [0, 1]) == [0, 1], "the third problem does not count"


def test_the_kernels_for_fp8_alone_run_each_recipe_and_serve_nothing_else():
    wide, narrow = (GemmProblem(128, 4096, 7168, dtype) for dtype in ("bf16", "e4m3_bf16"))
    kernels = {one.compiled() for one in menu(fp8=True)}
    assert kernels == {*binaries(), *of_8_bits()}
    for scales, promote in (("tensor", 0), ("row", 128), ("blocks", 128)):
        finish = Epilogue(scales=scales)
        able = [one for one in of_8_bits() if is_legal(one, replace(narrow, promote=promote), finish)]
        assert len(able) > len(of_8_bits()) / 4, scales
    alone, sizes = {*of_8_bits()}, [(m, n, k) for m in (1, 64, 128, 1024) for n, k in ((2112, 7168), (4096, 7168))]
    assert {choose(replace(narrow, m=m, n=n, k=k)).compiled() for m, n, k in sizes} & alone
    assert not {one.compiled() for m, n, k in sizes for one in choices(replace(wide, m=m, n=n, k=k), 8)} & alone
    assert not {*suited(wide)} & alone
    assert {*suited(narrow, Epilogue(scales="tensor"))} & alone
    assert menu(True, fp8=True) == menu(True), "their bits were not compared"


def test_a_gated_layer_of_few_rows_is_expected_to_take_hardly_longer_than_its_product():
    """Both read the weights once, which is nearly all that they do."""
    for m in (1, 16, 64):
        problem = GemmProblem(m, 28672, 4096)
        plain, gated = (predict(choose(problem, finish=one), problem, finish=one).seconds for one in (None, GATED))
        assert gated < 1.05 * plain


@pytest.mark.parametrize(("size", "scheduler"), [(1024, "static"), (2048, "static"), (6144, "dynamic")])
def test_launches_of_many_rounds_hand_their_tiles_out_one_by_one(size, scheduler):
    assert choose(GemmProblem(size, size, size)).scheduler == scheduler
