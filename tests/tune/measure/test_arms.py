"""What a graph of one side holds, in either context; what spacers write; in which type cuBLAS is asked."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.tune.measure import arms
from hopper_gemm.tune.measure.arms import Arm, cublas_launch, seconds_per_launch, touch
from hopper_gemm.tune.measure.workload import MatrixSet
from tests.tune.measure.fake_cuda import FakeCuda


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [False, True], ids=["same", "fp32"])
def test_torch_takes_the_call_for_either_output(dtype, wide):
    """On matrices without memory: torch checks types and shapes of them as of any."""
    a, b = torch.empty(24, 16, dtype=dtype, device="meta"), torch.empty(40, 16, dtype=dtype, device="meta")
    out = torch.empty(24, 40, dtype=torch.float32 if wide else dtype, device="meta")
    cublas_launch(MatrixSet(a, b, out, out))


# Graphs --------------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


def names(graph) -> list[str]:
    return [name for name, _ in graph]


def test_a_graph_rotates_over_the_sets_and_lasts_about_as_long_as_asked(cuda):
    arm = Arm(cuda.launch("ours", 1e-3), ["0", "1", "2"], 1e-3)
    graph = arm.graph(0.0075)
    assert graph.launches == 8
    assert names(cuda.captured[0]) == ["ours0", "ours1", "ours2"] * 2 + ["ours0", "ours1"]


def test_isolated_the_spacer_of_a_set_comes_before_each_launch_on_it(cuda):
    arm = Arm(cuda.launch("ours", 1e-3), ["0", "1"], 1e-3, cuda.launch("spacer", 4e-6))
    assert arm.graph(0.003).launches == 3
    assert names(cuda.captured[0]) == ["spacer0", "ours0", "spacer1", "ours1", "spacer0", "ours0"]


def test_long_launches_make_graphs_of_two_and_stretch_the_rest(cuda):
    arm = Arm(cuda.launch("ours", 0.011), ["0", "1"], 0.011)
    assert arm.graph(0.002).launches == arm.graph(0.008).launches == 2
    assert arm.stretched(0.002, 0.008) == pytest.approx(4.4)
    assert Arm(cuda.launch("ours", 1e-4), ["0"], 1e-4).stretched(0.002, 0.008) == 1


def test_a_graph_is_captured_once_for_each_length(cuda):
    arm = Arm(cuda.launch("ours", 1e-3), ["0"], 1e-3)
    for _ in range(2):
        arm.graph(0.002)
        arm.graph(0.008)
    arm.seconds = 2e-3
    arm.graph(0.008)
    assert [len(graph) for graph in cuda.captured] == [2, 8]


def test_the_seconds_of_a_launch_are_the_mean_over_the_sets(cuda):
    assert seconds_per_launch(cuda.launch("ours", 3e-4), ["0", "1", "2"]) == pytest.approx(3e-4)


# Spacers -------------------------------------------------------------------------------------


def matrices(rows=24, columns=40, by_rows=True) -> MatrixSet:
    a = torch.randn(rows, columns).bfloat16() if by_rows else torch.randn(columns, rows).bfloat16().t()
    return MatrixSet(a, a, a, a)


@pytest.mark.parametrize("by_rows", [True, False])
def test_the_spacer_is_given_the_first_elements_of_a_as_they_lie_in_memory(monkeypatch, by_rows):
    given = []
    monkeypatch.setattr(arms, "load_spacer", lambda: lambda piece, blocks: given.append((piece, blocks)))
    operands = matrices(by_rows=by_rows)
    launch = touch(2)
    launch(operands)
    launch(operands)
    (piece, blocks), (again, _) = given
    assert (piece.dtype, piece.shape, blocks) == (torch.int16, (512,), 2)
    assert piece.data_ptr() == operands.a.data_ptr()
    assert again is piece
    launch(matrices(3, 5))
    assert given[2][0].shape == (15,)
