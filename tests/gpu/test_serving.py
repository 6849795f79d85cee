"""On a GPU: what falls back, the device's chip, warm-ups, patched models, and many sizes in graphs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import chain

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler.loader import workspace_size
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.compiler.workspaces import WORKSPACES
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import WARMUP, write_tuned
from hopper_gemm.serve import kernels as serving
from hopper_gemm.serve.kernels import chip_of, default_config, pick_for
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.reference import launch_torch
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.study.files import recorded_entries

pytestmark = pytest.mark.gpu

LAYER = (264, 520)
"""n and k of a layer that nobody tuned."""
DEEP = (520, 16384)
"""n and k of a layer whose k is divided through a workspace."""
BATCHES = [*range(1, 41), *range(48, 369, 16)][:60]
WARMED = GemmProblem(72, 1032, 1096)


def kernels() -> list[KernelId]:
    problems = [GemmProblem(m, *LAYER) for m in (24, 40)] + [GemmProblem(m, *DEEP) for m in BATCHES]
    runs = [(default_config(problem), problem) for problem in problems]
    return [KernelId.of(*run) for run in runs] + [KernelId.of(one, WARMED) for one in choices(WARMED, 4)]


def tuned_slower(folder, problem):
    """Use a table in which torch.mm was measured to win on a problem."""
    figures = {"speedup": 0.91, "speedup_low": 0.9, "speedup_high": 0.92, "gpu": torch.cuda.get_device_name()}
    entry = replace(recorded_entries()[0], problem=problem, config=default_config(problem), study="s", **figures)
    (folder / "h").mkdir()
    write_tuned(folder / "h" / "t.json", [entry])
    hopper_gemm.use_table(folder / "h" / "t.json")


def pair(m, n, k, dtype=torch.bfloat16):
    return torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype).t()


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_faster_runs_torch_on_a_problem_on_which_it_was_measured_to_win(own_table, out_dtype):
    dtype = "bf16" if out_dtype == torch.bfloat16 else "bf16_fp32"
    tuned_slower(own_table, GemmProblem(24, *LAYER, dtype))
    a, b = pair(24, *LAYER)
    with hopper_gemm.fallback("faster"):
        for _ in range(2):
            found = hopper_gemm.matmul(a, b, out_dtype=out_dtype)
            assert torch.equal(found, torch.mm(a, b, out_dtype=out_dtype))
        assert any(launch.kernel is launch_torch for launch in chain(*LAUNCHES.table.values()))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = hopper_gemm.matmul(a, b, out_dtype=out_dtype)
        graph.replay()
        assert torch.equal(captured, found)


def test_faster_runs_torch_for_a_patched_layer_with_a_bias_too(own_table):
    tuned_slower(own_table, GemmProblem(24, *LAYER))
    layer = layers()[0]
    weight, bias = layer.weight, layer.bias
    hopper_gemm.patch(layer, tokens=(1,))
    for rows in (24, 40):
        x = torch.randn(rows, LAYER[1], device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            found = [layer(x) for _ in range(2)]
            assert torch.allclose(found[0], torch.addmm(bias, x, weight.t()), atol=0.02, rtol=0.02)
            assert torch.equal(*found)
        launched = [launch.shape for launch in chain(*LAUNCHES.table.values()) if launch.kernel is launch_torch]
        assert launched == [(24, LAYER[0])], "of 24 rows alone"


def test_the_chip_is_what_the_driver_says():
    about, chip = describe_current(), chip_of(torch.cuda.current_device())
    assert (chip.sms, chip.l2_bytes) == (about.sms, about.l2_bytes)
    assert chip.resident[:2] == (about.sms, about.sms // 2)


@pytest.mark.alone
def test_a_warm_up_keeps_the_fastest_of_four_picks_and_matmul_runs_it(own_table):
    told = []
    cube = GemmProblem(4096, 4096, 4096)
    done = hopper_gemm.warmup([WARMED, cube], say=told.append)
    entry = next(one for one in done.timed if one.problem == WARMED)
    assert {*done.loaded, *(one.problem for one in done.timed)} == {WARMED, cube}, "tuned for some kinds of GPU alone"
    assert entry.study == WARMUP
    assert 0.2 < entry.speedup < 5
    assert entry.speedup_low <= entry.speedup <= entry.speedup_high
    assert pick_for(WARMED).how == "warmup"
    assert default_config(WARMED) == entry.config
    a, b = pair(WARMED.m, WARMED.n, WARMED.k)
    assert torch.allclose(hopper_gemm.matmul(a, b), torch.mm(a, b), atol=0.5, rtol=0.02)
    again = hopper_gemm.warmup([WARMED], say=told.append)
    assert (again.loaded, again.timed) == ([WARMED], [])


def layers():
    n, k = LAYER
    about = {"device": "cuda", "dtype": torch.bfloat16}
    first, last = torch.nn.Linear(k, n, **about), torch.nn.Linear(n, k, bias=False, **about)
    return torch.nn.Sequential(first, torch.nn.GELU(), last)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_patched_model_gives_the_outputs_and_gradients_of_the_plain_one(batch_invariant):
    model, x = layers(), torch.randn(4, 6, LAYER[1], device="cuda", dtype=torch.bfloat16)
    expected = model(x)
    expected.float().square().sum().backward()
    gradients = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    hopper_gemm.patch(model, batch_invariant)
    with hopper_gemm.fallback("never"):
        found = model(x)
    assert torch.allclose(found, expected, atol=0.02, rtol=0.05)
    found.float().square().sum().backward()
    for one, other in zip(model.parameters(), gradients, strict=True):
        assert float((one.grad - other).float().norm() / other.float().norm()) < 0.02
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(x)
        graph.replay()
        assert torch.equal(captured, found)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_gradients_of_patched_weights_are_added_up_in_fp32_in_place(batch_invariant):
    model = layers()
    hopper_gemm.patch(model, batch_invariant, main_grad=True)
    for layer in (model[0], model[2]):
        total = layer.weight.main_grad = torch.randn(layer.weight.shape, device="cuda")
        exact = total.double()
        for _ in range(3):
            x = torch.randn(4, 6, layer.in_features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            incoming = torch.randn(4, 6, layer.out_features, device="cuda", dtype=torch.bfloat16)
            layer(x).backward(incoming)
            exact += incoming.double().flatten(0, 1).t() @ x.detach().double().flatten(0, 1)
        assert layer.weight.grad is None
        assert layer.weight.main_grad is total
        assert float((total.double() - exact).norm() / exact.norm()) < 1e-5


def test_a_patched_model_compiles_and_multiplies_in_the_type_of_autocast():
    model = layers().float()
    hopper_gemm.patch(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (24, 40):
        x = torch.randn(rows, LAYER[1], device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            eager = model(x)
            assert eager.dtype == torch.bfloat16
            assert torch.allclose(compiled(x), eager, atol=0.02, rtol=0.05)
            with torch.no_grad():
                assert torch.equal(model(x), eager)


def test_inductor_times_our_product_beside_its_own(monkeypatch):
    """And multiplies by whichever it takes."""
    from torch._inductor import config
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    timed: dict[str, float] = {}

    def noting(benchmark):
        """``benchmark`` of a selector, of its class or of its object as torch's version has it, noting the times."""

        def noted(*given, **options):
            timings = benchmark(*given, **options)
            timed.update({choice.name: seconds for choice, seconds in timings.items()})
            return timings

        return noted

    found = inspect.getattr_static(AlgorithmSelectorCache, "benchmark")
    bound = isinstance(found, (classmethod, staticmethod))
    made = type(found)(noting(found.__func__)) if bound else noting(found)
    monkeypatch.setattr(AlgorithmSelectorCache, "benchmark", made)
    a, b = pair(384, *LAYER)
    hopper_gemm.inductor.enable()
    try:
        with config.patch(force_disable_caches=True, max_autotune_gemm_backends="ATEN"), torch.no_grad():
            compiled = torch.compile(lambda a, b: (a @ b).relu(), fullgraph=True, mode="max-autotune-no-cudagraphs")
            assert torch.allclose(compiled(a, b), torch.mm(a, b).relu(), atol=0.5, rtol=0.02)
    finally:
        hopper_gemm.inductor.disable()
    assert 0 < timed["hopper_gemm_mm"] < float("inf")


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_activation_behind_a_patched_layer_runs_in_its_launch(dynamic):
    """Compiled with folding, the bits are those of ``linear`` with the activation."""
    from torch._inductor import config

    model = layers()
    hopper_gemm.patch(model)
    hopper_gemm.inductor.enable()
    try:
        with config.patch(force_disable_caches=True), torch.no_grad():
            compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
            for rows in (24, 40):
                x = torch.randn(2, rows, LAYER[1], device="cuda", dtype=torch.bfloat16)
                hidden = hopper_gemm.linear(x, model[0].weight, model[0].bias, "gelu")
                assert torch.equal(compiled(x), hopper_gemm.linear(hidden, model[2].weight))
                assert not torch.equal(hidden, torch.nn.functional.gelu(model[0](x))), "rounded before the activation"
    finally:
        hopper_gemm.inductor.disable()


