"""The command as a user meets it: exit codes, one line for a mistake, data on stdout, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import KernelId, KernelStore, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.menu import choose
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.tune.limits import CHIPS
from hopper_gemm.tune.parameters import all_values, kernel_of
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import as_text, header, summed
from hopper_gemm.tune.study.schema import NAMES
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.study.spec import read_spec
from tests.command import run
from tests.conftest import ROOT
from tests.tune.run.instant import LADDER, run_sweep
from tests.tune.tables.making import row, write_study

RECORDED = "results/h200/seed-table"
WALL = "results/archive/h200/2026-11-21-wall"
SEED = "sweeps/seed-table.toml"
SUITE = "sweeps/shapes/suite.toml"


def left_behind():
    """Every file of the places where results go."""
    return set((ROOT / "results").rglob("*"))


EXPLAIN = ["explain", "4096", "4096", "4096", "--set"]
FP8_ROWS = ["--dtype", "e4m3", "--scales", "row"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "4096", "4096"], "Missing argument"),
        ([*EXPLAIN, "tile_m=0"], "tile_m must be an integer from 1 to 1048576 but got 0"),
        ([*EXPLAIN, "hue=1"], "hue is not a kernel parameter; choose among tile_m"),
        ([*EXPLAIN, "clustr=2x1"], "clustr is not a kernel parameter; did you mean cluster or cluster_n or cluster_m?"),
        ([*EXPLAIN, "tile_m"], "--set must be like tile_m=256 but got 'tile_m'"),
        ([*EXPLAIN, "pdl=true", "--set", "early=false"], "--set names pdl twice; leave one of them out"),
        (["explain", "64", "64", "64", "--promote", "128"], "--promote must stand beside --scales but got 128 alone"),
        (["explain", "64", "64", "64", "--scales", "row"], "a dtype with scales must be one of e4m3_bf16"),
        (
            ["explain", "64", "64", "64", "--dtype", "e4m3"],
            "--dtype e4m3 must stand beside --scales, which are",
        ),
        (["prebuild", "64", "64", "64", "--dtype", "e4m3_bf16"], "--dtype e4m3_bf16 must stand beside --scales"),
        (["tune", "64", "64", "64", "--backend", "replay", "--cluster"], "--cluster measures on other hosts but"),
        (
            ["compare", "64", "64", "64", "--backend", "replay", "--against", ","],
            "--against must name a baseline but got ','",
        ),
        (["compare", "64", "64", "64", "--against", ""], "--against must name a baseline but got ''; leave it out for"),
        (["explain", "64", "64", "64", "--epilogue", "gelu+bias"], "--epilogue must be of scale, bias, one of gelu,"),
        (["prebuild", "64", "64", "64", "--epilogue", ""], "in this order with + between, but got ''"),
        (["prebuild", "64", "64", "64", "--groups", "2", "--set", "tile_m=64"], "leave out --set or --groups"),
        (["prebuild", "--menu", "--epilogue", "bias"], "leave out sizes, --shapes, --set, --groups and --epilogue"),
        (["compare", *FP8_ROWS, "--promote", "64", "64", "64", "64"], "promote must be one of"),
        (["explain", "4096", "4096", "0"], "k must be a positive integer but got 0"),
        (["explain", "64", "64", "64", "--gpu", ""], "--gpu must be one of h100, h200 but got ''; on other"),
        (["prebuild", "64", "64", "64", "--gpu", "a100"], "--gpu must be one of h100, h200 but got 'a100'; on other"),
        (["frobnicate"], "No such command"),
        (
            ["map", "--held-out", "--shapes", SUITE],
            "suite must hold problems to map but none is held out; leave",
        ),
        (["sweep", "nowhere.toml"], "nowhere.toml does not exist; give one such as sweeps/seed-table.toml"),
        (["sweep", "results"], "results cannot be read (Is a directory)"),
        (["sweep", SEED, "--backend", "cpu"], "'--backend': 'cpu' is not one of 'auto', 'cuda', 'replay'; see"),
        (["sweep", SEED, "--gpus", "all"], "indices with commas, each once, such as 0,1, but got 'all'"),
        (["sweep", SEED, "--backend", "replay", "--from", "sweeps"], "sweeps holds no rows.csv; name a results folder"),
        (["sweep", SEED, "--backend", "replay", "--from", WALL], f"is recorded in {WALL}"),
        (["sweep", SEED, "--backend", "replay", "--out", "README.md"], "is a file; name a folder with --out"),
        (["sweep", SEED, "--backend", "replay", "--out", "/proc/here"], "/proc/here cannot be made"),
        (["sweep", SEED, "--backend", "replay", "--out", RECORDED], "takes no more rows; name another folder"),
        (["ladder", SEED], "sweeps/seed-table.toml has no [[rungs]]; name a sweep that has"),
        (["tune"], "tune needs a problem as M N K, or a list with --shapes"),
        (["tune", "700", "89", "447", "--backend", "replay"], "no recorded study of 700x89x447 burst isolated"),
        (["tune", "64", "64", "64", "--from", RECORDED], "but --backend is cuda; add --backend replay"),
        (["tune", "64", "64", "64", "--backend", "auto"], "'--backend': 'auto' is not one of 'cuda', 'replay'; see"),
        (["tune", "64", "64", "64", "--shapes", SUITE], "or a list with --shapes, not both"),
        (["tune", "--shapes", SUITE, "--backend", "replay"], "a list is measured, not replayed"),
        (["table", "tests"], "tests holds no rows.csv; name a results folder"),
        (["table", RECORDED, "--rows", "tilt"], "'tilt' is not a column"),
        (["table", "nowhere", "--format", "pdf"], "'--format': 'pdf' is not one of 'csv', 'json', 'markdown', 'html'"),
        (["table", RECORDED, "--out", "t.txt"], "--out must end in one of .csv, .json, .md, .html but is t.txt"),
        (["table", RECORDED, "--problem", "1x2x3"], "it has 4096x4096x4096 burst chained, 4096x4096x4096 steady"),
        (["table", RECORDED, "--context", "isolated"], "has no such problem, regime and context"),
        (["compare", "--against", "mkl"], None),
        (["compare", "64", "64", "64", "--backend", "replay", *FP8_ROWS], "no comparison of 64x64x64 e4m3_bf16 row"),
        (["tune", "64", "64", "64", "--backend", "replay", *FP8_ROWS], "no recorded study of 64x64x64 e4m3_bf16 row"),
        (["compare", "--backend", "replay", "--finalists", "x"], "--finalists shortens a measurement but --backend is"),
        (["compare", "4096", "4096"], "problems are M N K, one after the other, but got 2 numbers"),
        (["compare", "--shapes", "sweeps/shapes/drawn.toml", "--regime", "steady"], "no problem of drawn is marked"),
        (["tune", "--shapes", SUITE, "--marked"], "no problem of suite is marked search"),
        (["counters", SEED, "--no-ncu", "--no-meter"], "together leave nothing to count; drop one of them"),
        (["counters", "nowhere"], None),
        (["worker", "http://x:1", "--pem", "x"], "the address must be like tls://HOST:PORT, as sweep --cluster prints"),
        (["worker", "tls://x:99999", "--pem", "x"], "prints it, but got 'tls://x:99999'"),
        (["pack", "tests"], "tests holds no rows.csv"),
        (["report", "tests"], "tests holds no rows.csv"),
        (["export", "nowhere", "--format", "t5"], "'--format': 't5' is not one of 'csv', 'parquet', 't4'; see hopper"),
        (["simulate", "sweeps"], "sweeps holds no rows.csv"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_line_and_leaves_nothing_behind(arguments, message):
    before = left_behind()
    done = run(*arguments)
    assert done.returncode == 2 if message is not None else done.returncode in (2, 3)
    assert (message or "") in done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("hopper-gemm: ")
    assert "|" not in done.stdout
    assert left_behind() == before


def test_cuda_without_a_gpu_is_exit_code_3_and_leaves_nothing_behind(no_gpu):
    before = left_behind()
    for arguments, fix in (
        (["sweep", SEED, "--backend", "cuda"], "use --backend replay"),
        (["sweep", SEED, "--gpus", "1"], "use --backend replay"),
        (["check"], "a check is measured on an H100 or H200"),
        (["compare"], "a comparison is measured on an H100 or H200"),
        (["counters", SEED], "counting is measured on an H100 or H200"),
        (["tune", "--shapes", SUITE], "a list is measured on an H100 or H200"),
        (["tune", "8192", "8192", "8192", "--context", "chained"], "use --backend replay"),
        (["worker", "tls://127.0.0.1:1", "--pem", "x"], "run on a machine with an H100 or H200"),
    ):
        done = run(*arguments)
        assert done.returncode == 3, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert fix in done.stderr
    assert left_behind() == before


@pytest.fixture
def no_gpu():
    from hopper_gemm.tune.measure.device import NoHopperError, find_hopper

    try:
        pytest.skip(f"there is a {find_hopper().name} here")
    except NoHopperError:
        return


def foreign(**changed):
    """A file of one row with values that no row has, and the right sum."""
    texts = {name: as_text(value) for name, value in {**row().as_dict(), **changed}.items()}
    return f"{header()}\n{summed([texts.get(name, '') for name in NAMES], NAMES)}\n".encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("provenance.json", b"[]", "must hold an object of JSON but holds a list"),
        (
            "rows.csv",
            foreign(regime="x/../../../escaped"),
            "line 2: regime must be one of burst, steady but got 'x/../../../escaped'",
        ),
    ],
)
def test_a_foreign_folder_is_one_line_and_never_a_path_out_of_it(tmp_path, name, content, message):
    folder = write_study(tmp_path / "results" / "study", row())
    (folder / name).write_bytes(content)
    before = set(tmp_path.rglob("*"))
    for command in (["table", str(folder), "--write"], ["export", str(folder)], ["simulate", str(folder)]):
        done = run(*command)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert message in line
    assert set(tmp_path.rglob("*")) == before


def test_explain_can_be_asked_about_every_parameter():
    config = resolve(GemmConfig(pdl=True, swap_ab=True, split_k=2, multicast="alternate", cluster_m=2))
    settings = [word for name, value in all_values(config).items() for word in ("--set", f"{name}={value}")]
    found = json.loads(run("explain", "4096", "4096", "4096", *settings, "--json").stdout)
    assert found["config"] == config.as_dict()


@pytest.mark.parametrize(("grouping", "layouts"), [("rows", "kk"), ("masked", "kn"), ("batch", "mn"), ("depth", "mn")])
def test_explain_tells_what_groups_run_by_those_of_one_size(grouping, layouts):
    given = "4096", "2048", "4096", "--groups", "8", "--grouping", grouping, "--layouts", layouts
    facts = json.loads(run("explain", *given, "--json").stdout)
    assert facts["problem"].items() >= {"groups": 8, "grouping": grouping}.items()
    assert facts["legal"]
    assert facts["matmul"]["how"] == "model"
    assert facts["predicted_us"] > facts["limit_us"] * 0.9
    text = run("explain", *given).stdout
    assert f"on 8 {grouping} of 4096x2048x4096 bf16: legal" in text
    assert "  picked      this; from the menu" in text
    assert text.count("hopper-gemm prebuild with this --groups") == (2 if "in no store" in text else 0)
    text = run("explain", *given, "--set", "tile_m=256", "--set", "tile_n=128", "--set", "k_depth=2").stdout
    assert "  compiled    in no store: no call names a config of groups\n" in text
    assert text.count("are known once it is compiled\n") == 1


@pytest.mark.parametrize(
    ("sizes", "epilogue", "finish"),
    [
        (("777", "4096", "4096"), "bias+gelu_tanh+residual", Epilogue(False, True, "gelu_tanh", True)),
        (("777", "28672", "4096"), "silu*up", Epilogue(activation="silu", gated=True)),
    ],
)
def test_explain_tells_what_an_epilogue_runs(sizes, epilogue, finish):
    facts = json.loads(run("explain", *sizes, "--epilogue", epilogue, "--gpu", "h200", "--json").stdout)
    problem = GemmProblem(*map(int, sizes))
    assert facts["epilogue"] == epilogue
    assert facts["config"] == resolve(choose(problem, finish=finish)).as_dict()
    text = run("explain", *sizes, "--epilogue", epilogue, "--gpu", "h200").stdout
    assert f" on {problem} bf16 {epilogue}: legal" in text
    assert "hopper-gemm prebuild with this --epilogue" in text
    assert "  picked      this; from the menu" in text


def test_explain_tells_a_program_that_the_gpu_was_assumed(no_gpu):
    for options, assumed in (((), True), (("--gpu", "h100"), False)):
        found = json.loads(run("explain", "64", "64", "64", *options, "--json").stdout)["matmul"]
        assert (found["gpu"], found["gpu_assumed"]) == ("h100", assumed)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (("64", "64"), ""),
        (("64", "64", "64", "--scales", "row"), "--scales"),
        (("64", "64", "64", "--seconds", "5", "--gpus", "1"), "--seconds, --gpus"),
    ],
)
def test_tune_refuses_groups_of_what_it_cannot_time_in_one_line(given, wrong):
    done = run("tune", *given, "--groups", "4")
    lacking = "--groups needs a problem as M N K"
    refused = f"--groups times picks of one M N K of 16 bits on this GPU; leave out {wrong}"
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"hopper-gemm: {refused if wrong else lacking}"]


def test_explain_tells_what_a_program_needs():
    done = run("explain", "4096", "4096", "4096", "--set", "tile_m=256", "--set", "tile_n=128", "--json")
    found = json.loads(done.stdout)
    expected = {"legal": True, "reasons": [], "stages_max": 4, "accumulators": 128, "smem_bytes": 229440, "waves": 4}
    assert {name: found[name] for name in expected} == expected
    assert found["wave_efficiency"] == pytest.approx(512 / 528)


def test_explain_shows_the_batch_invariant_kernel_and_what_refuses_another():
    asked = ("explain", "512", "512", "65536", "--batch-invariant", "--gpu", "h200", "--json")
    found = json.loads(run(*asked).stdout)
    assert found["problem"]["batch_invariant"] is True
    assert found["legal"]
    assert (found["matmul"]["how"], found["matmul"]["config"]["split_k"]) == ("tuned", 8)
    refused = json.loads(run(*asked, "--set", "split_k=2").stdout)
    assert any("batch_invariant" in str(reason) for reason in refused["reasons"])


def test_explain_of_fp8_names_the_recipe_and_what_serves_it():
    title, *_, last = run("explain", "64", "7168", "2048", "--dtype", "e4m3", "--scales", "row").stdout.splitlines()
    assert title.endswith("on 64x7168x2048 e4m3_bf16 row: legal")
    assert last.startswith("  scaled_mm ")
    command = ("explain", "64", "7168", "2048", "--dtype", "e5m2_fp32", "--scales", "blocks", "--json")
    problem = json.loads(run(*command).stdout)["problem"]
    assert (problem["dtype"], problem["scales"], problem["promote"]) == ("e5m2_fp32", "blocks", 128)


def test_explain_refuses_with_every_reason_and_still_succeeds():
    asked = ("explain", "4096", "4096", "4096", "--set", "tile_m=100", "--set", "k_depth=64")
    done = run(*asked, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["legal"]) == (0, False)
    assert [reason.split(":")[0] for reason in found["reasons"]] == ["tile_m", "k_depth"]
    title, _, *refused = run(*asked).stdout.splitlines()
    assert title.endswith("on 4096x4096x4096 bf16: not legal")
    assert [line.split()[:2] for line in refused] == [["refused", "tile_m:"], ["refused", "k_depth:"]]


def test_explain_of_a_problem_out_of_tmas_reach_says_what_is_padded_and_who_stores():
    title, _, unaligned, *_, last = run("explain", "628", "89", "447", "--gpu", "h200").stdout.splitlines()
    assert title.endswith("on 628x89x447 bf16: legal")
    assert unaligned == "  unaligned   A and B padded by a launch ahead, C stored by threads"
    assert "628x96x448" in last, "tuned for the sizes filled up"
    found = json.loads(run("explain", "628", "96", "447", "--layouts", "kn", "--gpu", "h200", "--json").stdout)
    assert (found["padded"], found["scattered"], found["problem"]["k"], found["legal"]) == (["a"], False, 447, True)


def test_explain_says_which_entry_of_which_table_serves_or_that_the_model_chooses():
    tuned = run("explain", "4096", "4096", "4096", "--gpu", "h200").stdout.splitlines()[-1]
    where = "4096x4096x4096 burst isolated, results/h200/best_configs.json, measured on an NVIDIA H200"
    assert tuned.endswith(f"; tuned: {where}")
    sister = run("explain", "512", "512", "512", "--gpu", "h100").stdout.splitlines()[-1]
    table = "results/h200/best_configs.json"
    assert sister.endswith(f"; other GPU: 512x512x512 burst isolated on NVIDIA H200, {table}")
    for gpu in ("h200", "h100"):
        last = run("explain", "4104", "4096", "4096", "--gpu", gpu).stdout.splitlines()[-1]
        assert last.endswith(f"from the menu: no tuned table of {gpu} has 4104x4096x4096")


def test_explain_predicts_with_the_memory_of_the_gpu_that_is_named():
    """A row times a matrix reads the matrix once: its time is that of the memory."""
    h100, h200 = (json.loads(run("explain", "8", "8192", "8192", "--gpu", gpu, "--json").stdout) for gpu in CHIPS)
    assert (h100["memory_rate"], h200["memory_rate"]) == (2.93e12, 4.3e12)
    for slower, faster in ((h100, h200), *zip(considered(h100), considered(h200), strict=True)):
        assert slower["predicted_us"] > 1.3 * faster["predicted_us"]
    lines = run("explain", "8", "8192", "8192", "--gpu", "h100", "--sms", "100").stdout.splitlines()
    (limit,) = [line for line in lines if line.startswith("  limit")]
    ended = "as a copy, or tensor cores at the power cap; a burst may be shorter"
    assert f" us sustained: memory at 2.93 TB/s, {ended}" in limit


def considered(explained: dict[str, Any]) -> list[dict[str, Any]]:
    return explained["matmul"]["considered"]


def test_a_replayed_sweep_says_so_first_and_reproduces_the_recorded_table(tmp_path):
    done = run("sweep", SEED, "--backend", "replay", "--out", str(tmp_path / "seed"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("Replaying seed-table from recorded measurements of an NVIDIA H200")
    recorded, replayed = ((folder / "table.md").read_text() for folder in (ROOT / RECORDED, tmp_path / "seed"))
    rows = [
        {
            (row.key, row.status, row.reason, row.samples, *row.figures.items())
            for row in read_study(folder).rows
            if row.key.stage != "control"  # noise floors, which a replay takes from the record
        }
        for folder in (ROOT / RECORDED, tmp_path / "seed")
    ]
    assert len(rows[0]) == 160 + 12
    assert rows[0] == rows[1]
    assert [line for line in recorded.splitlines() if line.startswith("|")] == [
        line for line in replayed.splitlines() if line.startswith("|")
    ]
    assert "nothing was measured here" in replayed


def test_json_leaves_stdout_to_the_data(tmp_path):
    done = run("sweep", "sweeps/archive/options.toml", "--backend", "replay", "--out", str(tmp_path / "o"), "--json")
    found = json.loads(done.stdout)
    assert found["source"] == "replayed"
    assert found["status"] == {"ok": 48}


def test_a_dry_run_of_a_sweep_that_nobody_has_measured_needs_no_gpu(tmp_path):
    spec = tmp_path / "new.toml"
    spec.write_text((ROOT / SEED).read_text().replace('name = "seed-table"', 'name = "new"'))
    done = run("sweep", str(spec), "--dry-run", "--out", str(tmp_path / "out"))
    assert "160 points: 156 to measure, 0 recorded, refused: 4 by stages" in done.stdout, done.stderr
    listed = run("sweep", str(spec), "--dry-run", "-v", "--out", str(tmp_path / "out")).stdout.splitlines()
    assert [": stages: exceeds smem: " in line for line in listed] == [False] * 2 + [True] * 4
    assert not (tmp_path / "out").exists()


def test_ladder_prints_a_line_for_each_rung_and_as_json_its_figures(tmp_path):
    """The folder's page has the same table, and table makes it anew from the folder."""
    spec, recorded, out = tmp_path / "ladder.toml", tmp_path / "recorded", tmp_path / "ladder"
    spec.write_text(LADDER)
    run_sweep(read_spec(spec), recorded)
    asked = ["ladder", str(spec), "--from", str(recorded), "--backend", "replay", "--out", str(out)]
    done = run(*asked)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Replaying ladder from recorded measurements of an NVIDIA H200")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [
        one.name for one in read_spec(spec).rungs
    ]
    page = (out / "table.md").read_text()
    assert "\n".join(lines) in page
    (out / "table.md").unlink()
    (out / "ladder.svg").unlink()
    assert run("table", str(out), "--write").returncode == 0
    assert (out / "table.md").read_text() == page
    assert (out / "ladder.svg").exists()
    found = {step["name"]: step for step in json.loads(run(*asked, "--json").stdout)}
    assert found["tile"]["from"] == "ring"
    assert [(result["regime"], result["gain"]) for result in found["tile"]["results"]] == [
        ("burst", pytest.approx(1.0, rel=1e-4)),
        ("steady", pytest.approx(1.0, rel=1e-4)),
    ]
    assert found["deep"]["results"][0]["reason"].startswith("stages: exceeds smem")


