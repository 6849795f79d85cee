"""The data package describes every recorded row: column by column, file by file, board by board."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from docs.generate import data
from hopper_gemm.tune.study.row import header
from hopper_gemm.tune.tables.view import DTYPES
from tests.conftest import ROOT
from tests.tune.tables.making import row, write_study

RESULTS = ROOT / "results"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A results folder with two studies of one name, the second of an unknown board, and a measurement."""
    studies = [
        write_study(tmp_path / "h100/s", row(), row("timeout", "killed", tile_m=64)),
        write_study(tmp_path / "h200/s", row(board="unknown", peek="producer")),
    ]
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements/rest.csv").write_text("rest_ms,gpu\n5,NVIDIA H200\n")
    monkeypatch.setattr(data, "recorded_folders", lambda: studies)
    monkeypatch.setattr(data, "results_root", lambda: tmp_path)
    return tmp_path


PAGES = f"results/{data.SCHEMA} is not of today's columns; run make pages"


def test_the_schema_names_exactly_the_columns_of_todays_rows():
    schema = json.loads((RESULTS / data.SCHEMA).read_text())
    assert [field["name"] for field in schema["fields"]] == [data.FOLDER.name, *header().split(",")], PAGES
    assert schema == data.table_schema(), PAGES


def test_a_file_that_names_no_board_is_marked_unknown(folders):
    boards = {one["name"]: one["boards"] for one in data.package(folders)["resources"]}
    assert boards == {"h100-s": ["GPU-1"], "h200-s": ["unknown"], "measurements-rest.csv": ["unknown"]}


def test_the_parquet_of_all_rows_has_the_columns_and_types_of_the_schema(folders):
    pytest.importorskip("pyarrow", reason="pyarrow, which Parquet needs, is not installed")
    assert data.write_rows(folders / "build/rows.parquet") == 3
    read = pd.read_parquet(folders / "build/rows.parquet")
    *fields, check = data.table_schema()["fields"]
    assert check["name"] == data.CHECK.name
    assert {name: str(dtype) for name, dtype in read.dtypes.items()} == {
        field["name"]: DTYPES[field["type"]] for field in fields
    }
    assert read["folder"].tolist() == ["h100/s", "h100/s", "h200/s"]


@pytest.mark.results
def test_the_package_lists_every_recorded_file_as_the_rows_are_today():
    package = json.loads((RESULTS / data.PACKAGE).read_text())
    assert package == data.package(RESULTS)
    paths = [RESULTS / one[key] for one in package["resources"] for key in ("path", "provenance") if key in one]
    assert [path for path in paths if not path.is_file()] == []
    assert len({one["name"] for one in package["resources"]}) == len(package["resources"])
