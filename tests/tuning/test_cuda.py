"""The GPU's backend with its processes replaced: who measures what, in what order, and what a failure costs."""

from __future__ import annotations

from collections import Counter

import pytest

from hopper_gemm.compiler.child import Reply
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.pool import Built
from hopper_gemm.measure.bench import Figures, Outcome
from hopper_gemm.measure.device import GpuId
from hopper_gemm.measure.statistics import Pair, speedup
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.cuda import CudaBackend, turned
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import checked

REPORT = CubinReport(**{name: 0 if name != "code" else "c0de" for name in CubinReport.__dataclass_fields__})


class Pool:
    """Everything compiles, but for a tile of 64."""

    def __init__(self, store, workers=None) -> None:
        pass

    def submit(self, kernels) -> None:
        pass

    def drop(self) -> None:
        pass

    def done(self, kernel) -> bool:
        return True

    def result(self, kernel) -> Built:
        return Built("timeout", "compiling: killed") if kernel.config.tile_m == 64 else Built("ok", "", REPORT)

    def close(self) -> None:
        pass


class FakeChild:
    """Notes which process was asked what; fails where ``trouble`` says so, by number of the process and tile."""

    log: list[tuple[int, str, int]] = []  # noqa: RUF012
    started = 0
    alive: set[int] = set()  # noqa: RUF012
    trouble: dict[tuple[int, int], Reply] = {}  # noqa: RUF012

    def __init__(self, factory, store, seed, environment) -> None:
        assert environment == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
        self.seed = seed
        self._number: int | None = None

    def start(self) -> None:
        if self._number is None:
            type(self).started += 1
            self._number = self.started
            self.alive.add(self._number)

    def ask(self, request, timeout) -> Reply:
        self.start()
        assert self._number is not None
        tile = 0 if request.config is None else request.config.tile_m
        self.log.append((self._number, request.kind, tile))
        if request.kind == "prepare":
            return Reply("answer")
        if request.kind == "kernel":
            return Reply("answer", f"nvjet {request.problem}")
        reply = self.trouble.get((request.process, tile))
        if reply is not None:
            if reply.kind != "answer":
                self.close()
            return reply
        pair = Pair(request.process, 100.0, 100.0 + tile)
        names = [name for name in Figures.__dataclass_fields__ if name not in ("ratio", "samples")]
        figures = Figures(ratio=speedup([pair]), samples=(pair,), **dict.fromkeys(names, 1.0))
        return Reply("answer", Outcome("ok", "", figures))

    def close(self) -> None:
        if self._number is not None:
            self.alive.discard(self._number)
        self._number = None


@pytest.fixture
def child(monkeypatch):
    class Fresh(FakeChild):
        log, started, alive, trouble = [], 0, set(), {}

    monkeypatch.setattr("hopper_gemm.tuning.cuda.Child", Fresh)
    monkeypatch.setattr("hopper_gemm.tuning.cuda.CompilePool", Pool)
    monkeypatch.setattr("hopper_gemm.tuning.cuda.find_hopper", lambda index: GpuId(index, "NVIDIA H200", "GPU-1"))
    return Fresh


def spec(size=1024, **more):
    return checked(
        {"name": "s", "problems": [{"m": size, "n": size, "k": size}], "space": {"tile_m": 128}, **more}, "s"
    )


def point(tile_m: int) -> Point:
    return Point(GemmProblem(1024, 1024, 1024), "burst", resolve(GemmConfig(tile_m=tile_m, tile_n=128)))


POINTS = [point(tile) for tile in (128, 192, 256, 320)]


def cells(child) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, kind, tile in child.log:
        if kind == "cell":
            found.setdefault(number, []).append(tile)
    return found


def test_the_gpu_is_at_work_while_it_measures_and_takes_the_control(child, monkeypatch):
    """Not while a kernel compiles, nor while cuBLAS is asked for its name."""
    now = [0.0]
    monkeypatch.setattr("hopper_gemm.tuning.cuda.time.monotonic", lambda: now[0])
    asked = child.ask

    def slow(self, request, timeout):
        now[0] += 1.0
        return asked(self, request, timeout)

    monkeypatch.setattr(child, "ask", slow)
    backend = CudaBackend(spec())
    backend.measure(POINTS[0])
    backend.control(POINTS[0])
    assert backend.busy == 2.0
    backend.cublas_kernel(POINTS[0].problem)
    backend.measure(point(64))
    assert backend.busy == 2.0


