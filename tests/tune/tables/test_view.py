"""A study's tables fit a terminal and a page, and its rows are numbers to a program."""

from __future__ import annotations

import json
import sys
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from docs.generate.pages.sources import read
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.reader import has_rows, read_study
from hopper_gemm.tune.study.row import ResultsError, as_text
from hopper_gemm.tune.study.schema import BY_NAME
from hopper_gemm.tune.tables.view import rows_as_measured, view
from tests.tune.tables.making import row, write_study

COMPARED = [
    row(stage="compare", sizes=(m, 64, 64), against=against, speedup=speedup, speedup_low=speedup, speedup_high=speedup)
    for m, against, speedup in ((64, "cublas", 1.0), (256, "cublas", 1.44), (64, "cublaslt", 0.5))
]


def printed(found, width):
    file = StringIO()
    found.print(Console(file=file, width=width, markup=False, highlight=False))
    return file.getvalue()


@pytest.mark.results
def test_every_recorded_study_is_numbers_to_pandas_and_fits_80_columns():
    """Also those whose tables are wide: comparisons, ladders, studies with facets."""
    folders = [path for path in sorted(results_root().glob("h200/**")) if path.is_dir() and has_rows(path)]
    assert len(folders) > 20
    for folder in folders:
        found = view(read(folder))
        table = pd.read_csv(StringIO(found.text("csv")))
        assert len(table) == len(found.rows) > 0, folder
        for name in table:
            if name in BY_NAME and BY_NAME[name].kind in ("number", "integer"):
                assert pd.api.types.is_numeric_dtype(table[name]), (folder, name)
        said = json.loads(found.text("json"))
        assert said["provenance"] == found.study.provenance
        speedups = [float("nan") if one["speedup"] is None else one["speedup"] for one in said["rows"]]
        assert table["speedup"].tolist() == pytest.approx(speedups, nan_ok=True), folder
        assert max(map(len, printed(found, 80).splitlines())) <= 80, folder


def test_rows_of_a_table_are_those_of_its_cells(tmp_path):
    """The fastest of the configs that share a cell; a config that did not run has a reason and no figure."""
    kept = [row(tile_m=64, speedup=0.9), row(tile_m=64, peek=False, speedup=0.8), row("illegal", "a rule", tile_m=128)]
    rows = view(read_study(write_study(tmp_path, *kept))).rows
    assert rows[["problem", "tile_m", "status", "reason"]].to_numpy().tolist() == [
        ["64x64x64", 64, "ok", ""],
        ["64x64x64", 128, "illegal", "a rule"],
    ]
    assert rows["speedup"].iloc[0] == 0.9
    assert rows["speedup"].isna().tolist() == [False, True]
    assert "samples" not in rows


def test_a_pivot_is_spanned_by_what_the_study_names_unless_others_are_asked_for(tmp_path):
    kept = [row(tile_m=128, tile_n=64, cluster_m=m, stages=s) for m in (1, 2) for s in (2, 3)]
    study = read_study(write_study(tmp_path, *kept, rows="cluster", cols="stages", facet_rows="tile"))
    (own,), (asked,) = view(study).tables, view(study, cols="tile_n", value="tflops").tables
    assert own.title == "64x64x64 burst isolated: speedup over cuBLAS (stages)"
    assert (own.corner, own.cells.index.tolist()) == ("tile, cluster \\ stages", ["128x64, 1x1", "128x64, 2x1"])
    assert (asked.corner, asked.cells.to_numpy().tolist()) == ("cluster \\ tile_n", [["700"], ["700"]])
    assert view(study).rows["cluster"].tolist() == ["1x1", "1x1", "2x1", "2x1"]


def test_a_comparison_has_a_row_for_each_baseline_and_its_means_beside(tmp_path):
    found = json.loads(view(read_study(write_study(tmp_path, *COMPARED)), {"problem": "64x64x64"}).text("json"))
    assert [(one["against"], one["speedup"], one["watts"]) for one in found["rows"]] == [
        ("cublas", 1.0, 1.0),
        ("cublaslt", 0.5, 1.0),
    ]
    assert [(one["against"], one["speedup"]) for one in found["means"]] == [
        ("cublas", 1.0),
        ("cublaslt", pytest.approx(0.5)),
    ]


