"""Folders and files that this user alone can have written: opened step by step, so that what was checked is read.

A folder is reached from the root by descriptors, each checked before the next is opened. Every folder on the way must
belong to this user or to root, and others must not be able to exchange what it holds: it is not writable for them, or
is sticky, as /tmp is.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

WALKING = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of a folder on the way, which need not be readable."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class StoreError(PermissionError):
    """A folder or file cannot be trusted: another user owns it or may write to it. The message gives the fix."""


@contextlib.contextmanager
def opened_folder(folder: Path, make: bool = False) -> Iterator[int]:
    """Open a folder that others cannot have written, nor exchanged, else raise a StoreError; close it at the end. Links
    are followed first. ``make``: make it, and folders above it, with mode 0700 whatever the umask."""
    path, *names = Path("/"), *Path(os.path.realpath(folder)).parts[1:]
    handle = os.open(path, WALKING)
    try:
        for name in names:
            _trust_parent(os.fstat(handle), path)
            path = path / name
            if make:
                with contextlib.suppress(FileExistsError):  # another process may make it now
                    os.mkdir(name, 0o700, dir_fd=handle)
            below = os.open(name, WALKING, dir_fd=handle)
            os.close(handle)
            handle = below
        trusted(os.fstat(handle), folder)
        inside = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)
    try:
        yield inside
    finally:
        os.close(inside)


def read_in(handle: int, path: Path) -> bytes:
    """Return the content of a file in an :func:`opened_folder`; refuse it as :func:`trusted`."""
    with open(os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle), "rb") as file:
        trusted(os.fstat(file.fileno()), path)
        return file.read()


def read_trusted(path: Path) -> bytes:
    """Return the content of a file that others cannot have written, else raise a StoreError."""
    with opened_folder(path.parent) as handle:
        return read_in(handle, path)


def trusted(status: os.stat_result, path: Path) -> None:
    """Refuse a file or folder that another user owns or may write, by a StoreError."""
    if status.st_uid not in (os.geteuid(), 0):
        raise StoreError(
            f"{path} must belong to this user but belongs to user {status.st_uid}; name another folder for compiled "
            "kernels, or remove this one"
        )
    if status.st_mode & OTHERS_WRITE:
        raise StoreError(
            f"{path} must be writable by its owner alone but has mode {stat.S_IMODE(status.st_mode):o}; if nobody else "
            f"can have written to it: chmod go-w {path}; else remove it"
        )


def _trust_parent(status: os.stat_result, path: Path) -> None:
    """Refuse a folder in which others can exchange what it holds. Who owns ``/`` counts as root, which has another
    number in a user namespace."""
    if status.st_uid not in (os.geteuid(), 0, os.stat("/").st_uid):
        raise StoreError(
            f"{path} must belong to this user or to root but belongs to user {status.st_uid}, who can exchange the "
            "compiled kernels below it; set XDG_CACHE_HOME to another folder"
        )
    if status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        raise StoreError(
            f"{path} must not be writable by others, who can exchange the compiled kernels below it, but has mode "
            f"{stat.S_IMODE(status.st_mode):o}; chmod go-w {path}, or set XDG_CACHE_HOME to another folder"
        )
