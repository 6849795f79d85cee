"""A worker: one GPU, the compilers that serve it, and the measuring child, the only process that uses the GPU.

A worker has no threads. While it waits for a child, it listens to the coordinator and lets the compilers work ahead. A
row depends on its task alone: a worker keeps processes, compiled kernels and names of baselines' kernels, no results.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.child import Child, Handler, Reply, settle_in
from hopper_gemm.compiler.pool import Built, CompilePool
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.fp8 import stages_between
from hopper_gemm.tune.measure.device import GpuId, NoHopperError
from hopper_gemm.tune.measure.protocol import Outcome, seconds_of
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.task import NAMED, Begun, Job, Joined, LaunchCounter, Left, Said, Task
from hopper_gemm.tune.study.files import FileLock
from hopper_gemm.tune.study.row import Row

RUN_SECONDS = 60.0
"""Allowance for allocating, checking and capturing, beside the timing itself."""

BASELINE_SECONDS = 600.0
"""Allowance for choosing among a baseline's candidates."""

GPU_SECONDS = 60.0
"""Seconds to wait for a GPU that another process holds, such as the orphan of a killed run that is still ending."""

TRIES = 2
"""Measuring processes that a point may end before it counts as a crash."""


def work(line: Connection, job: Job, gpu: int, cores: Sequence[int], by_main: bool) -> None:
    """Run a worker in this process on a GPU and some CPU cores, until its coordinator hangs up or its GPU cannot be
    used. The line brings tasks as (number, task), in any order, and takes each :data:`hopper_gemm.tune.run.task.Event`;
    ``by_main`` is that of :func:`hopper_gemm.compiler.child.settle_in`."""
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
    """Return the log file of a study's processes in the user's cache; a file above 10 MB is started anew."""
    path = private_folder("logs") / f"{study}.log"
    if path.is_file() and path.stat().st_size > 10**7:
        path.unlink()
    return path


def private_folder(name: str) -> Path:
    """Return a folder of the user's cache that only the user may enter; it is made if it is missing."""
    folder = default_store().parent / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


