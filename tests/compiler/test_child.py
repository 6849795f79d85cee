"""Processes that are started do not run again what started them, and may fail. This module imports little: each of
them imports it."""

from __future__ import annotations

import multiprocessing
import operator
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

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


def misbehaving():
    """A handler that does what it is told, however bad."""
    served = []

    def handle(request):
        served.append(request)
        if request == "die":
            os._exit(7)
        if request == "abort":
            os.abort()
        if request == "hang":
            time.sleep(600)
        if request == "raise":
            raise RuntimeError("first line\nsecond line")
        return len(served)

    return handle


@pytest.fixture
def child():
    child = Child(misbehaving)
    yield child
    child.close()


def test_a_child_keeps_its_state_from_request_to_request(child):
    assert [child.ask("work", 30).value for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("request_", "seconds", "kind", "error"),
    [
        ("die", 30, "died", "the process died with exit code 7"),
        ("abort", 30, "died", "the process died with signal SIGABRT"),
        ("raise", 30, "raised", "RuntimeError: first line"),
        ("hang", 0.5, "timeout", "no answer within 0 s; killed"),
    ],
)
def test_a_child_that_fails_says_why_and_the_next_request_meets_a_new_one(child, request_, seconds, kind, error):
    assert child.ask("work", 30).value == 1
    reply = child.ask(request_, seconds)
    assert (reply.kind, reply.error) == (kind, error)
    assert child.ask("work", 30).value == 1


def test_a_child_is_closed_while_another_thread_waits_for_it(child):
    """As Ctrl-C does while the processes of the finals get ready."""
    assert child.ask("work", 30).value == 1
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(child.ask, "hang", 60)
        time.sleep(0.3)
        child.close()
        assert waiting.result(timeout=20).kind == "died"


def test_a_line_that_somebody_has_closed_is_closed_without_a_word(child):
    assert child.ask("work", 30).value == 1
    os.close(child._connection.fileno())
    child.close()
    assert child.ask("work", 30).value == 1
