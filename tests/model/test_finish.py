"""A finish is data: its arithmetic is that of torch, its name is short, and rules say which kernels take it."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import ACTIVATIONS, Epilogue, ordered_stages
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.menu import binaries
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import default_config
from hopper_gemm.serve.reference import activated

GATED, FINISHED = Epilogue(activation="silu", gated=True), Epilogue(bias=True, activation="gelu")


class Torch:
    """The functions of which activations are made, on tensors."""

    exp2, reciprocal, absolute, positive = torch.exp2, torch.reciprocal, torch.abs, torch.relu


def value(name: str, z: torch.Tensor, out: str = "fp32") -> torch.Tensor:
    return ACTIVATIONS[name].value(z, Torch, out)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activations_arithmetic_in_fp32_is_torchs_in_float64(name):
    z = torch.cat((torch.linspace(-30, 30, 100_001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e4, -1e4])))
    found, exact = value(name, z), activated(z.double(), name)
    assert bool(((found.double() - exact).abs() <= 2e-6 * exact.abs() + 1e-8).all())


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_tail_of_a_gelu_keeps_its_digits(name):
    """An fp32 difference of nearly equal numbers would lose them."""
    z = torch.linspace(-5, -3, 1001)
    found, exact = value(name, z).double(), activated(z.double(), name)
    assert float(((found - exact) / exact).abs().max()) < 1e-5


def arguments() -> torch.Tensor:
    """All finite numbers of bf16 and of fp16, and a million of fp32, half of them near 0."""
    words = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    every = [words.view(kind).float() for kind in (torch.bfloat16, torch.float16)]
    drawn = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    drawn[::2] *= 3
    return torch.cat((*(one[one.isfinite()] for one in every), drawn, torch.linspace(-7, 7, 100_001)))


@pytest.mark.parametrize(("out", "relative"), [("bf16", 2.0**-11.9), ("fp16", 2.0**-17), ("fp32", 6e-6)])
def test_gelu_is_as_exact_as_its_output_asks_also_relative_to_a_small_result(out, relative):
    """Half a unit is at least 2^-9 of a number in bf16, and 2^-12 in fp16. Where z is below -5.5 gelu itself is below
    1.1e-7, and torch.gelu in fp32 has no digit left."""
    z = arguments()
    found, exact = value("gelu", z, out).double(), activated(z.double(), "gelu")
    error, known = (found - exact).abs(), z > -5.5
    assert bool((error[known] <= relative * exact[known].abs() + 1e-37).all())
    assert float(error[~known].max()) < 1e-10


def test_gelu_before_it_is_rounded_is_nearer_than_torchs_in_the_tail():
    z = torch.linspace(-5.4, -4.5, 1001)
    exact = activated(z.double(), "gelu")
    ours, theirs = ((found.double() - exact).abs() for found in (value("gelu", z, "bf16"), activated(z, "gelu")))
    assert float(ours.max()) < float(theirs.max()) / 10


@pytest.mark.parametrize("out", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_no_number_stays_none(name, out):
    assert bool(value(name, torch.tensor([float("nan")]), out).isnan().all())


@pytest.mark.parametrize("name", ["gelu_tanh", "silu", "relu"])
def test_what_is_infinite_stays_infinite(name):
    assert bool(value(name, torch.tensor([float("inf")])).isposinf().all())


def test_a_finish_is_named_by_its_steps_in_their_order():
    assert str(Epilogue(True, True, "gelu", True)) == "scale+bias+gelu+residual"
    assert str(GATED) == "silu*up"
    assert Epilogue.of(scale=False, bias=False, activation=None, residual=False) is None


def test_an_activation_that_there_is_not_is_refused():
    with pytest.raises(
        ValueError, match="activation must be None or one of gelu, gelu_tanh, silu, relu but got 'swish'"
    ):
        Epilogue(activation="swish")


PROBLEM = GemmProblem(1024, 2048, 1024)


@pytest.mark.parametrize(
    ("config", "problem", "finish", "rule"),
    [
        (LadderConfig(stores="direct"), PROBLEM, Epilogue(bias=True), "epilogue"),
        (LadderConfig(loads="cp_async"), PROBLEM, Epilogue(bias=True), "epilogue"),
        (GemmConfig(), PROBLEM, Epilogue(gated=True), "gated"),
        (GemmConfig(), PROBLEM, Epilogue(bias=True, activation="silu", gated=True), "gated"),
        (GemmConfig(128, 64, swap_ab=True), PROBLEM, GATED, "gated"),
        (GemmConfig(128, 128, split_k=2), PROBLEM, GATED, "gated"),
        (GemmConfig(64, 256, consumers=2, split="n"), PROBLEM, GATED, "gated"),
        (GemmConfig(256, 192, epi_n=64), PROBLEM, GATED, "gated"),
        (GemmConfig(64, 24), PROBLEM, GATED, "gated"),
        (GemmConfig(), GemmProblem(1024, 2056, 1024), GATED, "gated"),
        (GemmConfig(), GemmProblem(1024, 2048, 1024, layouts="kn"), GATED, "gated"),
    ],
)
def test_a_rule_refuses_what_a_kernel_cannot_finish(config, problem, finish, rule):
    assert reasons(config, problem) == []
    assert [one.rule for one in reasons(config, problem, finish)] == [rule]


@pytest.mark.parametrize("sizes", [(8192, 28672, 4096), (128, 28672, 4096), (1, 1024, 512), (1234, 2064, 264)])
@pytest.mark.parametrize("finish", [GATED, Epilogue(True, True, "gelu", True)])
def test_there_is_a_config_for_every_problem_and_finish(sizes, finish):
    problem = GemmProblem(*sizes)
    assert reasons(default_config(problem, 0, finish), problem, finish) == []


def test_consumers_end_tiles_in_order_by_no_more_stages_than_the_ring_has_beside_the_stagger():
    """More of them deadlock: a test of the ring's protocol."""
    found = {kernel: ordered_stages(kernel) for kernel in binaries()}
    assert all(stages <= kernel.stages - kernel.stagger for kernel, stages in found.items())
    for kernel, stages in found.items():
        apart = kernel.split_k == 1 and kernel.ctas_per_sm == 1 and kernel.staging == "own"
        assert (stages > 0) == (kernel.readers == 2 and apart), kernel
    assert ordered_stages(resolve(GemmConfig(256, 208, stages=3, stagger=1))) == 2
    assert ordered_stages(resolve(GemmConfig(128, 128, k_depth=4, stages=6, stagger=0))) == 3
    assert ordered_stages(resolve(GemmConfig(128, 128, k_depth=2, stages=12, stagger=0))) == 6


