"""scaled_grouped_mm gives each group's scaled product in one launch, and refuses the rest in one line."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import hopper_gemm
from hopper_gemm.serve import grouped_mm, scaled
from hopper_gemm.serve import scaled_grouped_mm as room
from hopper_gemm.serve.checks import UnsupportedError
from tests.serve.refusal import refused_in_one_line

functional = torch.nn.functional
pytestmark = pytest.mark.skipif(not hasattr(functional, "scaled_grouped_mm"), reason="torch has no scaled_grouped_mm")

ROWS, GROUPS, N, K = 40, 4, 144, 272
"""n and k with blocks of 16 behind whole ones."""

SPANS = (0, 3), (3, 3), (3, 31), (31, 40)

operator = torch.ops.hopper_gemm.scaled_grouped_mm


def operands(scales):
    """a (rows, k), b (groups, k, n), their scales, the recipes, and where groups end."""
    a, b = torch.randn(ROWS, K).to(torch.float8_e4m3fn), torch.randn(GROUPS, N, K).to(torch.float8_e4m3fn).mT
    offs, kinds = torch.tensor([end for _, end in SPANS], dtype=torch.int32), functional.ScalingType
    if scales == "row":
        return a, b, torch.rand(ROWS) + 0.5, torch.rand(GROUPS, N) + 0.5, (kinds.RowWise, kinds.RowWise), offs
    of_b = torch.rand(GROUPS, 2, 4).mT + 0.5
    return a, b, torch.rand(3, ROWS).t() + 0.5, of_b, (kinds.BlockWise1x128, kinds.BlockWise128x128), offs


def run(a, b, scale_a, scale_b, recipes, offs, **named):
    return hopper_gemm.scaled_grouped_mm(a, b, scale_a, recipes[0], scale_b, recipes[1], offs=offs, **named)


def exact(a, b, scale_a, scale_b, scales, bias=None, activation=None):
    parts = []
    for at, (start, end) in enumerate(SPANS):
        left, right = a[start:end].double(), b[at].double()
        if scales == "row":
            left, right = left * scale_a[start:end, None], right * scale_b[at]
        else:
            deep, wide = torch.arange(K) // 128, torch.arange(N) // 128
            left, right = left * scale_a[start:end][:, deep], right * scale_b[at][deep[:, None], wide]
        z = left @ right
        z = z if bias is None else z + bias[at].double()
        parts.append(getattr(functional, activation)(z) if activation else z)
    return torch.cat(parts)


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for a GPU: the operator of CPU tensors runs what it runs there, and launches are noted."""
    made = []

    def kernel_for(problem, device, finish=None):
        def launch(a, b, out, bias, residual, scale, scales, ends):
            assert (residual, scale) == (None, None)
            down, across = scales
            made.append((problem, finish, a, b, across))
            if finish.scales == "row":
                assert (down.shape, across.shape) == ((ROWS,), (GROUPS * N,))
                across = across.view(GROUPS, N)
            else:
                assert (down.stride(1), across.stride(2)) == (1, 1)
                down, across = down.t(), across.mT
            bias = None if bias is None else bias.view(GROUPS, N)
            named = finish.activation or None, out.dtype, problem.promote
            out.copy_(room._on_cpu(a, b.mT, down, across, finish.scales, ends, bias, *named))

        return launch

    monkeypatch.setattr(grouped_mm.launches, "kernel_for", kernel_for)
    monkeypatch.setattr(room, "check_device", lambda device: None)
    monkeypatch.setattr(scaled, "check_device", lambda device: None)
    monkeypatch.setattr("hopper_gemm.serve.checks.check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.ops.hopper_gemm, "scaled_grouped_mm", room._on_gpu)
    grouped_mm.kernel_of_groups.cache_clear()
    yield made
    grouped_mm.kernel_of_groups.cache_clear()


@pytest.mark.parametrize("scales", ["row", "blocks"])
@pytest.mark.parametrize(("biased", "activation", "dtype"), [(False, None, "bfloat16"), (True, "silu", "float16")])
def test_a_call_is_one_launch_of_each_group_s_scaled_product(gpu, scales, biased, activation, dtype):
    given, dtype = operands(scales), getattr(torch, dtype)
    bias = torch.randn(GROUPS, N).to(dtype) if biased else None
    out = run(*given, bias=bias, activation=activation, output_dtype=dtype)
    right = exact(*given[:4], scales, bias, activation)
    assert out.dtype == dtype
    assert float((out.double() - right).norm() / right.norm()) < 3e-3
    ((problem, finish, a, b, across),) = gpu
    assert across.data_ptr() == given[3].data_ptr(), "scales that lie as the kernel takes them are not copied"
    assert (problem.grouping, problem.groups, problem.promote, finish.scales) == ("rows", GROUPS, 128, scales)
    assert [a.data_ptr(), b.data_ptr()] == [given[0].data_ptr(), given[1].data_ptr()]


@pytest.mark.parametrize(("named", "promote"), [({"use_fast_accum": True}, 0), ({"promote": 512}, 512)])
def test_sums_are_fast_where_asked_for_and_else_promoted(gpu, named, promote):
    run(*operands("row"), **named)
    assert gpu[0][0].promote == promote


@pytest.mark.parametrize("scales", ["row", "blocks"])
def test_the_operator_is_what_torch_asks_of_one(scales):
    a, b, scale_a, scale_b, recipes, offs = operands(scales)
    given = a, b, scale_a, scale_b, scales, offs, None, "gelu", torch.bfloat16, 128
    torch.library.opcheck(operator.default, given, test_utils="test_faketensor")
    whole = torch.compile(run, fullgraph=True, backend=CompileCounter())
    right = operator(*given[:7], None, *given[8:])
    assert torch.equal(whole(a, b, scale_a, scale_b, recipes, offs), right)


def test_what_the_kernel_cannot_run_is_torch_s_unless_nothing_may():
    a, b, scale_a, scale_b, recipes, offs = operands("row")
    tensor = (functional.ScalingType.TensorWise,) * 2
    for given in ((a, b, scale_a, scale_b, tensor, offs), (a, b[0], scale_a, scale_b[0], recipes, offs)):
        with hopper_gemm.fallback("never"), pytest.raises(UnsupportedError, match="must"):
            run(*given)


def wrong_calls():
    """Calls that are refused, each with the error and its words."""
    a, b, scale_a, scale_b, _, offs = operands("row")

    def call(*given, bias=None):
        return lambda: operator(*given[:4], "row", given[4], bias, None, torch.bfloat16, 128)

    return [
        (call(a, b, scale_a, scale_b, offs[:3]), ValueError, r"offs must be \(4,\) torch.int32"),
        (call(a, b[:, :, 0], scale_a, scale_b, offs), ValueError, "offs must be"),
        (call(a, b, scale_a, scale_b[0], offs), ValueError, "scale_b must have 2 axes, the first of 4 groups"),
        (call(a, b, scale_a[1:], scale_b, offs), ValueError, r"scale_a must be \(40, 1\) torch.float32"),
        (call(a, b, scale_a, scale_b, offs, bias=scale_b), ValueError, r"bias must be \(144,\) torch.bfloat16"),
        (call(a, b, scale_a, scale_b, offs, bias=scale_b[:2]), ValueError, "bias must have 2 axes, the first of 4"),
        (call(a, b.mT.contiguous().mT.contiguous(), scale_a, scale_b, offs), ValueError, "mat_b must be contiguous"),
        (
            call(a, b, scale_a.clone().requires_grad_(), scale_b, offs),
            RuntimeError,
            "scaled products have no gradients",
        ),
    ]


@pytest.mark.parametrize("number", range(len(wrong_calls())))
def test_what_does_not_fit_is_refused_in_one_line(number):
    refused_in_one_line(*wrong_calls()[number])
