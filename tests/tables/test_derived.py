"""Derived columns are arithmetic over a row's parameters."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.tables.derived import DERIVED, with_derived
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.trials import config_of
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def frame():
    return with_derived(read_study(ROOT / "results/h200/seed-table").trials)


def test_a_row_gives_its_config_back(frame):
    row = frame.query("tile_m == 256 and k_depth == 4").iloc[0]
    assert config_of(row) == resolve(GemmConfig(cluster_n=2))


def test_the_columns_of_a_cell_worked_by_hand(frame):
    """256x128 with four stages of 64: 48 KiB a stage, two of them ahead, 1,024 clocks of math for a stage."""
    row = frame.query("tile_m == 256 and k_depth == 4 and m == 8192 and regime == 'burst'").iloc[0]
    assert set(DERIVED) <= set(row.index)
    assert (row["stage_kib"], row["ahead"], row["ahead_kib"], row["span"]) == (48, 2, 96, 128)
    assert row["l2_bytes_per_clock"] == pytest.approx(2 * 64 * (128 + 128) / 1024)
    assert row["flop_per_smem_byte"] == pytest.approx(256 * 128 / 384)
    assert row["wave_efficiency"] == pytest.approx(2048 / (16 * 132))
    assert row["reached"] == pytest.approx(row["tensor_active"] / row["wave_efficiency"])


def test_only_rows_that_ran_are_kept(frame):
    assert len(frame) == 156
    assert frame["status"].eq("ok").all()
