"""A map: what is measured of each problem, in which order, and how it goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hopper_gemm.model.menu import choices, choose, menu
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import Chip
from hopper_gemm.tune.measure.protocol import Outcome
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.run.questions.map import BRIEF, LIBRARY, PROTOCOL, SEED, Map, points_of
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.spec import MenuSection, command_spec
from hopper_gemm.tune.tables.mapped import by_stratum, mapped
from hopper_gemm.tune.tables.pages.publish import publish
from hopper_gemm.tune.tables.view import view
from tests.tune.run import fakes
from tests.tune.run.instant import FEW_SMS, Instant, rows_of

PROBLEMS = tuple(GemmProblem(m, 1024, 1024) for m in (1, 64, 333, 1024, 4096))
PICKS, DRAWN = MenuSection().picks, MenuSection().drawn


def map_spec(problems=PROBLEMS, **keys):
    keys = {"name": "list", "question": "why", "seed": SEED, "menu": {}, "against": ["cublas", LIBRARY], **keys}
    return command_spec("map", problems, **keys)


SPEC = map_spec()


def run_map(out, executor=None, spec=SPEC, **options):
    executor = executor or Instant()
    question = Map(spec, out, "NVIDIA H200", **options)
    run(question, executor)
    return question, executor


def rows(out):
    return rows_of(out, "map")


def test_every_problem_gets_the_eight_best_picks_and_24_kernels_drawn_from_the_menu_once(tmp_path):
    run_map(tmp_path / "m")
    for problem in PROBLEMS:
        own = [row for row in rows(tmp_path / "m") if row.point.problem == problem]
        hows = [(row.point, str(row.figures["how"]).split(", ")) for row in own if row.point.against == "cublas"]
        assert sum("drawn" in how for _, how in hows) == DRAWN
        picks = {how[0]: point.config for point, how in hows if how[0] != "drawn"}
        assert picks == {f"pick {place}": one for place, one in enumerate(choices(problem, PICKS), 1)}
        assert {point.config.compiled() for point, _ in hows} <= {kernel.compiled() for kernel in menu()}
        (library,) = [row for row in own if row.point.against == LIBRARY]
        assert library.point.config == picks["pick 1"]


def order_of(out, problems=PROBLEMS, **keys):
    """Problems in the order in which they are measured."""
    _, executor = run_map(out, spec=map_spec(problems, **keys))
    return list(dict.fromkeys(task.points[0].problem for _, task in executor.tasks))


def test_without_drawn_kernels_only_picks_are_measured_in_the_same_order(tmp_path):
    alone, usual = (order_of(tmp_path / name, menu=menu) for name, menu in (("alone", {"drawn": 0}), ("usual", {})))
    assert alone == usual
    digests = [read_study(tmp_path / name).provenance["spec_digest"] for name in ("alone", "usual")]
    assert digests[0] != digests[1]
    picks = {point: how for point, how in points_of(PROBLEMS[2], MenuSection()).items() if how != "drawn"}
    assert points_of(PROBLEMS[2], MenuSection(drawn=0)).keys() == picks.keys()


def test_what_is_drawn_depends_on_the_seed_and_the_problem_alone():
    points = points_of(PROBLEMS[2], MenuSection())
    assert points_of(PROBLEMS[2], MenuSection()) == points
    assert points_of(PROBLEMS[2], MenuSection(), seed=1) != points


def test_what_is_picked_is_picked_for_the_kind_of_gpu_that_joined(tmp_path):
    run_map(tmp_path / "m", Instant(facts=FEW_SMS))
    first = [row.point for row in rows(tmp_path / "m") if "pick 1" in row.figures["how"].split(", ")]
    picks = {(point.problem, point.config) for point in first}
    assert picks == {(problem, choose(problem, Chip(**FEW_SMS))) for problem in PROBLEMS}
    assert picks != {(problem, choose(problem)) for problem in PROBLEMS}


def test_the_order_is_shuffled_and_a_problem_is_measured_on_one_board(tmp_path):
    _, executor = run_map(tmp_path / "m", Instant(workers=2))
    boards = {(row.point.problem, row.board) for row in rows(tmp_path / "m")}
    assert len(boards) == len(PROBLEMS)
    assert len({board for _, board in boards}) == 2
    assert {task.points[0].problem for _, task in executor.tasks} == set(PROBLEMS)
    many = tuple(GemmProblem(8 * m, 64, 64) for m in range(1, 40))
    order = order_of(tmp_path / "many", many, menu={"picks": 1, "drawn": 0})
    assert sorted(order, key=str) == sorted(many, key=str)
    assert order != list(many)


def test_drawn_kernels_are_raced_with_the_best_pick_and_picks_are_not(tmp_path):
    _, executor = run_map(tmp_path / "m")
    raced = {task.race.leader is not None for _, task in executor.tasks if len(task.points) > PICKS + 1}
    assert raced == {True}
    assert all(task.race.leader is None for _, task in executor.tasks if task.points[-1].against == LIBRARY)


def test_long_launches_are_timed_longer_than_short_ones(tmp_path):
    long = GemmProblem(8192, 8192, 4096)
    _, executor = run_map(tmp_path / "m", spec=map_spec((PROBLEMS[0], long)))
    timed = {(task.points[0].problem, task.method.timed) for _, task in executor.tasks}
    assert timed == {(PROBLEMS[0], BRIEF.timed), (long, PROTOCOL.timed)}


def test_after_the_time_no_further_problem_is_begun_and_the_same_command_goes_on(tmp_path):
    now = iter(range(10**6))
    first, _ = run_map(tmp_path / "m", seconds=2, clock=lambda: float(next(now)))
    half = rows(tmp_path / "m")
    begun = {row.point.problem for row in half}
    assert 0 < len(begun) < len(PROBLEMS)
    assert first.open == len(PROBLEMS) - len(begun)
    assert "finished" not in read_study(tmp_path / "m").provenance
    _, executor = run_map(tmp_path / "m")
    assert not begun & {task.points[0].problem for _, task in executor.tasks}
    assert max(Counter(row.key for row in rows(tmp_path / "m")).values()) == 1
    assert {row.point.problem for row in rows(tmp_path / "m")} == set(PROBLEMS)
    assert read_study(tmp_path / "m").provenance["finished"]["rows"] == len(rows(tmp_path / "m"))


def test_an_interrupted_map_measures_only_what_is_missing(tmp_path):
    def stop(row, done, total):
        raise KeyboardInterrupt

    question = Map(SPEC, tmp_path / "m", "NVIDIA H200", watch=stop)
    with pytest.raises(KeyboardInterrupt):
        run(question, Instant())
    assert question.open == len(PROBLEMS), "a problem that was begun is not done"
    kept = [row.key for row in rows(tmp_path / "m")]
    assert 0 < len(kept) < 20
    _, executor = run_map(tmp_path / "m")
    again = [point for _, task in executor.tasks for point in task.points if task.stage == "map"]
    assert not {key.point for key in kept} & set(again)
    assert len({*again, *(key.point for key in kept)}) == len(rows(tmp_path / "m"))


def test_the_page_tells_the_pick_the_best_and_the_fastest_kernels_by_stratum(tmp_path):
    def outcome(ask):
        if ask.point.against == LIBRARY:
            return fakes.timed(ask, 0.8)
        return fakes.timed(ask, 0.9 if ask.point.config == choices(ask.point.problem, 1)[0] else 1.1)

    def told(ask):
        return Outcome("wrong_result", "off") if ask.point.problem == PROBLEMS[0] else outcome(ask)

    run_map(tmp_path / "m", Instant(outcome=told))
    publish(tmp_path / "m")
    page = (tmp_path / "m/map.md").read_text()
    assert "4 problems" in page
    assert "wrong result" in page
    assert "| pick of best | fastest kernels |" in page
    assert "Fastest kernels: the three most frequent ways" in page
    found = mapped(rows(tmp_path / "m"))
    assert {round(one.pick, 2) for one in found} == {0.9}
    assert {round(one.best, 2) for one in found} == {1.1}
    assert {round(one.listed, 3) for one in found} == {1.125}
    assert (tmp_path / "m/map.svg").is_file()
    (table,) = view(read_study(tmp_path / "m")).tables
    assert table.cells.loc["all", "pick"] == "0.900 [0.896, 0.904]"
    assert table.cells.loc["all", "behind"] == "4"
    assert table.cells.loc["all", "pick of best"] == "0.818 [0.814, 0.822]"


def test_a_problem_whose_interval_ends_at_even_is_neither_ahead_nor_behind(tmp_path):
    run_map(tmp_path / "m")
    measured = mapped(rows(tmp_path / "m"))[0]
    ends = [(1.0, 1.1), (0.9, 1.0), (1.01, 1.1), (0.9, 0.99)]
    cells = by_stratum([replace(measured, low=low, high=high) for low, high in ends])
    assert (cells.loc["all", "ahead"], cells.loc["all", "behind"]) == ("1", "1")
