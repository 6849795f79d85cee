"""A point is timed in its context, and what stands between launches is taken off without a trace."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.guard.binaries import record_binary
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.arms import touch
from hopper_gemm.tune.measure.bench import Bench
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst, Steady
from hopper_gemm.tune.measure.verdict import paired_verdict
from hopper_gemm.tune.measure.workload import make_workload
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.statistics import Look, Race, Ratio
from tests.gpu.rmsnorm import rmsnorm

pytestmark = pytest.mark.gpu

PROTOCOL = Burst(rest=0.010, pairs=15)
SHORT = [GemmProblem(1024, 1024, 1024)]
LONG = [GemmProblem(2048, 2048, 2048), GemmProblem(4096, 4096, 4096), GemmProblem(1234, 4096, 4096)]


RACED = [
    GemmConfig(tile_m=m, tile_n=n, cluster_n=cluster, stages=3)
    for m, n in ((64, 64), (128, 128), (256, 128))
    for cluster in (1, 2)
]
BESIDE_RMSNORM = [
    (SHORT[0], GemmConfig(tile_m=128, tile_n=64)),
    (SHORT[0], GemmConfig(tile_m=256, tile_n=128)),
    (LONG[1], GemmConfig(tile_m=256, tile_n=128, cluster_n=2)),
    (LONG[1], GemmConfig(tile_m=64, tile_n=64)),
    (LONG[2], GemmConfig(tile_m=128, tile_n=192)),
]


def kernels() -> list[KernelId]:
    """Kernels that are measured."""
    measured = [*BESIDE_RMSNORM, *((LONG[1], config) for config in (GemmConfig(), *RACED))]
    return [KernelId.of(config, problem) for problem, config in measured]


@pytest.fixture(scope="module")
def bench(kernel_store) -> Bench:
    return Bench(describe_current(), kernel_store)


@pytest.mark.alone  # beside others a pair may take less than its spacer, and is thrown away
@pytest.mark.parametrize("problem", [SHORT[0], LONG[1]], ids=str)
def test_a_spacer_is_timed_in_the_isolated_context_alone(bench, problem):
    isolated, chained = (
        bench.measure(Point(problem, "cublas", context=context), PROTOCOL).figures
        for context in ("isolated", "chained")
    )
    assert isolated["spacer_us"] > 0
    assert "spacer_us" not in chained


@pytest.mark.parametrize("layouts", ["kk", "mn"])
@pytest.mark.parametrize("spacer", [touch, rmsnorm])
def test_a_spacer_writes_a_and_leaves_it_as_it_was(bench, spacer, layouts):
    workload = make_workload(GemmProblem(1000, 264, 520, layouts=layouts), l2_bytes=0)
    operands = workload.sets[0]
    before = operands.a.clone()
    launch = spacer(bench.device.sms)
    for _ in range(3):
        launch(operands)
    assert torch.equal(operands.a.view(torch.int16), before.view(torch.int16))
    operands.a.fill_(2.0)
    launch(operands)
    assert (operands.a == 2).all(), "it rewrites what is there now, not what was there first"


@pytest.mark.alone  # it compares times
@pytest.mark.parametrize(("problem", "config"), BESIDE_RMSNORM, ids=str)
def test_an_rmsnorm_between_launches_agrees_on_which_side_is_faster(bench, kernel_store, problem, config):
    """Where either says that the sides differ by more than a hundredth, or a quarter of a microsecond."""
    beside = Bench(bench.device, kernel_store, spacer=rmsnorm)
    found = [one.measure(Point(problem, config), PROTOCOL) for one in (bench, beside)]
    assert [one.status for one in found] == ["ok", "ok"], [one.reason for one in found]
    signs = []
    for figures in (one.figures for one in found):
        least = max(0.01, 0.25 / figures["time_us"])
        signs.append(0 if abs(figures["speedup"] - 1) < least else 1 if figures["speedup"] > 1 else -1)
    assert signs[0] * signs[1] >= 0, [(one.figures["speedup"], one.figures["spacer_us"]) for one in found]


@pytest.mark.alone  # its figures agree only where both sides run undisturbed
@pytest.mark.parametrize("context", ["isolated", "chained"])
def test_steady_state_has_power_and_energy_in_either_context(bench, context):
    point = Point(GemmProblem(8192, 8192, 8192), GemmConfig(), regime="steady", context=context)
    outcome = bench.measure(point, Steady(settle=1.0, window=1.5, slice=0.5))
    assert outcome.status == "ok", outcome.reason
    assert outcome.figures["pairs"] == 3
    figures = outcome.figures
    assert 0 < figures["watts"] < 1.1 * bench.device.power_limit_watts
    joules = figures["watts"] * (figures["time_us"] + figures.get("spacer_us", 0)) * 1e-6
    assert figures["pj_per_flop"] == pytest.approx(1e12 * joules / point.problem.flop, rel=0.01)
    assert abs(figures["baseline_us"] / figures["time_us"] / figures["speedup"] - 1) < 0.01


@pytest.mark.alone  # it compares times
@pytest.mark.parametrize("context", ["isolated", "chained"])
def test_a_kernel_is_as_fast_as_its_own_recorded_binary(bench, kernel_store, tmp_path, context):
    """What the check of the best configs does: in pairs on this board, where the board's own share cancels."""
    problem, config = LONG[1], GemmConfig(tile_m=256, tile_n=128, cluster_n=2)
    binary = record_binary(tmp_path / "recorded", config, problem, kernel_store)
    point = Point(problem, config, context=context, against="recorded:own")
    outcome = bench.measure(point, PROTOCOL, finalists=[str(binary.description)])
    assert outcome.status == "ok", outcome.reason
    figures = outcome.figures
    ratio = Ratio(figures["speedup"], figures["speedup_low"], figures["speedup_high"], figures["pairs"])
    assert paired_verdict(ratio, noise=0.002).status == "held"
    assert abs(figures["speedup"] - 1) < 0.005


@pytest.mark.alone  # it compares times
def test_a_race_measures_every_config_and_drops_none_that_leads(bench):
    """A config is dropped at the first look or timed with all pairs; the fastest of all has all pairs."""
    protocol, leader, found = Burst(rest=0.010, pairs=6), None, []
    for config, following in zip(RACED, [*RACED[1:], None], strict=True):
        after = None if following is None else Point(LONG[1], following)
        race = Race((Look(1, 0.015),), leader, 0.002)
        outcome = bench.measure(Point(LONG[1], config), protocol, race=race, following=after)
        assert outcome.status == "ok", outcome.reason
        figures = outcome.figures
        found.append((figures["speedup"], figures["pairs"]))
        if figures["pairs"] == protocol.pairs and (leader is None or figures["speedup"] > leader.median):
            leader = Ratio(figures["speedup"], figures["speedup_low"], figures["speedup_high"], figures["pairs"])
    assert {pairs for _, pairs in found} <= {1, protocol.pairs}
    assert max(found)[1] == protocol.pairs
