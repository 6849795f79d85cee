"""Kernels for untuned problems: some hundred configs that cover all shapes, and the model's choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, Literal

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal, pair_reasons
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import best_swizzle, parts_meet
from hopper_gemm.model.rules.invariance import forward
from hopper_gemm.model.rules.technique import SWIZZLE_MAX

WIDE = {
    64: (64, 96, 128, 192, 256),
    128: (64, 96, 128, 160, 176, 192, 208, 224, 256),
    192: (96, 128, 160, 192),
    256: (96, 112, 128, 144, 160, 168, 176, 192, 200, 208),
    384: (96, 112, 128),
}
"""tile_n for each tile_m where the output fills the GPU."""

IN_TURN = {128: (64, 128, 160, 176)}
"""The same for pingpong, where k is short."""

NARROW = {64: (8, 16, 32, 48, 64, 96, 128), 128: (16, 32, 48, 64, 96, 128), 256: (64, 96, 128)}
"""The same where the output does not fill the GPU: split-K in a cluster, or memory-bound."""

APART = {128: (64, 128, 192, 256), 256: (64, 128)}
"""The same for split-K through a workspace."""

LONG, PACE = 1e-3, 8
"""Least seconds of a launch that is paced, and the stages between its meetings. Around 8192^3 pacing saved 0.3 to 0.6
%, at k = 28672 1.75 %, at 16384^3 5 %; below a millisecond it cost 0.1 to 0.3 % (notebooks/5_locality)."""

ROUNDS = 150e-6
"""Launches of this many seconds or more use the dynamic scheduler, so that a late or busy SM does not delay the launch.
It was fastest on all ten problems of the isolated suite from 166 us on, by 0.1 to 1.7 % in the median of their pairs;
on shorter problems it cost 0.6 to 2 %."""

ABREAST = 4
"""Swizzle where the tiles of a split-K part follow one another: sixteen neighbours share a GPC, and a patch of 4 x 4
reads the fewest panels. At 1024x1024x16384 it was 1 % faster than a swizzle of eight (docs/neighbours.md)."""

CLUSTERS = ((1, 1), (2, 1), (1, 2))
PARTS = (2, 4, 8)
PARTS_APART = (2, 3, 4, 6, 8, 12, 16)
RASTERS: tuple[Literal["m", "n"], ...] = ("m", "n")


@cache
def menu() -> tuple[Kernel, ...]:
    """The kernels, each legal by itself, with the swizzle that reads least in theory, and with reverse_k where
    legal."""
    walking = (replace(config, reverse_k=True) for config in _offered())
    offered = (config if is_legal(config) else replace(config, reverse_k=False) for config in walking)
    return tuple(dict.fromkeys(resolve(config) for config in offered if is_legal(config)))


def able_on(problem: GemmProblem, more: Iterable[Kernel] = (), chip: hopper.Chip = hopper.SXM) -> list[Kernel]:
    """The kernels of the menu, and more, that can run a problem without waits for a later wave; of a batch-invariant
    one as they read k forward."""
    among: Iterable[Kernel] = (*menu(), *more)
    if problem.batch_invariant:
        among = dict.fromkeys(map(forward, among))
    return [config for config in among if not pair_reasons(config, problem) and parts_meet(config, problem, chip)]


def choose(problem: GemmProblem, more: Iterable[Kernel] = (), chip: hopper.Chip = hopper.SXM) -> Kernel:
    """The kernel that the model expects to be the fastest on a problem.

    Args:
        problem: what is multiplied.
        more: kernels to choose from as well, such as tuned ones.
        chip: the GPU.

    Example:
        >>> choose(GemmProblem(16, 6144, 4096)).tile_m * choose(GemmProblem(16, 6144, 4096)).tile_n < 128 * 128
        True
    """
    return choices(problem, 1, more, chip)[0]


def choices(
    problem: GemmProblem, count: int, more: Iterable[Kernel] = (), chip: hopper.Chip = hopper.SXM
) -> list[Kernel]:
    """The ``count`` binaries that the model expects to be the fastest on a problem, best first, each with the launch
    arguments that it expects to be best; arguments as for :func:`choose`."""
    able = able_on(problem, more, chip) or [resolve(GemmConfig())]
    able = [behind_padding(config, problem) for config in able]

    def seconds(config: Kernel) -> float:
        return predict(config, problem, chip).seconds

    ranked = sorted(able, key=seconds)
    least = seconds(ranked[0])
    if least >= ROUNDS:
        able = [_with(config, scheduler="dynamic") for config in able]
        if least >= LONG:
            able = [_with(config, pace=config.pace or PACE) for config in able]
        ranked = sorted(able, key=seconds)
    binaries: dict[Kernel, Kernel] = {}
    for config in ranked:
        binaries.setdefault(config.compiled(), config)
        if len(binaries) == count:
            break
    return list(binaries.values())


def behind_padding(config: Kernel, problem: GemmProblem) -> Kernel:
    """Return the kernel as it runs a problem: behind a launch that pads operands with programmatic dependent launch, if
    that is legal, so that it sets itself up meanwhile; else unchanged."""
    return _with(config, pdl=True) if problem.padded else config


def _with(config: Kernel, **changes: Any) -> Kernel:
    """Return the kernel with other values if that is legal, else unchanged."""
    changed = config.but(**changes)
    return changed if is_legal(changed) else config


def promising(
    configs: Sequence[Kernel],
    problem: GemmProblem,
    keep: int,
    known: Iterable[Kernel] = (),
    chip: hopper.Chip = hopper.SXM,
) -> set[Kernel]:
    """The kernels of the ``keep`` binaries that the model predicts to be fastest. A quarter of the binaries is spread
    evenly over the techniques, since the model may be wrong about a whole technique.

    Args:
        configs: legal on the problem.
        problem: what is multiplied.
        keep: binaries; every config that launches one of these stays.
        known: configs whose binaries stay as well, whatever the model predicts.
        chip: the GPU.
    """
    ranked: dict[Kernel, tuple[Any, ...]] = {}
    for config in sorted(configs, key=lambda config: predict(config, problem, chip).seconds):
        ranked.setdefault(config.compiled(), technique(config))
    by_technique: dict[tuple[Any, ...], list[Kernel]] = {}
    for key, kind in ranked.items():
        by_technique.setdefault(kind, []).append(key)
    each = keep // 4 // max(1, len(by_technique))
    dealt = [key for of in by_technique.values() for key in of[:each]]
    chosen = {*list(dict.fromkeys([*dealt, *ranked]))[:keep], *(config.compiled() for config in known)}
    return {config for config in configs if config.compiled() in chosen}


def technique(config: GemmConfig) -> tuple[Any, ...]:
    """Key of a config's technique: the parameters that change the algorithm, tile sizes aside."""
    return (
        config.schedule,
        config.split_k > 1,
        config.reduction,
        config.part_order,
        config.swap_ab,
        config.ctas_per_sm,
        config.cluster_size > 2,
        config.pdl,
    )


