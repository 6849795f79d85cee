"""Other processes on a GPU, as far as NVML reports them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from hopper_gemm.tune.measure.device import GpuId

LOOKS, LOOK_SECONDS = 3, 1.0
"""A GPU is busy if every look finds it busy. NVML's utilisation is a mean over up to a second: a single look would also
see a run that has just ended."""

BUSY_PERCENT = 10
"""Utilisation from which on a GPU is busy although NVML lists no process, as in a container that hides processes of
others."""


def busy(gpu: GpuId, sleep: Callable[[float], None] = time.sleep, measuring: bool = False) -> str:
    """Return a line on what keeps a GPU busy: processes that hold a context on it, other than this process and its
    descendants, or a utilisation of :data:`BUSY_PERCENT` with no process listed. Empty if it is idle or NVML does not
    report. If this process is ``measuring`` on the GPU meanwhile, its utilisation says nothing of others."""
    for look in range(LOOKS):
        if look:
            sleep(LOOK_SECONDS)
        if not (message := _look(gpu, measuring)):
            break
    return message


def _look(gpu: GpuId, measuring: bool) -> str:
    """Look at a GPU once; as :func:`busy`."""
    _nvml(pynvml.nvmlInit)
    handle = _nvml(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
    if handle is None:
        return ""
    listed = _nvml(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    others = [process for process in listed if not _ours(process.pid)]
    rates, memory = _nvml(pynvml.nvmlDeviceGetUtilizationRates, handle), _nvml(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if not others and (measuring or listed or rates is None or rates.gpu < BUSY_PERCENT):
        return ""
    who = ", ".join(map(_described, others)) or "a process that NVML does not list"
    held = "" if memory is None else f", {memory.used / 2**30:.1f} GiB held"
    used = "" if rates is None else f", utilisation {rates.gpu} %"
    return f"GPU {gpu.index} ({gpu.name}, {gpu.uuid}) is busy: {who}{held}{used}"


def _described(process: Any) -> str:
    """Return a process with its name and memory, as far as NVML reports them."""
    name, memory = _nvml(pynvml.nvmlSystemGetProcessName, process.pid), process.usedGpuMemory
    details = [Path(name).name if name else "", "" if memory is None else f"{memory / 2**30:.1f} GiB"]
    text = ", ".join(filter(None, details))
    return f"process {process.pid}{f' ({text})' if text else ''}"


def _ours(pid: int) -> bool:
    """Return True if a process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # of another container, or gone
            return False
    return pid == os.getpid()


def _nvml(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML; return None where the call fails or is not permitted."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None
