"""A sweep loses nothing: stopped anywhere, the same command goes on, and no point is measured twice."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace

import pytest

from hopper_gemm.model.tuned import FILE, read_tuned
from hopper_gemm.tune.measure.protocol import Burst, Outcome
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.run.questions.sweep import Sweep
from hopper_gemm.tune.run.source import replay_provenance
from hopper_gemm.tune.run.task import Joined
from hopper_gemm.tune.study.files import write_sealed
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.spec import checked
from tests.tune.run import fakes
from tests.tune.run.fakes import SPEC, US
from tests.tune.run.instant import ABOUT, LADDER, SEARCH, Instant, replayed, rows_of, run_sweep, spec_of
from tests.tune.tables import making

PLACE = "1024x1024x1024 burst isolated"


@pytest.fixture
def spec(tmp_path):
    return spec_of(tmp_path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results" / "small"


def status(out, *stages):
    return Counter(row.status for row in rows_of(out, *stages))


def about(out):
    return read_study(out).provenance


def test_every_point_gets_one_row_with_its_status_its_pairs_and_its_board(spec, out):
    run_sweep(spec, out)
    assert status(out) == {"ok": 5, "illegal": 1}
    (illegal,) = [row for row in rows_of(out) if row.status == "illegal"]
    assert "exceeds smem" in illegal.reason
    for row in rows_of(out):
        assert row.gpu == "NVIDIA H200"
        assert (row.board, len(row.samples)) == (("board-0", 15) if row.ok else ("unknown", 0))
        assert row.figures.get("baseline_kernel") == ("nvjet" if row.ok else None)
        assert row.point.context == "isolated"


def test_a_sweep_that_skips_illegal_points_counts_them_and_gives_them_no_row(tmp_path, out):
    spec = spec_of(tmp_path, SPEC, ("[[prob", "skip_illegal = true\n[[prob"))
    plan = Sweep(spec, out, ABOUT).plan()
    assert (plan.points, plan.open, plan.skipped) == (6, 5, 1)
    run_sweep(spec, out)
    assert status(out) == {"ok": 5}
    assert about(out)["skipped"] == {"stages": 1}


def test_rungs_with_one_config_are_measured_once(tmp_path, out):
    asked = run_sweep(spec_of(tmp_path, LADDER), out)
    assert set(asked.measured.values()) == {2}, "burst and steady"
    assert len(asked.measured) == 4
    noted = {rung["name"]: rung for rung in about(out)["rungs"]}
    assert noted["same"]["config"] == noted["tile"]["config"]
    assert (noted["pair"]["from"], noted["ring"]["published"]) == ("ring", "1.3 times as fast")


def test_the_best_are_measured_again_in_fresh_processes_each_of_which_begins_with_another(spec, out):
    asked = run_sweep(spec_of_best(spec, 3), out)
    by_process = {p: [config for q, config in asked.finals if q == p] for p in range(3)}
    assert [sorted(of) == sorted(by_process[0]) for of in by_process.values()] == [True] * 3
    assert len({of[0] for of in by_process.values()}) == 3
    rows = rows_of(out, "final")
    assert Counter(row.process for row in rows) == {0: 3, 1: 3, 2: 3}
    assert {sample.process for row in rows for sample in row.samples if row.process == 2} == {2}
    assert {row.point.config.tile_m for row in rows} == {320, 128}
    tasks = [task for _, task in asked.tasks if task.stage == "final"]
    assert len({task.child for task in tasks}) == 3
    assert tasks[0].method == Burst(pairs=15, rest=0.02)


def spec_of_best(spec, best):
    return spec.model_copy(update={"final": spec.final.model_copy(update={"best": best})})


def test_the_winner_of_the_finals_goes_into_the_tuned_table(spec, out):
    run_sweep(spec, out)
    (entry,) = read_tuned(out.parent / FILE)
    assert (entry.config.tile_m, entry.study, entry.context, entry.board) == (320, "small", "isolated", "board-0")
    assert (entry.registers, entry.instructions) == (168, 500)
    assert entry.noise == about(out)["noise"][PLACE] > 0
    low, high = entry.speedup_low, entry.speedup_high
    assert low <= entry.speedup <= high


def test_a_config_of_the_design_study_stays_out_of_the_tuned_table(tmp_path, out):
    """``matmul`` reads the kernel's own parameters alone; the best of those is written, if the finals have one."""
    run_sweep(spec_of(tmp_path, SPEC, ("tile_n = 128", "tile_n = 128\npeek = false")), out)
    assert rows_of(out, "final")
    assert not (out.parent / FILE).exists()


