"""Problems of FP8: types, the 16-bit problem that takes as long, rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.bounds import LowerBounds
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal, reasons
from hopper_gemm.model.lookup import Table, find, itself
from hopper_gemm.model.menu import binaries, choose
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import FP8_DTYPES, GemmProblem
from hopper_gemm.model.recipe import ScaledProblem, problem_from
from hopper_gemm.model.tuned import FILE, TunedEntry, read_tuned, write_tuned
from hopper_gemm.tune.point import Point

PROBLEM = GemmProblem(4096, 7168, 2048, "e4m3_bf16")
RECIPE = ScaledProblem(4096, 7168, 2048, "e4m3_bf16")
ROW, BLOCKS = Epilogue(scales="row"), Epilogue(scales="blocks")


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_a_product_of_fp8_takes_as_long_as_the_16_bit_one_of_half_the_depth(dtype):
    """A k-block of wgmma is 32 bytes whatever the type, so bytes, clocks and the choice are those of k / 2."""
    problem = replace(PROBLEM, dtype=dtype)
    words = GemmProblem(4096, 7168, 1024, "bf16_fp32" if dtype.endswith("fp32") else "bf16")
    assert problem.in_words == words
    assert problem.bytes == words.bytes
    assert problem.flop == 2 * words.flop
    assert predict(GemmConfig(), problem) == predict(GemmConfig(), words)
    assert choose(problem) == choose(words)


def test_16_bit_problems_are_their_own_words_and_print_no_promotion():
    problem = GemmProblem(8, 16, 32)
    assert problem.in_words is problem
    assert "promote" not in problem.as_dict()
    assert replace(PROBLEM, promote=256).as_dict()["promote"] == 256


@pytest.mark.parametrize(
    ("changes", "rule", "text"),
    [
        ({"n": 7176}, "fp8", "n must be a multiple of 16 for FP8 but got 7176"),
        ({"k": 2040}, "fp8", "k must be a multiple of 16 for FP8 but got 2040"),
        ({"layouts": "kn"}, "fp8", "must be contiguous along k but got layouts kn"),
    ],
)
def test_what_the_hardware_does_not_read_is_refused(changes, rule, text):
    (reason,) = reasons(GemmConfig(), replace(PROBLEM, **changes))
    assert reason.rule == rule
    assert text in reason.text


@pytest.mark.parametrize(
    ("config", "promote", "text"),
    [
        ({"k_depth": 8, "stages": 2}, 128, "stages of 256 elements do not make up 128"),
        ({"tile_m": 256, "tile_n": 176}, 128, "need 296 registers"),
        ({"stages": 3}, 512, "takes 5 stages but got 3"),
        ({"staging": "ring"}, 128, 'staging "ring"'),
        ({"k_depth": 2}, 128, ""),
    ],
)
def test_promotion_needs_whole_stages_registers_and_a_ring_that_holds_an_interval(config, promote, text):
    broken = reasons(GemmConfig(**config), replace(PROBLEM, promote=promote))
    assert [reason.rule for reason in broken] == ["promotion"] * bool(text)
    assert text in "".join(reason.text for reason in broken)


def test_sums_of_batch_invariant_products_are_promoted_at_the_same_k_by_every_kernel():
    """What is left of k after whole intervals is promoted stage by stage."""
    problem = replace(PROBLEM, promote=256, batch_invariant=True)
    assert not is_legal(GemmConfig(k_depth=2), problem)
    assert is_legal(GemmConfig(tile_m=128), problem)


def test_promotion_is_of_fp8_alone_and_of_few_intervals():
    with pytest.raises(ValueError, match="promote must be 0 for bf16 but got 128"):
        GemmProblem(8, 16, 32, promote=128)
    with pytest.raises(ValueError, match="promote must be one of 0, 128, 256, 512 but got 64"):
        replace(PROBLEM, promote=64)


def test_scales_go_with_fp8_and_fp8_with_scales_a_bias_and_an_activation():
    assert is_legal(GemmConfig(), PROBLEM, ROW)
    assert [reason.rule for reason in reasons(GemmConfig(), GemmProblem(64, 64, 64), ROW)] == ["scales"]
    assert [reason.rule for reason in reasons(GemmConfig(), PROBLEM, Epilogue(residual=True))] == ["scales"]
    with pytest.raises(ValueError, match="scales must be one of '', 'tensor', 'row', 'blocks' but got 'block'"):
        Epilogue(scales="block")


@pytest.mark.parametrize(
    ("config", "promote", "text"),
    [
        ({}, 0, "scales of blocks change each 128 of k but promote is 0"),
        ({}, 256, "scales of blocks change each 128 of k but promote is 256"),
        ({"k_depth": 2}, 128, "a stage must be a block of 128 of k but is 64; take k_depth 4"),
        ({"reverse_k": True}, 128, "take reverse_k false"),
        ({"tile_m": 64, "tile_n": 152}, 128, "152 columns of a consumer may lie in three blocks of B"),
        ({"tile_m": 64, "tile_n": 152, "swap_ab": True}, 128, ""),
        ({"tile_m": 128, "tile_n": 192, "swap_ab": True}, 128, "scales of blocks need more than 224 registers"),
        ({"tile_m": 256, "tile_n": 128}, 128, ""),
    ],
)
def test_scales_of_blocks_need_a_stage_for_each_and_columns_in_two_blocks(config, promote, text):
    broken = reasons(GemmConfig(**config), replace(PROBLEM, promote=promote), BLOCKS)
    assert [reason.rule for reason in broken] == ["blocks"] * bool(text)
    assert text in "".join(reason.text for reason in broken)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 16), (64, 7168, 2048), (129, 512, 16384), (4096, 7168, 65536)])
def test_every_size_has_a_kernel_with_scales_of_blocks(m, n, k, invariant):
    problem = GemmProblem(m, n, k, "e4m3_bf16", batch_invariant=invariant, promote=128)
    assert is_legal(choose(problem, finish=BLOCKS), problem, BLOCKS)


@pytest.mark.parametrize("promote", [0, 128, 256, 512])
@pytest.mark.parametrize("m", [1, 64, 129, 4096])
def test_every_size_has_a_kernel_whatever_the_promotion(m, promote):
    problem = replace(PROBLEM, m=m, promote=promote)
    assert is_legal(choose(problem, finish=ROW), problem, ROW)


def test_a_quarter_of_the_menu_promotes_at_least():
    kernels = [kernel for kernel in binaries() if is_legal(kernel, replace(PROBLEM, k=65536, promote=128))]
    assert 4 * len(kernels) >= len(binaries())


def test_two_consumers_promote_while_one_multiplies_and_a_lone_one_does_not():
    """Promotion takes a lone consumer's time alone."""
    promoted = replace(PROBLEM, promote=128)
    lone, pair = GemmConfig(tile_m=64), GemmConfig(tile_m=128)
    assert resolve(pair).readers == 2
    assert predict(lone, promoted).seconds > predict(lone, PROBLEM).seconds
    assert predict(pair, promoted) == predict(pair, PROBLEM)


