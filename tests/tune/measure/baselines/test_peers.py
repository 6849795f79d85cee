"""Peers that are not here say so; what stands in for them is asked as they are."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.baselines import missing, peers
from hopper_gemm.tune.measure.baselines.base import BaselineError
from hopper_gemm.tune.measure.baselines.peers import Quack, Triton
from hopper_gemm.tune.measure.workload import MatrixSet, Workload


@pytest.fixture
def workload():
    a, b = torch.randn(24, 16), torch.randn(40, 16)
    sets = tuple(MatrixSet(a + number, b, torch.zeros(24, 40), torch.zeros(24, 40)) for number in range(2))
    return Workload(GemmProblem(24, 40, 16), sets, a @ b.t(), 0)


def test_what_is_not_installed_is_missing_with_the_fix(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert missing(["cublas", "triton", "quack"]) == {
        "triton": "triton is not installed; pip install triton",
        "quack": "quack is not installed; pip install quack-kernels",
    }


def test_a_quack_that_cannot_be_imported_is_missing_with_what_its_import_said(monkeypatch):
    def broken():
        raise AttributeError("module 'cutlass' has no attribute 'pipeline'")

    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    monkeypatch.setattr(peers, "_quack_gemm", broken)
    reason = Quack().missing()
    assert reason is not None
    assert "quack cannot be imported (AttributeError: module 'cutlass' has no attribute 'pipeline')" in reason


def test_quack_writes_into_theirs_and_may_have_children_only_while_it_tunes(monkeypatch, workload):
    config = multiprocessing.current_process()._config
    monkeypatch.setitem(config, "daemon", True)
    daemons = []

    def gemm(a, b, out, tuned):
        daemons.append(config["daemon"])
        assert tuned
        out.copy_(a @ b)

    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", SimpleNamespace(gemm=gemm))
    (candidate,) = Quack().candidates(workload)
    second = workload.sets[1]
    candidate.launch(second)
    torch.testing.assert_close(candidate.product(second), second.a @ second.b.t())
    assert daemons == [False, True]


def test_triton_keeps_the_product_of_each_set_and_is_tuned_with_options_that_torch_knows(monkeypatch, workload):
    asked = []

    def compile(function, **options):
        asked.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(torch._inductor, "list_options", lambda: ["max_autotune", "max_autotune_gemm_backends"])
    (candidate,) = Triton().candidates(workload)
    for operands in workload.sets:
        candidate.launch(operands)
    for operands in workload.sets:
        torch.testing.assert_close(candidate.product(operands), operands.a @ operands.b.t())
    assert asked[0]["options"] == {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}


@pytest.mark.parametrize("peer", [Triton(), Quack()], ids=lambda peer: peer.name)
def test_a_peer_refuses_an_output_of_another_type_with_the_reason(workload, peer):
    workload = replace(workload, problem=GemmProblem(24, 40, 16, "bf16_fp32"))
    with pytest.raises(BaselineError, match=f"{peer.name} is asked for an output of bf16 only but got fp32"):
        peer.candidates(workload)