class Worker:
    """Compiles and measures the points of tasks on a GPU, on which no CUDA context exists yet."""

    def __init__(self, job: Job, gpu: GpuId, cores: int, line: Connection, log: Path) -> None:
        self._job, self._gpu, self._line, self._log = job, gpu, line, log
        self._store = job.store or default_store()
        self._pool = CompilePool(self._store, max(1, cores - 1), job.rig.compiling, log)
        self._lock = FileLock(private_folder("gpus") / f"{gpu.uuid}.lock")
        self._queue: dict[int, Task] = {}
        self._begun: set[int] = set()
        self._spares: list[Child] = []
        self._child: Child | None = None
        self._child_name = ""
        self._namer: Child | None = None
        self._kernel_names: dict[Any, str] = {}

    def run(self) -> None:
        """Work through tasks until the coordinator hangs up, which raises EOFError, or the GPU cannot be used, which
        raises NoHopperError."""
        self._open_gpu()
        while True:
            number = next((number for number, task in self._queue.items() if self._compiled(task)), None)
            if number is None:
                self._wait()
                continue
            task = self._queue.pop(number)
            self._begun.add(number)
            counter = task.method if isinstance(task.method, LaunchCounter) else None
            for row in self._time(task) if counter is None else self._count(task, counter):
                self._line.send(row)
            while len(self._spares) < self._job.fresh:  # they load their modules while the study is measured
                self._spares.append(self._new_child())
                self._spares[-1].start()

    def close(self) -> None:
        """End all processes, then release the GPU."""
        for child in (self._child, self._namer, *self._spares):
            if child is not None:
                child.close()
        self._pool.close()
        self._lock.release()

    def _wait(self, *children: Child) -> None:
        """Wait a second at most for a task, a compiler or one of the children. Queue each task that arrived, in
        place of a queued one of its number; a task that was begun is not replaced. Kernels compile while others are
        measured."""
        wait([self._line, *self._pool.waits, *(handle for child in children for handle in child.waits)], 1.0)
        while self._line.poll(0):
            number, task = self._line.recv()
            if number not in self._begun:
                self._queue[number] = task
                self._pool.submit(kernel for kernel in kernels_of(task) if kernel is not None)
        self._pool.pump()

    def _compiled(self, task: Task) -> bool:
        return all(kernel is None or self._pool.built(kernel) is not None for kernel in kernels_of(task))

    def _open_gpu(self) -> None:
        """Lock the GPU, start the children, and describe the GPU to the coordinator."""
        name = f"GPU {self._gpu.index} ({self._gpu.name})"
        since, announced = time.strftime("%H:%M:%S", time.localtime()), False
        until = time.monotonic() + GPU_SECONDS
        while not self._lock.take(f"process {os.getpid()} since {since}, {self._job.study}"):
            holder = self._lock.taken() or "another process"
            if time.monotonic() > until:
                raise NoHopperError(f"{name} is held by {holder}; wait for it, or name another with --gpus")
            if not announced:
                waiting = f"waiting since {since} for {name}, held by {holder}; for at most {GPU_SECONDS:.0f} s"
                self._line.send(Said(waiting))
                announced = True
            self._wait()
        self._child = self._new_child()
        self._child.start()
        self._namer = self._process(self._job.rig.naming)
        self._namer.start()
        self._line.send(self._describe())

    def _describe(self) -> Joined:
        """Ask the measuring child to describe the GPU and the baselines."""
        assert self._child is not None
        for _ in range(TRIES):
            reply = self._request(self._child, ("describe", {"names": self._job.against}), RUN_SECONDS)
            if reply.kind == "answer":
                return Joined(*reply.value)
        raise NoHopperError(f"GPU {self._gpu.index} ({self._gpu.name}) cannot be used: {reply.error}")

    def _time(self, task: Task) -> Iterator[Row]:
        """Measure the points of a task one after the other; yield their rows."""
        for index, (point, kernel) in enumerate(zip(task.points, kernels_of(task), strict=True)):
            built = None if kernel is None else self._pool.result(kernel)
            figures = {} if built is None else compiled_figures(point, built)
            if built is not None and built.status != "ok":
                yield task.row(point, self._gpu.uuid, built.status, built.reason, figures=figures)
            elif twin := task.twins.get(figures.get("code", "")):
                yield task.row(point, self._gpu.uuid, "twin", twin, figures=figures)
            else:
                self._line.send(Begun(task.row(point, self._gpu.uuid, "").key))
                began = time.monotonic()
                outcome = self._measure(task, point, self._following(task, index))
                measured = time.monotonic()
                figures, reason = {**figures, **outcome.figures}, outcome.reason
                if outcome.status == "ok":
                    if task.stage in NAMED:
                        figures["baseline_kernel"] = self._kernel_name(point, outcome.recipe)
                    if built is not None:
                        reason = reason or compile_remark(point, built)
                if self._job.verbose:
                    naming = time.monotonic() - measured
                    self._line.send(Said(time_report(task, point, outcome, measured - began, naming)))
                pairs = {"samples": outcome.samples, "finalists": outcome.finalists}
                yield task.row(point, self._gpu.uuid, outcome.status, reason, figures=figures, **pairs)

    def _measure(self, task: Task, point: Point, following: Point | None) -> Outcome:
        """Measure a point; if the process dies over it, try again in a new one."""
        assert not isinstance(task.method, LaunchCounter)
        arguments: dict[str, Any] = {"point": point, "protocol": task.method, "process": task.process}
        arguments |= {"race": task.race, "following": following, "finalists": task.finalists.get(point.against, ())}
        seconds = RUN_SECONDS + 3 * task.method.pairs * seconds_of(task.method, point.context) * 1.5
        seconds += 0.0 if point.against == "cublas" else BASELINE_SECONDS
        for attempt in range(TRIES):
            child = self._child_for(task)
            if attempt:  # a process that dies while it starts is not the point's fault
                self._describe()
            reply = self._request(child, ("measure", arguments), seconds)
            if reply.kind == "answer":
                return reply.value
        return Outcome("timeout" if reply.kind == "timeout" else "crash", reply.error)

    def _following(self, task: Task, index: int) -> Point | None:
        """Return the point that is likely to be measured next in this process, if its kernel is compiled."""
        if index + 1 < len(task.points):
            return task.points[index + 1]
        waiting = (queued for queued in self._queue.values() if queued.child == task.child and self._compiled(queued))
        queued = next(waiting, None)
        kernel = None if queued is None else kernels_of(queued)[0]
        if queued is None or kernel is None or self._pool.result(kernel).status != "ok":
            return None
        return queued.points[0]

    def _child_for(self, task: Task) -> Child:
        """Return the process that measures a task; a fresh one if the task names another than the current one."""
        assert self._child is not None
        if task.child and task.child != self._child_name:
            self._child.close()
            if not self._spares or task.process == 0:
                self._prepare(task)
            self._child, self._child_name = self._spares.pop(0) if self._spares else self._new_child(), task.child
        return self._child

    def _prepare(self, task: Task) -> None:
        """Let the fresh processes of a series make contexts and matrices at the same time, before any is timed."""
        count = max(1, self._job.fresh - task.process)
        while len(self._spares) < count:
            self._spares.append(self._new_child())
        waiting = self._spares[:count]
        for child in waiting:
            child.send(("prepare", {"point": task.points[0]}), RUN_SECONDS)
        while waiting := [child for child in waiting if child.poll() is None]:
            self._wait(*waiting)

    def _kernel_name(self, point: Point, recipe: Any) -> str:
        """Return the name of the kernel that a point's baseline runs; profiled once for each recipe."""
        key = point.problem, point.against, repr(recipe)
        if key not in self._kernel_names:
            assert self._namer is not None
            seconds = RUN_SECONDS + (0.0 if point.against == "cublas" else BASELINE_SECONDS)
            replies = (self._request(self._namer, (point, recipe), seconds) for _ in range(TRIES))
            self._kernel_names[key] = next((reply.value for reply in replies if reply.kind == "answer"), "unknown")
        return self._kernel_names[key]

    def _count(self, task: Task, counter: LaunchCounter) -> Iterator[Row]:
        """Count launches of the points of a task; yield their rows. The worker waits for the counter: the GPU is free
        for nothing else, and the process still ends with its coordinator."""
        assert self._child is not None
        board = self._gpu.uuid
        self._child.close()
        self._line.send(Begun(task.row(task.points[0], board, "").key))
        runnable: dict[Point, dict[str, Any]] = {}
        for point, kernel in zip(task.points, kernels_of(task), strict=True):
            built = None if kernel is None else self._pool.result(kernel)
            if built is None or built.report is None or built.status == "ok":
                runnable[point] = {} if built is None else {"code": compiled_figures(point, built)["code"]}
            else:
                yield task.row(point, board, built.status, built.reason)
        try:
            results = counter.count(list(runnable), self._gpu, self._store) if runnable else []
        except ValueError as error:  # such as a profiler that is missing, or may not count here
            yield from (task.row(point, board, "crash", str(error)) for point in runnable)
            return
        for (point, figures), counts in zip(runnable.items(), results, strict=False):
            figures |= counts.figures | ({"baseline_kernel": counts.kernel} if counts.kernel else {})
            status = "ok" if counts.figures else "crash"
            yield task.row(point, board, status, counts.reason or counts.note, figures=figures)

    def _request(self, child: Child, request: Any, seconds: float) -> Reply:
        child.send(request, seconds)
        while (reply := child.poll()) is None:
            self._wait(child)
        return reply

    def _new_child(self) -> Child:
        return self._process(self._job.rig.measuring, self._store, self._job.seed)

    def _process(self, factory: Callable[..., Handler], *arguments: Any) -> Child:
        """Return a child on the worker's GPU; it holds the GPU's lock as long as it lives."""
        environment = {"CUDA_VISIBLE_DEVICES": self._gpu.uuid}
        return Child(factory, *arguments, environment=environment, log=self._log, holds=self._lock.handle)


