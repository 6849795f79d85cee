"""What the drop-in refuses, before any GPU is touched."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm.drop_in import default_config
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem


def matrix(rows, columns, dtype=torch.bfloat16):
    return torch.zeros(rows, columns, dtype=dtype)


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        (matrix(8, 8), matrix(16, 8).t()[:, :4, None], ValueError, "a and b must be (m, k) and (k, n)"),
        (matrix(8, 8), matrix(8, 16).t(), ValueError, "but got (8, 8) and (16, 8)"),
        (
            matrix(8, 8, torch.float32),
            matrix(8, 8, torch.float32).t(),
            TypeError,
            "must both be bfloat16 or both float16",
        ),
        (matrix(8, 8), matrix(8, 8, torch.float16).t(), TypeError, "but got torch.bfloat16 and torch.float16"),
        (matrix(8, 16), matrix(16, 8), ValueError, "b.t() must have contiguous rows that do not overlap"),
        (matrix(16, 8).t(), matrix(8, 16).t(), ValueError, "use a = a.contiguous()"),
        (matrix(1, 16).expand(8, 16), matrix(8, 16).t(), ValueError, "a must have contiguous rows that do not overlap"),
        (matrix(8, 17)[:, :16], matrix(8, 16).t(), ValueError, "at multiples of 16 bytes (TMA)"),
        (matrix(8, 24)[:, 1:17], matrix(8, 16).t(), ValueError, "at multiples of 16 bytes (TMA)"),
        (matrix(8, 8), matrix(9, 8).t(), ValueError, "n_aligned: n must be a multiple of 8 but got 9; pad it to 16"),
        (matrix(8, 12), matrix(8, 12).t(), ValueError, "k_aligned: k must be a multiple of 8 but got 12"),
        (matrix(0, 8), matrix(8, 8).t(), ValueError, "m, n and k must be positive"),
        (matrix(8, 8), matrix(8, 8).t(), RuntimeError, "must be on a Hopper GPU but are on cpu"),
    ],
)
def test_what_cannot_be_multiplied_is_refused_with_the_mend(a, b, error, message):
    with pytest.raises(error) as caught:
        hopper_gemm.matmul(a, b)
    assert message in str(caught.value)


def test_out_must_fit():
    with pytest.raises(ValueError, match=r"out must be \(8, 8\) torch.bfloat16 on cpu but is \(8, 16\)"):
        hopper_gemm.matmul(matrix(8, 8), matrix(8, 8).t(), out=matrix(8, 16))


@pytest.mark.parametrize("sizes", [(1, 8, 8), (4096, 4096, 4096), (100_000, 64, 8192)])
def test_the_default_config_can_run_any_problem_that_any_config_can(sizes):
    problem = GemmProblem(*sizes)
    assert reasons(default_config(problem), problem) == []
