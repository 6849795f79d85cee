"""Who works on which problem of a list. A claim is a lock, so that a process which dies holds none."""

from __future__ import annotations

import json
from pathlib import Path

from hopper_gemm.tables.locks import FileLock

FOLDER = ".claims"

TRIES = 2
"""So many processes may die over one problem; then the run leaves it alone."""


class Claim:
    """The right to work on a problem, with what the processes of this run have noted of it.

    Args:
        lock: held.
        run: name of the run; notes of another one count for nothing.
    """

    def __init__(self, lock: FileLock, run: str) -> None:
        self._lock = lock
        self._run = run
        try:
            note = json.loads(lock.read() or "{}")
        except ValueError:  # torn by a kill
            note = {}
        mine = note.get("run") == run
        self.begun: int = note["begun"] if mine else 0
        """Processes that began the problem; those that did not settle it have died."""
        self.settled: bool = note["settled"] if mine else False
        """Whether this run is done with the problem, for better or worse."""

    def begin(self) -> None:
        """Note that a process sets to work."""
        self.begun += 1
        self._write()

    def settle(self) -> None:
        """Note that nobody need come back to the problem in this run."""
        self.settled = True
        self._write()

    def release(self) -> None:
        """Let others have it."""
        self._lock.release()

    def _write(self) -> None:
        self._lock.write(json.dumps({"run": self._run, "begun": self.begun, "settled": self.settled}))


def claim(folder: Path, name: str, run: str) -> Claim | None:
    """Claim a problem, or None where another process holds it.

    Args:
        folder: of the list's results.
        name: of the problem's study.
        run: all processes of one run give the same.

    Raises:
        ResultsError: the folder cannot be written.
    """
    lock = FileLock(folder / FOLDER / f"{name}.lock")
    return Claim(lock, run) if lock.take(wait=False) else None
