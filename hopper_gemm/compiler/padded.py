"""A kernel with the launch before it that pads the operands TMA cannot reach."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import LoadedKernel, load_binary
from hopper_gemm.compiler.store import PaddingId
from hopper_gemm.compiler.workspaces import PerStream
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem, padded_pitch

if TYPE_CHECKING:
    import torch

VIEWS_MOST = 1024
"""Most pairs of padded operands that a workspace keeps at hand."""


@dataclass(frozen=True)
class RowLayout:
    """An operand in memory: contiguous rows, elements of a row and from row to row, and whether rows run along k."""

    rows: int
    size: int
    pitch: int
    by_depth: bool

    @staticmethod
    def of(sides: Sequence[int], strides: Sequence[int], by_depth: bool) -> RowLayout:
        """Layout of a matrix (m or n, k), by its sizes and strides, read along k or along the other axis."""
        down, along = (0, 1) if by_depth else (1, 0)
        return RowLayout(sides[down], sides[along], strides[down], by_depth)

    @property
    def elements(self) -> int:
        """Elements of the padded operand, the ends of its rows included."""
        return self.rows * int(padded_pitch(self.size))

    def view(self, room: torch.Tensor) -> torch.Tensor:
        """The padded operand (m or n, k) that begins with a workspace's first element."""
        pitch = int(padded_pitch(self.size))
        if self.by_depth:
            return room.as_strided((self.rows, self.size), (pitch, 1))
        return room.as_strided((self.size, self.rows), (1, pitch))


@dataclass
class PaddedOperands:
    """Workspace of the padded operands of a stream, of int16; views of it, by what is padded and the type; and a lock,
    held from the first launch to the second: another thread may launch on this stream."""

    room: torch.Tensor
    views: dict[tuple[str, torch.dtype], tuple[torch.Tensor | None, torch.Tensor | None]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _made(device: int, sizes: tuple[int, ...]) -> PaddedOperands:
    import torch

    return PaddedOperands(torch.empty(sizes[0], dtype=torch.int16, device=torch.device("cuda", device)))


PADDED = PerStream(_made)
"""The workspaces of this process, of at least this number of elements. Launches of one stream run in order, so that the
next call overwrites what the last has multiplied."""


@dataclass(frozen=True)
class PaddedKernel:
    """A launchable kernel behind the launch that pads its operands, by the padding's launcher. ``a`` and ``b`` are how
    the operands to pad lie, None for an operand that is read in place."""

    kernel: LoadedKernel
    pad: Any
    a: RowLayout | None
    b: RowLayout | None

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        """Launch both on torch's current stream; operands lie as said, at any address."""
        key, elements, of_a, of_b = self._sizes
        workspace = PADDED.get(out.get_device(), elements)
        with workspace.lock:
            left, right = workspace.views.get((key, a.dtype)) or self._views(workspace, a.dtype)
            self.pad(workspace.room, a.data_ptr(), *of_a, b.data_ptr(), *of_b)
            self.kernel(a if left is None else left, b if right is None else right, out)

    @property
    def config(self) -> Kernel:
        """The resolved kernel."""
        return self.kernel.config

    @property
    def report(self) -> CubinReport:
        """The kernel's resources, without the padding's."""
        return self.kernel.report

    @cached_property
    def _sizes(self) -> tuple[str, int, tuple[int, int, int], tuple[int, int, int]]:
        """Return the key of the views (a text, since a text keeps its hash), the elements of the workspace, and pitch,
        rows and element size of A and of B as the launcher takes them."""
        pads = self.a, self.b
        of_a, of_b = [(0, 0, 1) if rows is None else (rows.pitch, rows.rows, rows.size) for rows in pads]
        return f"{self.a} {self.b}", sum(rows.elements for rows in pads if rows), of_a, of_b

    def _views(self, workspace: PaddedOperands, dtype: torch.dtype) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The padded operands in a workspace, A before B."""
        if len(workspace.views) >= VIEWS_MOST:
            workspace.views.clear()
        room = workspace.room.view(dtype)
        a = None if self.a is None else self.a.view(room)
        b = None if self.b is None else self.b.view(room[self.a.elements if self.a else 0 :])
        workspace.views[self._sizes[0], dtype] = a, b
        return a, b


def load_padded(
    kernel: LoadedKernel, a: RowLayout | None, b: RowLayout | None, store: Path | None = None
) -> PaddedKernel:
    """A kernel behind the padding of its operands; arguments as of :class:`PaddedKernel`."""
    return PaddedKernel(kernel, load_binary(PaddingId(), store)[1], a, b)


def behind_padding(
    kernel: LoadedKernel, problem: GemmProblem, store: Path | None = None
) -> LoadedKernel | PaddedKernel:
    """The kernel of a problem of contiguous matrices, behind the padding of those operands that TMA cannot reach."""
    pads = dict[str, RowLayout | None]()
    for name, side, axis in zip("ab", (problem.m, problem.n), problem.layouts, strict=True):
        along = axis == "k"
        strides = (problem.k, 1) if along else (1, side)
        pads[name] = RowLayout.of((side, problem.k), strides, along) if name in problem.out_of_reach else None
    return load_padded(kernel, **pads, store=store) if any(pads.values()) else kernel
