"""Files that only one process holds at a time. The kernel gives a lock free when its process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from hopper_gemm.tables.trials import ResultsError


class FileLock:
    """An exclusive lock on a file, which is made if need be and stays; a context manager that waits for it.

    Args:
        path: of the file; its content is the holder's to use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def take(self, wait: bool = True) -> bool:
        """Take the lock.

        Args:
            wait: until it is free; else say at once whether it was.

        Raises:
            ResultsError: the file cannot be made.
        """
        import fcntl  # no such module on Windows, where tables are still read

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ResultsError(f"{self.path} cannot be made ({error.strerror}); name another folder") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return False
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def release(self) -> None:
        """Give it free; may be called more than once."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def read(self) -> str:
        """The content of the file."""
        return self.path.read_text()

    def write(self, text: str) -> None:
        """Replace the content; only its holder may. The file itself stays, since the lock is on it."""
        assert self._handle is not None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, text.encode(), 0)

    def __enter__(self) -> FileLock:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
