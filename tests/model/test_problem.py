"""What a problem is, and what is none."""

from __future__ import annotations

import pytest

from hopper_gemm.model.problem import GemmProblem, shown, types_of

TYPES = [
    ("bf16", ("bf16", "bf16"), 2),
    ("fp16", ("fp16", "fp16"), 2),
    ("bf16_fp32", ("bf16", "fp32"), 4),
    ("fp16_fp32", ("fp16", "fp32"), 4),
]


@pytest.mark.parametrize(("dtype", "types", "out_bytes"), TYPES)
def test_an_output_of_fp32_weighs_twice_as_much_and_the_operands_what_they_did(dtype, types, out_bytes):
    problem = GemmProblem(3, 5, 7, dtype)
    assert types_of(dtype) == types
    assert problem.out_bytes == out_bytes
    assert problem.bytes == 2 * (3 * 7 + 7 * 5) + out_bytes * 3 * 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0, "n": 8, "k": 8}, "m must be a positive integer but got 0"),
        ({"m": 8, "n": 2.5, "k": 8}, "n must be a positive integer but got 2.5"),
        ({"m": 8, "n": 8, "k": True}, "k must be a positive integer but got True"),
        ({"m": 8, "n": 8, "k": 8, "dtype": "fp64"}, "e5m2_fp32 but got 'fp64'"),
        ({"m": 8, "n": 8, "k": 8, "layouts": "nn"}, "layouts must be one of kk, mk, kn, mn but got 'nn'"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected_and_what_came(arguments, message):
    with pytest.raises(ValueError) as caught:
        GemmProblem(**arguments)
    assert message in str(caught.value)


def test_a_value_is_shown_in_one_line_of_sixty_characters_at_most():
    assert shown("a\n b") == r"'a\n b'"
    assert (len(shown("x" * 58)), len(shown("x" * 59)), len(shown([1] * 99))) == (60, 60, 60)
