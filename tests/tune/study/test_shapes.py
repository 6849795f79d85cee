"""Lists of problems: the suite, the drawn ones, and what is no list."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter

import pytest

from benchmarks.held_out import read_held_out
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.study.spec import SpecError
from tests.conftest import ROOT


def loaded(name):
    """A script beside the lists."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"sweeps/shapes/{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw, drawn_map = loaded("draw"), loaded("map")
SIDE_MAX, SIDE_MIN, SKINNY_MAX, drawn, drawn_file = (
    getattr(draw, name) for name in ("SIDE_MAX", "SIDE_MIN", "SKINNY_MAX", "drawn", "drawn_file")
)

LISTS = sorted(path for path in (ROOT / "sweeps/shapes").glob("*.toml") if path.stem != "held_out")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_is_named_as_its_file_and_says_what_it_is_for(path):
    shapes = read_shapes(path)
    assert shapes.name == path.stem
    assert shapes.question


def test_the_suite_has_24_problems_five_of_them_steady_too():
    suite = read_shapes()
    assert len(suite.of_regime("burst")) == 24
    steady = {str(problem) for problem in suite.of_regime("steady")}
    assert steady == {"4096x4096x4096", "8192x8192x8192", "8192x4096x14336", "4096x8192x28672", "8192x10240x8192"}
    assert all(problem.dtype == "bf16" for problem in suite.of_regime("burst"))


def test_the_committed_drawn_problems_are_what_their_seed_gives():
    assert (ROOT / "sweeps/shapes/drawn.toml").read_text() == drawn_file()
    assert read_shapes(ROOT / "sweeps/shapes/drawn.toml").of_regime("burst") == tuple(one for _, one in drawn())


def test_drawn_problems_keep_to_their_kind_whatever_the_seed():
    for seed in range(200):
        for kind, problem in drawn(seed):
            sides = (problem.m, problem.n, problem.k)
            assert all(SIDE_MIN <= side <= SIDE_MAX + 1 for side in sides)
            if kind == "ragged":
                assert problem.n % 8
                assert problem.k % 8
            else:
                assert all(side % 64 == 0 for side in sides)
            if kind == "skinny":
                assert min(problem.m, problem.n) <= SKINNY_MAX


def test_another_seed_draws_other_problems():
    assert set(drawn(1)) != set(drawn(2))
    assert list(drawn(1)) == list(drawn(1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"', "problems is missing"),
        ('name = "x"\nproblems = []', "problems must have one or more but has none"),
        ('name = "x"\nproblems = [{ m = 1, n = 8 }]', "problems.0.k is missing"),
        ('name = "x"\nproblems = [{ m = 1, n = 8, k = 8, q = 1 }]', "problems.0.q is not a key of a list of problems"),
        ('name = "x"\nproblems = [{ m = 0, n = 8, k = 8 }]', "problems.0.m: "),
        (
            'name = "x"\nproblems = [{ m = 8, n = 8, k = 8 }, { m = 8, n = 8, k = 8 }]',
            "problems: must name each problem once but got 8x8x8 twice",
        ),
        ("name = ", "is not valid TOML"),
    ],
)
def test_what_is_no_list_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_shapes(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_problems_carry_type_and_layouts(tmp_path):
    path = tmp_path / "list.toml"
    path.write_text('name = "x"\nproblems = [{ m = 8, n = 16, k = 24, dtype = "fp16", steady = true }]')
    assert read_shapes(path).of_regime("steady") == (GemmProblem(8, 16, 24, "fp16"),)


@pytest.fixture(scope="module")
def mapped():
    """The map's list."""
    return read_shapes(ROOT / "sweeps/shapes/map.toml").problems


def test_the_committed_map_is_what_its_seed_gives():
    assert (ROOT / "sweeps/shapes/map.toml").read_text() == drawn_map.map_file()


def test_the_map_has_600_problems_that_people_run_250_uniform_and_150_ragged(mapped):
    assert Counter(one.part for one in mapped) == {"people": 600, "uniform": 250, "ragged": 150}


def test_the_map_marks_what_is_held_out_and_searches_all_of_it(mapped):
    held = read_held_out()
    assert all(one.held_out == held.has(one.problem()) for one in mapped)
    assert all(one.search for one in mapped if one.held_out)
    assert sum(one.held_out for one in mapped) <= 150
    assert sum(one.search for one in mapped) == 200


@pytest.mark.parametrize(
    ("sizes", "layouts", "held"),
    [
        ((777, 4608, 3584), "kk", True),  # forward
        ((777, 3584, 4608), "kn", True),  # gradient of the activations
        ((4608, 3584, 4096), "mn", True),  # gradient of the weight
        ((4608, 3584, 2000), "kk", False),
        ((4096, 4096, 4096), "kk", False),
        ((256, 256, 256), "kk", True),  # 2^24, under 4 us
        ((1, 64, 2**18), "kk", False),  # 2^24, over 4 us
    ],
)
def test_a_held_out_family_is_held_out_in_every_pass_and_an_octave_in_its_stratum(sizes, layouts, held):
    assert read_held_out().has(GemmProblem(*sizes, layouts=layouts)) == held
