"""The two regimes in which a kernel is timed, and never mixed.

burst: the GPU rests, a short warm-up, then some milliseconds timed. The power cap's slow loop, a tenth of a second,
never closes; this is what a lone call in a model sees.

steady: the kernel runs alone until clock and power have settled at the cap, then it is timed, and energy is read over
the same window. This is what training sees. A kernel timed right after a thriftier neighbour would be given credit
by the power controller, whose memory is about a second: hence the settling, every time.

Measured on an NVIDIA H200 with cuBLAS at 8192^3: 786 TFLOP/s for the first 85 ms, then a dip to 540 at one second while
the controller overshoots, settled at 665 with 1.5 % ripple from 1.2 s on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hopper_gemm.measure.arms import Arm, Clock
from hopper_gemm.measure.device import Telemetry

REGIMES = ("burst", "steady")


@dataclass(frozen=True)
class Burst:
    """Protocol of the burst regime.

    Args:
        rest: seconds of idleness before each timing, what the host prepares meanwhile included. Where launches are so
            long that two of them take longer than is warmed up or timed, the rest grows like the work: without that
            the power controller would see a load that hardly ever ends, and speeds at 16384^3 strayed by 5 %.
        warm: seconds of warm-up.
        timed: seconds timed.
        pairs: pairs (ours, cuBLAS), in alternating order.
    """

    rest: float = 0.02
    warm: float = 0.002
    timed: float = 0.008
    pairs: int = 15


@dataclass(frozen=True)
class Steady:
    """Protocol of the steady regime.

    Args:
        settle: seconds alone before the window.
        window: seconds timed, in slices.
        slice: seconds of a slice; slices of ours and of cuBLAS are paired in order.
        pairs: blocks of (ours, cuBLAS), in alternating order; each gives window / slice pairs of times.
        graph: seconds of one CUDA graph.
    """

    settle: float = 1.2
    window: float = 1.5
    slice: float = 0.5
    pairs: int = 1
    graph: float = 0.03


Protocol = Burst | Steady


def protocol_dict(protocol: Protocol) -> dict[str, Any]:
    """A protocol's figures by name, with its regime, for provenance."""
    return {"regime": type(protocol).__name__.lower(), **asdict(protocol)}


@dataclass(frozen=True)
class Timing:
    """What one timing of one arm gave.

    Args:
        us: microseconds per launch; one figure per slice.
        sm_mhz: mean SM clock.
        watts: mean power, or None where it cannot be resolved.
    """

    us: tuple[float, ...]
    sm_mhz: float
    watts: float | None = None


def rest_of(seconds: float, idle_since: float | None, now: float) -> float:
    """Seconds that are still to be rested.

    Args:
        seconds: to be rested in all.
        idle_since: when the GPU's last work ended, by :func:`time.perf_counter`; None where it ends now.
        now: by the same clock.
    """
    return max(0.0, seconds - (0.0 if idle_since is None else now - idle_since))


def time_burst(
    arm: Arm,
    protocol: Burst,
    clock: Clock,
    idle_since: float | None = None,
    look: Callable[[], None] = lambda: None,
) -> Timing:
    """Rest, warm up, time.

    Args:
        arm: what is timed.
        protocol: for how long.
        clock: of the SMs.
        idle_since: when the GPU's last work ended, if it has.
        look: called while the GPU is at work.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    time.sleep(rest_of(protocol.rest * arm.stretched, idle_since, time.perf_counter()))
    arm.warm.replay()
    before = clock.mark()
    start.record()
    arm.timed.replay()
    end.record()
    after = clock.mark()
    look()
    torch.cuda.synchronize()
    return Timing((start.elapsed_time(end) * 1000 / arm.launches,), clock.mhz(before, after))


def time_steady(arm: Arm, protocol: Steady, clock: Clock, telemetry: Telemetry) -> Timing:
    """Settle, then time slices back to back; the GPU is never idle in between."""
    run = _Continuous(arm)
    run.until(time.perf_counter() + protocol.settle)
    before = clock.mark()
    start = time.perf_counter()
    us = []
    for i in range(1, round(protocol.window / protocol.slice) + 1):
        us.append(run.until(start + i * protocol.slice))
    end = time.perf_counter()
    after = clock.mark()
    torch.cuda.synchronize()
    return Timing(tuple(us), clock.mhz(before, after), telemetry.watts(start, end))


class _Continuous:
    """Replays of a graph, a few always queued."""

    QUEUED = 3

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._events = [self._mark()]

    def until(self, deadline: float) -> float:
        """Run until a host time; mean microseconds per launch since the last call."""
        first = self._events[0]
        replays = 0
        while time.perf_counter() < deadline or replays == 0:
            self._arm.timed.replay()
            self._events.append(self._mark())
            if len(self._events) > self.QUEUED:
                self._events.pop(0).synchronize()
                replays += 1
        last = self._events[0]
        last.synchronize()
        return first.elapsed_time(last) * 1000 / (replays * self._arm.launches)

    @staticmethod
    def _mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
