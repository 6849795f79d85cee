"""Matrices hold what they are said to hold."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.model.grouped import GROUPINGS, GroupedProblem
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.limits import least_seconds
from hopper_gemm.tune.measure.baselines.cublaslt import Cublas
from hopper_gemm.tune.measure.workload import L2_MULTIPLE, MOST_SETS, filled, make_workload, sets_of, spans_of


def matrix(data: str, seed: int = 0) -> torch.Tensor:
    return filled(512, 384, data, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("data", "least", "greatest", "deviation"),
    [("normal", -8, 8, 1), ("uniform", -1, 1, 3**-0.5), ("zeros", 0, 0, 0)],
)
def test_numbers_have_the_range_and_the_deviation_of_their_kind(data, least, greatest, deviation):
    found = matrix(data)
    assert found.shape == (512, 384)
    assert least <= float(found.min()) <= float(found.max()) <= greatest
    assert float(found.mean()) == pytest.approx(0, abs=0.02)
    assert float(found.std()) == pytest.approx(deviation, abs=0.02)


@pytest.mark.parametrize("data", ["normal", "uniform"])
def test_a_seed_gives_its_matrix_again(data):
    assert torch.equal(matrix(data), matrix(data))
    assert not torch.equal(matrix(data), matrix(data, seed=1))


def test_other_data_is_refused_by_name():
    with pytest.raises(ValueError, match="data must be one of normal, uniform, zeros but got 'ones'"):
        matrix("ones")


def test_sets_outgrow_the_l2_and_are_never_so_many_that_making_them_takes_minutes():
    l2 = 50 << 20
    for problem in (GemmProblem(104, 16, 88), GemmProblem(1719, 8, 8), GemmProblem(8192, 8192, 8192)):
        count = sets_of(problem, l2)
        assert 2 <= count < MOST_SETS
        assert count * problem.bytes >= L2_MULTIPLE * l2
        assert count == 2 or (count - 1) * problem.bytes < L2_MULTIPLE * l2
    assert sets_of(GemmProblem(4, 8, 8), l2) == MOST_SETS


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="torch has no grouped_mm")
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_torchs_product_of_groups_is_the_reference_and_a_wrong_element_is_seen(grouping):
    """Along whichever axis operands are contiguous."""
    for layouts in ("mn",) if grouping.endswith("depth") else ("kk", "kn"):
        problem = GroupedProblem(32, 48, 64, layouts=layouts, groups=4, grouping=grouping)
        work = make_workload(problem, 1000, device="cpu")
        (candidate,) = Cublas().candidates(work)
        candidate.launch(work.sets[0])
        out = candidate.product(work.sets[0])
        assert work.check(out).ok
        out.view(-1)[-1] += 3
        assert not work.check(out).ok


def test_groups_are_of_all_sizes_up_to_twice_the_mean_and_cover_all_rows():
    spans = spans_of(GroupedProblem(4096, 8, 8, groups=64))
    sizes = [end - start for start, end in spans]
    assert sum(sizes) == 4096
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, 127)


def test_a_launch_may_leave_out_the_matrices_of_empty_groups_and_still_be_in_time():
    few, many = (GroupedProblem(128, 2048, 7168, groups=groups) for groups in (1, 128))
    assert least_seconds(few) == least_seconds(many)
