"""Findings across comparisons: published intervals count the boards and processes that measured."""

from __future__ import annotations

from itertools import pairwise
from math import exp
from types import SimpleNamespace

import pytest

from docs.generate.pages import comparisons
from docs.generate.pages.comparisons import MARKED, figure_rows, mark_of, measured_kernels, standings, widened
from docs.generate.todays_code import Measured, TodaysCode, kernel_name
from hopper_gemm.compiler.store import DSL, KernelId
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.verdict import component_of
from hopper_gemm.tune.tables.comparison import cells
from hopper_gemm.tune.tables.forest import FASTER
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


def suite_of(*speedups: tuple[float, float]):
    """A suite of problems of 1 ms with these speedups over torch.mm and over cuBLASLt."""
    about = {"status": "ok", "baseline_us": 1000.0, "looks": (1,), "pairs": 15}
    ends = ("speedup", "speedup_low", "speedup_high")
    return {
        f"problem {n}": {name: {**about, **dict.fromkeys(ends, one)} for name, one in zip(FASTER, both, strict=False)}
        for n, both in enumerate(speedups)
    }


def test_a_problem_is_ahead_or_behind_only_by_its_whole_published_interval(monkeypatch):
    """Ahead of both baselines, behind one of them, else open."""
    half = component_of(1000.0).half_width()
    sure, near = exp(2 * half), exp(half / 2)
    found = suite_of((sure, sure), (sure, near), (near, 1 / near), (sure, 1 / sure), (1 / sure, 1 / near))
    monkeypatch.setattr(comparisons, "suite_cells", lambda: found)
    assert list(standings().values()) == ["ahead", "open", "open", "behind", "behind"]


def test_a_line_of_figures_is_marked_by_the_machine_code_of_its_problems_and_the_day(monkeypatch):
    """Rows of a benchmark have no day; the record of their file has it. Without digests nothing is compared."""
    rows = [
        row(stage="compare", sizes=(64, 64, 64), code="c0de", against="cublas"),
        row(stage="compare", sizes=(64, 64, 64), code="c0de", against="cublaslt"),
        row(stage="compare", sizes=(128, 64, 64), code="dead"),
        row("timeout", stage="compare", sizes=(256, 64, 64)),
    ]
    about = {"kernel": "of no matter", "created": "2026-11-25 10:00", "versions": {DSL: "4.8.1"}}
    study = SimpleNamespace(provenance=about, stage=lambda *stages: rows)
    kernel = KernelId.of(rows[0].point.config, rows[0].point.problem)
    code = TodaysCode("of no matter", {DSL: "4.8.1"}, {kernel_name(kernel): "c0de"})
    monkeypatch.setattr(comparisons, "recorded", lambda name: study)
    monkeypatch.setattr(comparisons, "todays_code", lambda: code)
    assert mark_of("suite") == "this version's for 1 of 2, 2026-11-25"
    lines = [{"problem": [64, 64, 64], "configs": {"ours": {}}, "us": {}}]
    monkeypatch.setattr(comparisons, "invariant_on_h100", lambda: lines)
    assert mark_of("invariant") == "not compared, 2026-11-26"
    lines[0] |= {"code": {"ours": "c0de"}, "dsl": "4.8.1"}
    assert mark_of("invariant") == "this version's, 2026-11-26"


def test_boards_of_several_days_have_the_first_and_the_last(monkeypatch):
    days = {"one": "2026-11-28", "two": "2026-11-26", "three": "2026-11-27"}
    unmarked = Measured(row(sizes=(64, 64, 64)).point.config, GemmProblem(64, 64, 64))
    monkeypatch.setattr(comparisons, "measured_kernels", lambda name: [unmarked])
    monkeypatch.setattr(comparisons, "day_of", days.__getitem__)
    assert mark_of(*days) == "not compared, 2026-11-26 to 2026-11-28"
    assert mark_of("two", "two") == "not compared, 2026-11-26"


@pytest.mark.results
def test_a_mark_is_of_the_rows_whose_figures_its_line_gives():
    """Of held-out problems the picks alone, of random problems those that need no padding."""
    counts = {name: len({row.point.problem for row in figure_rows(name)}) for name in MARKED}
    assert counts == {
        "suite-tuned-on-h100": 24,
        "suite-tuned-on-h100-second": 24,
        "suite-tuned-on-h100-third": 24,
        "suite": 24,
        "suite-beside-lists": 24,
        "suite-beside-lists-second": 24,
        "suite-chained": 24,
        "short": 24,
        "fp8-tuned": 24,
        "fp8-row-tuned": 24,
        "fp8-blocks-tuned": 24,
        "suite-chained-on-h100": 24,
        "steady-on-h100": 1,
        "fresh-28": 60,
        "fresh-29": 60,
        "drawn-again": 13,
        "map-held-out": 134,
    }
    assert {one.code != "" and one.dsl != "" for name in MARKED for one in measured_kernels(name)} == {True}


def test_a_row_of_padded_problems_that_has_a_label_alone_is_not_compared(monkeypatch):
    rows = [{"problem": {"m": 64, "n": 63, "k": 64}, "config": "128x128x64 s7", "us": {}}]
    monkeypatch.setattr(comparisons, "measured_rows", lambda name: rows)
    (measured,) = measured_kernels("ragged")
    assert isinstance(measured, Measured)
    assert (measured.problem, measured.kernel) == (GemmProblem(64, 63, 64), None)
    assert mark_of("ragged").startswith("not compared, ")
