"""The harness finds wrong results, hangs and crashes, makes them small, and goes on where it stopped; with fake
kernels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hopper_gemm.compiler.child import Reply
from hopper_gemm.compiler.pool import Built
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_digest
from tests.verify import harness
from tests.verify.drawing import Pair
from tests.verify.fakes import WRONG, Compiled, fake, harmful
from tests.verify.harness import JUDGES, PROCESSES, Harness, VerifyJob, suspects, verdict
from tests.verify.rows import Finding, Rows, judged, read_rows, verifier_digest
from tests.verify.summary import page

FINE = VerifyJob(Pair(GemmConfig(tile_n=64), GemmProblem(72, 64, 256), 3))
HARMFUL = VerifyJob(
    Pair(GemmConfig(tile_n=64, k_depth=2, stagger=3, evict_c=True), GemmProblem(72, 64, 256, "fp16"), 3)
)
BOARDS = [GpuId(0, "A", "GPU-a"), GpuId(1, "B", "GPU-b")]


def run(folder, jobs, mistake="", boards=BOARDS[:1], log=None, **about):
    """A run's harness, and what it said."""
    said = []
    one = Harness(folder, folder / "store", boards, fake(mistake, log), said.append, pool=Compiled)
    one.run(jobs, **about)
    return one, said


def last(rows):
    """The row that speaks for each thing."""
    return [found.row for found in judged(rows).values()]


def test_what_is_right_gets_a_row_with_its_board_code_and_bits(tmp_path):
    one, said = run(tmp_path, [FINE, HARMFUL])
    assert [row.status for row in one.rows.rows] == ["ok", "ok"]
    row = one.rows.rows[0]
    assert (row.board, row.gpu, row.code, len(row.bits), row.minimal) == ("GPU-a", "A", "code 64", 16, None)
    assert Pair.of(row.subject) == FINE.pair
    assert row.sources == (kernel_digest(), verifier_digest(*JUDGES))
    assert said[-1] == "2 of 2 verified, 0 failed"


@pytest.mark.parametrize(
    ("mistake", "status", "reason"),
    [
        ("wrong", "wrong_result", WRONG),
        ("one off", "wrong_result", "elements are off by more than rounding"),
        ("outside", "wrong_result", "1 elements outside the output were written"),
        ("third run", "wrong_result", "run 3 gave other bits"),
        ("crash", "crash", "the process died with signal SIGABRT"),
        ("raise", "crash", "RuntimeError: CUDA error: an illegal memory access"),
    ],
)
def test_a_failure_is_found_shrunk_and_reported_and_the_rest_goes_on(tmp_path, mistake, status, reason):
    one, said = run(tmp_path, [HARMFUL, FINE], mistake)
    failed, fine = sorted(last(one.rows.rows), key=lambda row: row.status == "ok")
    assert (failed.status, fine.status, one.failed) == (status, "ok", 1)
    assert reason in failed.reason
    least = Pair.of(failed.minimal)
    assert harmful(least)
    assert (least.problem.m, least.problem.n, least.problem.dtype) == (1, 1, "bf16")
    assert least.config.evict_c is False
    assert any(reason in line and "smallest that fails" in line for line in said)
    assert reason in page(one.rows.rows, [HARMFUL.row(), FINE.row()])


