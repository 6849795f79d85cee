"""One sweep on several GPUs: each point once, all rows in one folder, whatever happens to a process."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from hopper_gemm.measure.device import NoHopperError
from hopper_gemm.tables.trials import read_trials
from hopper_gemm.tuning.spec import SweepSpec, checked
from hopper_gemm.tuning.together import WORKERS, Together
from tests.tuning.fakes import FakeBackend

SPACE = {"tile_m": [64, 128, 256], "tile_n": [64, 128], "k_depth": [2, 4], "stagger": [0, 1]}


def spec_of(**more) -> SweepSpec:
    problem = {"m": 1024, "n": 1024, "k": 1024}
    return checked({"name": "s", "problems": [problem], "space": SPACE, "final": {"best": 2}, **more}, "s")


class Noting(FakeBackend):
    """Leaves a line for each point; dies, or cannot be used, where it is told to."""

    def __init__(self, spec: SweepSpec, gpu: int) -> None:
        super().__init__()
        self._gpu = gpu
        self._told = os.environ.get("TOGETHER_TROUBLE", "")

    def describe(self):
        if self._told in (f"unusable {self._gpu}", "unusable"):
            raise NoHopperError(f"GPU {self._gpu} cannot be used: out of memory")
        return super().describe()

    def measure(self, point, pairs=None):
        with Path(os.environ["TOGETHER_LOG"]).open("a") as file:
            file.write(f"{self._gpu} {point.config}\n")
        time.sleep(0.05)
        if self._told == f"die {self._gpu}" and self.asked.total() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(point, pairs)


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("TOGETHER_LOG", str(path))
    return path


def measured(log: Path) -> list[tuple[str, str]]:
    return [tuple(line.split(" ", 1)) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("more", [{}, {"sampler": "random", "budget": {"trials": 14}}], ids=["grid", "search"])
def test_two_gpus_share_the_points_and_one_folder_gets_all_rows(tmp_path, log, more):
    out, told = tmp_path / "out", []
    assert Together(spec_of(**more), out, (0, 1), backend_of=Noting).run(told.append) == []
    asked = measured(log)
    count = 14 if more else 24
    assert len(asked) == len({config for _, config in asked}) == count
    assert min(Counter(gpu for gpu, _ in asked).values()) >= 3
    assert len(read_trials(out / "trials.csv")) == count
    assert len(read_trials(out / "final.csv")) == 2
    assert Counter(progress.stage for progress in told) == {"sweep": count, "final": 2}
    assert (out / "table.md").is_file()
    assert not (out / WORKERS).exists()
    Together(spec_of(**more), out, (0, 1), backend_of=Noting).run()
    assert len(measured(log)) == count, "nothing is measured again"


def test_what_a_process_leaves_when_it_dies_is_measured_all_the_same(tmp_path, log, monkeypatch):
    monkeypatch.setenv("TOGETHER_TROUBLE", "die 1")
    Together(spec_of(), tmp_path / "out", (0, 1), backend_of=Noting).run()
    assert len(read_trials(tmp_path / "out" / "trials.csv")) == 24
    assert len({config for _, config in measured(log)}) == 24
    assert Counter(gpu for gpu, _ in measured(log))["1"] == 4


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_gpu_that_cannot_be_used_is_told_and_leaves_the_work_to_the_others(tmp_path, log, monkeypatch, gpu):
    monkeypatch.setenv("TOGETHER_TROUBLE", f"unusable {gpu}")
    complaints = Together(spec_of(), tmp_path / "out", (0, 1), backend_of=Noting).run()
    assert complaints == [f"GPU {gpu} cannot be used: out of memory"]
    assert len(read_trials(tmp_path / "out" / "trials.csv")) == 24
    assert len(read_trials(tmp_path / "out" / "final.csv")) == 2


def test_when_no_gpu_can_be_used_that_is_the_error(tmp_path, log, monkeypatch):
    monkeypatch.setenv("TOGETHER_TROUBLE", "unusable")
    with pytest.raises(NoHopperError, match="cannot be used: out of memory"):
        Together(spec_of(), tmp_path / "other", (0, 1), backend_of=Noting).run()
