"""A search keeps to its budget, forgets nothing that has a row, and believes nothing else."""

from __future__ import annotations

import pytest

from hopper_gemm.tune.search.search import Search
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.space import begun_with, points
from hopper_gemm.tune.study.spec import SpecError
from tests.tune.run.instant import SEARCH, spec_of

TWO = ("[space]", "[[problems]]\nm = 2048\nn = 2048\nk = 2048\n[space]")
SECONDS = ("trials = 12", "seconds = 20")


def legal_of(spec):
    return [point for point, why in points(spec).items() if not why]


def ran(point, speedup=None):
    speed = point.config.tile_m / 320 / (1 + point.config.k_depth / 100) if speedup is None else speedup
    return Row(point, "ok", "", {"speedup": speed})


def walked(search, clock=None):
    """All that it proposes, each answered at once."""
    found = []
    while (point := search.propose()) is not None:
        if clock is not None:
            clock[0] += 1.0
        search.tell(ran(point))
        found.append(point)
    return found


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "prior"])
def test_a_search_measures_its_budget_and_goes_on_from_its_rows(tmp_path, sampler):
    spec = spec_of(tmp_path, SEARCH, ('"gp"', f'"{sampler}"'))
    first = Search(spec, legal_of(spec), [], most=5)
    begun = walked(first)
    assert len(begun) == 5
    assert not first.finished
    second = Search(spec, legal_of(spec), map(ran, begun))
    assert second.planned == 12
    rest = walked(second)
    assert (len(rest), len({*begun, *rest})) == (7, 12)
    assert second.finished
    assert walked(Search(spec, legal_of(spec), map(ran, [*begun, *rest]))) == []


@pytest.mark.parametrize("sampler", ["tpe", "gp", "prior"])
def test_a_search_begins_with_the_first_config_of_each_grid_that_is_known(tmp_path, sampler):
    known = "known = [{ tile_m = 64, k_depth = [5, 6], cluster = '1x1' }, { tile_m = 128, tile_n = 24 }]\n[[prob"
    spec = spec_of(tmp_path, SEARCH, ('"gp"', f'"{sampler}"'), ("[[prob", known))
    begun = [point.config for point in walked(Search(spec, legal_of(spec), []))]
    assert begun[:2] == begun_with(spec)
    assert [(config.tile_m, config.tile_n, config.k_depth) for config in begun[:2]] == [(64, 128, 5), (128, 24, 4)]
    assert any(point.config.k_depth == 6 and point.config.cluster_size == 1 for point in legal_of(spec))


def test_an_exhaustive_sweep_is_a_search_in_the_order_of_the_file(tmp_path):
    spec = spec_of(tmp_path, SEARCH, ('"gp"', '"exhaustive"'), ("trials = 12", "trials = 200"), TWO)
    legal = legal_of(spec)
    assert walked(Search(spec, legal, [])) == legal
    assert walked(Search(spec, legal, map(ran, legal[::2]))) == legal[1::2]


def test_what_was_proposed_is_pending_until_it_is_told(tmp_path):
    spec = spec_of(tmp_path, SEARCH)
    search = Search(spec, legal_of(spec), [])
    asked = [search.propose() for _ in range(12)]
    assert len(set(asked)) == 12
    assert search.propose() is None
    assert not search.finished
    for point in asked:
        search.tell(ran(point))
    assert search.finished


def test_seconds_are_shared_among_what_is_searched(tmp_path):
    spec, now = spec_of(tmp_path, SEARCH, SECONDS, TWO), [0.0]
    sizes = [p.problem.m for p in walked(Search(spec, legal_of(spec), [], clock=lambda: now[0]), now)]
    assert (sizes.count(1024), sizes.count(2048)) == (11, 11), (
        "until the first answer compilers start, and nothing counts"
    )


def test_earlier_rows_of_the_place_are_told_first_and_their_best_is_tried_first(tmp_path):
    spec = spec_of(tmp_path, SEARCH)
    legal = legal_of(spec)
    best = ran(legal[30], 3.0)
    assert Search(spec, legal, [], earlier=[ran(legal[5]), best]).propose() == legal[30]
    other = [ran(point) for point in legal_of(spec_of(tmp_path, SEARCH, ('["burst"]', '["steady"]')))]
    told, blank = (Search(spec, legal, [], earlier=rows).propose() for rows in (other, []))
    assert told == blank, "rows of another regime say nothing"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"gp"', '"bayes"', "sampler: Input should be 'exhaustive', 'random', 'tpe', 'gp' or 'prior', but got 'bayes'"),
        ("trials = 12", "trials = 0", "budget.trials: Input should be greater than or equal to 1, but got 0"),
        ("[[prob", 'objective = "watts"\n[[prob', "objective is not a key of a sweep"),
        ("[final]", "[race]\nlaps = 3\n[final]", "race.laps is not a key of a sweep"),
    ],
)
def test_a_mistake_of_a_search_is_one_line(tmp_path, old, new, message):
    with pytest.raises(SpecError) as caught:
        spec_of(tmp_path, SEARCH, (old, new))
    (line,) = str(caught.value).splitlines()
    assert message in line
