"""Counters and derived columns stand beside a sweep's rows, each row with those of its own machine code."""

from __future__ import annotations

import pytest

from docs.generate.pages.counted import (
    COUNTERS,
    DERIVED,
    PROFILED,
    panels,
    with_counters,
    with_derived,
)
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import frame_of, read_study
from hopper_gemm.tune.tables.pivot import rows_of
from tests.tune.tables.making import row

SIZES = (4096, 4096, 4096)
TILE = {"sizes": SIZES, "tile_m": 256, "tile_n": 128, "k_depth": 4}
OURS = row(
    **TILE, swizzle=4, stage="counters", sm_ghz=1.617, dram_read_bytes=9.8e8, code="c0de", consumer_wait_pct=12.5
)
CUBLAS = row(sizes=SIZES, baseline=True, stage="counters", sm_ghz=1.57, l2_hit_pct=70.0, baseline_kernel="nvjet_sm90")


def test_a_row_gets_the_counters_of_its_config_in_any_regime_and_context_and_those_of_the_baseline():
    rows = [
        row(**TILE, swizzle=s, regime=r, context=c)
        for s in (4, 8)
        for r, c in (("burst", "isolated"), ("steady", "chained"))
    ]
    joined = with_counters(frame_of(rows), [OURS, CUBLAS])
    assert joined["sm_ghz"].fillna(0).tolist() == [1.617, 1.617, 0, 0]
    assert joined["consumer_wait_pct"].isna().tolist() == [False, False, True, True]
    assert joined["baseline_sm_ghz"].tolist() == [1.57] * 4
    assert joined["speedup"].tolist() == [1.0] * 4
    assert not {f"baseline_{name}" for name in COUNTERS[len(PROFILED) :]} & set(joined.columns), (
        "cuBLAS counts no waits"
    )


def test_counters_of_other_machine_code_are_not_a_rows_own():
    rows = [row(**TILE, swizzle=4, code=code) for code in ("0ther", "c0de", "")]
    assert with_counters(frame_of(rows), [OURS])["sm_ghz"].isna().tolist() == [True, False, False]


def test_waits_come_from_machine_code_of_their_own():
    metered = row(**TILE, swizzle=4, stage="counters", code="metered", consumer_wait_pct=7.5)
    joined = with_counters(frame_of([row(**TILE, swizzle=4, code="plain")]), [metered])
    assert joined["consumer_wait_pct"].tolist() == [7.5]


def test_the_panels_of_a_walk_counted_by_hand():
    """8 x 8 cluster tiles of 256 x 256 in groups of 8: one wave of 64, whose panels are A and B once."""
    config = resolve(GemmConfig(tile_m=256, tile_n=128, cluster_n=2, swizzle=8))
    problem = GemmProblem(2048, 2048, 64)
    assert panels(config, problem) == (2 * 64 * (2048 + 2048), 64 / 66)


@pytest.fixture(scope="module")
def frame():
    return with_derived(rows_of(read_study(results_root() / "h200/seed-table"), "sweep"))


def test_the_derived_columns_of_a_cell_worked_by_hand(frame):
    """256x128 with four stages of 64: 48 KiB a stage, two of them ahead, 1,024 clocks of math for a stage."""
    found = frame.query("tile_m == 256 and k_depth == 4 and m == 8192 and regime == 'burst'").iloc[0]
    assert set(DERIVED) <= set(found.index)
    assert (found["stage_kib"], found["ahead"], found["ahead_kib"], found["span"]) == (48, 2, 96, 128)
    assert found["l2_bytes_per_clock"] == pytest.approx(2 * 64 * (128 + 128) / 1024)
    assert found["flop_per_smem_byte"] == pytest.approx(256 * 128 / 384)
    assert found["wave_efficiency"] == pytest.approx(2048 / (16 * 132))
    assert found["reached"] == pytest.approx(found["tensor_active"] / found["wave_efficiency"])


def test_only_rows_that_ran_have_derived_columns(frame):
    assert len(frame) == 156
    assert frame["status"].eq("ok").all()
