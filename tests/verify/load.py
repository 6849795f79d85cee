"""Kernels under load: busy SMs, few SMs, several streams and priorities, graphs, threads, chains of dependent launches.

A circumstance launches a kernel in some difficult way and says what is wrong: an output whose bits are not those of a
quiet launch. One that never ends is noticed by whoever waits for the answer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from hopper_gemm.compiler.child import Handler
from hopper_gemm.compiler.loader import LoadedKernel, load
from hopper_gemm.tune.measure.correctness import check, same_bits
from tests.verify.busy import UnsupportedError, green, held
from tests.verify.drawing import Pair
from tests.verify.judge import checking, digest, ordinary, product
from tests.verify.kinds import CHAIN, chained
from tests.verify.rows import Finding

HELD = (1, 4, 16)
"""SMs that another kernel holds."""

GREEN = (16, 64)
"""SMs of a green context."""

LAUNCHES, CHAIN_STEPS = 10, 40
SLOWEST = 1.15
"""Factor by which a launch with the dynamic scheduler may take longer than its share of the SMs explains."""


@dataclass
class Case:
    """A loaded kernel with matrices on the current device, and what a quiet launch gives.

    Args:
        pair: the config and the problem.
        store: where the kernel is.
        kernel: of the config.
        a, b: operands.
        expected: the output of a quiet launch.
    """

    pair: Pair
    store: Path
    kernel: LoadedKernel
    a: torch.Tensor
    b: torch.Tensor
    expected: torch.Tensor

    @staticmethod
    def of(pair: Pair, store: Path) -> Case:
        """Load the kernel and launch it once, with nothing beside it."""
        kernel = load(pair.config, pair.problem, store)
        a, b = ordinary(pair.problem, pair.seed, "cuda")
        wide = pair.problem.dtype.endswith("fp32")
        out = torch.full((pair.problem.m, pair.problem.n), float("nan"), device="cuda")
        case = Case(pair, store, kernel, a, b, out if wide else out.to(a.dtype))
        kernel(a, b, case.expected)
        torch.cuda.synchronize()
        return case

    def outputs(self, count: int) -> list[torch.Tensor]:
        """Outputs to write, full of NaN."""
        return [torch.full_like(self.expected, float("nan")) for _ in range(count)]

    def launch(self, out: torch.Tensor) -> None:
        """Launch on the current stream."""
        self.kernel(self.a, self.b, out)

    def wrong(self, outputs: list[torch.Tensor], where: str) -> list[str]:
        """Wait for this thread's stream, and say which outputs do not hold the bits of a quiet launch."""
        torch.cuda.current_stream().synchronize()
        same = [same_bits(one, self.expected) for one in outputs]
        return [] if all(same) else [f"{where}: {same.count(False)} of {len(same)} outputs have other bits"]


def busy_sms(case: Case) -> Iterator[str]:
    """Another kernel holds some SMs, so that not all clusters of a persistent launch are resident."""
    for sms in HELD:
        outputs = case.outputs(3)
        with held(sms):
            for out in outputs:
                case.launch(out)
            yield from case.wrong(outputs, f"{sms} SMs held")


def few_sms(case: Case) -> Iterator[str]:
    """A green context has fewer SMs than the device says."""
    for sms in GREEN:
        outputs = case.outputs(3)
        with green(sms):
            for out in outputs:
                case.launch(out)
        yield from case.wrong(outputs, f"{sms} SMs in a green context")


def priorities(case: Case) -> Iterator[str]:
    """Launches on a stream of high priority take SMs from those on one of low priority, again and again."""
    yield from _on_streams(case, [torch.cuda.Stream(priority=priority) for priority in (0, -1)], "two priorities")


def streams(case: Case) -> Iterator[str]:
    """Launches on four streams at once."""
    yield from _on_streams(case, [torch.cuda.Stream() for _ in range(4)], "four streams")


