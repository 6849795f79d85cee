"""Waves, intensity and the best swizzle by hand-counted examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.hopper import HBM_BYTES_PER_SECOND
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import best_swizzle, clusters_launched
from hopper_gemm.tune.limits import least_seconds, limit_seconds, smem_intensity, smem_reads_per_flop, waves
from hopper_gemm.tune.tables.explain import explain

BEST = GemmConfig(tile_m=256, tile_n=128, cluster_n=2)


def test_512_tiles_on_132_sms_take_four_waves_that_are_97_percent_useful():
    found = waves(GemmConfig(cluster_n=2), GemmProblem(4096, 4096, 4096))
    assert (found.tiles, found.slots, found.waves) == (512, 132, 4)
    assert found.efficiency == pytest.approx(512 / (4 * 132))


def test_a_ragged_edge_wastes_what_lies_outside():
    found = waves(GemmConfig(tile_m=128, tile_n=128), GemmProblem(129, 128, 64))
    assert (found.tiles, found.waves) == (2, 1)
    assert found.efficiency == pytest.approx(129 * 128 / (132 * 128 * 128))


def test_intensity_of_the_known_tiles():
    """FLOP per byte into shared memory: 128x128 64, 128x256 85, 256x192 110."""
    tiles = {(128, 128): 64, (128, 256): 85.33, (256, 192): 109.7}
    for (tile_m, tile_n), expected in tiles.items():
        assert smem_intensity(GemmConfig(tile_m=tile_m, tile_n=tile_n)) == pytest.approx(expected, abs=0.05)


def test_shared_reads_fall_as_the_instruction_widens():
    """(64 + n) / (64 n), relative to n = 256: 1.60 at 64, 1.20 at 128."""
    reads = {n: smem_reads_per_flop(GemmConfig(tile_m=64, tile_n=n)) for n in (64, 128, 256)}
    assert reads[64] / reads[256] == pytest.approx(1.6)
    assert reads[128] / reads[256] == pytest.approx(1.2)


def test_the_limit_is_arithmetic_for_squares_and_memory_for_skinny_problems():
    square, skinny = GemmProblem(8192, 8192, 8192), GemmProblem(16, 8192, 8192)
    assert limit_seconds(square) == pytest.approx(square.flop / 840e12, rel=0.01)
    assert limit_seconds(skinny) == pytest.approx(skinny.bytes / 4.3e12, rel=0.05)


def test_an_fp32_output_lengthens_what_memory_limits_and_nothing_else():
    short_k = [GemmProblem(8192, 8192, 64, dtype) for dtype in ("bf16", "bf16_fp32")]
    limits, times = ([of(problem) for problem in short_k] for of in (limit_seconds, lambda p: predict(BEST, p).seconds))
    more = 2 * 8192 * 8192 / HBM_BYTES_PER_SECOND
    assert limits[1] - limits[0] == pytest.approx(more)
    assert times[1] > times[0]
    square = [GemmProblem(8192, 8192, 8192, dtype) for dtype in ("bf16", "bf16_fp32")]
    assert limit_seconds(square[0]) == limit_seconds(square[1])


@pytest.mark.parametrize("change", [{}, {"consumers": 5}, {"tile_m": 320, "k_depth": 16}, {"tile_m": 100, "tile_n": 2}])
def test_explain_answers_for_any_config_however_illegal(change):
    found = explain(GemmConfig(**change), GemmProblem(4096, 4096, 4096))
    assert found["legal"] == (not change)
    assert bool(found["reasons"]) == bool(change)


WORKSPACE = GemmConfig(tile_m=128, reduction="workspace")


@pytest.mark.parametrize("at_once", [132, 66, 114, 57, 30])
@pytest.mark.parametrize("split_k", [2, 3, 4, 5, 6, 8, 12, 16])
def test_no_part_of_a_tile_is_left_to_the_next_round(at_once, split_k):
    """Clusters take items at a stride of their number, and the parts of a tile are neighbours."""
    clusters = clusters_launched(replace(WORKSPACE, split_k=split_k), at_once)
    assert at_once - split_k < clusters <= at_once
    for tile in range(50):
        rounds = {item // clusters for item in range(tile * split_k, (tile + 1) * split_k)}
        assert len(rounds) == 1


@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(split_k=8),
        replace(WORKSPACE, split_k=8, part_order="part"),
        replace(WORKSPACE, split_k=8, scheduler="dynamic"),
        replace(WORKSPACE, split_k=8, cluster_m=2, cluster_n=2, ctas_per_sm=1),
        GemmConfig(),
    ],
)
def test_other_launches_have_all_clusters_that_run_at_once(config):
    """Parts that meet in a cluster, run all at once, or are handed out; more parts than clusters; and no parts."""
    at_once = 7 if config.cluster_m == 2 else 132
    assert clusters_launched(config, at_once) == at_once


def test_rounds_are_those_of_the_clusters_that_are_launched():
    config, problem = replace(WORKSPACE, tile_n=128, split_k=8), GemmProblem(2112, 128, 65536)
    assert waves(config, problem).waves == 2  # 17 tiles, 16 at a time
    assert predict(config, problem).waves == 2
    assert waves(replace(config, split_k=4), problem).waves == 1


def test_no_launch_is_shorter_than_its_operands_take_at_the_memorys_peak_or_its_products_at_the_highest_clock():
    narrow, cube = GemmProblem(32, 4096, 12288), GemmProblem(8192, 8192, 8192)
    assert least_seconds(narrow) == pytest.approx((32 + 4096) * 12288 * 2 * 0.875 / HBM_BYTES_PER_SECOND)
    assert least_seconds(cube) == pytest.approx(cube.flop / (132 * 4096 * 1.98e9))
    assert least_seconds(narrow) < limit_seconds(narrow)


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
