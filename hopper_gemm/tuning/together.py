"""One sweep on several GPUs: a process for each takes points from one queue; the rows come together in one folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from hopper_gemm.measure.device import NoHopperError
from hopper_gemm.tables.trials import FINALS, PROVENANCE, SAMPLES, TRIALS
from hopper_gemm.tuning.backend import Backend
from hopper_gemm.tuning.campaign import CONTEXT, end, shares
from hopper_gemm.tuning.plan import Progress, Watcher
from hopper_gemm.tuning.spec import SweepSpec
from hopper_gemm.tuning.supervisor import UNUSABLE, cuda, settle_in
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
        sweep = Sweep(self.spec, self.out, storage)
        complaints = self._measure(storage, watch)
        backend = self.backend_of(self.spec, next(gpu for gpu in self.gpus if gpu not in complaints))
        try:
            sweep.run(backend, watch)
        finally:
            backend.close()
        shutil.rmtree(self.out / WORKERS, ignore_errors=True)
        return list(complaints.values())

    def _measure(self, storage: str, watch: Watcher) -> dict[int, str]:
        """All that the GPUs can; why, of those that cannot be used."""
        lines: dict[Connection, int] = {}
        processes: list[BaseProcess] = []
        complaints: dict[int, str] = {}
        try:
            for gpu, cores in zip(self.gpus, shares(sorted(os.sched_getaffinity(0)), len(self.gpus)), strict=True):
                near, far = CONTEXT.Pipe()
                arguments = self.spec, self._own_folder(gpu), gpu, storage, cores, self.backend_of, far
                process = CONTEXT.Process(target=_work, args=arguments, name=f"GPU {gpu}")
                process.start()
                far.close()
                lines[near] = gpu
                processes.append(process)
            while lines:
                ready = wait(list(lines))
                for line in [line for line in lines if line in ready]:
                    try:
                        told = line.recv()
                    except (EOFError, OSError):
                        line.close()
                        del lines[line]
                        continue
                    if isinstance(told, str):
                        complaints[lines[line]] = told
                    else:
                        watch(told)
            if len(complaints) == len(self.gpus):
                raise NoHopperError(list(complaints.values())[-1])
            return complaints
        finally:
            for line in lines:
                line.close()
            end(processes)

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
    settle_in(cores)

    def tell(progress: Progress) -> None:
        try:
            line.send(progress)
        except OSError:
            sys.exit(1)

    try:
        with closing(backend_of(spec, gpu)) as backend:
            Sweep(spec, out, storage).run(backend, tell, finals=False, page=False)
    except NoHopperError as error:
        with suppress(OSError):
            line.send(str(error))
        sys.exit(UNUSABLE)
