"""A ladder from its rows: a line for each rung, its gain over the one before it, its reason where it did not run."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.tables.ladder import ladder, ladder_table
from hopper_gemm.tune.tables.pages.publish import publish
from hopper_gemm.tune.tables.pages.report import report
from hopper_gemm.tune.tables.pivot import rows_of
from tests.tune.tables.making import row, write_study

SMALL, TILE, PAIR, HUGE, LATER = (
    {"tile_m": 64, "k_depth": 4},
    {"tile_m": 128, "k_depth": 4},
    {"tile_m": 64, "k_depth": 4, "cluster_n": 2},
    {"tile_m": 320, "k_depth": 16},
    {"tile_m": 192, "k_depth": 4},
)


def rung(name: str, start: str | None, fields: dict) -> dict:
    return {"name": name, "adds": f"adds | {name}", "from": start, "config": resolve(GemmConfig(**fields)).as_dict()}


RUNGS = [
    rung("base", None, SMALL),
    rung("tile", "base", TILE),
    rung("same", "tile", TILE),
    rung("huge", "same", HUGE),
    rung("pair", "base", PAIR),
    rung("after", "huge", LATER),
]
BURST, STEADY = "64 x 64 x 64 bf16, burst, isolated", "64 x 64 x 64 bf16, steady, isolated"
TOO_LARGE = "stages: exceeds smem: one stage of 229376 B does not fit"


@pytest.fixture
def folder(tmp_path):
    """A study of two regimes; the last rung has a row in only one of them."""
    rows, flop = [], 2 * 64**3
    for regime, factor in (("burst", 1.0), ("steady", 0.9)):
        for fields, speedup in ((SMALL, 0.4), (TILE, 0.8), (PAIR, 0.3)):
            figures = {"speedup": speedup * factor, "tflops": 100 * speedup * factor, "baseline_us": flop / 100 / 1e6}
            rows.append(row(regime=regime, **fields, **figures))
        rows.append(row("illegal", TOO_LARGE, regime=regime, **HUGE))
    return write_study(tmp_path, *rows, row("crash", "died", **LATER), rungs=RUNGS)


def steps(folder, rungs=RUNGS):
    return ladder(rows_of(read_study(folder), "sweep"), rungs)


def test_a_gain_is_over_the_rung_it_starts_from_within_the_regime(folder):
    found = {step.name: step for step in steps(folder)}
    for regime in (0, 1):
        gains = [step.results[regime].gain for step in found.values()]
        assert gains == [None, pytest.approx(1.0), pytest.approx(0.0), None, pytest.approx(-0.25), None]
    assert [step.results[1].tflops for step in found.values()] == [36, 72, 72, None, 27, None]
    assert [result.baseline_tflops for result in found["tile"].results] == [pytest.approx(100, rel=1e-4)] * 2


def test_a_line_for_each_rung_with_its_reason_and_its_branch(folder):
    table = ladder_table(steps(folder))
    assert table.index.tolist() == ["base", "tile", "same", "huge", "pair", "after"]
    assert table.columns.tolist() == ["adds", BURST, STEADY]
    assert table[BURST].tolist() == [
        "40 (0.400x)",
        "80 (0.800x, +100.0%)",
        "80 (0.800x, +0.0%)",
        "illegal",
        "30 (0.300x, -25.0%)",
        "crash",
    ]
    assert table.loc["after", STEADY] == "not measured"
    assert table["adds"].tolist() == [
        "adds \\| base",
        "adds \\| tile",
        "adds \\| same",
        f"adds \\| huge; illegal: {TOO_LARGE}",
        "adds \\| pair (from base)",
        "adds \\| after (from huge); crash: died",
    ]


def test_rungs_noted_before_a_parameter_existed_find_their_rows(folder):
    rungs = [{**rung, "config": {k: v for k, v in rung["config"].items() if k != "serpentine"}} for rung in RUNGS]
    assert steps(folder, rungs) == steps(folder)


def test_the_page_and_the_picture_follow_from_the_folder_alone(folder):
    publish(folder)
    page = (folder / "table.md").read_text()
    assert page == report(read_study(folder))
    assert "| tile | adds \\| tile | 80 (0.800x, +100.0%) | 72 (0.720x, +100.0%) |" in page
    assert page.count("\n| base |") == 1
    assert "Coverage: 6 ok, 2 illegal, 1 crash." in page
    assert (folder / "ladder.svg").read_bytes()[:5] == b"<?xml"
    assert not (folder / "heatmap.svg").exists()
