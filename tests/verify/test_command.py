"""``python -m tests.verify`` says in one line what is wrong with its input, and exits 1 where something failed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure import device
from tests.protocols.ledger_model import LedgerModel
from tests.verify import batches, protocols
from tests.verify.__main__ import app
from tests.verify.drawing import Pair
from tests.verify.harness import Harness


def run(*arguments) -> int:
    """The command's exit code."""
    try:
        return app([*map(str, arguments)], standalone_mode=False) or 0
    except typer.Exit as error:
        return error.exit_code


def test_without_a_hopper_gpu_it_says_so(capsys, monkeypatch, tmp_path):
    def missing(index):
        raise device.NoHopperError("no NVIDIA GPU here")

    monkeypatch.setattr(device, "find_hopper", missing)
    assert run("--out", tmp_path) == 3
    assert capsys.readouterr().err == "hopper-gemm: no NVIDIA GPU here\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "0,x"], "--gpus must be indices"),
        (["--cpu", "--report", "nowhere/page.md"], "make nowhere first"),
        (["--cpu", "--seconds", "20"], "leave --seconds out"),
        (["--batch-invariant", "--cpu"], "leave out --cpu and --fixed"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, tmp_path, arguments, message):
    assert run("--out", tmp_path, *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("no turn", 1)])
def test_the_part_without_a_gpu_writes_rows_and_a_page(capsys, monkeypatch, tmp_path, fault, code):
    monkeypatch.setattr(protocols, "models", lambda: iter([("ledger", LedgerModel(2, 2, fault=fault))]))
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    (tmp_path / "verify-cpu.csv").write_text("proof,outcome,cases\ndamage,refused,3\n")
    assert run("--cpu", "--out", tmp_path, "--report", page, "--json", "--pairs", 7) == code
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["failed"]) == (1, code)
    text = page.read_text()
    assert "| ledger | 1 |" in text
    assert "11 pairs of config and problem" in text, "still to be run, two of them of FP8 and two of groups"
    assert "3 damaged results folders" in text


def test_the_part_on_gpus_verifies_kinds_and_pairs_and_fails_where_one_does(capsys, monkeypatch, tmp_path):
    given = {}

    def fake(self, jobs, seconds):
        given["jobs"] = list(jobs)
        if not self.rows.rows:
            self.rows.add(given["jobs"][-1].row("timeout", reason="no answer", board="GPU-a"))

    monkeypatch.setattr(device, "find_hopper", lambda index: device.GpuId(index, "H", f"GPU-{index}"))
    monkeypatch.setattr(Harness, "run", fake)
    assert run("--out", tmp_path, "--pairs", 3, "--gpus", "0,1") == 1
    assert sum(not job.circumstance for job in given["jobs"]) == 3
    assert sum(bool(job.circumstance) for job in given["jobs"]) > 150
    assert "no answer" in (tmp_path / "report.md").read_text()
    assert run("--out", tmp_path, "--pairs", 3) == 1, "no run since saw it, and it stands"
    assert run("--out", tmp_path, "--pairs", 3, "--seed", 2) == 1, "nor is it among what is drawn now"
    assert run("--out", tmp_path, "--pairs", 3, "--fixed", "commit 123") == 0
    assert run("--out", tmp_path, "--pairs", 3) == 0
    assert "commit 123" in (tmp_path / "report.md").read_text()
    assert run("--out", tmp_path, "--pairs", 3, "--fixed", "commit 123") == 2
    assert "none stands" in capsys.readouterr().err


def test_batch_invariance_is_compared_and_a_kernel_with_other_bits_fails_the_command(capsys, monkeypatch, tmp_path):
    pair = Pair(GemmConfig(tile_m=64), GemmProblem(batches.BATCH, 64, 64, batch_invariant=True), 1)
    jobs = [batches.InvarianceJob(replace(pair, seed=seed), "kernel", "of the menu") for seed in (1, 2)]
    status = {"status": "ok"}

    def fake(self, jobs, seconds):
        assert seconds == 7
        for job in jobs:
            self.rows.add(job.row(status["status"], reason="m = 7: 1 row", board="GPU-0"))

    monkeypatch.setattr(device, "find_hopper", lambda index=0: device.GpuId(index, "H", f"GPU-{index}"))
    monkeypatch.setattr(Harness, "run", fake)
    monkeypatch.setattr(batches, "jobs", lambda seed, tables, chip: jobs)
    counts = [batches.TorchCount("", 64, 64, "bf16", "kk", 7, rows) for rows in (0, 3)]
    monkeypatch.setattr(batches, "torch_counts", lambda board, seed: counts)
    asked = ("--batch-invariant", "--out", tmp_path, "--seconds", 7, "--json")
    assert run(*asked) == 0
    told = json.loads(capsys.readouterr().out)
    equal = sum(batches.comparisons(job.pair) for job in jobs)
    assert told == {"equal": equal, "failed": 0, "torch_outputs": 2, "torch_changed": 1}
    assert "| its own | 2 | 1 | 14 | 3 |" in (tmp_path / "report.md").read_text()
    status["status"] = "wrong_result"
    assert run(*asked) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == 2
    assert "m = 7: 1 row" in (tmp_path / "report.md").read_text()
