"""The name of the kernel that a baseline runs. It is found in a process of its own: the profiler slows later launches
of its process."""

from __future__ import annotations

import torch

from hopper_gemm.tune.measure.baselines import BASELINES
from hopper_gemm.tune.measure.workload import make_workload
from hopper_gemm.tune.point import Point

UNKNOWN = "unknown"


def baseline_kernel(point: Point, recipe: str = "") -> str:
    """Return the name of the kernel (or kernels, joined by ``+``) that the baseline of a point runs by the recipe of
    its outcome, else :data:`UNKNOWN`."""
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
    return "+".join(dict.fromkeys(kernels)) or UNKNOWN
