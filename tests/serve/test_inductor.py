"""What Inductor is offered, on a CPU: our product stands among its choices, and is taken only by two percent.

Times are given, not measured; the machine code is that of the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._inductor import config, lowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache

import hopper_gemm
from hopper_gemm.serve import inductor
from hopper_gemm.serve.fallback import torch_may_serve
from hopper_gemm.serve.inductor import products
from hopper_gemm.serve.inductor.folding import Folding
from hopper_gemm.serve.ops import linear_op
from tests.serve.layers import excess

pytestmark = pytest.mark.timeout(400)

user_lowerings = getattr(lowering, "user_lowerings", {})
"""Lowerings of operators that are not Inductor's own; from torch 2.12 on."""


@pytest.fixture
def enabled(monkeypatch):
    """Inductor with our kernel, nothing kept from other compilations."""
    monkeypatch.setattr(products, "able", lambda a, b: True)
    with config.patch(force_disable_caches=True):
        hopper_gemm.inductor.enable()
        torch._dynamo.reset()
        yield
        hopper_gemm.inductor.disable()
        torch._dynamo.reset()


@pytest.fixture
def seconds(monkeypatch):
    """Seconds of choices by name, instead of times; those of others are 1. And the choices that were timed, while calls
    wait for their kernels: torch is never timed for one."""
    given, asked = {}, []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def benchmark(cls, choices, *rest, **options):
        assert not torch_may_serve()
        asked.append([choice.name for choice in choices])
        return {choice: next((s for name, s in given.items() if name in choice.name), 1.0) for choice in choices}

    monkeypatch.setattr(AlgorithmSelectorCache, "benchmark", classmethod(benchmark))
    return SimpleNamespace(given=given, asked=asked)


def operands(m=24, n=40, k=16):
    return torch.randn(m, k, dtype=torch.bfloat16), torch.randn(n, k, dtype=torch.bfloat16)


def code(function, *arguments):
    """The output of a compiled function, and the code that Inductor wrote for it."""
    from torch._inductor.utils import run_and_get_code

    out, codes = run_and_get_code(torch.compile(function, fullgraph=True), *arguments)
    return out, "\n".join(codes)


@pytest.mark.parametrize(("ours", "taken"), [(0.9, True), (0.99, False), (1.5, False)])
def test_a_product_is_ours_where_it_wins_by_two_percent(enabled, seconds, ours, taken):
    seconds.given["hopper_gemm_mm"] = ours
    a, weight = operands()
    out, written = code(lambda a: a @ weight.t(), a)
    assert any("hopper_gemm_mm" in names for names in seconds.asked)
    assert ("extern_kernels.hopper_gemm_mm" in written) is taken
    assert torch.allclose(out.float(), (a @ weight.t()).float(), atol=0.1, rtol=0.02)


def test_a_compiled_product_serves_any_number_of_rows(enabled, seconds):
    seconds.given["hopper_gemm_mm"] = 0.5
    _, weight = operands()
    layer = torch.compile(lambda a: a @ weight.t(), fullgraph=True, dynamic=True)
    for m in (24, 33, 57):
        a, _ = operands(m)
        assert torch.allclose(layer(a).float(), (a @ weight.t()).float(), atol=0.1, rtol=0.02)
    assert len(seconds.asked) == 1


@pytest.mark.skipif(not hasattr(lowering, "user_lowerings"), reason="this Inductor takes no addmm")
@pytest.mark.parametrize(("ours", "taken"), [(0.9, True), (0.99, False)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_linear_layer_with_a_bias_is_ours_where_it_wins_by_two_percent(enabled, seconds, ours, taken, dynamic):
    """And then adds the bias before the one rounding."""
    assert products.ADDMM in user_lowerings
    seconds.given["hopper_gemm_addmm"] = ours
    layer, (a, _) = torch.nn.Linear(16, 40, dtype=torch.bfloat16), operands()
    if dynamic:
        torch._dynamo.mark_dynamic(a, 0)
    with torch.no_grad():
        out, written = code(layer, a)
        assert ("torch.ops.hopper_gemm.linear.default" in written) is taken
        exact = a.double() @ layer.weight.double().t() + layer.bias.double()
        assert torch.allclose(out.double(), exact, atol=0.1, rtol=0.02)
        assert not taken or excess(out, exact) <= 1


def test_addmm_by_our_operators_is_torchs():
    a, weight = operands()
    bias = torch.randn(40, dtype=torch.bfloat16)
    for alpha, beta in ((1, 1), (2, 0.5), (1, 0.5), (2, 1)):
        for added in (bias, bias.expand(24, 40), torch.randn(24, 40).bfloat16(), bias[:1], bias[:24, None]):
            found = products.hopper_gemm_addmm(added, a, weight.t(), alpha=alpha, beta=beta)
            assert found.dtype == torch.bfloat16
            right = torch.addmm(added.float(), a.float(), weight.t().float(), alpha=alpha, beta=beta)
            assert torch.allclose(found.float(), right, atol=0.1, rtol=0.02)


def test_a_bias_without_factors_is_added_in_the_epilogue_of_addmm(monkeypatch):
    given = []
    monkeypatch.setattr(products, "linear_op", lambda *call: given.append(call[2]) or linear_op(*call))
    a, weight = operands()
    bias = torch.randn(40, dtype=torch.bfloat16)
    for added in (bias, bias.expand(24, 40)):
        products.hopper_gemm_addmm(added, a, weight.t())
        assert torch.equal(given.pop(), bias)
    for added, factors in (
        *((bias, {"alpha": 2}), (bias, {"beta": 0.5})),
        *((torch.randn(24, 40).bfloat16(), {}), (bias[:1], {}), (bias.float(), {})),
    ):
        products.hopper_gemm_addmm(added, a, weight.t(), **factors)
        assert given == []


def test_what_the_kernel_cannot_run_is_not_offered():
    a, weight = operands()
    assert not products.able(a, weight.t()), "on a CPU"


def test_enabling_twice_offers_it_once_and_disabling_takes_it_back():
    lowerings, external = dict(user_lowerings), list(config.external_matmul)
    for _ in range(2):
        inductor.enable()
        inductor.enable()
        assert config.external_matmul == [*external, products.hopper_gemm_mm]
        assert isinstance(config.post_grad_custom_pre_pass, Folding)
        assert config.post_grad_custom_post_pass is None
        inductor.disable()
        inductor.disable()
        assert (dict(user_lowerings), config.external_matmul) == (lowerings, external)
        assert config.post_grad_custom_pre_pass is None


def test_without_such_an_interface_enabling_is_refused_in_one_line(monkeypatch):
    monkeypatch.delattr(config, "external_matmul", raising=False)
    with pytest.raises(RuntimeError, match=r"takes no external product; use torch 2\.9 or later"):
        inductor.enable()


@pytest.mark.parametrize(
    ("types", "device", "fits"),
    [
        ((torch.bfloat16, torch.bfloat16), "cuda", True),
        ((torch.bfloat16, torch.float16), "cuda", False),
        ((torch.float32, torch.float32), "cuda", False),
        ((torch.bfloat16, torch.bfloat16), "cpu", False),
    ],
)
def test_the_kernel_is_offered_for_two_matrices_of_one_type_on_a_hopper_gpu(monkeypatch, types, device, fits):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: (9, 0))
    a, b = (SimpleNamespace(dtype=dtype, device=torch.device(device)) for dtype in types)
    assert products.able(a, b) == fits