def test_scales_of_blocks_take_time_beside_a_second_consumer_too():
    row, blocks = (replace(RECIPE, promote=128, scales=scales) for scales in ("row", "blocks"))
    pair = GemmConfig(tile_m=192, tile_n=96, consumers=3, stagger=0)
    assert predict(pair, blocks).seconds > predict(pair, row).seconds
    assert predict(pair, blocks) == predict(pair, replace(PROBLEM, promote=128), finish=BLOCKS)


@pytest.mark.parametrize(
    ("config", "scales", "ahead"),
    [
        ({"tile_m": 64, "tile_n": 64}, (1, 1), 7),
        ({"tile_m": 256, "tile_n": 128}, (1, 1), 3),
        ({"tile_m": 192, "tile_n": 96}, (1, 2), 7),
        ({"tile_m": 256, "tile_n": 64, "swap_ab": True}, (2, 2), 3),
        ({"tile_m": 128, "tile_n": 192, "swap_ab": True}, (6, 1), 0),
    ],
)
def test_scales_are_read_as_far_ahead_as_registers_and_code_allow(config, scales, ahead):
    kernel = resolve(GemmConfig(**config))
    assert (kernel.block_scales, kernel.scales_ahead) == (scales, ahead)


def test_no_product_in_blocks_is_predicted_to_be_faster_than_its_lower_bound():
    kernels = [kernel for kernel in binaries() if not kernel.parts_at_launch]
    bounds = LowerBounds([*enumerate(kernels)])
    rows, parts = np.arange(len(kernels)), np.array([kernel.split_k for kernel in kernels])
    for m, n, k in ((64, 7168, 2048), (4096, 2112, 7168), (8192, 8192, 8192)):
        problem = ScaledProblem(m, n, k, "e4m3_bf16", promote=128, scales="blocks")
        for kernel, bound in zip(kernels, bounds(problem, rows, parts), strict=True):
            assert bound <= predict(kernel, problem).seconds


