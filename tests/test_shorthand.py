"""A config's shorthand is explained where a command first prints one, and --long names every parameter instead."""

from __future__ import annotations

from typing import get_args

import pytest

from hopper_gemm.cli import options
from hopper_gemm.cli.app import PANELS, app
from hopper_gemm.cli.shorthand import EXPLANATION, LABEL, in_words
from hopper_gemm.model.finish import SCALES
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import DTYPES, FP8_DTYPES, LAYOUTS
from hopper_gemm.model.tuned import CONTEXTS, REGIMES
from hopper_gemm.tune.parameters import config_of, kernel_of
from hopper_gemm.tune.run.source import BACKENDS
from hopper_gemm.tune.search.search import SAMPLERS
from hopper_gemm.tune.study.files import recorded_entries
from hopper_gemm.tune.tables.view import FORMS
from tests.command import run

LADDER = {"schedule": "multistage", "persistent": False}, {"peek": "producer"}, {"serpentine": False, "peek": False}


def test_the_words_of_a_config_are_settings_that_make_the_same_config():
    configs = [entry.config for entry in recorded_entries()] + [kernel_of(values) for values in LADDER]
    for config in configs:
        words = in_words(f"({config}, 1.02x)").strip("(").removesuffix(", 1.02x)")
        assert resolve(config_of(options.config_values(words.split()))) == config


EXPLAIN = ["explain", "64", "64", "64"]


@pytest.mark.parametrize(
    "command",
    [
        [*EXPLAIN, "--gpu", "h200"],
        [*EXPLAIN, "--set", "tile_m=100"],
        ["compare", "4096", "4096", "4096", "--backend", "replay"],
        ["table", "results/h200/seed-table"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_command_explains_the_shorthand_beside_its_first_config_or_prints_none(command):
    before, explanation, after = run(*command).stdout.partition(EXPLANATION)
    assert explanation
    assert len(LABEL.findall(before)) <= 1
    assert EXPLANATION not in after
    long = run(*command, "--long").stdout
    assert "tile_m=" in long
    assert not LABEL.search(long)
    assert EXPLANATION not in long


def test_every_command_stands_in_one_panel_of_the_help():
    names = [name for panel in PANELS.values() for name in panel]
    assert sorted(names) == sorted(command.name or command.callback.__name__ for command in app.registered_commands)
    assert len(PANELS["Use"]) == 8


def test_the_choices_of_the_command_line_are_those_of_the_package():
    assert get_args(options.DtypeName) == (*DTYPES, "e4m3", *FP8_DTYPES[:3], "e5m2", *FP8_DTYPES[3:])
    assert get_args(options.ScalesName) == SCALES[1:]
    assert get_args(options.LayoutsName) == LAYOUTS
    assert get_args(options.RegimeName) == REGIMES
    assert get_args(options.ContextName) == CONTEXTS
    assert get_args(options.AnyBackend) == BACKENDS
    assert get_args(options.TableForm) == tuple(FORMS)
    assert {*get_args(options.SamplerName)} == {*SAMPLERS}
