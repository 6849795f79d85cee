"""The analytic model ranks what was measured, and stays sane where nothing was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.picks.bursts import ReachingOut
from docs.generate.pages.sources import recorded
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.hopper import FLOP_PER_CLOCK_PER_SM, SM_COUNT
from hopper_gemm.model.kernel import MOVED_FROM, Kernel, resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.predict import FITTED, predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.tune.parameters import kernel_of
from hopper_gemm.tune.study.reader import read_study
from tests.verify.drawing import varied

CUBE = GemmProblem(8192, 8192, 8192)
BEST = GemmConfig(tile_m=256, tile_n=128, k_depth=4, cluster_n=2)


def seconds(problem=CUBE, **changes) -> float:
    config = varied(BEST, **changes)
    assert is_legal(config, problem)
    return predict(config, problem).seconds


RANKED = [
    ("seed-table-first", GemmProblem(4096, 4096, 4096), 0.95),
    ("seed-table-first", CUBE, 0.86),
    ("seed-table", GemmProblem(4096, 4096, 4096), 0.94),
    ("seed-table", CUBE, 0.84),
    ("options", GemmProblem(4096, 4096, 4096), 0.5),
    ("options", CUBE, 0.5),
    ("ladder-first", GemmProblem(4096, 4096, 4096), 0.91),
    ("ladder-first", CUBE, 0.9),
    ("ladder", GemmProblem(4096, 4096, 4096), 0.93),
    ("ladder", CUBE, 0.9),
    ("stagger", GemmProblem(8192, 8192, 512), 0.87),
    ("stagger", CUBE, 0.84),
    ("tile-shape", CUBE, 0.71),
]
"""Studies with the rank correlation that the model reaches at least."""


def bursts(study: str, problem: GemmProblem) -> pd.DataFrame:
    """What was recorded beside what the model says, microseconds; without the launches that were too large."""
    found = []
    for row in recorded(study).rows:
        if (row.status, row.stage, row.point.problem, row.point.regime) != ("ok", "sweep", problem, "burst"):
            continue
        config = row.point.config
        if config.cluster_m * config.cluster_n < 4:
            config = ReachingOut.like(config) if type(config) is Kernel else config
            found.append((predict(config, problem).seconds * 1e6, float(row.figures["time_us"])))
    return pd.DataFrame(found, columns=["predicted", "measured"])


@pytest.mark.parametrize(("study", "problem", "least"), RANKED, ids=str)
def test_it_ranks_the_recorded_bursts(study, problem, least):
    found = bursts(study, problem)
    assert found.rank().corr().loc["predicted", "measured"] >= least
    pick = found["measured"][found["predicted"].idxmin()]
    assert pick <= 1.035 * found["measured"].min()


FIRST = {"seed-table": "seed-table-first", "ladder": "ladder-first"}


@pytest.mark.parametrize("left_out", [FIRST.keys(), FIRST.values()], ids=["first kernel", "kernel of today"])
def test_its_errors_are_those_that_it_states(left_out):
    """Near the fastest these long launches are predicted 3 to 4 % too short, and differ by as much from one another."""
    found = pd.concat(
        bursts(study, problem).assign(best=lambda part: part["measured"].min())
        for study, problem, _ in RANKED
        if study not in left_out
    )
    error = np.log(found["predicted"] / found["measured"])
    near = error[found["measured"] < found["best"] / 0.85]
    assert (error**2).mean() ** 0.5 < 0.125
    assert -0.045 < near.mean() < -0.03
    assert near.std() < 0.04


def test_isolated_searches_are_predicted_as_well_as_it_states():
    """These were recorded after the fit, on boards that it had not seen."""
    off, study = [], read_study(recorded("suite-isolated-again").path / "tune")
    for problem in {row.point.problem for row in study.rows}:
        rows = [row for row in study.stage("sweep") if row.ok and row.point.problem == problem]
        best = min(row.figures["time_us"] for row in rows)
        near = [row for row in rows if row.figures["time_us"] < best / 0.85]
        times = [predict(row.point.config, row.point.problem).seconds * 1e6 for row in near]
        off += [np.log(time / row.figures["time_us"]) for time, row in zip(times, near, strict=True)]
    assert len(off) > 400
    assert np.mean(np.square(off)) ** 0.5 < 0.0585


@pytest.mark.parametrize("problem", [CUBE, GemmProblem(8192, 8192, 512), GemmProblem(128, 8192, 8192)], ids=str)
@pytest.mark.parametrize("tile_n", [16, 48, 64, 96, 192, 208, 256])
def test_nothing_is_faster_than_the_tensor_cores(problem, tile_n):
    for tile_m in (64, 128):
        config = GemmConfig(tile_m=tile_m, tile_n=tile_n)
        assert is_legal(config, problem)
        least = problem.flop / (FLOP_PER_CLOCK_PER_SM * SM_COUNT * FITTED.fast_hz)
        assert least < predict(config, problem).seconds < 30 * least


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"tile_n": 128}, {"tile_n": 32}),  # a small tile takes more from the L2
        ({"stages": 4}, {"stages": 2}),  # few bytes in flight
        ({"tile_m": 64, "stagger": 1}, {"tile_m": 64, "stagger": 0}),  # a lone consumer runs dry between stages
        ({"stagger": 0}, {"stagger": 2}),  # two of them do not, and a late release costs look-ahead
        ({"stages": 3, "stagger": 0}, {"stages": 3, "stagger": 2}),  # nothing can be loading
        ({"cluster_n": 2}, {"cluster_n": 1}),  # multicast halves what is taken of A
        ({"persistent": True}, {"persistent": False}),  # the next tile loads under the epilogue
        ({"loads": "tma", "cluster_n": 1}, {"loads": "cp_async", "cluster_n": 1}),
        ({"stores": "tma"}, {"stores": "direct"}),
        ({"swizzle": 8, "raster": "m"}, {"swizzle": 1, "raster": "m"}),  # a long, thin patch reads more
        ({"split": "m"}, {"split": "n", "tile_n": 64}),  # a narrow wgmma waits for shared memory
    ],
    ids=str,
)
def test_what_is_known_to_be_slower_is_predicted_slower(better, worse):
    assert seconds(**better) < seconds(**worse)


def test_pingpong_gains_more_where_k_is_short():
    short, long = GemmProblem(8192, 8192, 512), GemmProblem(8192, 8192, 16384)
    tile = {"tile_m": 128, "tile_n": 128}
    gains = [seconds(p, **tile) / seconds(p, **tile, schedule="pingpong") for p in (short, long)]
    assert gains[0] > gains[1] > 0.99


def test_rows_that_start_off_the_lines_of_the_l2_load_more_slowly():
    """Rows of 8192, 8256, 8224 and 8208 bytes: multiples of 128, 64, 32 and 16."""
    tile = GemmConfig(tile_m=64, tile_n=64, cluster_n=1)
    load = {k: predict(tile, GemmProblem(4096, 4096, k)).load for k in (4096, 4128, 4112, 4104)}
    assert load[4096] == load[4128] < load[4112] < load[4104]
    by_rows = predict(tile, GemmProblem(4104, 4096, 4096, layouts="mk")).load
    assert load[4096] < by_rows < load[4104], "of one operand's"


def test_rows_off_the_lines_add_more_where_the_memory_is_slower():
    tile = GemmConfig(tile_m=64, tile_n=64, cluster_n=1)
    slow = Chip(memory_rate=SXM.memory_rate / 2)
    adds = {}
    for chip in (SXM, slow):
        on, off = (predict(tile, GemmProblem(4096, 4096, k), chip).load for k in (4096, 4104))
        adds[chip] = off - on
    assert adds[slow] == pytest.approx(2 * adds[SXM], rel=0.05)


def test_the_l2_passes_on_less_where_neighbours_share_more():
    """Sixteen neighbours in a square of 4 x 4 tiles ask for 8 panels, in a row of sixteen for 17."""
    problem = GemmProblem(1024, 1024, 16384)
    alone = GemmConfig(tile_m=128, tile_n=64, cluster_n=1, raster="n")
    square, row = (predict(replace(alone, swizzle=wide), problem).l2 for wide in (4, 1))
    assert square < row
    loads = [predict(replace(alone, swizzle=wide), problem).load for wide in (4, 1)]
    assert max(loads) < 1.1 * min(loads), "the SM takes what it takes"


def test_odd_rows_of_a_chunk_cost_where_a_launch_writes_most_of_the_time():
    """A transposed chunk's rows are 64 elements of the tile's other side, whatever its width."""
    written, deep = GemmProblem(60696, 208, 8), GemmProblem(8192, 8192, 8192)
    tile, free = GemmConfig(tile_m=256, tile_n=112, epi_n=56, cluster_n=2), replace(FITTED, shred=0.0)
    for config, problem, least, most in (
        (tile, written, 1.05, 2.0),
        (tile, deep, 1.0, 1.01),
        (replace(tile, swap_ab=True), written, 1.0, 1.0),
        (replace(tile, tile_n=128, epi_n=64), written, 1.0, 1.0),
    ):
        assert least <= predict(config, problem).seconds / predict(config, problem, constants=free).seconds <= most


def test_what_lies_outside_the_matrices_is_not_free():
    tile = GemmConfig(tile_m=256, tile_n=64, cluster_n=1)
    assert predict(tile, GemmProblem(64, 4096, 4096)).load > predict(tile, GemmProblem(256, 4096, 4096)).load


def test_ctas_that_do_not_meet_drift_apart_in_long_launches():
    tile = GemmConfig(tile_m=256, tile_n=192, cluster_n=2)
    apart, together = (predict(replace(tile, pace=pace), GemmProblem(16384, 16384, 16384)).seconds for pace in (0, 8))
    assert apart > 1.05 * together
    assert predict(tile, CUBE) == predict(replace(tile, pace=8), CUBE)


def test_the_limit_is_named():
    assert predict(BEST, CUBE).limit == "math"
    assert predict(replace(BEST, stages=1, stagger=0), CUBE).limit == "ring"
    assert predict(GemmConfig(tile_m=64, tile_n=64, k_depth=8, cluster_n=1, swizzle=1), CUBE).limit == "l2"
    assert predict(GemmConfig(tile_m=64, tile_n=64, cluster_n=1), GemmProblem(64, 64, 8192)).limit == "load"


def test_ranking_puts_the_recorded_best_tile_before_the_rest():
    grid = [resolve(replace(BEST, tile_m=tile_m, k_depth=k)) for tile_m in (64, 128, 192, 256) for k in (2, 4, 8, 16)]
    first, *_, last = sorted(grid, key=lambda config: predict(config, CUBE).seconds)
    assert first.tile_m >= 192
    assert first.k_depth == 4
    assert (last.tile_m, last.k_depth) in ((64, 16), (128, 16))


@pytest.mark.parametrize("k", [4096, 14336])
@pytest.mark.parametrize("study", ["edge", "edge-moved"])
def test_rows_outside_cost_what_was_measured_of_them(study, k):
    """Two tiles of 96 rows take twice as long with 97 rows as with 192, unless the last one moves back. Predicted are
    half of what that adds or less: rows outside add to loads, which then limit so much more than the L2 that the model
    slows the launch less for the two."""
    kernel = resolve(GemmConfig(tile_m=64, tile_n=96, swap_ab=True, consumers=1, stages=10))
    kernel = ReachingOut.like(kernel) if study == "edge" else kernel
    few, all_inside = (predict(kernel, GemmProblem(m, 4096, k)).seconds for m in (97, 192))
    us = {
        row.point.problem.m: row.figures["baseline_us"] / row.figures["speedup"]
        for row in recorded(study).stage("sweep")
        if row.ok and row.point.problem.k == k and str(row.point.config).startswith("64x96x64 s10")
    }
    if study == "edge":
        assert us[97] > 1.9 * us[192]
        assert few > 1.4 * all_inside
    else:
        assert us[97] < 1.1 * us[192]
        assert few < 1.1 * all_inside


def test_last_tiles_stay_where_k_is_short_or_sums_differ_in_order():
    tile = resolve(GemmConfig(tile_m=64, tile_n=96, consumers=1))
    assert tile.moves_back(MOVED_FROM)
    assert not tile.moves_back(MOVED_FROM - 1)
    assert not tile.but(reverse_k=True).moves_back(MOVED_FROM)
    assert not kernel_of({**tile.as_dict(), "loads": "cp_async"}).moves_back(MOVED_FROM)


def test_last_tiles_stay_where_they_are_large():
    """160 x 160 is as intense as may move, 168 x 160 more."""
    tile = GemmConfig(tile_m=160, tile_n=160)
    assert resolve(tile).may_move_back
    assert not resolve(replace(tile, tile_m=168)).may_move_back
    assert not resolve(GemmConfig(tile_m=128, tile_n=256)).may_move_back


def test_narrow_boxes_of_an_operand_along_its_rows_load_slowly():
    """96 columns of a consumer, contiguous in memory, are loaded in rows of 64 bytes, 128 in rows of 128."""
    slower = {
        width: predict(GemmConfig(tile_m=128, tile_n=width), replace(CUBE, layouts="kn")).load
        / predict(GemmConfig(tile_m=128, tile_n=width), CUBE).load
        for width in (96, 128)
    }
    assert slower[128] == 1
    assert slower[96] > 1.05


def test_a_slot_of_a_cluster_is_free_later():
    """Consumers of both CTAs must have left it: with few stages the ring is the limit."""
    problem = GemmProblem(1024, 2048, 11008)
    alone, paired = (GemmConfig(tile_m=64, tile_n=128, consumers=1, k_depth=8, cluster_m=size) for size in (1, 2))
    before = replace(FITTED, away=0.0)
    assert predict(alone, problem).seconds == predict(alone, problem, constants=before).seconds
    assert predict(paired, problem).seconds > 1.02 * predict(paired, problem, constants=before).seconds