def test_table_prints_each_form():
    """Without a terminal and without a form it is Markdown."""
    for form, text in (((), "| 256 | 1.00x (8) |"), (("--format", "html"), "<td>1.00x (8)</td>")):
        done = run("table", RECORDED, "--regime", "burst", "--problem", "8192x8192x8192", *form)
        assert (done.returncode, done.stderr) == (0, "")
        assert text in done.stdout
    csv, told = (run("table", RECORDED, *form).stdout for form in (["--format", "csv"], ["--json"]))
    assert len(csv.splitlines()) == 1 + len(json.loads(told)["rows"]) == 161


def test_a_recorded_comparison_is_shown_without_a_gpu():
    """Of sizes, only theirs, from the list that holds them."""
    asked = ("--context", "chained", "--against", "cublas,cublaslt")
    done = run("compare", "4096", "4096", "4096", *asked, "--backend", "replay", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(one["problem"], one["context"], one["against"]) for one in found["rows"]] == [
        ("4096x4096x4096", "chained", "cublas"),
        ("4096x4096x4096", "chained", "cublaslt"),
    ]
    assert found["provenance"]["source"] == "replayed"
    assert found["provenance"]["replayed_from"] == "results/h200/suite-chained"


FP8_LIST = ("--shapes", "sweeps/shapes/fp8.toml", *FP8_ROWS, "--promote", "128")
TUNED = "results/h100/suite-tuned-on-h100"


