"""Verifying: what there is to do, who does it, and what came of it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hopper_gemm.compiler.child import Child, Handler, Reply
from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_digest
from tests.verify.drawing import Pair
from tests.verify.rows import (
    FAILED,
    NOT_BUILT,
    WENT_WRONG,
    Judgement,
    Rows,
    VerifyRow,
    failed_before,
    judged,
    verifier_digest,
)
from tests.verify.shrink import TRIES, shrink

START_SECONDS, ANSWER_SECONDS, HUNG_SECONDS = 120.0, 60.0, 8.0
"""Time for a child to start; for an answer; and for one where a hang is expected."""

RUNS = 3
"""Launches of a pair that must give the same bits."""

BOARDS = 2
"""Boards, of those at hand, on which a thing that failed before is verified."""

JUDGES = (
    *(f"hopper_gemm.tune.measure.{name}" for name in ("correctness", "scaling")),
    *(f"tests.verify.{name}" for name in ("busy", "groups", "harness", "judge", "load")),
)
"""Modules that decide what is right on a GPU."""

SHRINK_SECONDS, ALL_SHRINK_SECONDS = 120.0, 240.0
"""Time for making one failure small; and for all failures of a run, once everything else is done."""

MAX_INITIAL_FAILURES = 16
"""If so many kernels and no other were tried and none compiles, no further one is tried."""

PROCESSES, LATENESS = "processes", "late"
"""The circumstances of two processes on one GPU, each with several streams; and that which measures time."""


@dataclass(frozen=True)
class VerifyJob:
    """One thing to verify on a GPU.

    Args:
        pair: what runs.
        circumstance: how, of :data:`tests.verify.load.CIRCUMSTANCES` or :data:`PROCESSES`; empty to check the
            pair alone.
        of: the kind of kernel, with a circumstance.
        also: configs of other kernels that it needs.

    ``judges`` are the modules that decide whether it went right; ``shrinks`` is True if a failure is made small.
    """

    judges: ClassVar[tuple[str, ...]] = JUDGES
    shrinks: ClassVar[bool] = True

    pair: Pair
    circumstance: str = ""
    of: str = ""
    also: tuple[Pair, ...] = ()

    @property
    def kind(self) -> str:
        """The pair's kind, as rows name it."""
        return f"{self.circumstance}: {self.of}" if self.circumstance else "pair"

    @property
    def kernels(self) -> list[KernelId]:
        """Kernels to compile; the pair's own first."""
        return [pair.kernel for pair in (self.pair, *self.also)]

    def row(self, status: str = "", **about: Any) -> VerifyRow:
        """A row of what came of the job with the kernel as it is now; without a status, one that only names the job."""
        kernel, verifier = sources(self.judges)
        return VerifyRow(self.kind, self.pair.as_dict(), status, kernel=kernel, verifier=verifier, **about)


def sources(judges: Sequence[str] = JUDGES) -> tuple[str, str]:
    """Digests of the kernel's sources and of those that judge it, as rows of today have them."""
    return kernel_digest(), verifier_digest(*judges)


def suspects(rows: Iterable[VerifyRow], jobs: Iterable[VerifyJob]) -> list[VerifyJob]:
    """Jobs on pairs that failed with earlier sources and can run now, where they are not among the jobs.

    Args:
        rows: of any sources.
        jobs: already wanted.
    """
    known, found = {job.row().thing for job in jobs}, list[VerifyJob]()
    for thing, row in failed_before(rows, {sources()}).items():
        pair = legal_pair(row) if row.kind == "pair" and thing not in known else None
        if pair is not None:
            found.append(VerifyJob(pair))
    return found


def legal_pair(row: VerifyRow) -> Pair | None:
    """The pair of a row; None where a rule refuses it, or its config has parameters that are gone."""
    try:
        pair = Pair.of(row.subject)
    except ValueError:
        return None
    return pair if pair.legal else None


Ready = queue.SimpleQueue[tuple[VerifyJob, str] | None]
"""Jobs whose kernels are compiled, with the first one's machine code; None ends it."""


