"""Kernels that are compiled in the background while torch serves their calls, and the count of such calls.

Processes compile, into the store; this process imports no DSL for it, and has no thread: each call that waits for a
kernel looks whether it is there.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.store import AnyId, KernelStore, compiled_in, default_store
from hopper_gemm.model.problem import GemmProblem

PROCESSES = 4
"""Most processes that compile at once; each takes a core, and half a gigabyte."""


class UncompiledError(RuntimeError):
    """The kernel of a problem, the only argument, is being compiled or cannot be, and torch may serve the call."""


@dataclass(frozen=True)
class Compiling:
    """The kernels that are compiled in the background, and the calls that torch served meanwhile; ``str()`` summarises.

    Args:
        pending: problems whose kernel is not yet compiled.
        failed: problems whose kernel could not be compiled, with the reason; torch goes on serving them.
        by_torch: number of calls that torch served, by problem.
    """

    pending: tuple[GemmProblem, ...]
    failed: dict[GemmProblem, str]
    by_torch: dict[GemmProblem, int]

    def __str__(self) -> str:
        states = dict.fromkeys(self.pending, "being compiled") | {p: f"failed: {why}" for p, why in self.failed.items()}
        total, pending = sum(self.by_torch.values()), len(self.pending)
        lines = [f"{total} calls by torch while kernels were compiled, {pending} pending"]
        for problem in dict.fromkeys((*self.by_torch, *states)):
            calls, state = self.by_torch.get(problem, 0), states.get(problem, "compiled")
            lines.append(f"  {problem} {problem.dtype} {problem.layouts}: {calls} calls, {state}")
        return "\n".join(lines)


def pool_of(store: Path) -> Any:
    """Processes that compile into a store; none is started yet."""
    from hopper_gemm.compiler.pool import CompilePool, compiling_while_needed

    return CompilePool(store, min(PROCESSES, max(1, len(os.sched_getaffinity(0)) - 1)), compiling_while_needed)


class Background:
    """Kernels compiled in the background by a pool that ``make`` makes for a store. Thread-safe; a fork begins anew."""

    def __init__(self, make: Callable[[Path], Any] = pool_of) -> None:
        self._make = make
        self._ready: set[AnyId] = set()
        """In a store, or in none that could be written: to load such a kernel is the call's."""
        self._failed: dict[AnyId, str] = {}
        self._warned: set[AnyId] = set()
        self._problems: dict[AnyId, dict[GemmProblem, None]] = {}
        self._by_torch: Counter[GemmProblem] = Counter()
        self.begin()

    def begin(self) -> None:
        """Forget the processes, which are another process's after a fork."""
        self._lock, self._pending = threading.Lock(), set[AnyId]()
        self._pool: Any = None

    def compiles(self, problem: GemmProblem, kernels: Sequence[AnyId]) -> bool:
        """Return True while a kernel of a problem is compiled, and after it could not be, of which one call warns.
        False where all are in a store. What is in none is given to a process."""
        with self._lock:
            waiting = [kernel for kernel in kernels if self._waits(kernel)]
            for kernel in waiting:
                self._problems.setdefault(kernel, {})[problem] = None
            failed = (self._failed.keys() & waiting) - self._warned
            self._warned |= failed
        for kernel in failed:
            text = f"the kernel of {problem} cannot be compiled and torch multiplies instead: {self._failed[kernel]}"
            warnings.warn(f'{text}; hopper_gemm.fallback("never") makes it an error', RuntimeWarning, stacklevel=2)
        return bool(waiting)

    def finish(self, kernel: AnyId) -> None:
        """Wait until a kernel that a process compiles is compiled, or cannot be."""
        while kernel in self._pending:
            with self._lock:
                waits = kernel in self._pending and self._waits(kernel)
            if not waits:
                return
            time.sleep(0.005)

    def served(self, problem: GemmProblem) -> None:
        """Count a call that torch serves."""
        with self._lock:
            self._by_torch[problem] += 1

    def state(self) -> Compiling:
        """What is compiled now, and what torch has served."""
        with self._lock:
            for kernel in list(self._pending):
                self._waits(kernel)
            pending = [problem for kernel in self._pending for problem in self._problems.get(kernel, ())]
            failed = {
                problem: why for kernel, why in self._failed.items() for problem in self._problems.get(kernel, ())
            }
            return Compiling(tuple(dict.fromkeys(pending)), failed, dict(self._by_torch))

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _waits(self, kernel: AnyId) -> bool:
        """Return True if a kernel cannot be loaded: it is being compiled, from now on if no store has it, or cannot be.
        Hold the lock."""
        if kernel in self._ready or kernel in self._failed:
            return kernel in self._failed
        new = kernel not in self._pending
        if new and (compiled_in(kernel) is not None or not self._able(KernelStore(default_store()))):
            self._ready.add(kernel)
            return False
        self._pending.add(kernel)
        try:
            self._pool.submit([kernel])
        except Exception:  # no process can be started here: each call compiles its own
            self._ready |= self._pending
            self.close()
            self._pending.clear()
            return False
        built = self._pool.built(kernel)
        if built is None:
            return True
        self._pending.remove(kernel)
        if built.report is None:
            self._failed[kernel] = built.reason
            return True
        self._ready.add(kernel)
        return False

    def _able(self, store: KernelStore) -> bool:
        """Return True with processes that compile into a store, False if it cannot be written, or if the program that
        runs is no Python that could be started again."""
        if not sys.executable or hasattr(sys, "frozen"):
            return False
        try:
            store.prepare()
        except OSError:
            return False
        if self._pool is None:
            self._pool = self._make(store.root)
            atexit.register(self.close)
        return True


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND.begin)


def compiling() -> Compiling:
    """Kernels that are compiled in the background now or could not be, and how many calls torch served meanwhile.

    Example:
        >>> print(compiling())
        0 calls by torch while kernels were compiled, 0 pending
    """
    return BACKGROUND.state()
