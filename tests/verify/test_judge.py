"""What is checked of a kernel finds each kind of mistake, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem
from hopper_gemm.serve.reference import activated
from tests.verify.drawing import Pair
from tests.verify.groups import ends_of, launching, spans_of
from tests.verify.judge import GuardedMatrix, added, check_pair, finished_product, plant, product, scales_of
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
    Epilogue(bias=True, activation="gelu"),
    Epilogue(True, True, "silu", True),
    Epilogue(activation="relu", gated=True),
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
    finish = Epilogue(bias=True, activation="silu", scales=scales)
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
    pair = Pair(GemmConfig(), GemmProblem(40, 272, 4096, "e4m3_bf16", promote=128), 5, Epilogue(scales="blocks"))

    def wrong(a, b, out):
        out.copy_(finished_product(pair, a, b))
        short = a.clone()
        short[7, :128] = 0
        out[7, 9] = finished_product(pair, short, b)[7, 9]

    assert "1 of 10880 elements are off by more than rounding" in check_pair(wrong, pair, "cpu").reason


GROUPED = [
    GroupedProblem(96, 48, 64, groups=6),
    GroupedProblem(96, 48, 64, "fp16", "kn", groups=6, grouping="masked"),
    GroupedProblem(96, 48, 64, "bf16_fp32", "mn", groups=6, grouping="batch"),
    GroupedProblem(48, 40, 90, "bf16", "mn", groups=6, grouping="depth"),
    GroupedProblem(48, 40, 90, "bf16_fp32", "mn", groups=6, grouping="masked_depth"),
    GroupedProblem(96, 144, 272, "e4m3_bf16", promote=128, groups=6),
]


class OfGroups:
    """A kernel of groups as it is launched, on matrices of the CPU, right or with a mistake."""

    def __init__(self, pair: Pair, mistake: str = "") -> None:
        self.pair, self.mistake = pair, mistake

    def __call__(self, a, b, out, bias=None, residual=None, scale=None, scales=None, ends=None):
        problem, finish = self.pair.problem, self.pair.finish or Epilogue()
        spans = spans_of(problem, None if ends is None else ends.tolist())
        if self.mistake == "neighbour" and problem.deep:
            spans = [(start, min(problem.k, end + 1)) for start, end in spans]
        elif self.mistake == "neighbour":
            spans = [(start, min(problem.m, end + 1)) for start, end in spans]
        for at, (start, end) in enumerate(spans[:-1] if self.mistake == "lost" else spans):
            if problem.deep:
                out[at] = (a[:, start:end].float() @ b[:, start:end].float().t()).to(out.dtype)
                continue
            left, right = (a.flatten(0, 1) if a.dim() == 3 else a)[start:end].float(), b[at].float()
            if finish.scales == "row":
                left, right = left * scales[0][start:end, None], right * scales[1].view(len(b), -1)[at][:, None]
            elif finish.scales:
                deep, wide = torch.arange(problem.k) // 128, torch.arange(problem.n) // 128
                left, right = left * scales[0][:, start:end].t()[:, deep], right * scales[1][at][wide][:, deep]
            z = left @ right.t() * (1 if scale is None else scale)
            z = z if bias is None else z + bias.view(len(b), -1)[at]
            z = (
                activated(z.chunk(2, -1)[0], "silu") * z.chunk(2, -1)[1]
                if finish.gated
                else activated(z, finish.activation)
            )
            rows = out.flatten(0, 1) if out.dim() == 3 else out
            rows[start:end] = z if residual is None else z + residual.flatten(0, 1)[start:end]


def grouped_cases():
    """Pairs of groups with what may follow their product, by several routings."""
    for problem in GROUPED:
        for finish in (None, Epilogue(bias=True, activation="gelu"), Epilogue(activation="silu", gated=True)):
            if not problem.is_fp8 and not (problem.deep and finish):
                yield from (Pair(GemmConfig(), problem, seed, finish) for seed in range(4))
        if problem.grouping == "batch":
            yield Pair(GemmConfig(), problem, 1, Epilogue(scale=True, residual=True))
        for scales in ("row", "blocks") if problem.is_fp8 else ():
            yield from (Pair(GemmConfig(), problem, seed, Epilogue(bias=True, scales=scales)) for seed in range(4))


@pytest.mark.parametrize("pair", [*grouped_cases()], ids=str)
def test_right_kernels_of_groups_pass_and_a_row_too_many_or_a_group_too_few_is_found(pair):
    def checked(mistake):
        call, scales = added(pair, "cpu"), scales_of(pair, "cpu") if pair.problem.is_fp8 else None
        return check_pair(launching(OfGroups(pair, mistake), pair, call, scales, "cpu"), pair, "cpu").reason

    assert checked("") == ""
    spans = spans_of(pair.problem, ends_of(pair.problem, pair.seed))
    if spans[-1][0] < spans[-1][1]:
        assert checked("lost") != ""
    size = pair.problem.k if pair.problem.deep else pair.problem.m
    if pair.problem.grouping != "batch" and spans[-1][1] < size:
        assert checked("neighbour") != ""


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
