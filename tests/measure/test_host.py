"""The host time of a launch, by a clock that calls move."""

from __future__ import annotations

import pytest

from hopper_gemm.measure.host import host_times


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


def test_calls_take_turns_in_alternating_order_and_warm_up_first():
    host = Host()
    calls = {name: host.call(name, 1) for name in "ab"}
    host_times(calls, host.synchronise, block=1, blocks=2, clock=lambda: host.now)
    assert host.order == ["a", "b", "sync", "a", "sync", "b", "sync", "b", "sync", "a", "sync"]