@pytest.mark.parametrize(
    ("asked", "folder", "against", "said"),
    [
        (("--against", "cublas", *FP8_LIST), "results/h100/fp8-row-tuned", ["cublas"], ""),
        ((), f"{TUNED}, {TUNED}-second, {TUNED}-third", ["cublas", "heuristics"], ""),
        (("--against", "cublas"), f"{TUNED}, {TUNED}-second, {TUNED}-third", ["cublas"], ""),
        (("--against", "cublas,heuristics", "--from", TUNED), TUNED, ["cublas", "heuristics"], ""),
        (("--against", "cublas,cublaslt"), "results/h200/suite", ["cublas", "cublaslt"], ""),
        (("--from", TUNED), TUNED, ["cublas", "heuristics"], ""),
        (
            ("--from", TUNED, "--against", "cublas,quack"),
            TUNED,
            ["cublas"],
            "quack is not recorded there; --from names another folder\n",
        ),
    ],
)
def test_the_comparison_with_most_of_the_list_and_its_baselines_is_shown(asked, folder, against, said):
    """A folder is found by its own name or by that of its study. The newest of H100s wins a tie, with the other boards
    of the same comparison; --from overrides the search. Without --against all baselines of the study are shown."""
    done = run("compare", "--backend", "replay", *asked, "--json")
    shown = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, said)
    assert shown["provenance"]["replayed_from"] == folder
    assert sorted({row["against"] for row in shown["rows"]}) == against
    assert len({row["problem"] for row in shown["rows"]}) == 24


