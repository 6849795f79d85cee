"""Whoever is killed: every point has one row in the end, nobody outlives the coordinator, and the terminal stays clean.

The long runs are those of ``make verify-cpu``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hopper_gemm.tune.study.reader import read_study
from tests.tune.run import fakes
from tests.tune.run.killing import Range, under_fire

pytestmark = pytest.mark.timeout(600)

NARROW = fakes.WIDE.replace("swizzle = [2, 4, 8]", "swizzle = 8").replace("[64, 128, 192, 256]", "[64, 128]")


@pytest.mark.parametrize(("executor", "seed"), [("local", 1), ("dask", 3)])
def test_killed_at_random_the_same_command_goes_on(tmp_path, executor, seed):
    report = under_fire(tmp_path / "r", executor, 2, 3, seed, NARROW)
    assert report.rows == report.points == 192
    assert (report.orphans, report.lines) == ([], [])
    assert report.crashed <= 1
    assert report.twice <= 3 * 3 * 4


@pytest.fixture
def place(tmp_path):
    found = Range(tmp_path / "r", 2, "local", NARROW, seconds=0.2)
    yield found
    found.end()


def test_a_killed_comparison_in_several_processes_goes_on_and_loses_nothing(place):
    """Killed are a measuring child, the worker and the command, each time some rows later."""
    sizes = [str(size) for size in (1024, 1024, 1024, 2048, 2048, 2048)]
    words = ["compare", *sizes, "--against", "cublas,cublaslt", "--processes", "3", "--out", str(place.out)]
    rng, killed, coordinator = random.Random(0), 0, place.command(*words)
    for kind in ("child", "worker", "coordinator"):
        if coordinator.poll() is not None:
            coordinator = place.command(*words)
        place.processes.append(coordinator)
        seen = place.rows()
        while coordinator.poll() is None and place.rows() < seen + 3:
            time.sleep(0.02)
        victim = place.victim(kind, rng, coordinator.pid)
        if victim is not None and coordinator.poll() is None:
            os.kill(victim, signal.SIGKILL)
            killed += 1
        if kind == "coordinator":
            coordinator.wait(300)
    place.processes.append(coordinator := place.command(*words))
    assert coordinator.wait(300) == 0, place.errors.read_text()
    assert killed, "a machine may be done before the later ones"
    rows = read_study(place.out).stage("compare")
    assert len({row.key for row in rows}) == len(rows) == 2 * 2 * 3
    assert {row.status for row in rows} == {"ok"}
    among = [line for line in Path(place.log).read_text().splitlines() if line.startswith("among")]
    assert len(among) >= 2 * 2 * 2
    assert all(len(line.split()) == 4 for line in among), "one finalist each"


def test_nobody_outlives_a_killed_coordinator_and_the_same_command_works_at_once(place):
    """Two GPUs whose children hang, the parent killed, the same command: both are used, and there is no traceback."""
    plan, log = place.folder / "log.plan", Path(place.log)
    plan.write_text('{"all": "hang"}')
    first = place.start()
    place.until(lambda: log.exists() and "measure" in log.read_text(), first)
    assert len(place.alive()) > 3
    first.kill()
    first.wait()
    plan.write_text('{"seconds": 1.0}')  # a busy machine interrupts it before it has ended
    second = place.start()
    place.until(lambda: place.rows() >= 8, second)
    measured = [line.split() for line in log.read_text().splitlines() if line.startswith("measure")]
    assert {words[2] for words in measured[-6:]} == {"GPU-fake-0", "GPU-fake-1"}
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130
    assert place.gone() == []
    text = place.errors.read_text()
    assert "Traceback" not in text
    assert "to go; what was measured is in" in text.splitlines()[-1]


def test_a_worker_that_keeps_dying_is_left_alone_with_one_line_and_the_others_go_on(place):
    plan = place.folder / "log.plan"
    plan.write_text('{"gpu 1": "unusable", "hold": true}')
    coordinator = place.start()
    place.until(lambda: "cannot be used" in place.errors.read_text(), coordinator)  # else it may be done before
    plan.with_suffix(".next").write_text('{"gpu 1": "unusable"}')
    plan.with_suffix(".next").rename(plan)  # whole, as children read it all the time
    assert coordinator.wait(180) == 0, place.errors.read_text()
    lines = [line for line in place.errors.read_text().splitlines() if "cannot be used" in line]
    assert len(lines) == 1
    assert lines[0].endswith("GPU 1 (NVIDIA H200) cannot be used: RuntimeError: CUDA error: out of memory")
    assert place.rows() == 1 + 192 + 1


def test_when_no_gpu_can_be_used_that_is_exit_code_3_and_nothing_is_left_behind(place):
    (place.folder / "log.plan").write_text('{"gpu 0": "unusable", "gpu 1": "unusable"}')
    coordinator = place.start()
    assert coordinator.wait(120) == 3
    assert "cannot be used: RuntimeError: CUDA error: out of memory" in place.errors.read_text().splitlines()[-1]
    assert not place.out.exists()
