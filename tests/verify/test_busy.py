"""SMs are held through flags in device memory, which the host reads and writes by copies on streams of its own; with a
fake driver."""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from tests.verify import busy

CURRENT = 7
"""The stream that the caller launches on."""


class Device:
    """Stands in for torch's and the driver's side of a GPU: what memory lies where, and what was done on which stream.

    Args:
        free: SMs that a holder finds.
    """

    def __init__(self, free: int = 132) -> None:
        self.free, self.memory, self.pinned = free, dict[int, torch.Tensor](), dict[int, torch.Tensor]()
        self.streams, self.held, self.kernel_stream = iter((CURRENT, 8, 9)), threading.Event(), 0
        self.log: list[tuple[str, int]] = []
        self.grid = 0

    def zeros(self, *sizes, device="cpu", **about) -> torch.Tensor:
        made = torch.zeros(*sizes, **about)
        if device != "cpu":
            self.memory[made.data_ptr()] = made
        return made

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self.pinned[tensor.data_ptr()] = tensor
        return tensor

    def launch(self, kernel, *sizes) -> tuple[int]:
        self.grid, (smem, self.kernel_stream, parameters, _) = sizes[0], sizes[6:]
        values = (ctypes.c_uint64 * 2).from_address(parameters)
        at = ctypes.cast(values[0], ctypes.POINTER(ctypes.c_uint64)).contents.value
        most = ctypes.cast(values[1], ctypes.POINTER(ctypes.c_uint64)).contents.value
        assert smem == 227 * 1024
        flags = self.memory.get(at, self.pinned.get(at))
        where = "device" if at in self.memory else "host"
        self.log.append((f"flags in {where} memory", self.kernel_stream))

        def run() -> None:
            flags[1 : 1 + min(self.grid, self.free)] = 1
            end = time.monotonic() + most / 1e9
            while not flags[0] and time.monotonic() < end:
                time.sleep(0.001)
            self.held.set()

        threading.Thread(target=run, daemon=True).start()
        return (0,)

    def copied(self, to: int, source: int, count: int, stream: int) -> tuple[int]:
        device, host = (source, to) if to in self.pinned else (to, source)
        assert device in self.memory
        assert host in self.pinned, "else the copy is no asynchronous one"
        ctypes.memmove(to, source, count)
        self.log.append(("read" if host == to else "end", stream))
        return (0,)


@pytest.fixture
def device(monkeypatch):
    """A fake device that :func:`held` takes for the GPU."""
    fake = Device()

    def stream():
        number = next(fake.streams)
        wait = (lambda: fake.held.wait(60)) if number == 8 else (lambda: None)
        return SimpleNamespace(cuda_stream=number, synchronize=wait) if number != CURRENT else stand

    cuda = SimpleNamespace(Stream=stream, synchronize=lambda: None, current_stream=lambda: stand)
    stand = SimpleNamespace(cuda_stream=CURRENT, synchronize=lambda: None)
    names = {name: getattr(torch, name) for name in ("ones", "tensor", "int32", "int64")}
    monkeypatch.setattr(busy, "torch", SimpleNamespace(zeros=fake.zeros, cuda=cuda, **names))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: fake.pin(tensor))
    monkeypatch.setattr(busy, "_hold", lambda: "kernel")
    driver = SimpleNamespace(
        CUstream=lambda handle: handle,
        cuLaunchKernel=fake.launch,
        cuMemcpyDtoHAsync=fake.copied,
        cuMemcpyHtoDAsync=fake.copied,
    )
    monkeypatch.setattr("cuda.bindings.driver", driver)
    return fake


def test_holders_poll_device_memory_and_the_host_copies_on_a_stream_of_its_own(device):
    with busy.held(3):
        assert not device.held.is_set()
        assert device.log[0] == ("flags in device memory", 8)
        assert set(device.log[1:]) == {("read", 9)}, "neither the holders' stream nor the caller's"
    assert device.grid == 3
    assert device.log[-1] == ("end", 9)
    assert device.held.is_set()


def test_holders_end_also_when_what_runs_beside_them_fails(device):
    with pytest.raises(ValueError, match="beside"), busy.held(1):
        raise ValueError("beside")
    assert device.log[-1] == ("end", 9)
    assert device.held.is_set()


def test_sms_that_are_not_free_are_a_clear_error_and_the_others_are_let_go(device, monkeypatch):
    monkeypatch.setattr(busy, "MOST_SECONDS", 1.0)
    device.free = 2
    with pytest.raises(TimeoutError, match="2 of 4 SMs could be held"), busy.held(4):
        raise AssertionError("not all are held")
    assert device.held.is_set()


def test_holders_end_by_themselves_after_the_most_seconds(device, monkeypatch):
    monkeypatch.setattr(busy, "MOST_SECONDS", 0.5)
    with busy.held(1):
        assert device.held.wait(60)
    assert device.log[-1] == ("end", 9)


def test_to_hold_none_touches_no_gpu(device):
    with busy.held(0):
        pass
    assert device.log == []