def test_a_config_that_was_tuned_for_something_else_is_marked_on_a_terminal(tmp_path):
    other = {"how": "other context", "tuned_on": "64x64x64 burst chained"}
    more = [row(stage="compare", sizes=(512, 64, 64), **other), row(stage="compare", sizes=(640, 64, 64), how="tuned")]
    text = printed(view(read_study(write_study(tmp_path, *more))), 80)
    assert [line.split()[:2] for line in text.splitlines() if line.startswith(("512x64x64 ", "640x64x64 "))] == [
        ["512x64x64", "*"],
        ["640x64x64", "100.0"],
    ]
    assert "\n* not tuned for this very problem" in text


def test_a_table_too_wide_for_a_terminal_wraps_its_cells_then_goes_on_below(tmp_path):
    study = read_study(write_study(tmp_path, *[row(k_depth=depth, stages=1) for depth in range(1, 13)]))
    wide, wrapped, parts = (printed(view(study), width).splitlines() for width in (200, 80, 40))
    assert sum("1.00x (1)" in line for line in wide) == 1
    assert sum(line.count("1.00x") for line in wrapped) == sum(line.count("(1)") for line in wrapped) == 12
    assert sum(line.startswith("256 ") for line in wrapped) == 1
    assert sum(line.startswith("256 ") for line in parts) == 3
    assert max(map(len, parts)) <= 40


def test_html_is_a_whole_page_in_which_text_is_text(tmp_path):
    study = read_study(write_study(tmp_path, row(), gpu={"name": "<i>", "driver": "580"}))
    text = view(study).text("html")
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert "Measured on an &lt;i&gt;, driver 580" in text
    assert "<i>" not in text


def test_a_csv_file_has_its_provenance_beside_it(tmp_path):
    found = view(read_study(write_study(tmp_path / "s", row())))
    assert [path.name for path in found.write(tmp_path / "t.csv", "csv")] == ["t.csv", "t-provenance.json"]
    assert json.loads((tmp_path / "t-provenance.json").read_text()) == found.study.provenance
    assert [path.name for path in found.write(tmp_path / "t.md", "markdown")] == ["t.md"]


def test_an_export_has_every_row_as_it_was_measured_under_the_columns_of_the_schema(tmp_path):
    kept = [row(pairs=((100.0, 90.0),)), row(baseline=True, stage="control"), row("timeout", "a, b", tile_m=64)]
    study = read_study(write_study(tmp_path, *kept))
    read = pd.read_csv(StringIO(rows_as_measured(study).text("csv")))
    assert list(read) == ["problem", "config", *BY_NAME]
    assert read["stage"].tolist() == ["sweep", "control", "sweep"]
    assert read["samples"].iloc[0] == "0:100:90:0"
    assert read["config"].isna().tolist() == [False, True, False]
    assert read["reason"].iloc[2] == "a, b"


def test_a_parquet_file_holds_the_values_of_every_row_and_null_where_one_is_missing(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow, which Parquet needs, is not installed")
    kept = [row(pairs=((100.0, 90.0),)), row(baseline=True, stage="control"), row("timeout", "a, b", peek="producer")]
    found = rows_as_measured(read_study(write_study(tmp_path / "s", *kept))).write(tmp_path / "t.parquet", "parquet")
    assert [path.name for path in found] == ["t.parquet", "t-provenance.json"]
    read = pd.read_parquet(found[0])
    assert list(read) == ["problem", "config", *BY_NAME]
    for name, column in BY_NAME.items():
        values = [one.as_dict().get(name) for one in kept]
        if column.type == "string":
            values = [as_text(value) or None for value in values]
        assert [None if pd.isna(value) else value for value in read[name]] == values, name


def test_parquet_without_pyarrow_is_refused_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    study = read_study(write_study(tmp_path / "s", row()))
    with pytest.raises(ResultsError, match=r"^Parquet needs pyarrow.*; pip install --upgrade pyarrow, or take --for"):
        rows_as_measured(study).write(tmp_path / "t.parquet", "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_what_a_study_does_not_hold_is_told_with_what_it_holds(tmp_path):
    study = read_study(write_study(tmp_path / "s", *COMPARED))
    with pytest.raises(ResultsError, match="it has 64x64x64 burst isolated, 256x64x64 burst isolated"):
        view(study, {"context": "chained"})
    with pytest.raises(ResultsError, match="leave out --rows, --cols and --value"):
        view(study, rows="stages")
