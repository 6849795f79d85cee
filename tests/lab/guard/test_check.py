"""A check times today's kernel beside the binary that was recorded; a record of another board only warns."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import typer

from hopper_gemm.cli import app, running
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import KernelId, KernelStore, versions
from hopper_gemm.lab.guard import check as questions
from hopper_gemm.lab.guard.binaries import FOLDER, RecordedBinary, RecordedBinaryError, record_binary, recorded_binaries
from hopper_gemm.lab.guard.check import (
    CODES,
    MORE,
    PROTOCOLS,
    Check,
    Checked,
    Guarded,
    code_of,
    guarded_of,
    listed_binaries,
    record,
)
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import FILE, TunedEntry, recorded_tables, write_tuned
from hopper_gemm.tune.measure import device
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.measure.protocol import Outcome
from hopper_gemm.tune.measure.verdict import Verdict
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.study.files import write_sealed
from hopper_gemm.tune.study.reader import read_study
from tests.conftest import ROOT
from tests.each import each
from tests.tune.run import fakes
from tests.tune.run.instant import Instant

CUBE, CONFIG = GemmProblem(4096, 4096, 4096), resolve(GemmConfig())
REPORT = CubinReport(168, 0, 0, 0, 8, 3, 2, 2, 500, "c0de")
SEED = ROOT / "results/h200/seed-table"


def read_codes(table):
    return json.loads(table.with_name(CODES).read_text())


def write_listing(table, *binaries):
    write_sealed(table.with_name(CODES), {"kernels": {binary.description.stem: {} for binary in binaries}})


def entry_of(problem=CUBE, config=CONFIG, context="isolated", speedup=1.0):
    figures = {"speedup": speedup, "speedup_low": speedup * 0.999, "speedup_high": speedup * 1.001, "noise": 0.002}
    counts = {"registers": 168, "wgmma": 8, "instructions": 500, "code": "c0de", "study": "tune"}
    about = {"gpu": "NVIDIA H200", "context": context, "regime": "burst"}
    return TunedEntry(problem=problem, config=config, **figures, **counts, **about)


def guarded(tmp_path, entry=None):
    return Guarded(RecordedBinary(CUBE, CONFIG, REPORT, tmp_path / "x.o", "0" * 64), entry)


def slower(by, width=0.001):
    """Today's kernel takes so much longer than the binary; over cuBLAS it is as fast as ever."""

    def outcome(ask):
        ratio = 1 / by if not ask.point.is_baseline and ask.point.against != "cublas" else 1.0
        found = fakes.outcome(ask)
        figures = {
            **found.figures,
            "speedup": ratio,
            "speedup_low": ratio * (1 - width),
            "speedup_high": ratio * (1 + width),
        }
        return replace(found, figures=figures)

    return outcome


def wrong(ask):
    """Today's kernel gives other bits."""
    return fakes.outcome(ask) if ask.point.is_baseline else Outcome("wrong_result", "bits")


def checked(tmp_path, outcome=None, entry=None, code="other", unserved="", busy=lambda board: ""):
    given = replace(guarded(tmp_path, entry), unserved=unserved)
    question, executor = Check([given], busy), Instant(outcome=outcome or slower(1.0), code=lambda _: code)
    run(question, executor)
    (found,) = question.checked
    return found, [task for _, task in executor.tasks]


def test_the_binary_is_timed_beside_itself_and_beside_todays_kernel_on_one_board(tmp_path):
    found, (task,) = checked(tmp_path)
    assert [(point.subject, point.against) for point in task.points] == [
        ("recorded:c0de", "recorded:c0de"),
        (CONFIG, "recorded:c0de"),
    ]
    assert (found.verdict.status, found.board, found.warning) == ("held", "board-0", "")
    assert dict(task.finalists) == {"recorded:c0de": (str(guarded(tmp_path).binary.description),)}
    assert found.as_dict()["ratio"] == 1.0
    assert len(found.as_dict()["pairs"]) == PROTOCOLS["burst"].pairs


