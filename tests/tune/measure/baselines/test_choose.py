"""Which candidate a baseline is timed with, by clocks that are told what to say."""

from __future__ import annotations

from collections import Counter

import pytest

from hopper_gemm.tune.measure.baselines.base import BaselineError, Candidate, Care
from hopper_gemm.tune.measure.baselines.choose import KEPT_WITHIN, USUAL, choose, choose_again


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

    def labels(self, kind):
        return {label for known, label in self.asked if known == kind}


def candidates(labels):
    return [Candidate(lambda operands: None, label, recipe=label.upper()) for label in labels]


MANY = [chr(ord("a") + number) for number in range(26)] + [chr(ord("A") + number) for number in range(26)]


def test_the_one_that_is_fastest_when_timed_again_wins_not_the_luckiest_sample():
    watch = FakeWatch({"a": 1, "b": 1.1, "c": 1.2}, short={"a": 9, "b": 10, "c": 11}, again={"a": 5, "b": 4, "c": 6})
    chosen = choose(candidates("abc"), watch)
    assert (chosen.candidate.label, chosen.candidate.recipe, chosen.of, chosen.rel_err) == ("b", "B", 3, 1.7e-3)


def test_what_is_far_behind_at_a_glance_is_not_timed_further():
    watch = FakeWatch({"a": 1.0, "b": USUAL.near - 0.01, "c": USUAL.near + 0.01})
    choose(candidates("abc"), watch)
    assert watch.labels("short") == {"a", "b"}


def test_each_round_has_fewer_candidates_and_more_looks():
    watch = FakeWatch({label: 1 + number / 1000 for number, label in enumerate(MANY)})
    choose(candidates(reversed(MANY)), watch)
    assert len(watch.labels("short")) == len(MANY)
    several = {
        label for (kind, label), count in watch.asked.items() if kind == "short" and count == 1 + USUAL.short_rounds
    }
    assert several == set(MANY[: USUAL.semifinalists])
    assert watch.labels("again") == set(MANY[: USUAL.finalists])
    assert {count for (kind, _), count in watch.asked.items() if kind == "again"} == {USUAL.rounds}


def test_a_seeded_candidate_is_timed_to_the_end_and_wins_where_it_is_the_fastest_there():
    """It is behind at a glance, and in every short burst."""
    slow = dict.fromkeys(MANY, 1.0) | {"seed": 9.0}
    seed = Candidate(lambda operands: None, "seed", "SEED", seeded=True)
    watch = FakeWatch(slow, again=slow | {"seed": 0.9})
    assert choose([*candidates(MANY), seed], watch).candidate is seed
    assert len(watch.labels("again")) == USUAL.finalists + 1
    assert choose([*candidates(MANY), seed], FakeWatch(slow)).candidate is not seed


def test_another_process_chooses_among_those_near_the_fastest_and_the_seeded_one_by_the_last_round_alone():
    first = {"a": 1.0, "b": 1 + KEPT_WITHIN - 0.001, "c": 1 + KEPT_WITHIN + 0.001, "seed": 1.2}
    seed = Candidate(lambda operands: None, "seed", "SEED", seeded=True)
    kept = choose([*candidates("abc"), seed], FakeWatch(first)).finalists
    assert [one.label for one in kept] == ["a", "b", "seed"]
    watch = FakeWatch(first, again={"a": 1.01, "b": 1.0, "seed": 1.2})
    chosen = choose_again(kept, watch)
    assert (chosen.candidate.label, chosen.of, chosen.rel_err) == ("b", 3, 1.7e-3)
    assert {count for (kind, _), count in watch.asked.items() if kind == "again"} == {USUAL.rounds}
    assert not watch.labels("short")


def test_a_finalist_that_does_not_run_in_another_process_is_passed_over():
    assert choose_again(candidates("ab"), FakeWatch({"b": 1})).candidate.label == "b"
    with pytest.raises(BaselineError, match="none of 1 candidates runs and is right: a: not supported"):
        choose_again(candidates("a"), FakeWatch({}))


def test_variants_of_the_fastest_are_tried_and_one_may_win():
    def variants(label):
        return lambda: candidates([f"{label}1", f"{label}2", "b"])

    some = [Candidate(lambda operands: None, label, label.upper(), variants=variants(label)) for label in MANY]
    times = {label: 2 + number for number, label in enumerate(MANY)}
    fastest = {f"{label}{number}": 1.0 + number for label in MANY for number in (1, 2)}
    watch = FakeWatch(times | fastest | {"c2": 0.5})
    chosen = choose(some, watch)
    assert chosen.candidate.label == "c2"
    assert chosen.of == len(MANY) + 2 * USUAL.varied, "what is known already is not tried twice"
    assert {count for (kind, _), count in watch.asked.items() if kind == "glance"} == {1}


def test_a_candidate_that_does_not_run_is_passed_over():
    chosen = choose(candidates("abc"), FakeWatch({"b": 2, "c": 1}))
    assert (chosen.candidate.label, chosen.of) == ("c", 3)


def test_a_wrong_product_is_never_the_best():
    watch = FakeWatch({"a": 1, "b": 2 / 1.9}, errors={"a": 0.9})
    assert choose(candidates("ab"), watch).candidate.label == "b"
    watch = FakeWatch({"a": 1, "b": 1.05}, errors={"a": float("nan")})
    assert choose(candidates("ab"), watch).candidate.label == "b"


def test_a_single_candidate_is_checked_and_not_timed():
    watch = FakeWatch({})
    assert choose(candidates("a"), watch).of == 1
    assert not watch.asked


def test_when_nothing_runs_the_first_reason_is_told():
    with pytest.raises(BaselineError, match="none of 2 candidates runs and is right: a: not supported"):
        choose(candidates("ab"), FakeWatch({}))
    with pytest.raises(BaselineError, match=r"its product is wrong, relative error 5\.00e-01"):
        choose(candidates([""]), FakeWatch({}, errors={"": 0.5}))


def test_less_care_times_fewer_candidates_fewer_times():
    watch = FakeWatch({label: 1.0 + at / 1000 for at, label in enumerate(MANY)})
    found = choose([Candidate(None, label) for label in MANY], watch, Care(1.1, 0, 8, 3, 3, 3))
    assert found.candidate.label == MANY[0]
    assert watch.labels("again") == set(MANY[:3])
    assert {count for (kind, _), count in watch.asked.items() if kind == "again"} == {3}