class Harness:
    """Does jobs on GPUs, each in a child process that may die, and keeps a row of each.

    Args:
        folder: of the rows; what stands there for this kernel is not done again.
        store: of compiled kernels.
        boards: GPUs that share the jobs.
        factory: makes a child's handler from the store; it answers ``(circumstance, pair, runs)``, and None at once.
        say: takes a line of progress.
        pool: makes what compiles into the store.
    """

    def __init__(
        self,
        folder: Path,
        store: Path,
        boards: Sequence[GpuId],
        factory: Callable[[Path], Handler],
        say: Callable[[str], None] = print,
        pool: Callable[[Path], CompilePool] = CompilePool,
    ) -> None:
        self.rows, self.failed = Rows(folder), 0
        self._store, self._boards, self._factory, self._say, self._pool = store, boards, factory, say, pool
        self._lock, self._done, self._total, self._said = threading.Lock(), 0, 0, time.monotonic()
        self._to_shrink: queue.SimpleQueue[tuple[VerifyJob, VerifyRow]] = queue.SimpleQueue()

    def run(self, jobs: Iterable[VerifyJob], seconds: float | None = None) -> None:
        """Do what has no row yet: kernels compile on all cores while the GPUs check those that are ready.

        What failed before comes first, on :data:`BOARDS` boards where so many are at hand. In the end, failures are
        made small, also those of earlier runs, within :data:`ALL_SHRINK_SECONDS`; the rest is left to the next run.

        Args:
            jobs: in this order.
            seconds: after so long no other job is begun.
        """
        jobs = list(jobs)
        done, before = judged(self.rows.rows), failed_before(self.rows.rows, {sources(job.judges) for job in jobs})
        first, rest = list[tuple[VerifyJob, list[Ready]]](), list[tuple[VerifyJob, list[Ready]]]()
        shared, own = Ready(), [Ready() for _ in self._boards]
        for job in jobs:
            found = done.get(job.row().key)
            if job.row().thing in before:
                left = self._boards_left(found)
                first += [(job, [own[number] for number in left])] if left else []
            elif found is None or not found.rows:
                rest.append((job, [shared]))
            if found is not None and found.rows and _to_be_shrunk(job, found.row):
                self._to_shrink.put((job, found.row))
        todo, deadline = [*first, *rest], time.monotonic() + (seconds or float("inf"))
        self._total = sum(len(ready) for _, ready in todo)
        workers = [
            threading.Thread(target=self._work, args=(board, (ready, shared), deadline))
            for board, ready in zip(self._boards, own, strict=True)
        ]
        pool = self._pool(self._store)
        for worker in workers:
            worker.start()
        try:
            pool.submit(kernel for job, _ in todo for kernel in job.kernels)
            for number, (job, to) in enumerate(todo):
                if number == len(first):
                    _end(own)
                self._build(pool, job, to)
                if time.monotonic() > deadline or not any(worker.is_alive() for worker in workers):
                    break
        finally:
            _end([*own, *[shared] * len(workers)])
            pool.close()
            for worker in workers:
                worker.join()

    def _boards_left(self, found: Judgement | None) -> list[int]:
        """Boards, by index, on which a thing that failed before is still to be verified."""
        runs = found.runs if found else []
        if any(row.status in NOT_BUILT for row in runs):
            return []
        seen = {row.board for row in runs}
        left = [number for number, board in enumerate(self._boards) if board.uuid not in seen]
        return left[: max(0, min(BOARDS, len(self._boards)) - len(seen))]

    def _build(self, pool: CompilePool, job: VerifyJob, to: Sequence[Ready]) -> None:
        """Wait for a job's kernels; the job is then ready, or is done where one does not compile."""
        built = [pool.result(kernel) for kernel in job.kernels]
        bad = next((one for one in built if one.status != "ok"), None)
        if bad is not None:
            self._total -= len(to) - 1
            self._add(job.row(bad.status, reason=bad.reason))
        elif built[0].report is not None:
            for ready in to:
                ready.put((job, built[0].report.code))

    def _work(self, board: GpuId, ready: Sequence[Ready], deadline: float) -> None:
        """The life of a GPU's thread: what is ready for this board, then what is for any."""
        environment = {"CUDA_VISIBLE_DEVICES": board.uuid}
        children = [Child(self._factory, self._store, environment=environment) for _ in range(2)]
        try:
            for jobs in ready:
                while (found := jobs.get()) is not None and time.monotonic() < deadline:
                    self._settle(found[0], found[1], board, children)
            stop = time.monotonic() + ALL_SHRINK_SECONDS
            while time.monotonic() + SHRINK_SECONDS <= stop and (failure := self._next_failure()):
                self._shrink(*failure, children)
        finally:
            for child in children:
                child.close()

    def _settle(self, job: VerifyJob, code: str, board: GpuId, children: list[Child]) -> None:
        begun = time.monotonic()
        status, reason, bits = self._ask(job, children, ANSWER_SECONDS)
        about = {"code": code, "bits": bits, "board": board.uuid, "gpu": board.name}
        row = job.row(status, reason=reason, seconds=round(time.monotonic() - begun, 3), **about)
        self._add(row)
        if _to_be_shrunk(job, row):
            self._to_shrink.put((job, row))

    def _next_failure(self) -> tuple[VerifyJob, VerifyRow] | None:
        try:
            return self._to_shrink.get_nowait()
        except queue.Empty:
            return None

    def _shrink(self, job: VerifyJob, row: VerifyRow, children: list[Child]) -> None:
        """Write a failure's row again, with the smallest pair that could be found in the time for one."""
        patience = HUNG_SECONDS if row.status == "timeout" else ANSWER_SECONDS
        stop = time.monotonic() + SHRINK_SECONDS

        def fails(pair: Pair) -> bool:
            if time.monotonic() > stop:
                return False
            return self._ask(replace(job, pair=pair), children, patience)[0] == row.status

        row = replace(row, minimal=shrink(job.pair, fails, TRIES).as_dict())
        with self._lock:
            self.rows.add(row)
            self._say(f"{row.kind}: {row.status}: {row.reason}; smallest that fails: {row.minimal}")

    def _ask(self, job: VerifyJob, children: list[Child], seconds: float) -> tuple[str, str, str]:
        """Status, reason and bits."""
        if job.circumstance != PROCESSES:
            return verdict(_answer(children[0], (job.circumstance, job.pair, RUNS), seconds))
        with ThreadPoolExecutor(len(children)) as pool:
            asked = [pool.submit(_answer, child, ("streams", job.pair, RUNS), seconds) for child in children]
            found = [verdict(one.result()) for one in asked]
        return next((one for one in found if one[0] != "ok"), found[0])

    def _add(self, row: VerifyRow) -> None:
        with self._lock:
            self.rows.add(row)
            self._done += 1
            if row.status in FAILED:
                self.failed += 1
                self._say(f"{row.kind}: {row.status}: {row.reason}: {row.subject}")
            if time.monotonic() > self._said + 5 or self._done == self._total:
                self._said = time.monotonic()
                self._say(f"{self._done} of {self._total} verified, {self.failed} failed")


