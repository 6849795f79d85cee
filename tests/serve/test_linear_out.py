"""What linear writes into: in place where its launch can store, from a buffer elsewhere, and never what is read."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm.serve import launches as room
from hopper_gemm.serve.ops import ARGUMENTS, linear_op, linear_out_op
from hopper_gemm.serve.reference import activated
from tests.serve.layers import excess
from tests.serve.refusal import refused_in_one_line
from tests.serve.test_linear import layer

TYPES = [torch.bfloat16, torch.float32]

ALL_STEPS = {"activation": "gelu", "scale": 0.5}


def outputs(dtype=torch.bfloat16):
    """Outputs of (3, 8, 40) by how they lie, each with whether its rows lie where the launch can store them."""
    return {
        "contiguous": (torch.zeros(3, 8, 40, dtype=dtype), True),
        "pitch": (torch.zeros(3, 8, 48, dtype=dtype)[..., 8:], True),
        "columns": (torch.zeros(40, 3, 8, dtype=dtype).permute(1, 2, 0), False),
        "axes turned": (torch.zeros(8, 3, 40, dtype=dtype).transpose(0, 1), False),
        "rows anywhere": (torch.zeros(3, 8, 41, dtype=dtype)[..., 1:], False),
    }


def exact(x, w, bias=None, residual=None, activation=None, scale=None):
    z = x.double() @ w.double().t() * (1.0 if scale is None else scale)
    z = activated(z if bias is None else z + bias.double(), activation)
    return z if residual is None else z + residual.double()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("where", outputs())
def test_any_output_is_written_and_in_place_where_the_launch_can_store(by_python, where, dtype):
    x, w, bias, residual = layer()
    for _ in range(3):
        out, stored = outputs(dtype)[where]
        by_python.made.clear()
        assert hopper_gemm.linear(x, w, bias, residual=residual.to(dtype), **ALL_STEPS, out=out) is out
        assert excess(out, exact(x, w, bias, residual, **ALL_STEPS)) <= 1
        ((_, _, written),) = by_python.made
        assert (written == out.data_ptr()) is stored


@pytest.mark.parametrize("where", outputs())
def test_a_product_alone_is_written_in_place_wherever_its_rows_start(by_python, where):
    x, w, *_ = layer()
    out, _ = outputs()[where]
    hopper_gemm.linear(x, w, out=out)
    assert by_python.names == ["product"]
    assert excess(out, exact(x, w)) <= 1
    assert (by_python.made[0][2] == out.data_ptr()) is (where not in ("axes turned", "columns"))


def test_operands_elsewhere_than_at_first_are_read_where_they_lie(by_python):
    """The launch reaches none off multiples of 16 bytes, and would not negate an output that is a negative view."""
    x, w, bias, _ = layer()
    moved = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)
    plain, negative = torch.empty(3, 8, 40), torch._neg_view(torch.empty(3, 8, 40))
    for one, out in ((x, plain), (x, plain), (moved, plain), (x, negative)):
        hopper_gemm.linear(one, w, bias, out=out)
        assert excess(out.resolve_neg(), exact(x, w, bias)) <= 1


def test_a_factor_alone_is_a_finish_too(by_python):
    x, w, *_ = layer()
    for _ in range(2):
        out = torch.empty(3, 8, 40, dtype=x.dtype)
        hopper_gemm.linear(x, w, scale=0.5, out=out)
        assert excess(out, exact(x, w, scale=0.5)) <= 1
    assert by_python.names == ["scale"] * 2


def test_the_operator_hands_on_what_it_is_asked(by_python):
    x, w, bias, residual = layer()
    out = torch.empty_like(residual)
    room.on_gpu("linear_out", x, w, out, bias, "gelu", residual, 0.5, True)
    assert excess(out, exact(x, w, bias, residual, "gelu", 0.5)) <= 1
    assert [problem.batch_invariant for _, problem in by_python.loaded] == [True]


def test_an_output_leaves_what_lies_around_it(by_python):
    x, w, bias, _ = layer()
    around = torch.full((3, 8, 56), 7.0, dtype=torch.bfloat16)
    for _ in range(2):
        hopper_gemm.linear(x, w, bias, out=around[..., 8:48])
    assert bool((around[..., :8] == 7).all() and (around[..., 48:] == 7).all())
    assert excess(around[..., 8:48], exact(x, w, bias)) <= 1


@pytest.mark.parametrize("dtype", TYPES)
def test_the_residual_is_replaced_by_the_sum_where_it_is_the_output(by_python, dtype):
    """In place, by the launch itself."""
    x, w, bias, residual = layer()
    total = residual = residual.to(dtype)
    for _ in range(3):
        before = residual.clone()
        by_python.made.clear()
        assert hopper_gemm.linear(x, w, bias, residual=residual, out=residual) is residual
        assert excess(residual, exact(x, w, bias, before)) <= 1
        assert [written for _, _, written in by_python.made] == [total.data_ptr()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_the_kernel_cannot_run_torch_writes(dtype):
    x, w, bias, residual = (one.to(dtype) for one in layer())
    out = torch.empty_like(residual)
    assert hopper_gemm.linear(x, w, bias, "silu", residual, out=out) is out
    assert torch.equal(out, hopper_gemm.linear(x, w, bias, "silu", residual))


def test_an_fp32_output_of_torchs_is_not_rounded_on_its_way():
    x, w, bias, residual = layer()
    out = residual.float()
    hopper_gemm.linear(x, w, bias, residual=out, out=out)
    assert excess(out, exact(x, w, bias, residual)) <= 1


def test_linear_out_takes_the_layers_arguments_in_their_order():
    of_linear, of_out = (list(ARGUMENTS[name]) for name in ("linear", "linear_out"))
    of_linear.remove("out_dtype")
    of_out.remove("out")
    assert of_linear == of_out


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_call_writes_to_out_without_a_break_for_any_m(in_place):
    _, w, bias, _ = layer()

    def write(x, residual, out):
        return hopper_gemm.linear(x.relu(), w, bias, "gelu", residual, out=residual if in_place else out) * 2

    compiled = torch.compile(write, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (8, 33):
        x, residual = torch.randn(m, 16).bfloat16(), torch.randn(m, 40).bfloat16()
        out, expected = torch.zeros_like(residual), linear_op(x.relu(), w, bias, "gelu", residual)
        assert torch.equal(compiled(x, residual, out), expected * 2)
        assert torch.equal(residual if in_place else out, expected)


def test_within_autocast_an_output_of_fp32_is_written_from_a_buffer(by_python):
    x, w, bias, _ = (one.float() for one in layer())
    for added in (bias, None):
        out = torch.empty(3, 8, 40)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hopper_gemm.linear(x, w, added, out=out)
        wide = (None if one is None else one.bfloat16() for one in (x, w, added))
        assert torch.allclose(out.double(), exact(*wide), atol=1e-4)
    assert by_python.made == []


def wrong_calls():
    """Calls that are refused, each with the error and its words."""
    x, w, bias, residual = layer()
    out, linear = torch.empty_like(residual), hopper_gemm.linear
    whole = torch.zeros(1000, dtype=torch.bfloat16)
    square, both = torch.zeros(40, 40, dtype=torch.bfloat16), torch.zeros(2, 3, 8, 40, dtype=torch.bfloat16)
    learnt = w.clone().requires_grad_()
    shared = "out must not share memory with x, w, bias or a part of residual, which are read while it is written"
    return [
        (lambda: linear(x, w, out=out[0]), ValueError, r"out must be \(3, 8, 40\) torch.bfloat16 or torch.float32 on"),
        (lambda: linear(x, w, out=out.half()), ValueError, r"out must be \(3, 8, 40\) .* but is .* torch.float16"),
        (lambda: linear(x[0, 0], w, out=out), ValueError, r"out must be \(40,\) torch"),
        (lambda: linear(x, w, out_dtype=torch.float32, out=out), ValueError, r"out must be \(3, 8, 40\) torch.float32"),
        (lambda: linear(x, w, out=[1.0]), TypeError, r"out must be a plain torch tensor but is a builtins\.list"),
        (lambda: linear(x, learnt, out=out), RuntimeError, "out must be None where a gradient is recorded"),
        (lambda: linear(x, w, out=out.clone().requires_grad_()), RuntimeError, "a gradient is recorded; use what is"),
        (lambda: linear(square, square.t(), out=square), ValueError, shared),
        (lambda: linear(x[0], w, whole[:40], out=whole[32:352].view(8, 40)), ValueError, shared),
        (lambda: linear(x, w, residual=both[0], out=both.view(-1)[40:1000].view(3, 8, 40)), ValueError, shared),
        (lambda: linear(x[0], w, out=bias[:1].expand(8, 40)), ValueError, "out must have a place in memory for each"),
        (lambda: linear_out_op(square, square.t(), square), ValueError, shared),
        (lambda: linear_out_op(x.float(), w.float(), out.float()), TypeError, "must both be bfloat16 or both float16"),
    ]


@pytest.mark.parametrize("number", range(len(wrong_calls())))
def test_what_does_not_fit_is_refused_in_one_line(number):
    refused_in_one_line(*wrong_calls()[number])
