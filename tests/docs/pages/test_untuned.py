"""Tables of what picks are worth: they say what a mean hides, and count what the rows have."""

from __future__ import annotations

import pytest

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
    assert f"of {len(reached)} of these problems in place: there the picks have {mean:.3f}x" in " ".join(
        studies.map_table().split()
    )


def test_a_map_of_one_kind_of_gpu_has_none_of_another():
    """Both have the same names; the pages of H200s come first wherever a name alone is asked for."""
    kinds = [study.provenance["gpu"]["name"] for study in (recorded("map"), studies.on_h100s("map"))]
    assert kinds == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    problems = [{one.problem for one in mapped(of.stage("map"))} for of in (recorded("map"), studies.on_h100s("map"))]
    assert not set.intersection(*problems)


def test_a_share_is_that_of_the_best_of_three():
    table, shares = studies.shares().split("\n\n")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    searched = [[float(cell.rstrip("x")) for cell in line[2:]] for line in lines if line[4]]
    found = [pick / max(pick, warm, best) for pick, warm, best in searched]
    (whole,) = (line for line in shares.splitlines() if f"| {len(searched)} |" in line)
    share, _, rest = whole.split("|")[3].strip().partition(" [")
    assert (share, rest.split("], ")[1]) == (f"{geometric_mean(found):.3f}", f"{min(found):.2f}")
