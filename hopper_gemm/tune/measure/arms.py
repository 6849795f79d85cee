"""Arms of a comparison: launches in their context, captured as CUDA graphs over rotating buffers.

A launch is *chained* to its own predecessor, or *isolated* by a spacer: another kernel that writes operands of the
launch after it, as the norm or the activation of a model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import torch

from hopper_gemm.compiler.loader import LoadedKernel, load
from hopper_gemm.compiler.padded import PaddedKernel, behind_padding
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.scaled import RECIPES
from hopper_gemm.tune.measure.probes import SPACER_THREADS, load_spacer
from hopper_gemm.tune.measure.workload import MatrixSet

Launch = Callable[[MatrixSet], None]

Kernel = Callable[..., None]
"""Multiplies A (m, k) by the transpose of B (n, k) into C (m, n), with options of a :class:`MatrixSet`: a
:class:`hopper_gemm.compiler.loader.LoadedKernel`, or its stand-in in tests."""


def load_any(config: GemmConfig, problem: GemmProblem, store: Path | None = None) -> LoadedKernel | PaddedKernel:
    """Return a kernel, as of :func:`load`, for a problem of contiguous matrices, whether or not TMA reaches them."""
    return behind_padding(load(config, problem, store), problem, store)


def kernel_launch(kernel: Kernel) -> Launch:
    """Return a launch of our kernel on a set of matrices."""
    return lambda operands: kernel(operands.a, operands.b, operands.ours, **operands.options)


def cublas_launch(operands: MatrixSet) -> None:
    """Launch torch.mm, or torch.bmm of batches and of full masked groups, which are cuBLAS, on the same matrices and to
    the same output type."""
    a, b, out = operands.a, operands.b.mT, operands.theirs
    if b.dim() > a.dim():
        a, out = a.unflatten(0, (len(b), -1)), out.unflatten(0, (len(b), -1))
    elif out.dim() > a.dim():
        a, b = a.unflatten(1, (len(out), -1)).transpose(0, 1), b.unflatten(0, (len(out), -1))
    multiply = torch.bmm if a.dim() == 3 else torch.mm
    if out.dtype == a.dtype:
        multiply(a, b, out=out)
    else:
        multiply(a, b, out_dtype=out.dtype, out=out)


def scaled_launch(kind: str, fast: bool) -> Launch:
    """Return a launch of torch's scaled_mm of a recipe, with fast sums or not. It is the operator behind
    torch.nn.functional.scaled_mm, which takes no output: an allocated one would lie in the L2."""
    functional: Any = torch.nn.functional
    recipe = next(names for names, its in RECIPES.items() if its == kind)
    first, second = ([getattr(functional.ScalingType, name).value] for name in recipe)

    def launch(operands: MatrixSet) -> None:
        assert operands.scales is not None
        sides: tuple[Any, ...] = [operands.scales[0]], first, [], [operands.scales[1]], second, []
        sides += None, operands.theirs.dtype, [], fast
        torch.ops.aten._scaled_mm_v2.out(operands.a, operands.b.t(), *sides, out=operands.theirs)

    return launch


def touch(sms: int) -> Launch:
    """Return a spacer of 3 to 5 us on all SMs that reads the first elements of A and writes them back unchanged."""
    kernel, most = load_spacer(), sms * SPACER_THREADS
    pieces: dict[int, torch.Tensor] = {}

    def launch(operands: MatrixSet) -> None:
        kernel(pieces.setdefault(id(operands), operands.memory[:most]), sms)

    return launch


FEW = 16
"""Launches of a graph that a launch's seconds are taken from, or as few as take 2 ms; at least one for each set."""


@dataclass
class Graph:
    """A captured graph of a number of launches; ``started`` once it was replayed."""

    start: Callable[[], None]
    launches: int
    started: bool = False

    def replay(self) -> None:
        self.started = True
        self.start()


class Arm:
    """One side of a comparison: a launch, behind a spacer unless launches are chained, that rotates over sets of
    matrices. Graphs keep the host's launch cost, up to a quarter of a short kernel, out of the figures; a graph is
    captured at its first use, and kept. ``seconds`` are rough ones of a launch with its spacer; each timing updates
    them."""

    def __init__(self, launch: Launch, sets: Sequence[MatrixSet], seconds: float, spacer: Launch | None = None) -> None:
        self.seconds = seconds
        self._launch, self._sets, self._spacer = launch, sets, spacer
        self._graphs: dict[float, Graph] = {}

    def launches(self, span: float) -> int:
        """Return the number of launches in a graph of about this many seconds; at least two."""
        return max(2, ceil(span / self.seconds - 1e-6))

    def graph(self, span: float) -> Graph:
        """Return a graph of about this many seconds."""
        if span not in self._graphs:
            self._graphs[span] = self._capture(self.launches(span))
        return self._graphs[span]

    def stretched(self, *spans: float) -> float:
        """Return the factor by which graphs of these spans take longer than the spans, if launches are long; else 1."""
        return max(1.0, sum(self.launches(span) for span in spans) * self.seconds / sum(spans))

    def settle(self) -> None:
        """Take ``seconds`` from a graph, for a callable that keeps the host far longer than the GPU: by rough seconds
        it would get graphs of few launches, which warm the GPU up for less time than the other side's."""
        few = min(FEW, self.launches(2e-3)) if self.seconds else FEW
        graph = self._capture(max(len(self._sets), few))
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        self.seconds = start.elapsed_time(end) / 1000 / graph.launches

    def _capture(self, launches: int) -> Graph:
        """Capture a graph of this many launches. Unlike torch.cuda.graph, it keeps memory that the next check needs."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(_capture_stream()):
            graph.capture_begin()
            try:
                for i in range(launches):
                    operands = self._sets[i % len(self._sets)]
                    if self._spacer is not None:
                        self._spacer(operands)
                    self._launch(operands)
            finally:
                graph.capture_end()
        return Graph(graph.replay, launches)


def seconds_per_launch(launch: Launch, sets: Sequence[MatrixSet]) -> float:
    """Return rough seconds of a launch, launched one by one; for a short kernel this is the host's time."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    launch(sets[0])
    start.record()
    for operands in sets:
        launch(operands)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / len(sets)


@cache
def _capture_stream() -> torch.cuda.Stream:
    """Return the stream of all captures: a kernel keeps a workspace for each stream."""
    return torch.cuda.Stream()
