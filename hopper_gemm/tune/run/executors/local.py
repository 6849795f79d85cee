"""The default executor: a worker process for each GPU of this host, over pipes."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from hopper_gemm.compiler.child import ending, spawn
from hopper_gemm.tune.run.task import Event, Job, Left, Task
from hopper_gemm.tune.run.worker import shares, work
from hopper_gemm.tune.study.row import Row

RESPAWNS = 3
"""Deaths of a worker in a row, without a row in between, after which its GPU is not used any more."""


class Executor(Protocol):
    """Interface of executors. A worker that is gone may join again under its name."""

    @property
    def awaited(self) -> str:
        """Name of what the coordinator waits for while there is no worker; empty if no worker will come."""

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """Return events of the workers, each with its worker's name; wait at most these seconds for the first."""

    def send(self, worker: str, number: int, task: Task) -> None:
        """Send a task to a worker, or renew the task of that number which waits there. Tasks of a worker that is gone
        are lost; :class:`Left` reports it."""

    def close(self) -> None:
        """End all workers; may be called more than once."""


class Local:
    """Workers of this host, one for each of the GPUs, with its share of the cores."""

    def __init__(self, job: Job, gpus: Sequence[int]) -> None:
        cores = shares(sorted(os.sched_getaffinity(0)), len(gpus))
        self._workers = {f"GPU {gpu}": _LocalWorker(job, gpu, own) for gpu, own in zip(gpus, cores, strict=True)}

    @property
    def awaited(self) -> str:
        return ", ".join(name for name, worker in self._workers.items() if worker.line is not None)

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        lines = {worker.line: name for name, worker in self._workers.items() if worker.line is not None}
        events: list[tuple[str, Event]] = []
        for line in wait(list(lines), seconds):
            name = lines[line]  # type: ignore[index]
            events += [(name, event) for event in self._workers[name].poll()]
        return events

    def send(self, worker: str, number: int, task: Task) -> None:
        with suppress(OSError):  # it died just now: poll reports it
            if (line := self._workers[worker].line) is not None:
                line.send((number, task))

    def close(self) -> None:
        for worker in self._workers.values():
            worker.hang_up()
        for worker in self._workers.values():
            worker.end()


class _LocalWorker:
    def __init__(self, job: Job, gpu: int, cores: tuple[int, ...]) -> None:
        self._job, self._gpu, self._cores = job, gpu, cores
        self._process: Any = None
        self._deaths, self._code, self._over = 0, 0, False
        self.line: Connection | None = None
        self.start()

    def start(self) -> None:
        name = f"GPU {self._gpu}"
        self._process, self.line = spawn(work, self._job, self._gpu, self._cores, True, name=name)

    def poll(self) -> list[Event]:
        """Return the process's events; if it died, report that and start its successor."""
        events: list[Event] = []
        assert self.line is not None
        try:
            while self.line.poll(0):
                events.append(self.line.recv())
        except (EOFError, OSError):
            self.hang_up()
            self.end()
        self._over = self._over or any(isinstance(event, Left) for event in events)
        if any(isinstance(event, Row) for event in events):
            self._deaths = 0
        if self.line is None and not self._over:
            self._deaths += 1
            reason = f"its worker died with {ending(self._code)}"
            self._over = self._deaths > RESPAWNS
            if self._over:
                events.append(Left(f"{reason}, {self._deaths} times in a row; run hopper-gemm doctor", for_good=True))
            else:
                events.append(Left(reason))
                self.start()
        return events

    def hang_up(self) -> None:
        line, self.line = self.line, None
        if line is not None:
            line.close()

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.join(10.0)  # seconds to end by itself after its coordinator hung up
        if process.is_alive():
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        self._code = process.exitcode or 0
