"""A ladder from its rows: a line for each rung, its gain over the one before it, its reason where it did not run."""

from __future__ import annotations

import json

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.tables.ladder import ladder, ladder_table
from hopper_gemm.tables.publish import publish
from hopper_gemm.tables.report import read_study, report
from hopper_gemm.tables.schema import NAMES
from hopper_gemm.tables.trials import PROVENANCE, TRIALS, AppendFile, read_trials
from tests.tables.test_tables import row

SMALL, TILE, PAIR, HUGE, LATER = (
    {"tile_m": 64, "k_depth": 4},
    {"tile_m": 128, "k_depth": 4},
    {"tile_m": 64, "k_depth": 4, "cluster_n": 2},
    {"tile_m": 320, "k_depth": 16},
    {"tile_m": 192, "k_depth": 4},
)


def rung(name: str, start: str | None, fields: dict, published: str = "") -> dict:
    config = resolve(GemmConfig(**fields)).as_dict()
    return {"name": name, "adds": f"adds {name}", "from": start, "published": published, "config": config}


RUNGS = [
    rung("base", None, SMALL),
    rung("tile", "base", TILE, published="twice | as fast"),
    rung("same", "tile", TILE),
    rung("huge", "same", HUGE),
    rung("pair", "base", PAIR),
    rung("after", "huge", LATER),
]
TOO_LARGE = "stages: exceeds smem: one stage of 229376 B does not fit"


@pytest.fixture
def folder(tmp_path):
    """A study of two regimes; the last rung has a row in only one of them."""
    file = AppendFile(tmp_path / TRIALS, NAMES)
    flop = 2 * 64**3
    for regime, factor in (("burst", 1.0), ("steady", 0.9)):
        for fields, speedup in ((SMALL, 0.4), (TILE, 0.8), (PAIR, 0.3)):
            figures = {"speedup": speedup * factor, "tflops": 100 * speedup * factor, "cublas_us": flop / 100 / 1e6}
            file.append([row(regime=regime, **fields, **figures)])
        file.append([row("illegal", TOO_LARGE, regime=regime, **HUGE)])
    file.append([row("crash", "died", regime="burst", **LATER)])
    about = {"study": "s", "source": "measured", "created": "then", "seed": 0, "rows": "tile_m", "cols": "k_depth"}
    about |= {"gpu": {"name": "NVIDIA H200", "driver": "580"}, "spec": {"space": {}}, "rungs": RUNGS}
    (tmp_path / PROVENANCE).write_text(json.dumps(about))
    return tmp_path


def test_a_gain_is_over_the_rung_it_starts_from_within_the_regime(folder):
    found = {step.name: step for step in ladder(read_trials(folder / TRIALS), RUNGS)}
    for regime in (0, 1):
        gains = [step.results[regime].gain for step in found.values()]
        assert gains == [None, pytest.approx(1.0), pytest.approx(0.0), None, pytest.approx(-0.25), None]
    assert [step.results[1].tflops for step in found.values()] == [36, 72, 72, None, 27, None]
    assert [result.cublas_tflops for result in found["tile"].results] == [pytest.approx(100, rel=1e-4)] * 2


def test_a_line_for_each_rung_with_its_reason_its_branch_and_what_was_published(folder):
    table = ladder_table(ladder(read_trials(folder / TRIALS), RUNGS))
    assert table.index.tolist() == ["base", "tile", "same", "huge", "pair", "after"]
    assert table.columns.tolist() == ["adds", "64 x 64 x 64 bf16, burst", "64 x 64 x 64 bf16, steady", "published"]
    assert table["64 x 64 x 64 bf16, burst"].tolist() == [
        "40 (0.400x)",
        "80 (0.800x, +100.0%)",
        "80 (0.800x, +0.0%)",
        "illegal",
        "30 (0.300x, -25.0%)",
        "crash",
    ]
    assert table.loc["after", "64 x 64 x 64 bf16, steady"] == "not measured"
    assert table["adds"].tolist() == [
        "adds base",
        "adds tile",
        "adds same",
        f"adds huge; illegal: {TOO_LARGE}",
        "adds pair (from base)",
        "adds after (from huge); crash: died",
    ]
    assert table["published"].tolist() == ["", "twice \\| as fast", "", "", "", ""]


def test_without_anything_published_there_is_no_column_for_it(folder):
    rungs = [{**rung, "published": ""} for rung in RUNGS]
    assert "published" not in ladder_table(ladder(read_trials(folder / TRIALS), rungs))


def test_rungs_noted_before_a_parameter_existed_find_their_rows(folder):
    rungs = [{**rung, "config": {k: v for k, v in rung["config"].items() if k != "serpentine"}} for rung in RUNGS]
    trials = read_trials(folder / TRIALS)
    assert ladder(trials, rungs) == ladder(trials, RUNGS)


def test_the_page_and_the_picture_follow_from_the_folder_alone(folder):
    publish(folder)
    page = (folder / "table.md").read_text()
    assert page == report(read_study(folder))
    assert "| tile | adds tile | 80 (0.800x, +100.0%) | 72 (0.720x, +100.0%) | twice \\| as fast |" in page
    assert page.count("| base |") == 1
    assert "Coverage: 6 ok, 2 illegal, 1 crash." in page
    assert (folder / "ladder.png").read_bytes()[:4] == b"\x89PNG"
    assert not (folder / "heatmap.png").exists()
