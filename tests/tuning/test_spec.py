"""A sweep file is checked as a whole: every mistake in one line, all at once."""

from __future__ import annotations

import pytest

from hopper_gemm.tuning.space import configs, points
from hopper_gemm.tuning.spec import SpecError, read_spec
from tests.conftest import ROOT
from tests.tuning.fakes import SPEC


def spec_of(tmp_path, text=SPEC):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.toml")), ids=lambda path: path.stem)
def test_every_sweep_of_the_project_is_valid_and_named_as_its_file(path):
    assert read_spec(path).name == path.stem


def test_the_seed_table_asks_the_published_grid_in_both_regimes():
    found = points(read_spec(ROOT / "sweeps/seed-table.toml"))
    assert len(found) == 40 * 2 * 2
    refused = [point for point in found if point.refused]
    assert len(refused) == 4
    assert {(point.config.tile_m, point.config.k_depth) for point in refused} == {(320, 16)}
    assert all(point.config.stagger == min(1, point.config.stages - 1) for point in found if not point.refused)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "small"', 'name = "Not A Name"', "name: String should match pattern"),
        ("tile_n = 128", "tile_z = 128", "space: tile_z is not a kernel parameter; choose among tile_m, tile_n"),
        ("tile_n = 128", "tile_n = []", "space: tile_n must have at least one value but got an empty list"),
        ("tile_n = 128", 'tile_n = "wide"', "space: tile_n must be an integer from 1 but got 'wide'"),
        ("stagger = 1", 'cluster = "2by1"', "space: cluster must be written like \"2x1\" but got '2by1'"),
        ("m = 1024", "m = 0", "problems.0.m: Input should be greater than or equal to 1, but got 0"),
        ("[final]", "[finale]", "finale is not a key of a sweep; remove it or mend its spelling"),
        ("best = 2", "best = 2\nworst = 1", "final.worst is not a key of a sweep"),
        ('regimes = ["burst"]', 'regimes = ["warm"]', "regimes.0: Input should be 'burst' or 'steady', but got 'warm'"),
        ('regimes = ["burst"]', "regimes = [", "is not valid TOML"),
        ('name = "small"', "", "name is missing"),
    ],
)
def test_a_mistake_is_one_line_with_what_came_and_the_mend(tmp_path, old, new, message):
    path = spec_of(tmp_path, SPEC.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert str(path) in lines[0]


def test_all_mistakes_are_told_at_once(tmp_path):
    text = SPEC.replace("tile_n = 128", "tile_z = 128").replace("m = 1024", "m = -1").replace("best = 2", "best = -2")
    with pytest.raises(SpecError) as caught:
        read_spec(spec_of(tmp_path, text))
    assert len(str(caught.value).splitlines()) == 3


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError, match="does not exist; the sweeps lie in sweeps/"):
        read_spec(tmp_path / "none.toml")


def test_the_grid_is_the_product_in_the_order_of_the_file(tmp_path):
    found = [(c.tile_m, c.k_depth, c.stages, c.stagger) for c in configs(read_spec(spec_of(tmp_path)))]
    assert found == [(64, 4, 9, 1), (64, 16, 2, 1), (128, 4, 6, 1), (128, 16, 1, 0), (320, 4, 3, 1), (320, 16, 0, 0)]


def test_a_cluster_sets_both_of_its_fields(tmp_path):
    spec = read_spec(spec_of(tmp_path, SPEC.replace("stagger = 1", 'stagger = 1\ncluster = ["2x1", "1x2"]')))
    assert {(config.cluster_m, config.cluster_n) for config in configs(spec)} == {(2, 1), (1, 2)}


def test_the_digest_follows_the_question_and_not_the_comments(tmp_path):
    base = read_spec(spec_of(tmp_path)).digest
    assert read_spec(spec_of(tmp_path, "# a comment\n" + SPEC)).digest == base
    assert read_spec(spec_of(tmp_path, SPEC.replace("best = 2", "best = 1"))).digest != base
