"""The clocks around launches: events and cycle counters on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from hopper_gemm.tune.measure.arms import Arm
from hopper_gemm.tune.measure.device import DeviceInfo, Telemetry
from hopper_gemm.tune.measure.probes import compile_clock_probe
from hopper_gemm.tune.measure.protocol import GRAPH_SECONDS, Burst, Protocol, Steady

TRIES = 3
"""Number of times that timings are taken while the GPU is slowed down, before they are called unstable."""

SHORT_LAUNCH_SECONDS = 20e-6
"""Seconds of a launch with its spacer, below which a graph is started once before it is timed. The first start sends
the graph's nodes to the GPU, some 4 us each; if nodes run faster than that, the sending is timed: spacers alone took
4.3 us instead of 3.2, and at 512^3 configs of 3.3 to 3.6 us took 4.8 to 5.2 in their first pair, so that a search that
drops configs after one pair dropped nearly all."""


@dataclass(frozen=True)
class Timing:
    """The result of timing an arm once."""

    us: tuple[float, ...]  # microseconds per launch; a figure for each slice
    sm_mhz: float  # mean SM clock
    watts: float | None = None  # mean power, or None if it cannot be resolved


class SmClock:
    """Mean SM clock between two marks, by a probe that reads every SM's cycle counter."""

    def __init__(self, sms: int) -> None:
        self._sms = sms
        self._probe = compile_clock_probe()
        self._readings = torch.zeros(2, sms, 2, dtype=torch.int64, device="cuda")
        self._marks = self._readings[0], self._readings[1]

    def start(self) -> None:
        """Queue the first reading on the current stream."""
        self._readings.zero_()
        self._probe(self._marks[0], self._sms)

    def end(self) -> None:
        self._probe(self._marks[1], self._sms)

    def mhz(self) -> float:
        """Wait for both readings; return the mean clock in MHz, NaN if no SM was read both times."""
        return mhz_of(self._readings.cpu().numpy())


def mhz_of(readings: np.ndarray) -> float:
    """Return the mean clock in MHz, the median over the SMs, from int64 (2, SMs, 2): start and end, SM by SM, in cycles
    and nanoseconds; zeros where none was taken."""
    start, end = readings
    spans = (end - start)[(start[:, 1] > 0) & (end[:, 1] > start[:, 1])]
    return float(np.median(spans[:, 0] / spans[:, 1]) * 1000) if len(spans) else float("nan")


def rest_of(seconds: float, idle_since: float | None, now: float) -> float:
    """Return the seconds of a rest that are left ``now``, by :func:`time.perf_counter`, for a GPU that is idle since a
    time of that clock; None if its last work ends now."""
    return max(0.0, seconds - (0.0 if idle_since is None else now - idle_since))


class Timer:
    """Times arms on the current GPU, and keeps the time since when the GPU is idle."""

    def __init__(self, device: DeviceInfo) -> None:
        self._uuid = device.uuid
        self._clock = SmClock(device.sms)
        self._idle_since: float | None = None

    def idle(self) -> None:
        """Wait until the GPU is idle, and note the time."""
        torch.cuda.synchronize()
        self._idle_since = time.perf_counter()

    def telemetry(self, protocol: Protocol) -> Telemetry:
        """Return telemetry for timings by a protocol; power is read in the steady regime alone."""
        return Telemetry(self._uuid, energy=isinstance(protocol, Steady))

    def time(
        self, arm: Arm, protocol: Protocol, telemetry: Telemetry, meanwhile: Callable[[], None] = lambda: None
    ) -> Timing:
        """Time an arm by a protocol, whatever its number of pairs, under a telemetry that was entered. ``meanwhile`` is
        called in a burst while the GPU works; its own time is not measured."""
        if isinstance(protocol, Burst):
            timing = self._burst(arm, protocol, telemetry, meanwhile)
        else:
            timing = self._steady(arm, protocol, telemetry)
        self.idle()
        arm.seconds = median(timing.us) / 1e6
        return timing

    def _burst(self, arm: Arm, protocol: Burst, telemetry: Telemetry, meanwhile: Callable[[], None]) -> Timing:
        """Rest, warm up, time. Capturing is part of the rest. A new graph of short launches is started once before: see
        :data:`SHORT_LAUNCH_SECONDS`."""
        warm, timed = arm.graph(protocol.warm), arm.graph(protocol.timed)
        if not timed.started and timed is not warm and arm.seconds < SHORT_LAUNCH_SECONDS:
            timed.replay()
            self.idle()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        rest = protocol.rest * arm.stretched(protocol.warm, protocol.timed)
        time.sleep(rest_of(rest, self._idle_since, time.perf_counter()))
        warm.replay()
        self._clock.start()
        start.record()
        timed.replay()
        end.record()
        self._clock.end()
        telemetry.look()
        meanwhile()
        torch.cuda.synchronize()
        return Timing((start.elapsed_time(end) * 1000 / timed.launches,), self._clock.mhz())

    def _steady(self, arm: Arm, protocol: Steady, telemetry: Telemetry) -> Timing:
        """Settle, then time slices back to back; the GPU is never idle in between."""
        run = _Continuous(arm, GRAPH_SECONDS)
        run.until(time.perf_counter() + protocol.settle)
        self._clock.start()
        start = time.perf_counter()
        us = []
        for i in range(1, round(protocol.window / protocol.slice) + 1):
            us.append(run.until(start + i * protocol.slice))
        end = time.perf_counter()
        self._clock.end()
        return Timing(tuple(us), self._clock.mhz(), telemetry.watts(start, end))


class _Continuous:
    """Replays of a graph, a few always queued."""

    QUEUED = 3

    def __init__(self, arm: Arm, span: float) -> None:
        self._graph = arm.graph(span)
        self._events = [self._mark()]

    def until(self, deadline: float) -> float:
        """Run until a host time; return the mean microseconds per launch since the last call."""
        first = self._events[0]
        replays = 0
        while time.perf_counter() < deadline or replays == 0:
            self._graph.replay()
            self._events.append(self._mark())
            if len(self._events) > self.QUEUED:
                self._events.pop(0).synchronize()
                replays += 1
        last = self._events[0]
        last.synchronize()
        return first.elapsed_time(last) * 1000 / (replays * self._graph.launches)

    @staticmethod
    def _mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
