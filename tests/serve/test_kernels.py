"""Which kernel serves a problem, in which context; first calls of many threads load one after the other."""

from __future__ import annotations

import inspect
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

import hopper_gemm
from hopper_gemm.compiler import loader
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.lookup import Table
from hopper_gemm.model.menu import choose
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.tuned import TunedEntry, write_tuned
from hopper_gemm.serve import kernels
from hopper_gemm.serve.kernels import MODE, batch_invariant, chained, default_config, kernel_for

PROBLEM = GemmProblem(1024, 1024, 1024)


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch):
    monkeypatch.setattr(kernels, "_loaded", {})
    kernels._picked.cache_clear()
    yield
    kernels._picked.cache_clear()


def entry(context: str, **config) -> TunedEntry:
    about = {"registers": 168, "wgmma": 8, "instructions": 500, "code": "0", "study": "s", "gpu": "NVIDIA H200"}
    return TunedEntry(PROBLEM, "burst", resolve(GemmConfig(**config)), 1.1, 1.0, 1.2, 0.001, context=context, **about)


def test_calls_take_isolated_entries_and_chained_ones_where_the_caller_says_so(monkeypatch):
    isolated, back_to_back = entry("isolated", tile_m=64), entry("chained", tile_m=128, pdl=True)
    monkeypatch.setattr(kernels, "_tables", lambda *_: [Table((isolated, back_to_back))])
    assert default_config(PROBLEM) == isolated.config
    with hopper_gemm.chained():
        assert default_config(PROBLEM) == back_to_back.config
    assert default_config(PROBLEM) == isolated.config


def test_what_is_said_within_chained_is_of_one_thread_and_ends_with_it():
    seen = []
    with chained():
        thread = threading.Thread(target=lambda: seen.append(MODE.context))
        thread.start()
        thread.join()
        with chained():
            pass
        seen.append(MODE.context)
    seen.append(MODE.context)
    with pytest.raises(KeyError), chained():
        raise KeyError
    assert [*seen, MODE.context] == ["isolated", "chained", "isolated", "isolated"]


def test_batch_invariance_lasts_to_the_end_of_the_outer_context():
    with batch_invariant():
        with batch_invariant():
            pass
        assert MODE.batch_invariant
    assert not MODE.batch_invariant


