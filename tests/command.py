"""The command line in a process of its own, forked from one that has already imported what most commands need."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

from tests.conftest import ROOT

SECONDS = 150
"""Time for a command."""

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["hopper_gemm.cli", "hopper_gemm.cli.running", "hopper_gemm.tune.tables.pages.report"])


def run(*arguments: str, cwd: Path = ROOT, module: str = "hopper_gemm.cli") -> CompletedProcess[str]:
    """Run ``hopper-gemm``, or the ``app`` of another module, in this process's environment; return its output and exit
    code."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        process = CONTEXT.Process(target=_command, args=(arguments, cwd, dict(os.environ), out, err, module))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        return CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())


def _command(
    arguments: tuple[str, ...], cwd: Path, environment: dict[str, str], out: Path, err: Path, module: str
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in enumerate((out, err), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    from hopper_gemm.cli import entry

    sys.argv = ["hopper-gemm", *arguments]
    entry(import_module(module).app)
