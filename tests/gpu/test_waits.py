"""What the kernel counts of itself adds up: a stage for every k tile of every tile, and shares that are shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.counters.waits import FIGURES, METER, meter
from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.point import Point
from tests.verify.harness import ANSWER_SECONDS

pytestmark = pytest.mark.gpu

PROBLEM = GemmProblem(3840, 4096, 1024)
"""Tiles of 256, 320 and 128 rows divide it, in clusters too: no tile is computed for nothing."""

CONFIGS = [
    GemmConfig(),
    LadderConfig(peek=False),
    LadderConfig(peek="consumer", cluster_n=2),
    GemmConfig(tile_m=320, tile_n=128),
    LadderConfig(persistent=False),
    GemmConfig(tile_m=128, tile_n=128, schedule="pingpong"),
    LadderConfig(tile_m=128, tile_n=128, schedule="multistage", stages=4),
    LadderConfig(tile_m=128, tile_n=128, loads="cp_async"),
]
NO_PRODUCER = CONFIGS[-2:]
DEPTHS = [GemmConfig(stages=stages, stagger=0) for stages in (1, 4)]


def kernels() -> list[KernelId]:
    """The metered kernels."""
    return [KernelId.of(config, PROBLEM, METER) for config in (*CONFIGS, *DEPTHS)]


def reading(store: Path) -> Handler:
    """Answers a config with the readings of one launch, as unsigned numbers."""
    import numpy as np

    from hopper_gemm.compiler.loader import load
    from hopper_gemm.lab.counters.waits import read_meter
    from hopper_gemm.tune.measure.workload import make_workload

    workload = make_workload(PROBLEM, l2_bytes=0)

    def handle(config: GemmConfig) -> np.ndarray:
        kernel = load(config, PROBLEM, store, METER)
        return read_meter(kernel, PROBLEM, [workload.sets[0]])[0].view(np.uint32)

    return handle


@pytest.fixture(scope="module")
def child(kernel_store):
    child = Child(reading, kernel_store)
    yield child
    child.close()


@pytest.fixture(scope="module")
def metered(gpu, kernel_store):
    """The waits of every config."""
    configs = [*dict.fromkeys((*CONFIGS, *DEPTHS))]
    return dict(zip(configs, meter([Point(PROBLEM, config) for config in configs], gpu, kernel_store), strict=True))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_stage_of_every_tile_is_counted_once(child, config):
    """Of two consumers that take turns the first counts its own tiles; the other roles see all of them."""
    reply = child.ask(config, ANSWER_SECONDS)
    assert reply.kind == "answer", reply.error
    producer, consumer = reply.value[:, 0], reply.value[:, 1]
    tiles = (PROBLEM.m // config.tile_m) * (PROBLEM.n // config.tile_n)
    stages = tiles * PROBLEM.k // config.tile_k
    assert producer[:, 0].sum() == (0 if config in NO_PRODUCER else stages)
    if config.schedule == "pingpong":
        assert stages // 2 <= consumer[:, 0].sum() < stages
    else:
        assert consumer[:, 0].sum() == stages
    for row in (producer, consumer):
        assert (row[:, 1] <= row[:, 0]).all(), "more hits than stages"
        assert (row[:, 2] <= row[:, 3]).all(), "more cycles waited than there were"
    assert (consumer[:, 0] > 0).all(), "a CTA without work"


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_shares_lie_between_0_and_100(metered, config):
    counted = metered[config]
    assert counted.reason == ""
    probing = {f"{side}_hit_pct" for side in ("producer", "consumer") if config.peek in (True, side)}
    expected = probing | {"producer_wait_pct", "consumer_wait_pct"}
    if config in NO_PRODUCER:
        expected -= {"producer_hit_pct", "producer_wait_pct"}
    assert set(counted.figures) == expected <= set(FIGURES)
    assert all(0 <= value <= 100 for value in counted.figures.values())
    assert counted.figures["consumer_wait_pct"] > 0


def test_a_ring_of_one_stage_waits_more_than_a_deep_one(metered):
    """Nothing can be loaded ahead: both sides wait for each other all the time, and neither probes ahead."""
    shallow, deep = (metered[config].figures for config in DEPTHS)
    assert shallow["consumer_wait_pct"] > deep["consumer_wait_pct"] + 10
    assert "consumer_hit_pct" not in shallow
    assert "consumer_hit_pct" in deep
