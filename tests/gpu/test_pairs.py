"""Any two parts of the kernel that go together are right together: the table of pairs, on a GPU."""

from __future__ import annotations

from math import ceil

import pytest
import torch

from hopper_gemm.compiler.loader import LoadedKernel, load
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.counters.waits import launched_ctas
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.problem import GemmProblem
from tests.kernel.pairs import PROBLEM, TOGETHER, TRIPLES, Part, together
from tests.serve.layers import Case, Layer, excess, layer_of

pytestmark = pytest.mark.gpu

MANY = GemmProblem(1234, 2064, 520)
"""More tiles than CTAs, so that the ring, the turns and the buffers run on from tile to tile."""

PROBLEMS = (PROBLEM, MANY)

BEFORE, AFTER = 3, 10
"""Columns of memory before and behind a C that threads store, 13 together: an odd pitch, rows off words."""

RUNS = 3
"""Launches that must give the same bits."""

LAUNCHES = [(names, problem) for names in [*TOGETHER, *TRIPLES] for problem in PROBLEMS]


def kernels() -> list[KernelId]:
    """Those of the pairs."""
    return [together(*names).binary(problem) for names, problem in LAUNCHES]


def product(part: Part, kernel: LoadedKernel, layer: Layer, readings: torch.Tensor | None) -> torch.Tensor:
    """What a kernel writes into an output that holds NaN; what lies beside the output keeps it."""
    rows, columns = layer.exact.shape
    before, after = (BEFORE, AFTER) if part.scattered else (0, 0)
    memory = torch.full((rows, before + columns + after), float("nan"), device="cuda", dtype=torch.bfloat16)
    out = memory[:, before : before + columns]
    added = (layer.bias, layer.residual, layer.scale) if part.steps else ()
    kernel(layer.x, layer.w, out, *added, readings=readings)
    beside = torch.cat([memory[:, :before], memory[:, before + columns :]], 1)
    assert bool(beside.isnan().all()), "the kernel wrote beside its output"
    return out


@pytest.mark.parametrize(("names", "problem"), LAUNCHES, ids=lambda one: "+".join(one) if type(one) is tuple else None)
def test_each_element_is_that_of_float64_rounded_once_and_each_run_has_the_same_bits(names, problem):
    part = together(*names)
    layer = layer_of(Case("", part.steps or Epilogue(), problem), "cuda")
    kernel = load(part.kernel, problem, observer=part.observer, finish=part.steps, scattered=part.scattered)
    outs = []
    for _ in range(RUNS):
        readings = readings_of(part, kernel, problem)
        outs.append(product(part, kernel, layer, readings))
        assert excess(outs[-1], layer.exact) <= 1
        if readings is not None:
            check_readings(readings, part, problem)
    assert all(torch.equal(outs[0], out) for out in outs[1:])


def readings_of(part: Part, kernel: LoadedKernel, problem: GemmProblem) -> torch.Tensor | None:
    """Where the observer of a part writes; None without one."""
    if not part.observer:
        return None
    return torch.zeros(launched_ctas(kernel, problem), 2, 4, dtype=torch.int32, device="cuda")


def check_readings(readings: torch.Tensor, part: Part, problem: GemmProblem) -> None:
    """The meter has watched every stage: of the first consumer all of them, but in pingpong, where it has every other
    tile of a CTA that has several; the producer some."""
    producer, consumer = (int(readings[:, side, 0].sum()) for side in range(2))
    config = part.kernel
    tiles = ceil(problem.m / config.tile_m) * ceil(problem.n / config.tile_n)
    stages = tiles * ceil(problem.k / config.tile_k)
    shared = config.schedule == "pingpong" and tiles > len(readings)
    assert producer > 0
    assert 0 < consumer < stages if shared else consumer == stages
    assert bool((readings[:, 1, 3] != 0).any()), "no cycles were counted"
