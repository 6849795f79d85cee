"""The program under the profiler: it launches each point twice unprofiled, then once to be counted.

``python -m hopper_gemm.lab.counters.program JOB.json``. Without a profiler it only checks the kernels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hopper_gemm.lab.counters.counting import Stage, point_of
from hopper_gemm.tune.measure.arms import Launch, cublas_launch, kernel_launch, load_any
from hopper_gemm.tune.measure.correctness import poison
from hopper_gemm.tune.measure.workload import Workload, make_workload
from hopper_gemm.tune.point import Point


class WrongResultError(RuntimeError):
    """The kernel's product is wrong, so its counters are worthless."""


def main(job_file: Path) -> None:
    """Work through a job. A point that fails is noted and the next is taken, unless it broke the GPU's context.

    Every step is on disk before the next begins: after a kill the journal names the point at fault.
    """
    job = json.loads(job_file.read_text())
    store = None if job["store"] is None else Path(job["store"])
    workload: Workload | None = None
    with Path(job["journal"]).open("w", buffering=1) as journal:

        def note(number: int, stage: Stage, reason: str = "") -> None:
            journal.write(json.dumps({"point": number, "stage": stage, "reason": reason}) + "\n")

        for number, raw in enumerate(job["points"]):
            point = point_of(raw)
            note(number, "begun")
            try:
                if workload is None or workload.problem != point.problem:
                    workload = None  # frees the GPU's memory
                    workload = _matrices(point)
                launch = _checked(point, workload, store)
                note(number, "profiling")
                with torch.cuda.profiler.profile():
                    launch(workload.sets[0])
                    torch.cuda.synchronize()
                note(number, "counted")
            except Exception as error:
                note(number, "failed", f"{type(error).__name__}: {error}".splitlines()[0][:500])
                torch.cuda.synchronize()  # raises, and ends the program, if no later launch can succeed


def _matrices(point: Point) -> Workload:
    """Make two sets of matrices: they suffice, because the profiler flushes the L2 itself. Free the scratch memory,
    which each replay would have to save."""
    workload = make_workload(point.problem, l2_bytes=0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return workload


def _checked(point: Point, workload: Workload, store: Path | None) -> Launch:
    """Return the launch after it ran on both sets; our kernel's product is checked first."""
    first, second = workload.sets[:2]
    if point.is_baseline:
        launch: Launch = cublas_launch
        launch(first)
    else:
        launch = kernel_launch(load_any(point.config, point.problem, store))
        poison(first.ours)
        launch(first)
        result = workload.check(first.ours)
        if not result.ok:
            raise WrongResultError(result.reason)
    launch(second)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return launch


if __name__ == "__main__":
    main(Path(sys.argv[1]))
