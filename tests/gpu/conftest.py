"""Shared by GPU tests: their kernels, compiled ahead on all cores, their GPU, and a child that checks pairs.

A test's kernels are known before it runs: those of its module's function ``kernels``, and those of the pairs that it
gives to the fixture ``wrong``. A kernel that is not known ahead is compiled when it is first loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hopper_gemm import use_table
from hopper_gemm.compiler.child import Child
from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.compiler.store import KernelId, default_store, source_digest
from hopper_gemm.serve.fallback import while_compiling
from hopper_gemm.tune.measure.device import GpuId, NoHopperError, describe_current, find_hopper
from hopper_gemm.tune.study.files import FileLock
from tests.conftest import hoppers
from tests.verify.drawing import Pair
from tests.verify.harness import ANSWER_SECONDS, RUNS, START_SECONDS, compile_all, verdict
from tests.verify.load import answering

CACHE = "XDG_CACHE_HOME"
"""Variable that names the folder of caches; :func:`default_store` lies below it."""


@cache
def pairs_of(item: pytest.Item) -> list[Pair]:
    """The pairs that a test gives to ``wrong``: the test is run with one that notes them and finds nothing wrong."""
    if "wrong" not in item.fixturenames:
        return []
    noted: list[Pair] = []

    def note(pairs: Iterable[Pair], runs: int = RUNS) -> list[str]:
        noted.extend(pairs)
        return []

    item.obj(**{**(item.callspec.params if hasattr(item, "callspec") else {}), "wrong": note})
    return noted


def kernels_of(items: Iterable[pytest.Item]) -> list[KernelId]:
    """The kernels of tests, each once."""
    items = list(items)
    modules = dict.fromkeys(item.module for item in items)
    found = [kernel for module in modules if hasattr(module, "kernels") for kernel in module.kernels()]
    found += [pair.kernel for item in items for pair in pairs_of(item)]
    return list(dict.fromkeys(found))


def cache_folder(config: pytest.Config) -> Path:
    """The folder of caches of these tests, of all workers and of later runs of the same sources."""
    return config.cache.mkdir("kernels") / source_digest()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the kernels of the collected tests; the first worker does, the others wait for it."""
    items = [item for item in session.items if item.get_closest_marker("gpu")]
    if not items or session.config.option.collectonly:
        return
    try:
        find_hopper()
    except NoHopperError:
        return
    cache, wanted = cache_folder(session.config), kernels_of(items)
    lock = FileLock(cache.with_suffix(".lock"))
    while not lock.take():
        time.sleep(0.2)
    try:
        for old in cache.parent.iterdir():
            if old.is_dir() and old != cache:
                shutil.rmtree(old)
        with pytest.MonkeyPatch.context() as patch, _uncaptured(session.config):
            patch.setenv(CACHE, str(cache))
            done = cache / f"{hashlib.sha256(repr(wanted).encode()).hexdigest()[:16]}.done"
            if not done.exists():
                cache.mkdir(exist_ok=True)
                compile_all(wanted, default_store(), say)
                done.touch()
    finally:
        lock.release()


def _uncaptured(config: pytest.Config) -> Any:
    return config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled()


def say(line: str) -> None:
    """Print a line of progress past xdist, which owns a worker's stdout."""
    print(line, file=sys.stderr, flush=True)


@pytest.fixture(scope="session", autouse=True)
def kernel_store(pytestconfig: pytest.Config) -> Iterator[Path]:
    """The store into which kernels were compiled ahead; the default one for as long as the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(cache_folder(pytestconfig)))
        yield default_store()


@pytest.fixture(autouse=True)
def wait() -> Iterator[None]:
    """Calls wait for their kernels: torch is not tested for ours."""
    with while_compiling("wait"):
        yield


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is marked ``alone`` waits until the tests of other workers have ended, and keeps others waiting."""
    alone = request.node.get_closest_marker("alone") is not None
    folder = request.config.cache.mkdir("gpus")
    with (folder / "gate").open("w") as gate, (folder / "floor").open("w") as floor:
        fcntl.flock(gate, fcntl.LOCK_EX)  # who waits for the whole floor holds the gate, so that nobody else enters
        fcntl.flock(floor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.fixture(scope="session")
def gpu() -> GpuId:
    """The GPU of this worker, to name it to other processes."""
    own = describe_current().uuid
    return next(gpu for gpu in hoppers() if gpu.uuid == own)


@pytest.fixture(scope="session")
def wrong(kernel_store: Path) -> Iterator[Callable[..., list[str]]]:
    """What is wrong with pairs, one line each; a hang costs a minute."""
    pool, child = CompilePool(kernel_store), Child(answering, kernel_store)
    assert child.ask(None, START_SECONDS).kind == "answer"

    def ask(pairs: Iterable[Pair], runs: int = RUNS) -> list[str]:
        found = []
        for pair in pairs:
            built = pool.result(pair.kernel)
            if built.status != "ok":
                found.append(f"{pair}: {built.status} {built.reason}")
                continue
            status, reason, _ = verdict(child.ask(("", pair, runs), ANSWER_SECONDS))
            if status != "ok":
                found.append(f"{pair}: {status} {reason}")
        return found

    yield ask
    child.close()
    pool.close()


@pytest.fixture
def own_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's own tables that is empty."""
    for name in ("hopper_gemm.model.tuned.local_root", "hopper_gemm.tune.run.source.local_root"):
        monkeypatch.setattr(name, lambda: tmp_path)
    use_table(None)
    yield tmp_path
    monkeypatch.undo()
    use_table(None)
