"""``hopper_gemm.bench``: the clock of this project for any callables, timed in turn against one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from hopper_gemm.model.problem import shown
from hopper_gemm.model.tuned import CONTEXTS
from hopper_gemm.serve.fallback import while_compiling
from hopper_gemm.tune.measure.arms import Arm, seconds_per_launch
from hopper_gemm.tune.measure.device import DeviceInfo, Telemetry, describe_current, find_hopper
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import TRIES, Timer
from hopper_gemm.tune.point import Sample
from hopper_gemm.tune.statistics import Ratio, speedup


@dataclass(frozen=True)
class TimedCall:
    """The time of a callable.

    Args:
        name: of the callable.
        us: median microseconds of a call on the GPU.
        speedup: how many times as fast as the callable that it is compared with, with a 95 % interval.
    """

    name: str
    us: float
    speedup: Ratio


@dataclass(frozen=True)
class Benched:
    """The result of :func:`bench`; ``str()`` of it is a table.

    Args:
        calls: the callables, in their order.
        against: name of the callable with which the others are compared.
        context: ``"isolated"`` or ``"chained"``.
        gpu: name of the GPU.
        samples: of each callable by name, its pairs of times with the callable that it is compared with.
        remark: what disturbed the timings; empty if nothing did.
    """

    calls: tuple[TimedCall, ...]
    against: str
    context: str
    gpu: str
    samples: Mapping[str, tuple[Sample, ...]]
    remark: str = ""

    def __getitem__(self, name: str) -> TimedCall:
        """Return the time of a callable by its name."""
        return {call.name: call for call in self.calls}[name]

    def __str__(self) -> str:
        wide = max(len("callable"), *(len(call.name) for call in self.calls))
        lines = [f"{'callable':{wide}}  {'us':>10}  times as fast as {self.against}, 95 % interval"]
        for name, us, ratio in ((call.name, call.us, call.speedup) for call in self.calls):
            lines.append(f"{name:{wide}}  {us:10.2f}  {ratio.median:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]")
        pairs = min(call.speedup.pairs for call in self.calls)
        lines.append(f"{self.context}, {pairs} pairs, {self.gpu}{f'; {self.remark}' if self.remark else ''}")
        return "\n".join(lines)


def bench(
    functions: Mapping[str, Callable[..., object]],
    *,
    against: str | None = None,
    context: str = "isolated",
    arguments: Sequence[tuple[Any, ...]] = ((),),
    pairs: int = 15,
) -> Benched:
    """Time callables on the current GPU in turn, as the studies of this project are timed.

    Each callable's calls are captured into CUDA graphs, so that the host's time is not in the figures. In each round
    every callable is timed once, odd rounds in reverse: 20 ms of rest, 2 ms of warm-up, 8 ms timed. A speedup is the
    median of the ratios of a round's times, with the interval of a bootstrap. A callable that is given twice
    shows the noise floor.

    Args:
        functions: two or more by name, such as ``{"mine": f, "torch": g}``; each starts work on the current stream and
            waits for nothing.
        against: name of the callable that the others are compared with; by default the last.
        context: ``"isolated"``: before each call another kernel writes twice the L2, so that operands are cold; its own
            time, taken in the same round, is subtracted. ``"chained"``: calls follow each other, and operands are cold
            only if ``arguments`` exceed the L2.
        arguments: positional arguments, a tuple for each call in turn; by default none.
        pairs: rounds.

    Raises:
        ValueError: fewer than two callables, an unknown name or context, or no arguments.
        RuntimeError: no Hopper GPU, a CUDA graph is being captured, a callable that cannot be captured, or one too
            short to be told from the kernel before it.

    Example:
        >>> print(hopper_gemm.bench({                                               # doctest: +SKIP
        ...     "ours": lambda: hopper_gemm.matmul(a, b), "torch": lambda: torch.mm(a, b)
        ... }))
    """
    if not isinstance(functions, Mapping) or len(functions) < 2 or not all(map(callable, functions.values())):
        raise ValueError(f"functions must be two or more callables by name but is {shown(functions)}; give a dict")
    against = [*functions][-1] if against is None else against
    for name, value, words in (("against", against, tuple(functions)), ("context", context, CONTEXTS)):
        if value not in words:
            raise ValueError(f"{name} must be one of {', '.join(map(str, words))} but got {shown(value)}")
    if type(pairs) is not int or pairs < 1:
        raise ValueError(f"pairs must be 1 or more but got {shown(pairs)}")
    if not arguments:
        raise ValueError("arguments must have a tuple for some call but are empty; leave them out for none")
    find_hopper(torch.cuda.current_device() if torch.cuda.is_available() else 0)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("bench must not run while a CUDA graph is captured; call it before")
    with while_compiling("wait"):  # else torch may be timed for a kernel of ours
        return timed(functions, against, context, arguments, Burst(pairs=pairs), describe_current())


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Context in which a call that waits for the GPU raises, as in a capture; but torch's random numbers stay unusable
    after a capture that failed."""
    if not torch.cuda.is_available():
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def timed(
    functions: Mapping[str, Callable[..., object]],
    against: str,
    context: str,
    arguments: Sequence[tuple[Any, ...]],
    protocol: Burst,
    device: DeviceInfo,
) -> Benched:
    """Return what :func:`bench` does, of checked arguments."""
    timer, sets = Timer(device), list(arguments)
    spacer = alone = None
    if context == "isolated":
        memory = torch.zeros(2 * device.l2_bytes, dtype=torch.uint8, device="cuda")
        spacer = lambda _: memory.fill_(1)  # noqa: E731
        alone = Arm(spacer, sets, seconds_per_launch(spacer, sets))  # type: ignore[arg-type]
        alone.settle()
    arms = {}
    for name, function in functions.items():
        launch = partial(lambda call, operands: call(*operands), function)
        try:
            for _ in range(3):  # in which a callable may compile, tune itself or allocate
                launch(sets[0])
            with _no_waiting():
                launch(sets[0])
            arms[name] = Arm(launch, sets, seconds_per_launch(launch, sets), spacer)  # type: ignore[arg-type]
            arms[name].settle()
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise RuntimeError(
                f"{name} cannot be captured into a CUDA graph ({why}); let it wait for nothing"
            ) from error
    timer.idle()
    for _ in range(TRIES):
        with timer.telemetry(protocol) as telemetry:
            rounds = [_round(timer, arms, alone, protocol, telemetry, bool(i % 2)) for i in range(protocol.pairs)]
        if telemetry.harm is None:
            break
    samples = {name: tuple(Sample(0, us[name], us[against], apart) for us, apart in rounds) for name in functions}
    bare = {name: [sample.bare_us[0] for sample in pairs] for name, pairs in samples.items()}
    if short := [name for name, times in bare.items() if min(times) <= 0]:
        raise RuntimeError(f"{short[0]} is too short beside the kernel before it; repeat its work, or time it chained")
    calls = tuple(TimedCall(name, median(bare[name]), speedup(samples[name])) for name in functions)
    remark = "" if telemetry.harm is None else f"{telemetry.harm} in each of {TRIES} tries"
    return Benched(calls, against, context, device.name, samples, remark)


def _round(
    timer: Timer, arms: Mapping[str, Arm], alone: Arm | None, protocol: Burst, telemetry: Telemetry, backward: bool
) -> tuple[dict[str, float], float | None]:
    """Return microseconds of each callable, its spacer included, and of the spacer alone, timed behind the first."""
    us: dict[str, float] = {}
    apart = None
    for name in [*arms][:: -1 if backward else 1]:
        us[name] = timer.time(arms[name], protocol, telemetry).us[0]
        if alone is not None and apart is None:
            apart = timer.time(alone, protocol.of_spacer, telemetry).us[0]
    return us, apart
