"""A list of problems tuned by real processes on GPUs that are not there. At module level, since it travels to them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from hopper_gemm.measure.device import GpuId, NoHopperError
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.campaign import Campaign
from hopper_gemm.tuning.spec import SweepSpec, checked
from hopper_gemm.tuning.supervisor import Job
from hopper_gemm.tuning.sweep import Sweep
from hopper_gemm.tuning.tune import study_name
from tests.tuning.fakes import FakeBackend

SPACE = {"tile_m": [64, 128], "tile_n": 128, "k_depth": [2, 4], "stages": "max", "stagger": [0, 1]}


def sweep_of(problem: GemmProblem, gpu: int, out: Path, options: dict[str, Any]) -> Sweep:
    raw = {
        "name": study_name(problem, options["regime"]),
        "regimes": [options["regime"]],
        "problems": [{"m": problem.m, "n": problem.n, "k": problem.k}],
        "sampler": "random",
        "space": SPACE,
        "budget": {"trials": options.get("trials", 4)},
        "final": {"best": 2},
    }
    return Sweep(checked(raw, "tune"), out)


class Noting(FakeBackend):
    """Takes a while over a trial, and leaves a line for each in ``log``; may die, fail or hang at a problem's."""

    def __init__(self, spec: SweepSpec, gpu: int) -> None:
        super().__init__()
        self._gpu = gpu
        self._log = Path(os.environ["CAMPAIGN_LOG"])
        self._trouble: dict[str, str] = json.loads(os.environ.get("CAMPAIGN_TROUBLE", "{}"))
        self._note("opened")

    def describe(self) -> dict[str, Any]:
        if self._trouble.get(f"gpu {self._gpu}") == "unusable":
            raise NoHopperError(f"GPU {self._gpu} (NVIDIA H200) cannot be used: out of memory")
        return super().describe()

    def measure(self, point, pairs=None):
        self._note(f"trial {point.problem}")
        time.sleep(0.05)
        trouble = self._trouble.get(str(point.problem), "")
        if trouble == "die" or trouble == f"die on {self._gpu}":
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "fail":
            raise RuntimeError("nothing is as it was\nand never will be")
        if trouble == "hang":
            time.sleep(60)
        return super().measure(point, pairs)

    def close(self) -> None:
        super().close()
        self._note("closed")

    def _note(self, text: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{self._gpu} {text} cores {sorted(os.sched_getaffinity(0))}\n")


def campaign(out: Path, sizes: list[int], gpus: int = 2, **options: Any) -> Campaign:
    problems = tuple(GemmProblem(size, size, size) for size in sizes)
    job = Job(problems, "burst", out, f"{time.time_ns()}", "NVIDIA H200", "fake", options, sweep_of, Noting)
    found = tuple(GpuId(index, "NVIDIA H200", f"GPU-{index}") for index in range(gpus))
    return Campaign("small, burst", job, found, problems)
