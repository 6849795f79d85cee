"""The picture of a comparison shows every problem over both baselines, and is the same file from the same rows."""

from __future__ import annotations

from hopper_gemm.lab.pages.sources import recorded
from hopper_gemm.tune.tables.compare import cells
from hopper_gemm.tune.tables.forest import forest, series


def test_the_faster_baseline_is_the_one_over_which_the_speedup_is_least():
    shown = series(cells(recorded("suite").stage("compare")))
    over, faster = shown["torch.mm"], shown["the faster of torch.mm and cuBLASLt"]
    assert len(over) == len(faster) == 24
    assert [problem for problem in over if faster[problem]["speedup"] > over[problem]["speedup"]] == []


def test_equal_rows_give_equal_bytes_and_every_problem_is_named(tmp_path):
    records = cells(recorded("suite").stage("compare"))
    for name in ("one.svg", "two.svg"):
        forest(records, tmp_path / name, "suite")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    text = (tmp_path / "one.svg").read_text()
    assert [record["problem"] for record in records if record["problem"] not in text] == []


def test_a_comparison_of_one_problem_has_no_picture(tmp_path):
    records = [record for record in cells(recorded("suite").stage("compare")) if record["problem"] == "4096x4096x4096"]
    assert records
    forest(records, tmp_path / "one.svg", "one")
    assert not (tmp_path / "one.svg").exists()