def test_each_fresh_process_measures_all_finalists_and_begins_with_another(child):
    backend = CudaBackend(spec())
    backend.measure(POINTS[0])
    (searcher,) = cells(child)
    child.log.clear()
    answers = dict(backend.finals(POINTS))
    assert searcher not in {number for number, *_ in child.log}
    assert [kind for _, kind, _ in child.log[:3]] == 3 * ["prepare"], "all of them, before anything is timed"
    orders = list(cells(child).values())
    assert [sorted(order) for order in orders] == [[128, 192, 256, 320]] * 3
    assert len({order[0] for order in orders}) == 3
    for one in POINTS:
        assert answers[one].figures["processes"] == 3
        assert [process for process, _, _ in answers[one].samples] == [0, 1, 2]
        assert answers[one].figures["speedup"] == pytest.approx(1 + one.config.tile_m / 100)
        assert answers[one].figures["code"] == "c0de"
    backend.close()
    assert not child.alive


@pytest.mark.parametrize(
    ("reply", "status", "fresh"),
    [
        (Reply("died", error="the process died with signal SIGABRT"), "crash", 4),
        (Reply("timeout", error="no answer within 60 s; killed"), "timeout", 4),
        (Reply("answer", Outcome("wrong_result", "3 of 9 elements")), "wrong_result", 3),
    ],
)
def test_a_finalist_that_fails_once_is_answered_at_once_and_spoils_no_other(child, reply, status, fresh):
    child.trouble[1, 192] = reply
    backend = CudaBackend(spec())
    found = list(backend.finals(POINTS))
    assert (found[0][0], found[0][1].status) == (POINTS[1], status)
    assert {answer.status for one, answer in found[1:]} == {"ok"}
    assert {answer.figures["processes"] for one, answer in found[1:]} == {3}
    assert len(cells(child)) == fresh
    tiles = Counter(tile for tiles in cells(child).values() for tile in tiles)
    assert tiles == {128: 3, 192: 2, 256: 3, 320: 3}


def test_what_does_not_compile_is_answered_and_starts_no_process(child):
    backend = CudaBackend(spec())
    ((one, answer),) = backend.finals([point(64)])
    assert (one.config.tile_m, answer.status, answer.reason) == (64, "timeout", "compiling: killed")
    assert not child.log


def test_when_all_finalists_fail_the_spare_processes_end(child):
    child.trouble |= {(0, tile): Reply("died", error="gone") for tile in (128, 192)}
    backend = CudaBackend(spec())
    answers = dict(backend.finals(POINTS[:2]))
    assert {answer.status for answer in answers.values()} == {"crash"}
    backend.close()
    assert not child.alive


def test_finals_cut_off_in_the_middle_leave_no_process_behind(child):
    backend = CudaBackend(spec())
    next(iter(backend.finals(POINTS)))
    backend.close()
    assert not child.alive


def test_another_sweep_meets_the_same_processes(child):
    """Whoever tunes twelve problems pays for loading torch and making a context once, finals aside."""
    backend = CudaBackend(spec())
    backend.measure(POINTS[0])
    assert backend.serving(spec(2048, burst={"pairs": 7})) is backend
    backend.measure(POINTS[1])
    backend.cublas_kernel(GemmProblem(8, 8, 8))
    assert backend.cublas_kernel(GemmProblem(8, 8, 8)) == "nvjet 8x8x8"
    backend.cublas_kernel(GemmProblem(16, 8, 8))
    assert Counter(kind for _, kind, _ in child.log) == {"cell": 2, "kernel": 2}
    timed = {number for number, kind, _ in child.log if kind == "cell"}
    named = {number for number, kind, _ in child.log if kind == "kernel"}
    assert len(timed) == len(named) == 1
    assert not timed & named, "the profiler slows what is timed after it"


def test_the_finals_processes_load_beside_the_sweep_and_measure_nothing_in_it(child):
    backend = CudaBackend(spec(final={"processes": 2}))
    loaded = set(child.alive)
    for one in POINTS:
        backend.measure(one)
    assert len(cells(child)) == 1
    child.log.clear()
    list(backend.finals(POINTS))
    assert set(cells(child)) < loaded, "none was started late"
    list(backend.finals(POINTS))
    assert not set(cells(child)) <= loaded, "the next ones are others"
    backend.close()
    assert not child.alive
    CudaBackend(spec(final={"best": 0})).close()
    assert not child.alive


def test_another_seed_is_another_process(child):
    backend = CudaBackend(spec())
    backend.measure(POINTS[0])
    backend.serving(spec(seed=1)).measure(POINTS[0])
    assert len({number for number, *_ in child.log}) == 2


@pytest.mark.parametrize(("count", "processes"), [(8, 3), (3, 3), (5, 2), (2, 2)])
def test_no_finalist_is_always_first_or_last(count, processes):
    points = list(range(count))
    orders = [turned(points, process, processes) for process in range(processes)]
    assert all(sorted(order) == points for order in orders)
    assert len({order[0] for order in orders}) == len({order[-1] for order in orders}) == processes
