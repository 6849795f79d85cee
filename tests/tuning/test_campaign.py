"""A list of problems is tuned once each, whatever dies on the way, and goes on where it stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from typer.testing import CliRunner

from hopper_gemm.cli import app
from hopper_gemm.model.legality import problem_reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.progress import told
from hopper_gemm.tables.trials import read_json, read_trials
from hopper_gemm.tables.tuned import read_tuned
from hopper_gemm.tuning.campaign import Campaign, shares
from hopper_gemm.tuning.claims import claim
from hopper_gemm.tuning.spec import SpecError
from hopper_gemm.tuning.supervisor import ERROR
from tests.conftest import ROOT
from tests.tuning.campaigning import campaign


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setenv("CAMPAIGN_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(
        "hopper_gemm.tuning.campaign.CONTEXT", multiprocessing.get_context("fork")
    )  # saves seconds of imports
    monkeypatch.setattr("hopper_gemm.tuning.campaign.publish", lambda folder: (folder / "table.md").write_text("page"))
    return tmp_path / "h200"


@pytest.fixture
def trouble(monkeypatch):
    return lambda **what: monkeypatch.setenv("CAMPAIGN_TROUBLE", json.dumps(what.pop("at", what)))


def log(out) -> list[str]:
    path = out.parent / "log"
    return [line.split(" cores")[0] for line in path.read_text().splitlines()] if path.is_file() else []


def states(found) -> dict[str, str]:
    return {one.problem.split("x")[0]: one.state for one in found}


def test_two_gpus_share_a_list_and_no_problem_is_taken_twice(out):
    events = []
    many = campaign(out, [256, 512, 768, 1024, 1280])
    found = many.run(events.append)
    assert set(states(found).values()) == {"tuned"}
    trials = Counter(line.split(" ", 1)[1] for line in log(out) if "trial" in line)
    assert set(trials.values()) == {4}
    takers = {(line.split()[0], line.split()[2]) for line in log(out) if "trial" in line}
    assert len(takers) == 5
    assert Counter(line for line in log(out) if "opened" in line) == {"0 opened": 1, "1 opened": 1}
    assert Counter(event.name for event in events if event.kind == "begun") == Counter(
        f"tune-{size}x{size}x{size}-burst" for size in (256, 512, 768, 1024, 1280)
    )
    assert len(read_tuned(out / "best_configs.json")) == 5
    page = (out / "campaign.md").read_text()
    assert page.startswith("# small, burst\n\n**Measured on an NVIDIA H200, 2 at a time.**")
    assert "| 256x256x256 | " in page
    assert "5 of 5 problems tuned" in page
    assert [rate.who for rate in many.rates] == ["GPU 0", "GPU 1", "in all"]
    assert many.rates[-1].trials == sum(rate.trials for rate in many.rates[:-1]) == 20
    assert all((out / f"tune-{size}x{size}x{size}-burst" / "table.md").is_file() for size in (256, 1280))


def test_a_finished_list_measures_nothing_and_a_larger_budget_goes_on(out):
    campaign(out, [256, 512], gpus=1).run()
    before = len(log(out))
    again = campaign(out, [256, 512], gpus=1)
    assert set(states(again.run()).values()) == {"tuned"}
    assert len(log(out)) == before
    assert "Trials a second" not in (out / "campaign.md").read_text()
    more = campaign(out, [256, 512], gpus=1, trials=6)
    assert [one.trials for one in more.run()] == [6, 6]
    assert sum("trial" in line for line in log(out)) == 2 * 6


def test_what_a_killed_process_was_at_is_taken_by_the_other(out, trouble):
    trouble(at={f"{size}x{size}x{size}": "die on 0" for size in (256, 512, 768)})
    events = []
    found = campaign(out, [256, 512, 768]).run(events.append)
    assert set(states(found).values()) == {"tuned"}
    (died,) = [event for event in events if event.kind == "died"]
    assert told(died) == f"its process died with signal SIGKILL; {died.name} is open again"
    tuned_by = {event.name: event.gpu for event in events if event.kind == "done"}
    assert tuned_by[died.name] == 1
    rows = read_trials(out / died.name / "trials.csv")
    assert len(rows) == 4


def test_a_problem_that_kills_is_left_alone_and_the_next_run_tries_it_again(out, trouble):
    trouble(at={"256x256x256": "die"})
    found = campaign(out, [256, 512], gpus=3).run()
    assert states(found) == {"256": "failed", "512": "tuned"}
    assert found[0].reason == "2 processes died over it; run the same command to try again"
    trouble(at={})
    assert set(states(campaign(out, [256, 512], gpus=1).run()).values()) == {"tuned"}


def test_a_problem_that_fails_spoils_no_other_and_says_where(out, trouble):
    trouble(at={"256x256x256": "fail"})
    events = []
    found = campaign(out, [256, 512], gpus=1).run(events.append)
    assert states(found) == {"256": "failed", "512": "tuned"}
    assert found[0].reason == "RuntimeError: nothing is as it was"
    assert "Traceback" in (out / "tune-256x256x256-burst" / ERROR).read_text()
    assert [line for line in log(out) if "trial" not in line] == ["0 opened", "0 closed", "0 opened", "0 closed"]
    assert "failed: RuntimeError: nothing is as it was" in (out / "campaign.md").read_text()


def test_a_gpu_that_cannot_be_used_leaves_the_list_to_the_others(out, trouble):
    trouble(at={"gpu 0": "unusable"})
    events = []
    found = campaign(out, [256, 512]).run(events.append)
    assert set(states(found).values()) == {"tuned"}
    assert [(event.gpu, event.text) for event in events if event.kind in ("ended", "died")] == [
        (0, "GPU 0 (NVIDIA H200) cannot be used: out of memory")
    ]


def test_another_sweep_in_a_folder_is_that_problems_failure(out):
    campaign(out, [256], gpus=1).run()
    path = out / "tune-256x256x256-burst" / "provenance.json"
    path.write_text(json.dumps({**read_json(path), "spec_digest": "other"}))
    found = campaign(out, [256, 512], gpus=1).run()
    assert states(found) == {"256": "failed", "512": "tuned"}
    assert "holds another sweep" in found[0].reason


def test_what_another_kernel_reached_is_not_taken_for_an_answer(out):
    campaign(out, [256], gpus=1).run()
    path = out / "tune-256x256x256-burst" / "provenance.json"
    path.write_text(json.dumps({**read_json(path), "kernel": "older"}))
    (one,) = campaign(out, [256], gpus=1).run()
    assert one.state == "failed"
    assert "was begun with another kernel (older, now fake); name another folder with --out" in one.reason


PROGRAM = """
import multiprocessing, signal, sys
from pathlib import Path
import hopper_gemm.tuning.campaign
from tests.tuning.campaigning import campaign
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts us in the background has it ignored
    hopper_gemm.tuning.campaign.CONTEXT = multiprocessing.get_context(sys.argv[2])
    try:
        campaign(Path(sys.argv[1]), [256, 512], int(sys.argv[3]), trials=8).run()
    except KeyboardInterrupt:
        print("stopped")
