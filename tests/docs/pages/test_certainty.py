"""Spreads of boards and processes are found again where they were planted, and intervals are as right as they say."""

from __future__ import annotations

import json
import math
from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest

from docs.generate.pages import certainty
from docs.generate.pages.certainty import components_of, coverage, in_halves, same_code, student
from hopper_gemm.tune.measure.verdict import COMPONENTS

BETWEEN, WITHIN = 0.0058, 0.0016


def drawn(seed, boards, repeats, entries, us=30.0, between=BETWEEN, within=WITHIN):
    """Measurements of the model: every entry on every board, in so many processes."""
    rng = np.random.default_rng(seed)
    shape = (entries, boards, repeats)
    log = rng.normal(0.02, 0.05, (entries, 1, 1)) + rng.normal(0, between, (entries, boards, 1))
    at = np.indices(shape).reshape(3, -1)
    names = {"entry": [f"{us}/{one}" for one in at[0]], "board": [f"GPU-{one}" for one in at[1]]}
    return pd.DataFrame({**names, "us": us, "log": (log + rng.normal(0, within, shape)).ravel()})


def alone(measured):
    return [[board] for board in measured["board"].unique()]


@pytest.mark.parametrize(("boards", "repeats"), [(2, 2), (4, 3), (8, 1)])
def test_components_are_those_that_were_planted(boards, repeats):
    """Of 400 entries within a tenth; without repeats what is within boards counts as between them."""
    (found,) = components_of(drawn(1, boards, repeats, 400)).values()
    assert found.between == pytest.approx(math.hypot(BETWEEN, WITHIN if repeats == 1 else 0), rel=0.1)
    assert found.within == pytest.approx(WITHIN if repeats > 1 else 0, rel=0.1)
    assert (found.most_us, found.entries, found.boards) == (150.0, 400, boards)


def test_unequal_repeats_do_not_shift_the_components():
    """A board with nine processes has a mean that scatters less than that of a board with one."""
    measured = drawn(2, 4, 9, 400)
    process = measured.groupby(["entry", "board"]).cumcount()
    (found,) = components_of(measured[(process == 0) | (measured["board"] == "GPU-0")]).values()
    assert (found.between, found.within) == pytest.approx((BETWEEN, WITHIN), rel=0.1)


def test_an_entry_is_of_one_class_and_a_class_without_two_boards_has_no_component():
    """Durations of one entry lie on both sides of a limit; its class is that of their median."""
    short, long = drawn(4, 8, 2, 100, us=6.0), drawn(5, 8, 2, 100, us=500.0)
    short.loc[short["board"] == "GPU-0", "us"] = 9.0
    found = components_of(pd.concat([short, long, drawn(6, 1, 2, 20, us=50.0)]))
    assert [(most_us, one.entries, one.boards) for most_us, one in found.items()] == [(8.0, 100, 8), (math.inf, 100, 8)]


def test_half_an_interval_is_at_least_student_s_t_of_the_independent_differences_between_boards():
    """Three pairs of boards that no entry connects have three, six boards that all entries ran on have five."""
    joined = drawn(7, 6, 1, 400)
    parted = joined[joined["entry"].str[-1].astype(int) % 3 == joined["board"].str[-1].astype(int) // 2]
    found = [components_of(measured)[150.0].deviations for measured in (joined, parted)]
    assert found == pytest.approx([student(5), student(3)])


def test_differences_with_two_peaks_need_more_standard_deviations():
    """One entry in ten moves by eight standard deviations of the others from board to board."""
    measured = drawn(8, 30, 1, 40)
    odd = measured["entry"].isin([f"30.0/{one}" for one in range(4)]) & (measured["board"].str[-1].astype(int) % 2 == 0)
    apart = measured.assign(log=measured["log"] + 8 * BETWEEN * odd)
    usual, more = (components_of(one)[150.0].deviations for one in (measured, apart))
    assert usual == pytest.approx(student(29))
    assert more > 1.1 * usual


def test_coverage_is_that_of_the_model_where_the_model_holds():
    measured = drawn(5, 8, 2, 40)
    found = coverage(measured, alone(measured)).loc[150.0]
    assert found["size"] == 40 * 8 * 7 * 4
    assert 0.94 <= found["mean"] <= 0.99


def test_coverage_falls_where_one_board_is_unlike_the_others():
    """Estimated without that board, the intervals do not allow for it."""
    measured = drawn(6, 4, 2, 40)
    odd = measured.assign(log=measured["log"] + 0.1 * (measured["board"] == "GPU-0"))
    assert coverage(odd, alone(odd))["mean"][150.0] < 0.9 < coverage(measured, alone(measured))["mean"][150.0]


def test_halves_of_the_boards_are_drawn_both_and_differ_by_seed():
    boards = [f"GPU-{one}" for one in range(7)]
    found = in_halves(boards)
    assert len(found) == 2 * len(certainty.SEEDS)
    assert all(sorted([*one, *other]) == boards for one, other in zip(found[::2], found[1::2], strict=True))
    assert len({tuple(sorted(one)) for one in found}) > 20


@pytest.fixture(scope="module")
def recorded():
    """Recorded measurements of the same machine code."""
    return same_code()


@pytest.mark.results
def test_the_components_that_publish_are_those_of_the_recorded_rows(recorded):
    """Rounded as they are written; a study recorded since changes them."""
    found = components_of(recorded).values()
    assert [(round(b, 4), round(w, 4), round(d, 2), *n) for _, b, w, d, *n in map(astuple, found)] == [
        tuple(one)[1:] for one in map(astuple, COMPONENTS)
    ]


@pytest.mark.results
def test_published_intervals_are_right_on_boards_left_out(recorded):
    """In each class of duration at least 93 times in a hundred, where 95 are promised; at least 90 times where half of
    the boards are left out, which leaves few entries."""
    for left_out, least in ((alone(recorded), 0.93), (in_halves(recorded["board"]), 0.9)):
        found = coverage(recorded, left_out)
        assert len(found) == len(COMPONENTS)
        assert found["mean"].min() >= least


def test_the_guard_s_answers_to_planted_changes_stand_in_the_order_of_the_sizes(tmp_path, monkeypatch):
    """A problem that was not checked leaves its cell empty."""
    checked = [{"problem": f"{n}x{n}x{n}", "status": "fallen", "ratio": 0.5} for n in (512, 64)]
    plants = [{"plant": "a", "exit": 1, "checked": checked}, {"plant": "b", "exit": 0, "checked": checked[:1]}]
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements/planted.json").write_text(json.dumps(plants))
    monkeypatch.setattr(certainty, "measurement", tmp_path.joinpath)
    head, _, *lines = certainty.planted().splitlines()
    assert head == "| planted | 64^3 | 512^3 | exit code |"
    assert lines == ["| a | fallen, 0.5000x | fallen, 0.5000x | 1 |", "| b |  | fallen, 0.5000x | 0 |"]


def test_few_degrees_of_freedom_make_an_interval_wider():
    """Student's t, whose values beyond the table go on from its last."""
    assert [student(freedom) for freedom in (1, 2, 9)] == [12.71, 4.30, 2.26]
    assert [student(freedom) for freedom in (19, 30, 120)] == pytest.approx([2.093, 2.042, 1.980], abs=0.01)