def time_report(task: Task, point: Point, outcome: Outcome, measuring: float, naming: float) -> str:
    """Return a line on where the seconds of a row went. The outcome has the seconds of its steps; the rest of
    ``measuring`` is the start of the process."""
    steps = {"process": measuring - sum(outcome.seconds.values()), **outcome.seconds, "name": naming}
    parts = ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items())
    row = f"{point.problem} {point.against} {task.stage}, process {task.process}"
    return f"{row}: {measuring + naming:.2f} s: {parts}"


def kernels_of(task: Task) -> list[KernelId | None]:
    """Return the kernel to compile for each point of a task; None for a baseline."""
    observer = task.method.observer if isinstance(task.method, LaunchCounter) else ""
    return [None if point.is_baseline else _kernel_of(point, observer) for point in task.points]


@lru_cache(4096)
def _kernel_of(point: Point, observer: str) -> KernelId:
    return KernelId.of(point.config, point.problem, observer)


def compiled_figures(point: Point, built: Built) -> dict[str, Any]:
    """Return the figures that compiling gives of a point, by column."""
    figures: dict[str, Any] = {"smem_bytes": point.config.smem_bytes}
    if built.report is not None:
        figures |= {name: getattr(built.report, name) for name in ("registers", "wgmma", "instructions", "code")}
    return figures


def wgmma_waits(kernel: Kernel, problem: GemmProblem) -> int:
    """Return the waits for wgmma in the code, as :attr:`Kernel.wgmma_waits`. With promotion there are two bodies, of an
    interval and of one stage: a fence for each stage of each block, a drain for each block, and a wait before each
    release but the last. With scales of blocks there are copies of the stage, and one more behind them."""
    stages, blocks = stages_between(kernel, problem), kernel.share_m // hopper.WGMMA_M
    if not stages:
        return kernel.wgmma_waits
    copies = kernel.scales_ahead + 2 if getattr(problem, "scales", "") == "blocks" else 1
    return copies * sum(blocks * (each + 1) + each - 1 for each in {stages, 1})


def compile_remark(point: Point, built: Built) -> str:
    """Return the remark for a measured kernel's row; empty unless the compiler reported a reason or serialised
    wgmma."""
    most = wgmma_waits(point.config, point.problem)
    if built.report is None or built.report.wgmma_waits <= most:
        return built.reason
    waits = f"the compiler serialised wgmma: {built.report.wgmma_waits} waits in the code instead of {most}"
    return "; ".join(filter(None, [built.reason, waits]))


def shares(cores: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Divide cores among a number of workers, neighbours together; each gets all cores if there are fewer cores than
    workers."""
    for i in range(count):
        low, high = i * len(cores) // count, (i + 1) * len(cores) // count
        yield tuple(cores[low:high] if len(cores) >= count else cores)