def _offered() -> Iterator[GemmConfig]:
    wide, in_turn = GemmConfig(epi_n="wide"), GemmConfig(schedule="pingpong")
    apart, deep = GemmConfig(reduction="workspace", stagger=0), GemmConfig(k_depth=8)
    yield from _tiles(wide, WIDE, CLUSTERS)
    yield from _tiles(GemmConfig(), NARROW, CLUSTERS)
    yield from _tiles(GemmConfig(), NARROW, CLUSTERS[:1], PARTS)
    yield from _tiles(deep, {64: NARROW[64]}, CLUSTERS)
    yield from _tiles(in_turn, IN_TURN, CLUSTERS)
    yield from _tiles(apart, APART, CLUSTERS, PARTS_APART, staggers=(0,), rasters=RASTERS[:1])
    yield from _tiles(replace(apart, part_order="part"), APART, CLUSTERS[:1], PARTS_APART, staggers=(0,))


def _tiles(
    like: GemmConfig,
    tiles: Mapping[int, Iterable[int]],
    clusters: Iterable[tuple[int, int]],
    parts: Iterable[int] = (1,),
    staggers: Iterable[int] = (1, 0),
    rasters: Iterable[Literal["m", "n"]] = RASTERS,
) -> Iterator[GemmConfig]:
    """Variants of a config in these parameters, each with the swizzle that reads least."""
    for tile_m, widths in tiles.items():
        for tile_n, (cluster_m, cluster_n), split_k in product(widths, clusters, parts):
            sides: dict[str, Any] = {"tile_m": tile_m, "tile_n": tile_n, "cluster_m": cluster_m, "cluster_n": cluster_n}
            for stagger, raster, swap_ab in product(staggers, rasters, (False, True)):
                config = replace(like, **sides, split_k=split_k, stagger=stagger, raster=raster, swap_ab=swap_ab)
                abreast = ABREAST if like.part_order == "part" else best_swizzle(config)
                yield replace(config, swizzle=min(SWIZZLE_MAX, max(1, round(abreast))))
