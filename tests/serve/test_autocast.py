"""Autocast casts what torch's own casts: every floating-point type but fp64, to the type of the context."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm.serve.ops import bmm_op, linear_op, mm, swiglu_op
from tests.serve.launcher import Launches

F = torch.nn.functional

KINDS = {
    "mm": (mm, hopper_gemm.matmul, lambda x, w: torch.mm(x, w.mT), lambda x, w: (x, w.mT)),
    "bmm": (bmm_op, hopper_gemm.bmm, lambda x, w: torch.bmm(x[None], w.mT[None]), lambda x, w: (x[None], w.mT[None])),
    "linear": (linear_op, hopper_gemm.linear, F.linear, lambda x, w: (x, w)),
    "swiglu": (swiglu_op, hopper_gemm.swiglu, F.linear, lambda x, w: (x, w)),
}
"""Operators, public functions, torch's product of the same types, and the operands."""

TYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(params=["operator", "cpu", "launches"])
def way(request, monkeypatch):
    """The operator, the public function where torch runs it, and where launches are those of a GPU."""
    if request.param == "launches":
        Launches(monkeypatch)
    return 0 if request.param == "operator" else 1


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_operands_of_any_two_types_are_cast_as_torch_casts_them(way, kind, to):
    *ours, theirs, operands = KINDS[kind]
    for left in TYPES:
        for right in TYPES:
            x, w = torch.randn(8, 16).to(left), torch.randn(32, 16).to(right)
            given = operands(x, w)
            for _ in range(2):  # first and known
                with torch.autocast("cpu", to):
                    assert ours[way](*given).dtype == theirs(x, w).dtype == to
            if left == right != torch.float32:
                assert ours[way](*given).dtype == left


def test_a_known_call_follows_the_type_of_the_context(way):
    x, w = torch.randn(8, 16).half(), torch.randn(32, 16).half()
    function = (linear_op, hopper_gemm.linear)[way]
    for to in (torch.float16, torch.bfloat16, torch.float16):
        with torch.autocast("cpu", to):
            assert function(x, w).dtype == F.linear(x, w).dtype
    assert function(x, w).dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_bias_and_residual_are_cast_with_operands_that_stay(way, dtype):
    x, w = torch.randn(8, 16).bfloat16(), torch.randn(32, 16).bfloat16()
    bias, residual = torch.randn(32, dtype=dtype), torch.randn(8, 32, dtype=dtype)
    function = (linear_op, hopper_gemm.linear)[way]
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(x, w, bias).dtype == function(x, w, bias).dtype == torch.bfloat16
        assert function(x, w, bias, None, residual).dtype == torch.bfloat16


@pytest.mark.parametrize("other", [torch.float64, torch.int32])
@pytest.mark.parametrize("kind", KINDS)
def test_fp64_and_integers_are_not_cast_and_fit_nothing_else(way, kind, other):
    *ours, theirs, operands = KINDS[kind]
    for dtype in (torch.float32, torch.bfloat16):
        x, w = torch.ones(8, 16, dtype=dtype), torch.ones(32, 16, dtype=other)
        with torch.autocast("cpu", torch.bfloat16):
            with pytest.raises(RuntimeError):
                theirs(x, w)
            with pytest.raises(TypeError, match=f"but got torch.bfloat16 and {other}; convert them with"):
                ours[way](*operands(x, w))


@pytest.mark.parametrize("kind", ["mm", "linear"])
def test_a_product_of_fp64_stays_torchs(kind):
    _, function, theirs, operands = KINDS[kind]
    x, w = torch.randn(8, 16).double(), torch.randn(32, 16).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(function(*operands(x, w)), theirs(x, w))
