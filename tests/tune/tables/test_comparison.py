"""The comparison's page: what is pooled, what the means are over, and who is behind, in each context."""

from __future__ import annotations

import re
from math import log

import pytest

from hopper_gemm.lab.guard.baseline import RecordedBaseline
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.baselines import BASELINES
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.spec import AGAINST
from hopper_gemm.tune.tables.comparison import as_published, cells, compare_page, geometric_mean, means, recorded
from tests.tune.tables.making import row, write_study


def cell(m, against="cublas", speedup=1.0, process=0, **more):
    figures = {"speedup": speedup, "speedup_low": speedup - 0.01, "speedup_high": speedup + 0.01, "how": "tuned"}
    about = {"sizes": (m, 512, 512), "against": against, "stage": "compare", "process": process}
    return row(**{**about, **(figures if more.get("status", "ok") == "ok" else {}), **more})


def test_the_page_knows_every_baseline_and_no_other():
    """Recorded binaries are for ``check`` alone."""
    assert list(AGAINST) == [name for name in BASELINES if name != RecordedBaseline.name]


def test_of_several_configs_of_a_cell_the_one_measured_last_stands():
    (record,) = cells([cell(512, speedup=1.1), cell(512, speedup=1.2, peek=False)])
    assert record["speedup"] == 1.2


def test_a_mean_is_geometric_and_says_what_it_lacks_and_who_is_behind():
    rows = [cell(512, speedup=2.0), cell(1024, speedup=0.5), cell(2048, speedup=0.995), cell(4096, status="timeout")]
    cublas, cublaslt = means(cells([*rows, cell(512, "cublaslt")]))
    assert cublas.speedup == pytest.approx((2.0 * 0.5 * 0.995) ** (1 / 3))
    assert (cublas.problems, cublas.total) == (3, 4)
    assert (cublas.worst, cublas.worst_on) == (0.5, "1024x512x512")
    assert cublas.behind == ("1024x512x512",), "an interval that touches 1 is even"
    assert cublaslt.speedup == 1.0
    assert "over 3 of 4 problems, least 0.500x on 1024x512x512, behind on 1: 1024x512x512" in str(cublas)


def test_the_interval_of_a_mean_holds_for_other_boards_and_narrows_with_the_problems():
    """It follows from the published intervals of the problems, whose errors are independent."""
    mean, single = (means(cells([cell(512 * (i + 1), speedup=1.05) for i in range(n)]))[0] for n in (4, 1))
    (record,) = cells([cell(512, speedup=1.05)])
    assert (single.low, single.high) == (as_published(record).low, as_published(record).high)
    assert log(mean.speedup / mean.low) == pytest.approx(log(single.speedup / single.low) / 2)
    assert log(mean.high / mean.speedup) == pytest.approx(log(single.high / single.speedup) / 2)


def test_a_recorded_board_counts_only_with_the_same_machine_code(tmp_path, monkeypatch):
    """Changed sources make another kernel of the same config. A failed row has no machine code, and parts no boards."""
    for module in ("study.reader", "study.files", "tables.comparison"):
        monkeypatch.setattr(f"hopper_gemm.tune.{module}.results_root", lambda: tmp_path)
    boards = {
        "older": [cell(512, code="b", board="older"), cell(1024, code="c", board="older")],
        "other": [cell(512, code="a", board="other"), cell(1024, status="timeout", board="other")],
        "newest": [cell(512, code="a", board="newest"), cell(1024, code="c", board="newest")],
    }
    for day, (board, rows) in enumerate(boards.items(), start=1):
        about = {"spec": {"config": "tuned"}, "created": f"2026-11-0{day} 08:00 UTC"}
        write_study(tmp_path / "h200" / board, *rows, **about)
    problems = [GemmProblem(m, 512, 512) for m in (512, 1024)]
    found = recorded(["s"], problems, None, ("burst", "isolated"), None)
    assert found.provenance["boards"] == ["other", "newest"]


def test_a_geometric_mean_passes_over_what_is_missing():
    assert geometric_mean([2.0, float("nan"), 0.5]) == 1.0


def test_the_page_leads_with_isolated_and_names_the_chained_figure_beside_it(tmp_path):
    """The two contexts have a line, a mean and a sentence each; none is averaged with the other."""
    rows = [cell(512, speedup=1.2, context="chained"), cell(512, speedup=1.05), cell(640, speedup=1.07)]
    page = compare_page(read_study(write_study(tmp_path, *rows)))
    lines = page.splitlines()
    first, second = (
        next(i for i, line in enumerate(lines) if line.startswith(f"| 512x512x512 | {c} |"))
        for c in ("isolated", "chained")
    )
    assert second == first + 1
    assert "| geometric mean | isolated |  |  | 1.060x [" in page
    assert "| geometric mean | chained |  |  | 1.200x [" in page
    assert re.search(r"- cublas, isolated: 1\.060x \[1\.0\d\d, 1\.\d{3}\] over 2 problems", page)
    assert "Regime: burst; context: chained, isolated; board: GPU-1." in page


def test_the_page_shows_speedups_failures_and_where_a_config_was_tuned(tmp_path):
    other = {"how": "other regime", "tuned_on": "1024x1024x1024 steady isolated"}
    bad = cell(512, "cublaslt", status="no_baseline", reason="a | b")
    study = read_study(write_study(tmp_path, cell(512, speedup=1.25, time_us=50.0), bad, cell(640, **other)))
    page = compare_page(study)
    assert "| problem | context | us | TFLOP/s | cublas | cublaslt | config | tuned on |" in page
    assert "| 512x512x512 | isolated | 50.0 | 700 | 1.250x [1.240, 1.260] | no baseline |" in page
    assert "| 1024x1024x1024 steady isolated |" in page
    assert "no baseline: a \\| b" in page
    assert "`nvjet`" in page
