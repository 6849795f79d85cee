"""The workers that share a sweep: which of them are alive, and what only one of them may do at a time.

Both are locks that their owner's death gives free, however it dies, so that nobody waits for a time-out and nothing is
believed of a clock: file locks where the workers are processes of one host, PostgreSQL's advisory locks where they are
on many. A worker holds a lock of its own for as long as it lives; a point that it was measuring is open again as soon
as somebody else can take that lock.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from hopper_gemm.tables.locks import FileLock

Held = Callable[[], bool]
"""Whether a lock is held still: a database that restarts gives all of them free."""


class Fleet(Protocol):
    """One worker's view of all.

    Args:
        worker: its name, unique among all runs.
    """

    worker: str

    def alone(self, what: str) -> AbstractContextManager[Held]:
        """Do something that no other worker does meanwhile, waiting for it."""
        ...

    def alive(self, worker: str) -> bool:
        """Whether a worker still runs; true where that is not known yet."""
        ...

    def close(self) -> None:
        """Leave; what this worker was measuring is open again. May be called more than once."""
        ...


def worker_name() -> str:
    """Host and process for people, and something that makes it unique."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Alone:
    """A worker that shares its storage with nobody."""

    def __init__(self) -> None:
        self.worker = worker_name()

    @contextmanager
    def alone(self, what: str) -> Iterator[Held]:
        """At once."""
        yield lambda: True

    def alive(self, worker: str) -> bool:
        """Nobody else is."""
        return worker == self.worker

    def close(self) -> None:
        """Nothing to leave."""


class FileFleet:
    """Processes of one host, by locks on files.

    Args:
        folder: of the locks; made if need be.

    Raises:
        ResultsError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.worker = worker_name()
        self._mine = self._lock(self.worker)
        self._mine.take()

    @contextmanager
    def alone(self, what: str) -> Iterator[Held]:
        """By a lock named after it."""
        with self._lock(f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.alone"):
            yield lambda: True

    def alive(self, worker: str) -> bool:
        """Whether its lock is taken."""
        if worker == self.worker:
            return True
        lock = self._lock(worker)
        if not lock.take(wait=False):
            return True
        with suppress(OSError):
            lock.path.unlink()
        lock.release()
        return False

    def close(self) -> None:
        """Give the worker's lock free."""
        with suppress(OSError):
            self._mine.path.unlink()
        self._mine.release()

    def _lock(self, name: str) -> FileLock:
        return FileLock(self._folder / name)


GRACE_SECONDS = 10.0
"""So soon after the database started nobody is taken for dead: the others must find their way back first."""

PING_SECONDS = 1.0


class PostgresFleet:
    """Workers of any hosts, by the advisory locks of a PostgreSQL database. A thread watches over the session that
    holds them and starts another when the database comes back.

    Args:
        conninfo: URL of the database, as libpq takes it.
        grace, ping: see :data:`GRACE_SECONDS` and :data:`PING_SECONDS`.
        clock: seconds, for the grace.

    Raises:
        psycopg.OperationalError: the database cannot be reached.
    """

    def __init__(
        self,
        conninfo: str,
        grace: float = GRACE_SECONDS,
        ping: float = PING_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conninfo, self._grace, self._ping, self._clock = conninfo, grace, ping, clock
        self.worker = worker_name()
        self._guard = threading.Lock()
        self._session: Any = self._connected()
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="database", daemon=True).start()

    @contextmanager
    def alone(self, what: str) -> Iterator[Held]:
        """By a lock named after it, for as long as the session lasts."""
        session = self._open()
        session.execute("SELECT pg_advisory_lock(%s)", (_key(what),))
        try:
            yield lambda: self._lasts(session)
        finally:
            with suppress(Exception):  # the session is gone, and its locks with it
                session.execute("SELECT pg_advisory_unlock(%s)", (_key(what),))

    def alive(self, worker: str) -> bool:
        """Whether its lock is taken, or might be taken again."""
        if worker == self.worker:
            return True
        session = self._open()
        if self._clock() - self._back < self._grace:
            return True
        if not session.execute("SELECT pg_try_advisory_lock(%s)", (_key(worker),)).fetchone()[0]:
            return True
        session.execute("SELECT pg_advisory_unlock(%s)", (_key(worker),))
        return False

    def close(self) -> None:
        """Give the locks free and end the session. Freed by name: what the end of a connection frees, the server frees
        when it has noticed it."""
        self._closing.set()
        with self._guard:
            with suppress(Exception):  # the database is away, or this is the second time
                self._session.execute("SELECT pg_advisory_unlock_all()")
            self._session.close()

    def _connected(self) -> Any:
        import psycopg

        session = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5, application_name=self.worker)
        session.execute("SELECT pg_advisory_lock(%s)", (_key(self.worker),))
        up = session.execute("SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())").fetchone()[0]
        self._back = self._clock() - float(up)
        return session

    def _open(self) -> Any:
        """The session, or another one where it broke."""
        with self._guard:
            if self._session.closed and not self._closing.is_set():
                self._session = self._connected()
            return self._session

    def _lasts(self, session: Any) -> bool:
        try:
            session.execute("SELECT 1")
        except Exception:
            return False
        return True

    def _watch(self) -> None:
        while not self._closing.wait(self._ping):
            with suppress(Exception):  # the database is away; the next round tries again
                self._lasts(self._open())


def _key(what: str) -> int:
    """A name as the 64 bits of an advisory lock."""
    return int.from_bytes(hashlib.sha256(f"hopper-gemm {what}".encode()).digest()[:8], "big", signed=True)
