"""Launches that the extension repeats have the bits of Python's way, on any stream, in graphs and in threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve import kernels as serving
from hopper_gemm.serve import patch
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.ops import linear_op, mm, mm_out, swiglu_op
from tests.serve.layers import excess
from tests.serve.test_native import OPERATORS, patched

pytestmark = pytest.mark.gpu

M, N, K = 264, 520, 1032
FINISHES = [None, Epilogue(bias=True), Epilogue(scale=True, bias=True, activation="gelu", residual=True)]


def kernels() -> list[KernelId]:
    """Those of the products of these tests and of their gradients, and of the layers."""
    problems = [GemmProblem(M, N, K), GemmProblem(M, K, N, layouts="kn"), GemmProblem(N, K, M, layouts="mn")]
    problems.append(GemmProblem(M, N, K, "bf16_fp32"))
    plain = [KernelId.of(serving.default_config(one), one) for one in problems]
    finished = [(problems[0], one) for one in FINISHES[1:]]
    finished.append((GemmProblem(M, 2 * N, K), Epilogue(activation="silu", gated=True)))
    return plain + [KernelId.of(serving.default_config(one, 0, how), one, finish=how) for one, how in finished]


@pytest.fixture
def ways(monkeypatch, extension):
    """A function that lets matmul, layers and patched layers be repeated by the extension, or by Python."""

    monkeypatch.setattr(LAUNCHES, "native", None)
    monkeypatch.setattr(LAUNCHES, "table", {})
    yield lambda by_extension: LAUNCHES.use(extension if by_extension else None)
    extension.forget()


@pytest.fixture
def native(ways, extension):
    """The extension, in use."""
    ways(True)
    return extension


@pytest.fixture
def operators(native):
    """The extension's operators on a GPU."""
    handles = [native.implement(name, function, "CUDA") for name, function in OPERATORS.items()]
    yield native
    handles.clear()
    for operator in (mm, mm_out, linear_op, swiglu_op):
        operator._dispatch_cache.clear()  # where torch's tracers look kernels up; it learns of Python's alone


def tensors(dtype=torch.bfloat16, seed=0, leading=(2, M // 2)):
    """x (2, m / 2, k), w (n, k), bias (n,) and residual (2, m / 2, n), each with a gradient."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = (*leading, K), (N, K), (N,), (*leading, N)
    made = [torch.randn(shape, device="cuda", generator=generator).to(dtype) for shape in shapes]
    made[1] /= K**0.5
    return [one.requires_grad_() for one in made]


RECORDED = {
    "matmul": lambda x, w, bias, residual: hopper_gemm.matmul(x.view(M, K), w.t()),
    "matmul by rows": lambda x, w, bias, residual: hopper_gemm.matmul(w, x.view(M, K).t()),
    "fp32": lambda x, w, bias, residual: hopper_gemm.matmul(x.view(M, K), w.t(), out_dtype=torch.float32),
    "linear": lambda x, w, bias, residual: hopper_gemm.linear(x, w),
    "bias": lambda x, w, bias, residual: hopper_gemm.linear(x, w, bias),
    "patched": lambda x, w, bias, residual: patched(x, w),
    "patched with a bias": lambda x, w, bias, residual: patched(x, w, bias),
}
"""Calls whose gradient the extension records."""

CALLS = {
    **RECORDED,
    "finished": lambda x, w, bias, residual: hopper_gemm.linear(x, w, bias, "gelu", residual, 0.5),
    "gated": lambda x, w, bias, residual: hopper_gemm.swiglu(x, torch.cat((w, w))),
    "out": lambda x, w, bias, residual: hopper_gemm.matmul(
        x.view(M, K), w.t(), out=torch.empty_like(residual.view(M, N))
    ),
    "layer's out": lambda x, w, bias, residual: hopper_gemm.linear(
        x, w, bias, "gelu", residual, 0.5, out=torch.empty_like(residual)
    ),
}
"""Calls without a gradient."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_a_product_has_the_bits_of_pythons_way(ways, name, dtype):
    found = []
    for by_extension in (False, True):
        ways(by_extension)
        with torch.no_grad():
            for seed in (0, 1, 1):
                out = CALLS[name](*tensors(dtype, seed))
        assert (LAUNCHES.native is not None) is by_extension
        found.append(out)
    assert torch.equal(*found)


@pytest.mark.parametrize("name", RECORDED)
def test_gradients_have_the_bits_of_pythons_way_and_a_biass_is_rounded_once(ways, name):
    found = []
    for by_extension in (False, True):
        ways(by_extension)
        for seed in (0, 1, 1):
            given = tensors(seed=seed)
            out = RECORDED[name](*given)
            incoming = torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2))
            gradients = torch.autograd.grad(out, given, incoming.to(out.dtype), allow_unused=True)
        assert ("CppNode" in out.grad_fn.name()) is by_extension
        found.append(gradients)
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        assert (one is None) == (other is None)
        if one is not None and number != 2:
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
    if found[1][2] is not None:
        exact = incoming.to(torch.bfloat16).double().sum((0, 1))
        assert excess(found[1][2], exact) <= 1


