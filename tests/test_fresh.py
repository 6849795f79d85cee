"""Problems that nobody chose: drawn by a seed, the same ones every time, and all within reach."""

from __future__ import annotations

from collections import Counter

from benchmarks.fresh import EACH, KINDS, LARGEST, LAYOUTS, RECIPES, drawn, drawn_in_fp8, shapes
from hopper_gemm.tune.study.shapes import read_shapes


def test_a_seed_draws_as_many_problems_of_each_kind_as_before_in_all_layouts_and_within_reach():
    once, again = list(drawn(7)), list(drawn(7))
    assert once == again
    assert once != list(drawn(8))
    assert Counter(kind for kind, _ in once) == dict.fromkeys(KINDS, EACH)
    for kind in KINDS:
        assert {problem.layouts for name, problem in once if name == kind} == set(LAYOUTS)
    for _, problem in once:
        assert not problem.out_of_reach
        assert problem.m * problem.n * problem.k <= LARGEST * 8


def test_a_list_of_drawn_problems_can_be_mapped(tmp_path):
    path = tmp_path / "list.toml"
    path.write_text(shapes(7))
    assert [section.problem() for section in read_shapes(path).problems] == [problem for _, problem in drawn(7)]


def test_a_list_of_drawn_problems_of_fp8_can_be_mapped_and_has_every_recipe(tmp_path):
    path, wanted = tmp_path / "list.toml", [problem for _, problem in drawn_in_fp8(7, 3)]
    path.write_text(shapes(7, 3, fp8=True))
    assert [section.problem() for section in read_shapes(path).problems] == wanted
    assert len(wanted) == 3 * len(KINDS)
    assert {(problem.scales, problem.promote) for problem in wanted} == set(RECIPES)
