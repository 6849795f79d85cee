"""A worker: one GPU, the compilers that serve it, and the measuring child that alone touches it.

It has no threads. Wherever it waits, it listens to the coordinator and lets the compilers work ahead; the measurement
itself reads from top to bottom.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.child import Child, Handler, Reply, settle_in
from hopper_gemm.compiler.pool import Built, CompilePool
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model.footprint import footprint_of
from hopper_gemm.model.point import Point
from hopper_gemm.model.rules.problem import filled_up
from hopper_gemm.tune.measure.device import GpuId, NoHopperError
from hopper_gemm.tune.measure.protocol import Outcome, seconds_of
from hopper_gemm.tune.measure.race import Race
from hopper_gemm.tune.measure.statistics import Ratio, noise_floor
from hopper_gemm.tune.run.task import (
    NAMED,
    Answer,
    Ask,
    Begun,
    Event,
    Job,
    Joined,
    Left,
    Said,
    Task,
    launch_key,
    ratio_of,
)
from hopper_gemm.tune.study.files import FileLock
from hopper_gemm.tune.study.space import place_of

RUN_SECONDS = 60.0
"""Allowance for allocating, checking and capturing, beside the timing itself."""

BASELINE_SECONDS = 600.0
"""Allowance for choosing the best of a baseline's many ways."""

GPU_SECONDS = 60.0
"""So long a GPU is waited for that another process holds, such as the orphan of a killed run that is still ending."""

TRIES = 2
"""Processes that a point may take along before it counts as a crash."""


def work(line: Connection, job: Job, gpu: int, cores: Sequence[int], by_main: bool) -> None:
    """The life of a worker's process: until its coordinator hangs up, or its GPU cannot be used.

    Args:
        line: takes tasks as (number, task), and gives each :data:`hopper_gemm.tune.run.task.Event`.
        job: of the run.
        gpu: index among the visible GPUs.
        cores: to keep to, compilers and all.
        by_main: see :func:`hopper_gemm.compiler.child.settle_in`.
    """
    worker = None
    try:
        log = job.log or log_file(job.study)
        settle_in(log, by_main)
        os.sched_setaffinity(0, cores)
        worker = Worker(job, job.rig.find(gpu), len(cores), line, log)
        worker.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except (NoHopperError, OSError, ValueError) as error:  # such as a store that others may write to
        with suppress(OSError):
            line.send(Left(str(error), for_good=True))
    finally:
        if worker is not None:
            worker.close()


def log_file(study: str) -> Path:
    """Where processes of a study print to: a file in the user's cache, begun anew where it is large."""
    path = private_folder("logs") / f"{study}.log"
    if path.is_file() and path.stat().st_size > 10**7:
        path.unlink()
    return path


def private_folder(name: str) -> Path:
    """A folder of the user's cache that nobody else may enter."""
    folder = default_store().parent / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


@dataclass
class _Open:
    """A task that was sent, with what must be compiled for it."""

    number: int
    task: Task
    kernels: list[KernelId | None]


