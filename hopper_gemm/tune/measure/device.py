"""The GPU: its properties, its energy and clock events during a measurement, and other processes on it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from hopper_gemm.compiler.residency import memory_rate
from hopper_gemm.model import hopper
from hopper_gemm.model.tuned import slug


class NoHopperError(RuntimeError):
    """No GPU here can run the kernel; the message says what there is and what to do."""


@dataclass(frozen=True)
class DeviceInfo:
    """The GPU's identity in results."""

    name: str  # as the driver gives it
    slug: str  # short lower-case name for folders, such as "h200"
    uuid: str  # UUID of the board
    sms: int  # streaming multiprocessors
    l2_bytes: int
    memory_rate: float  # bytes a second that a copy should move
    driver: str  # its version
    cuda: str  # version of the CUDA runtime that torch brings
    power_limit_watts: float  # enforced
    sm_mhz_max: int  # the highest SM clock


@dataclass(frozen=True)
class GpuId:
    """A GPU that CUDA_VISIBLE_DEVICES shows."""

    index: int  # among the visible ones, see visible
    name: str  # as the driver gives it
    uuid: str  # UUID of the board; children get it as their CUDA_VISIBLE_DEVICES


def visible(text: str | None, uuids: Sequence[str]) -> list[int]:
    """Return indices among ``uuids``, which are in NVML's order, of the GPUs that CUDA_VISIBLE_DEVICES shows, in its
    order, read as CUDA reads it. None, the variable unset, shows all GPUs.

    Numbers count in NVML's order, which is that of nvidia-smi and of CUDA_DEVICE_ORDER=PCI_BUS_ID. CUDA's own default,
    FASTEST_FIRST, counts otherwise on a host with several kinds of GPU; UUIDs, cut short as long as each names one
    board, mean the same board in every order. An entry that names no GPU hides itself and all later entries; a repeated
    entry hides all GPUs.

    Raises:
        NoHopperError: the variable names a MIG slice.
    """
    if text is None:
        return list(range(len(uuids)))
    words = [word.strip() for word in text.split(",")]
    if words[0].startswith("MIG-"):
        raise NoHopperError(
            f"CUDA_VISIBLE_DEVICES must show whole GPUs, by index or UUID, but names a MIG slice, {words[0]}; "
            "set it to GPUs that nvidia-smi -L lists"
        )
    indices: list[int] = []
    for word in words:
        if words[0].startswith("GPU-"):
            matches = [index for index, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid.startswith(word)]
        else:
            number = re.match(r"\+?[0-9]+", word)  # CUDA reads the digits that a word begins with
            matches = [int(number[0])] if number and int(number[0]) < len(uuids) else []
        if len(matches) != 1:
            break
        if matches[0] in indices:
            return []
        indices += matches
    return indices


def find_hopper(index: int = 0) -> GpuId:
    """Find a GPU that can run the kernel, by its index among the :func:`visible` ones, by NVML alone: no CUDA context
    is made and torch is not loaded. A NoHopperError says that there is no driver, no such device, or none of Hopper."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
        shown = visible(text, uuids)
        if index >= len(shown):
            there = f"there are {len(uuids)}"
            if text is not None:
                there = f"CUDA_VISIBLE_DEVICES={text!r} shows {len(shown)} of {len(uuids)} (unset, it shows all)"
            raise NoHopperError(f"GPU {index} does not exist, {there}; name another with --gpus")
        handle, uuid = handles[shown[index]], uuids[shown[index]]
        name = pynvml.nvmlDeviceGetName(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError as error:
        raise NoHopperError(f"no NVIDIA GPU here ({error}); run on a machine with an H100 or H200") from None
    if (major, minor) != hopper.COMPUTE_CAPABILITY:
        raise NoHopperError(
            f"the kernel needs a Hopper GPU (sm_90) but GPU {index} is {name} (sm_{major}{minor}); "
            "run on a machine with an H100 or H200"
        )
    return GpuId(index, name, uuid)


def describe_current() -> DeviceInfo:
    """Describe the current CUDA device; :func:`find_hopper` must have accepted it."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = f"GPU-{properties.uuid}"
    handle = _handle(uuid)
    return DeviceInfo(
        name=properties.name,
        slug=slug(properties.name),
        uuid=uuid,
        sms=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        memory_rate=memory_rate(),
        driver=pynvml.nvmlSystemGetDriverVersion(),
        cuda=torch.version.cuda or "",
        power_limit_watts=pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        sm_mhz_max=pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
    )


HARMFUL_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Clock event reasons (NVML) that void a measurement. The software power cap, 0x04, is the steady regime itself."""


class Telemetry:
    """Reads clock event reasons and, if wanted, energy of the GPU with a UUID from NVML while work runs. The energy
    counter moves in steps of about 100 ms, and reading it takes 3 ms: a side thread keeps each step with its time, so
    that mean power over a window comes from whole steps. For work shorter than a step only clock event reasons are
    read."""

    def __init__(self, uuid: str, energy: bool = True) -> None:
        self._handle = _handle(uuid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True) if energy else None
        self.ticks: list[tuple[float, float]] = []
        """Steps of the energy counter: host time in seconds, energy in joules."""
        self.reasons = 0

    def __enter__(self) -> Telemetry:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def watts(self, start: float, end: float) -> float | None:
        """Return the mean power between two host times, from the counter's steps inside; None for fewer than three."""
        inside = [(at, joules) for at, joules in self.ticks if start <= at <= end]
        if len(inside) < 3:
            return None
        (first, before), (last, after) = inside[0], inside[-1]
        return (after - before) / (last - first)

    @property
    def harm(self) -> str | None:
        """Name of the clock event that voids the measurement; None if there was none."""
        return next((text for bit, text in HARMFUL_REASONS.items() if self.reasons & bit), None)

    def look(self) -> None:
        self.reasons |= pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)

    def _poll(self) -> None:
        last = None
        while not self._stop.is_set():
            millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            if millijoules != last:
                self.ticks.append((time.perf_counter(), millijoules / 1000))
                last = millijoules
                self.look()
            self._stop.wait(0.005)


@cache
def _handle(uuid: str) -> Any:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


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
