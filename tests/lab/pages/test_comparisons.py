"""Findings across comparisons: published intervals count the boards and processes that measured."""

from __future__ import annotations

from itertools import pairwise
from math import exp
from types import SimpleNamespace

import pytest

from hopper_gemm.compiler.loader import compile_into
from hopper_gemm.compiler.store import KernelId, KernelStore, versions
from hopper_gemm.lab.pages import comparisons, sources
from hopper_gemm.lab.pages.comparisons import standings, version_of, widened
from hopper_gemm.lab.pages.sources import CURRENT, recorded
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
        f"problem {n}": {name: {**about, **dict.fromkeys(ends, one)} for name, one in zip(FASTER, both, strict=True)}
        for n, both in enumerate(speedups)
    }


def test_a_problem_is_ahead_or_behind_only_by_its_whole_published_interval(monkeypatch):
    """Ahead of both baselines, behind one of them, else open."""
    half = component_of(1000.0).half_width()
    sure, near = exp(2 * half), exp(half / 2)
    found = suite_of((sure, sure), (sure, near), (near, 1 / near), (sure, 1 / sure), (1 / sure, 1 / near))
    monkeypatch.setattr(comparisons, "suite_cells", lambda: found)
    assert list(standings().values()) == ["ahead", "open", "open", "behind", "behind"]


def test_a_figure_is_marked_with_the_version_of_the_kernel_that_gave_it(monkeypatch):
    about = {"a": {"kernel": "now", "created": "2026-11-25 10:00"}, "b": {"kernel": "then", "created": "2026-11-22 1"}}
    for module in (comparisons, sources):
        monkeypatch.setattr(module, "recorded", lambda name: SimpleNamespace(provenance=about[name]))
    monkeypatch.setattr(sources, "CURRENT", ())
    monkeypatch.setattr(sources, "kernel_digest", lambda: "now")
    assert [version_of(name) for name in "ab"] == ["this version, 2026-11-25", "an earlier version, 2026-11-22"]
    assert version_of("a", "b") == "this version, an earlier version, 2026-11-25, 2026-11-22"
    monkeypatch.setattr(sources, "CURRENT", ("b",))
    assert version_of("b") == "this version, 2026-11-22"


@pytest.mark.compile
@pytest.mark.timeout(600)
def test_figures_of_this_version_are_of_todays_machine_code(kernel_store):
    """Every kernel of ours in the comparisons that the pages call current compiles to the code that was measured."""
    rows = [row for name in CURRENT for row in recorded(name).stage("compare") if row.ok]
    if not rows:
        pytest.skip("the pages call no comparison current: the kernel has changed since each")
    then = recorded(CURRENT[0]).provenance["versions"]
    if any(then.get(name) not in (None, found) for name, found in versions().items()):
        pytest.skip(f"measured with {then}, here are {versions()}: their machine code differs")
    measured = {KernelId.of(row.point.config, row.point.problem): row.figures["code"] for row in rows}
    store = KernelStore(kernel_store)
    assert {str(kernel): compile_into(store, kernel).code for kernel in measured} == {
        str(kernel): code for kernel, code in measured.items()
    }
