"""A process that may die: compilers abort and kernels hang, and neither may take the caller along."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

Handler = Callable[[Any], Any]
"""Answers one request; made in the child by a factory, so that it may keep state there."""


@dataclass(frozen=True)
class Reply:
    """What came of a request.

    Args:
        kind: ``"answer"``; ``"raised"``: by the handler; ``"died"``: the process did; ``"timeout"``: it was killed.
        value: the handler's answer.
        error: one line on what went wrong.
    """

    kind: Literal["answer", "raised", "died", "timeout"]
    value: Any = None
    error: str = ""


class Child:
    """One process that answers requests, started when first asked and again after it died.

    Args:
        factory: a module-level function; called in the child with ``arguments``, it returns the handler.
        arguments: picklable.
        environment: variables set in the child before anything is imported there.
        start_seconds: allowance on top of the time-out while the process starts.
    """

    def __init__(
        self,
        factory: Callable[..., Handler],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
    ) -> None:
        self._factory = factory
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._start_seconds = start_seconds
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._fresh = False

    def start(self) -> None:
        """Start the process ahead of its first request, so that what its factory imports is loaded meanwhile."""
        self._ready()

    def ask(self, request: Any, timeout: float) -> Reply:
        """Send a request and wait; after a death or a time-out the next request meets a new process.

        Args:
            request: picklable.
            timeout: seconds allowed for the answer.
        """
        connection = self._ready()
        allowed = timeout + (self._start_seconds if self._fresh else 0.0)
        self._fresh = False
        try:
            connection.send(request)
            if not connection.poll(allowed):
                self.close()
                return Reply("timeout", error=f"no answer within {timeout:.0f} s; killed")
            kind, payload = connection.recv()
        except (EOFError, OSError):
            code = self._exit_code()
            self.close()
            return Reply("died", error=f"the process died with {code}")
        if kind == "raised":
            self.close()
            return Reply("raised", error=payload)
        return Reply("answer", payload)

    def close(self) -> None:
        """Kill the process, if there is one; also while another thread waits for its answer, and closes it too."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _ready(self) -> Connection:
        if self._process is None or not self._process.is_alive() or self._connection is None:
            self.close()
            context = multiprocessing.get_context("spawn")
            self._connection, far = context.Pipe()
            self._process = context.Process(
                target=_serve, args=(far, self._environment, self._factory, self._arguments), daemon=True
            )
            self._process.start()
            far.close()
            self._fresh = True
        return self._connection

    def _exit_code(self) -> str:
        if self._process is None:
            return "an unknown exit code"
        self._process.join(5)
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"


def _serve(
    connection: Connection, environment: dict[str, str], factory: Callable[..., Handler], arguments: tuple[Any, ...]
) -> None:
    """The child's life: make the handler, answer until the pipe closes. A handler that raised is not trusted again."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)
    try:
        handler = factory(*arguments)
        while True:
            request = connection.recv()
            connection.send(("answer", handler(request)))
    except EOFError:
        return
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(("raised", f"{type(error).__name__}: {error}".splitlines()[0][:500]))
