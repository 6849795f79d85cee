"""Tables that no sweep made are read only as they were recorded."""

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


def test_every_recorded_table_is_what_its_provenance_says():
    folder = ROOT / "results/measurements"
    said = read_object(folder / PROVENANCE)
    assert set(said) == {path.name for path in folder.iterdir() if path.suffix != ".svg"} - {PROVENANCE}
    for name, entry in said.items():
        assert measurement(name) == folder / name
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
    assert measurement("loss.csv") == path
    assert read_object(path.with_name(PROVENANCE))["loss.csv"] | {"digest": ""} == {
        "lines": 4,
        "digest": "",
        "gpus": ["NVIDIA H200"],
        "boards": ["unknown"],
        "kernels": ["0123456789abcdef"],
        "date": "2026-11-26",
    }
    path.write_text(damage(TEXT))
    with pytest.raises(ResultsError, match=r"loss.csv must be what provenance.json beside it says .* restore it"):
        measurement("loss.csv")
    record(path)
    assert measurement("loss.csv") == path
    with pytest.raises(ResultsError, match=r"other\.csv does not exist"):
        measurement("other.csv")


def test_no_tracked_file_is_over_two_mib():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.decode()
    paths = [ROOT / name for name in names.split("\0") if name]
    assert [str(path) for path in paths if path.is_file() and path.stat().st_size > 2 * MIB] == []
