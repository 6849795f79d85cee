"""The digests of machine code, by which a change of the sources is compared with what it was."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.digests import Case, cases, differences, some
from hopper_gemm.compiler.store import PaddingId


def made(*groups: str) -> list[Case]:
    """Cases of groups."""
    return [Case(group, f"{group}: {number}", PaddingId()) for number, group in enumerate(groups)]


def test_a_draw_takes_from_each_group_in_turn():
    """A small draw covers every group: the rare ones are those that a change forgets."""
    drawn = some(made(*"a" * 50, "b", *"c" * 10), 5, seed=3)
    assert Counter(case.group for case in drawn) == {"a": 2, "b": 1, "c": 2}
    assert len(some(made("a", "b"), None, 0)) == 2


def test_kernels_of_one_file_alone_are_no_difference():
    """A sample is compared with the whole."""
    assert differences({"a": "1", "b": "2", "c": "3"}, {"b": "2", "c": "4", "d": "5"}) == ["c: 3 -> 4"]


@pytest.mark.results
def test_no_two_kernels_share_a_name():
    """A digest is kept by the name of its kernel: a second one under it would be lost."""
    refused: Counter[str] = Counter()
    found = cases(refused)
    assert len({case.name for case in found}) == len(found)
    assert refused["layouts"] > 0, "what the rules refuse is counted"
