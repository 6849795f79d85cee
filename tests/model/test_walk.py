"""The chosen walk of single CTAs minimises the bytes read by all GPCs, and is close to the fastest measured one."""

from __future__ import annotations

import csv
from collections import defaultdict

import numpy as np
import pytest

from benchmarks.walks import speeds
from docs.generate.measurements import measurement
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import tile_at, tile_sides
from hopper_gemm.model.walk import WIDTHS, _gpcs, abreast
from tests.each import each

PROBLEMS = [(267, 2944, 7616), (640, 1536, 6144), (64, 64, 64), (8, 28672, 512), (2304, 2304, 4096), (5000, 300, 512)]
KERNELS = [
    resolve(GemmConfig(tile_m=128, tile_n=64, swap_ab=swap_ab, stagger=0, **more))
    for swap_ab in (False, True)
    for more in ({}, {"split_k": 2, "reduction": "workspace"})
]


def read(kernel, problem):
    """Rows and columns read by all GPCs in the first wave; what several CTAs of a GPC read counts once."""
    sides = tile_sides(kernel, problem.m, problem.n)
    tiles, parts = sides[0] * sides[1], kernel.work_items
    ctas = min(132, tiles * parts)
    rows, columns = set(), set()
    for cta, gpc in enumerate(_gpcs(ctas).tolist()):
        part, tile = divmod(cta, tiles) if kernel.part_order == "part" else (cta % parts, cta // parts)
        row, column = tile_at(tile, *sides, kernel.raster, kernel.swizzle, kernel.serpentine)
        rows.add((gpc, part, row))
        columns.add((gpc, part, column))
    return kernel.tile_m * len(rows) + kernel.tile_n * len(columns)


@each("kernel", KERNELS)
def test_no_other_walk_reads_less(kernel):
    for order in ("tile", "part") if kernel.work_items > 1 else ("tile",):
        for problem in (GemmProblem(*sizes) for sizes in PROBLEMS):
            walk = abreast(kernel.but(part_order=order), problem)
            down, across = tile_sides(kernel, problem.m, problem.n)
            rasters = "mn" if down * across * kernel.work_items <= 2 * 132 else walk.raster
            others = [
                walk.but(raster=raster, swizzle=width)
                for raster in rasters
                for width in WIDTHS
                if width <= (across if raster == "m" else down)
            ]
            assert read(walk, problem) == min(read(way, problem) for way in (walk, *others))


def test_clusters_keep_their_walk_and_beyond_two_waves_the_raster_stays():
    pair = resolve(GemmConfig(tile_m=128, tile_n=128, cluster_m=2, swizzle=7))
    assert abreast(pair, GemmProblem(267, 2944, 7616)) == pair
    for raster in "mn":
        alone = resolve(GemmConfig(tile_m=128, tile_n=128, raster=raster))
        assert abreast(alone, GemmProblem(8192, 2048, 4096)).raster == raster


def recorded_orders():
    """SMs in the order of the CTAs, of each recorded launch without clusters, on H200s and H100s."""
    orders = defaultdict(list)
    for name, column, without in (("sm-order", "cluster", "1x1"), ("sm-order-h100", "clusters", "none")):
        with measurement(f"measurements/{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if row[column] == without:
                    orders[name, row["run"], row.get("ctas")].append(int(row["sm"]))
    return list(orders.values())


def gpc(sm):
    """The GPC of an SM of these boards; a number of its own for the last twelve, which are spare."""
    return sm // 2 % 8 if sm < 64 else 1 + (sm - 64) // 2 % 7 if sm < 120 else 8


def agreement(theirs, ours):
    """Share of the pairs of CTAs that share a GPC by both or by neither, of those that do by either."""
    same = [np.equal.outer(gpcs, gpcs)[np.triu_indices(len(gpcs), 1)] for gpcs in (np.array(theirs), np.array(ours))]
    return (same[0] & same[1]).sum() / (same[0] | same[1]).sum()


@pytest.mark.results
def test_recorded_launches_lie_as_the_walk_counts_them():
    """The model agrees better than two simpler ones: sixteen CTAs in a row for each GPC, and one GPC for all. One
    launch started at another GPC, so that its small GPC comes later."""
    launches = [[gpc(sm) for sm in order] for order in recorded_orders()]
    assert sorted(len(gpcs) for gpcs in launches) == [115] * 4 + [132] * 6
    ours, rows, all_one = (
        [agreement(gpcs, of(len(gpcs))) for gpcs in launches]
        for of in (_gpcs, lambda ctas: np.arange(ctas) // 16, np.zeros)
    )
    assert np.mean(ours) > 0.8 > 0.7 > np.mean(rows)
    assert np.mean(all_one) < 0.2


@pytest.mark.results
def test_the_walks_are_within_a_hundredth_of_the_best_that_was_measured():
    shares = speeds()
    means = {name: float(np.exp(np.log([share[name] for share in shares]).mean())) for name in shares[0]}
    assert len(shares) == 25
    assert means["picked"] > 0.99 > 0.92 > max(means["m"], means["n"])
