"""Counting a study: which launches, nothing twice, and what stands in the way is told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.pool import Built
from hopper_gemm.cli import app
from hopper_gemm.measure.counters import Counted
from hopper_gemm.measure.device import GpuId, NoHopperError, find_hopper
from hopper_gemm.measure.profiler import ProfilerError, open_profiler
from hopper_gemm.tables.counters import ABOUT, read_counters
from hopper_gemm.tables.schema import NAMES
from hopper_gemm.tables.trials import PROVENANCE, TRIALS, AppendFile, ResultsError
from hopper_gemm.tuning import counting
from hopper_gemm.tuning.counting import Counting
from hopper_gemm.tuning.rows import row_of
from hopper_gemm.tuning.space import points
from hopper_gemm.tuning.spec import read_spec
from tests.conftest import ROOT
from tests.measure.fake_ncu import calls, install

SPEC = """
name = "small"
regimes = ["burst", "steady"]
[[problems]]
m = 1024
n = 1024
k = 1024
[[problems]]
m = 2048
n = 1024
k = 1024
[space]
tile_m = [128, 100]
tile_n = 128
swizzle = [2, 4, 8]
"""


class FakePool:
    """Compiles nothing; kernels that are metered, or not, spill on command."""

    spills = ()

    def __init__(self, store):
        pass

    def submit(self, kernels):
        pass

    def result(self, kernel):
        if kernel.metered in self.spills:
            return Built("spilled", "8 B of stack, 2 loads from local memory")
        return Built("ok", "", CubinReport(168, 0, 0, 0, 4, 1, 2, 1, 500, "c0de"))

    def close(self):
        pass


class FakeMeter:
    """Waits that are none; one config fails on command."""

    asked, fails_at = 0, None

    def __init__(self, gpu=None, store=None):
        pass

    def measure(self, request):
        FakeMeter.asked += 1
        if request.config.swizzle == self.fails_at:
            return Counted(request, reason="metered: no answer within 60 s; killed")
        return Counted(request, figures={"producer_hit_pct": 80.0, "consumer_wait_pct": float(request.config.swizzle)})

    def close(self):
        pass


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """A sweep of three legal configs on two problems, and a GPU, a compiler and a meter that are none."""
    monkeypatch.setattr(counting, "find_hopper", lambda gpu: GpuId(gpu, "NVIDIA H200", "GPU-0"))
    monkeypatch.setattr(counting, "CompilePool", FakePool)
    monkeypatch.setattr(counting, "WaitMeter", FakeMeter)
    monkeypatch.setattr(FakeMeter, "asked", 0)
    (tmp_path / "small.toml").write_text(SPEC)
    return tmp_path / "small.toml"


def run(spec, tmp_path, limit=None, *mood, **kinds):
    ready = Counting.prepare(spec, 0, tmp_path / "out", **kinds)
    return ready, ready.run(limit=limit, profiler=open_profiler(install(tmp_path, *mood)), store=tmp_path / "store")


def test_every_legal_config_is_counted_once_whatever_the_regimes_and_cublas_before_them(spec, tmp_path):
    requests = Counting.prepare(spec, 0, tmp_path / "out").requests
    assert [request.config is None for request in requests] == [True, False, False, False] * 2
    assert {request.config.tile_m for request in requests if request.config} == {128}


def test_rows_have_their_code_their_gpu_and_where_they_come_from(spec, tmp_path):
    ready, written = run(spec, tmp_path)
    frame = read_counters(ready.out)
    assert (written, len(frame)) == (8, 8)
    assert frame["code"].tolist() == ["", "c0de", "c0de", "c0de"] * 2
    assert set(frame["gpu"]) == {"NVIDIA H200"}
    about = json.loads((ready.out / ABOUT).read_text())
    assert (about["profiler"], about["protocol"]["cache_control"]) == ("2025.3.1.0", "all")
    assert about["metrics"]["dram_read_bytes"] == ["dram__bytes_read.sum"]
    assert about["meter"] == {"warm_up": 1, "launches": 3, "data": "normal"}


def test_our_configs_have_their_waits_beside_the_profilers_figures_and_cublas_has_none(spec, tmp_path):
    frame = read_counters(run(spec, tmp_path)[0].out)
    assert FakeMeter.asked == 6
    assert frame["consumer_wait_pct"].fillna(0).tolist() == [0, 2, 4, 8] * 2
    assert frame["instructions"].isna().sum() == 0


def test_either_kind_can_go_alone_and_the_other_follow(spec, tmp_path):
    """Nothing is counted twice, nothing is forgotten, and of each kind it is kept where it is from."""
    ready, written = run(spec, tmp_path, profiled=False)
    assert (written, calls(tmp_path), FakeMeter.asked) == (6, 0, 6)
    frame = read_counters(ready.out)
    assert set(frame["arm"]) == {"ours"}
    assert set(frame["code"]) == {"c0de"}
    assert "profiler" not in json.loads((ready.out / ABOUT).read_text())
    assert run(spec, tmp_path, profiled=False)[1] == 0
    assert run(spec, tmp_path, metered=False)[1] == 8
    assert run(spec, tmp_path)[1] == 0
    assert (calls(tmp_path), FakeMeter.asked) == (1, 6)
    frame = read_counters(ready.out)
    assert len(frame) == 8
    assert frame["instructions"].isna().sum() == 0
    about = json.loads((ready.out / ABOUT).read_text())
    assert (about["profiler"], about["meter"]["launches"]) == ("2025.3.1.0", 3)


def test_a_kind_that_fails_does_not_keep_back_the_other_and_is_tried_again(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeMeter, "fails_at", 8)
    ready, written = run(spec, tmp_path, None, "wrong")
    assert (written, len(ready.failed)) == (8, 4)
    assert {failure.request.config.swizzle: failure.reason.split(":")[0] for failure in ready.failed} == {
        4: "WrongResultError",
        8: "metered",
    }
    frame = read_counters(ready.out).set_index("swizzle")
    assert frame.loc[4, "instructions"].isna().all()
    assert frame.loc[8, "consumer_wait_pct"].isna().all()
    assert len(Counting.prepare(spec, 0, tmp_path / "out").open_requests()) == 4
    monkeypatch.setattr(FakeMeter, "fails_at", None)
    assert run(spec, tmp_path)[1] == 4
    assert (
        read_counters(ready.out)
        .set_index("arm")
        .loc["ours", ["instructions", "consumer_wait_pct"]]
        .notna()
        .all(axis=None)
    )


def test_without_the_profiler_none_is_looked_for(spec, tmp_path, monkeypatch):
    def missing():
        raise ProfilerError("counters need Nsight Compute but there is no ncu")

    monkeypatch.setattr(counting, "open_profiler", missing)
    assert Counting.prepare(spec, 0, tmp_path / "out", profiled=False).run(store=tmp_path / "store") == 6
    line = ["counters", str(spec), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, line)
    assert (done.exit_code, done.stderr) == (2, "hopper-gemm: counters need Nsight Compute but there is no ncu\n")
    assert CliRunner().invoke(app, [*line, "--no-ncu"]).exit_code == 0


def test_what_has_a_row_is_not_counted_again(spec, tmp_path):
    assert [run(spec, tmp_path, 2)[1] for _ in range(4)] == [3, 3, 2, 0]
    assert calls(tmp_path) == 3
    frame = read_counters(tmp_path / "out")
    assert not frame.duplicated(["m", "arm", "swizzle"]).any()


def test_what_failed_gets_no_row_and_is_tried_again(spec, tmp_path):
    ready, written = run(spec, tmp_path, None, "wrong", metered=False)
    assert (written, len(ready.failed)) == (6, 2)
    assert "WrongResultError" in ready.failed[0].reason
    assert run(spec, tmp_path, metered=False)[1] == 2


def test_a_kernel_that_spills_is_not_run(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(FakePool, "spills", (False, True))
    ready, written = run(spec, tmp_path)
    assert (written, FakeMeter.asked) == (2, 0)
    assert {failure.reason for failure in ready.failed} == {"spilled: 8 B of stack, 2 loads from local memory"}


def test_a_kernel_that_spills_only_for_its_meter_is_profiled_all_the_same(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(FakePool, "spills", (True,))
    ready, written = run(spec, tmp_path)
    assert (written, FakeMeter.asked) == (8, 0)
    assert {failure.reason for failure in ready.failed} == {"metered, spilled: 8 B of stack, 2 loads from local memory"}


def test_a_studys_folder_is_counted_in_place_for_what_ran_in_it(spec, tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    statuses = {100: "illegal", 128: "ok"}
    rows = [{**row_of(point), "status": statuses[point.config.tile_m]} for point in points(read_spec(spec))]
    AppendFile(folder / TRIALS, NAMES).append(rows)
    ready = Counting.prepare(folder)
    assert ready.out == folder
    assert ready.requests == Counting.prepare(spec, 0, tmp_path / "out").requests


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"spec_digest": "another", "gpu": {"name": "NVIDIA H200"}}, "holds another sweep"),
        ({"spec_digest": None, "gpu": {"name": "NVIDIA H100"}}, r"another GPU \(NVIDIA H100, now NVIDIA H200\)"),
    ],
)
def test_counters_are_not_put_beside_what_they_do_not_belong_to(spec, tmp_path, about, message):
    about["spec_digest"] = about["spec_digest"] or read_spec(spec).digest
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / PROVENANCE).write_text(json.dumps(about))
    with pytest.raises(ResultsError, match=message):
        Counting.prepare(spec, 0, tmp_path / "out")


def test_the_command_prints_a_table_and_goes_on_where_it_stopped(spec, tmp_path, monkeypatch):
    profiler = open_profiler(install(tmp_path, "wrong"))
    monkeypatch.setattr(counting, "open_profiler", lambda: profiler)
    line = ["counters", str(spec), "--out", str(tmp_path / "out"), "--no-meter"]
    done = CliRunner().invoke(app, [*line, "--limit", "1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Counting small on NVIDIA H200 into ")
    assert "1024 x 1024 x 1024 bf16" in done.stdout
    assert f"2 counted now, 0 failed, 6 to go; written to {tmp_path / 'out'}" in done.stdout
    done = CliRunner().invoke(app, [*line, "--json"])
    found = json.loads(done.stdout)
    assert {name: found[name] for name in ("counted", "open")} == {"counted": 4, "open": 2}
    assert [failure["reason"].split(":")[0] for failure in found["failed"]] == ["WrongResultError"] * 2
    assert (len(found["rows"]), found["rows"][0]["tile_m"], found["rows"][1]["tile_m"]) == (6, None, 128)
    assert CliRunner().invoke(app, line).exit_code == 2, "nothing could be counted"


def command(*arguments):
    line = [sys.executable, "-m", "hopper_gemm", "counters", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "nowhere.toml does not exist; the sweeps lie in sweeps/"),
        (["sweeps"], "sweeps/trials.csv does not exist; name a results folder"),
        (["sweeps/options.toml", "--gpus", "all"], "--gpus must be the index of one GPU but got 'all'"),
        (["sweeps/options.toml", "--limit", "0"], "Invalid value for '--limit'"),
        (["sweeps/options.toml", "--no-ncu", "--no-meter"], "leave nothing to count; drop one of them"),
    ],
)
def test_bad_input_is_told_in_one_line_with_the_mend(arguments, message):
    done = command(*arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


def test_without_a_gpu_it_is_exit_code_3():
    try:
        pytest.skip(f"there is a {find_hopper().name} here")
    except NoHopperError:
        done = command("sweeps/options.toml", "--limit", "2")
    assert done.returncode == 3
    assert "; counters are read on an H100 or H200" in done.stderr
    assert len(done.stderr.splitlines()) == 1
