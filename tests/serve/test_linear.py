"""The operators of linear and swiglu give torch's layers and their gradients; compilers see shapes of them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import hopper_gemm
from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.serve import launches as room
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.ops import linear_op, swiglu_op
from hopper_gemm.serve.reference import activated
from tests.serve.layers import excess, with_gradients
from tests.serve.refusal import refused_in_one_line
from tests.serve.test_ops import recorded

TYPES = [torch.bfloat16, torch.float16]


def layer(m=(3, 8), n=40, k=16, dtype=torch.bfloat16):
    """x, w, bias and residual, leading axes of x included."""
    return [torch.randn(*shape).to(dtype) for shape in ((*m, k), (n, k), (n,), (*m, n))]


def finished_layer(x, w, bias, residual, activation):
    return activated(0.5 * (x @ w.t()) + bias, activation) + residual


def gated_layer(x, w):
    gate, up = (x @ w.t()).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def near(found, exact, dtype):
    """Return True if the relative Frobenius error is that of a rounding or two."""
    return found.dtype == dtype and float((found.double() - exact).norm() / exact.norm()) < (
        6e-3 if dtype == torch.bfloat16 else 8e-4
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_linear_and_its_gradients_are_those_of_float64(activation, dtype):
    def ours(x, w, bias, residual):
        return linear_op(x, w, bias, activation, residual, 0.5)

    (out, right), *gradients = with_gradients(ours, partial(finished_layer, activation=activation), layer(dtype=dtype))
    assert excess(out, right) <= 1
    assert all(near(found, exact, dtype) for found, exact in gradients)


@pytest.mark.parametrize("dtype", TYPES)
def test_swiglu_and_its_gradients_are_those_of_float64(dtype):
    (out, right), *gradients = with_gradients(swiglu_op, gated_layer, layer(dtype=dtype)[:2])
    assert excess(out, right) <= 1
    assert all(near(found, exact, dtype) for found, exact in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_the_kernel_cannot_run_torch_runs_in_its_own_type(dtype):
    x, w, bias, residual = recorded(*(one.to(dtype) for one in layer()))
    out, gated = hopper_gemm.linear(x, w, bias, "silu", residual, 0.5), hopper_gemm.swiglu(x.detach(), w)
    expected = torch.nn.functional.silu(0.5 * (x @ w.t()) + bias) + residual
    assert torch.equal(out, expected)
    assert (out.dtype, gated.dtype, gated.shape) == (dtype, dtype, (3, 8, 20))
    out.sum().backward()
    assert bias.grad is not None


def test_an_fp32_output_takes_an_fp32_residual_and_is_not_rounded():
    x, w, bias, residual = layer()
    out = linear_op(x, w, bias, "silu", residual.float(), None, torch.float32)
    exact = activated(x.double() @ w.double().t() + bias.double(), "silu") + residual.double()
    assert out.dtype == torch.float32
    assert excess(out, exact) <= 1


def test_a_compiled_call_makes_no_break_and_one_graph_for_all_m():
    counter, (_, w, bias, _) = CompileCounter(), layer()

    def model(x):
        return hopper_gemm.swiglu(hopper_gemm.linear(x.relu(), w, bias, "gelu")[..., :16], w).relu()

    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for m in (8, 24, 33, 57):
        x = torch.randn(m, 16, dtype=torch.bfloat16)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        expected = swiglu_op(linear_op(x.relu(), w, bias, "gelu")[..., :16], w).relu()
        assert torch.equal(compiled(x), expected)
    assert counter.frame_count == 1


def never(call, *given):
    """A call that may not fall back."""
    with hopper_gemm.fallback("never"):
        return call(*given)


def wrong_calls():
    """Calls that are refused, each with the error and its words."""
    x, w, bias, residual = layer()
    return [
        (lambda: linear_op(x, w.t()), ValueError, r"x and w must be \(\.\.\., k\) and \(n, k\) .* as w\.t\(\)"),
        (lambda: linear_op(x, w.half()), TypeError, "x and w must have one type but got"),
        (lambda: linear_op(x.float(), w.float()), TypeError, "must both be bfloat16 or both float16"),
        (lambda: linear_op(x, w, bias.float()), ValueError, r"bias must be \(40,\) torch.bfloat16 on cpu but is"),
        (lambda: linear_op(x, w, None, "swish"), ValueError, "activation must be None or one of gelu"),
        (lambda: linear_op(x, w, residual=residual[0]), ValueError, r"residual must be \(3, 8, 40\)"),
        (lambda: linear_op(x, w, residual=residual.mT.contiguous().mT), ValueError, r"give it as \.contiguous\(\)"),
        (lambda: linear_op(x, w, out_dtype=torch.float16), TypeError, "out_dtype must be torch.bfloat16"),
        (lambda: swiglu_op(x, w[:39]), ValueError, "as many rows of the gate as of up but has 39"),
        (lambda: never(hopper_gemm.linear, x, w), RuntimeError, "must be on a Hopper GPU but are on cpu"),
        (lambda: never(hopper_gemm.swiglu, x, w), RuntimeError, "must be on a Hopper GPU but are on cpu"),
        (lambda: hopper_gemm.linear(x, w, batch_invariant=True), RuntimeError, "must be on a Hopper GPU"),
        (lambda: hopper_gemm.linear(None, w), TypeError, "x must be a plain torch tensor but is None; give one"),
        (
            lambda: hopper_gemm.linear(x, w, [1.0]),
            TypeError,
            "bias must be a plain torch tensor but is a builtins.list",
        ),
        (lambda: hopper_gemm.swiglu(x, None), TypeError, "w_gate_up must be a plain torch tensor but is None"),
    ]


@pytest.mark.parametrize("number", range(len(wrong_calls())))
def test_what_does_not_fit_is_refused_in_one_line(number):
    refused_in_one_line(*wrong_calls()[number])


# Which kernel is launched ---------------------------------------------------------------------


@pytest.fixture
def slower(monkeypatch):
    """Products on which torch.mm was measured to be faster: of so many rows."""
    rows = set()
    monkeypatch.setattr(room, "pick_for", lambda problem, device: problem)
    monkeypatch.setattr(room, "torch_is_faster", lambda problem: problem.m in rows)
    return rows


def test_torch_runs_a_layer_with_a_bias_alone_on_which_it_was_measured_to_win_where_it_may(by_python, slower):
    slower.add(24)
    x, w, bias, residual = layer()
    linear = hopper_gemm.linear
    with hopper_gemm.fallback("faster"):
        for _ in range(2):
            assert torch.equal(linear(x, w, bias), torch.nn.functional.linear(x, w, bias))
        assert len(LAUNCHES.table) == 1, "remembered"
        assert by_python.names == ["torch"] * 2
        linear(x[0], w, bias)
        linear(x, w, bias, "gelu")
        linear(x, w, bias, residual=residual)
        linear(x, w, bias, out_dtype=torch.float32)
        linear(x, w, bias, batch_invariant=True)
    assert by_python.names[2:] == ["bias", "bias+gelu", "bias+residual", "bias", "bias"]
    linear(x, w, bias)
    assert by_python.names[-1] == "bias", "asked for by the policy alone"


@pytest.mark.parametrize("sizes", [{"n": 39}, {"k": 15}])
def test_torch_runs_such_a_layer_out_of_the_launchs_reach_too(by_python, slower, sizes):
    slower.add(24)
    x, w, bias, _ = layer(**sizes)
    for policy, made in (("unsupported", "product"), ("faster", "torch")):
        with hopper_gemm.fallback(policy):
            hopper_gemm.linear(x, w, bias)
        assert by_python.names[-1] == made