@pytest.mark.parametrize("code", ["other", "c0de"], ids=["other code", "same code"])
def test_a_kernel_one_and_a_half_percent_slower_than_its_binary_twice_has_fallen(tmp_path, code):
    """Equal machine code can be slower by its launch."""
    found, tasks = checked(tmp_path, slower(1.016), code=code)
    assert (found.verdict.status, len(tasks)) == ("fallen", 2)
    assert ("the same machine code" in found.verdict.message) == (code == "c0de")


def test_what_was_slower_once_and_not_again_has_held(tmp_path):
    found, tasks = checked(tmp_path, lambda ask: slower(1.0 if ask.process else 1.2)(ask), code="c0de")
    assert (found.verdict.status, len(tasks)) == ("held", 2)


def test_where_another_process_uses_the_gpu_times_decide_nothing(tmp_path):
    asked = []

    def busy(board):
        asked.append(board)
        return "process 7"

    found, _ = checked(tmp_path, slower(1.16), code="c0de", busy=busy)
    assert (found.verdict.status, found.busy, asked) == ("unsure", "process 7", ["board-0"])
    assert found.verdict.message.startswith("the GPU is busy (process 7); slower by")
    assert checked(tmp_path, slower(1.0), busy=busy)[0].verdict.status == "held"
    open_still, _ = checked(tmp_path, slower(1.012, width=0.01), busy=busy)
    assert (open_still.verdict.status, open_still.busy) == ("unsure", "process 7")


def test_what_times_do_not_decide_has_fallen_on_a_busy_gpu_too(tmp_path):
    """A wrong result, and a config that matmul no longer serves, however fast it is."""
    for about in ({"outcome": wrong}, {"unserved": "matmul runs another config"}):
        found, _ = checked(tmp_path, busy=lambda board: "process 7", **about)
        assert (found.verdict.status, found.busy) == ("fallen", "")
    assert found.verdict.message.startswith("matmul runs another config; 1.0000x")


def test_the_noise_of_the_binary_beside_itself_counts(tmp_path):
    """A loss within what the binary scatters beside itself is no fall."""

    def noisy(ask):
        return slower(1.016, width=0.03 if ask.point.is_baseline else 0.001)(ask)

    assert checked(tmp_path, noisy)[0].verdict.status == "unsure"


def test_a_kernel_that_is_wrong_has_fallen_and_where_the_binary_cannot_run_nobody_can_tell(tmp_path):
    found, tasks = checked(tmp_path, wrong)
    assert (found.verdict.status, found.verdict.message, len(tasks)) == ("fallen", "wrong result: bits", 1)
    unable, tasks = checked(
        tmp_path, lambda ask: Outcome("unstable", "hot") if ask.point.is_baseline else fakes.outcome(ask)
    )
    assert (unable.verdict.status, len(tasks)) == ("unsure", 2)


def test_a_binary_that_cannot_be_loaded_is_not_compared_and_nothing_has_fallen(tmp_path):
    found, _ = checked(tmp_path, lambda ask: Outcome("no_baseline", "x.o cannot be loaded"))
    assert (found.verdict.status, found.verdict.message) == ("unsure", "not compared: x.o cannot be loaded")


def test_what_is_neither_held_nor_fallen_is_measured_once_more_with_more_pairs(tmp_path):
    """Beside the binary, not beside cuBLAS again."""
    found, tasks = checked(tmp_path, slower(1.012, width=0.01), entry_of())
    assert [task.method.pairs for task in tasks] == [PROTOCOLS["burst"].pairs, MORE * PROTOCOLS["burst"].pairs]
    assert [[point.against for point in task.points] for task in tasks] == [
        ["recorded:c0de", "recorded:c0de", "cublas"],
        ["recorded:c0de", "recorded:c0de"],
    ]
    assert found.verdict.status == "unsure"


