"""The best swizzle in theory is the one with the shortest panels."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.roofline import best_swizzle


@pytest.mark.parametrize("raster", ["m", "n"])
@pytest.mark.parametrize(
    "fields", [{}, {"tile_m": 128, "tile_n": 256}, {"cluster_n": 2}, {"cluster_m": 2}, {"tile_m": 64, "tile_n": 64}]
)
def test_no_whole_swizzle_beats_the_neighbours_of_the_best(raster, fields):
    """Bytes of the panels beside and above a patch, by counting them for every swizzle."""
    config = GemmConfig(raster=raster, **fields)
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    along, across = (rows, columns) if raster == "m" else (columns, rows)
    clusters = 132 // config.cluster_size

    def panels(swizzle):
        return swizzle * across + clusters / swizzle * along

    best = best_swizzle(config)
    cheapest = min(range(1, clusters + 1), key=panels)
    assert abs(cheapest - best) < 1
    assert panels(2 * best) / panels(best) == pytest.approx(1.25)
