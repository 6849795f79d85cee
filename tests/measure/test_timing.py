"""The clocks: what the SMs and the host counted, and how the rest is kept."""

from __future__ import annotations

import numpy as np
import pytest

from hopper_gemm.measure.timing import host_times, mhz_of, rest_of


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


def test_a_call_costs_what_it_takes_and_waiting_for_the_gpu_is_not_counted():
    host = Host()
    calls = {"slow": host.call("slow", 8000), "fast": host.call("fast", 500)}
    times = host_times(calls, host.synchronise, block=10, blocks=4, clock=lambda: host.now)
    assert times == pytest.approx({"slow": 8.0, "fast": 0.5})


def test_calls_alternate_in_alternating_order_and_warm_up_first():
    host = Host()
    calls = {name: host.call(name, 1) for name in "ab"}
    host_times(calls, host.synchronise, block=1, blocks=2, clock=lambda: host.now)
    assert host.order == ["a", "b", "sync", "a", "sync", "b", "sync", "b", "sync", "a", "sync"]
