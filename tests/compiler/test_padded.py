"""What is padded, where it goes, and in which order the two launches come."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from hopper_gemm.compiler import padded
from hopper_gemm.compiler.padded import PaddedKernel, PaddedOperands, RowLayout, behind_padding
from hopper_gemm.compiler.workspaces import PerStream
from hopper_gemm.model.problem import LAYOUTS, GemmProblem
from hopper_gemm.serve.operands import reaches


@pytest.fixture
def room(monkeypatch):
    """Workspaces in the memory of the host, one for each size that is asked for."""
    made: list[PaddedOperands] = []

    def get(device, elements):
        if not made or made[-1].room.numel() < elements:
            made.append(PaddedOperands(torch.full((elements,), -1, dtype=torch.int16)))
        return made[-1]

    monkeypatch.setattr(padded, "PADDED", SimpleNamespace(get=get))
    return made


def read(address: int, rows: int, size: int, pitch: int, memory: torch.Tensor) -> torch.Tensor:
    """Rows by their address, which lies in a tensor."""
    first = memory.storage_offset() + (address - memory.data_ptr()) // 2
    return memory.view(torch.int16).as_strided((rows, size), (pitch, 1), first)


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("sizes", [(13, 21, 5), (13, 24, 5), (16, 21, 8), (5, 3, 16), (130, 131, 133)], ids=str)
def test_the_kernel_multiplies_what_the_padding_has_left(monkeypatch, room, layouts, sizes):
    problem = GemmProblem(*sizes, layouts=layouts)
    m, n, k = sizes
    memory = torch.randint(-8, 9, (2, 40000)).to(torch.bfloat16)  # sums are exact in any order
    a, b = (
        one[: rows * k].view(*(rows, k) if axis == "k" else (k, rows))
        for one, rows, axis in zip(memory, (m, n), layouts, strict=True)
    )
    a, b = a if layouts[0] == "k" else a.t(), b if layouts[1] == "k" else b.t()

    def pad(workspace, at_a, *rest):
        """As the launcher: rows of A and then of B, each ``padded_pitch`` apart."""
        (pitch_a, rows_a, size_a), at_b, (pitch_b, rows_b, size_b) = rest[:3], rest[3], rest[4:]
        first = 0
        for at, rows, size, pitch, own in (
            (at_a, rows_a, size_a, pitch_a, memory[0]),
            (at_b, rows_b, size_b, pitch_b, memory[1]),
        ):
            apart = int(padded.padded_pitch(size))
            if rows:
                workspace.as_strided((rows, size), (apart, 1), first).copy_(read(at, rows, size, pitch, own))
            first += rows * apart

    def multiply(left, right, out):
        for one, axis in zip((left, right), layouts, strict=True):
            assert reaches(one if axis == "k" else one.t())
        out.copy_(left.float() @ right.float().t())

    monkeypatch.setattr(padded, "load_binary", lambda kernel, store: (None, pad))
    kernel = behind_padding(multiply, problem)
    out = torch.full((m, n), float("nan"))
    for _ in range(2):
        kernel(a, b, out)
        assert torch.equal(out, a.float() @ b.float().t())
    assert isinstance(kernel, PaddedKernel) == bool(set("ab") & set(problem.out_of_reach))
    assert [name for name in "ab" if getattr(kernel, name, None)] == [x for x in problem.out_of_reach if x != "c"]


def test_no_launch_of_another_thread_comes_between_the_two(room):
    log, rows, padding_now = [], RowLayout(8, 5, 5, True), threading.Event()

    def kernel(name, wait):
        def pad(*arguments):
            log.append((name, "pad"))
            padding_now.set()
            time.sleep(wait)

        return PaddedKernel(lambda a, b, out: log.append((name, "multiply")), pad, rows, None)

    a, b, out = torch.zeros(8, 5, dtype=torch.bfloat16), torch.zeros(8, 8), torch.zeros(8, 8)
    first, second = kernel("first", 0.2), kernel("second", 0.0)
    thread = threading.Thread(target=lambda: padding_now.wait(10) and second(a, b, out))
    thread.start()
    first(a, b, out)
    thread.join(10)
    assert log == [("first", "pad"), ("first", "multiply"), ("second", "pad"), ("second", "multiply")]


def test_a_workspace_serves_all_that_fits_and_keeps_few_views(room, monkeypatch):
    monkeypatch.setattr(padded, "VIEWS_MOST", 3)
    a, b, out = torch.zeros(64, 5, dtype=torch.bfloat16), torch.zeros(8, 8), torch.zeros(8, 8)
    seen = []
    for count in (64, 8, 16, 24, 32):
        rows = RowLayout(count, 5, 5, True)
        PaddedKernel(lambda a, b, out: seen.append(a.data_ptr()), lambda *_: None, rows, None)(a, b, out)
    assert len(room) == 1
    assert set(seen) == {room[0].room.data_ptr()}
    assert len(room[0].views) <= 3


def test_each_stream_has_its_own_and_each_captured_launch(monkeypatch):
    place = {"stream": 1, "captured": False}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: place["stream"], raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: place["captured"])
    monkeypatch.setattr("hopper_gemm.compiler.workspaces.outside_pools", lambda device, make: make())
    kept = PerStream(lambda device, sizes: [sizes[0]])
    first = kept.get(0, 10)
    assert kept.get(0, 5) is first
    assert kept.get(0, 11) is not first
    eager = kept.get(0, 11)
    place["stream"] = 2
    other = kept.get(0, 11)
    assert other is not eager
    place["captured"] = True
    captured = kept.get(0, 3)
    assert captured not in (eager, other)
    assert kept.get(0, 3) is not captured, "the graph's pool gives its memory to later launches"
    place.update(stream=1, captured=False)
    assert kept.get(0, 11) is eager
