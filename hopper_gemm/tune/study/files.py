"""Files of studies: paths, readers whose errors name file and line, atomic writes, and a lock."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.sealed import SUM, SumError, check_sum, parsed, sealed
from hopper_gemm.model.tuned import TunedEntry, read_tuned, recorded_tables, replace_file, results_root
from hopper_gemm.tune.study.row import ResultsError


def ladder_file() -> Path:
    """Return the path of the design study's ladder."""
    return results_root().parent / "sweeps" / "ladder.toml"


def suite_file() -> Path:
    """Return the path of the suite: the problems by which the kernel is judged."""
    return results_root().parent / "sweeps" / "shapes" / "suite.toml"


def recorded_entries() -> list[TunedEntry]:
    """The entries of all recorded tables, without those of groups."""
    entries = [entry for path in recorded_tables().values() for entry in read_tuned(path)]
    return [entry for entry in entries if not isinstance(entry.problem, GroupedProblem)]


def shown(path: Path) -> str:
    """Return a path as results and messages show it: relative to the checkout if inside it."""
    root = results_root().parent
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def here_or_recorded(path: Path) -> Path:
    """Return the path; if it does not exist but does in the checkout (of a wheel: in the package), return that one."""
    inside = results_root().parent / path
    return inside if not path.exists() and inside.exists() else path


def read_text(path: Path) -> str:
    """Return the text of a file without a byte-order mark; a ResultsError names what is missing, or the line that is no
    UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ResultsError(f"{path} does not exist; name a results folder such as results/h200/seed-table") from None
    except OSError as error:
        raise ResultsError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        byte = error.object[error.start]
        raise ResultsError(f"{path}, line {line}, column {column}: byte {byte:#04x} is not UTF-8; restore it") from None


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return _json_of(read_text(path), path)


def _json_of(text: str, path: Path) -> Any:
    try:
        return parsed(text)
    except json.JSONDecodeError as error:
        line = f"{path}, line {error.lineno}, column {error.colno}"
        raise ResultsError(f"{line}: {error.msg}; restore the file") from None
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path} is no JSON that can be read ({error}); restore the file") from None


def read_object(path: Path, checks: bool = True) -> dict[str, Any]:
    """Return the object of a JSON file that :func:`write_sealed` wrote; unless ``checks``, of one whose sum is missing
    or wrong too. ResultsError if it holds something else, or was changed since."""
    text = read_text(path)
    value = _json_of(text, path)
    if not isinstance(value, dict):
        raise ResultsError(f"{path} must hold an object of JSON but holds a {type(value).__name__}; restore it")
    try:
        if checks:
            check_sum(text, path)
    except SumError as error:
        raise ResultsError(str(error)) from None
    return {name: part for name, part in value.items() if name != SUM}


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON that carries its sum, by :func:`write_whole`."""
    write_whole(path, sealed(value))


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file so that at every moment it holds the old content or the new, also after a power cut; ResultsError
    if it cannot be written."""
    try:
        replace_file(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written ({error.strerror}); free the disk, or name another folder"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON by :func:`write_whole`."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


class FileLock:
    """An exclusive lock on a file, which :meth:`take` makes and :meth:`release` removes. The kernel frees it when its
    holder ends, however it ends; a killed holder leaves the file, free to be taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: int | None = None

    def take(self, note: str = "") -> bool:
        """Take the lock unless it is held; return True if taken. Others read the note: who holds it, since when.
        ResultsError if the file cannot be made."""
        import fcntl  # no such module on Windows, where tables are still read

        while True:
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ResultsError(f"{self.path} cannot be made ({error.strerror}); name another folder") from None
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(handle).st_ino == os.stat(self.path).st_ino:
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, note.encode(), 0)
                    self.handle = handle
                    return True
            except BlockingIOError:
                os.close(handle)
                return False
            except FileNotFoundError:
                pass
            except OSError as error:
                os.close(handle)
                raise ResultsError(f"{self.path} cannot be locked ({error.strerror}); name another folder") from None
            os.close(handle)  # its holder removed it between the two calls: the name is another file's by now

    def release(self) -> None:
        """Free the lock and remove the file; may be called more than once."""
        handle, self.handle = self.handle, None
        if handle is not None:
            with suppress(OSError):
                self.path.unlink()
            os.close(handle)

    def taken(self) -> str | None:
        """Return the holder's note; None if the lock is free. Changes nothing."""
        import fcntl

        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(handle, 4096, 0).decode(errors="replace")
        finally:
            os.close(handle)
        return None
