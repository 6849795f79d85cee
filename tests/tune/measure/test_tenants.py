"""A GPU that another process keeps busy is named, and refused where it must not be shared."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest
import typer

from hopper_gemm.cli import app, measuring, running
from hopper_gemm.tune.measure.device import LOOKS, GpuId, NoHopperError, busy
from tests.tune.measure.fake_nvml import GIB, Board, FakeNvml

GPU = GpuId(0, "NVIDIA H200", "GPU-a")
OTHER = 1
"""The process that begins all others descends from none of them."""

BUSY = f"GPU 0 (NVIDIA H200, GPU-a) is busy: process {OTHER} (trainer, 10.0 GiB), 12.0 GiB held, utilisation 97 %"


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(busy, "__defaults__", (lambda seconds: None, False))


@pytest.fixture
def shared(monkeypatch):
    """A GPU with another's process on it."""
    FakeNvml(monkeypatch, Board("GPU-a", {OTHER: 10 * GIB}, 97), names={OTHER: "/opt/bin/trainer"})


def test_another_process_is_named_with_its_gpu_memory_and_utilisation(shared):
    assert busy(GPU) == BUSY


def test_this_process_and_its_descendants_are_no_others(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        FakeNvml(monkeypatch, Board("GPU-a", {os.getpid(): GIB, child.pid: GIB}, 97))
        assert busy(GPU) == ""
        FakeNvml(monkeypatch, Board("GPU-a", {os.getpid(): GIB, os.getppid(): GIB}, 97))
        assert f"is busy: process {os.getppid()} (1.0 GiB), 12.0 GiB held" in busy(GPU)
    finally:
        child.communicate(b"\n")


def test_while_this_process_measures_utilisation_tells_nothing_of_others(monkeypatch):
    FakeNvml(monkeypatch, Board("GPU-a", percent=100))
    assert busy(GPU)
    assert busy(GPU, measuring=True) == ""
    FakeNvml(monkeypatch, Board("GPU-a", {OTHER: GIB}, 100))
    assert busy(GPU, measuring=True)


@pytest.mark.parametrize(
    ("board", "told"),
    [
        (Board("GPU-a"), ""),
        (Board("GPU-a", percent=9), ""),
        (Board("GPU-a", percent=10), "a process that NVML does not list, 12.0 GiB held, utilisation 10 %"),
        (Board("GPU-a", percent=50, refused=("processes", "memory")), "that NVML does not list, utilisation 50 %"),
        (Board("GPU-a", {OTHER: None}, refused=("utilisation", "memory")), f"is busy: process {OTHER}"),
        (Board("GPU-a", percent=90, refused=("processes", "utilisation", "memory")), ""),
        (Board("GPU-b", {OTHER: GIB}, 90), ""),
    ],
    ids=["idle", "nearly idle", "hidden", "little told", "no figures", "nothing told", "another board"],
)
def test_what_nvml_does_not_tell_is_left_out(monkeypatch, board, told):
    FakeNvml(monkeypatch, board)
    assert busy(GPU).endswith(told)
    assert bool(busy(GPU)) == bool(told)


def test_a_gpu_is_busy_only_if_every_look_finds_it_so(monkeypatch):
    """The utilisation of a run that has just ended fades within a second."""
    waited = []
    FakeNvml(monkeypatch, Board("GPU-a", percent=[100, 40, 0]))
    assert busy(GPU, waited.append) == ""
    FakeNvml(monkeypatch, Board("GPU-a", percent=[100, 90, 80]))
    assert "utilisation 80 %" in busy(GPU, waited.append)
    assert len(waited) == 2 * (LOOKS - 1)


@pytest.mark.parametrize("command", [["check"], ["compare", "64", "64", "64"]], ids=" ".join)
def test_check_and_compare_refuse_a_busy_gpu_unless_it_may_be_shared(shared, monkeypatch, capsys, tmp_path, command):
    ran = []
    monkeypatch.setattr(running, "run", lambda *asked: ran.append(asked))
    monkeypatch.setattr(measuring, "local_root", lambda: tmp_path)
    try:
        code = app(command, standalone_mode=False)
    except typer.Exit as ended:  # as some versions of typer tell it
        code = ended.exit_code
    assert code == 3
    (line,) = capsys.readouterr().err.splitlines()
    fix = "wait for it, name another with --gpus, or measure all the same with --shared"
    assert line == f"hopper-gemm: {BUSY}; {fix}"
    assert (ran, list(tmp_path.iterdir())) == ([], [])


def test_what_may_share_a_gpu_names_its_tenants_and_goes_on(shared, monkeypatch):
    ran, said = [], []
    monkeypatch.setattr(running, "run", lambda *asked: ran.append(asked))
    source = types.SimpleNamespace(gpus=(GPU,), executor=lambda job, say: None)
    running.run_question("question", source, "name", said.append)
    assert said == [f"{BUSY}; times measured beside it are not those of an idle GPU"]
    assert len(ran) == 1
    with pytest.raises(NoHopperError):
        running.run_question("question", source, "name", said.append, shared=False)
    assert len(ran) == 1
