"""The T4 export follows the published schema and gives every figure of our rows."""

from __future__ import annotations

import json

import jsonschema
import pandas as pd
import pytest

from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.schema import STATUSES
from hopper_gemm.tables.t4 import INVALIDITY, export
from hopper_gemm.tables.trials import read_samples
from hopper_gemm.tuning.spec import read_spec
from hopper_gemm.tuning.sweep import Sweep
from tests.conftest import ROOT
from tests.test_cli import run
from tests.tuning.fakes import SPEC, FakeBackend

STAGGER = ROOT / "results/h200/stagger"

NUMBER = {"type": "number"}
RESULTS = {
    "type": "object",
    "required": ["schema_version", "results"],
    "properties": {
        "schema_version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "metadata": {
            "properties": {
                "compute_api": {"enum": ["OpenCL", "CUDA", "Vulkan"]},
                "timeunit": {"enum": ["nanoseconds", "microseconds", "milliseconds", "seconds"]},
            }
        },
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["timestamp", "configuration", "objectives", "times", "invalidity", "correctness"],
                "properties": {
                    "timestamp": {"type": "string"},
                    "configuration": {"type": "object"},
                    "objectives": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "times": {
                        "type": "object",
                        "properties": {
                            "runtimes": {"type": "array", "items": NUMBER},
                            "compilation_time": NUMBER,
                            "framework": NUMBER,
                            "search_algorithm": NUMBER,
                            "validation": NUMBER,
                            "benchmark": NUMBER,
                        },
                    },
                    "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
                    "correctness": {"enum": [0, 1]},
                    "measurements": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name", "value", "unit"],
                            "additionalProperties": False,
                            "properties": {
                                "name": {"type": "string"},
                                "value": {"type": ["number", "string", "array"]},
                                "unit": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
}
"""What T4 1.0.0 asks of a results file, and more strictly: written anew from kernel_tuner/schema/T4/1.0.0 of
https://github.com/KernelTuner/kernel_tuner and its successor in AutoTuningAssociation/autotuning_methodology. What is
only recommended there (timestamp, objectives, units) is required here."""

METADATA = {
    "type": "object",
    "required": ["schema_version", "metadata"],
    "properties": {
        "schema_version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "metadata": {
            "type": "object",
            "required": ["hardware", "environment"],
            "properties": {
                "zenodo": {"type": "object"},
                "hardware": {"type": "object", "properties": {"hardware_description": {"type": "array"}}},
                "environment": {
                    "type": "object",
                    "properties": {"device_query": {"type": "object"}, "requirements": {"type": "array"}},
                },
            },
        },
    },
}


def documents(paths):
    return [json.loads(path.read_text()) for path in paths]


def measured(result):
    return {one["name"]: one["value"] for one in result["measurements"]}


def test_every_file_of_a_recorded_study_follows_the_schema(tmp_path):
    *files, about = documents(export(STAGGER, tmp_path / "t4.json"))
    assert [len(one["results"]) for one in files] == [380, 380]
    for one in files:
        jsonschema.validate(one, RESULTS)
    jsonschema.validate(about, METADATA)


def test_a_result_says_what_its_row_says(tmp_path):
    first = export(STAGGER, tmp_path / "t4.json")[0]
    frame, samples = read_study(STAGGER).trials, read_samples(STAGGER)
    (document,) = documents([first])
    rows = frame[frame["k"] == 8192].to_dict("records")
    assert len(rows) == len(document["results"])
    for row, result in zip(rows[::20], document["results"][::20], strict=True):
        config = GemmConfig(**result["configuration"])
        assert config == resolve(config)
        assert {name: row[name] for name in FIELDS} == result["configuration"]
        found = measured(result)
        assert found["speedup"] == row["speedup"]
        assert found["time"] == pytest.approx(row["time_us"] / 1e3)
        pairs = samples.query("k == 8192 and stage == 'sweep' and config == @config.__str__()")
        assert result["times"]["runtimes"] == pytest.approx((pairs["ours_us"] / 1e3).tolist())
        assert found["cublas_runtimes"] == pytest.approx((pairs["cublas_us"] / 1e3).tolist())
        assert len(pairs) == row["pairs"]


def test_what_did_not_run_has_a_word_of_the_format_and_no_times(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    Sweep(read_spec(path), tmp_path / "small").run(FakeBackend())
    (document, _) = documents(export(tmp_path / "small", tmp_path / "one.json"))
    jsonschema.validate(document, RESULTS)
    bad = [one for one in document["results"] if one["invalidity"] != "correct"]
    assert sorted(one["invalidity"] for one in bad) == ["constraints", "timeout"]
    assert all(one["times"] == {} and one["correctness"] == 0 and "time" not in measured(one) for one in bad)
    assert any("exceeds smem" in measured(one)["reason"] for one in bad)


def test_every_status_has_a_word():
    assert set(INVALIDITY) == set(STATUSES)


def test_the_schema_of_this_test_refuses_what_t4_refuses():
    good = {"timestamp": "", "configuration": {}, "objectives": ["time"], "times": {}, "invalidity": "correct"}
    with pytest.raises(jsonschema.ValidationError, match="'correctness' is a required property"):
        jsonschema.validate({"schema_version": "1.0.0", "results": [good]}, RESULTS)
    with pytest.raises(jsonschema.ValidationError, match="is not one of"):
        jsonschema.validate(
            {"schema_version": "1.0.0", "results": [{**good, "correctness": 1, "invalidity": "slow"}]}, RESULTS
        )


def test_the_command_names_its_files_and_refuses_other_formats(tmp_path):
    done = run("export", "results/h200/seed-table", "--out", str(tmp_path / "t4.json"), "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["files"]) == 5
    other = run("export", "results/h200/seed-table", "--format", "t1")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "--format must be t4 but got 't1'" in other.stderr
    taken = run("export", "results/h200/seed-table", "--out", str(tmp_path))
    assert "--out must be a file but" in taken.stderr
    nowhere = run("export", "sweeps")
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)


def test_samples_that_were_not_kept_leave_no_runtimes(tmp_path):
    folder = tmp_path / "tile-shape"
    folder.mkdir()
    for name in ("trials.csv", "provenance.json"):
        (folder / name).write_bytes((ROOT / "results/h200/tile-shape" / name).read_bytes())
    for document in documents(export(folder, tmp_path / "t4.json"))[:-1]:
        jsonschema.validate(document, RESULTS)
        assert all("runtimes" not in one["times"] for one in document["results"])
    assert isinstance(read_samples(folder), pd.DataFrame)
