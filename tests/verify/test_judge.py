"""What is checked of a kernel finds each kind of mistake, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Finish
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem
from tests.verify.drawing import Pair
from tests.verify.judge import GuardedMatrix, check_pair, finished_product, plant, product
from tests.verify.kernels import Kernel

PAIR = Pair(GemmConfig(), GemmProblem(40, 48, 136), seed=5)


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_kernel_passes_whatever_the_types_layouts_and_sizes(dtype, layouts):
    for sizes in ((40, 48, 136), (8, 8, 8), (8, 264, 1024), (200, 8, 24)):
        for seed in range(3):
            pair = Pair(GemmConfig(), GemmProblem(*sizes, dtype, layouts), seed)
            found = check_pair(Kernel(), pair, "cpu")
            assert found.reason == ""
            assert len(found.bits) == 16


FINISHES = [
    Finish(bias=True, activation="gelu"),
    Finish(True, True, "silu", True),
    Finish(activation="relu", gated=True),
]


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_finish_is_checked_with_what_it_adds(dtype, finish):
    pair = replace(PAIR, finish=finish, problem=replace(PAIR.problem, dtype=dtype))

    def right(a, b, out):
        out.copy_(finished_product(pair, a, b))

    def plain(a, b, out):
        out.copy_(product(a, b)[:, : out.shape[1]])

    assert check_pair(right, pair, "cpu").reason == ""
    assert "are off by more than rounding" in check_pair(plain, pair, "cpu").reason


@pytest.mark.parametrize("scales", ["tensor", "row", "blocks"])
@pytest.mark.parametrize("dtype", ["e4m3_bf16", "e5m2_fp16", "e4m3_fp32"])
def test_products_of_fp8_are_checked_with_their_scales(dtype, scales):
    """Rows in each other's places are found, and so is a product without scales."""
    finish = Finish(bias=True, activation="silu", scales=scales)
    pair = Pair(GemmConfig(), GemmProblem(40, 272, 400, dtype, promote=128), seed=5, finish=finish)

    def right(a, b, out):
        out.copy_(finished_product(pair, a, b))

    def shifted(a, b, out):
        out.copy_(finished_product(pair, a.roll(1, 0), b))

    def without(a, b, out):
        out.copy_(product(a, b))

    assert check_pair(right, pair, "cpu").reason == ""
    for wrong in (shifted, without):
        assert "are off by more than rounding" in check_pair(wrong, pair, "cpu").reason


def test_an_element_of_an_fp8_product_that_is_one_block_of_k_off_is_found():
    pair = Pair(GemmConfig(), GemmProblem(40, 272, 4096, "e4m3_bf16", promote=128), 5, Finish(scales="blocks"))

    def wrong(a, b, out):
        out.copy_(finished_product(pair, a, b))
        short = a.clone()
        short[7, :128] = 0
        out[7, 9] = finished_product(pair, short, b)[7, 9]

    assert "1 of 10880 elements are off by more than rounding" in check_pair(wrong, pair, "cpu").reason


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("one off", "1 of 1920 elements are off by more than rounding"),
        ("unwritten", "1 of 1920 elements were not written"),
        ("row lost", "48 of 1920 elements are off by more than rounding"),
        ("outside", "1 elements outside the output were written"),
        ("operand", "operand A was written"),
        ("third run", "run 3 gave other bits than the first"),
        ("saturate", "elements are +inf in one of both"),
        ("drop NaN", "elements are NaN in one of both"),
    ],
)
def test_each_mistake_is_found_and_named(mistake, reason):
    assert reason in check_pair(Kernel(mistake), PAIR, "cpu").reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_that_takes_subnormal_numbers_for_zero_is_found(dtype):
    pair = replace(PAIR, problem=replace(PAIR.problem, dtype=dtype))
    assert "elements are NaN in one of both" in check_pair(Kernel("flush"), pair, "cpu").reason


def test_a_graph_whose_replay_gives_other_bits_is_found():
    kernel = Kernel()

    def replay(function):
        def again():
            function()
            kernel.mistake = "one off"

        return again

    found = check_pair(kernel, PAIR, "cpu", replay=replay)
    assert found.reason == "replay 2 of a graph gave other bits than the first run"


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_guarded_matrix_lies_where_tma_reaches_it_among_what_it_is_filled_with(by_rows, dtype):
    matrix = torch.arange(24 * 8).reshape(24, 8).to(dtype)
    guarded = GuardedMatrix.of(matrix, by_rows, fill=-1.0)
    assert torch.equal(guarded.matrix, matrix)
    assert guarded.matrix.data_ptr() % 16 == 0
    pitch = max(guarded.matrix.stride())
    assert pitch * matrix.element_size() % 16 == 0
    assert guarded.matrix.stride()[0 if by_rows else 1] == 1
    assert int((guarded.whole == -1.0).sum()) == guarded.whole.numel() - matrix.numel()


def test_special_values_are_planted_one_a_row():
    matrix = torch.ones(50, 64, dtype=torch.bfloat16)
    plant(matrix, 3, (float("inf"), float("nan"), 5.0))
    assert sorted((matrix != 1).sum(1).tolist())[-4:] == [0, 1, 1, 1]