"""


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_when_the_command_ends_nothing_goes_on_behind_its_back(out, trouble, tmp_path, how):
    interrupted = how == "interrupted"
    trouble(at={"256x256x256": "hang" if interrupted else ""})
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        str(tmp_path / "program.py"),
        str(out),
        *(["fork", "2"] if interrupted else ["spawn", "1"]),
    ]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    while not any("trial" in line for line in log(out)):
        time.sleep(0.02)
    if interrupted:
        process.send_signal(2)
        assert process.communicate(timeout=60)[0] == "stopped\n"
    else:
        process.kill()
        process.communicate(timeout=60)
    until = time.monotonic() + 20
    while (held := claim(out, "tune-256x256x256-burst", "later")) is None:
        assert time.monotonic() < until, "somebody still holds the problem"
        time.sleep(0.05)
    noted = log(out)
    held.release()
    time.sleep(0.3)
    assert log(out) == noted


def test_the_command_prints_one_table_or_json_and_fails_with_what_is_not_tuned(out, trouble, monkeypatch):
    trouble(at={"256x256x256": "fail"})
    monkeypatch.setattr(
        "hopper_gemm.tuning.campaign.Campaign.prepare",
        lambda shapes, gpus, **rest: campaign(out, [256, 512], len(gpus)),
    )
    invoked = CliRunner().invoke(app, ["tune", "--shapes", "list.toml", "--gpus", "0,1", "--json"])
    assert invoked.exit_code == 1
    data = json.loads(invoked.stdout)
    assert [one["state"] for one in data["problems"]] == ["failed", "tuned"]
    assert data["rates"][-1]["who"] == "in all"
    assert "GPU 0: sweep 1/4" in invoked.stderr or "GPU 1: sweep 1/4" in invoked.stderr
    assert invoked.stderr.splitlines()[-1] == (
        "hopper-gemm: 1 of 2 problems are not tuned, the first is 256x256x256: RuntimeError: nothing is as it was; "
        "run the same command to go on"
    )
    trouble(at={})
    invoked = CliRunner().invoke(app, ["tune", "--shapes", "list.toml", "--gpus", "0,1", "--seconds", "5"])
    assert invoked.exit_code == 0
    assert "| 512x512x512 | 128x128x" in invoked.stdout
    assert "2 of 2 problems tuned" in invoked.stdout


def test_a_claim_is_one_processes_alone_and_forgets_other_runs(tmp_path):
    first = claim(tmp_path, "a", "run 1")
    assert claim(tmp_path, "a", "run 1") is None
    assert claim(tmp_path, "b", "run 1") is not None
    first.begin()
    first.settle()
    first.release()
    again = claim(tmp_path, "a", "run 1")
    assert (again.begun, again.settled) == (1, True)
    again.release()
    other = claim(tmp_path, "a", "run 2")
    assert (other.begun, other.settled) == (0, False)


def test_cores_are_divided_and_none_goes_without():
    assert shares(range(8), 3) == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert shares([3], 2) == [(3,), (3,)]


@pytest.fixture
def gpus(monkeypatch):
    from hopper_gemm.measure.device import GpuId

    names = ["NVIDIA H200", "NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    find = lambda index=0: GpuId(index, names[index], f"GPU-{index}")  # noqa: E731
    for where in ("campaign", "run"):
        monkeypatch.setattr(f"hopper_gemm.tuning.{where}.find_hopper", find)


def test_a_list_is_read_and_what_tma_cannot_reach_is_filled_up(gpus, tmp_path):
    found = Campaign.prepare(ROOT / "sweeps/shapes/drawn.toml", gpus=[0, 1], out=tmp_path / "t", seconds=5.0)
    assert len(found.problems) == 20
    assert found.job.problems == found.problems
    assert not any(problem_reasons(problem) for problem in found.problems)
    assert GemmProblem(628, 96, 448) in found.problems, "drawn as 628x89x444"
    assert found.opening.startswith("Tuning 20 problems (drawn, burst) on 2 GPUs (NVIDIA H200)")
    steady = Campaign.prepare(ROOT / "sweeps/shapes/suite.toml", regime="steady", out=tmp_path / "t", seconds=5.0)
    assert len(steady.problems) == 5
    sweep = steady.job.sweep(steady.problems[0], 0)
    assert (sweep.spec.name, sweep.spec.regimes) == ("tune-4096x4096x4096-steady", ["steady"])
    assert sweep.out == tmp_path / "t" / "tune-4096x4096x4096-steady"


def test_mistakes_are_told_before_anything_starts(gpus, tmp_path):
    suite = ROOT / "sweeps/shapes/suite.toml"
    with pytest.raises(ValueError, match="--gpus must be of one kind but got NVIDIA H100 80GB HBM3 and NVIDIA H200"):
        Campaign.prepare(suite, gpus=[0, 2])
    with pytest.raises(SpecError, match="sampler"):
        Campaign.prepare(suite, sampler="luck", out=tmp_path / "t")


def test_problems_that_are_run_alike_are_tuned_once(gpus, out, tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text('name = "odd"\nproblems = [{ m = 64, n = 65, k = 64 }, { m = 64, n = 66, k = 58 }]\n')
    assert Campaign.prepare(path, out=out).problems == (GemmProblem(64, 72, 64),)


def test_contended_tables_lose_nothing(tmp_path):
    """Threads hold a lock each as processes do: flock is by open file."""
    from dataclasses import replace

    from hopper_gemm.tables.tuned import write_tuned
    from tests.tables.test_tuned import ENTRY

    def write(start: int) -> None:
        for i in range(start, start + 15):
            write_tuned(tmp_path / "t.json", [replace(ENTRY, problem=GemmProblem(8 * i + 8, 64, 64))])

    threads = [threading.Thread(target=write, args=(15 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_tuned(tmp_path / "t.json")) == 60
