"""What pages print works on a GPU: the code of the chapters, of which one that hangs is ended and the next one runs,
and the commands that measure."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from docs.generate.chapters import times
from docs.generate.chapters.build import build
from docs.generate.chapters.listing import functions, listing, read
from docs.generate.pages.chapters import CHAPTERS
from hopper_gemm.tune.measure.protocol import Burst
from tests.conftest import ROOT
from tests.printed import MEASURES, listed, printed

pytestmark = pytest.mark.gpu


@pytest.mark.alone
def test_the_listing_of_every_chapter_multiplies_and_is_timed(gpu, tmp_path):
    numbers = range(1, len(CHAPTERS) + 1)
    rows = list(times.rows(build(read(numbers, None), tmp_path), gpu, Burst(pairs=1)))
    assert {row["chapter"]: (row["status"], row["reason"]) for row in rows} == dict.fromkeys(numbers, ("ok", ""))
    assert {row["board"] for row in rows} == {gpu.uuid}


@pytest.mark.alone
def test_a_producer_that_begins_in_the_consumers_phase_hangs_and_the_next_listing_runs(gpu, tmp_path, monkeypatch):
    """The exercise of chapter 3."""
    monkeypatch.setattr(times, "LISTING_SECONDS", 10.0)
    hung = listing(3).replace("self._state(phase=1)", "self._state(phase=0)")
    built = build({3: functions(hung), 8: functions(listing(8))}, tmp_path)
    assert [row["status"] for row in times.rows(built, gpu, Burst(pairs=1))] == ["timeout", "ok"]


COMMANDS = [
    command
    for command in printed()
    if MEASURES.match(command) and not listed(command) and not re.search(r" (check|counters)\b|--gpus", command)
]
"""Those of one GPU that need no profiler; ``check`` is run by ``make headline``."""

FIRST_ROW_SECONDS = 400.0
"""A command compiles its kernels before its first row, and may wait for other commands that hold the GPU."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_printed_command_measures_until_it_ends_or_is_interrupted(command, tmp_path):
    """In a checkout of links, by Ctrl-C after the first row; ``--shared``, since other tests use the GPU too; again
    where another command held the GPU for too long."""
    local, words = tmp_path / "results/local", shlex.split(command)[1:]
    local.mkdir(parents=True)
    for name in ("hopper_gemm", "pyproject.toml", "sweeps", "results/h100", "results/h200", "results/archive"):
        (tmp_path / name).symlink_to(ROOT / name)
    shared = ["--shared"] * (words[0] in ("compare", "map"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    started = [sys.executable, "-m", "hopper_gemm", *words, *shared]
    until = time.monotonic() + FIRST_ROW_SECONDS
    while True:
        with (tmp_path / "stderr").open("w+") as stderr:
            process = subprocess.Popen(started, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
            while process.poll() is None and time.monotonic() < until and not rows_below(local):
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
            stderr.seek(0)
            told = stderr.read()
        if "is held by process" not in told or rows_below(local) or time.monotonic() > until:
            break
        time.sleep(1.0)
    assert code == 0 or (code == 130 and rows_below(local)), told


def rows_below(folder):
    """The number of rows of all studies in a folder."""
    return sum(path.read_text().count("\n") - 1 for path in folder.rglob("rows.csv"))
