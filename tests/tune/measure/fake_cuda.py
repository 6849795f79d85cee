"""CUDA without a GPU: graphs that remember their launches, and a clock that launches move."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import torch

from hopper_gemm.tune.measure import arms, timing


class FakeCuda:
    """Stands in for torch.cuda in arms and timers. Starting a graph takes ``overhead`` seconds, and the first start
    ``sending`` seconds for each of its nodes besides."""

    def __init__(self, monkeypatch, overhead: float = 0.0, sending: float = 0.0) -> None:
        self.now, self.host, self.overhead, self.sending = 0.0, 0.0, overhead, sending
        self.capturing: list[tuple[str, float]] | None = None
        self.captured: list[list[tuple[str, float]]] = []
        self.works: dict[int, list] = {}
        self.log: list[str] = []
        fakes = {
            "CUDAGraph": lambda: FakeGraph(self),
            "Event": lambda enable_timing: FakeEvent(self),
            "Stream": lambda: None,
            "stream": self._stream,
            "synchronize": self._synchronize,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        arms._capture_stream.cache_clear()
        monkeypatch.setattr(timing, "SmClock", lambda sms: self)
        monkeypatch.setattr(timing, "time", SimpleNamespace(sleep=self._sleep, perf_counter=self._host_now))

    def launch(self, name: str, seconds: float, work=lambda operands: None):
        """A launch on a set of matrices, which takes so long, is noted with the set, and does some work."""

        def run(operands):
            if self.capturing is None:
                self.now += seconds
                work(operands)
            else:
                self.capturing.append((f"{name}{operands}" if isinstance(operands, str) else name, seconds))
                self.works.setdefault(id(self.capturing), []).append((work, operands))

        return run

    def _host_now(self) -> float:
        self.host = max(self.host, self.now) + 1e-6
        return self.host

    def _sleep(self, seconds: float) -> None:
        self.log.append(f"rest {seconds:.4f}")
        self.host += seconds
        self.now = max(self.now, self.host)

    def _synchronize(self) -> None:
        self.host = max(self.host, self.now)

    @contextmanager
    def _stream(self, stream):
        yield

    # the clock of the SMs

    def start(self) -> None:
        self.log.append("clock on")

    def end(self) -> None:
        self.log.append("clock off")

    def mhz(self) -> float:
        return 1755.0


class FakeGraph:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self.launches, self._sent = cuda, [], False

    def capture_begin(self) -> None:
        self._cuda.capturing = self.launches

    def capture_end(self) -> None:
        self._cuda.capturing = None
        self._cuda.captured.append(self.launches)

    def replay(self) -> None:
        self._cuda.log.append(f"replay {len(self.launches)}")
        self._cuda.now += self._cuda.overhead + sum(seconds for _, seconds in self.launches)
        self._cuda.now += 0.0 if self._sent else self._cuda.sending * len(self.launches)
        self._sent = True
        for work, operands in self._cuda.works.get(id(self.launches), ())[:8]:
            work(operands)


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self.at = cuda, 0.0

    def record(self) -> None:
        self._cuda.log.append("event")
        self.at = self._cuda.now

    def synchronize(self) -> None:
        self._cuda._synchronize()

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) * 1000