def test_all_finals_of_a_problem_run_on_one_board(tmp_path, out):
    more = "\n".join(f"[[problems]]\nm = {size}\nn = {size}\nk = {size}" for size in (512, 2048, 4096))
    spec = spec_of(tmp_path, SPEC, ("[space]", f"{more}\n[space]"), ('["burst"]', '["burst", "steady"]'))
    run_sweep(spec, out, Instant(workers=3))
    boards = {}
    for row in rows_of(out, "final"):
        boards.setdefault(row.point.problem, set()).add(row.board)
    assert [len(of) for of in boards.values()] == [1] * 4
    assert len(set.union(*boards.values())) > 1, "and the problems are shared among the boards"


def test_the_noise_floor_is_measured_once_for_each_place_and_board_before_its_points(tmp_path, out):
    spec = spec_of(tmp_path, SPEC, ('["burst"]', '["burst", "steady"]'))
    asked = run_sweep(spec, out, Instant(workers=2))
    controls = Counter((row.point.regime, row.board) for row in rows_of(out, "control"))
    assert set(controls.values()) == {1}
    ran = [row for stage in ("sweep", "final") for row in rows_of(out, stage) if row.ok]
    assert set(controls) == {(row.point.regime, row.board) for row in ran}
    met = set()
    for worker, task in asked.tasks:
        key = worker, task.points[0].regime
        assert (task.stage == "control") != (key in met)
        met.add(key)
    assert about(out)["boards"] == ["board-0", "board-1"]


@pytest.mark.parametrize("after", range(7))
def test_stopped_anywhere_it_goes_on_and_measures_nothing_twice(spec, out, after):
    first = Instant(stop_after=after)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, out, first)
    recorded = {str(row.point.config) for row in rows_of(out) if row.ok} if out.is_dir() else set()
    second = run_sweep(spec, out)
    assert not recorded & set(second.measured)
    assert status(out) == {"ok": 5, "illegal": 1}
    assert len(rows_of(out, "final")) == 2 * 3


@pytest.mark.parametrize("known", ["NVIDIA H200", ""], ids=["this host", "workers to join"])
def test_a_warm_start_from_another_gpu_is_refused_before_a_folder_is_made(tmp_path, out, known):
    folder = making.write_study(tmp_path / "h100", making.row(), gpu={"name": "NVIDIA H100", "driver": ""})
    asked = checked({**spec_of(tmp_path).model_dump(by_alias=True), "warm_start": [str(folder)]}, "asked")
    with pytest.raises(ResultsError, match="was recorded on an NVIDIA H100, not an NVIDIA H200; leave it out"):
        run(Sweep(asked, out, {**ABOUT, "gpu": {"name": known}}), Instant())
    assert not out.parent.exists()


def test_a_finished_sweep_asks_nothing_again(spec, out):
    run_sweep(spec, out)
    before = (out / "rows.csv").read_bytes()
    again = run_sweep(spec, out)
    assert again.tasks == []
    assert (out / "rows.csv").read_bytes() == before
    assert Sweep(spec, out, ABOUT).finished