def test_a_replay_without_options_has_the_first_figure_of_the_readme():
    """The mean of all boards, with its interval."""
    (first,) = re.findall(r"\| isolated \| \*\*(.+?)\*\* (\[.+?\])", (ROOT / "README.md").read_text())[:1]
    done = run("compare", "--backend", "replay", "--shapes", "sweeps/shapes/suite.toml")
    assert f"- cublas, isolated: {' '.join(first)} over 24 problems" in done.stdout


def test_explain_asks_the_stores_for_the_config_that_it_explains():
    done = run("explain", "4096", "4096", "4096", "--set", "tile_m=192", "--set", "tile_n=184", "--set", "k_depth=2")
    assert "in no store" in done.stdout
    assert "instructions are known once it is compiled, by hopper-gemm prebuild with this --set\n" in done.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), GemmProblem(64, 64, 64)),
        (("--dtype", "e4m3", "--scales", "row"), ScaledProblem(64, 64, 64, "e4m3_bf16", scales="row")),
    ],
)
def test_explain_tells_registers_spills_and_instructions_of_a_compiled_kernel(monkeypatch, tmp_path, options, problem):
    """As JSON all of its report. Before, how to compile it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ("explain", "64", "64", "64", *options)
    before = json.loads(run(*asked, "--json").stdout)
    assert before["code"] is None
    assert "are known once it is compiled, by hopper-gemm prebuild\n" in run(*asked).stdout
    report = CubinReport(168, 16, 2, 1, 32, 8, 4, 2, 1434, "0123456789abcdef" * 4)
    kernel = KernelId.of(kernel_of(before["config"]), problem)
    KernelStore(default_store()).put(kernel, b"object", report)
    line = "168 registers a thread at launch; spills: 16 B of stack, 2 loads, 1 stores; 1434 instructions, 32 of them"
    assert f"  code        {line} wgmma; digest 0123456789abcdef\n" in run(*asked).stdout
    assert json.loads(run(*asked, "--json").stdout)["code"] == asdict(report)


def test_prebuild_says_that_the_extension_is_made_first_where_there_is_none(tmp_path, monkeypatch):
    """With a compiler on the path, here one that fails; without, it says in the end what is missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for made, options in ((False, ()), (True, ()), (True, ("--set", "tile_m=64"))):
        if made:
            (tmp_path / "c++").write_text("#!/bin/sh\nexit 1\n")
            (tmp_path / "c++").chmod(0o755)
        done = run("prebuild", "512", "512", "512", "--gpu", "h100", *options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("a C++ compiler makes the extension of torch first, once: some 20 s\n") == made
        assert "1 kernel for 1 problem" in done.stdout
        assert "the extension of torch is not there" in done.stdout


def test_a_terminal_gets_a_table_of_its_width():
    ours, theirs = os.openpty()
    asked = ["table", RECORDED, "--regime", "burst", "--problem", "8192x8192x8192"]
    command = [sys.executable, "-m", "hopper_gemm", *asked]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "dumb"}
    done = subprocess.run(command, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, timeout=300, env=environment)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        lines = terminal.read1(100_000).decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert any(line.startswith("256     1.00x 1.02x 0.53x") for line in lines), lines
    assert max(map(len, lines)) <= 80


