"""The GPU: its properties, and its energy and clock events during a measurement."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
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
    is made and torch is not loaded.

    Raises:
        NoHopperError: no driver, no such device, or not a Hopper one.
    """
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

POLL_SECONDS = 0.005


class Telemetry:
    """Reads clock event reasons and, if wanted, energy of the GPU with a UUID from NVML while work runs.

    The energy counter moves in steps of about 100 ms, and reading it takes 3 ms: a side thread keeps each step with its
    time, so that mean power over a window comes from whole steps. For work shorter than a step only clock event reasons
    are read.
    """

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
        """Read the present clock event reasons."""
        self.reasons |= pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)

    def _poll(self) -> None:
        last = None
        while not self._stop.is_set():
            millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            if millijoules != last:
                self.ticks.append((time.perf_counter(), millijoules / 1000))
                last = millijoules
                self.look()
            self._stop.wait(POLL_SECONDS)


@cache
def _handle(uuid: str) -> Any:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)
