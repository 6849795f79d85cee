"""Eager calls with gradients run the kernel without an operator, with the operators' gradients."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import hopper_gemm
from hopper_gemm.serve.ops import linear_op, mm, swiglu_op

M, N, K = 24, 40, 16


def tensors():
    """x (2, m, k), a (m, k), w (n, k), bias (n,) and residual (2, m, n), each with a gradient."""
    shapes = (2, M, K), (M, K), (N, K), (N,), (2, M, N)
    return [torch.randn(*shape).to(torch.bfloat16).requires_grad_() for shape in shapes]


CALLS = {
    "matmul": (
        lambda x, a, w, bias, residual: hopper_gemm.matmul(a, w.t()),
        lambda x, a, w, bias, residual: mm(a, w.t()),
    ),
    "layer": (
        lambda x, a, w, bias, residual: hopper_gemm.linear(x, w, bias, "gelu", residual, 0.5),
        lambda x, a, w, bias, residual: linear_op(x, w, bias, "gelu", residual, 0.5),
    ),
    "gated": (
        lambda x, a, w, bias, residual: hopper_gemm.swiglu(x, w),
        lambda x, a, w, bias, residual: swiglu_op(x, w),
    ),
}
"""Calls, and the operators that do the same."""


def repeated(call, *given):
    """What a call returns once its launches are recorded, where the extension repeats them."""
    call(*(one.detach().requires_grad_(one.requires_grad) for one in given))
    return call(*given)


def gradients(out, given):
    weight = torch.arange(out.numel()).reshape(out.shape).to(out.dtype) / out.numel()
    return torch.autograd.grad(out, given, weight, allow_unused=True)


@pytest.mark.parametrize("name", CALLS)
def test_an_eager_call_has_the_gradients_of_its_operator(launches, name):
    ours, operator = CALLS[name]
    given = tensors()
    out, expected = repeated(ours, *given), operator(*given)
    if name == "matmul":
        assert "mm" in out.grad_fn.name()
    assert torch.allclose(out.float(), expected.float(), rtol=2e-2, atol=2e-2)
    for found, right in zip(gradients(out, given), gradients(expected, given), strict=True):
        assert (found is None) == (right is None)
        if found is not None:
            assert found.dtype == right.dtype
            assert float((found.float() - right.float()).norm()) <= 2e-2 * float(right.float().norm())


@pytest.mark.parametrize("name", CALLS)
def test_a_result_may_be_changed_in_place(launches, name):
    """As ``torch.relu_`` does to a layer's output, whatever its leading axes."""
    ours, _ = CALLS[name]
    given = tensors()
    expected = gradients(torch.relu(ours(*given)), given)
    found = gradients(repeated(ours, *given).relu_(), given)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["layer", "gated"])
def test_a_backward_pass_computes_no_product_once_more(launches, name):
    """What is before an activation is kept: of two operands the gradients are two products."""
    _, _, w, *_ = given = tensors()
    out = CALLS[name][0](*given)
    before = len(launches.made)
    torch.autograd.grad(out.sum(), (given[0], w))
    assert (before, len(launches.made)) == (1, 3)


def test_an_activated_result_may_be_changed_in_place(launches):
    """Torch's relu keeps its output, which that would spoil."""
    _, _, w, *_ = given = tensors()
    expected = torch.autograd.grad((2 * torch.relu(hopper_gemm.linear(given[0], w))).sum(), w)
    out = hopper_gemm.linear(given[0], w, activation="relu").mul_(2)
    assert torch.equal(*expected, *torch.autograd.grad(out.sum(), w))


def test_a_residual_that_is_not_contiguous_is_refused_with_a_gradient_too(launches):
    x, w = torch.randn(K, K).bfloat16().requires_grad_(), torch.randn(K, K).bfloat16()
    with pytest.raises(ValueError, match="residual must"):
        hopper_gemm.linear(x, w, activation="silu", residual=torch.randn(K, K).bfloat16().t())


@pytest.mark.parametrize("call", [lambda x, w: hopper_gemm.linear(x, w, activation="silu"), hopper_gemm.swiglu])
def test_a_gradient_through_an_activation_has_a_tangent(launches, call):
    """Where no graph of the gradient is made, torch's own gradient of silu has none."""
    x, w = torch.randn(3, K).bfloat16().requires_grad_(), torch.randn(2 * N, K).bfloat16()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.randn_like(x))
        (gradient,) = torch.autograd.grad(call(dual, w).sum(), x)
        assert forward_ad.unpack_dual(gradient).tangent is not None


def test_only_what_a_gradient_needs_is_kept(launches):
    _, a, w, _, _ = tensors()
    hopper_gemm.matmul(a, w.detach().t())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.shape) or one, lambda one: one):
        hopper_gemm.matmul(a, w.detach().t())
    assert kept == [(K, N)]


def test_a_checkpointed_layer_multiplies_again_and_has_the_same_gradients(launches):
    given = tensors()
    x, _, w, bias, _ = given
    expected = gradients(hopper_gemm.linear(x, w, bias, "silu"), given)
    again = checkpoint(lambda x: hopper_gemm.linear(x, w, bias, "silu"), x, use_reentrant=False)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(gradients(again, given), expected, strict=True))


def test_gradients_keep_to_the_rule_of_their_product(launches):
    _, a, w, _, _ = tensors()
    with hopper_gemm.batch_invariant():
        out = repeated(hopper_gemm.matmul, a, w.t())
    launches.made.clear()
    gradients(out, [a, w])
    assert [problem.batch_invariant for problem, _, _ in launches.made] == [True] * 2