def test_fp8_is_measured_with_scales_alone():
    with pytest.raises(ValueError, match="a measured problem of e4m3_bf16 must have scales but has none"):
        Point(PROBLEM, resolve(GemmConfig()))
    assert Point(ScaledProblem(64, 64, 64, "e4m3_bf16"), "cublas").problem.scales == "tensor"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"scales": ""}, "scales must be one of tensor, row, blocks but got ''"),
        ({"dtype": "bf16"}, "a dtype with scales must be one of e4m3_bf16, .* but got bf16"),
        ({"scales": "blocks"}, "promote must be 128 with scales of blocks but got 0"),
        ({"promote": 64}, "promote must be one of 0, 128, 256, 512 but got 64"),
    ],
)
def test_a_recipe_that_there_is_not_is_refused(fields, text):
    with pytest.raises(ValueError, match=text):
        ScaledProblem(**{"m": 64, "n": 64, "k": 64, "dtype": "e4m3_bf16", **fields})


def test_nothing_is_measured_or_kept_of_fp8_without_its_scales():
    with pytest.raises(ValueError, match="scales must be one of tensor, row, blocks for e4m3_bf16 but are missing"):
        problem_from(m=64, n=64, k=64, dtype="e4m3_bf16", promote=128)


def test_a_problem_with_scales_takes_the_rules_and_the_code_of_their_finish():
    problem = ScaledProblem(4096, 7168, 2048, "e4m3_bf16", promote=128, scales="blocks")
    deep = resolve(GemmConfig(128, 128, k_depth=2))
    assert {reason.rule for reason in reasons(deep, problem)} == {"blocks"}
    assert KernelId.of(deep, problem) == KernelId.of(deep, replace(PROBLEM, promote=128), finish=BLOCKS)
    assert problem.in_words == PROBLEM.in_words


def test_an_entry_of_fp8_serves_calls_of_its_recipe_alone(tmp_path):
    """Whatever else the call's finish does. Tables keep an entry of each recipe."""
    recipes = {"tensor": 0, "row": 128}
    entries = [entry(replace(RECIPE, promote=promote, scales=scales)) for scales, promote in recipes.items()]
    write_tuned(tmp_path / FILE, entries)
    table = [Table(tuple(read_tuned(tmp_path / FILE)))]
    assert len(table[0].entries) == 2
    for scales, promote in product(("tensor", "row", "blocks"), (0, 128)):
        finish = Epilogue(bias=True, scales=scales)
        if scales != "blocks" or promote:
            pick = find(table, replace(PROBLEM, promote=promote), finish=finish)
            assert pick.how == ("tuned" if recipes.get(scales) == promote else "model"), (scales, promote)


def entry(problem):
    figures = {"speedup": 1.1, "speedup_low": 1.09, "speedup_high": 1.11, "noise": 0.001, "registers": 168, "wgmma": 8}
    origin = {"instructions": 900, "code": "c0de", "study": "s", "gpu": "NVIDIA H100", "context": "isolated"}
    return TunedEntry(problem, "burst", resolve(GemmConfig(128, 128)), **figures, **origin)


def test_entries_of_fp8_serve_their_own_operands_alone():
    assert {problem.dtype for problem in itself(replace(PROBLEM, dtype="e4m3_fp16"))} == {"e4m3_fp16", "e4m3_bf16"}
