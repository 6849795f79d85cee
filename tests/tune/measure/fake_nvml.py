"""NVML without a driver: boards with processes, utilisation and memory, any of which it may refuse to tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from hopper_gemm.tune.measure import device

GIB = 2**30
HELD = 12 * GIB


@dataclass
class Board:
    """A board, with the bytes that each compute process holds on it (None where NVML does not tell them), its
    utilisation (a list gives one value after the other), and functions that NVML does not support here."""

    uuid: str
    processes: dict[int, int | None] = field(default_factory=dict)
    percent: int | list[int] = 0
    refused: tuple[str, ...] = ()
    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)


class FakeNvml:
    """Stands in for pynvml where GPUs are found and their processes listed; a handle is its board. NVML tells the names
    of the processes in ``names`` alone."""

    NVMLError = pynvml.NVMLError

    def __init__(self, monkeypatch, *boards: Board, names: dict[int, str] | None = None) -> None:
        self._boards, self._names = boards, names or {}
        monkeypatch.setattr(device, "pynvml", self)

    def nvmlInit(self) -> None:
        """Nothing is to be opened."""

    def nvmlDeviceGetCount(self) -> int:
        return len(self._boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Board:
        return self._boards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Board:
        return self._told(next((board for board in self._boards if board.uuid == uuid), None))

    def nvmlDeviceGetUUID(self, board: Board) -> str:
        return self._told(board, "uuid").uuid

    def nvmlDeviceGetName(self, board: Board) -> str:
        return board.name

    def nvmlDeviceGetCudaComputeCapability(self, board: Board) -> tuple[int, int]:
        return board.capability

    def nvmlDeviceGetComputeRunningProcesses(self, board: Board) -> list[Any]:
        listed = self._told(board, "processes").processes.items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in listed]

    def nvmlDeviceGetUtilizationRates(self, board: Board) -> Any:
        percent = self._told(board, "utilisation").percent
        return SimpleNamespace(gpu=percent.pop(0) if isinstance(percent, list) else percent)

    def nvmlDeviceGetMemoryInfo(self, board: Board) -> Any:
        return SimpleNamespace(used=self._told(board, "memory") and HELD)

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return self._told(self._names.get(pid))

    @staticmethod
    def _told(found: Any, what: str = "") -> Any:
        """What was found, unless NVML does not know it or refuses to tell."""
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        if what in getattr(found, "refused", ()):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return found
