"""``bench`` times callables in turn, takes the kernel between them off, and gives intervals."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import pytest
import torch

import hopper_gemm
from hopper_gemm.tune.measure import paired, timing
from hopper_gemm.tune.measure.arms import FEW
from hopper_gemm.tune.measure.device import DeviceInfo, NoHopperError
from hopper_gemm.tune.measure.protocol import Burst
from tests.tune.measure.fake_cuda import FakeCuda

PROTOCOL = Burst(pairs=4)
DEVICE = DeviceInfo(**{**dict.fromkeys(DeviceInfo.__dataclass_fields__, 0), "name": "NVIDIA H100", "l2_bytes": 100})


class Telemetry:
    """Reads nothing; the GPU is slowed down in the first ``slow`` tries."""

    slow = 0

    def __init__(self, uuid, energy) -> None:
        Telemetry.slow -= 1
        self.harm = "hardware slowdown" if Telemetry.slow >= 0 else None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def look(self):
        pass


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda(monkeypatch)
    flush = fake.launch("flush", 40e-6)
    filled = []
    memory = SimpleNamespace(fill_=lambda value: flush(None))
    monkeypatch.setattr(paired.torch, "zeros", lambda size, dtype, device: filled.append(size) or memory)
    monkeypatch.setattr(timing, "Telemetry", Telemetry)
    Telemetry.slow = 0
    fake.filled = filled
    return fake


def function(cuda, name, seconds):
    launch = cuda.launch(name, seconds)
    return lambda *given: launch(given[0] if given else None)


def test_times_are_those_of_the_callables_without_the_kernel_between_them(cuda):
    calls = {"mine": function(cuda, "mine", 5e-6), "torch": function(cuda, "torch", 10e-6)}
    result = paired.timed(calls, "torch", "isolated", ((),), PROTOCOL, DEVICE)
    assert cuda.filled == [200]
    assert result["mine"].us == pytest.approx(5)
    assert result["torch"].us == pytest.approx(10)
    speedup = result["mine"].speedup
    assert (speedup.median, speedup.low, speedup.high, speedup.pairs) == pytest.approx((2, 2, 2, 4))
    assert len(result.samples["mine"]) == 4
    with pytest.raises(FrozenInstanceError):
        result.context = "chained"
    graphs = [[name for name, _ in launches] for launches in cuda.captured if len({*launches}) > 1]
    assert graphs
    assert all(names[::2] == ["flush"] * (len(names) // 2) for names in graphs)


def test_every_round_times_every_callable_and_odd_rounds_in_reverse(cuda):
    order = []
    calls = {name: function(cuda, name, 1e-3) for name in ("a", "b", "c")}
    arms = {name: SimpleNamespace(name=name) for name in calls}
    timer = SimpleNamespace(time=lambda arm, *rest: order.append(arm.name) or SimpleNamespace(us=(1.0,)))
    alone = SimpleNamespace(name="alone")
    for backward in (False, True):
        us, apart = paired._round(timer, arms, alone, PROTOCOL, None, backward)
        assert (us, apart) == ({"a": 1.0, "b": 1.0, "c": 1.0}, 1.0)
    assert order == ["a", "alone", "b", "c", "c", "alone", "b", "a"]


def test_chained_calls_follow_each_other_and_take_their_arguments_in_turn(cuda):
    calls = {"mine": function(cuda, "mine", 1e-3), "torch": function(cuda, "torch", 1e-3)}
    result = paired.timed(calls, "torch", "chained", (("0",), ("1",)), PROTOCOL, DEVICE)
    assert cuda.filled == []
    mine = {tuple(name for name, _ in launches) for launches in cuda.captured if launches[0][0] == "mine0"}
    assert mine == {("mine0", "mine1") * times for times in (1, 4)}
    assert result.samples["mine"][0].spacer_us is None


def test_a_callable_that_keeps_the_host_longer_is_timed_in_graphs_as_long_as_the_other_ones(cuda):
    slow, fast = function(cuda, "slow", 1e-5), function(cuda, "fast", 1e-5)

    def slowly(*given):
        cuda.now += 0.0 if cuda.capturing is not None else 1e-4
        slow(*given)

    paired.timed({"slow": slowly, "fast": fast}, "fast", "chained", ((),), PROTOCOL, DEVICE)
    graphs = {name: [len(of) for of in cuda.captured if of[0][0] == name] for name in ("slow", "fast")}
    assert graphs["slow"] == graphs["fast"] == [FEW, 200, 800]


def test_a_long_callable_is_called_no_more_often_than_its_graphs_need(cuda):
    calls = {name: function(cuda, name, 0.5) for name in ("mine", "torch")}
    paired.timed(calls, "torch", "chained", ((),), PROTOCOL, DEVICE)
    assert {len(graph) for graph in cuda.captured} == {2}


def test_timings_of_a_gpu_that_was_slowed_down_are_taken_again_and_else_remarked(cuda):
    calls = {"mine": function(cuda, "mine", 1e-3), "torch": function(cuda, "torch", 1e-3)}
    Telemetry.slow = 2
    assert paired.timed(calls, "torch", "isolated", ((),), PROTOCOL, DEVICE).remark == ""
    Telemetry.slow = 3
    result = paired.timed(calls, "torch", "isolated", ((),), PROTOCOL, DEVICE)
    assert result.remark == "hardware slowdown in each of 3 tries"
    assert str(result).splitlines()[-1] == f"isolated, 4 pairs, NVIDIA H100; {result.remark}"


def test_the_table_has_a_line_for_each_callable_and_says_with_which_they_are_compared(cuda):
    calls = {"mine": function(cuda, "mine", 0.5e-3), "torch": function(cuda, "torch", 1e-3)}
    text = str(paired.timed(calls, "torch", "isolated", ((),), PROTOCOL, DEVICE))
    head, mine, other, last = text.splitlines()
    assert head.endswith("times as fast as torch, 95 % interval")
    assert mine.split() == ["mine", "500.00", "2.0000", "[2.0000,", "2.0000]"]
    assert other.split()[:3] == ["torch", "1000.00", "1.0000"]
    assert last == "isolated, 4 pairs, NVIDIA H100"


def test_a_callable_that_cannot_be_captured_is_named(cuda):
    def waits(*given):
        if cuda.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors ...")

    calls = {"mine": waits, "torch": function(cuda, "torch", 1e-3)}
    with pytest.raises(RuntimeError, match=r"^mine cannot be captured .* \(operation not permitted") as caught:
        paired.timed(calls, "torch", "isolated", ((),), PROTOCOL, DEVICE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "named", "error", "message"),
    [
        (3, {}, ValueError, "functions must be two or more callables by name but is 3"),
        ({"a": print}, {}, ValueError, "functions must be two or more callables"),
        ({"a": print, "b": print}, {"against": "c"}, ValueError, "against must be one of a, b but got 'c'"),
        ({"a": print, "b": print}, {"context": "graph"}, ValueError, "context must be one of isolated, chained"),
        ({"a": print, "b": print}, {"pairs": 0}, ValueError, "pairs must be 1 or more but got 0"),
        ({"a": print, "b": print}, {"arguments": ()}, ValueError, "arguments must have a tuple"),
    ],
)
def test_a_mistake_is_one_line(given, named, error, message):
    with pytest.raises(error, match=message) as caught:
        hopper_gemm.bench(given, **named)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(NoHopperError, match="no NVIDIA GPU here"):
        hopper_gemm.bench({"a": print, "b": print})
