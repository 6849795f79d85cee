"""scaled_mm takes what torch's takes, gives what fp32 arithmetic gives, and refuses the rest in one line."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from functools import partial

import pytest
import torch

import hopper_gemm
from hopper_gemm.serve import scaled as room
from hopper_gemm.serve.checks import UnsupportedError
from tests.serve.refusal import refused_in_one_line

functional = torch.nn.functional
pytestmark = pytest.mark.skipif(not hasattr(functional, "scaled_mm"), reason="torch has no scaled_mm")

M, N, K = 24, 48, 64
BLOCKS = M, 144, 272
"""m, n and k with blocks of 16 columns and of 16 k behind whole ones."""


def block_scales(m, n, k, padded=True):
    """Scales of blocks as torch lays them out; or those of B without the rows that fill up."""
    deep, wide = -(-k // 128), -(-n // 128)
    return torch.rand(deep, m).t() + 0.5, torch.rand(wide, -(-deep // 4) * 4).t()[: None if padded else deep] + 0.5


def of_blocks(m, n, k, **named):
    """The arguments of a call with scales of blocks."""
    a, b, *_ = operands(m=m, n=n, k=k)
    scale_a, scale_b = block_scales(m, n, k, **named)
    kinds = functional.ScalingType
    return a, b, scale_a, kinds.BlockWise1x128, scale_b, kinds.BlockWise128x128


def exact_blocks(a, b, scale_a, recipe_a, scale_b, recipe_b):
    """Their product, of operands that are dequantised element by element."""
    rows, depth, columns = (torch.arange(size, device=a.device) for size in (*a.shape, b.shape[1]))
    left = a.double() * scale_a.double()[rows[:, None], depth[None] // 128]
    return left @ (b.double() * scale_b.double()[depth[:, None] // 128, columns[None] // 128])


def operands(scales="row", m=M, n=N, k=K, dtype=torch.float8_e4m3fn):
    """a, b, their scales and the recipe."""
    a, b = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype).t()
    if scales == "row":
        return a, b, torch.rand(m, 1) + 0.5, torch.rand(1, n) + 0.5, functional.ScalingType.RowWise
    return a, b, torch.rand(1) + 0.5, torch.rand(1) + 0.5, functional.ScalingType.TensorWise


def exact(a, b, scale_a, scale_b, bias=None):
    product = (a.double() @ b.double()) * scale_a.double() * scale_b.double()
    return product if bias is None else product + bias.double()


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for a GPU: operators of CPU tensors run what they run there, and a launch is noted."""
    made = []

    def kernel_for(problem, device, config=None, finish=None, scattered=None):
        def launch(a, b, out, bias, residual, scale, scales):
            assert (residual, scale) == (None, None)
            if finish.scales == "blocks":
                assert all(matrix.stride(1) == 1 for matrix in scales)
                scales = [matrix.t() for matrix in scales]
            else:
                assert all(vector.is_contiguous() for vector in scales)
                assert not any(vector.data_ptr() % 16 for vector in scales)
            made.append((problem, finish))
            out.copy_(room.reference(a, b.t(), *scales, finish.scales, bias, finish.activation or None, out.dtype))

        return launch

    monkeypatch.setattr(room, "kernel_for", kernel_for)
    monkeypatch.setattr(room, "check_device", lambda device: None)
    monkeypatch.setattr("hopper_gemm.serve.checks.check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    room._kernel.cache_clear()
    with torch.library._scoped_library("hopper_gemm", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operators that are overridden
        library.impl("scaled_mm", room._on_gpu, "CPU", allow_override=True)
        library.impl("scaled_mm_out", lambda *given: room._written(room._on_gpu, *given), "CPU", allow_override=True)
        yield made
    room._kernel.cache_clear()


def near(result, right):
    return float((result.double() - right).norm() / right.norm()) < 3e-3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scales", ["tensor", "row"])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_call_is_one_launch_of_the_scaled_product(gpu, dtype, scales, out_dtype):
    a, b, scale_a, scale_b, recipe = operands(scales, dtype=dtype)
    result = hopper_gemm.scaled_mm(a, b, scale_a, recipe, [scale_b], [recipe], output_dtype=out_dtype)
    assert result.dtype == out_dtype
    assert near(result, exact(a, b, scale_a, scale_b))
    ((problem, finish),) = gpu
    assert str(problem) == f"{M}x{N}x{K}"
    assert (problem.promote, finish.scales) == (128, scales)


@pytest.mark.parametrize(("named", "promote"), [({"use_fast_accum": True}, 0), ({"promote": 512}, 512)])
def test_sums_are_fast_where_asked_for_and_else_promoted(gpu, named, promote):
    a, b, scale_a, scale_b, recipe = operands()
    hopper_gemm.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, **named)
    assert gpu[0][0].promote == promote


@pytest.mark.parametrize("sizes", [BLOCKS, (1, 16, 16), (1, 128, 1040), (5, 400, 128)])
@pytest.mark.parametrize("padded", [True, False])
def test_scales_of_blocks_are_taken_as_torch_lays_them_out(gpu, sizes, padded):
    """Also where a side has one block or row, whose stride says nothing; sums are promoted, whatever is asked for."""
    given = of_blocks(*sizes, padded=padded)
    result = hopper_gemm.scaled_mm(*given, use_fast_accum=True)
    assert near(result, exact_blocks(*given))
    ((problem, finish),) = gpu
    assert (problem.promote, finish.scales) == (128, "blocks")


def test_scales_of_blocks_may_have_any_pitch(gpu):
    a, b, scale_a, first, scale_b, second = of_blocks(*BLOCKS)
    wide, high = torch.full((3, M + 1), float("nan")), torch.full((2, 7), float("nan"))
    wide[:, 1:], high[:, 3:] = scale_a.t(), scale_b.t()
    result = hopper_gemm.scaled_mm(a, b, wide.t()[1:], first, high.t()[3:], second)
    assert near(result, exact_blocks(a, b, scale_a, first, scale_b, second))


WRONG_BLOCKS = {
    "contiguous": (
        lambda sa, sb: (sa.contiguous(), sb),
        "scale_a must be (24, 3) torch.float32 on cpu with strides (1, 24)",
    ),
    "transposed": (lambda sa, sb: (sa.t(), sb), "but is (3, 24) torch.float32 on cpu with strides (24, 1)"),
    "too few": (lambda sa, sb: (sa[:, :2], sb), "but is (24, 2)"),
    "of each 128": (lambda sa, sb: (sa, sb[:2]), "scale_b must be (4, 2) torch.float32 on cpu with strides (1, 4)"),
    "flat": (lambda sa, sb: (sa, sb.reshape(-1)), "but is (8,)"),
    "type": (lambda sa, sb: (sa.double(), sb), "torch.float64"),
    "device": (lambda sa, sb: (sa, sb.to("meta")), "on meta"),
}


@pytest.mark.parametrize("case", WRONG_BLOCKS)
def test_scales_of_blocks_that_do_not_fit_are_refused_in_one_line(gpu, case):
    make, text = WRONG_BLOCKS[case]
    a, b, scale_a, first, scale_b, second = of_blocks(*BLOCKS)
    scale_a, scale_b = make(scale_a, scale_b)
    call = partial(hopper_gemm.scaled_mm, a, b, scale_a, first, scale_b, second)
    refused_in_one_line(call, ValueError, re.escape(text))
    assert gpu == []


def test_scales_of_blocks_have_one_interval(gpu):
    call = partial(hopper_gemm.scaled_mm, *of_blocks(*BLOCKS), promote=256)
    refused_in_one_line(call, ValueError, "promote must be 128 with scales of blocks but got 256")


def test_a_bias_an_activation_and_an_output_are_those_of_a_layer(gpu):
    a, b, scale_a, scale_b, recipe = operands()
    bias, out = torch.randn(2 * N).bfloat16()[::2], torch.empty(N + 1, M).t()[:, :N].bfloat16()
    given = a, b, scale_a, recipe, scale_b, recipe
    result = hopper_gemm.scaled_mm(*given, bias=bias, activation="silu", out=out)
    assert result is out
    assert near(out, functional.silu(exact(a, b, scale_a, scale_b, bias)))


def test_scales_that_begin_anywhere_and_batch_invariance_of_the_thread_are_taken(gpu):
    a, b, scale_a, scale_b, recipe = operands()
    memory = torch.empty(N + 1)
    memory[1:] = scale_b
    with hopper_gemm.batch_invariant():
        result = hopper_gemm.scaled_mm(a, b, scale_a, recipe, memory[1:].view(1, N), recipe)
    assert near(result, exact(a, b, scale_a, scale_b))
    assert gpu[0][0].batch_invariant


@pytest.mark.parametrize(("m", "n", "k"), [(0, 16, 16), (4, 0, 16), (4, 16, 0)])
def test_empty_products_are_empty_or_zero(gpu, m, n, k):
    a, b, scale_a, scale_b, recipe = operands(m=m, n=n, k=k)
    for given in ((a, b, scale_a, recipe, scale_b, recipe), of_blocks(m, n, k)):
        result = hopper_gemm.scaled_mm(*given)
        assert result.shape == (m, n)
        assert not result.any()
        assert gpu == []


WRONG = {
    "k": (
        lambda a, b, sa, sb: (a[:, :40].contiguous(), b.t()[:, :40].contiguous().t(), sa, sb),
        "k must be a multiple",
    ),
    "n": (lambda a, b, sa, sb: (a, b[:, :40], sa, sb[:, :40]), "n must be a multiple of 16 for FP8 but got 40"),
    "shapes": (lambda a, b, sa, sb: (a, b.t(), sa, sb), "must be (m, k) and (k, n)"),
    "layout of a": (lambda a, b, sa, sb: (a.t().contiguous().t(), b, sa, sb), "mat_a must be contiguous along k"),
    "layout of b": (lambda a, b, sa, sb: (a, b.contiguous(), sa, sb), "mat_b must be contiguous along k"),
    "pitch": (lambda a, b, sa, sb: (torch.zeros(M, K + 1).to(a.dtype)[:, :K], b, sa, sb), "rows of mat_a must start"),
    "shape of a scale": (lambda a, b, sa, sb: (a, b, sa[:-1], sb), f"scale_a must be ({M}, 1) torch.float32"),
    "axis of a scale": (lambda a, b, sa, sb: (a, b, sa.view(1, M), sb), f"scale_a must be ({M}, 1) torch.float32"),
    "type of a scale": (lambda a, b, sa, sb: (a, b, sa.double(), sb), "but is (24, 1) torch.float64"),
    "stride of a scale": (lambda a, b, sa, sb: (a, b, torch.ones(M, 2)[:, :1], sb), "contiguous, but is"),
    "device of a scale": (lambda a, b, sa, sb: (a, b, sa, sb.to("meta")), "but is (1, 48) torch.float32 on meta"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(gpu, case):
    make, text = WRONG[case]
    *given, recipe = operands()
    a, b, scale_a, scale_b = make(*given)
    call = partial(hopper_gemm.scaled_mm, a, b, scale_a, recipe, scale_b, recipe)
    refused_in_one_line(call, ValueError, re.escape(text))
    assert gpu == []


def test_wrong_settings_and_outputs_are_refused_in_one_line(gpu):
    a, b, scale_a, scale_b, recipe = operands()
    given = a, b, scale_a, recipe, scale_b, recipe
    for named in ({"promote": 64}, {"bias": torch.zeros(N)}, {"activation": "tanh"}, {"out": torch.empty(M, N)}):
        refused_in_one_line(partial(hopper_gemm.scaled_mm, *given, **named), ValueError, "must be")
    memory = torch.zeros(M * K, dtype=torch.float8_e4m3fn)
    given = memory.view(M, K)[:16], b[:, :16], scale_a[:16], recipe, scale_b[:, :16].contiguous(), recipe
    out = memory.view(torch.bfloat16)[: 16 * 16].view(16, 16)
    refused_in_one_line(partial(hopper_gemm.scaled_mm, *given, out=out), ValueError, "must not share memory")


def test_gradients_are_refused_in_one_line(gpu):
    a, b, scale_a, scale_b, recipe = operands()
    scale_a.requires_grad_()
    call = partial(hopper_gemm.scaled_mm, a, b, scale_a, recipe, scale_b, recipe)
    refused_in_one_line(call, RuntimeError, "no gradients")
    with torch.no_grad():
        call()


def test_what_the_kernel_cannot_run_goes_to_torch_by_the_policy(monkeypatch):
    """Here no tensor is on a GPU."""
    a, b, scale_a, scale_b, recipe = operands("tensor")
    given, seen = (a, b, scale_a, recipe, scale_b, recipe), []
    monkeypatch.setattr(functional, "scaled_mm", lambda *given: seen.append(given) or torch.ones(M, N))
    assert float(hopper_gemm.scaled_mm(*given, activation="relu").sum()) == M * N
    assert seen[0][:6] == given
    for within in (hopper_gemm.fallback("never"), hopper_gemm.batch_invariant()):
        with within:
            refused_in_one_line(partial(hopper_gemm.scaled_mm, *given), UnsupportedError, "must be")


def test_settings_and_outputs_that_the_kernel_refuses_are_not_torchs_either(monkeypatch):
    """Here no tensor is on a GPU. torch would spread one row of a product over all rows of an output."""
    a, b, scale_a, scale_b, recipe = operands("tensor")
    given = a[:1], b, scale_a, recipe, scale_b, recipe
    monkeypatch.setattr(functional, "scaled_mm", lambda *given: torch.ones(1, N).bfloat16())
    outputs = torch.zeros(M, N).bfloat16(), torch.zeros(1, N)
    for named in ({"activation": "tanh"}, {"promote": 128.0}, *({"out": out} for out in outputs)):
        refused_in_one_line(partial(hopper_gemm.scaled_mm, *given, **named), ValueError, "must be")
    assert not any(out.any() for out in outputs)


@pytest.mark.parametrize("kind", ["recipes", "types", "output", "lists"])
def test_other_recipes_and_types_go_to_torch(gpu, monkeypatch, kind):
    a, b, scale_a, scale_b, recipe = operands("tensor")
    named = {"output_dtype": torch.float8_e4m3fn} if kind == "output" else {}
    recipes = (functional.ScalingType.BlockWise128x128, functional.ScalingType.BlockWise1x128)
    first, second = recipes if kind == "recipes" else (recipe, recipe)
    if kind == "types":
        b = b.to(torch.float8_e5m2)
    scales = [scale_a, scale_a] if kind == "lists" else scale_a
    monkeypatch.setattr(functional, "scaled_mm", lambda *given: torch.ones(M, N))
    assert float(hopper_gemm.scaled_mm(a, b, scales, first, scale_b, second, **named).sum()) == M * N
    assert gpu == []


def test_compiled_code_calls_the_operator_once_without_a_break():
    a, b, scale_a, scale_b, recipe = operands()

    def layer(a, b, scale_a, scale_b, bias):
        return hopper_gemm.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, bias=bias) + 1

    graphs = []

    def note(graph, examples):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    bias = torch.randn(N).bfloat16()
    result = torch.compile(layer, backend=note, fullgraph=True)(a, b, scale_a, scale_b, bias)
    assert near(result - 1, exact(a, b, scale_a, scale_b, bias))
    assert [str(target) for target in graphs[0]].count("hopper_gemm.scaled_mm") == 1


@pytest.mark.parametrize("name", ["scaled_mm", "scaled_mm_out"])
def test_the_operators_have_fakes_as_torch_checks_them(name):
    """Its check of schemas compares inputs by arithmetic that FP8 has not on a CPU."""
    a, b, scale_a, scale_b, _ = operands()
    given = [a, b, scale_a, scale_b, "row", None, "silu", torch.bfloat16, 128, False]
    given += [torch.empty(M, N, dtype=torch.bfloat16)] * name.endswith("out")
    torch.library.opcheck(getattr(torch.ops.hopper_gemm, name).default, given, test_utils="test_faketensor")
    a, b, scale_a, _, scale_b, _ = of_blocks(*BLOCKS)
    given[:5], given[10:] = [a, b, scale_a, scale_b, "blocks"], [torch.empty(BLOCKS[:2]).bfloat16() for _ in given[10:]]
    torch.library.opcheck(getattr(torch.ops.hopper_gemm, name).default, given, test_utils="test_faketensor")
