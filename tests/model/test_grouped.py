"""A problem of groups is a key of its own: total sizes and the number of groups, nothing of the routing."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GROUPINGS, ROWS_MOST, GroupedProblem
from hopper_gemm.model.legality import is_legal, reasons
from hopper_gemm.model.lookup import find, tables
from hopper_gemm.model.menu import choices, choose
from hopper_gemm.model.problem import GemmProblem

LAYOUTS = {"rows": "kk", "batch": "kk", "depth": "mn", "masked": "kk", "masked_depth": "mn"}


def problem(grouping="rows", m=4096, n=512, k=2048, groups=8, **values):
    return GroupedProblem(m, n, k, layouts=LAYOUTS[grouping], groups=groups, grouping=grouping, **values)


def test_a_grouped_problem_equals_no_dense_one_and_no_other_grouping():
    dense = GemmProblem(4096, 512, 2048)
    assert len({dense, problem(), problem("batch"), problem("depth"), problem(groups=16)}) == 5


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"groups": 0}, "groups must be a positive integer but got 0"),
        ({"groups": True}, "groups must be a positive integer but got True"),
        ({"grouping": "batch", "m": 4097}, "m must be a multiple of groups of batch but got 4097 of 8"),
        ({"grouping": "masked", "m": 4097}, "m must be a multiple of groups of masked but got 4097 of 8"),
        ({"grouping": "masked_depth", "k": 2044}, "k must be a multiple of groups of masked_depth but got 2044 of 8"),
        ({"m": ROWS_MOST}, f"m must be below {ROWS_MOST} in groups"),
        (
            {"dtype": "e4m3_bf16", "grouping": "batch"},
            "groups of batch must have operands of 16 bits but got e4m3_bf16",
        ),
        ({"m": 0}, "m must be a positive integer"),
    ],
)
def test_a_problem_that_cannot_be_is_refused_in_one_line(values, words):
    with pytest.raises(ValueError, match=words) as refused:
        problem(**values)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="grouping must be one of rows, batch, depth, masked, masked_depth"):
        GroupedProblem(8, 8, 8, grouping="columns")


def test_work_and_bytes_count_every_group_once():
    rows, batch, depth, masked, masked_depth = (problem(grouping) for grouping in GROUPINGS)
    assert (masked.bytes, masked_depth.bytes) == (rows.bytes, depth.bytes)
    assert rows.flop == batch.flop == depth.flop == 2 * 4096 * 512 * 2048
    assert rows.bytes == batch.bytes == 2 * (4096 * 2048 + 8 * 512 * 2048 + 4096 * 512)
    assert depth.bytes == 2 * (4096 * 2048 + 512 * 2048 + 8 * 4096 * 512)


@pytest.mark.parametrize(
    ("config", "grouping", "rule"),
    [
        (GemmConfig(reverse_k=True), "batch", "groups"),
        (GemmConfig(128, 128, split_k=2, stagger=0), "rows", "groups"),
        (GemmConfig(64, 128, schedule="pingpong"), "depth", "group_depth"),
        (GemmConfig(128, 256, staging="ring"), "depth", "group_depth"),
    ],
)
def test_a_kernel_that_does_not_know_groups_is_refused_by_name(config, grouping, rule):
    refused = reasons(config, problem(grouping))
    assert rule in [reason.rule for reason in refused]
    assert not any("\n" in reason.text for reason in refused)


def test_rows_are_read_along_k_and_sizes_are_in_reach_of_tma():
    assert [reason.rule for reason in reasons(GemmConfig(), GroupedProblem(64, 64, 64, layouts="mk"))] == ["group_rows"]
    assert [reason.rule for reason in reasons(GemmConfig(), problem(n=508))] == ["group_reach"]


@pytest.mark.parametrize(
    ("grouping", "finish", "legal"),
    [
        ("rows", Epilogue(bias=True, activation="gelu"), True),
        ("rows", Epilogue(activation="silu", gated=True), True),
        ("rows", Epilogue(residual=True), False),
        ("batch", Epilogue(scale=True, residual=True), True),
        ("depth", Epilogue(bias=True), False),
    ],
)
def test_a_finish_is_read_for_rows_of_c_and_picked_by_the_same_rule(grouping, finish, legal):
    refused = [reason.rule for reason in reasons(GemmConfig(), problem(grouping), finish)]
    assert refused == ([] if legal else ["group_finish"])
    if legal:
        for rows in (1, 64, 2048):
            assert is_legal(choose(problem(grouping, m=8 * rows), finish=finish), problem(grouping, m=8 * rows), finish)


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_pick_is_legal_and_the_model_s_whatever_tables_say(grouping):
    """A tuned entry of the dense problem of these sizes does not serve."""
    every = [
        problem(grouping, m=8 * groups * rows, k=4800, groups=groups)
        for groups, rows in ((1, 1), (8, 512), (300, 1), (64, 64))
    ]
    for wanted in every:
        pick = find(tables("h200"), wanted)
        assert pick.how == "model"
        assert pick.config == choose(wanted) == choices(wanted, 3)[0]
        assert is_legal(pick.config, wanted)


def test_few_rows_a_group_take_narrow_tiles():
    few, many = (choose(problem(m=128 * rows, n=2048, groups=128)) for rows in (1, 2048))
    assert min(few.tile_m, few.tile_n) < 64 <= min(many.tile_m, many.tile_n)


def test_the_dynamic_scheduler_evens_out_deep_groups_and_full_tiles_and_never_few_rows():
    deep, full, few = problem("depth", k=65536), problem(m=65536, n=4096, k=4096), problem(m=128, n=8192, groups=128)
    assert [choose(each).scheduler for each in (deep, full, few)] == ["dynamic", "dynamic", "static"]
