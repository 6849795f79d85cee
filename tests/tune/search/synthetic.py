"""A study that nobody measured: the model's times, bent by interactions it knows nothing of, cliffs and noise."""

from __future__ import annotations

from itertools import product

import numpy as np

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.samplers import predictions
from hopper_gemm.tune.search.simulate import RecordedTask
from hopper_gemm.tune.study.space import place_of

CUBE = GemmProblem(8192, 8192, 8192)
PAIRED = (
    ("tile_m", "tile_n"),
    ("tile_m", "k_depth"),
    ("tile_n", "stages"),
    ("k_depth", "stagger"),
    ("cluster_n", "raster"),
    ("cluster_m", "tile_n"),
    ("raster", "swizzle"),
)


def legal_configs() -> list[GemmConfig]:
    """Some 1,500, as a search over tiles, depths, staggers, clusters and rasters has them."""
    grid = product((128, 192, 256, 320), range(64, 257, 32), (2, 4, 8), (0, 1), ((1, 1), (2, 1), (1, 2)), "mn", (4, 8))
    configs = [
        resolve(
            GemmConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                k_depth=depth,
                stagger=stagger,
                cluster_m=cluster[0],
                cluster_n=cluster[1],
                raster=raster,  # type: ignore[arg-type]
                swizzle=swizzle,
            )
        )
        for tile_m, tile_n, depth, stagger, cluster, raster, swizzle in grid
    ]
    return [config for config in dict.fromkeys(configs) if is_legal(config, CUBE)]


def bent(configs: list[GemmConfig], spread: float, seed: int) -> np.ndarray:
    """By how much, as a logarithm, pairs of parameters shift each config: a random table for each pair."""
    rng = np.random.default_rng(seed)
    total = np.zeros(len(configs))
    for pair in PAIRED:
        keys = [tuple(getattr(config, name) for name in pair) for config in configs]
        table = {key: rng.normal(0, spread) for key in sorted(set(keys))}
        total += [table[key] for key in keys]
    return total


def study(seed: int, interactions: float = 0.02, prior_error: float = 0.03) -> RecordedTask:
    """A recorded problem. ``interactions`` is the spread of each pair's table in the measured times; ``prior_error``
    that of other tables, in what the samplers are told: never the model behind the times."""
    configs = legal_configs()
    model = predictions(configs, CUBE)
    rng = np.random.default_rng(seed)
    cliff = np.where([config.tile_n % 64 and config.tile_m == 320 for config in configs], 0.1, 0.0)
    times = model + bent(configs, interactions, seed) + cliff + rng.normal(0, 0.002, len(configs))
    told = model + bent(configs, prior_error, seed + 1000)
    speedups = np.exp(times.min() - times)
    return RecordedTask(place_of(Point(CUBE, configs[0])), LegalSpace(configs), speedups, told)