@pytest.mark.parametrize("stage", ["sweep", "final", "control"])
def test_a_row_that_vanished_from_a_finished_sweep_is_measured_again(spec, out, stage):
    """And the user is told; in the end the rows are those of an undisturbed run."""
    run_sweep(spec, out)
    before = {row.key for row in read_study(out).rows}
    lines = (out / "rows.csv").read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if f",{stage}," in line and ",ok," in line)
    (out / "rows.csv").write_text("".join(lines[:at] + lines[at + 1 :]))
    said = []
    again = run_sweep(spec, out, say=said.append)
    assert len(said) == 1
    assert "1 of the 13 rows of the finished study are gone" in said[0]
    assert [task.stage for _, task in again.tasks] == [stage]
    assert {row.key for row in read_study(out).rows} == before
    assert Sweep(spec, out, ABOUT).finished


def test_a_row_that_vanished_from_a_finished_search_is_proposed_again_though_its_time_is_up(tmp_path, out):
    spec = spec_of(tmp_path, SEARCH, ("trials = 12", "seconds = 0.4"), ('"gp"', '"random"'))
    run_sweep(spec, out, Instant(outcome=slowly))
    rows = len(rows_of(out))
    lines = (out / "rows.csv").read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if ",sweep," in line)
    (out / "rows.csv").write_text("".join(lines[:at] + lines[at + 1 :]))
    again = run_sweep(spec, out)
    assert sum(again.measured.values()) == 1
    assert len(rows_of(out)) == rows


def slowly(ask):
    time.sleep(0.05)
    return fakes.outcome(ask)


def test_a_search_that_was_stopped_among_the_finals_does_not_search_again(tmp_path, out):
    """Its seconds are noted before the finals begin."""
    spec = spec_of(tmp_path, SEARCH, ("trials = 12", "seconds = 0.4"), ('"gp"', '"random"'))
    first = Instant(outcome=slowly)
    first.send = stopping_at_finals(first)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, out, first)
    rows = len(rows_of(out))
    second = run_sweep(spec, out)
    assert second.finals
    assert (len(rows_of(out)), sum(second.measured.values())) == (rows, 0)


def stopping_at_finals(executor):
    send = executor.send

    def stop(worker, number, task):
        if task.stage == "final":
            raise KeyboardInterrupt
        send(worker, number, task)

    return stop


def test_a_sweep_is_finished_within_its_budget_and_not_within_a_larger_one(tmp_path, out):
    small, large = (spec_of(tmp_path, SPEC + f"[budget]\ntrials = {trials}\n") for trials in (2, 4))
    run_sweep(small, out)
    assert Sweep(small, out, ABOUT).finished
    assert not Sweep(large, out, ABOUT).finished
    assert sum(run_sweep(large, out).measured.values()) == 2


def test_each_kind_of_data_has_its_rows_and_noise_floor_and_only_normal_is_tuned(tmp_path, out):
    """Zeros run faster; the tuned table must not take that for a better config."""
    run_sweep(spec_of(tmp_path, SPEC, ("[[prob", 'data = ["zeros", "normal"]\n[[prob')), out)
    assert Counter(row.point.data for row in rows_of(out)) == {"zeros": 6, "normal": 6}
    assert list(about(out)["noise"]) == [f"{PLACE} zeros", PLACE]
    assert len(rows_of(out, "final")) == 2 * 2 * 3
    (entry,) = read_tuned(out.parent / FILE)
    normal = max(row.figures["speedup"] for row in rows_of(out, "final") if row.point.data == "normal")
    assert entry.speedup == pytest.approx(normal, rel=1e-3)


def test_both_contexts_are_tuned_apart(tmp_path, out):
    run_sweep(spec_of(tmp_path, SPEC, ("[[prob", 'contexts = ["isolated", "chained"]\n[[prob')), out)
    assert {entry.context for entry in read_tuned(out.parent / FILE)} == {"isolated", "chained"}
    assert Counter(row.point.context for row in rows_of(out, "control")) == {"isolated": 1, "chained": 1}


