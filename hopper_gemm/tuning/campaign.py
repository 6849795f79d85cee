"""Tuning a list of problems on one or several GPUs; it goes on where it stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.store import source_digest
from hopper_gemm.measure.device import GpuId, NoHopperError, find_hopper, slug
from hopper_gemm.measure.regimes import REGIMES
from hopper_gemm.model.legality import filled_up
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.campaign import PAGE, Rate, Tuned, campaign_page
from hopper_gemm.tables.places import local_root, shown
from hopper_gemm.tables.publish import TABLE, publish
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.trials import PROVENANCE, TRIALS, ResultsError, is_there
from hopper_gemm.tuning.shapes import read_shapes
from hopper_gemm.tuning.supervisor import UNUSABLE, Event, Job, supervise
from hopper_gemm.tuning.tune import verdict

CONTEXT: Any = multiprocessing.get_context("spawn")
"""How processes start: from nothing, so that none holds another's line open."""

GRACE_SECONDS = 10.0
"""For a process to end by itself once it is told to."""

Watcher = Callable[[Event], None]


@dataclass
class Campaign:
    """A list of problems to tune, and where.

    Args:
        title: name of the list, and the regime.
        job: what the processes of the GPUs are told.
        gpus: each gets a process.
        problems: all of them, in the list's order; those that TMA cannot reach as matmul runs them, filled up.
    """

    title: str
    job: Job
    gpus: tuple[GpuId, ...]
    problems: tuple[GemmProblem, ...]
    failures: dict[str, str] = field(default_factory=dict)
    """Studies that failed in this run, with the reason."""
    rates: list[Rate] = field(default_factory=list)
    """Of this run."""

    @staticmethod
    def prepare(
        shapes: Path,
        *,
        gpus: Sequence[int] = (0,),
        regime: str = "burst",
        out: Path | None = None,
        **options: Any,
    ) -> Campaign:
        """Read the problems, find the GPUs, choose the folder.

        Args:
            shapes: the list; see :func:`hopper_gemm.tuning.shapes.read_shapes`.
            gpus: indices, as nvidia-smi lists them, each once.
            regime: burst or steady; steady takes only the problems marked so.
            out: folder of the problems' folders; by default where ``tune M N K`` puts them.
            options: of :func:`hopper_gemm.tuning.tune.prepare`: seconds, trials, sampler, warm_start, early,
                finals.

        Raises:
            SpecError, ResultsError, ValueError: a mistake in what was asked; one line each.
            NoHopperError: there is no such GPU.
        """
        if regime not in REGIMES:
            raise ValueError(f"--regime must be one of {', '.join(REGIMES)} but got {regime!r}")
        read = read_shapes(shapes)
        problems = tuple(dict.fromkeys(map(filled_up, read.of_regime(regime))))
        if not problems:
            raise ValueError(f"no problem of {read.name} is marked steady; mark one, or tune it with M N K")
        found = tuple(_hopper(index) for index in gpus)
        kinds = sorted({gpu.name for gpu in found})
        if len(kinds) > 1:
            raise ValueError(f"--gpus must be of one kind but got {' and '.join(kinds)}; name those of one kind")
        job = Job(
            problems=problems,
            regime=regime,
            out=out or local_root() / slug(kinds[0]),
            run=f"{os.getpid()}-{time.time_ns()}",
            gpu=kinds[0],
            kernel=source_digest(),
            options=options,
        )
        with suppress(ResultsError):  # of one folder, told when its turn comes; mistakes in the options are told now
            job.sweep(job.problems[0], found[0].index)
        return Campaign(f"{read.name}, {regime}", job, found, problems)

    @property
    def out(self) -> Path:
        """Folder of the problems' folders."""
        return self.job.out

    @property
    def opening(self) -> str:
        """The first line to tell the user: what will happen and where."""
        many = len(self.gpus)
        where = f"an {self.gpus[0].name}" if many == 1 else f"{many} GPUs ({self.gpus[0].name})"
        return f"Tuning {len(self.job.problems)} problems ({self.title}) on {where} into {shown(self.out)}"

    def run(self, watch: Watcher = lambda event: None) -> list[Tuned]:
        """Tune what is not finished; then write :data:`hopper_gemm.tables.campaign.PAGE`.

        Args:
            watch: told of everything that happens.

        Returns:
            What became of each problem, in the list's order.

        Raises:
            ResultsError: the folder cannot be made.
        """
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"{self.out} cannot be made ({error.strerror}); name another with --out") from None
        clocks = {gpu.index: _Clock() for gpu in self.gpus}
        started = time.monotonic()
        with closing(_events(self.job, list(clocks))) as events:
            for event in events:
                clocks[event.gpu].note(event)
                self._take(event, watch)
        rates = [Rate(f"GPU {index}", clock.trials, clock.seconds) for index, clock in clocks.items()]
        self.rates = [*rates, Rate("in all", sum(rate.trials for rate in rates), time.monotonic() - started)]
        found = self.found()
        (self.out / PAGE).write_text(self.page(found))
        return found

    def found(self) -> list[Tuned]:
        """What is known of each problem, from its folder."""
        return [self._found(problem) for problem in self.problems]

    def page(self, found: Sequence[Tuned]) -> str:
        """As :data:`hopper_gemm.tables.campaign.PAGE` has it."""
        many = f", {len(self.gpus)} at a time" if len(self.gpus) > 1 else ""
        return campaign_page(self.title, f"Measured on an {self.gpus[0].name}{many}.", found, self.rates)

    def _take(self, event: Event, watch: Watcher) -> None:
        """Pass an event on; a finished study gets its page here, while the GPU goes on."""
        if event.kind == "failed":
            self.failures[event.name] = event.text
        watch(event)
        if event.kind != "done":
            return
        try:
            _publish(self.out / event.name)
        except Exception as error:
            reason = f"its page could not be written: {type(error).__name__}: {error}".splitlines()[0]
            self._take(Event(event.gpu, "failed", event.name, reason), watch)

    def _found(self, problem: GemmProblem) -> Tuned:
        usual = GemmProblem(problem.m, problem.n, problem.k)
        unusual = [word for word in (problem.dtype, problem.layouts) if word not in (usual.dtype, usual.layouts)]
        label, name = " ".join([str(problem), *unusual]), self.job.name(problem)
        folder = self.out / name
        trials, seconds = 0, 0.0
        if is_there(folder / TRIALS):
            study = read_study(folder)
            trials, seconds = len(study.trials), float(study.provenance.get("seconds", 0.0))
        if name in self.failures:
            return Tuned(label, "failed", self.failures[name], trials=trials, seconds=seconds)
        try:
            if not self.job.finished(self.job.sweep(problem, self.gpus[0].index)):
                return Tuned(label, "open", trials=trials, seconds=seconds)
            best = verdict(folder)
        except ResultsError as error:
            return Tuned(label, "failed", str(error), trials=trials, seconds=seconds)
        first = best.winner
        figures = first.speedup, first.speedup_low, first.speedup_high
        return Tuned(label, "tuned", "", first.config, *figures, len(best.even), trials, seconds)


