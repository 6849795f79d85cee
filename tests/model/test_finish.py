"""A finish is data: its arithmetic is that of torch, its name is short, and rules say which kernels take it."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import ACTIVATIONS, Finish
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import default_config
from hopper_gemm.serve.linear_ops import activated

GATED = Finish(activation="silu", gated=True)


class Torch:
    """The functions of which activations are made, on tensors."""

    exp2, reciprocal, absolute, positive = torch.exp2, torch.reciprocal, torch.abs, torch.relu


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activations_arithmetic_in_fp32_is_torchs_in_float64(name):
    z = torch.cat((torch.linspace(-30, 30, 100_001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e4, -1e4])))
    found, exact = ACTIVATIONS[name].value(z, Torch), activated(z.double(), name)
    assert bool(((found.double() - exact).abs() <= 2e-6 * exact.abs() + 1e-8).all())


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_tail_of_a_gelu_keeps_its_digits(name):
    """An fp32 difference of nearly equal numbers would lose them."""
    z = torch.linspace(-5, -3, 1001)
    found, exact = ACTIVATIONS[name].value(z, Torch).double(), activated(z.double(), name)
    assert float(((found - exact) / exact).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_no_number_stays_none(name):
    assert bool(ACTIVATIONS[name].value(torch.tensor([float("nan")]), Torch).isnan().all())


@pytest.mark.parametrize("name", ["gelu_tanh", "silu", "relu"])
def test_what_is_infinite_stays_infinite(name):
    assert bool(ACTIVATIONS[name].value(torch.tensor([float("inf")]), Torch).isposinf().all())


def test_a_finish_is_named_by_its_steps_in_their_order():
    assert str(Finish(True, True, "gelu", True)) == "scale+bias+gelu+residual"
    assert str(GATED) == "silu*up"
    assert Finish.of(scale=False, bias=False, activation=None, residual=False) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"activation": "swish"}, "activation must be None or one of gelu, gelu_tanh, silu, relu but got 'swish'"),
        ({"gated": True}, "a gated finish must be an activation alone"),
        ({"gated": True, "activation": "silu", "bias": True}, "leave the other steps out"),
    ],
)
def test_a_finish_that_there_is_not_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Finish(**values)


PROBLEM = GemmProblem(1024, 2048, 1024)


@pytest.mark.parametrize(
    ("config", "problem", "finish", "rule"),
    [
        (GemmConfig(stores="direct"), PROBLEM, Finish(bias=True), "epilogue"),
        (GemmConfig(loads="cp_async"), PROBLEM, Finish(bias=True), "epilogue"),
        (GemmConfig(swap_ab=True), PROBLEM, GATED, "gated"),
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
@pytest.mark.parametrize("finish", [GATED, Finish(True, True, "gelu", True)])
def test_there_is_a_config_for_every_problem_and_finish(sizes, finish):
    problem = GemmProblem(*sizes)
    assert reasons(default_config(problem, 0, finish), problem, finish) == []


def test_a_finish_that_the_rules_allow_leaves_the_config_as_it_is():
    problem = GemmProblem(4096, 4096, 4096)
    assert default_config(problem, 0, Finish(activation="relu")) == default_config(problem)
