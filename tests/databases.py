"""A PostgreSQL server of a test's own: in a temporary folder, on loopback, as a user without privileges."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest


def missing() -> str:
    """Why there can be no server here; empty where there can."""
    absent = [name for name in ("initdb", "postgres") if shutil.which(name) is None]
    if absent:
        return f"PostgreSQL is not installed: no {' and no '.join(absent)} on the path"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    return ""


class Server:
    """Started when made; stopped, restarted and removed on demand."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hopper-gemm-pg-"))
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = ["initdb", "-D", self.folder / "data", "-U", "sweep", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._user)
        self.start()

    def url(self, name: str) -> str:
        """Of a new, empty database."""
        import psycopg

        with psycopg.connect(f"postgresql://sweep@127.0.0.1:{self.port}/postgres", autocommit=True) as session:
            session.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql+psycopg://sweep@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """And wait until it answers."""
        options = ["-D", self.folder / "data", "-p", str(self.port), "-h", "127.0.0.1", "-k", self.folder]
        self._process = subprocess.Popen(
            ["postgres", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **self._user
        )
        import psycopg

        for _ in range(200):
            try:
                psycopg.connect(f"postgresql://sweep@127.0.0.1:{self.port}/postgres").close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        raise RuntimeError("the PostgreSQL server does not answer")

    def stop(self, how: int = signal.SIGINT) -> None:
        """By default at once, all sessions cut off; SIGQUIT leaves it to recover at the next start."""
        self._process.send_signal(how)
        self._process.wait(20)

    def remove(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def postgres():
    """URL of an empty database."""
    if why := missing():
        pytest.skip(why)
    server = Server()
    yield server.url("trials").replace("+psycopg", "")
    server.remove()
