"""A public function returns what torch means, or raises an error of one line that says what is wrong."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from tests.serve.fuzz import fuzz, stand_in
from tests.serve.refusal import refused_in_one_line

CALLS = 1500


def test_no_call_ends_in_an_error_from_inside(monkeypatch):
    """Wrong types, and odd tensors, in every argument."""
    stand_in(monkeypatch)
    kinds, wrong = fuzz(range(CALLS))
    assert wrong == []
    assert min(kinds["result"], kinds["error"]) > CALLS // 5


X = torch.ones(8, 8, dtype=torch.bfloat16)
MODEL = torch.nn.Sequential(torch.nn.Linear(8, 8))

WRONG = {
    "a scale of a tensor": (lambda: hopper_gemm.linear(X, X, scale=torch.ones(8)), TypeError, "scale must be a float"),
    "a complex scale": (lambda: hopper_gemm.linear(X, X, scale=1j), TypeError, "scale must be a float"),
    "a scale of True": (lambda: hopper_gemm.linear(X, X, scale=True), TypeError, "scale must be a float"),
    "a scale of 80 bits": (lambda: hopper_gemm.linear(X, X, scale=2**80), ValueError, "scale must fit in 64 bits"),
    "a list": (lambda: hopper_gemm.linear(X, X, activation=["gelu"]), TypeError, "activation must be None or one of"),
    "a rule": (lambda: hopper_gemm.matmul(X, X, batch_invariant="yes"), TypeError, "batch_invariant must be True"),
    "a type's name": (lambda: hopper_gemm.matmul(X, X, out_dtype="fp32"), TypeError, "out_dtype must be a torch.dtype"),
    "a policy": (lambda: hopper_gemm.matmul(X, X, fallback=3), ValueError, "fallback must be one of"),
    "no model": (lambda: hopper_gemm.patch(3), TypeError, "model must be a torch.nn.Module"),
    "tokens": (lambda: hopper_gemm.patch(MODEL, tokens=5), TypeError, "tokens must be a list of"),
    "no path": (lambda: hopper_gemm.use_table(3), TypeError, "path must name a tuned table"),
    "a string": (lambda: hopper_gemm.prebuild("x"), TypeError, "problems must be a list of"),
    "a menu": (lambda: hopper_gemm.prebuild(menu=3), TypeError, "menu must be a list of"),
    "no problem": (lambda: hopper_gemm.warmup([3]), TypeError, "a problem must be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_argument_of_another_kind_is_named_with_what_it_must_be(monkeypatch, case):
    """In a first call, and where a launch with a number is known."""
    call, error, message = WRONG[case]
    stand_in(monkeypatch)
    hopper_gemm.linear(X, X, scale=0.5)
    hopper_gemm.linear(X, X, scale=2)
    refused_in_one_line(call, error, message)


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), 0.0, -2])
def test_a_scale_that_is_not_finite_multiplies_as_torch_does(monkeypatch, scale):
    stand_in(monkeypatch)
    assert torch.equal((X @ X * scale).isnan(), hopper_gemm.linear(X, X, scale=scale).isnan())
    assert torch.allclose(hopper_gemm.linear(X, X, scale=scale), X @ X * scale, equal_nan=True)
