"""Libraries that our kernel is compared with; all but cuBLAS are optional."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import torch

from hopper_gemm.tune.measure.baselines.base import Baseline
from hopper_gemm.tune.measure.baselines.cublaslt import Cublas, CublasLt, Heuristics
from hopper_gemm.tune.measure.baselines.peers import Quack, Triton
from hopper_gemm.tune.measure.workload import make_workload
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.registry import BASELINES as ADDED
from hopper_gemm.tune.registry import load


class Baselines(dict[str, Baseline]):
    """Baselines by name; a ValueError names them where one is missing. A baseline that a higher package registers is
    imported at its first use."""

    def __missing__(self, name: str) -> Baseline:
        load()
        if name not in ADDED:
            raise ValueError(f"the baseline must be one of {', '.join(self)} but got {name!r}")
        module, _, kind = ADDED[name].partition(":")
        self[name] = getattr(import_module(module), kind)()
        return self[name]


BASELINES = Baselines({baseline.name: baseline for baseline in (Cublas(), CublasLt(), Heuristics(), Triton(), Quack())})
"""Baselines by name, in the order of a table's columns."""


def missing(names: Iterable[str]) -> dict[str, str]:
    """Return the named baselines that cannot run here, each with the reason."""
    reasons = {name: BASELINES[name].missing() for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def baseline_kernel(point: Point, recipe: str = "") -> str:
    """Return the name of the kernel (or kernels, joined by ``+``) that the baseline of a point runs by the recipe of
    its outcome, else ``unknown``. The profiler slows later launches of its process."""
    torch.cuda.empty_cache()
    workload = make_workload(point.problem, l2_bytes=0)
    launch, operands = BASELINES[point.against].restore(workload, recipe).launch, workload.sets[0]
    launch(operands)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        launch(operands)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [name for name in names if not name.lower().startswith(("mem", "cuda"))]
    return "+".join(dict.fromkeys(kernels)) or "unknown"