@pytest.mark.parametrize(("recorded", "warns"), [(1.0, False), (1.01, False), (1.1, True)])
def test_a_speedup_over_cublas_far_from_its_record_is_a_warning_and_no_fall(tmp_path, recorded, warns):
    found, _ = checked(tmp_path, entry=entry_of(speedup=recorded))
    assert found.verdict.status == "held"
    assert bool(found.warning) == warns


@pytest.fixture
def on_gpu(monkeypatch):
    """Let the command run its question by a stand-in, on a GPU that is not there."""

    def stand_in(run_question):
        gpu = GpuId(0, "NVIDIA H200", "board-0")
        monkeypatch.setattr(running, "local_source", lambda gpus, what: SimpleNamespace(gpus=[gpu]))
        monkeypatch.setattr(running, "run_question", run_question)

    return stand_in


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([("held", "")], 0),
        ([("fallen", "")], 1),
        ([("held", ""), ("unsure", "")], 1),
        ([("held", ""), ("unsure", "process 7")], 3),
        ([("unsure", ""), ("unsure", "process 7")], 1),
        ([("fallen", ""), ("unsure", "process 7")], 1),
    ],
)
def test_the_command_succeeds_only_where_everything_held(tmp_path, monkeypatch, on_gpu, capsys, verdicts, code):
    one = guarded(tmp_path)

    def answer(question, *asked, **about):
        question.checked = [
            Checked(one.point, "GPU-a", Verdict(status, ""), "", {}, busy=told) for status, told in verdicts
        ]

    on_gpu(answer)
    monkeypatch.setattr(questions, "guarded_of", lambda table: [one])
    try:
        ended = app(["check", "--json"], standalone_mode=False) or 0
    except typer.Exit as error:
        ended = error.exit_code
    assert ended == code
    assert [found["busy"] for found in json.loads(capsys.readouterr().out)] == [told for _, told in verdicts]


@pytest.mark.parametrize(
    ("shared", "before", "after", "code"),
    [
        ([], "process 7", "", 1),
        ([], "", "process 8", 3),
        (["--shared"], "process 7", "", 3),
        (["--shared"], "", "process 8", 3),
    ],
)
def test_who_uses_the_gpu_is_asked_while_a_pair_is_timed_and_with_shared_also_before(
    tmp_path, monkeypatch, on_gpu, shared, before, after, code
):
    """Alone a check begins only on an idle GPU, which is seen to elsewhere."""
    one, asked = guarded(tmp_path), []

    def answer(question, *about, shared):
        asked.append(shared)
        run(question, Instant(outcome=slower(1.16), code=lambda _: "other"))

    monkeypatch.setattr(device, "busy", lambda gpu, measuring=False: after if measuring else before)
    on_gpu(answer)
    monkeypatch.setattr(questions, "guarded_of", lambda table: [one])
    assert app(["check", *shared], standalone_mode=False) == code
    assert asked == [bool(shared)]


@pytest.mark.compile
def test_binaries_are_kept_of_the_suites_isolated_bests_and_of_the_seed_tables_and_no_others(tmp_path):
    (tmp_path / "seed-table").symlink_to(SEED)
    write_tuned(tmp_path / FILE, [entry_of(), entry_of(GemmProblem(64, 64, 64)), entry_of(context="chained")])
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "old.o").write_bytes(b"old")
    kept = record(tmp_path / FILE)
    best = {row.point.config for row in read_study(SEED).stage("final")}
    assert {one.config for one in kept} - {CONFIG} <= best
    assert {(one.problem, one.config) for one in kept} >= {(CUBE, CONFIG)}
    assert not (tmp_path / FOLDER / "old.o").exists()
    assert len(recorded_binaries(tmp_path / FOLDER)) == len(kept)
    entries = {(one.binary.problem, one.binary.config): one.entry for one in guarded_of(tmp_path / FILE)}
    assert entries[CUBE, CONFIG] == entry_of()
    assert sum(entry is None for entry in entries.values()) == len(kept) - 1
    assert set(read_codes(tmp_path / FILE)["kernels"]) == {one.description.stem for one in kept}


