"""Parallel compilation: many kernels at once, in separate processes, into the store."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import AnyId, KernelStore, PaddingId

COMPILE_SECONDS = 120.0

IDLE_SECONDS = 30
"""Time after which a process of :func:`compiling_while_needed` ends."""


@dataclass(frozen=True)
class Built:
    """The result of compiling: a kernel's resources, and one line of reason if it is not ok, or spills and may."""

    status: Literal["ok", "spilled", "compile_error", "timeout"]
    reason: str = ""
    report: CubinReport | None = None


def compiling(store: Path) -> Handler:
    """The handler of a process that compiles."""
    from hopper_gemm.compiler.loader import compile_into

    kernels = KernelStore(store)
    return lambda kernel: compile_into(kernels, kernel)


def compiling_while_needed(store: Path) -> Handler:
    """The handler of a process that compiles, and ends when it was idle for :data:`IDLE_SECONDS`."""
    handler = compiling(store)

    def compile_next(kernel: AnyId) -> CubinReport:
        signal.alarm(0)
        try:
            return handler(kernel)
        finally:
            signal.alarm(IDLE_SECONDS)

    return compile_next


class CompilePool:
    """Compiles kernels into a store, in parallel processes; each may crash or hang without harm to the others. It has
    no thread: all work is done within :meth:`pump` and :meth:`result`. ``workers`` is by default one fewer than the
    cores that this process may use; ``factory`` makes a process's handler; ``log`` takes what compilers print."""

    def __init__(
        self,
        store: Path,
        workers: int | None = None,
        factory: Callable[[Path], Handler] = compiling,
        log: Path | None = None,
    ) -> None:
        self._store = KernelStore(store)
        count = workers or max(1, len(os.sched_getaffinity(0)) - 1)
        self._idle = [Child(factory, store, log=log) for _ in range(count)]
        self._busy: dict[AnyId, Child] = {}
        self._queue: deque[AnyId] = deque()
        self._submitted: set[AnyId] = set()
        self._again: set[AnyId] = set()
        """Kernels whose compiler has died once."""
        self._built: dict[AnyId, Built] = {}

    def submit(self, kernels: Iterable[AnyId]) -> None:
        """Queue kernels, in their order; kernels queued before are skipped."""
        for kernel in kernels:
            if kernel not in self._submitted:
                self._submitted.add(kernel)
                self._queue.append(kernel)
        self.pump()

    def pump(self) -> None:
        """Collect compiled kernels, and start compiling queued ones."""
        for kernel, child in list(self._busy.items()):
            reply = child.poll()
            if reply is None:
                continue
            del self._busy[kernel]
            self._idle.append(child)
            if reply.kind == "died" and kernel not in self._again:  # perhaps for want of memory
                self._again.add(kernel)
                self._queue.appendleft(kernel)
            elif reply.kind == "timeout":
                self._built[kernel] = Built("timeout", f"compiling: {reply.error}")
            elif reply.kind != "answer":
                self._built[kernel] = Built("compile_error", reply.error)
            else:
                self._built[kernel] = _built(kernel, reply.value)
        while self._queue:
            report = self._store.report(self._queue[0])
            if report is not None:
                kernel = self._queue.popleft()
                self._built[kernel] = _built(kernel, report)
            elif self._idle:
                kernel, child = self._queue.popleft(), self._idle.pop()
                self._busy[kernel] = child
                child.send(kernel, COMPILE_SECONDS)
            else:
                return

    @property
    def waits(self) -> list[Any]:
        """Handles for :func:`multiprocessing.connection.wait`; some is ready when :meth:`pump` has work."""
        return [handle for child in self._busy.values() for handle in child.waits]

    def built(self, kernel: AnyId) -> Built | None:
        """The result for a kernel, or None while it is pending."""
        return self._built.get(kernel)

    def result(self, kernel: AnyId) -> Built:
        """Wait for a kernel and return its result; submit it if it was not."""
        self.submit([kernel])
        while kernel not in self._built:
            wait(self.waits, 1.0)
            self.pump()
        return self._built[kernel]

    def close(self) -> None:
        """End the processes; drop queued kernels."""
        for child in (*self._idle, *self._busy.values()):
            child.close()


def _built(kernel: AnyId, report: CubinReport) -> Built:
    if not report.spills:
        return Built("ok", "", report)
    why = f"{report.stack_bytes} B of stack, {report.local_loads} loads from local memory"
    return Built("ok" if not isinstance(kernel, PaddingId) and kernel.config.spills else "spilled", why, report)
