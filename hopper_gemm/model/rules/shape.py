"""Limits of an SM: the tile and its division among consumers, registers, the ring, the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import REGISTER_SPLITS, Kernel, stages_max
from hopper_gemm.model.rules.rule import Rule, one_of

TILE_M = (64, 128, 192, 256, 320, 384)
K_DEPTH_MAX = 16
STAGGER_MAX = 7
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
CTAS_PER_SM = (1, 2, 3, 4)
WGMMA_N_MOST = {3: 200, 4: 136}
"""Most columns of a wgmma by number of consumers. With more the assembler refuses the instruction: for 152 it asks for
102 registers where 640 threads enter with 96 (C7602)."""


def _tile_n(kernel: Kernel) -> Iterator[str]:
    step, most = hopper.WGMMA_N_STEP, hopper.WGMMA_N_MAX
    if kernel.tile_n % step or kernel.tile_n > most:
        yield f"tile_n must be a multiple of {step} up to {most} but got {kernel.tile_n}"


def _k_depth(kernel: Kernel) -> Iterator[str]:
    if kernel.k_depth > K_DEPTH_MAX:
        yield f"k_depth must be 1 to {K_DEPTH_MAX} but got {kernel.k_depth}"


def _split(kernel: Kernel) -> Iterator[str]:
    if kernel.schedule == "pingpong":
        if kernel.split != "m":
            yield 'pingpong divides no tile; leave split at "auto"'
        return
    side, other, step, units = ("tile_m", "n", hopper.WGMMA_M, "rows")
    if kernel.split == "n":
        side, other, step, units = ("tile_n", "m", hopper.WGMMA_N_STEP, "columns")
    tile = getattr(kernel, side)
    if tile % (step * kernel.consumers):
        yield (
            f"{kernel.consumers} consumers cannot share {side} = {tile} in blocks of {step} {units}; "
            f"split along {other} or change consumers"
        )


def _schedule(kernel: Kernel) -> Iterator[str]:
    if kernel.schedule == "pingpong" and kernel.consumers != 2:
        yield f'pingpong takes turns between 2 consumers but got {kernel.consumers}; leave consumers at "auto"'


def _registers(kernel: Kernel) -> Iterator[str]:
    if not kernel.registers_suffice:
        room = kernel.registers.consumer - kernel.spare_registers
        yield (
            f"{kernel.accumulators} accumulator registers per thread exceed the {room} that {kernel.consumers} "
            "consumers leave; take a smaller tile or more consumers"
        )

    crowded = kernel.loads == "mixed" or (kernel.stream_k and kernel.split == "m")
    tight = kernel.consumers == 2 and kernel.registers.producer == 24
    if crowded and tight and kernel.share_m == 3 * hopper.WGMMA_M:
        what = "stream_k" if kernel.stream_k else f'loads "{kernel.loads}"'
        yield f"{what} beside {kernel.accumulators} accumulators spills with chunks of 64 columns; take epi_n 32"


def _wgmma_n(kernel: Kernel) -> Iterator[str]:
    most = WGMMA_N_MOST.get(kernel.consumers, hopper.WGMMA_N_MAX)
    if kernel.specialised and kernel.share_n > most:
        yield (
            f"with {kernel.consumers} consumers a wgmma may be at most {most} columns wide but is {kernel.share_n}; "
            "split along n or take 2 consumers"
        )


def _stages(kernel: Kernel) -> Iterator[str]:
    most, need = stages_max(kernel), kernel.stage_bytes
    if most == 0:
        yield f"exceeds smem: one stage of {need} B does not fit beside the epilogue; take a smaller tile or k_depth"
    if not 1 <= kernel.stages <= most:
        yield f"stages must be 1 to {most} here but got {kernel.stages}; one stage takes {need} B"


def _stagger(kernel: Kernel) -> Iterator[str]:
    most = max(0, min(kernel.stages - 1, STAGGER_MAX))
    if kernel.stages and kernel.stagger > most:
        yield f"stagger must be 0 to {most} with {kernel.stages} stages but got {kernel.stagger}"


def _cluster(kernel: Kernel) -> Iterator[str]:
    if (kernel.cluster_m, kernel.cluster_n) not in CLUSTERS:
        allowed = ", ".join(f"{m}x{n}" for m, n in CLUSTERS)
        yield f"cluster must be one of {allowed} but got {kernel.cluster_m}x{kernel.cluster_n}"


def _multicast(kernel: Kernel) -> Iterator[str]:
    if kernel.multicast == "alternate":
        if kernel.cluster_m * kernel.cluster_n == 1:
            yield 'multicast "alternate" is for CTAs that share a tile and cluster is 1x1; leave it at "split"'
        elif min(kernel.cluster_m, kernel.cluster_n) > 1:
            yield (
                'multicast "alternate" is for a cluster along one axis but got '
                f'{kernel.cluster_m}x{kernel.cluster_n}; take "split"'
            )
        return
    for side, sharers in (("tile_m", kernel.cluster_n), ("tile_n", kernel.cluster_m)):
        rows = getattr(kernel, side)
        if rows % (8 * sharers):
            yield (
                f"{side} = {rows} cannot be cut into {sharers} parts of whole 8-row atoms; change it or the cluster, "
                'or take multicast "alternate"'
            )


SHAPE_RULES = (
    Rule("tile_m", "a tile is whole 64-row wgmma blocks, up to three consumers of two each", one_of("tile_m", TILE_M)),
    Rule("tile_n", "wgmma's n goes from 8 to 256 in steps of 8", _tile_n),
    Rule("k_depth", "deeper stages leave most tiles no room for a second stage", _k_depth),
    Rule(
        "consumers",
        "five consumer warpgroups enter with 80 registers each, too few for a wgmma of 128 columns (C7602)",
        one_of("consumers", tuple(REGISTER_SPLITS)),
    ),
    Rule("schedule", "two accumulator sets fit into an SM's registers, three do not", _schedule),
    Rule("split", "each consumer needs whole wgmma blocks of the side that is split", _split),
    Rule("ctas_per_sm", "the CTAs of an SM divide its shared memory", one_of("ctas_per_sm", CTAS_PER_SM)),
    Rule("registers", "accumulators live in registers; a spill costs more than any tile gains", _registers),
    Rule(
        "wgmma_n",
        "512 threads enter with 128 registers each, 640 with 96, and one instruction must fit into them (C7602)",
        _wgmma_n,
    ),
    Rule("stages", "the ring and the epilogue's staging share one SM's 227 KiB", _stages),
    Rule("stagger", "a stage held back is a stage that cannot be loaded; with none free the ring deadlocks", _stagger),
    Rule(
        "cluster",
        "up to eight CTAs, at most four along an axis: GPCs are unequal, and larger clusters leave SMs without work",
        _cluster,
    ),
    Rule(
        "multicast",
        "a CTA multicasts whole 8-row swizzle atoms, or the copy never completes; alternating along both axes, a CTA "
        "can fill its slot alone and give it back twice before a neighbour has once, which a barrier cannot tell apart",
        _multicast,
    ),
)
"""Rules on the shape of a CTA."""
