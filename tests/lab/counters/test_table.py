"""The table of counters shows each kernel's figures, cuBLAS's first."""

from __future__ import annotations

from hopper_gemm.lab.counters.table import counters_table
from tests.docs.pages.test_counted import CUBLAS, OURS


def test_the_table_shows_figures_and_the_best_swizzle_in_theory():
    text = counters_table([CUBLAS, OURS])
    assert text.startswith("4096 x 4096 x 4096 bf16\n")
    assert "| cuBLAS nvjet_sm90 | - | - | 1.570 | - |" in text
    assert "| m4 (16.2) | - | 1.617 | - | 0.980 |" in text
    assert str(OURS.point.config) in text
    assert "Configs: tile_m x tile_n" in text
