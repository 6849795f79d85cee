"""Tables of what picks are worth: they say what a mean hides, and count what the rows have."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from benchmarks.fresh import LAST_SEEDS
from docs.generate.pages import studies
from docs.generate.pages.sources import recorded
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.mapped import mapped

pytestmark = pytest.mark.results


def test_the_map_tells_what_tma_reaches_apart():
    """Problems that torch.mm is slow on do not carry the mean unsaid."""
    found = mapped(recorded("map").stage("map"))
    reached = [one for one in found if not one.problem.out_of_reach]
    mean = geometric_mean(one.pick for one in reached)
    assert 0 < len(reached) < len(found)
    assert mean < geometric_mean(one.pick for one in found)
    (line,) = (line for line in lines(studies.maps()) if "results/h200/map/" in line)
    assert f"| {len(reached)} | {mean:.3f}x [" in line


def test_the_last_seeds_stand_apart_and_each_says_of_how_many_kernels_its_best_is():
    today, before = studies.fresh().split("\n\n")[0], studies.fresh_before()
    of = {line.split("|")[1].split("]")[0].strip(" ["): line.split("|") for line in (today + before).splitlines()}
    assert {name.removeprefix("fresh-") for name in LAST_SEEDS} == {*re.findall(r"^\| \[(\d+)\]", today, re.MULTILINE)}
    for seed, timed in (("6", "32"), ("7", "8"), ("28", "32"), ("29", "8")):
        kernels = Counter(row.point.problem for row in recorded(f"fresh-{seed}").rows if row.point.against == "cublas")
        assert of[seed][4].strip() == timed == str(max(kernels.values()))


def test_a_map_of_one_kind_of_gpu_has_none_of_another():
    """Both have the same names; the pages of H200s come first wherever a name alone is asked for."""
    kinds = [study.provenance["gpu"]["name"] for study in (recorded("map"), studies.on_h100s("map"))]
    assert kinds == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    problems = [{one.problem for one in mapped(of.stage("map"))} for of in (recorded("map"), studies.on_h100s("map"))]
    assert not set.intersection(*problems)


def test_a_share_is_that_of_the_best_of_three():
    """The pick and a warm-up fall short of the best by no more than all of it, and one of the parts is the whole."""
    *parts, whole = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines(studies.shares()))
    assert sum(int(part[1]) for part in parts) == int(whole[1]) > 0
    for column in (2, 3):
        least = [float(line[column].split("], ")[1]) for line in (*parts, whole)]
        assert min(least[:-1]) == least[-1] <= 1


def lines(table):
    """The lines of a table below its head."""
    return table.splitlines()[2:]
