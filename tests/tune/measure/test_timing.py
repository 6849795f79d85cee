"""The clocks: what the SMs and the host counted, and how the rest is kept."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.host import host_times
from hopper_gemm.tune.measure.arms import Arm
from hopper_gemm.tune.measure.device import DeviceInfo
from hopper_gemm.tune.measure.protocol import Burst, Steady
from hopper_gemm.tune.measure.timing import Timer, mhz_of, rest_of
from tests.tune.measure.fake_cuda import FakeCuda


def test_the_clock_is_the_median_of_the_sms_that_were_read_both_times():
    start = np.array([[1000, 50_000], [2000, 50_000], [500, 50_000], [0, 0], [9, 50_000]])
    end = np.array([[18_000, 60_000], [19_000, 60_000], [21_500, 60_000], [77, 60_000], [0, 0]])
    assert mhz_of(np.stack((start, end))) == pytest.approx(1700)
    assert np.isnan(mhz_of(np.zeros((2, 132, 2), dtype=np.int64)))


@pytest.mark.parametrize(
    ("idle_since", "left"), [(None, 0.01), (100.0, 0.01), (99.996, 0.006), (99.99, 0.0), (50.0, 0.0)]
)
def test_what_the_host_prepares_meanwhile_is_part_of_the_rest(idle_since, left):
    assert rest_of(0.01, idle_since, now=100.0) == pytest.approx(left, abs=1e-9)


# Timings -------------------------------------------------------------------------------------

BURST = Burst(rest=0.010, warm=0.002, timed=0.008)


class Watched:
    """Telemetry that notes when it looked."""

    def __init__(self, log) -> None:
        self._log = log

    def look(self):
        self._log.append("look")

    def watts(self, start, end):
        return 100 * (end - start)


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


@pytest.fixture
def timer(cuda):
    return Timer(DeviceInfo(**dict.fromkeys(DeviceInfo.__dataclass_fields__, 0)))


def test_a_burst_rests_warms_up_and_times_one_graph_between_two_events(cuda, timer):
    arm = Arm(cuda.launch("ours", 1e-3), ["0"], 1e-3)
    done = []
    timing = timer.time(arm, BURST, Watched(cuda.log), lambda: done.append(len(cuda.log)))
    assert timing.us == (pytest.approx(1000.0),)
    assert (timing.sm_mhz, timing.watts) == (1755.0, None)
    assert cuda.log == [
        "rest 0.0100", "replay 2", "clock on", "event", "replay 8", "event", "clock off", "look",
    ]  # fmt: skip
    assert done == [8], "when everything is queued"


@pytest.mark.parametrize("burst", [BURST, Burst(rest=0.004, warm=0.003, timed=0.003)])
def test_the_first_start_of_a_graph_is_never_timed(monkeypatch, timer, burst):
    """It sends the graph's nodes to the GPU, so that a short kernel's first pair looked a third slower."""
    cuda = FakeCuda(monkeypatch, sending=1e-6)
    timer = Timer(DeviceInfo(**dict.fromkeys(DeviceInfo.__dataclass_fields__, 0)))
    arm = Arm(cuda.launch("ours", 3e-6), ["0"], 3e-6)
    assert [timer.time(arm, burst, Watched([])).us[0] for _ in range(3)] == pytest.approx([3.0] * 3)


def test_a_second_burst_rests_only_as_long_as_is_left(cuda, timer):
    arm = Arm(cuda.launch("ours", 1e-3), ["0"], 1e-3)
    timer.time(arm, BURST, Watched([]))
    cuda.host = cuda.host + 0.004  # what the host did meanwhile
    cuda.log.clear()
    timer.time(arm, BURST, Watched([]))
    assert float(cuda.log[0].split()[1]) == pytest.approx(0.006, abs=2e-4)


def test_a_short_look_warms_up_with_the_graph_that_it_times(cuda, timer):
    arm = Arm(cuda.launch("ours", 1e-3), ["0"], 1e-3)
    timer.time(arm, Burst(rest=0.004, warm=0.003, timed=0.003), Watched([]))
    assert [len(graph) for graph in cuda.captured] == [3]


def test_what_was_timed_corrects_what_a_launch_was_thought_to_take(cuda, timer):
    """Launched one by one a short kernel takes the host's time; the graph of the next protocol has as many as asked."""
    arm = Arm(cuda.launch("ours", 5e-6), ["0"], 10e-6)
    timer.time(arm, Burst(rest=0.0, warm=0.003, timed=0.003), Watched([]))
    assert arm.seconds == pytest.approx(5e-6)
    timer.time(arm, BURST, Watched([]))
    assert len(cuda.captured[-1]) == pytest.approx(1600, abs=1)


def test_steady_state_settles_then_times_slices_back_to_back(cuda, timer):
    arm = Arm(cuda.launch("ours", 1e-3), ["0"], 1e-3)
    timing = timer.time(arm, Steady(settle=1.0, window=1.5, slice=0.5), Watched([]))
    assert timing.us == pytest.approx((1000.0,) * 3, rel=1e-3)
    assert timing.watts == pytest.approx(150, rel=0.1)
    assert 2.5 < cuda.now < 2.8
    assert [len(graph) for graph in cuda.captured] == [30]
    assert not any(line.startswith("rest") for line in cuda.log)


class Host:
    """Time that passes as calls and synchronisations take it, in nanoseconds."""

    def __init__(self) -> None:
        self.now, self.order = 0, []

    def call(self, name, nanoseconds):
        def run():
            self.order.append(name)
            self.now += nanoseconds

        return run

    def synchronise(self):
        self.order.append("sync")
        self.now += 10**9


def test_calls_alternate_behind_a_warm_up_and_waiting_for_the_gpu_is_not_counted():
    host = Host()
    calls = {"slow": host.call("slow", 8000), "fast": host.call("fast", 500)}
    times = host_times(calls, host.synchronise, block=1, blocks=2, clock=lambda: host.now)
    assert times == pytest.approx({"slow": 8.0, "fast": 0.5})
    first, second = ["slow", "sync", "fast", "sync"], ["fast", "sync", "slow", "sync"]
    assert host.order == ["slow", "fast", "sync", *first, *second]