def test_table_says_what_an_unfinished_study_lacks(tmp_path):
    done = run("table", str(write_study(tmp_path, row())))
    assert (done.returncode, done.stderr) == (0, f"{tmp_path} is unfinished: rows missing\n")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [(["table", RECORDED], ""), (["table", RECORDED], "1"), (["table", "--help"], "")]
)
def test_a_reader_that_closes_the_pipe_is_no_failure(arguments, unbuffered):
    """Such as head, which has seen enough; whether the first line meets the closed pipe or the last flush."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hopper_gemm", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=300, env=environment)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_doctor_tells_what_is_here():
    done = run("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert findings["nvidia-cutlass-dsl"]["mark"] == "ok"
    assert "h200" in findings["recorded results"]["found"]
    assert "results/h200/best_configs.json (" in findings["tuned tables"]["found"]


def test_doctor_lists_the_tables_that_serve_in_their_order_and_the_damaged_ones(monkeypatch, tmp_path):
    from hopper_gemm.cli import doctor
    from hopper_gemm.model import tuned
    from hopper_gemm.model.tuned import FILE, write_tuned
    from hopper_gemm.tune.study.files import recorded_entries

    monkeypatch.setattr(doctor, "kind_here", lambda: "h200")
    monkeypatch.setattr(tuned, "local_root", lambda: tmp_path)
    for folder in ("h200", "cluster"):
        (tmp_path / folder).mkdir()
    write_tuned(tmp_path / "h200" / FILE, [entry for entry in recorded_entries() if entry.kind == "h200"][:3])
    (tmp_path / "cluster" / FILE).write_text("[")
    found = [finding for finding in doctor.examine() if finding.what == "tuned tables"]
    assert [finding.mark for finding in found] == ["ok", "note"]
    own, recorded, sister = found[0].value.removeprefix("for h200: ").split(", then ")
    assert own == f"{tmp_path / 'h200' / FILE} (3 entries)"
    assert recorded.startswith("results/h200/best_configs.json (")
    assert sister.startswith("results/h100/best_configs.json (")
    assert "is left out" in found[1].value


def test_store_tells_where_kernels_lie_and_clears_them_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "hopper-gemm/kernels"
    empty = {"path": str(folder), "kernels": 0, "bytes": 0, "cleared": False}
    assert json.loads(run("store", "--json").stdout) == empty
    assert not folder.exists()
    report = CubinReport(168, 0, 0, 0, 8, 3, 2, 4, 500, "0" * 64)
    KernelStore(folder).put(KernelId.of(GemmConfig(), GemmProblem(8, 8, 8)), b"x" * 200_000, report)
    (folder / "mine.txt").write_text("mine")
    assert run("store").stdout == f"{folder}: 1 kernel, 0.2 MB\n"
    assert run("store", "--clear").stdout == f"removed 1 kernel, 0.2 MB from {folder}\n"
    assert json.loads(run("store", "--json").stdout) == empty
    assert (folder / "mine.txt").read_text() == "mine"


def test_a_command_names_the_extra_that_brings_what_it_lacks():
    blocked = "import sys; sys.modules['pandas'] = None; sys.argv[1:] = ['table', 'results/h200/seed-table']"
    command = [sys.executable, "-c", f"{blocked}; from hopper_gemm.cli import entry; entry()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        "hopper-gemm: table needs the package pandas, which is not installed; pip install 'hopper-gemm[tune]'\n"
    )


def test_the_recorded_map_of_held_out_problems_holds_all_of_them_and_no_other():
    done = run("map", "--held-out", "--backend", "replay")
    assert done.returncode == 0
    assert "134" in done.stdout
    held = {one.problem() for one in read_shapes(ROOT / "sweeps/shapes/map.toml").problems if one.held_out}
    assert {row.point.problem for row in read_study(ROOT / "results/h200/map-held-out").stage("map")} == held
