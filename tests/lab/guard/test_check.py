"""A check times today's kernel beside the binary that was recorded; a record of another board only warns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.lab.guard.binaries import FOLDER, RecordedBinary, recorded_binaries
from hopper_gemm.lab.guard.check import MORE, PROTOCOLS, Check, Guarded, guarded_of, record
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import FILE, TunedEntry, write_tuned
from hopper_gemm.tune.measure.protocol import Outcome
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.study.reader import read_study
from tests.conftest import ROOT
from tests.tune.run import fakes
from tests.tune.run.instant import Instant

CUBE, CONFIG = GemmProblem(4096, 4096, 4096), resolve(GemmConfig())
SEED = ROOT / "results/h200/seed-table"


def entry_of(problem=CUBE, config=CONFIG, context="isolated", speedup=1.0):
    figures = {"speedup": speedup, "speedup_low": speedup * 0.999, "speedup_high": speedup * 1.001, "noise": 0.002}
    counts = {"registers": 168, "wgmma": 8, "instructions": 500, "code": "c0de", "study": "tune"}
    about = {"gpu": "NVIDIA H200", "context": context, "regime": "burst"}
    return TunedEntry(problem=problem, config=config, **figures, **counts, **about)


def guarded(tmp_path, entry=None):
    report = CubinReport(168, 0, 0, 0, 8, 3, 2, 2, 500, "c0de")
    return Guarded(RecordedBinary(CUBE, CONFIG, report, tmp_path / "x.o", "0" * 64), entry)


def slower(by, width=0.001):
    """Today's kernel takes so much longer than the binary; over cuBLAS it is as fast as ever."""

    def outcome(ask):
        ratio = 1 / by if ask.point.config is not None and ask.point.against != "cublas" else 1.0
        found = fakes.outcome(ask)
        figures = {
            **found.figures,
            "speedup": ratio,
            "speedup_low": ratio * (1 - width),
            "speedup_high": ratio * (1 + width),
        }
        return replace(found, figures=figures)

    return outcome


def checked(tmp_path, outcome=None, entry=None, code="other"):
    question, executor = Check([guarded(tmp_path, entry)]), Instant(outcome=outcome or slower(1.0), code=lambda _: code)
    run(question, executor)
    (found,) = question.checked
    return found, [task for _, task in executor.tasks]


def test_the_binary_is_timed_beside_itself_and_beside_todays_kernel_on_one_board(tmp_path):
    found, (task,) = checked(tmp_path)
    assert [(point.config, point.against) for point in task.points] == [
        (None, "recorded:c0de"),
        (CONFIG, "recorded:c0de"),
    ]
    assert (found.verdict.status, found.board, found.warning) == ("held", "board-0", "")
    assert found.as_dict()["ratio"] == 1.0
    assert len(found.as_dict()["pairs"]) == PROTOCOLS["burst"].pairs


def test_a_kernel_one_and_a_half_percent_slower_than_its_binary_has_fallen_unless_it_is_the_same_code(tmp_path):
    assert checked(tmp_path, slower(1.015))[0].verdict.status == "fallen"
    same, _ = checked(tmp_path, slower(1.015), code="c0de")
    assert same.verdict.status == "held"
    assert same.verdict.message.startswith("the same machine code")


def test_a_kernel_that_is_wrong_has_fallen_and_where_the_binary_cannot_run_nobody_can_tell(tmp_path):
    wrong, _ = checked(
        tmp_path, lambda ask: Outcome("wrong_result", "bits") if ask.point.config else fakes.outcome(ask)
    )
    assert (wrong.verdict.status, wrong.verdict.message) == ("fallen", "wrong result: bits")
    unable, _ = checked(
        tmp_path, lambda ask: Outcome("unstable", "hot") if not ask.point.config else fakes.outcome(ask)
    )
    assert unable.verdict.status == "unsure"


def test_a_binary_that_cannot_be_loaded_is_not_compared_and_nothing_has_fallen(tmp_path):
    found, _ = checked(tmp_path, lambda ask: Outcome("no_baseline", "x.o cannot be loaded"))
    assert (found.verdict.status, found.verdict.message) == ("unsure", "not compared: x.o cannot be loaded")


def test_what_is_neither_held_nor_fallen_is_measured_once_more_with_more_pairs(tmp_path):
    found, tasks = checked(tmp_path, slower(1.012, width=0.01))
    assert [task.protocol.pairs for task in tasks] == [PROTOCOLS["burst"].pairs, MORE * PROTOCOLS["burst"].pairs]
    assert found.verdict.status == "unsure"


@pytest.mark.parametrize(("recorded", "warns"), [(1.0, False), (1.01, False), (1.1, True)])
def test_a_speedup_over_cublas_far_from_its_record_is_a_warning_and_no_fall(tmp_path, recorded, warns):
    found, _ = checked(tmp_path, entry=entry_of(speedup=recorded))
    assert found.verdict.status == "held"
    assert bool(found.warning) == warns


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
