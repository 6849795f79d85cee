"""Where the Optuna studies of a sweep are kept: a journal file, SQLite, or PostgreSQL where many hosts share them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend

from hopper_gemm.tables.locks import FileLock
from hopper_gemm.tuning.fleet import FileFleet, Fleet, PostgresFleet

Result = TypeVar("Result")

PATIENCE_SECONDS = 600.0
"""So long a sweep waits for a database that went away."""

START_SECONDS = 10.0
"""So long it is waited for at the start, when the URL may be wrong."""

POSTGRES = "postgresql+psycopg://"
FORMS = "a path, sqlite:///FILE, or postgresql+psycopg://USER@HOST/DATABASE"


class StorageError(ValueError):
    """The storage cannot be used; the message says why and the mend."""


def open_storage(url: str) -> BaseStorage:
    """An Optuna storage.

    Args:
        url: a path is a journal file; else a database, ``sqlite:///FILE`` or ``postgresql+psycopg://...``.

    Raises:
        StorageError: another kind of storage, or it cannot be reached.
    """
    kind = _kind(url)
    if kind == "journal":
        _folder_of(Path(url))
        return JournalStorage(_journal(Path(url)))
    return _reached(url, lambda: get_storage(RDBStorage(_full(url), engine_kwargs=_ENGINE[kind])))


def open_fleet(url: str) -> Fleet:
    """The workers that share a storage; see :mod:`hopper_gemm.tuning.fleet`.

    Raises:
        StorageError: as :func:`open_storage`.
    """
    kind = _kind(url)
    if kind == "postgres":
        return _reached(url, lambda: PostgresFleet(_full(url).replace("+psycopg", "", 1)))
    path = Path(url if kind == "journal" else url.removeprefix("sqlite:///"))
    _folder_of(path)
    return FileFleet(path.with_name(path.name + ".workers"))


def patiently(do: Callable[[], Result], patience: float = PATIENCE_SECONDS) -> Result:
    """Do something with the storage, again and again while its database is away.

    Args:
        do: may have been done, wholly or in part, when it fails: doing it twice must be doing it once.
        patience: seconds.

    Raises:
        StorageError: the database did not come back.
    """
    started, pause = time.monotonic(), 0.05
    while True:
        try:
            return do()
        except Exception as error:
            if not is_away(error):
                raise
            if time.monotonic() - started > patience:
                raise StorageError(
                    f"the database was away for {patience:.0f} s ({_reason(error)}); nothing is lost: "
                    "start it, then run the same command"
                ) from None
        time.sleep(pause)
        pause = min(2.0, 1.5 * pause)


def is_away(error: BaseException) -> bool:
    """Whether an error says that the database cannot be reached now, or is busy: all others are mistakes."""
    import sqlalchemy.exc

    away: tuple[type[BaseException], ...] = (
        sqlalchemy.exc.OperationalError,
        sqlalchemy.exc.InterfaceError,
        sqlalchemy.exc.PendingRollbackError,  # the second statement of a session that broke in its first
    )
    try:
        import psycopg

        away = (*away, psycopg.OperationalError, psycopg.InterfaceError)
    except ImportError:
        pass
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        return is_away(error.__cause__)
    return isinstance(error, away) or getattr(error, "connection_invalidated", False)


_ENGINE: dict[str, dict[str, Any]] = {
    "sqlite": {"connect_args": {"timeout": 60}},
    "postgres": {"pool_size": 1, "max_overflow": 2, "connect_args": {"connect_timeout": 5}},
}


def _kind(url: str) -> str:
    if "://" not in url:
        return "journal"
    if url.startswith("sqlite:///"):
        return "sqlite"
    if url.startswith((POSTGRES, "postgresql://")):
        return "postgres"
    raise StorageError(f"--storage must be {FORMS} but got {shown_url(url)}")


def _full(url: str) -> str:
    return url.replace("postgresql://", POSTGRES, 1)


def shown_url(url: str) -> str:
    """A URL without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:...@", url)


def _reached(url: str, do: Callable[[], Result]) -> Result:
    """Open something; a database that is just starting is waited for a little."""
    started = time.monotonic()
    while True:
        try:
            return do()
        except ImportError:
            raise StorageError("PostgreSQL needs psycopg; pip install 'hopper-gemm[postgres]'") from None
        except Exception as error:
            if not is_away(error):
                raise
            if time.monotonic() - started > START_SECONDS:
                raise StorageError(
                    f"{shown_url(url)} cannot be reached ({_reason(error)}); start the database, or leave out --storage"
                ) from None
        time.sleep(0.2)


def _reason(error: BaseException) -> str:
    """The database's own words, in a line."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    lines = [line.strip() for line in str(getattr(cause, "orig", None) or cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__


def _folder_of(path: Path) -> None:
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path.parent} cannot be made ({error.strerror}); name another file with --storage"
        ) from None
    if path.is_dir():
        raise StorageError(f"--storage must be a file but {path} is a folder; name one in it")


class _JournalLock:
    """What the journal takes for one of Optuna's locks, but given free by the kernel when its process dies: Optuna's
    own, a symbolic link, then holds everybody up for half a minute."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def acquire(self) -> bool:
        """Take it, waiting."""
        return self._lock.take()

    def release(self) -> None:
        """Give it free."""
        self._lock.release()


def _journal(path: Path) -> JournalFileBackend:
    """The journal, with a torn last line cut off: what a full disk or a kill left of it would spoil the next entry."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    with lock:
        if path.is_file():
            content = path.read_bytes()
            if content and not content.endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)
        return JournalFileBackend(str(path), lock_obj=_JournalLock(lock.path))
