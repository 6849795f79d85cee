"""The ring hands a slot back only after the tensor cores can have read it, and a consumer that does not is found."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.counters.trace import Moment, moments_of, read_trace
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.hopper import FLOP_PER_CLOCK_PER_SM, WGMMA_M
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import GemmProblem
from tests.gpu.early import FAULTS

pytestmark = pytest.mark.gpu

PROBLEM = GemmProblem(1024, 1024, 4096)
HELD = "tests.gpu.held:HeldTrace"
SHAPES = ((256, 128, 4, 4), (64, 256, 8, 2), (128, 256, 4, 4), (64, 256, 4, 4), (128, 256, 8, 2), (64, 256, 16, 1))
CONFIGS = [
    GemmConfig(tile_m=tile_m, tile_n=tile_n, k_depth=k_depth, stages=stages, stagger=stagger)
    for tile_m, tile_n, k_depth, stages in SHAPES
    for stagger in (0, 1)
    if stagger < stages
]
QUEUED = 9
"""wgmma that an SM's tensor cores take at once, that under way included; a warp that issues one more waits. From time
stamps of an NVIDIA H200 (results/archive/h200/2026-11-22-timeline): with two and with four consumers the last group
ends 557 to 588 clocks after it is issued, nine times the 64 clocks of a wgmma of 128 columns."""

AHEAD = "released early"
"""The fault that hands a slot back ahead of the wait for its group."""

LAUNCHES = 3
"""The last is looked at: by then instructions and descriptors are where they are needed."""

TRIES = 5
"""Times that a faulty kernel is looked at: it is chance whether a load overtakes the reads that it must wait for."""

LIMIT = 20.0
"""Seconds for the launches of a kernel; a faulty one that hangs is killed then."""


class Seen(NamedTuple):
    """What a kernel did.

    Args:
        moments: of its last launch.
        wrong: what is wrong with its products, of those that are.
    """

    moments: list[Moment]
    wrong: list[str]


def wgmmas(config: GemmConfig) -> int:
    """wgmma of a stage, of all consumers."""
    return config.tile_m // WGMMA_M * config.k_depth * resolve(config).tile_n // resolve(config).share_n


def shows(fault: str, config: GemmConfig) -> bool:
    """Return True if a slot that a fault hands back one group early is early in time too: of its group at least three
    wgmma are queued still when ``stagger`` further groups have been issued. With a stagger of 1 a slot handed back
    ahead of the wait was not early on an NVIDIA H100, where 64x256 had the right product too."""
    return QUEUED - config.stagger * wgmmas(config) >= 3 and not (fault == AHEAD and config.stagger)


def kernel_of(fault: str, config: GemmConfig) -> Kernel:
    """The kernel of a config, with a fault of :data:`FAULTS`, or right."""
    return FAULTS[fault].like(resolve(config)) if fault else resolve(config)


FAULTY = [(fault, config) for fault in FAULTS for config in CONFIGS if shows(fault, config)]


def kernels() -> list[KernelId]:
    """The held kernels, right and faulty."""
    return [KernelId.of(kernel_of(*one), PROBLEM, HELD) for one in (*(("", config) for config in CONFIGS), *FAULTY)]


def tracing(store: Path) -> Handler:
    """Answers a fault and a config with what the kernel did."""
    from hopper_gemm.compiler.loader import load
    from hopper_gemm.tune.measure.correctness import check, poison
    from hopper_gemm.tune.measure.workload import make_workload

    workload = make_workload(PROBLEM, l2_bytes=0)
    operands = workload.sets[0]

    def handle(asked: tuple[str, GemmConfig]) -> Seen:
        kernel = load(kernel_of(*asked), PROBLEM, store, HELD)
        words, wrong = [], []
        for _ in range(LAUNCHES):
            poison(operands.ours)
            words.append(read_trace(kernel, operands))
            found = check(operands.ours, workload.reference, PROBLEM.k).reason
            wrong += [found] if found else []
        return Seen(moments_of(words[-1]), wrong)

    return handle


@pytest.fixture(scope="module")
def child(kernel_store):
    child = Child(tracing, kernel_store)
    yield child
    child.close()


def seen(child: Child, fault: str, config: GemmConfig) -> Seen:
    """What a kernel did, in a process of its own."""
    reply = child.ask((fault, config), LIMIT)
    assert reply.kind == "answer", reply.error
    return reply.value


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
    found = seen(child, "", config)
    assert found.wrong == []
    assert early(found.moments, resolve(config)) == []


@pytest.mark.alone  # beside others a fault went unseen, once in some hundred
@pytest.mark.parametrize(("fault", "config"), FAULTY, ids=str)
def test_a_consumer_that_hands_slots_back_too_soon_is_found(child, fault, config):
    """Time stamps or a wrong product show it, in one of :data:`TRIES`; on an NVIDIA H100 one of twelve showed by its
    product alone, and on an H200 one did not show at the first try."""
    tries = (seen(child, fault, config) for _ in range(TRIES))
    assert any(early(found.moments, resolve(config)) != [] or found.wrong != [] for found in tries)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_slot_handed_back_too_soon_is_overwritten_while_it_is_read(child, fault):
    """The first bytes of a load take several hundred clocks to arrive. Of a group whose wgmma are 256 columns wide up
    to 1152 clocks are left when its slot is handed back, of one of 128 columns half of that."""
    wrong = {str(config): seen(child, fault, config).wrong for other, config in FAULTY if other == fault}
    for config, reasons in wrong.items():
        print(f"{fault}, {config}: {reasons or 'right'}")
    assert any(wrong.values())
