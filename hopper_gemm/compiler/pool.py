"""Compiling ahead: many kernels at once, in processes of their own, into the store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import LifoQueue
from threading import Lock
from typing import Literal

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import compile_into
from hopper_gemm.compiler.store import KernelId, KernelStore

COMPILE_SECONDS = 120.0


@dataclass(frozen=True)
class Built:
    """What came of compiling a kernel.

    Args:
        status: ``"ok"``, ``"spilled"``, ``"compile_error"`` or ``"timeout"``.
        reason: one line where it is not ok.
        report: the compiler's figures where there are some.
    """

    status: Literal["ok", "spilled", "compile_error", "timeout"]
    reason: str = ""
    report: CubinReport | None = None


class CompilePool:
    """Compiles kernels in parallel processes; each may crash or hang without harm to the others.

    Args:
        store: where the kernels go.
        workers: processes; by default all cores but one that this process may use.
    """

    def __init__(self, store: Path, workers: int | None = None) -> None:
        self._store = KernelStore(store)
        count = workers or max(1, len(os.sched_getaffinity(0)) - 1)
        self._children = [Child(_compiler, store) for _ in range(count)]
        self._idle: LifoQueue[Child] = LifoQueue()
        for child in self._children:
            self._idle.put(child)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="compile")
        self._futures: dict[KernelId, Future[Built]] = {}
        self._asking = Lock()

    def submit(self, kernels: Iterable[KernelId]) -> None:
        """Queue kernels, in their order; those queued before or already in the store cost nothing."""
        for kernel in kernels:
            with self._asking:
                if kernel not in self._futures:
                    self._futures[kernel] = self._threads.submit(self._build, kernel)

    def result(self, kernel: KernelId) -> Built:
        """Wait for a kernel; one that was never submitted is compiled now."""
        self.submit([kernel])
        return self._futures[kernel].result()

    def done(self, kernel: KernelId) -> bool:
        """Whether there is a result that need not be waited for."""
        future = self._futures.get(kernel)
        return future is not None and future.done()

    def drop(self) -> None:
        """Forget what is queued and not begun: nobody will ask for it, or else it is compiled then."""
        with self._asking:
            for kernel, future in list(self._futures.items()):
                if future.cancel():
                    del self._futures[kernel]

    def close(self) -> None:
        """Drop what is queued and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.close()

    def _build(self, kernel: KernelId) -> Built:
        report = self._store.report(kernel)
        if report is None:
            child = self._idle.get()
            try:
                reply = child.ask(kernel, COMPILE_SECONDS)
            finally:
                self._idle.put(child)
            if reply.kind == "timeout":
                return Built("timeout", f"compiling: {reply.error}")
            if reply.kind != "answer":
                return Built("compile_error", reply.error)
            report = reply.value
        if report.spills:
            return Built(
                "spilled", f"{report.stack_bytes} B of stack, {report.local_loads} loads from local memory", report
            )
        return Built("ok", "", report)


def _compiler(store: Path) -> Handler:
    kernels = KernelStore(store)
    return lambda kernel: compile_into(kernels, kernel)
