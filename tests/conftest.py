"""Shared by all tests: which of them need a Hopper GPU, which GPU each worker has, and a folder of compiled kernels."""

from __future__ import annotations

import importlib.util
import os
import stat
import time
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from hopper_gemm.tune.measure.device import GpuId, NoHopperError, find_hopper
from hopper_gemm.tune.study.files import FileLock

ROOT = Path(__file__).parents[1]

LOCK = pytest.StashKey[FileLock]()


def script(path: str) -> Any:
    """A script of this repository as a module."""
    loader = SourceFileLoader(Path(path).name.replace("-", "_"), str(ROOT / path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def hoppers() -> list[GpuId]:
    """The Hopper GPUs that NVML lists, in its order; none where there is no driver."""
    found: list[GpuId] = []
    with suppress(NoHopperError):
        while True:
            found.append(find_hopper(len(found)))
    return found


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, else the UUID of every Hopper GPU."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [gpu.uuid for gpu in hoppers()] if given is None else [name for name in given.split(",") if name]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``-n auto -m gpu`` starts a worker for each GPU, and at least one, so that a test that hangs costs a worker."""
    return max(1, len(visible_gpus())) if config.option.markexpr == "gpu" else None


def pytest_configure(config: pytest.Config) -> None:
    """With ``-m gpu``, a worker takes a GPU that no other worker has, before anything initialises CUDA. Where a worker
    died, the one in its place finds that GPU free: the lock ended with its holder."""
    if config.option.markexpr != "gpu" or "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for gpu in visible_gpus():
        lock = FileLock(config.cache.mkdir("gpus") / gpu)
        if lock.take():
            config.stash[LOCK] = lock
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            return


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the GPU to others."""
    if LOCK in config.stash:
        config.stash[LOCK].release()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests skip themselves, with the reason, where there is no Hopper GPU. Their time limit ends the process,
    since a call that hangs on the GPU takes no signal; xdist then starts another worker. Notebooks are results."""
    marks = [pytest.mark.timeout(method="thread")]
    try:
        find_hopper()
    except NoHopperError as error:
        marks.append(pytest.mark.skip(reason=str(error)))
    for item in items:
        if item.get_closest_marker("gpu"):
            for mark in marks:
                item.add_marker(mark)  # behind the test's own, which is found first
        if item.path.suffix == ".ipynb":
            item.add_marker("results")


@pytest.fixture(scope="session")
def kernel_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of this run, which its workers share: nothing compiled by an earlier version is taken for this one."""
    base = tmp_path_factory.getbasetemp()
    store = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    store.mkdir(exist_ok=True)
    return store


@pytest.fixture(scope="session")
def extension(pytestconfig: pytest.Config) -> Any:
    """The extension of torch: the one that calls here use, or else compiled once for all workers and for later runs."""
    import torch

    from hopper_gemm.compiler.extension import built_extension, extension_name, extension_of, load_extension
    from hopper_gemm.serve import EXTENSION

    folder = pytestconfig.cache.mkdir("extension")
    library = extension_of(EXTENSION) or folder / (extension_name(EXTENSION) or "none")
    lock = FileLock(folder / "lock")
    while not lock.take():
        time.sleep(0.2)
    try:
        if not library.is_file():
            made = built_extension(EXTENSION)
            if made is None:
                pytest.skip("no compiler of C++ (c++, g++, clang++) with the headers of Python")
            for old in folder.glob("*.so"):
                old.unlink()
            library.write_bytes(made)
    finally:
        lock.release()
    module = load_extension(library)
    assert module is not None
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("an older torch")
    return module


@pytest.fixture
def steps(monkeypatch):
    """Writes to the disk, in order: the size of a synced file, the name of a replaced file, ``"folder"``."""
    found, fsync, replace_file = [], os.fsync, os.replace

    def synced(handle):
        status = os.fstat(handle)
        found.append("folder" if stat.S_ISDIR(status.st_mode) else status.st_size)
        fsync(handle)

    def named(old, new, **where):
        found.append(Path(new).name)
        replace_file(old, new, **where)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    return found
