"""Workspaces of streams and of captures: how many are kept, and how they grow; memory and captures are played."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hopper_gemm.compiler import workspaces
from hopper_gemm.compiler.workspaces import LEAST_SUMS, LEAST_WORDS, PerStream

STREAM = 7


class Captures:
    """A device whose current stream may be captured; every allocation is noted by its bytes."""

    def __init__(self, monkeypatch) -> None:
        self.number, self.made, self.stream = 0, [], STREAM
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: self.stream, raising=False)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.number > 0)
        monkeypatch.setattr(workspaces, "capture_of", lambda stream: self.number if stream == self.stream else 0)
        monkeypatch.setattr(torch, "device", lambda *where: "cpu")
        for name in ("empty", "zeros"):
            monkeypatch.setattr(torch, name, self._maker())

    def _maker(self):
        def make(elements, dtype, device):
            self.made.append(elements)
            return SimpleNamespace(numel=lambda: elements)

        return make


@pytest.fixture
def captures(monkeypatch):
    return Captures(monkeypatch)


def test_of_sixty_captures_one_workspace_is_kept_beside_that_of_the_stream(captures):
    """Each capture has its own, from its own pool; that of an ended capture goes back before the next is made."""
    spaces = PerStream(workspaces._made, workspaces._fits)
    spaces.get(0, 100, 10)
    for number in range(1, 61):
        captures.number = number
        first = spaces.get(0, 100 * number, 10)
        assert spaces.get(0, 50, 10) is first, "launches of a capture share it"
        assert len(spaces._known) == 2
    captures.number = 0
    spaces.get(0, 100, 10)
    assert len(captures.made) == 2 * 61


def test_a_workspace_grows_and_never_shrinks(captures):
    spaces = PerStream(workspaces._made, workspaces._fits)
    for sums, words in ((1, 1), (5000, 10), (40, 2000), (5000, 2000)):
        spaces.get(0, sums, words)
    made = [(LEAST_SUMS, LEAST_WORDS), (5000, LEAST_WORDS), (5000, 2000)]
    assert captures.made == [size for pair in made for size in pair]


def test_streams_and_devices_do_not_share(captures):
    spaces = PerStream(workspaces._made, workspaces._fits)
    first = spaces.get(0, 100, 10)
    captures.stream = STREAM + 1
    assert spaces.get(0, 100, 10) is not first
    assert spaces.get(1, 100, 10) is not first
    captures.stream = STREAM
    assert spaces.get(0, 100, 10) is first
