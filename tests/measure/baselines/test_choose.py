"""Which candidate a baseline is timed with, by clocks that are told what to say."""

from __future__ import annotations

from collections import Counter

import pytest

from hopper_gemm.measure.baselines.base import BaselineError, Candidate
from hopper_gemm.measure.baselines.choose import FINALISTS, ROUNDS, choose


class FakeWatch:
    """Times by label; what has none raises; ``errors`` are relative errors that differ from the usual."""

    def __init__(self, glance, short=None, again=None, errors=None) -> None:
        self._times = {"glance": glance, "short": short or glance, "again": again or short or glance}
        self._errors = errors or {}
        self.asked: Counter[tuple[str, str]] = Counter()

    def _time(self, kind, candidate):
        self.asked[kind, candidate.label] += 1
        if candidate.label not in self._times[kind]:
            raise RuntimeError("not supported")
        return self._times[kind][candidate.label]

    def glance(self, candidate):
        return self._time("glance", candidate)

    def short(self, candidate):
        return self._time("short", candidate)

    def again(self, candidate):
        return self._time("again", candidate)

    def rel_err(self, candidate):
        return self._errors.get(candidate.label, 1.7e-3)


def candidates(labels):
    return [Candidate(lambda operands: None, label, recipe=label.upper()) for label in labels]


def test_the_one_that_is_fastest_when_timed_again_wins_not_the_luckiest_sample():
    watch = FakeWatch({"a": 1, "b": 1.1, "c": 1.2}, short={"a": 9, "b": 10, "c": 11}, again={"a": 5, "b": 4, "c": 6})
    best, chosen = choose(candidates("abc"), watch)
    assert best.label == chosen.label == "b"
    assert (chosen.recipe, chosen.of, chosen.rel_err) == ("B", 3, 1.7e-3)


def test_what_is_far_behind_at_a_glance_is_not_timed_further():
    watch = FakeWatch({"a": 1.0, "b": 1.29, "c": 1.31})
    choose(candidates("abc"), watch)
    assert watch.asked["short", "b"] == 1
    assert watch.asked["short", "c"] == 0


def test_only_the_best_few_are_timed_again_in_several_rounds():
    watch = FakeWatch({label: 1 + number / 100 for number, label in enumerate("abcdefgh")})
    choose(candidates("hgfedcba"), watch)
    assert {label for kind, label in watch.asked if kind == "again"} == set("abcdefgh"[:FINALISTS])
    assert {count for (kind, _), count in watch.asked.items() if kind == "again"} == {ROUNDS}


def test_a_candidate_that_does_not_run_is_passed_over():
    best, chosen = choose(candidates("abc"), FakeWatch({"b": 2, "c": 1}))
    assert (best.label, chosen.of) == ("c", 3)


def test_a_wrong_product_is_never_the_best():
    watch = FakeWatch({"a": 1, "b": 2 / 1.9}, errors={"a": 0.9})
    assert choose(candidates("ab"), watch)[0].label == "b"
    watch = FakeWatch({"a": 1, "b": 1.05}, errors={"a": float("nan")})
    assert choose(candidates("ab"), watch)[0].label == "b"


def test_a_single_candidate_is_checked_and_not_timed():
    watch = FakeWatch({})
    assert choose(candidates("a"), watch)[1].of == 1
    assert not watch.asked


def test_when_nothing_runs_the_first_reason_is_told():
    with pytest.raises(BaselineError, match="none of 2 candidates runs and is right: a: not supported"):
        choose(candidates("ab"), FakeWatch({}))
    with pytest.raises(BaselineError, match=r"its product is wrong, relative error 5\.00e-01"):
        choose(candidates([""]), FakeWatch({}, errors={"": 0.5}))
