"""The kernel's own readings become shares, and a side that counts nothing has no figure."""

from __future__ import annotations

from itertools import cycle, islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hopper_gemm.compiler.child import Reply
from hopper_gemm.lab.counters import waits
from hopper_gemm.lab.counters.counting import Counted
from hopper_gemm.lab.counters.waits import (
    FIGURES,
    METER,
    READING,
    SIDES,
    measure_waits,
    meter,
    read_meter,
    waits_of,
)
from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.lab.ladder.meter import ROLES, Reading
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.measure.workload import Workload
from hopper_gemm.tune.parameters import config_of
from hopper_gemm.tune.point import Point

IDLE = (0, 0, 0, 0)
PROBLEM = GemmProblem(8, 8, 8)


def readings(*launches):
    return np.array(launches, dtype=np.int64).astype(np.uint32).view(np.int32)


def test_rows_and_fields_are_those_that_the_kernel_writes():
    assert SIDES == ROLES
    assert len(Reading._fields) == READING
    assert Reading._fields == ("stages", "hits", "waited", "cycles")


def test_figures_are_means_over_ctas_and_then_over_launches():
    """A CTA with more tiles weighs no more than another."""
    first = [[(100, 50, 10, 1000), (100, 90, 0, 1000)], [(10, 10, 30, 100), (10, 0, 50, 100)]]
    second = [[(100, 0, 0, 1000), (100, 0, 0, 1000)]] * 2
    found = waits_of(readings(first, second), GemmConfig())
    assert tuple(found) == FIGURES
    assert list(found.values()) == pytest.approx([75 / 2, 45 / 2, 15.5 / 2, 25 / 2])


def test_ctas_without_work_are_left_out():
    launch = [[(10, 5, 20, 100)] * 2, [IDLE] * 2, [IDLE] * 2]
    assert waits_of(readings(launch), GemmConfig()) == {
        "producer_hit_pct": 50,
        "consumer_hit_pct": 50,
        "producer_wait_pct": 20,
        "consumer_wait_pct": 20,
    }


@pytest.mark.parametrize(
    ("peek", "hits"),
    [(True, set(FIGURES[:2])), ("producer", {FIGURES[0]}), ("consumer", {FIGURES[1]}), (False, set())],
)
def test_only_a_side_that_peeks_has_hits(peek, hits):
    found = waits_of(readings([[(10, 0, 20, 100)] * 2]), config_of({"peek": peek}))
    assert set(found) == hits | set(FIGURES[2:])


def test_a_side_that_counted_nothing_has_no_figures():
    """multistage has no producer, and the one of cp_async does not count."""
    found = waits_of(readings([[IDLE, (10, 5, 20, 100)]]), LadderConfig(schedule="multistage"))
    assert found == {"consumer_hit_pct": 50, "consumer_wait_pct": 20}
    assert waits_of(readings([[IDLE, IDLE]]), GemmConfig()) == {}


def test_sums_of_more_than_31_bits_are_read_as_unsigned():
    row = (10, 10, 2**31, 2**32 - 2**30)
    assert waits_of(readings([[row, row]]), GemmConfig())["consumer_wait_pct"] == pytest.approx(100 * 2 / 3)


# -- measuring, with a kernel that is none ---------------------------------------------------------


@pytest.fixture
def world(monkeypatch):
    """Three sets of matrices on the CPU; the kernel multiplies and writes the number of its launch as cycles waited."""
    state = SimpleNamespace(launched=[], wrong=False)

    class Kernel:
        config = GemmConfig()

        def __call__(self, a, b, out, readings):
            own = readings
            assert not own.any(), "readings must be zero before a launch"
            state.launched.append(a)
            out.copy_((a.float() @ b.float().t()) * (2 if state.wrong else 1))
            own[:] = torch.tensor([10, 5, len(state.launched), 100], dtype=torch.int32)

    def load(config, problem, store, observer):
        assert observer == METER
        return Kernel()

    zeros = torch.zeros
    monkeypatch.setattr("hopper_gemm.compiler.loader.load", load)
    monkeypatch.setattr(waits, "launched_ctas", lambda kernel, problem: 3)
    monkeypatch.setattr(torch, "zeros", lambda shape, dtype, device: zeros(shape, dtype=dtype))
    generator = torch.Generator().manual_seed(0)

    def matrix():
        return torch.randn(8, 8, generator=generator).to(torch.bfloat16)

    sets = [SimpleNamespace(a=matrix(), b=matrix(), ours=matrix()) for _ in range(3)]
    reference = sets[0].a.float() @ sets[0].b.float().t()
    state.kernel, state.workload = Kernel(), Workload(PROBLEM, tuple(sets), reference, seed=0)
    return state


def test_the_product_is_checked_then_one_launch_warms_up_and_three_count_on_rotating_sets(world):
    rotation = cycle(world.workload.sets)
    found = measure_waits(Point(PROBLEM, GemmConfig()), world.workload, rotation)
    assert (found.reason, found.point) == ("", Point(PROBLEM, GemmConfig()))
    assert found.figures["consumer_wait_pct"] == pytest.approx((3 + 4 + 5) / 3)
    numbers = [next(i for i, one in enumerate(world.workload.sets) if one.a is a) for a in world.launched]
    assert numbers == [0, 0, 1, 2, 0]
    assert next(rotation) is world.workload.sets[1], "the next config goes on from there"


def test_a_wrong_product_has_no_waits(world):
    world.wrong = True
    found = measure_waits(Point(PROBLEM, GemmConfig()), world.workload, cycle(world.workload.sets))
    assert found.figures == {}
    assert found.reason.startswith("metered, the product is wrong: ")
    assert len(world.launched) == 1


def test_each_launch_has_readings_of_its_own(world):
    found = read_meter(world.kernel, PROBLEM, list(islice(cycle(world.workload.sets), 4)))
    assert found.shape == (4, 3, 2, 4)
    assert found[:, :, :, 2].reshape(4, -1).tolist() == [[number] * 6 for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply("answer", Counted(Point(PROBLEM, GemmConfig()), figures={"consumer_wait_pct": 1.0})), ""),
        (Reply("died", error="the process died with signal SIGABRT"), "metered: the process died with signal SIGABRT"),
        (Reply("timeout", error="no answer within 60 s; killed"), "metered: no answer within 60 s; killed"),
    ],
)
def test_a_child_that_dies_or_hangs_is_a_reason_and_no_error(monkeypatch, reply, reason):
    monkeypatch.setattr(waits.Child, "ask", lambda self, point, timeout: reply)
    (found,) = meter([Point(PROBLEM, GemmConfig())], GpuId(0, "NVIDIA H200", "GPU-0"), None)
    assert found.reason == reason
