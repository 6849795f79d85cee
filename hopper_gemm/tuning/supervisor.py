"""One GPU's part in tuning a list: claim the next open problem, tune it, tell of it, until none is open."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.measure.device import NoHopperError
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.backend import Backend
from hopper_gemm.tuning.claims import TRIES, Claim, claim
from hopper_gemm.tuning.plan import Progress
from hopper_gemm.tuning.spec import SweepSpec
from hopper_gemm.tuning.sweep import Sweep
from hopper_gemm.tuning.tune import prepare, study_name

WAIT_SECONDS = 0.5
"""Between two looks at problems that others hold."""

UNUSABLE = 3
"""Exit code of a process whose GPU cannot be used."""

ERROR = "error.txt"
"""In a study's folder: where in the program its last run failed."""


@dataclass(frozen=True)
class Event:
    """What happened on a GPU.

    Args:
        gpu: index.
        kind: ``"begun"``: a problem; ``"progress"`` in it; ``"done"``: it is finished, now or in an earlier run;
            ``"failed"``: it is not, and this run leaves it; ``"ended"``: the GPU cannot be used;
            ``"died"``: the process did.
        name: of the problem's study.
        text: the reason, where something went wrong.
        progress: of the sweep.
    """

    gpu: int
    kind: Literal["begun", "progress", "done", "failed", "ended", "died"]
    name: str = ""
    text: str = ""
    progress: Progress | None = None


def tuning(problem: GemmProblem, gpu: int, out: Path, options: dict[str, Any]) -> Sweep:
    """The sweep that tunes a problem on a GPU, as ``tune M N K`` does."""
    return prepare(problem, backend="cuda", gpu=gpu, out=out, **options).sweep


def cuda(spec: SweepSpec, gpu: int) -> Backend:
    """The GPU."""
    from hopper_gemm.tuning.cuda import CudaBackend

    return CudaBackend(spec, gpu)


@dataclass(frozen=True)
class Job:
    """What every process of a run is to do; it travels to them.

    Args:
        problems: in order.
        regime: burst or steady.
        out: each problem's folder lies in it.
        run: name of the run.
        gpu: name of the kind of GPU.
        kernel: digest of the kernel's sources.
        options: of :func:`hopper_gemm.tuning.tune.prepare`.
        sweep_of: see :func:`tuning`; at module level, as all that travels.
        backend_of: see :func:`cuda`.
    """

    problems: tuple[GemmProblem, ...]
    regime: str
    out: Path
    run: str
    gpu: str
    kernel: str
    options: dict[str, Any]
    sweep_of: Callable[[GemmProblem, int, Path, dict[str, Any]], Sweep] = tuning
    backend_of: Callable[[SweepSpec, int], Backend] = cuda

    def name(self, problem: GemmProblem) -> str:
        """Of its study and folder."""
        return study_name(problem, self.regime)

    def sweep(self, problem: GemmProblem, gpu: int) -> Sweep:
        """In its folder."""
        options = {**self.options, "regime": self.regime}
        return self.sweep_of(problem, gpu, self.out / self.name(problem), options)

    def finished(self, sweep: Sweep) -> bool:
        """Whether there is nothing left to do; what was measured with another kernel or GPU is not passed over in
        silence, since the sweep itself then says what is wrong with its folder."""
        return sweep.finished(self.kernel, self.gpu)


def settle_in(cores: Sequence[int]) -> None:
    """How the process of a GPU begins: it keeps to its cores, and ends when its parent says so and cleans up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.sched_setaffinity(0, cores)


def supervise(job: Job, gpu: int, cores: Sequence[int], line: Connection) -> None:
    """The life of one GPU's process. It ends when nothing is open, when it is told to, or when nobody listens.

    Args:
        job: of the run.
        gpu: index, as nvidia-smi lists it.
        cores: to keep to, compilers and all.
        line: takes each :class:`Event`.
    """
    settle_in(cores)
    supervisor = _Supervisor(job, gpu, line)
    try:
        supervisor.run()
    except NoHopperError as error:
        supervisor.tell("ended", text=str(error))
        sys.exit(UNUSABLE)
    finally:
        supervisor.close()


class _Supervisor:
    def __init__(self, job: Job, gpu: int, line: Connection) -> None:
        self._job = job
        self._gpu = gpu
        self._line = line
        self._backend: Backend | None = None

    def run(self) -> None:
        """Until every problem is settled, by this process or another: one that dies leaves its problem to the rest."""
        left = list(self._job.problems)
        while left:
            still = [problem for problem in left if not self._settled(problem)]
            if len(still) == len(left) and self._line.poll(WAIT_SECONDS):
                sys.exit(1)  # nothing is ever sent to us: the other end is closed
            left = still

    def tell(self, kind: Any, name: str = "", text: str = "", progress: Progress | None = None) -> None:
        """Send an event; without a listener there is nothing more to do."""
        try:
            self._line.send(Event(self._gpu, kind, name, text, progress))
        except OSError:
            sys.exit(1)

    def close(self) -> None:
        """End the backend's processes; the next problem would start new ones."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _settled(self, problem: GemmProblem) -> bool:
        """Whether the run is done with a problem; false while another process works on it."""
        name = self._job.name(problem)
        held = claim(self._job.out, name, self._job.run)
        if held is None:
            return False
        try:
            if not held.settled:
                self._work(problem, name, held)
        finally:
            held.release()
        return True

    def _work(self, problem: GemmProblem, name: str, held: Claim) -> None:
        """Tune a problem. Whatever goes wrong with it is told, and the next one finds fresh processes.

        Raises:
            NoHopperError: the GPU cannot be used; the problem stays open.
        """
        try:
            if held.begun >= TRIES:
                raise ChildProcessError(f"{TRIES} processes died over it; run the same command to try again")
            sweep = self._job.sweep(problem, self._gpu)
            if not self._job.finished(sweep):
                self._tune(sweep, name, held)
        except NoHopperError:
            raise
        except Exception as error:
            self.close()
            self._note(name)
            held.settle()
            self.tell("failed", name, _in_a_line(error))
            return
        held.settle()
        self.tell("done", name)

    def _tune(self, sweep: Sweep, name: str, held: Claim) -> None:
        if self._backend is None:
            self._backend = self._job.backend_of(sweep.spec, self._gpu)
        backend = self._backend = self._backend.serving(sweep.spec)
        sweep.plan()  # enumerates the space while the GPU's process still loads
        backend.describe()
        held.begin()
        self.tell("begun", name)
        sweep.run(backend, lambda progress: self.tell("progress", name, progress=progress), page=False)

    def _note(self, name: str) -> None:
        folder, moment = self._job.out / name, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        if folder.is_dir():
            with suppress(OSError):
                (folder / ERROR).write_text(f"{moment}\n{traceback.format_exc()}")


def _in_a_line(error: Exception) -> str:
    """What a user can mend speaks for itself; anything else is told with its kind."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, ValueError | ChildProcessError) else f"{type(error).__name__}: {text}"
