"""Every claim of the headline can be measured again by the command beside it."""

from __future__ import annotations

import shlex

import pytest
import typer

from benchmarks.fresh import LAST_SEEDS
from docs.generate.pages.comparisons import headline
from docs.generate.pages.reproduction import reproduction
from docs.generate.todays_code import EARLIER
from hopper_gemm.cli import app

CLAIMS = ("H100s", "chained", "H200s", "invariant", "FP8", "rows", "blocks", "short", "untuned")
CLAIMS += (*(name.replace("fresh-", "seed ") for name in LAST_SEEDS), "power cap")
"""A word of each claim, in its order."""


@pytest.fixture(scope="module")
def lines():
    """Lines of the table, as lists of cells."""
    return [line.strip("| ").split(" | ") for line in reproduction().splitlines()[2:]]


def test_each_line_of_the_headline_has_its_command(lines):
    words = iter(CLAIMS)
    assert [claim for claim in headline().splitlines()[2:] if not any(word in claim for word in words)] == []
    assert EARLIER not in headline()
    assert [word for word, line in zip(CLAIMS, lines, strict=True) if word not in line[0]] == []


def test_the_command_line_takes_every_command(lines):
    commands = typer.main.get_command(app).commands
    own = [shlex.split(line[1].strip("`")) for line in lines if "hopper-gemm" in line[1]]
    assert len(own) == len(CLAIMS) - 1
    for _, name, *words in own:
        commands[name].make_context(name, words)


def test_timing_counts_what_the_protocol_of_the_rows_takes(lines):
    """At the power cap: beside torch.mm, beside the lists and the noise floor, two blocks each; a block settles and
    times both sides, 2.7 s each, and the spacer between them for 0.15 s."""
    assert lines[-1][2].startswith(f"{3 * 2 * (2 * 2.7 + 0.15) / 60:.1f} min; ")
