"""Times by events: every launch stands behind a copy of its own, in rounds that run forth and back."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.serve import timer


class Clock:
    """A GPU's clock: copies and launches move it, events read it."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.log = 0.0, []
        clock = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = clock.now

            def elapsed_time(self, other):
                return 1e3 * (other.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("wait"))
        monkeypatch.setattr(timer.torch, "zeros", lambda size, dtype, device: Buffer(self, size))

    def launch(self, name, seconds):
        def run():
            self.log.append(name)
            self.now += seconds

        return run


class Buffer:
    """A buffer whose copy takes a second."""

    def __init__(self, clock, size) -> None:
        self.clock, self.size = clock, size

    def copy_(self, other):
        assert self is not other
        self.clock.log.append(f"copy {other.size}")
        self.clock.now += 1.0


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_launch_is_timed_alone_behind_a_copy_of_twice_the_l2(clock):
    launches = [clock.launch("ours", 0.25), clock.launch("theirs", 0.5)]
    assert timer.isolated_seconds(launches, 3, 100) == [[0.25] * 3, [0.5] * 3]
    order = ["ours", "theirs", "theirs", "ours"]
    expected = [
        word
        for number in range(5)
        for one in (order[:2] if number % 2 == 0 else order[2:])
        for word in ("copy 200", one)
    ]
    assert clock.log == [*expected, "wait"]
