"""Damaged copies are told apart by what their reader does, also where it dies."""

from __future__ import annotations

import csv
import os
import random
import signal
from collections import Counter

import pytest

from benchmarks.damages import (
    CASES,
    EVERY_DAMAGE,
    GOOD,
    OUT,
    REFUSED,
    REPLACED,
    UNCHANGED,
    Kind,
    MadeAgainError,
    cases,
    outcome,
)


def refuse(copy):
    raise ValueError(f"{copy}/rows is cut; restore it")


def refuse_at_length(copy):
    raise ValueError(f"{copy}/rows is cut\nrestore it")


def fail(copy):
    raise KeyError("rows")


def make_again(copy):
    raise MadeAgainError


def die(copy):
    os.kill(os.getpid(), signal.SIGKILL)


def read(copy):
    return (copy / "rows").read_bytes()


@pytest.mark.parametrize(
    ("reader", "result"),
    [
        (refuse, REFUSED),
        (refuse_at_length, "refused without its file"),
        (fail, "traceback"),
        (make_again, REPLACED),
        (die, f"signal {signal.SIGKILL.value}"),
        (read, "other content"),
    ],
)
def test_what_a_reader_does_is_told_apart_in_a_process_of_its_own(tmp_path, reader, result):
    (tmp_path / "rows").write_bytes(b"64,ok,1.25\n")
    assert outcome(reader, tmp_path)[0] == result
    assert outcome(read, tmp_path, outcome(read, tmp_path)[1])[0] == UNCHANGED


def test_every_damage_changes_a_copy_and_none_the_source(tmp_path):
    source, text = tmp_path / "source", b"".join(b"%d,ok,1.25\n" % row for row in range(40))
    source.mkdir()
    (source / "rows").write_bytes(text)

    def checked(copy):
        if not (copy / "rows").exists() or read(copy) != text:
            raise ValueError(f"{copy}/rows was changed; restore it")
        return text

    made = list(cases(Kind([source], checked), 2 * len(EVERY_DAMAGE), random.Random(1), tmp_path))
    assert {(damage, result) for _, damage, result, _ in made} == {
        (damage.__name__, REFUSED) for damage in EVERY_DAMAGE
    }
    assert read(source) == text


def test_the_recorded_cases_are_as_many_as_wanted_and_all_end_well():
    rows = list(csv.DictReader(OUT.read_text(encoding="utf-8").splitlines()))
    counts = Counter()
    for row in rows:
        counts[row["kind"]] += int(row["cases"])
        assert row["outcome"] in GOOD, row
        assert row["sources"], row
        assert row["date"], row
    assert counts == CASES
