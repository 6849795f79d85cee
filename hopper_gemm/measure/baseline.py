"""Which kernel a baseline runs."""

from __future__ import annotations

from typing import Any

import torch

from hopper_gemm.measure.arms import Launch, cublas_launch
from hopper_gemm.measure.baselines.base import Baseline
from hopper_gemm.measure.workload import Operands, make_workload
from hopper_gemm.model.problem import GemmProblem

UNKNOWN = "unknown"


def cublas_kernel(problem: GemmProblem) -> str:
    """Name of the kernel (or kernels, joined by ``+``) that torch.mm runs for a problem; see :func:`kernel_of`."""
    torch.cuda.empty_cache()
    return kernel_of(cublas_launch, make_workload(problem, l2_bytes=0).sets[0])


def chosen_kernel(problem: GemmProblem, baseline: Baseline, recipe: Any) -> str:
    """Name of the kernel that a baseline's candidate runs for a problem; see :func:`kernel_of`.

    Args:
        problem: what is multiplied.
        baseline: whose candidate.
        recipe: of the candidate.
    """
    torch.cuda.empty_cache()
    workload = make_workload(problem, l2_bytes=0)
    return kernel_of(baseline.restore(workload, recipe).launch, workload.sets[0])


def kernel_of(launch: Launch, operands: Operands) -> str:
    """Name of the kernel (or kernels, joined by ``+``) that a launch runs.

    Reads it off the profiler, which slows later launches of its process: call it in a process that times nothing.
    """
    launch(operands)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        launch(operands)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [name for name in names if not name.lower().startswith(("mem", "cuda"))]
    return "+".join(dict.fromkeys(kernels)) or UNKNOWN