def _end(queues: Iterable[Ready]) -> None:
    """Tell those that wait for a job that no other comes."""
    for one in queues:
        one.put(None)


def _to_be_shrunk(job: VerifyJob, row: VerifyRow) -> bool:
    """Return True if a job's row is a failure on a GPU that was not made small yet. A time limit holds for its own
    problem, so that a late launch is not made small."""
    return job.shrinks and job.circumstance != LATENESS and row.status in WENT_WRONG and row.minimal is None


def compile_all(kernels: Iterable[KernelId], store: Path, say: Callable[[str], None] = print) -> int:
    """Compile kernels, each once, on all cores, with no GPU.

    Returns:
        How many do not compile without a spill.

    Raises:
        ChildProcessError: none of the first :data:`MAX_INITIAL_FAILURES` compiles: the installation is broken.
    """
    pool, wanted = CompilePool(store), dict.fromkeys(kernels)
    failed = 0
    try:
        pool.submit(wanted)
        for number, kernel in enumerate(wanted, 1):
            built = pool.result(kernel)
            failed += built.status != "ok"
            if built.status != "ok":
                say(f"{kernel}: {built.status}: {built.reason}")
            if failed == number == MAX_INITIAL_FAILURES:
                raise ChildProcessError(f"none of the first {failed} kernels compiles: {built.reason}")
            if number % 50 == 0 or number == len(wanted):
                say(f"{number} of {len(wanted)} kernels, {failed} failed")
    finally:
        pool.close()
    return failed


def _answer(child: Child, request: tuple[str, Pair, int], seconds: float) -> Reply:
    """A child's reply; the time that it takes to start does not count."""
    started = child.ask(None, START_SECONDS)
    return child.ask(request, seconds) if started.kind == "answer" else started


def verdict(reply: Reply) -> tuple[str, str, str]:
    """Status, reason and bits of a child's reply."""
    if reply.kind == "answer":
        found = reply.value
        if found.skipped:
            return "skipped", found.skipped, ""
        return ("wrong_result" if found.reason else "ok"), found.reason, found.bits
    return ("timeout" if reply.kind == "timeout" else "crash"), reply.error, ""
