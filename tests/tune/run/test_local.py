"""The local executor: a worker for each GPU, whose children see that board alone."""

from __future__ import annotations

import time
from dataclasses import replace

from hopper_gemm.tune.run.executors.local import Local
from hopper_gemm.tune.run.task import Joined
from tests.tune.run import fakes


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