@pytest.mark.parametrize("by_extension", [False, True])
def test_a_launch_is_on_the_current_stream(ways, by_extension):
    """Write an operand after a 200 ms spin on the same stream: the call must return while the GPU still spins. The
    first round is not checked, since loading kernels may wait for the GPU."""
    ways(by_extension)
    x, w, bias, _ = (one.detach() for one in tensors())
    wait = 400_000_000  # cycles
    for number in range(4):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(wait)
            later = torch.zeros_like(x)
            later.copy_(x)
            out = hopper_gemm.linear(later, w, bias)
            assert number == 0 or not stream.query(), "it waited for the GPU"
        stream.synchronize()
        assert torch.equal(out, hopper_gemm.linear(x, w, bias))


def test_gradients_are_multiplied_on_the_stream_of_the_call(native):
    given = tensors()
    right = torch.autograd.grad(hopper_gemm.linear(*given[:3]).sum(), given[:3])
    for _ in range(2):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            found = torch.autograd.grad(hopper_gemm.linear(*given[:3]).sum(), given[:3])
        torch.cuda.current_stream().wait_stream(stream)
        assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", ["matmul", "bias", "patched"])
def test_a_training_step_is_captured_into_a_graph(native, name, known):
    given = tensors()
    wanted = given[:3] if name == "bias" else given[:2]

    def step():
        return torch.autograd.grad(RECORDED[name](*given).float().square().sum(), wanted)

    expected = step()
    if known:
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for one in captured:
        one.zero_()
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(captured, expected, strict=True))


def test_threads_with_streams_of_their_own_multiply_and_record(native):
    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            given = tensors(seed=seed)
            found = [torch.autograd.grad(hopper_gemm.linear(*given[:3]).sum(), given[:3]) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(a, b) for one in found[1:] for a, b in zip(one, found[0], strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_the_gpu_of_the_tensors_is_made_current_and_the_other_again(native):
    given = [one.detach().to("cuda:1").requires_grad_() for one in tensors()]
    right = None
    for _ in range(3):
        out = hopper_gemm.linear(*given[:3])
        gradients = torch.autograd.grad(out.sum(), given[:3])
        assert torch.cuda.current_device() == 0
        assert out.device == torch.device("cuda", 1)
        right = right or gradients
        assert all(torch.equal(one, other) for one, other in zip(gradients, right, strict=True))


def test_a_loop_of_steps_keeps_no_memory(native):
    given, used = tensors(), 0
    for number in range(40):
        torch.autograd.grad(patched(*given[:3]).sum(), given[:3])
        if number == 10:
            used = torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() == used


def test_operators_run_no_python_where_the_launch_is_known(operators, monkeypatch):
    """With the bits of matmul and linear, and their gradients."""
    x, w, bias, _ = tensors()
    a, b = x.detach().view(M, K).requires_grad_(), w.detach().t().requires_grad_()
    gated = torch.cat((w, w)).detach()

    def call():
        out = mm(a, b)
        into = torch.empty_like(out)
        mm_out(a.detach(), b.detach(), into)
        layer = linear_op(x, w, bias)
        parts = torch.autograd.grad(out, (a, b), torch.ones_like(out).contiguous())
        parts += torch.autograd.grad(layer, (x, w, bias), torch.ones_like(layer).contiguous())
        assert torch.equal(into, out)
        return out, layer, swiglu_op(x.detach(), gated), *parts

    expected = call()
    call()
    monkeypatch.setattr(LAUNCHES, "table", None)
    found = call()
    assert "CppNode" in found[0].grad_fn.name()
    assert "CppNode" in found[1].grad_fn.name()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(found[0], hopper_gemm.matmul(a.detach(), b.detach()))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_patched_model_compiles_and_has_the_bits_of_the_eager_one(operators, dynamic):
    model = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.Linear(N, K, bias=False)).cuda().bfloat16()
    for module in model:
        module.__class__ = patch.HopperLinear
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for seed in (0, 1, 1):
        x = tensors(seed=seed)[0]
        found, right = (torch.autograd.grad(one(x).sum(), (x, *model.parameters())) for one in (compiled, model))
        assert torch.equal(compiled(x), model(x))
        assert all(torch.allclose(one, other, rtol=2e-2, atol=2e-2) for one, other in zip(found, right, strict=True))
