"""A damaged folder is completed, or refused with the place; nothing in between. All 100 cases: make verify-cpu."""

from __future__ import annotations

import pytest

from tests.tune.run.damage import Ground


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("ground"))


@pytest.mark.parametrize("seed", range(24))
def test_the_same_command_gives_the_rows_of_an_undisturbed_run_or_names_the_place(ground, seed):
    ground.case(seed)