def test_a_binary_that_is_gone_or_that_nothing_lists_is_missed(tmp_path):
    """The guard does not check what is left and call it all."""
    shutil.copytree(ROOT / "results/h200" / FOLDER, tmp_path / FOLDER)
    listing = shutil.copy(ROOT / "results/h200" / CODES, tmp_path / CODES)
    first, *others = listed_binaries(tmp_path / FILE)
    assert len(others) + 1 == len(RECORDED["kernels"])
    gone, text = first.description, first.description.read_text()
    gone.unlink()
    with pytest.raises(RecordedBinaryError, match=r"must hold the \d+ binaries that .* lists .*; restore both"):
        listed_binaries(tmp_path / FILE)
    gone.write_text(text)
    gone.with_name("another.json").write_text(text)
    with pytest.raises(RecordedBinaryError, match=r"another\.json must have the name"):
        listed_binaries(tmp_path / FILE)
    gone.with_name("another.json").unlink()
    listing.unlink()
    with pytest.raises(RecordedBinaryError, match="does not exist"):
        listed_binaries(tmp_path / FILE)


def test_the_binaries_are_those_beside_the_table_that_is_named(tmp_path, monkeypatch, on_gpu, capsys):
    """With --from a table elsewhere, none of the package's results is launched."""
    folder = tmp_path / "elsewhere"
    KernelStore(tmp_path / "store").put(KernelId.of(CONFIG, CUBE), b"x", REPORT)
    binary = record_binary(folder / FOLDER, CONFIG, CUBE, tmp_path / "store")
    write_listing(folder / FILE, binary)
    write_tuned(folder / FILE, [entry_of()])
    executor = Instant(outcome=slower(1.0), code=lambda _: REPORT.code)
    on_gpu(lambda question, *asked, **about: run(question, executor))
    monkeypatch.chdir(folder)
    assert (app(["check", "--from", FILE], standalone_mode=False) or 0) == 0
    (task,) = [task for _, task in executor.tasks]
    assert dict(task.finalists) == {f"recorded:{binary.report.code}": (str(binary.description),)}
    for path in (*(folder / FOLDER).iterdir(), folder / CODES):
        path.unlink()
    assert app(["check", "--from", FILE], standalone_mode=False) == 2
    assert f"no binaries are recorded in {FOLDER}; run hopper-gemm check --record --from" in capsys.readouterr().err


def test_a_problem_that_the_table_serves_with_another_config_is_told_with_that_config(tmp_path):
    other = resolve(GemmConfig(tile_m=128))
    KernelStore(tmp_path / "store").put(KernelId.of(CONFIG, CUBE), b"an object file", REPORT)
    write_listing(tmp_path / FILE, record_binary(tmp_path / FOLDER, CONFIG, CUBE, tmp_path / "store"))
    write_tuned(tmp_path / FILE, [entry_of(), entry_of(config=other, context="chained")])
    assert [one.unserved for one in guarded_of(tmp_path / FILE)] == [""]
    write_tuned(tmp_path / FILE, [entry_of(config=other)])
    (found,) = guarded_of(tmp_path / FILE)
    assert (found.entry, str(other) in found.unserved) == (None, True)


def test_matmul_serves_what_is_guarded_of_the_recorded_table():
    for table in recorded_tables().values():
        assert [one.unserved for one in guarded_of(table) if one.unserved] == []


RECORDED = read_codes(ROOT / "results/h200" / FILE)


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.skipif(RECORDED["versions"] != versions(), reason=f"noted with {RECORDED['versions']}")
@each("binary", recorded_binaries(ROOT / "results/h200" / FOLDER), ids=lambda one: one.description.stem)
def test_the_machine_code_and_launch_of_a_guarded_config_are_those_that_were_noted(kernel_store, binary):
    noted = RECORDED["kernels"].get(binary.description.stem)
    fix = "compare it with hopper-gemm check on a GPU, then run hopper-gemm check --record-digests"
    assert code_of(binary, KernelStore(kernel_store)) == noted, f"the machine code changed: {fix}"