def test_the_same_machine_code_is_measured_once_and_says_whose_figures_it_has(tmp_path, out):
    spec = spec_of(tmp_path, SPEC, ("tile_n = 128", 'tile_n = 128\npeek = [true, "producer", false]'))
    asked = run_sweep(spec, out, Instant(code=lambda config: f"{config.tile_m}-{config.k_depth}"))
    rows = [row for row in rows_of(out) if row.ok]
    assert asked
    assert len(rows) == 15
    twins = [row for row in rows if row.reason.startswith("same machine code as")]
    assert len(twins) == 10
    by_label = {str(row.point.config): row for row in rows}
    for row in twins:
        other = by_label[row.reason.removeprefix("same machine code as ").removesuffix("; not measured again")]
        assert (row.figures, row.samples) == (other.figures, ())
    assert not {str(row.point.config) for row in twins} & {label for _, label in asked.finals}


def test_a_twin_is_known_again_after_a_stop_and_the_same_code_launched_otherwise_is_none(tmp_path, out):
    spec = spec_of(tmp_path, SPEC, ("tile_n = 128", "tile_n = 128\nswizzle = [4, 8]\npeek = [true, false]"))
    one = Instant(code=lambda config: f"{config.tile_m}-{config.k_depth}", stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, out, one)
    run_sweep(spec, out, Instant(code=lambda config: f"{config.tile_m}-{config.k_depth}"))
    twins = [row for row in rows_of(out) if row.reason.startswith("same machine code as")]
    assert len(twins) == 10
    for row in twins:
        assert f"m{row.point.config.swizzle}serp" in row.reason


def test_a_twin_that_was_measured_as_its_first_was_on_its_way_says_so_and_is_no_final(tmp_path, out):
    spec = spec_of(tmp_path, SPEC, ("tile_n = 128", "tile_n = 128\npeek = [true, false]"))

    class Unaware(Instant):
        def row(self, task, point, board):
            return super().row(replace(task, twins={}), point, board)

    asked = run_sweep(spec, out, Unaware(code=lambda config: f"{config.tile_m}-{config.k_depth}"))
    twins = [row for row in rows_of(out) if row.reason.startswith("same machine code as")]
    assert len(twins) == 5
    assert all(row.ok and row.samples and "not measured" not in row.reason for row in twins)
    assert asked.finals
    assert not {str(row.point.config) for row in twins} & {label for _, label in asked.finals}


def test_a_race_sends_its_looks_the_leader_and_the_noise(tmp_path, out):
    spec = spec_of(tmp_path, SPEC + "[race]\nfar = 0.05\n")
    asked = run_sweep(spec, out, Instant())
    tasks = [task for _, task in asked.tasks if task.stage == "sweep"]
    assert [(look.pairs, look.margin) for look in tasks[-1].race.looks] == [(1, 0.05), (3, 0.0)]
    assert tasks[0].race.leader is None
    leader = max(row.figures["speedup"] for row in rows_of(out) if row.ok and row.point != tasks[-1].points[0])
    assert run_sweep(spec, out.parent / "again", Instant(), trials=4).tasks
    last = run_sweep(spec, out.parent / "again").tasks
    sent = [task for _, task in last if task.stage == "sweep"]
    assert sent[0].race.leader is not None
    assert sent[0].race.leader.median <= leader
    assert sent[0].race.noise == about(out.parent / "again")["noise"][PLACE]


def test_finals_that_are_even_are_told_so(tmp_path, out):
    def alike(ask):
        found = fakes.outcome(ask)
        figures = {**found.figures, "speedup": 1.0, "speedup_low": 0.999, "speedup_high": 1.001}
        samples = tuple(replace_sample(sample) for sample in found.samples)
        return replace(found, figures=figures, samples=samples)

    run_sweep(spec_of(tmp_path), out, Instant(outcome=alike))
    (labels,) = about(out)["even"].values()
    assert len(labels) == 2


