"""Files of results that are no rows of a study are read only as they were recorded."""

from __future__ import annotations

import subprocess

import pytest

from docs.generate import measurements
from docs.generate.measurements import measurement, record
from hopper_gemm.tune.study.files import read_object
from hopper_gemm.tune.study.provenance import PROVENANCE
from hopper_gemm.tune.study.row import ResultsError
from tests.conftest import ROOT

TEXT = 'size,loss\n16,0.5\n32,0.25\n{"kernel": "0123456789abcdef", "gpu": "NVIDIA H200"}\n'
MIB = 2**20


SUMMED = ("rows.csv", "rows.csv.xz", "rows.json", "rows.jsonl", PROVENANCE, "best_configs.json", "recorded_code.json")
"""Files with sums of their own, or in the provenance of their study."""

DERIVED = ("todays_code.json", "datapackage.json", "rows.schema.json", "verify-cpu.csv", "damages.csv", "mutants.jsonl")
"""Files that a command computes again, without a GPU."""


def test_every_file_of_results_has_a_sum_or_is_made_of_those_that_have():
    root = ROOT / "results"
    paths = [path for path in root.rglob("*") if path.suffix in (".csv", ".json", ".jsonl", ".gz", ".xz")]
    paths = [path for path in paths if path.name not in (*SUMMED, *DERIVED) and path.parent.name != "recorded"]
    said = read_object(root / PROVENANCE)
    assert set(said) == {str(path.relative_to(root)) for path in paths if "local" not in path.parts}
    for name, entry in said.items():
        assert measurement(name) == root / name
        assert all(entry[key] for key in ("gpus", "boards", "kernels", "date"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("16", "17"),
        lambda text: text.replace("32,0.25\n", ""),
        lambda text: text.replace("16,0.5\n32,0.25\n", "32,0.25\n16,0.5\n"),
        lambda text: text.replace("0.25", "NaN"),
        lambda text: text[:-1],
        lambda text: text + "64,0.1\n",
        lambda text: "",
    ],
)
def test_a_table_that_was_changed_is_refused_until_it_is_recorded_anew(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(measurements, "results_root", lambda: tmp_path)
    path = tmp_path / "measurements/loss.csv"
    path.parent.mkdir()
    path.write_text(TEXT)
    record(path, "2026-11-26")
    assert measurement("measurements/loss.csv") == path
    assert read_object(tmp_path / PROVENANCE)["measurements/loss.csv"] | {"digest": ""} == {
        "lines": 4,
        "digest": "",
        "gpus": ["NVIDIA H200"],
        "boards": ["unknown"],
        "kernels": ["0123456789abcdef"],
        "date": "2026-11-26",
    }
    path.write_text(damage(TEXT))
    with pytest.raises(ResultsError, match=r"loss.csv must be what results/provenance.json says .* restore it"):
        measurement("measurements/loss.csv")
    record(path)
    assert measurement("measurements/loss.csv") == path
    with pytest.raises(ResultsError, match=r"other\.csv does not exist"):
        measurement("measurements/other.csv")


def test_no_tracked_file_is_over_two_mib():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.decode()
    paths = [ROOT / name for name in names.split("\0") if name]
    assert [str(path) for path in paths if path.is_file() and path.stat().st_size > 2 * MIB] == []