def test_sixty_batch_sizes_in_graphs_of_one_pool_share_few_kernels_and_a_bounded_workspace():
    """Partial sums go back to the pool when their launch is captured; apart, sixty would not fit."""
    n, k = DEEP
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
    inputs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for m in BATCHES]
    expected = [hopper_gemm.matmul(x, weight) for x in inputs]  # loads
    loaded = [serving.kernel_for(GemmProblem(m, n, k), torch.cuda.current_device()) for m in BATCHES]
    assert len({kernel.config.compiled() for kernel in loaded}) < 20
    sizes = [4 * workspace_size(one.config, m, n, one.clusters)[0] for one, m in zip(loaded, BATCHES, strict=True)]
    assert sum(sizes) > 64 * 2**20
    before, pool, graphs = len(WORKSPACES._by_stream), torch.cuda.graph_pool_handle(), []
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    used = torch.cuda.memory_reserved()
    for x in inputs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            product = hopper_gemm.matmul(x, weight)
        graphs.append((graph, product))
    assert torch.cuda.memory_reserved() - used < 64 * 2**20
    assert len(WORKSPACES._by_stream) <= before + 1
    for (graph, product), right in reversed(list(zip(graphs, expected, strict=True))):
        product.zero_()
        graph.replay()
        assert torch.equal(product, right)