class Compiler:
    """Not thread-safe, and it notices."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.overlaps = 0
        self.loaded = []

    def load(self, config, problem, finish=None, scattered=False):
        free = self.busy.acquire(blocking=False)
        self.overlaps += not free
        time.sleep(0.01)
        self.loaded.append((config, problem))
        if free:
            self.busy.release()
        return object()


@pytest.fixture
def compiler(monkeypatch):
    fake = Compiler()
    monkeypatch.setattr(kernels, "load", fake.load)
    return fake


def at_once(calls):
    """The results of calls that begin together, each in a thread."""
    start = threading.Barrier(len(calls))

    def run(call):
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as together:
        return list(together.map(run, calls))


def test_first_calls_from_many_threads_compile_one_after_the_other_and_each_kernel_once(compiler):
    problems = [GemmProblem(8 * (1 + number % 4), 64, 64) for number in range(16)]
    found = at_once([lambda problem=problem: kernel_for(problem, 0, GemmConfig()) for problem in problems])
    assert compiler.overlaps == 0
    assert len(compiler.loaded) == 4
    assert len(set(found)) == 4
    assert all(one is other for one, other in zip(found, found[4:], strict=False))


def test_a_kernel_is_loaded_once_for_each_device_and_config(compiler, monkeypatch):
    chained_one = entry("chained", tile_m=128)
    monkeypatch.setattr(kernels, "_tables", lambda *_: [Table((entry("isolated", tile_m=64), chained_one))])
    for _ in range(2):
        for device in (0, 1):
            for config in (None, GemmConfig()):
                kernel_for(PROBLEM, device, config)
    with chained():
        kernel_for(PROBLEM, 0)
    kernel_for(PROBLEM, 0, chained_one.config)
    assert len(compiler.loaded) == 5


def test_whatever_shapes_a_loaded_kernel_is_in_its_key(compiler):
    """Change one thing, and another kernel is loaded; with the same again none is."""
    first = {"problem": PROBLEM, "device": 0, "config": GemmConfig(), "finish": None, "scattered": False}
    others = {
        "problem": GemmProblem(64, 64, 128),
        "device": 1,
        "config": GemmConfig(tile_m=64),
        "finish": Epilogue(bias=True),
        "scattered": True,
    }
    assert set(others) == set(inspect.signature(kernel_for).parameters)
    calls = [first, *({**first, name: value} for name, value in others.items())]
    found = [kernel_for(**call) for call in calls * 2]
    assert len(set(found)) == len(compiler.loaded) == len(calls)
    assert found[: len(calls)] == found[len(calls) :]


def about(name, sms=132, l2=50 * 2**20, capability=(9, 0)):
    """Properties of a GPU, as torch gives them."""
    major, minor = capability
    return SimpleNamespace(name=name, multi_processor_count=sms, L2_cache_size=l2, major=major, minor=minor)


@pytest.fixture
def gpus(monkeypatch):
    """GPUs that are not there: names by index."""
    names = ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device", lambda index: nullcontext())
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: about(names[index]))
    monkeypatch.setattr(kernels, "resident_clusters", lambda size: 132 // size)
    monkeypatch.setattr(kernels, "memory_rate", lambda: 2.93e12)
    for known in (kernels.kind_of, kernels.chip_of):
        known.cache_clear()
    yield names
    for known in (kernels.kind_of, kernels.chip_of):
        known.cache_clear()
    hopper_gemm.use_table(None)


def test_a_gpu_runs_the_entries_of_its_own_kind(gpus, tmp_path):
    """One process may have GPUs of two kinds."""
    theirs, ours = entry("isolated", tile_m=64), replace(entry("isolated", tile_m=128), gpu=gpus[1])
    write_tuned(tmp_path / "t.json", [theirs, ours])
    hopper_gemm.use_table(tmp_path / "t.json")
    assert [default_config(PROBLEM, device) for device in (0, 1)] == [theirs.config, ours.config]


def test_an_entry_of_the_other_hopper_sxm_serves_without_a_warning(gpus, tmp_path):
    """One of this GPU comes first."""
    write_tuned(tmp_path / "t.json", [entry("isolated", tile_m=64)])
    hopper_gemm.use_table(tmp_path / "t.json", other_gpus=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [default_config(PROBLEM, device) for device in (0, 1)] == [entry("isolated", tile_m=64).config] * 2


def test_an_entry_of_another_kind_of_gpu_is_warned_of_once(gpus, tmp_path):
    gpus[1] = "NVIDIA H20"
    other = GemmProblem(2048, 1024, 1024)
    write_tuned(tmp_path / "t.json", [entry("isolated", tile_m=64), replace(entry("isolated"), problem=other)])
    hopper_gemm.use_table(tmp_path / "t.json", other_gpus=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        default_config(PROBLEM, 0)
        assert told == []
        assert default_config(PROBLEM, 1) == entry("isolated", tile_m=64).config
        default_config(other, 1)
    (warning,) = told
    assert "t.json was measured on an NVIDIA H200, which is another kind of GPU" in str(warning.message)


def test_a_damaged_table_is_warned_of_once_and_the_others_serve(gpus, tmp_path):
    recorded = default_config(PROBLEM)
    path = tmp_path / "t.json"
    write_tuned(path, [entry("isolated", tile_m=64)])
    hopper_gemm.use_table(path)
    path.write_text("[")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert default_config(PROBLEM) == recorded
        default_config(replace(PROBLEM, m=2048))
    (warning,) = told
    assert f"a tuned table is left out: {path} cannot be read as JSON" in str(warning.message)


def test_what_is_tuned_in_a_process_serves_its_next_calls_and_loaded_kernels_stay(gpus, tmp_path, compiler):
    """A captured graph launches its kernel as long as the graph lives."""
    path, first, better = tmp_path / "t.json", entry("isolated", tile_m=64), entry("isolated", tile_m=128)
    write_tuned(path, [first])
    hopper_gemm.use_table(path)
    kernel = kernel_for(PROBLEM, 0)
    write_tuned(path, [replace(better, speedup=1.2)])
    assert kernel_for(PROBLEM, 0) is not kernel
    assert [config for config, _ in compiler.loaded] == [first.config, better.config]
    assert kernel in kernels._loaded.values()


def test_the_model_chooses_for_the_sms_clusters_and_l2_that_the_device_has(gpus, monkeypatch, tmp_path):
    """Two GPUs of one kind and different sizes in one process."""
    hopper_gemm.use_table(None)
    boards = [about("NVIDIA H20", 78, 60 * 2**20), about("NVIDIA H100 PCIe", 114)]
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: boards[index])
    monkeypatch.setattr(kernels, "_tables", lambda *_: [])
    problem = GemmProblem(4096, 4096, 4096)
    chips = [kernels.chip_of(index) for index in (0, 1)]
    assert chips[0] == Chip(78, 60 * 2**20, (132, 66, 33, 16), 2.93e12)
    assert chips[1].sms == 114
    for index, chip in enumerate(chips):
        assert default_config(problem, index) == choose(problem, chip)


def test_without_a_hopper_gpu_the_model_chooses_for_an_h200(gpus, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: about("NVIDIA A100", 108, capability=(8, 0)))
    assert kernels.chip_of(0) == SXM == Chip(132, 60 * 2**20)


def test_what_is_kept_of_loaded_kernels_has_a_bound(compiler, monkeypatch):
    """A server meets thousands of row counts."""
    monkeypatch.setattr(kernels, "_LOADED_MOST", 8)
    for m in range(1, 41):
        first = kernel_for(GemmProblem(m, 64, 64), 0, GemmConfig())
        assert kernel_for(GemmProblem(m, 64, 64), 0, GemmConfig()) is first
        assert len(kernels._loaded) <= 8


def test_a_load_that_fails_is_tried_again(compiler, monkeypatch):
    monkeypatch.setattr(kernels, "load", lambda config, problem, **how: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kernel_for(PROBLEM, 0, GemmConfig())
    monkeypatch.setattr(kernels, "load", compiler.load)
    kernel_for(PROBLEM, 0, GemmConfig())
    assert len(compiler.loaded) == 1


@pytest.mark.compile
def test_threads_cross_compile_at_once(tmp_path, monkeypatch):
    """Without the lock the compiler aborts the process: an MLIR function requires a location."""
    monkeypatch.setattr(loader, "resident_clusters", lambda size: 132 // size)
    monkeypatch.setattr(kernels, "load", lambda config, problem, **how: loader.load(config, problem, tmp_path))
    configs = [GemmConfig(tile_m=64, tile_n=tile_n) for tile_n in (64, 72)]
    found = at_once([lambda config=config: kernel_for(PROBLEM, 0, config) for config in configs])
    assert [kernel.config.tile_n for kernel in found] == [64, 72]
    assert all(callable(kernel.launcher) for kernel in found)