def replace_sample(sample):
    return sample._replace(ours_us=US, baseline_us=US)


def test_a_finalist_that_fails_once_is_left_out_and_spoils_no_other(spec, out):
    first = []

    def failing(ask):
        if ask.process == 1 and not ask.point.is_baseline and not first:
            first.append(str(ask.point.config))
            return Outcome("wrong_result", "1 of 16 elements differ")
        return fakes.outcome(ask)

    run_sweep(spec, out, Instant(outcome=failing))
    rows = rows_of(out, "final")
    failed = [row for row in rows if str(row.point.config) == first[0]]
    assert {row.process: row.status for row in failed} == {0: "ok", 1: "wrong_result"}
    assert len([row for row in rows if str(row.point.config) != first[0] and row.ok]) == 3
    (entry,) = read_tuned(out.parent / FILE)
    assert str(entry.config) != first[0]


def test_a_replay_gives_the_recorded_rows_and_says_what_it_is(tmp_path, out):
    spec = spec_of(tmp_path, SPEC, ("[[prob", 'data = ["zeros", "normal"]\n[[prob'))
    run_sweep(spec, out)
    again = tmp_path / "again"
    replayed(spec, again, out)
    recorded, found = ({row.key: row for row in read_study(folder).rows} for folder in (out, again))
    controls = {key for key in recorded if key.stage == "control"}
    assert set(found) == set(recorded) - controls
    assert all(replace(row, source="measured") == recorded[key] for key, row in found.items())
    assert about(again)["noise"] == about(out)["noise"]
    assert about(again)["source"] == "replayed"
    assert not (tmp_path / FILE).exists()


def test_a_replay_leaves_out_what_was_not_recorded_and_says_how_much(tmp_path, out):
    run_sweep(spec_of(tmp_path), out)
    wider = spec_of(tmp_path, SPEC, ("[64, 128, 320]", "[64, 128, 192]"))
    study = read_study(out)
    only = {row.point for row in study.stage("sweep")}
    sweep = Sweep(wider, tmp_path / "w", replay_provenance(study), source="replayed", only=only)
    assert sweep.unrecorded == 2
    replayed(wider, tmp_path / "w", out)
    assert {row.point.config.tile_m for row in rows_of(tmp_path / "w")} == {64, 128}
    assert status(tmp_path / "w") == {"ok": 4}


def test_a_replay_ignores_the_kernels_digest_and_a_measurement_does_not(spec, out, tmp_path):
    run_sweep(spec, out)
    with pytest.raises(ResultsError, match="was begun with another kernel"):
        Sweep(spec, out, {**ABOUT, "kernel": "k2"})
    replayed(spec, tmp_path / "r", out)
    told = json.loads((out / "provenance.json").read_text())
    write_sealed(out / "provenance.json", {**told, "kernel": "k2"})
    replayed(spec, tmp_path / "r", out)


def test_a_second_worker_of_another_kind_is_left_out(spec, out):
    executor = Instant()
    executor._events.append(("w9", Joined({"name": "NVIDIA H100", "uuid": "other"})))
    run_sweep(spec, out, executor)
    assert {row.board for row in rows_of(out) if row.ok} == {"board-0"}


def test_provenance_says_what_readers_rely_on(tmp_path, out):
    run_sweep(spec_of(tmp_path, SEARCH), out)
    found = about(out)
    keys = "schema_version study question source created seed rows cols facet_rows facet_cols spec spec_digest commit"
    keys += " versions noise gpu boards protocols kernel skipped points even importance spent seconds finished"
    assert set(keys.split()) <= set(found)
    assert found["points"] == 180
    (place,) = found["importance"].values()
    assert place["evaluator"] == "PED-ANOVA"
    assert found["protocols"][0]["regime"] == "burst"
    assert found["finished"]["rows"] == len(read_study(out).rows)
