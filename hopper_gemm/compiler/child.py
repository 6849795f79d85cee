"""Child processes for calls that may not return: compilers abort and kernels hang, and the caller must survive.

A child never outlives its parent. A thread, which a call that hangs on the GPU does not block, watches the end of a
pipe that only the parent holds; and the operating system is asked for a signal as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

Handler = Callable[[Any], Any]
"""Answers one request; made in the child by a factory, so that it may keep state there."""

CONTEXT = multiprocessing.get_context("spawn")
"""Processes are spawned, not forked, so that none holds another's pipe open."""

_STARTING = threading.Lock()

_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()
"""Processes that this one has started."""

PR_SET_PDEATHSIG = 1

START_SECONDS = 120.0
"""Allowance on top of a time-out while the process starts."""


@dataclass(frozen=True)
class Reply:
    """The reply to a request: the handler's answer as ``value``; or what went wrong as ``error``, in one line. The
    handler raised, the process died, or it was killed at its time-out."""

    kind: Literal["answer", "raised", "died", "timeout"]
    value: Any = None
    error: str = ""


class Child:
    """One process that answers requests, started by the first request and again after its death. ``factory``, a
    function of a module, is called there with the arguments, which are pickled, and returns the handler. Variables of
    ``environment`` are set before anything is imported there; the file ``log`` takes what the child prints, tracebacks
    too; the file descriptor ``holds``, such as that of a lock, stays open as long as the process lives."""

    def __init__(
        self,
        factory: Callable[..., Handler],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        holds: int | None = None,
    ) -> None:
        self._factory, self._arguments = factory, arguments
        self._environment, self._log, self._holds = dict(environment or {}), log, holds
        self._process: Any = None
        self._connection: Connection | None = None
        self._fresh = False
        self._timeout = 0.0
        self.deadline: float | None = None
        """Deadline of the pending answer, by :func:`time.monotonic`; None if no request is pending."""

    def start(self) -> None:
        """Start the process ahead of its first request, so that the imports of its factory are loaded meanwhile."""
        if self._process is None or not self._process.is_alive() or self._connection is None:
            self.close()
            by_main = threading.current_thread() is threading.main_thread()
            held = None if self._holds is None else Connection(os.dup(self._holds))  # a descriptor that can travel
            life = (self._environment, self._log, by_main, held, self._factory, self._arguments)
            self._process, self._connection = spawn(_serve, *life, daemon=True)
            if held is not None:
                held.close()
            self._fresh = True

    def send(self, request: Any, timeout: float) -> None:
        """Send a picklable request, one at a time, without waiting for the answer, which has ``timeout`` seconds."""
        self.start()
        assert self._connection is not None
        self._timeout = timeout
        self.deadline = time.monotonic() + timeout + (START_SECONDS if self._fresh else 0.0)
        self._fresh = False
        with contextlib.suppress(OSError):  # the process died: poll reports it
            self._connection.send(request)

    @property
    def waits(self) -> list[Any]:
        """Handle for :func:`multiprocessing.connection.wait`, ready when :meth:`poll` has a reply."""
        return [] if self.deadline is None or self._connection is None else [self._connection]

    def poll(self) -> Reply | None:
        """Return the reply to the request, None while it is pending; the next request starts a process that died."""
        connection, deadline = self._connection, self.deadline
        if connection is None or deadline is None:
            return Reply("died", error="the process was closed")
        try:
            if not connection.poll(0):
                if time.monotonic() < deadline:
                    return None
                self.close()
                return Reply("timeout", error=f"no answer within {self._timeout:.0f} s; killed")
            reply: Reply = connection.recv()
        except (EOFError, OSError):
            if (process := self._process) is None:  # closed by another thread
                return Reply("died", error="the process was closed")
            process.join(5)
            end = ending(process.exitcode)
            self.close()
            return Reply("died", error=f"the process died with {end}")
        self.deadline = None
        if reply.kind == "raised":
            self.close()
        return reply

    def ask(self, request: Any, timeout: float) -> Reply:
        """Send a request, as :meth:`send`, and wait for the reply."""
        self.send(request, timeout)
        while (reply := self.poll()) is None:
            wait(self.waits, 1.0)
        return reply

    def close(self) -> None:
        """Kill the process with all that it started, if there is one."""
        process, connection = self._process, self._connection
        self._process = self._connection = self.deadline = None
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            process.close()
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Context in which a process that this thread starts does not run the caller's ``__main__`` again, as the standard
    library has it do for what a script defines: a script without a guard would run in each process, and a script from
    stdin cannot run. A daemon of multiprocessing, as the workers of servers are, may start it too: the standard library
    refuses what would outlive a daemon that is killed, which these processes do not."""
    current: Any = multiprocessing.current_process()
    with _STARTING:
        whole, thread = multiprocessing.spawn.get_preparation_data, threading.get_ident()
        daemon = current._config.get("daemon", False)
        current._config["daemon"] = False

        def prepared(name: str) -> dict[str, Any]:
            ours = threading.get_ident() == thread
            return {key: value for key, value in whole(name).items() if not (ours and key.startswith("init_main"))}

        multiprocessing.spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            multiprocessing.spawn.get_preparation_data = whole
            current._config["daemon"] = daemon


def spawn(target: Callable[..., None], *arguments: Any, **options: Any) -> tuple[Any, Connection]:
    """Start a process, which does not run the caller's ``__main__``; return it and the parent's end of its pipe.
    ``target``, a function of a module, is called with its end of the pipe, then the arguments, which are pickled;
    ``options`` are the process's: its name, and whether it is a daemon."""
    line, far = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(far, *arguments), **options)
    with _without_main():
        process.start()
    _STARTED.add(process)
    far.close()
    return process, line


def _disown() -> None:
    """After a fork leave the processes to their parent: multiprocessing would end them with this one. Another thread
    may have held the lock."""
    global _STARTING
    _STARTING = threading.Lock()
    listed: Any = multiprocessing.process
    listed._children.difference_update(_STARTED)
    _STARTED.clear()


os.register_at_fork(after_in_child=_disown)


def ending(code: int | None) -> str:
    """Describe a process's end in two or three words, from its exit code."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):  # a signal without a name
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def settle_in(log: Path | None = None, by_main: bool = True) -> None:
    """Set up a spawned process: it ignores Ctrl-C, ends with its parent and all that it started, and prints to a log.
    ``by_main``: the parent's main thread started it; Linux signals a parent's death when the starting thread ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    if log is not None:
        with contextlib.suppress(OSError):
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for stream in (1, 2):
                os.dup2(handle, stream)
            os.close(handle)
    parent: Any = multiprocessing.parent_process()
    if parent is None:
        return
    if by_main:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        parent.join()
        with contextlib.suppress(OSError):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _serve(
    connection: Connection,
    environment: dict[str, str],
    log: Path | None,
    by_main: bool,
    held: Connection | None,
    factory: Callable[..., Handler],
    arguments: tuple[Any, ...],
) -> None:
    """Main function of the child: make the handler, answer until the pipe closes or it raises; ``held`` stays open."""
    settle_in(log, by_main)
    os.environ.update(environment)
    try:
        handler = factory(*arguments)
        while True:
            connection.send(Reply("answer", handler(connection.recv())))
    except EOFError:
        return
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            lines = str(error).splitlines() or [""]
            connection.send(Reply("raised", error=f"{type(error).__name__}: {lines[0]}"[:500]))
