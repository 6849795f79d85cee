"""The GPU tests' draws: enough of them, and all legal, known before a GPU is at hand."""

from __future__ import annotations

import pytest

from hopper_gemm.model.legality import is_legal
from tests.gpu.cases import cases_by_rows, drawn_cases, fp32_cases


def enough(cases, most):
    return len(cases) == most and all(is_legal(case.config, case.problem) for case in cases)


def test_there_are_enough_drawn_configs_on_drawn_problems():
    assert enough(drawn_cases(), 200)


@pytest.mark.parametrize("layouts", ["kk", "mk", "kn", "mn"])
def test_there_are_enough_with_an_fp32_output(layouts):
    assert enough(fp32_cases(layouts), 50)


@pytest.mark.parametrize("layouts", ["mk", "kn", "mn"])
def test_there_are_enough_with_operands_contiguous_along_their_rows(layouts):
    assert enough(cases_by_rows(layouts), 120)
