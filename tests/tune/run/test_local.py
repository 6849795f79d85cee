"""The local executor: a worker for each GPU, whose children see that board alone; and what is refused before one."""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from hopper_gemm.tune.run.executors import local
from hopper_gemm.tune.run.executors.local import Local
from hopper_gemm.tune.run.task import Joined
from tests.tune.run import fakes
from tests.tune.run.killing import Range
from tests.tune.tables.making import row, write_study


def test_each_child_sees_the_board_that_its_index_means_to_the_parent(tmp_path, monkeypatch):
    """CUDA_VISIBLE_DEVICES of a child is the UUID, whatever order the parent's has."""
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = fakes.job(tmp_path)
    job = replace(job, rig=replace(job.rig, find=fakes.find_visible))
    for text, boards in (("2,1", ["GPU-c", "GPU-b"]), ("GPU-b,GPU-a", ["GPU-b", "GPU-a"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        executor, found, until = Local(job, [0, 1]), {}, time.monotonic() + 120
        try:
            while len(found) < 2 and time.monotonic() < until:
                told = executor.poll(1.0)
                found |= {name: event.gpu["uuid"] for name, event in told if isinstance(event, Joined)}
        finally:
            executor.close()
        assert [found.get("GPU 0"), found.get("GPU 1")] == boards


@pytest.mark.parametrize(
    ("asked", "known", "message"),
    [
        (["64", "64", "64"], "none", "none is not a folder; name a results folder such as results/h200/seed-table"),
        (["--shapes", "{}/list.toml"], "h100", "h100 was recorded on an NVIDIA H100, not an NVIDIA H200; leave it out"),
    ],
    ids=["problem", "list"],
)
def test_a_refused_warm_start_is_one_line_and_leaves_no_folder(tmp_path, asked, known, message):
    place = Range(tmp_path, 1, "local")
    write_study(tmp_path / "h100", row(), gpu={"name": "NVIDIA H100", "driver": ""})
    (tmp_path / "list.toml").write_text('name = "list"\n[[problems]]\nm = 64\nn = 64\nk = 64\n')
    words = [word.format(tmp_path) for word in asked]
    done = place.command("tune", *words, "--warm-start", str(tmp_path / known), "--out", str(tmp_path / "new/out"))
    assert done.wait(120) == 2
    (line,) = place.errors.read_text().splitlines()
    assert line.endswith(message)
    assert not (tmp_path / "new").exists()


def test_a_worker_is_followed_by_another_exactly_where_it_died_and_only_so_often(monkeypatch):
    """One that is silent, or has something to say, stays."""
    ends = []

    def spawned(*arguments, name):
        ours, theirs = Pipe()
        ends.append(theirs)
        return SimpleNamespace(join=lambda seconds=None: None, is_alive=lambda: False, exitcode=-9, pid=0), ours

    monkeypatch.setattr(local, "spawn", spawned)
    worker = local._LocalWorker(None, 0, ())
    assert worker.poll() == []
    ends[-1].send("an answer")
    assert worker.poll() == ["an answer"]
    assert len(ends) == 1
    for death in range(1, local.RESPAWNS + 2):
        ends[-1].close()
        (left,) = worker.poll()
        assert left.for_good == (death > local.RESPAWNS)
    assert len(ends) == local.RESPAWNS + 1
