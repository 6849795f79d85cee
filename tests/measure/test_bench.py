"""A config is checked on normal data and timed on what was asked for; here on a CPU, with the timing left out."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm.measure import bench as room
from hopper_gemm.measure.baselines.base import Candidate
from hopper_gemm.measure.bench import Bench, Outcome
from hopper_gemm.measure.correctness import check
from hopper_gemm.measure.device import DeviceInfo
from hopper_gemm.measure.regimes import Burst, rest_of
from hopper_gemm.measure.workload import Operands, Workload, filled, fp32_product
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import DATA, GemmProblem

PROBLEM = GemmProblem(64, 64, 64)


def right(a, b, out):
    out.copy_(a.float() @ b.float().t())


def always_zero(a, b, out):
    out.zero_()


@pytest.fixture
def timed(monkeypatch):
    """Matrices of every launch that was timed."""
    seen = []

    def make_workload(problem, l2_bytes, seed=0, data="normal"):
        generator = torch.Generator().manual_seed(seed)

        def full() -> torch.Tensor:
            return filled(64, 64, data, generator).to(torch.bfloat16)

        sets = tuple(Operands(full(), full(), full(), full()) for _ in range(2))
        return Workload(problem, sets, fp32_product(sets[0]), seed, data)

    def compare(bench, ours, theirs, protocol, process, checked):
        for launch, workload in (ours, theirs):
            launch(workload.sets[0])
            seen.append(workload.sets[0].a)
        return Outcome("ok")

    monkeypatch.setattr(room, "Clock", lambda sms: None)
    monkeypatch.setattr(room, "make_workload", make_workload)
    monkeypatch.setattr(room, "make_arm", lambda launch, workload, warm, timed, seconds: (launch, workload))
    monkeypatch.setattr(room, "seconds_per_launch", lambda launch, workload: 1.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Bench, "_compare", compare)
    return seen


def measured(monkeypatch, kernel, *asked: str) -> list[Outcome]:
    monkeypatch.setattr(room, "load", lambda config, problem, store: kernel)
    info = dict.fromkeys(DeviceInfo.__dataclass_fields__, 0)
    bench = Bench(DeviceInfo(**info))
    return [bench.cell(GemmConfig(), PROBLEM, Burst(), data=data) for data in asked]


def test_what_is_timed_holds_what_was_asked_also_when_it_changes_between_requests(timed, monkeypatch):
    assert [outcome.status for outcome in measured(monkeypatch, right, "zeros", "normal", "uniform")] == ["ok"] * 3
    zeros, normal, uniform = timed[0::2]
    assert not zeros.any()
    assert float(normal.float().abs().max()) > 2
    assert 0.9 < float(uniform.float().abs().max()) <= 1
    assert all(ours is theirs for ours, theirs in zip(timed[0::2], timed[1::2], strict=True))


@pytest.mark.parametrize("data", DATA)
def test_a_kernel_that_is_right_only_for_zeros_is_found_out_on_any_data(timed, monkeypatch, data):
    (outcome,) = measured(monkeypatch, always_zero, data)
    assert outcome.status == "wrong_result"
    assert not timed


def test_another_look_at_a_config_neither_checks_nor_captures_again(timed, monkeypatch):
    asked = []

    def kernel(a, b, out):
        asked.append(out)
        right(a, b, out)

    monkeypatch.setattr(room, "load", lambda config, problem, store: kernel)
    bench = Bench(DeviceInfo(**dict.fromkeys(DeviceInfo.__dataclass_fields__, 0)))
    looks = [(GemmConfig(), 1), (GemmConfig(), 2), (GemmConfig(stagger=0), 1), (GemmConfig(), 2)]
    counts = []
    for config, pairs in looks:
        asked.clear()
        assert bench.cell(config, PROBLEM, Burst(pairs=pairs)).status == "ok"
        counts.append(len(asked))
    assert counts == [3, 1, 3, 3], "two checks and one timed launch; the config before the last is forgotten"


class Doubling:
    """A baseline of two candidates, of which the first is wrong."""

    name = "doubling"
    seconds = 1.0

    def __init__(self) -> None:
        self.asked = 0

    def missing(self):
        return None

    def candidates(self, workload):
        self.asked += 1

        def wrong(operands):
            operands.theirs.zero_()

        def twice(operands):
            right(operands.a, operands.b, operands.theirs)

        return [Candidate(wrong, "wrong"), Candidate(twice, "right", "recipe")]


def duel(monkeypatch, kernel, baseline, *problems):
    monkeypatch.setattr(room, "load", lambda config, problem, store: kernel)
    monkeypatch.setattr(room, "GpuStopwatch", CpuWatch)
    bench = Bench(DeviceInfo(**dict.fromkeys(DeviceInfo.__dataclass_fields__, 0)))
    return [bench.versus(GemmConfig(), problem, Burst(), baseline) for problem in problems]


class CpuWatch:
    """All candidates are equally fast; products are checked as they are on the GPU."""

    def __init__(self, workload, protocol, clock, uuid) -> None:
        self._workload = workload

    def glance(self, candidate):
        return 1.0

    short = again = glance

    def rel_err(self, candidate):
        first = self._workload.sets[0]
        candidate.launch(first)
        return check(candidate.product(first), self._workload.reference, 64).rel_err


def test_a_baseline_is_timed_with_the_candidate_that_was_chosen_and_chosen_once_for_a_problem(timed, monkeypatch):
    baseline = Doubling()
    outcomes = duel(monkeypatch, right, baseline, PROBLEM, PROBLEM, GemmProblem(64, 64, 64, "fp16"))
    assert [outcome.status for outcome, _ in outcomes] == ["ok"] * 3
    assert {(chosen.label, chosen.recipe, chosen.of) for _, chosen in outcomes} == {("right", "recipe", 2)}
    assert baseline.asked == 2


def test_a_baseline_is_not_asked_where_our_own_product_is_wrong(timed, monkeypatch):
    baseline = Doubling()
    ((outcome, chosen),) = duel(monkeypatch, always_zero, baseline, PROBLEM)
    assert (outcome.status, chosen, baseline.asked) == ("wrong_result", None, 0)


@pytest.mark.parametrize(
    ("idle_since", "left"), [(None, 0.01), (100.0, 0.01), (99.996, 0.006), (99.99, 0.0), (50.0, 0.0)]
)
def test_what_the_host_prepares_meanwhile_is_part_of_the_rest(idle_since, left):
    assert rest_of(0.01, idle_since, now=100.0) == pytest.approx(left, abs=1e-9)


def test_where_tma_cannot_reach_the_matrices_what_is_measured_is_matmul(monkeypatch):
    loaded, called = [], []
    monkeypatch.setattr(room, "Clock", lambda sms: None)
    monkeypatch.setattr(room, "load", lambda config, problem, store: loaded.append(str(problem)) or right)
    monkeypatch.setattr(hopper_gemm, "matmul", lambda a, b, **how: called.append((a.shape, b.shape, how)))
    bench = Bench(DeviceInfo(**dict.fromkeys(DeviceInfo.__dataclass_fields__, 0)))
    assert bench._kernel(GemmConfig(), PROBLEM) is right
    config = GemmConfig(tile_m=64)
    kernel = bench._kernel(config, GemmProblem(3, 5, 7))
    a, b, out = torch.zeros(3, 7), torch.zeros(5, 7), torch.zeros(3, 5)
    kernel(a, b, out)
    assert loaded == ["64x64x64", "3x8x8"]
    assert called == [((3, 7), (7, 5), {"out": out, "config": config})]
