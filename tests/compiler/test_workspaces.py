"""Workspaces of streams and of captures: where they lie, how many are kept, and how they grow; memory and captures are
played."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import defaultdict

import pytest
import torch

from hopper_gemm.compiler import padded, workspaces
from hopper_gemm.compiler.workspaces import LEAST_SUMS, LEAST_WORDS, PerStream

STREAM = 7


class Tensor:
    """A tensor of some elements, by the pool and the thread that allocated it."""

    def __init__(self, elements, pool) -> None:
        self.elements, self.pool = elements, pool

    def numel(self):
        return self.elements


class Device:
    """A device whose current stream may be captured, and whose allocations may go to a pool; each is noted."""

    def __init__(self, monkeypatch) -> None:
        self.number, self.made, self.stream, self.pool = 0, [], STREAM, ""
        self.live = weakref.WeakSet()
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: self.stream, raising=False)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.number > 0)
        monkeypatch.setattr(workspaces, "capture_of", lambda stream: self.number if stream == self.stream else 0)
        monkeypatch.setattr(workspaces, "outside_pools", self._outside)
        monkeypatch.setattr(torch, "device", lambda *where: "cpu")
        for name in ("empty", "zeros"):
            monkeypatch.setattr(torch, name, self._make)
        monkeypatch.setattr(workspaces, "CAPTURED", defaultdict(list))

    def _outside(self, device, make, idle=False):
        before, self.pool = self.pool, ""
        try:
            return make()
        finally:
            self.pool = before

    def _make(self, elements, dtype, device):
        self.made.append(elements)
        made = Tensor(elements, self.pool)
        self.live.add(made)
        return made

    def of_pool(self):
        """Live tensors of pools, which those who own the pools look for."""
        gc.collect()
        return [tensor for tensor in self.live if tensor.pool]


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


def spaces():
    return PerStream(workspaces._made, lambda device, sizes: workspaces._made(device, sizes, captured=True))


@pytest.mark.parametrize("number", [0, 1])
def test_no_workspace_that_outlives_its_launch_is_of_a_pool(device, number):
    """Of CUDA graph trees, which warm up with all allocations in their pool, and then capture."""
    kept, padding = spaces(), PerStream(padded._made)
    device.pool, device.number = "trees", number
    for sums in (100, 10000):
        kept.get(0, sums, 10)
        padding.get(0, sums)
    assert device.of_pool() == []


def test_the_scratch_memory_of_a_captured_launch_is_of_the_graphs_pool(device):
    device.pool, device.number = "graph", 1
    sums, words = spaces().get(0, 100, 10)
    assert (sums.pool, words.pool) == ("graph", "")


def test_launches_of_a_capture_share_words_and_captures_do_not(device):
    kept, made = spaces(), []
    for number in range(1, 61):
        device.number = number
        first = kept.get(0, 100 * number, 10)[1]
        assert kept.get(0, 50, 8)[1] is first
        made += [first, kept.get(0, 50, 2000)[1]]
        assert [words.numel() for words in made[-2:]] == [LEAST_WORDS, 2000]
    assert len(set(made)) == 120
    del made, first
    gc.collect()
    assert len(device.live) == 120, "a graph may be replayed as long as the process lives"
    device.number = 0
    assert kept.get(0, 100, 10) is kept.get(0, 50, 10)
    assert len(kept._by_stream) == 1


def test_a_workspace_grows_and_never_shrinks(device):
    kept = spaces()
    for sums, words in ((1, 1), (5000, 10), (40, 2000), (5000, 2000)):
        kept.get(0, sums, words)
    made = [(LEAST_SUMS, LEAST_WORDS), (5000, LEAST_WORDS), (5000, 2000)]
    assert device.made == [size for pair in made for size in pair]


def test_streams_and_devices_do_not_share(device):
    kept = spaces()
    first = kept.get(0, 100, 10)
    device.stream = STREAM + 1
    assert kept.get(0, 100, 10) is not first
    assert kept.get(1, 100, 10) is not first
    device.stream = STREAM
    assert kept.get(0, 100, 10) is first


def test_what_lies_outside_of_pools_is_made_by_another_thread_on_a_stream_that_is_not_captured(monkeypatch):
    """Pools take the allocations of one thread, or those of a captured stream."""
    from cuda.bindings import driver

    streams, entered, relaxed = [], [], []

    class Stream:
        def __init__(self, device) -> None:
            self.cuda_stream, self.waited = len(streams), threading.get_ident()
            streams.append(self)

        def synchronize(self):
            entered.append("waited")

    class Current:
        def __init__(self, stream) -> None:
            self.stream = stream

        def __enter__(self):
            entered.append(self.stream)

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", Current)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(workspaces, "capture_of", lambda stream: int(stream < 2))
    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", lambda mode: relaxed.append(threading.get_ident()))
    thread = workspaces.outside_pools(0, threading.get_ident)
    assert thread != threading.get_ident()
    assert entered == ["current"]
    assert relaxed == [thread]
    monkeypatch.setattr(workspaces, "IDLE", {})
    for _ in range(2):
        workspaces.outside_pools(0, threading.get_ident, idle=True)
    assert entered[1:] == [streams[2], "waited"] * 2, "one stream, whose memory is reused"
