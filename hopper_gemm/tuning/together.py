"""One sweep on several GPUs: a process for each takes points from one queue; the rows come together in one folder."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from hopper_gemm.measure.device import NoHopperError
from hopper_gemm.tables.trials import FINALS, PROVENANCE, SAMPLES, TRIALS
from hopper_gemm.tuning.backend import Backend
from hopper_gemm.tuning.campaign import CONTEXT, GRACE_SECONDS, shares
from hopper_gemm.tuning.plan import Progress, Watcher
from hopper_gemm.tuning.spec import SweepSpec
from hopper_gemm.tuning.supervisor import UNUSABLE, cuda
from hopper_gemm.tuning.sweep import JOURNAL, Sweep

WORKERS = ".gpus"
"""In the sweep's folder: those of the processes, gone when their rows have come together."""


@dataclass(frozen=True)
class Together:
    """A sweep, and the GPUs that measure it.

    Every process has a folder of its own and all share one storage, as hosts do (docs/scale.md). When none has a point
    left, this process takes over all their rows, measures the finals on the first GPU and writes the pages. Killed at
    any moment nothing is lost: the next run takes up what lies in the storage.

    Args:
        spec: of the sweep.
        out: its folder.
        gpus: indices, as nvidia-smi lists them.
        storage: what they share; None: a journal in the folder.
        backend_of: makes the backend of a GPU; at module level, since it travels.
    """

    spec: SweepSpec
    out: Path
    gpus: tuple[int, ...]
    storage: str | None = None
    backend_of: Callable[[SweepSpec, int], Backend] = cuda

    def run(self, watch: Watcher = lambda progress: None) -> list[str]:
        """Measure what has no row; then the finals; then write the tables.

        Args:
            watch: told of each point, by whichever GPU.

        Returns:
            Why GPUs could not be used, those of which that is true.

        Raises:
            NoHopperError: not one of the GPUs can be used; the last message says why.
        """
        storage = self.storage or str(self.out / JOURNAL)
        complaints = self._measure(storage, watch)
        backend = self.backend_of(self.spec, self.gpus[0])
        try:
            Sweep(self.spec, self.out, storage).run(backend, watch)
        finally:
            backend.close()
        shutil.rmtree(self.out / WORKERS, ignore_errors=True)
        return complaints

    def _measure(self, storage: str, watch: Watcher) -> list[str]:
        lines: list[Connection] = []
        processes: list[BaseProcess] = []
        complaints: list[str] = []
        try:
            for gpu, cores in zip(self.gpus, shares(sorted(os.sched_getaffinity(0)), len(self.gpus)), strict=True):
                near, far = CONTEXT.Pipe()
                arguments = self.spec, self._own_folder(gpu), gpu, storage, cores, self.backend_of, far
                process = CONTEXT.Process(target=_work, args=arguments, name=f"GPU {gpu}")
                process.start()
                far.close()
                lines.append(near)
                processes.append(process)
            open_lines = list(lines)
            while open_lines:
                ready = wait(open_lines)
                for line in [line for line in open_lines if line in ready]:
                    try:
                        told = line.recv()
                    except (EOFError, OSError):
                        open_lines.remove(line)
                        continue
                    if isinstance(told, str):
                        complaints.append(told)
                    else:
                        watch(told)
            for process in processes:
                process.join()
            if complaints and all(process.exitcode == UNUSABLE for process in processes):
                raise NoHopperError(complaints[-1])
            return complaints
        finally:
            for line, process in zip(lines, processes, strict=True):
                line.close()
                process.terminate()
            for process in processes:
                process.join(GRACE_SECONDS)
                process.kill()
                process.join()

    def _own_folder(self, gpu: int) -> Path:
        """A process's folder, with the rows that there are already."""
        folder = self.out / WORKERS / str(gpu)
        folder.mkdir(parents=True, exist_ok=True)
        for name in (TRIALS, SAMPLES, FINALS, PROVENANCE):
            if (self.out / name).is_file():
                shutil.copyfile(self.out / name, folder / name)
        return folder


def _work(
    spec: SweepSpec,
    out: Path,
    gpu: int,
    storage: str,
    cores: Sequence[int],
    backend_of: Callable[[SweepSpec, int], Backend],
    line: Connection,
) -> None:
    """The life of one GPU's process: until no point is left, or it is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.sched_setaffinity(0, cores)

    def tell(progress: Progress) -> None:
        try:
            line.send(progress)
        except OSError:
            sys.exit(1)

    backend = backend_of(spec, gpu)
    try:
        Sweep(spec, out, storage).run(backend, tell, finals=False, page=False)
    except NoHopperError as error:
        with suppress(OSError):
            line.send(str(error))
        sys.exit(UNUSABLE)
    finally:
        backend.close()
