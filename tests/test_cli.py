"""The command as a user meets it: exit codes, one line for a mistake, data on stdout."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hopper_gemm.tuning.spec import read_spec

from hopper_gemm.tuning.sweep import Sweep
from tests.conftest import ROOT
from tests.tuning.fakes import LADDER, FakeBackend

RECORDED = "results/h200/seed-table"
SEED = "sweeps/seed-table.toml"


def run(*arguments: str, cwd=ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hopper_gemm", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explain", "4096", "4096"], 2, "Missing argument"),
        (["explain", "4096", "4096", "none"], 2, "Invalid value for"),
        (["explain", "4096", "4096", "4096", "--tile-m", "0"], 2, "tile_m must be an integer from 1 but got 0"),
        (["explain", "4096", "4096", "4096", "--split", "k"], 2, "split must be one of m, n, auto but got 'k'"),
        (["explain", "4096", "4096", "0"], 2, "k must be a positive integer but got 0"),
        (["frobnicate"], 2, "No such command"),
        (["sweep", "nowhere.toml"], 2, "nowhere.toml does not exist; the sweeps lie in sweeps/"),
        (["sweep", "pyproject.toml"], 2, "is not a key of a sweep"),
        (
            ["sweep", SEED, "--backend", "cpu"],
            2,
            "backend must be one of auto, cuda, replay but got 'cpu'",
        ),
        (["sweep", SEED, "--gpus", "0,1", "--trials", "3"], 2, "--trials is for one GPU but --gpus is 0,1; name one"),
        (["sweep", SEED, "--gpus", "all"], 2, "indices with commas, each once, such as 0,1, but got 'all'"),
        (
            ["sweep", SEED, "--backend", "replay", "--from", "sweeps"],
            2,
            "sweeps/trials.csv does not exist",
        ),
        (
            ["sweep", SEED, "--backend", "replay", "--out", "README.md"],
            2,
            "is a file; name a folder with --out",
        ),
        (
            ["sweep", SEED, "--backend", "replay", "--out", "/proc/here"],
            2,
            "/proc/here cannot be made",
        ),
        (["ladder", SEED], 2, "sweeps/seed-table.toml has no [[rungs]]; name a sweep that has"),
        (["ladder", "--backend", "cpu"], 2, "backend must be one of auto, cuda, replay but got 'cpu'"),
        (["tune"], 2, "tune needs a problem as M N K, or a list with --shapes"),
        (["tune", "628", "89", "447"], 2, "no recorded study of 628x96x448 bf16 burst"),
        (["tune", "64", "64", "64", "--shapes", "sweeps/shapes/suite.toml"], 2, "or a list with --shapes, not both"),
        (["tune", "64", "64", "64", "--gpus", "0,1"], 2, "--gpus must be the index of one GPU but got '0,1'"),
        (["tune", "--shapes", "nowhere.toml"], 2, "nowhere.toml does not exist; lists of problems lie in"),
        (["tune", "--shapes", "sweeps/shapes/suite.toml", "--gpus", "0,0"], 2, "each once, such as 0,1, but got '0,0'"),
        (
            ["tune", "--shapes", "sweeps/shapes/suite.toml", "--backend", "replay"],
            2,
            "a list is measured, not replayed",
        ),
        (["table", "tests"], 2, "tests/trials.csv does not exist; name a results folder"),
        (["table", RECORDED, "--rows", "tilt"], 2, "'tilt' is not a column"),
        (["table", RECORDED, "--format", "pdf"], 2, "format must be md, csv or html but got 'pdf'"),
        (["table", RECORDED, "--problem", "1x2x3"], 2, "has no such problem and regime; it has 4096x4096x4096 burst"),
        (["check", "--from", "nowhere.json"], None, None),
        (["compare", "--against", "mkl"], 2, "--against must be among cublas, cublaslt, triton, quack but got 'mkl'"),
        (["compare", "4096", "4096"], 2, "problems are M N K, one after the other, but got 2 numbers"),
        (["compare", "--shapes", "nowhere.toml"], 2, "nowhere.toml does not exist; lists of problems lie in"),
        (["compare", "--shapes", "sweeps/shapes/drawn.toml", "--regime", "steady"], 2, "no problem of drawn is marked"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_line_with_the_mend(arguments, code, message):
    done = run(*arguments)
    if code is None:
        assert done.returncode in (2, 3)
    else:
        assert done.returncode == code
        assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert all(line.startswith("hopper-gemm: ") for line in done.stderr.splitlines())
    assert "|" not in done.stdout


def test_cuda_without_a_gpu_is_exit_code_3(no_gpu):
    replay, measured = "use --backend replay", "a comparison is measured on an H100 or H200"
    for arguments, mend in (
        (["sweep", SEED, "--backend", "cuda"], replay),
        (["check"], replay),
        (["compare"], measured),
        (["compare", "--host"], measured),
        (["tune", "--shapes", "sweeps/shapes/suite.toml"], "a list is tuned on an H100 or H200"),
    ):
        done = run(*arguments)
        assert done.returncode == 3
        assert len(done.stderr.splitlines()) == 1
        assert mend in done.stderr


@pytest.fixture
def no_gpu():
    from hopper_gemm.measure.device import NoHopperError, find_hopper

    try:
        pytest.skip(f"there is a {find_hopper().name} here")
    except NoHopperError:
        return


def test_explain_tells_what_a_program_needs():
    done = run("explain", "4096", "4096", "4096", "--tile-m", "256", "--tile-n", "128", "--k-depth", "4", "--json")
    found = json.loads(done.stdout)
    expected = {"legal": True, "reasons": [], "stages_max": 4, "accumulators": 128, "smem_bytes": 229440, "waves": 4}
    assert {name: found[name] for name in expected} == expected
    assert found["wave_efficiency"] == pytest.approx(512 / 528)


def test_explain_knows_that_an_fp32_output_needs_wider_chunks():
    asked = ("explain", "4096", "4096", "4096", "--epi-n", "8", "--json", "--dtype")
    assert json.loads(run(*asked, "bf16").stdout)["legal"]
    found = json.loads(run(*asked, "bf16_fp32").stdout)
    assert (found["legal"], [reason.split(":")[0] for reason in found["reasons"]]) == (False, ["output"])


def test_explain_refuses_with_every_reason_and_still_succeeds():
    done = run("explain", "4096", "4097", "4096", "--tile-m", "100", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["legal"]) == (0, False)
    assert [reason.split(":")[0] for reason in found["reasons"]] == ["tile_m", "n_aligned"]


def test_a_replayed_sweep_says_so_first_and_reproduces_the_recorded_table(tmp_path):
    done = run("sweep", SEED, "--backend", "replay", "--out", str(tmp_path / "seed"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("Replaying seed-table from recorded measurements of an NVIDIA H200")
    recorded, replayed = ((folder / "table.md").read_text() for folder in (ROOT / RECORDED, tmp_path / "seed"))
    assert [line for line in recorded.splitlines() if line.startswith("|")] == [
        line for line in replayed.splitlines() if line.startswith("|")
    ]
    assert "nothing was measured here" in replayed


def test_json_leaves_stdout_to_the_data(tmp_path):
    done = run("sweep", "sweeps/options.toml", "--backend", "replay", "--out", str(tmp_path / "o"), "--json")
    found = json.loads(done.stdout)
    assert found["source"] == "replayed"
    assert found["status"] == {"ok": 48}


def test_a_dry_run_counts_and_writes_nothing(tmp_path):
    done = run("sweep", SEED, "--backend", "replay", "--out", str(tmp_path / "seed"), "--dry-run")
    assert "160 points: 156 to measure, 0 recorded, refused: 4 by stages" in done.stdout
    assert not (tmp_path / "seed").exists()


def test_a_dry_run_of_a_sweep_that_nobody_has_measured_needs_no_gpu(tmp_path):
    spec = tmp_path / "new.toml"
    spec.write_text((ROOT / SEED).read_text().replace('name = "seed-table"', 'name = "new"'))
    done = run("sweep", str(spec), "--dry-run", "--out", str(tmp_path / "out"))
    assert "160 points: 156 to measure, 0 recorded, refused: 4 by stages" in done.stdout, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def recorded_ladder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "ladder"
    Sweep(read_spec(ROOT / "sweeps/ladder.toml"), folder).run(FakeBackend())
    return folder


def test_ladder_prints_one_table_with_a_line_for_each_rung(recorded_ladder, tmp_path):
    """The default ladder, replayed; the folder's page has the same table, and table makes it anew from the folder."""
    out = tmp_path / "ladder"
    done = run("ladder", "--backend", "replay", "--from", str(recorded_ladder), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Replaying ladder from recorded measurements of an NVIDIA H200")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    names = [rung.name for rung in read_spec(ROOT / "sweeps/ladder.toml").rungs]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == names
    page = (out / "table.md").read_text()
    assert "\n".join(lines) in page
    (out / "table.md").unlink()
    (out / "ladder.png").unlink()
    assert run("table", str(out), "--write").returncode == 0
    assert (out / "table.md").read_text() == page
    assert (out / "ladder.png").exists()


def test_ladder_as_json_has_the_figures(tmp_path):
    spec, recorded = tmp_path / "ladder.toml", tmp_path / "recorded"
    spec.write_text(LADDER)
    Sweep(read_spec(spec), recorded).run(FakeBackend())
    done = run(
        "ladder", str(spec), "--from", str(recorded), "--backend", "replay", "--out", str(tmp_path / "o"), "--json"
    )
    found = {step["name"]: step for step in json.loads(done.stdout)}
    assert found["tile"]["from"] == "ring"
    assert [(result["regime"], result["gain"]) for result in found["tile"]["results"]] == [
        ("burst", pytest.approx(1.0, rel=1e-4)),
        ("steady", pytest.approx(1.0, rel=1e-4)),
    ]
    assert found["deep"]["results"][0]["reason"].startswith("stages: exceeds smem")


@pytest.mark.parametrize("form", ["md", "csv", "html"])
def test_table_prints_each_form(form):
    done = run("table", RECORDED, "--regime", "burst", "--problem", "8192x8192x8192", "--format", form)
    assert done.returncode == 0
    assert "1.02x (4)" in done.stdout
    assert "exceeds smem" in done.stdout


def test_doctor_tells_what_is_here():
    done = run("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert findings["nvidia-cutlass-dsl"]["mark"] == "ok"
    assert "h200" in findings["recorded results"]["found"]


def test_doctor_tells_whether_counters_can_be_read(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hopper_gemm.measure.profiler.PLACES", (f"{tmp_path}/*/ncu",))
    mark, found = _ncu_finding()
    assert mark == "note"
    assert "no ncu on PATH" in found
    (tmp_path / "ncu").write_text("")
    (tmp_path / "ncu").chmod(0o755)
    assert _ncu_finding() == ("ok", str(tmp_path / "ncu"))


def _ncu_finding() -> tuple[str, str]:
    from hopper_gemm.doctor import examine

    return next((finding.mark, finding.found) for finding in examine() if finding.what == "ncu")


@pytest.mark.parametrize(
    "statement", ["import hopper_gemm", "import hopper_gemm.cli", "import hopper_gemm.model.explain"]
)
def test_a_light_import_loads_neither_torch_nor_the_dsl(statement):
    check = f"{statement}; import sys; print([name for name in ('torch', 'cutlass', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_tables_open_on_a_laptop():
    """Without torch and the DSL a study can still be read and pivoted."""
    block = "import sys; sys.modules['torch'] = sys.modules['cutlass'] = None"
    check = f"{block}; from pathlib import Path; from hopper_gemm.tables.report import read_study, report"
    done = subprocess.run(
        [sys.executable, "-c", f"{check}; print(report(read_study(Path('{RECORDED}'))))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "exceeds smem" in done.stdout, done.stderr