@dataclass
class _Clock:
    """Of one GPU: how many trials, and how long it was at work."""

    trials: int = 0
    seconds: float = 0.0
    begun: float | None = None

    def note(self, event: Event) -> None:
        if event.kind == "begun":
            self.begun = time.monotonic()
        elif event.kind == "progress":
            self.trials += event.progress is not None and event.progress.stage == "sweep"
        elif self.begun is not None:
            self.seconds += time.monotonic() - self.begun
            self.begun = None


def shares(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Cores divided among so many processes, neighbours together; all to each where there are fewer than processes."""
    if len(cores) < count:
        return [tuple(cores)] * count
    edges = [i * len(cores) // count for i in range(count + 1)]
    return [tuple(cores[low:high]) for low, high in pairwise(edges)]


def _events(job: Job, gpus: Sequence[int]) -> Generator[Event]:
    """Start a process for each GPU and pass on what they tell; when this ends, however it ends, they end too."""
    members: dict[Connection, tuple[int, BaseProcess]] = {}
    at_work: dict[int, str] = {}
    try:
        for gpu, cores in zip(gpus, shares(sorted(os.sched_getaffinity(0)), len(gpus)), strict=True):
            near, far = CONTEXT.Pipe()
            started = CONTEXT.Process(target=supervise, args=(job, gpu, cores, far), name=f"GPU {gpu}")
            started.start()
            far.close()
            members[near] = gpu, started
        while members:
            ready = wait(list(members))
            for line in [line for line in members if line in ready]:
                gpu, process = members[line]
                try:
                    event = line.recv()
                except (EOFError, OSError):
                    process.join()
                    line.close()
                    del members[line]
                    if process.exitcode and gpu in at_work:
                        yield Event(gpu, "died", at_work[gpu], _death(process.exitcode, at_work[gpu]))
                    elif process.exitcode not in (0, UNUSABLE):
                        yield Event(gpu, "died", "", _death(process.exitcode or 0))
                    continue
                if event.kind == "begun":
                    at_work[gpu] = event.name
                elif event.kind != "progress":
                    at_work.pop(gpu, None)
                yield event
    finally:
        for line in members:
            line.close()
        end([process for _, process in members.values()])


def end(processes: Sequence[BaseProcess]) -> None:
    """Tell processes to end, and kill those that do not."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(GRACE_SECONDS)
        process.kill()
        process.join()


def _death(code: int, name: str = "") -> str:
    with_what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"its process died with {with_what}" + (f"; {name} is open again" if name else "")


def _publish(folder: Path) -> None:
    """A finished study's page, unless it was written after the study's end."""
    page = folder / TABLE
    if not is_there(folder / TRIALS):
        return
    if not page.is_file() or page.stat().st_mtime_ns < (folder / PROVENANCE).stat().st_mtime_ns:
        publish(folder)


def _hopper(index: int) -> GpuId:
    try:
        return find_hopper(index)
    except NoHopperError as error:
        raise NoHopperError(f"{str(error).split(';')[0]}; a list is tuned on an H100 or H200") from None
