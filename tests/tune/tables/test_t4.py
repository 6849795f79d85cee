"""The T4 export follows the published schema and gives every figure of our rows."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.schema import STATUSES
from hopper_gemm.tune.tables.t4 import INVALIDITY, export
from tests.conftest import ROOT
from tests.tune.tables.making import row, write_study

STAGGER = ROOT / "results/archive/h200/2026-11-21-stagger"

RESULTS = json.loads(Path(__file__).with_name("t4.json").read_text())
"""The schema of a results file."""


def documents(paths):
    return [json.loads(path.read_text()) for path in paths]


def measured(result):
    return {one["name"]: one["value"] for one in result["measurements"]}


def test_every_file_of_a_recorded_study_follows_the_schema(tmp_path):
    *files, about = documents(export(STAGGER, tmp_path / "t4.json"))
    assert [len(one["results"]) for one in files] == [380, 380]
    for one in files:
        jsonschema.validate(one, RESULTS)
    assert about["schema_version"] == files[0]["schema_version"]
    assert {"hardware", "environment"} <= about["metadata"].keys()


def test_a_result_says_what_its_row_says(tmp_path):
    (document,) = documents([export(STAGGER, tmp_path / "t4.json")[0]])
    rows = [one for one in read_study(STAGGER).stage("sweep") if one.point.problem.k == 8192]
    assert len(rows) == len(document["results"])
    for one, result in zip(rows[::20], document["results"][::20], strict=True):
        config = GemmConfig(**result["configuration"])
        assert config == GemmConfig.like(resolve(config))  # nothing is left open
        assert resolve(config) == one.point.config
        found = measured(result)
        assert found["speedup"] == one.figures["speedup"]
        assert found["time"] == pytest.approx(one.figures["time_us"] / 1e3)
        assert result["times"]["runtimes"] == pytest.approx([pair.ours_us / 1e3 for pair in one.samples])
        assert found["baseline_runtimes"] == pytest.approx([pair.baseline_us / 1e3 for pair in one.samples])
        assert len(result["times"]["runtimes"]) == one.figures["pairs"]


def test_a_document_names_regime_context_baseline_and_boards(tmp_path):
    folder = write_study(tmp_path / "s", row(), row(context="chained", board="GPU-2"))
    files = export(folder, tmp_path / "t4.json")
    assert [file.name for file in files] == [
        "t4-64x64x64-burst-isolated.json",
        "t4-64x64x64-burst-chained.json",
        "t4-metadata.json",
    ]
    about = documents(files)[1]["metadata"]
    assert (about["regime"], about["context"], about["baseline"], about["boards"]) == (
        "burst",
        "chained",
        "cublas",
        ["GPU-2"],
    )


def test_isolated_runtimes_are_without_the_spacer(tmp_path):
    one = row(pairs=((14.0, 24.0),))
    one = type(one)(**{**vars(one), "samples": (one.samples[0]._replace(spacer_us=4.0),)})
    (document, _) = documents(export(write_study(tmp_path / "s", one), tmp_path / "t4.json"))
    (result,) = document["results"]
    assert result["times"]["runtimes"] == [0.01]
    assert measured(result)["baseline_runtimes"] == [0.02]


def test_what_did_not_run_has_a_word_of_the_format_and_no_times(tmp_path):
    rows = [row(), row("illegal", "stages: exceeds smem", tile_m=320), row("timeout", "killed", tile_m=192)]
    (document, _) = documents(export(write_study(tmp_path / "s", *rows), tmp_path / "t4.json"))
    jsonschema.validate(document, RESULTS)
    bad = [one for one in document["results"] if one["invalidity"] != "correct"]
    assert sorted(one["invalidity"] for one in bad) == ["constraints", "timeout"]
    assert all(one["times"] == {} and one["correctness"] == 0 and "time" not in measured(one) for one in bad)
    assert any("exceeds smem" in measured(one)["reason"] for one in bad)


def test_every_status_has_a_word():
    assert set(INVALIDITY) == set(STATUSES)


def test_a_folder_named_as_the_file_is_refused(tmp_path):
    with pytest.raises(ResultsError, match=r"--out must be a file but .* is a folder; name one in it"):
        export(STAGGER, tmp_path)


def test_a_study_without_a_sweep_is_refused_and_leaves_no_file(tmp_path):
    folder = write_study(tmp_path / "s", row(stage="compare"), row(stage="map"))
    with pytest.raises(ResultsError, match=r"needs rows of a sweep but .* has compare, map; .* --format csv writes"):
        export(folder, tmp_path / "out" / "t4.json")
    assert not (tmp_path / "out").exists()


def test_samples_that_were_not_kept_leave_no_runtimes(tmp_path):
    (document, _) = documents(export(write_study(tmp_path / "s", row()), tmp_path / "t4.json"))
    jsonschema.validate(document, RESULTS)
    assert all("runtimes" not in one["times"] for one in document["results"])
