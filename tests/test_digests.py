"""The digests of machine code, by which a change of the sources is compared with what it was."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks.digests import Case, cases, differences, some
from hopper_gemm.compiler.store import KernelId, PaddingId
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.parameters import config_of


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
def test_no_two_kernels_share_a_name_and_each_is_read_back_from_its_file():
    """A digest is kept by the name of its kernel, where a second one would be lost, and compared by what is written."""
    found = cases(refused := Counter())
    assert len({case.name for case in found}) == len(found)
    assert refused["layouts"] > 0, "what the rules refuse is counted"
    kinds = {case.group.split()[0] for case in found}
    assert kinds == {"padding", "menu", "fp8", "types", "tuned", "recorded", "ladder", "drawn", "observers"}
    assert [case.name for case in found if Case.of(json.loads(json.dumps(case.as_dict()))) != case] == []


def test_a_kernel_of_the_file_is_read_back_though_a_parameter_was_added_since():
    """The file does not name it, so it stands at its default: what is drawn by today's parameters does not matter."""
    config = resolve(config_of({"tile_m": 128, "rotate_k": 3})).compiled()
    case = Case("drawn", "drawn: one", KernelId(config, "bf16", "kk", finish=Epilogue(bias=True)))
    written = json.loads(json.dumps(case.as_dict()))
    assert "skew" not in written["kernel"]["config"]
    assert Case.of(written) == case
    assert Case.of(json.loads(json.dumps(made("padding")[0].as_dict()))) == made("padding")[0]
