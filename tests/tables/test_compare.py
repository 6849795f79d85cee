"""The comparison's table: what is pooled, what the means are over, and who is behind."""

from __future__ import annotations

import pytest

from hopper_gemm.measure.baselines import BASELINES
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.tables.compare import AGAINST, FILE, cells, compare_page, means, read_compare, write_rows
from hopper_gemm.tables.trials import ResultsError

ABOUT = {
    "name": "list",
    "question": "Who is ahead?",
    "gpu": {"name": "NVIDIA H200", "driver": "580"},
    "created": "today",
    "versions": {"torch": "2.11", "numpy": "2", "cublaslt": None},
}


def row(m, against="cublas", speedup=1.0, process=0, status="ok", **more):
    figures = {
        "speedup": speedup,
        "speedup_low": speedup - 0.01,
        "speedup_high": speedup + 0.01,
        "pairs": 15,
        "time_us": 100.0 + process,
        "theirs_us": 100 * speedup,
        "tflops": 700.0,
        "theirs_tflops": 700 / speedup,
        "candidates": 1,
        "kernel": "nvjet",
    }
    problem = {"m": m, "n": 512, "k": 512, "dtype": "bf16", "layouts": "kk", "regime": "burst"}
    config = resolve(GemmConfig()).as_dict()
    about = {"against": against, "process": process, "how": "tuned", "tuned_on": "", "code": "c", "status": status}
    return {**problem, **config, **about, **(figures if status == "ok" else {"reason": "a | b"}), **more}


def test_the_table_knows_every_baseline_and_no_other():
    assert list(AGAINST) == list(BASELINES)


def test_processes_of_a_cell_are_pooled_and_its_interval_spans_theirs(tmp_path):
    write_rows(tmp_path, [row(512, speedup=speed, process=p) for p, speed in enumerate((1.0, 1.1, 1.02))])
    (record,) = cells(read_compare(tmp_path))
    assert record["speedup"] == 1.02
    assert (record["speedup_low"], record["speedup_high"]) == pytest.approx((0.99, 1.11))
    assert (record["pairs"], record["processes"], record["time_us"]) == (45, 3, 101.0)


def test_a_process_that_failed_does_not_spoil_the_others(tmp_path):
    write_rows(tmp_path, [row(512, speedup=1.1), row(512, process=1, status="crash")])
    (record,) = cells(read_compare(tmp_path))
    assert (record["status"], record["processes"]) == ("ok", 1)


def test_a_mean_is_geometric_and_says_what_it_lacks_and_who_is_behind(tmp_path):
    rows = [row(512, speedup=2.0), row(1024, speedup=0.5), row(2048, speedup=0.995), row(4096, status="timeout")]
    write_rows(tmp_path, [*rows, row(512, "cublaslt", 1.0)])
    cublas, cublaslt = means(cells(read_compare(tmp_path)))
    assert cublas.speedup == pytest.approx((2.0 * 0.5 * 0.995) ** (1 / 3))
    assert (cublas.problems, cublas.asked) == (3, 4)
    assert (cublas.worst, cublas.worst_on) == (0.5, "1024x512x512")
    assert cublas.behind == ("1024x512x512",), "an interval that touches 1 is even"
    assert cublaslt.speedup == 1.0


def test_the_page_shows_speedups_failures_and_where_a_config_was_tuned(tmp_path):
    other = {"how": "other regime", "tuned_on": "1024x1024x1024 steady"}
    write_rows(tmp_path, [row(512, speedup=1.25), row(512, "cublaslt", status="no_baseline"), row(640, **other)])
    page = compare_page(read_compare(tmp_path), ABOUT)
    assert "| problem | us | TFLOP/s | cublas | cublaslt | config | tuned on |" in page
    assert "| 512x512x512 | 100.0 | 700 | 1.250x [1.240, 1.260] | no baseline |" in page
    assert "| 1024x1024x1024 steady |" in page
    assert "no baseline: a \\| b" in page
    assert "torch 2.11." in page
    assert "`nvjet`" in page


def test_rows_read_back_have_their_kinds(tmp_path):
    write_rows(tmp_path, [row(512, peek="producer"), row(1024, status="illegal")])
    frame = read_compare(tmp_path)
    first = frame.to_dict("records")[0]
    assert (first["serpentine"], first["peek"], first["stages"]) == (True, "producer", resolve(GemmConfig()).stages)
    assert frame["speedup"].isna().tolist() == [False, True]


def test_a_torn_line_is_passed_over_and_cut_off_by_the_next_row(tmp_path):
    write_rows(tmp_path, [row(512)])
    with (tmp_path / FILE).open("a") as file:
        file.write("1024,512,5")
    assert len(read_compare(tmp_path)) == 1
    write_rows(tmp_path, [row(2048)])
    assert read_compare(tmp_path)["m"].tolist() == [512, 2048]


def test_a_file_of_another_version_is_refused(tmp_path):
    (tmp_path / FILE).write_text("m,n\n1,2\n")
    with pytest.raises(ResultsError, match="has the columns of another version"):
        read_compare(tmp_path)
    with pytest.raises(ResultsError, match="run hopper-gemm compare"):
        read_compare(tmp_path / "none")
