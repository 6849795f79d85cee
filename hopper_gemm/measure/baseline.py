"""Which kernel cuBLAS chose."""

from __future__ import annotations

import torch

from hopper_gemm.measure.arms import cublas_launch
from hopper_gemm.measure.workload import make_workload
from hopper_gemm.model.problem import GemmProblem


def cublas_kernel(problem: GemmProblem) -> str:
    """Name of the kernel (or kernels, joined by ``+``) that torch.mm runs for a problem.

    Reads it off the profiler, which slows later launches of its process: call it in a process of its own.
    """
    operands = make_workload(problem, l2_bytes=0).sets[0]
    cublas_launch(operands)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        cublas_launch(operands)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [name for name in names if not name.lower().startswith(("mem", "cuda"))]
    return "+".join(dict.fromkeys(kernels)) or "unknown"
