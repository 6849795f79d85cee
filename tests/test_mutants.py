"""Faults are planted where they say, judged by tests, and taken out again."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from benchmarks.mutants import Fault, drawn, judge, listed
from tests.conftest import ROOT

SOURCE = "def bounded(x):\n    return min(x, 7) if x >= 3 and x != 5 else x + 1\n"
TEST = (
    "from hopper_gemm.tune.one import bounded\n\ndef test_bounded():\n    assert bounded(9) == 7 and bounded(3) == 3\n"
)


@pytest.fixture
def tree(tmp_path):
    """A tree of one module and one test."""
    package, tests = tmp_path / "tree/hopper_gemm/tune", tmp_path / "tree/tests/tune"
    package.mkdir(parents=True)
    tests.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "one.py").write_text(SOURCE)
    (tests / "test_one.py").write_text(TEST)
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [("x != 5", "x != 6", "survived"), ("x >= 3", "x > 3", "caught"), ("x < 3", "x", "gone")],
)
def test_a_fault_is_judged_by_its_tests_and_taken_out_again(tree, old, new, status):
    fault = Fault("hopper_gemm/tune/one.py", old, new, ("tests/tune/test_one.py",))
    assert judge(fault, tree)["status"] == status
    assert (tree / fault.file).read_text() == SOURCE


def test_drawn_faults_are_code_stand_where_they_say_and_follow_from_the_seed(tree):
    faults = drawn(tree, 1, 50)
    assert faults == drawn(tree, 1, 50)
    assert len({fault.key for fault in faults}) == len(faults) == 8
    for fault in faults:
        assert fault.tests == ("tests/tune",)
        assert SOURCE.count(fault.old) == 1
        ast.parse(SOURCE.replace(fault.old, fault.new))


def test_the_recorded_faults_are_those_listed_and_some_drawn_and_each_survivor_is_explained():
    rows = [*map(json.loads, (ROOT / "results/verification/mutants.jsonl").read_text().splitlines())]
    of_list = [row for row in rows if row["seed"] is None]
    assert {(row["file"], row["old"], row["new"]) for row in of_list} == {fault.key for fault in listed()}
    assert all(row["by"] if row["status"] == "caught" else row["why"] for row in rows)
    caught = [row["status"] == "caught" for row in rows if row["seed"] is not None]
    assert sum(caught) >= 0.92 * len(caught) > 0


def test_every_listed_fault_can_be_planted_in_today_s_code():
    assert [fault.key for fault in listed() if (ROOT / fault.file).read_text().count(fault.old) != 1] == []
    assert all((ROOT / path).exists() for fault in listed() for path in map(Path, fault.tests))