def test_a_hang_is_found_within_its_time_and_shrunk(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(harness, "HUNG_SECONDS", 0.5)
    monkeypatch.setattr(harness, "SHRINK_SECONDS", 5.0)
    one, _ = run(tmp_path, [HARMFUL, FINE], "hang")
    failed, fine = last(one.rows.rows)
    assert (failed.status, fine.status) == ("timeout", "ok")
    assert "no answer within 2 s" in failed.reason
    assert harmful(Pair.of(failed.minimal))
    assert failed.seconds < 60


def test_a_failure_is_on_disk_and_all_else_is_done_before_it_is_made_small(tmp_path, monkeypatch):
    stood = []

    def shrink(pair, fails, tries):
        stood.extend((row.status, row.minimal) for row in read_rows(tmp_path))
        return pair

    monkeypatch.setattr(harness, "shrink", shrink)
    run(tmp_path, [HARMFUL, FINE], "wrong")
    assert stood == [("wrong_result", None), ("ok", None)]
    assert [row.minimal is None for row in read_rows(tmp_path)] == [True, True, False]


def test_a_launch_that_took_too_long_is_not_made_small(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "shrink", lambda *_: pytest.fail("the limit is of this problem"))
    late = replace(HARMFUL, circumstance=harness.LATENESS)
    run(tmp_path, [late], "wrong")
    (row,) = read_rows(tmp_path)
    assert (row.status, row.minimal) == ("wrong_result", None)


def test_failures_for_which_no_time_is_left_are_made_small_by_the_next_run(tmp_path, monkeypatch):
    others = [replace(HARMFUL, pair=replace(HARMFUL.pair, seed=seed)) for seed in (4, 5)]
    clock, begun = [0.0], []
    monkeypatch.setattr(harness, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def shrink(pair, fails, tries):
        begun.append(pair.seed)
        clock[0] += 100.0
        return pair

    monkeypatch.setattr(harness, "shrink", shrink)
    first, _ = run(tmp_path, [HARMFUL, *others, FINE], "wrong")
    assert (first.failed, begun) == (3, [3, 4]), "200 s of 240: too few for another"
    second, _ = run(tmp_path, [HARMFUL, *others, FINE], "wrong", seconds=1e-6)
    assert begun == [3, 4, 5]
    assert second.failed == 0
    run(tmp_path, [HARMFUL, *others, FINE], "wrong")
    assert begun == [3, 4, 5]
    assert len(last(read_rows(tmp_path))) == 4


def test_a_run_goes_on_where_its_rows_stop_and_a_failure_is_not_repeated(tmp_path):
    log = tmp_path / "log"
    run(tmp_path, [FINE], log=log)
    one, said = run(tmp_path, [FINE, HARMFUL], log=log)
    assert len(one.rows.rows) == 2
    assert len(log.read_text().splitlines()) == 2
    assert said[-1] == "1 of 1 verified, 0 failed"


def test_what_failed_with_earlier_sources_runs_first_and_on_two_boards(tmp_path):
    jobs = [VerifyJob(Pair(GemmConfig(tile_n=64), GemmProblem(72, 64, 256), seed)) for seed in range(20)]
    Rows(tmp_path).add(replace(jobs[-1].row("timeout"), kernel="old"))
    boards = [*BOARDS, GpuId(2, "C", "GPU-c")]
    one, said = run(tmp_path, jobs, boards=boards)
    rows = [row for row in one.rows.rows if row.kernel != "old"]
    assert {row.board for row in rows if row.subject["seed"] == 19} == {"GPU-a", "GPU-b"}
    assert next(row.subject["seed"] for row in rows if row.board == "GPU-a") == 19
    assert said[-1] == "21 of 21 verified, 0 failed"
    again, _ = run(tmp_path, jobs, boards=boards)
    assert len(again.rows.rows) == len(one.rows.rows)


def test_a_kernel_that_did_not_compile_before_is_compiled_once_for_all_boards(tmp_path):
    job = VerifyJob(Pair(GemmConfig(tile_n=24), GemmProblem(64, 64, 64)))
    Rows(tmp_path).add(replace(job.row("spilled"), kernel="old"))
    for _ in range(2):
        one, _ = run(tmp_path, [job], boards=BOARDS)
        assert [row.status for row in one.rows.rows] == ["spilled", "spilled"]


def test_a_pair_that_failed_before_is_verified_although_it_is_no_longer_drawn_unless_a_rule_refuses_it():
    refused = Pair(GemmConfig(tile_m=320, tile_n=256), GemmProblem(72, 64, 256))
    rows = [replace(VerifyJob(pair).row("timeout"), kernel="old") for pair in (HARMFUL.pair, FINE.pair, refused)]
    assert suspects(rows, [FINE]) == [HARMFUL]


def test_several_gpus_share_the_jobs(tmp_path):
    jobs = [VerifyJob(Pair(GemmConfig(tile_n=64), GemmProblem(72, 64, 256), seed)) for seed in range(40)]
    log = tmp_path / "log"
    one, _ = run(tmp_path, jobs, boards=BOARDS, log=log)
    assert sorted(row.subject["seed"] for row in one.rows.rows) == list(range(40))
    used = {line.split("|")[-1] for line in log.read_text().splitlines()}
    assert used <= {"GPU-a", "GPU-b"}
    assert {row.board for row in one.rows.rows} == used


def test_a_kernel_that_does_not_compile_cleanly_is_a_failure_of_its_own(tmp_path):
    one, _ = run(tmp_path, [VerifyJob(Pair(GemmConfig(tile_n=24), GemmProblem(64, 64, 64))), FINE])
    assert [(row.status, row.minimal) for row in sorted(one.rows.rows, key=lambda row: row.status)] == [
        ("ok", None),
        ("spilled", None),
    ]
    assert one.failed == 1


def test_what_cannot_be_checked_here_is_skipped_and_two_processes_run_at_once(tmp_path):
    log = tmp_path / "log"
    jobs = [VerifyJob(FINE.pair, "few SMs", "static"), VerifyJob(FINE.pair, PROCESSES, "static")]
    one, _ = run(tmp_path, jobs, log=log)
    assert [(row.kind, row.status) for row in one.rows.rows] == [
        ("few SMs: static", "skipped"),
        ("processes: static", "ok"),
    ]
    assert [line.split("|")[0] for line in log.read_text().splitlines()] == ["few SMs", "streams", "streams"]


def test_nothing_is_begun_after_the_time_is_up(tmp_path):
    one, _ = run(tmp_path, [FINE, HARMFUL], seconds=1e-6)
    assert one.rows.rows == []


def test_a_reply_becomes_a_status():
    assert verdict(Reply("answer", Finding(bits="b"))) == ("ok", "", "b")
    assert verdict(Reply("answer", Finding("bad"))) == ("wrong_result", "bad", "")
    assert verdict(Reply("answer", Finding(skipped="why"))) == ("skipped", "why", "")
    assert verdict(Reply("timeout", error="late"))[0] == "timeout"
    assert verdict(Reply("died", error="gone"))[0] == verdict(Reply("raised", error="oops"))[0] == "crash"


class NothingCompiles:
    """A compile pool on a machine whose compiler cannot be imported."""

    def __init__(self, store):
        self.asked = 0

    def submit(self, kernels):
        pass

    def result(self, kernel):
        self.asked += 1
        return Built("compile_error", "ImportError: no compiler")

    def close(self):
        pass


def test_compiling_ahead_stops_when_the_installation_is_broken(tmp_path, monkeypatch):
    pools = []
    monkeypatch.setattr(harness, "CompilePool", lambda store: pools.append(NothingCompiles(store)) or pools[0])
    kernels = [
        KernelId.of(GemmConfig(stages=stages), GemmProblem(72, 64, 256, t))
        for stages in range(2, 15)
        for t in ("bf16", "fp16")
    ]
    with pytest.raises(ChildProcessError, match="none of the first 16 kernels compiles: ImportError: no compiler"):
        harness.compile_all(kernels, tmp_path, lambda line: None)
    assert pools[0].asked == harness.MAX_INITIAL_FAILURES
