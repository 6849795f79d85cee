"""Findings across comparisons: published intervals count the boards and processes that measured."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hopper_gemm.lab.pages.comparisons import widened
from hopper_gemm.tune.measure.verdict import component_of
from hopper_gemm.tune.tables.comparison import cells
from tests.tune.tables.making import row


def cell(*boards: str, us: float = 100.0, status: str = "ok"):
    """The cell of a problem that ran in a process on each of the boards, 1.2 times as fast as the baseline."""
    figures = dict.fromkeys(("speedup", "speedup_low", "speedup_high"), 1.2) | {"baseline_us": us}
    measured = {"pairs": ((us / 1.2, us),) * 3, **figures} if status == "ok" else {}
    (record,) = cells(
        row(status, stage="compare", process=process, board=board, **measured) for process, board in enumerate(boards)
    )
    return record


def test_a_published_interval_counts_the_processes_of_each_board():
    """The more processes and boards, the narrower; two processes on two boards say more than on one."""
    groups = [("GPU-a",), ("GPU-a", "GPU-a"), ("GPU-a", "GPU-b"), ("GPU-a",) * 9 + ("GPU-b",) * 9]
    found = [widened(cell(*boards, us=1000.0)) for boards in groups]
    assert [one["looks"] for one in found] == [(1,), (2,), (1, 1), (9, 9)]
    widths = [one["speedup_high"] - one["speedup_low"] for one in found]
    assert all(wide > narrow for wide, narrow in pairwise(widths))
    half = component_of(1000.0).half_width((9, 9))
    assert found[-1]["speedup_high"] == pytest.approx(1.2 * (1 + half), rel=1e-4)
    assert {round(one["speedup"], 9) for one in found} == {1.2}


def test_a_short_launch_has_a_wider_interval_and_what_failed_has_none():
    short, long = (widened(cell("GPU-a", us=us)) for us in (5.0, 1000.0))
    assert short["speedup_high"] - short["speedup_low"] > 3 * (long["speedup_high"] - long["speedup_low"])
    assert "speedup_low" not in widened(cell("GPU-a", status="timeout"))
