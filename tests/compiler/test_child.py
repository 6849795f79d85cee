"""Processes that are started do not run again what started them."""

from __future__ import annotations

import multiprocessing
import operator
import subprocess
import sys

import pytest

from hopper_gemm.compiler.child import CONTEXT, Child

SCRIPT = """
import operator
from hopper_gemm.compiler.child import Child
print("runs", flush=True)
child = Child(operator.itemgetter, 0)
print(child.ask(("answer",), 60))
child.close()
"""
DONE = "runs\nReply(kind='answer', value='answer', error='')\n"


@pytest.mark.parametrize("how", ["file", "package", "stdin", "command", "interactive"])
def test_a_script_without_a_guard_runs_once(tmp_path, how):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text(SCRIPT)
    options = {"file": ["script.py"], "package": ["-m", "package"], "command": ["-c", SCRIPT], "interactive": ["-iq"]}
    command = [sys.executable, *options.get(how, ["-"])]
    given = SCRIPT if how in ("stdin", "interactive") else ""
    done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, text=True, check=False)
    assert done.stdout == DONE, done.stderr
    assert "Traceback" not in done.stderr


def ask(line):
    """Send the answer of a child."""
    child = Child(operator.itemgetter, 0)
    line.send((child.ask(("answer",), 60).value, multiprocessing.current_process().daemon))
    child.close()


def test_a_daemon_of_multiprocessing_may_start_one():
    near, far = CONTEXT.Pipe()
    daemon = CONTEXT.Process(target=ask, args=(far,), daemon=True)
    daemon.start()
    assert near.poll(60)
    assert near.recv() == ("answer", True)
    daemon.join(60)
    assert daemon.exitcode == 0


def test_what_the_caller_has_set_reaches_the_process(tmp_path, monkeypatch):
    """The path of its modules, and its folder; a class of its ``__main__`` does not."""
    (tmp_path / "made_here.py").write_text("import os\nanswer = lambda: lambda request: os.getcwd()\n")
    (tmp_path / "made_here.py").write_text("import os\ndef cwd():\n    return lambda request: os.getcwd()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    from made_here import cwd

    child = Child(cwd)
    try:
        assert child.ask(None, 60).value == str(tmp_path)
    finally:
        child.close()