class Worker:
    """See the module.

    Args:
        job: of the run.
        gpu: the GPU; nothing has touched it yet.
        cores: so many are its share.
        line: to the coordinator.
        log: what its processes print goes there.
    """

    def __init__(self, job: Job, gpu: GpuId, cores: int, line: Connection, log: Path) -> None:
        self._job, self._gpu, self._line, self._log = job, gpu, line, log
        self._store = job.store or default_store()
        self._pool = CompilePool(self._store, max(1, cores - 1), job.rig.compiling, log)
        self._lock = FileLock(private_folder("gpus") / f"{gpu.uuid}.lock")
        self._queue: deque[_Open] = deque()
        self._spares: list[Child] = []
        self._child: Child | None = None
        self._name = ""
        self._namer: Child | None = None
        self._names: dict[Any, str] = {}
        self._noise: dict[str, float] = {}
        self._leaders: dict[str, Ratio] = {}
        self._twins: dict[tuple[Any, ...], str] = {}
        self._failed: set[Point] = set()

    def run(self) -> None:
        """Until the coordinator hangs up.

        Raises:
            EOFError: it did.
            NoHopperError: the GPU cannot be used.
        """
        self._open_gpu()
        while True:
            one = next((one for one in self._queue if self._compiled(one)), None)
            if one is None:
                self._wait()
                continue
            self._queue.remove(one)
            if one.task.counter is not None:
                self._count(one)
                continue
            for index, point in enumerate(one.task.points):
                self._tell(self._answer(one, index, point))
            while len(self._spares) < self._job.fresh:  # they load their modules while the study is measured
                self._spares.append(self._new_child())
                self._spares[-1].start()

    def close(self) -> None:
        """End all processes, then give the GPU free."""
        for child in (self._child, self._namer, *self._spares):
            if child is not None:
                child.close()
        self._pool.close()
        self._lock.release()

    # -----------------------------------------------------------------------------------------

    def _wait(self, *asked: Child) -> None:
        """Wait a second at most for a task, a compiler or one of the children that were asked; take what has come."""
        wait([self._line, *self._pool.waits, *(one for child in asked for one in child.waits)], 1.0)
        while self._line.poll(0):
            self._take(*self._line.recv())
        self._pool.pump()

    def _take(self, number: int, task: Task) -> None:
        """Queue a task; its kernels compile while others are measured."""
        observer = "" if task.counter is None else task.counter.observer
        kernels = [
            None if point.is_baseline else KernelId.of(point.config, filled_up(point.problem), observer)
            for point in task.points
        ]
        self._queue.append(_Open(number, task, kernels))
        self._pool.submit(kernel for kernel in kernels if kernel is not None)

    def _compiled(self, one: _Open) -> bool:
        return all(kernel is None or self._pool.built(kernel) is not None for kernel in one.kernels)

    def _open_gpu(self) -> None:
        """Hold the GPU, and describe it.

        Raises:
            NoHopperError: somebody else holds it, or it cannot be used.
        """
        name = f"GPU {self._gpu.index} ({self._gpu.name})"
        since, told = time.strftime("%H:%M:%S", time.localtime()), False
        until = time.monotonic() + GPU_SECONDS
        while not self._lock.take(f"process {os.getpid()} since {since}, {self._job.study}"):
            holder = self._lock.taken() or "another process"
            if time.monotonic() > until:
                raise NoHopperError(f"{name} is held by {holder}; wait for it, or name another with --gpus")
            if not told:
                self._tell(Said(f"waiting since {since} for {name}, held by {holder}; for at most {GPU_SECONDS:.0f} s"))
                told = True
            self._wait()
        self._child = self._new_child()
        self._child.start()
        self._namer = self._process(self._job.rig.naming)
        self._namer.start()
        self._tell(self._described())

    def _described(self) -> Joined:
        """What the measuring child says of the GPU and of baselines.

        Raises:
            NoHopperError: the GPU cannot be used.
        """
        assert self._child is not None
        for _ in range(TRIES):
            reply = self._ask(self._child, Ask("describe", against=self._job.against), RUN_SECONDS)
            if reply.kind == "answer":
                return Joined(*reply.value)
        raise NoHopperError(f"GPU {self._gpu.index} ({self._gpu.name}) cannot be used: {reply.error}")

    def _answer(self, one: _Open, index: int, point: Point) -> Answer:
        """The answer to a point of a task."""
        task, kernel, built = one.task, one.kernels[index], None
        if task.stage == "final" and point in self._failed:
            return Answer(one.number, index, "")
        figures: dict[str, Any] = {}
        key: tuple[Any, ...] = ()
        if kernel is not None:
            built = self._pool.result(kernel)
            figures = compiled_figures(point, built)
            if built.status != "ok":
                return Answer(one.number, index, built.status, built.reason, figures)
            key = (*launch_key(point), figures["code"])
            twin = task.known.get(figures["code"], "") or self._twins.get(key, "")
            if twin and task.stage == "sweep":
                return Answer(one.number, index, "ok", figures=figures, twin=twin)
        self._tell(Begun(one.number, index))
        outcome = self._measured(one, index, point)
        figures = {**figures, **outcome.figures}
        if outcome.status == "ok" and task.stage in NAMED:
            figures["baseline_kernel"] = self._named(point, outcome.recipe)
        self._learn(task, point, outcome, key)
        reason = outcome.reason or (serialised(point, built) if outcome.status == "ok" and built is not None else "")
        return Answer(one.number, index, outcome.status, reason, figures, outcome.samples)

    def _measured(self, one: _Open, index: int, point: Point) -> Outcome:
        """Measure a point; one that takes its process along gets another try in a new one."""
        task, place = one.task, place_of(point)
        if task.kind == "host":
            ask, seconds = Ask("host", point), RUN_SECONDS
        else:
            assert task.protocol is not None
            leaders = [ratio for ratio in (task.leader, self._leaders.get(place)) if ratio is not None]
            leader = max(leaders, key=lambda ratio: ratio.median, default=None)
            noise = self._noise.get(place, 0.0) if task.noise is None else task.noise
            race = Race(task.looks, leader, noise)
            ask = Ask("measure", point, task.protocol, task.process, race, self._following(one, index))
            seconds = RUN_SECONDS + 3 * task.protocol.pairs * seconds_of(task.protocol, point.context) * 1.5
            seconds += 0.0 if point.against == "cublas" else BASELINE_SECONDS
        for attempt in range(TRIES):
            child = self._child_for(task)
            if attempt:  # a process that dies while it starts is not the point's fault
                self._described()
            reply = self._ask(child, ask, seconds)
            if reply.kind == "answer":
                return reply.value
        if task.stage == "final":
            self._failed.add(point)
        return Outcome("timeout" if reply.kind == "timeout" else "crash", reply.error)

    def _following(self, one: _Open, index: int) -> Point | None:
        """What is likely to be measured next in this process."""
        if index + 1 < len(one.task.points):
            return one.task.points[index + 1]
        later = (other for other in self._queue if other.task.child == one.task.child and self._compiled(other))
        point, kernel = next(((other.task.points[0], other.kernels[0]) for other in later), (None, None))
        return point if kernel is not None and self._pool.result(kernel).status == "ok" else None

    def _child_for(self, task: Task) -> Child:
        """The process that measures a task; a new one where its name is another's."""
        assert self._child is not None
        if task.child and task.child != self._name:
            self._child.close()
            if not self._spares or task.process == 0:
                self._prepare(task)
            self._child, self._name = self._spares.pop(0) if self._spares else self._new_child(), task.child
        return self._child

    def _prepare(self, task: Task) -> None:
        """Let the processes that come next make their contexts and matrices at the same time, before any is timed."""
        later = [one.task.child for one in self._queue if one.task.points[0].problem == task.points[0].problem]
        count = len(dict.fromkeys(child for child in (task.child, *later) if child))
        while len(self._spares) < count:
            self._spares.append(self._new_child())
        for child in self._spares[:count]:
            child.send(Ask("prepare", task.points[0]), RUN_SECONDS)
        waiting = self._spares[:count]
        while waiting := [child for child in waiting if child.poll() is None]:
            self._wait(*waiting)

    def _named(self, point: Point, recipe: Any) -> str:
        """The kernel that a point's baseline runs, learnt once for each way to run it."""
        key = point.problem, point.against, repr(recipe)
        if key not in self._names:
            assert self._namer is not None
            seconds = RUN_SECONDS + (0.0 if point.against == "cublas" else BASELINE_SECONDS)
            replies = (self._ask(self._namer, (point, recipe), seconds) for _ in range(TRIES))
            self._names[key] = next((reply.value for reply in replies if reply.kind == "answer"), "unknown")
        return self._names[key]

    def _learn(self, task: Task, point: Point, outcome: Outcome, key: tuple[Any, ...]) -> None:
        """Compare later points with this one: noise floor, leader, machine code."""
        place = place_of(point)
        if outcome.status == "ok" and "speedup" in outcome.figures:
            ratio = ratio_of(outcome.figures)
            if point.is_baseline:
                self._noise[place] = noise_floor(ratio)
            elif place not in self._leaders or ratio.median > self._leaders[place].median:
                self._leaders[place] = ratio
        if key and outcome.status in ("ok", "wrong_result"):
            self._twins.setdefault(key, str(point.config))

    def _count(self, one: _Open) -> None:
        """Count launches. It blocks: nothing else can be done on the GPU meanwhile, and the process still ends with its
        coordinator."""
        assert self._child is not None
        assert one.task.counter is not None
        count = one.task.counter.count
        self._child.close()
        self._tell(Begun(one.number, 0))
        able: dict[int, dict[str, Any]] = {}
        for index, (point, kernel) in enumerate(zip(one.task.points, one.kernels, strict=True)):
            built = None if kernel is None else self._pool.result(kernel)
            if built is None or built.report is None or built.status == "ok":
                able[index] = {} if built is None else {"code": compiled_figures(point, built)["code"]}
            else:
                self._tell(Answer(one.number, index, built.status, built.reason))
        try:
            counted = count([one.task.points[index] for index in able], self._gpu, self._store) if able else []
        except ValueError as error:  # such as a profiler that is missing, or may not count here
            for index in able:
                self._tell(Answer(one.number, index, "crash", str(error)))
            return
        for (index, figures), got in zip(able.items(), counted, strict=False):
            named = {"baseline_kernel": got.kernel} if got.kernel else {}
            status = "ok" if got.figures else "crash"
            self._tell(Answer(one.number, index, status, got.reason or got.note, {**figures, **got.figures, **named}))

    def _ask(self, child: Child, request: Any, seconds: float) -> Reply:
        child.send(request, seconds)
        while (reply := child.poll()) is None:
            self._wait(child)
        return reply

    def _new_child(self) -> Child:
        return self._process(self._job.rig.measuring, self._store, self._job.seed)

    def _process(self, factory: Callable[..., Handler], *arguments: Any) -> Child:
        """A process on the worker's GPU, which stays held as long as the process lives."""
        environment = {"CUDA_VISIBLE_DEVICES": self._gpu.uuid}
        return Child(factory, *arguments, environment=environment, log=self._log, holds=self._lock.handle)

    def _tell(self, event: Event) -> None:
        self._line.send(event)


def compiled_figures(point: Point, built: Built) -> dict[str, Any]:
    """What compiling tells of a point, by column."""
    figures: dict[str, Any] = {"smem_bytes": footprint_of(point.config).smem_bytes}
    if built.report is not None:
        figures |= {name: getattr(built.report, name) for name in ("registers", "wgmma", "instructions", "code")}
    return figures


def serialised(point: Point, built: Built) -> str:
    """What a measured kernel's row should say beside its figures, if anything."""
    most, told = footprint_of(point.config).wgmma_waits, built.reason
    if built.report is None or built.report.wgmma_waits <= most:
        return told
    waits = f"the compiler serialised wgmma: {built.report.wgmma_waits} waits in the code instead of {most}"
    return "; ".join(filter(None, [told, waits]))


def shares(cores: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Cores divided among so many workers, neighbours together; all to each where there are fewer than workers."""
    for i in range(count):
        low, high = i * len(cores) // count, (i + 1) * len(cores) // count
        yield tuple(cores[low:high] if len(cores) >= count else cores)