def test_the_model_expects_no_gain_and_little_loss_of_a_finish():
    problem = GemmProblem(8192, 14336, 4096)
    for kernel in binaries():
        if not reasons(kernel, problem, FINISHED):
            plain, longer = (predict(kernel, problem, finish=one).seconds for one in (None, FINISHED))
            assert plain <= longer < 1.1 * plain, kernel


def test_a_finish_that_the_rules_allow_leaves_the_config_as_it_is():
    problem = GemmProblem(4096, 4096, 4096)
    assert default_config(problem, 0, Epilogue(activation="relu")) == default_config(problem)


@pytest.mark.parametrize(("swap_ab", "most"), [(False, 264), (True, 260)])
def test_a_residual_takes_registers_up_to_the_limit_that_was_compiled(swap_ab, most):
    """Accumulators and columns of a chunk together, over all tiles and chunks: what is legal, and nothing beyond it."""
    square, needs = GemmProblem(4096, 4096, 4096), {True: set(), False: set()}
    shapes = product((64, 128, 192, 256), range(64, 257, 8), (1, 2), (8, 16, 32, 64, "wide"))
    for tile_m, tile_n, consumers, epi_n in shapes:
        config = GemmConfig(tile_m, tile_n, consumers=consumers, epi_n=epi_n, swap_ab=swap_ab, k_depth=4)
        kernel = resolve(config)
        if not reasons(config, square) and kernel.accumulators <= 200:
            needs[not reasons(config, square, Epilogue(residual=True))].add(kernel.accumulators + kernel.chunk_n)
    assert max(needs[True]) == most < min(needs[False]) <= most + 8
