"""A row is one line: what is written is what is read, and a changed line is told from a whole one."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.tune.point import Point, Sample
from hopper_gemm.tune.study.row import Row, RowParser, as_text, figures_of, header, values_of
from hopper_gemm.tune.study.schema import CARRIED, NAMES

POINT = Point(GemmProblem(4096, 4096, 4096), resolve(LadderConfig(pdl=True, peek="producer")), context="chained")
FIGURES = {"speedup": 1.01234, "pairs": 15, "time_us": 196.25, "registers": 168, "code": "c0de"}
SAMPLES = (Sample(0, 196.25, 198.5), Sample(0, 196.5, 198.75, 4.5))


def parsed(record):
    return RowParser(record).row([as_text(value) for value in record.values()])


def read_back(line):
    return RowParser(NAMES).row(values_of(line, NAMES))


@pytest.mark.parametrize(
    "row",
    [
        Row(POINT, "ok", "", FIGURES, SAMPLES, study="s", gpu="NVIDIA H200", board="GPU-1"),
        Row(Point(POINT.problem, "cublas"), "ok", "", FIGURES, SAMPLES, "control"),
        Row(POINT, "timeout", 'killed, "twice", after 60 s', {"registers": 8}, process=2, stage="final"),
        Row(replace(POINT, problem=replace(POINT.problem, batch_invariant=True)), "ok", "", FIGURES),
        Row(replace(POINT, problem=ScaledProblem(64, 64, 64, "e4m3_bf16", promote=256, scales="row")), "ok"),
    ],
    ids=["measured", "control", "killed", "batch-invariant", "fp8"],
)
def test_a_row_is_the_same_after_its_line(row):
    line = row.line()
    assert "\n" not in line
    assert read_back(line) == row


def test_a_reason_of_several_lines_becomes_one():
    row = Row(POINT, "crash", "first\r\nsecond\nthird")
    assert read_back(row.line()).reason == "first second third"


def test_a_line_ends_with_the_sum_of_the_column_names_and_of_its_values():
    text, _, found = Row(POINT, "ok", "", FIGURES).line().rpartition(",")
    assert found == f"{zlib.crc32(f'{header()}{chr(10)}{text}'.encode()):08x}"


def test_figures_stand_only_where_the_status_is_ok():
    assert set(figures_of("ok", FIGURES)) == set(FIGURES)
    assert set(figures_of("wrong_result", FIGURES)) == {"registers", "code"}
    assert set(figures_of("ok", {**FIGURES, "unheard": 1, "watts": None})) == set(FIGURES)
    assert set(FIGURES) < set(CARRIED)


def test_the_noise_floor_is_a_row_for_each_board_and_nothing_else_is():
    first, second = (Row(Point(POINT.problem, "cublas"), "ok", stage="control", board=board) for board in "ab")
    assert first.key != second.key
    first, second = (Row(POINT, "ok", board=board) for board in "ab")
    assert first.key == second.key


def test_a_parameter_without_a_column_stands_at_its_default():
    """So rows that were recorded before there was the parameter still read."""
    row = Row(POINT, "ok", "", FIGURES)
    newer = ("scheduler", "rotate_k", "batch_invariant", "promote", "scales")
    record = {name: value for name, value in row.as_dict().items() if name not in newer}
    assert parsed(record).point == POINT


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m", "inf", "m must be an integer but got 'inf'"),
        ("pairs", "1e3", "pairs must be an integer but got '1e3'"),
        ("speedup", "inf", "speedup must be a finite number but got 'inf'"),
        ("speedup", "fast", "speedup must be a finite number but got 'fast'"),
        ("status", "fine", "status must be one of ok, illegal"),
        ("stage", "../x", "stage must be one of sweep, final"),
        ("regime", "x/../../../escaped", "regime must be one of burst, steady but got"),
        ("context", "vacuum", "context must be one of isolated, chained but got 'vacuum'"),
        ("samples", "0:1", "samples must be process:ours_us:baseline_us[:spacer_us] but got '0:1'"),
        ("samples", "0:a:b", "samples must be process:ours_us:baseline_us[:spacer_us] but got '0:a:b'"),
        ("tile_m", "0", "tile_m must be an integer from 1"),
        ("dtype", "", "dtype is missing"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_with_its_column(name, text, message):
    values = {**Row(POINT, "ok", "", FIGURES, SAMPLES).as_dict(), name: text}
    with pytest.raises(ValueError) as caught:
        parsed(values)
    assert message in str(caught.value)


def test_figures_keep_six_digits_and_what_is_missing_is_nothing():
    assert [as_text(one) for one in (1.23456789, 123456.7, True, None, float("nan"), 7, "x")] == [
        *("1.23457", "123457", "true", "", "", "7", "x")
    ]
