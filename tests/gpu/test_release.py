"""The ring hands a slot back only after the tensor cores can have read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.counters.trace import Moment, moments_of, read_trace
from hopper_gemm.lab.verify.harness import ANSWER_SECONDS
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.hopper import FLOP_PER_CLOCK_PER_SM
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem

pytestmark = pytest.mark.gpu

PROBLEM = GemmProblem(1024, 1024, 4096)
HELD = "tests.gpu.held:HeldTrace"
CONFIGS = [
    GemmConfig(tile_m=tile_m, tile_n=tile_n, k_depth=k_depth, stages=stages, stagger=stagger)
    for tile_m, tile_n, k_depth, stages in ((256, 128, 4, 4), (64, 256, 8, 2), (128, 256, 4, 4))
    for stagger in (0, 1)
]
LAUNCHES = 3
"""The last is looked at: by then instructions and descriptors are where they are needed."""


def kernels() -> list[KernelId]:
    """The held kernels."""
    return [KernelId.of(config, PROBLEM, HELD) for config in CONFIGS]


def tracing(store: Path) -> Handler:
    """Answers a config with the moments of a launch, and with what is wrong with its product."""
    from hopper_gemm.compiler.loader import load
    from hopper_gemm.tune.measure.correctness import check
    from hopper_gemm.tune.measure.workload import make_workload

    workload = make_workload(PROBLEM, l2_bytes=0)
    operands = workload.sets[0]

    def handle(config: GemmConfig) -> tuple[list[Moment], str | None]:
        kernel = load(config, PROBLEM, store, HELD)
        words = [read_trace(kernel, operands) for _ in range(LAUNCHES)]
        return moments_of(words[-1]), check(operands.ours, workload.reference, PROBLEM.k).reason

    return handle


@pytest.fixture(scope="module")
def child(kernel_store):
    child = Child(tracing, kernel_store)
    yield child
    child.close()


def early(moments: list[Moment], config: GemmConfig) -> list[str]:
    """Slots of the first tile that the producer had before the tensor cores, at their peak and without a pause since
    the tile's first wgmma, can have read them."""
    had = {(one.role, one.stage): one.clocks for one in moments if one.moment == "had"}
    begun = min(clock for (role, stage), clock in had.items() if role != "producer" and stage == 0)
    stage_clocks = 2 * config.tile_m * config.tile_n * config.tile_k / FLOP_PER_CLOCK_PER_SM
    return [
        f"stage {stage} {had['producer', stage] - begun} clocks after the first was had, of {read * stage_clocks:.0f}"
        for stage in range(config.stages, PROBLEM.k // config.tile_k)
        if had["producer", stage] - begun < (read := stage - config.stages + 1) * stage_clocks
    ]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_no_slot_is_handed_back_before_the_tensor_cores_can_have_read_it(child, config):
    """The consumers begin with a full ring, so that from then on the tensor cores alone hold up the producer: a slot
    handed back one wgmma group early comes earlier than any wgmma could have read it, whether or not a load then
    happens to overtake the reads."""
    reply = child.ask(config, ANSWER_SECONDS)
    assert reply.kind == "answer", reply.error
    moments, wrong = reply.value
    assert wrong is None
    assert early(moments, resolve(config)) == []