def graphs(case: Case) -> Iterator[str]:
    """Two graphs: the second is replayed first, then both at once on two streams, then without the kernel's object."""
    kernel = load(case.pair.config, case.pair.problem, case.store)
    outputs = case.outputs(2)
    captured = []
    for out in outputs:
        captured.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(captured[-1]):
            kernel(case.a, case.b, out)
            kernel(case.a, case.b, out)
    for number in (1, 0, 1):
        captured[number].replay()
    yield from case.wrong(outputs, "the second graph first")
    del kernel
    gc.collect()
    side = [torch.cuda.Stream() for _ in captured]
    for _ in range(LAUNCHES):
        for out in outputs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(captured, side, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        yield from case.wrong(outputs, "two graphs on two streams")


def threads(case: Case) -> Iterator[str]:
    """Eight threads load the kernel and launch it, each on a stream of its own."""

    def work(number: int) -> list[str]:
        with torch.cuda.stream(torch.cuda.Stream()):
            kernel = load(case.pair.config, case.pair.problem, case.store)
            outputs = case.outputs(LAUNCHES)
            for out in outputs:
                kernel(case.a, case.b, out)
            return case.wrong(outputs, f"thread {number}")

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, range(8)):
            yield from found


def chain(case: Case) -> Iterator[str]:
    """Each product is an operand of the next, with programmatic dependent launch and without."""
    x, w = ordinary(CHAIN, case.pair.seed, "cuda")
    w = w / CHAIN.k**0.5
    ends = []
    for config in chained(case.pair.config):
        kernel = load(config, CHAIN, case.store)
        given, buffers = x, (torch.empty_like(x), torch.empty_like(x))
        for step in range(CHAIN_STEPS):
            kernel(given, w, buffers[step % 2])
            given = buffers[step % 2]
        ends.append(given.clone())
    if not torch.equal(*ends):
        yield f"a chain of {CHAIN_STEPS} dependent launches gave other bits than one launch after the other"


def late(case: Case) -> Iterator[str]:
    """With some SMs held, a launch takes hardly longer than its share of the SMs explains."""
    quiet, total = _milliseconds(case, 0), torch.cuda.get_device_properties(0).multi_processor_count
    for sms in HELD:
        taken, most = _milliseconds(case, sms), SLOWEST * total / (total - sms) * quiet
        if taken > most:
            yield f"with {sms} SMs held {taken:.3f} ms, {taken / quiet:.2f} times {quiet:.3f}; at most {most:.3f}"


def _milliseconds(case: Case, sms: int, launches: int = 7) -> float:
    """The median time of a launch while some SMs are held."""
    times = []
    out = case.outputs(1)[0]
    with held(sms):
        for _ in range(launches):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            case.launch(out)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return median(times)


def _on_streams(case: Case, given: list[torch.cuda.Stream], where: str) -> Iterator[str]:
    outputs = [case.outputs(LAUNCHES) for _ in given]
    torch.cuda.synchronize()
    for number in range(LAUNCHES):
        for stream, own in zip(given, outputs, strict=True):
            with torch.cuda.stream(stream):
                case.launch(own[number])
    torch.cuda.synchronize()
    yield from case.wrong([out for own in outputs for out in own], where)


CIRCUMSTANCES: dict[str, Callable[[Case], Iterator[str]]] = {
    "busy SMs": busy_sms,
    "few SMs": few_sms,
    "priorities": priorities,
    "streams": streams,
    "graphs": graphs,
    "threads": threads,
    "chain": chain,
    "late": late,
}
"""Handlers by the names of :data:`tests.verify.kinds.CIRCUMSTANCES`."""


def answering(store: Path) -> Handler:
    """Answers ``(circumstance, pair, runs)`` with a finding, without a circumstance as :func:`checking` does; and None,
    which only asks whether it has started."""
    plain, known = checking(store), dict[Pair, Case]()

    def handle(request: tuple[str, Pair, int] | None) -> Finding:
        if request is None:
            return Finding()
        circumstance, pair, runs = request
        if not circumstance:
            return plain((pair, runs))
        if pair not in known:
            known.clear()
            known[pair] = Case.of(pair, store)
        case = known[pair]
        quiet = check(case.expected, product(case.a, case.b), pair.problem.k)
        try:
            reasons = [quiet.reason] if quiet.reason else list(islice(CIRCUMSTANCES[circumstance](case), 3))
        except UnsupportedError as error:
            return Finding(skipped=str(error))
        return Finding("; ".join(reasons), "" if reasons else digest(case.expected))

    return handle
