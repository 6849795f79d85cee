"""The committed results are whole, follow the schema, and are what the README shows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.compare import cells, means, read_compare
from hopper_gemm.tables.pivot import groups, pivot
from hopper_gemm.tables.report import markdown_table, read_study, report
from hopper_gemm.tables.schema import FIGURES, SCHEMA_VERSION
from hopper_gemm.tables.trials import config_of
from hopper_gemm.tables.tuned import read_tuned
from hopper_gemm.tuning.space import points, with_row
from hopper_gemm.tuning.spec import checked, read_spec
from tests.conftest import ROOT

STUDIES = sorted(path.parent for path in (ROOT / "results").glob("h*/*/provenance.json"))


SEARCHES = sorted(path.parent for path in (ROOT / "results").glob("h*/suite*/tune-*/provenance.json"))
"""Of the problems of the suite, of both runs."""

UNFINISHED = {"early", "steady-e"}
"""Cut off before their last points: three at 8192x8192x512; one."""


@pytest.mark.parametrize("folder", STUDIES, ids=lambda path: path.name)
def test_a_study_has_a_row_for_every_point_and_figures_just_where_it_ran(folder):
    study = read_study(folder)
    assert study.provenance["schema_version"] == SCHEMA_VERSION
    assert study.provenance["source"] == "measured"
    file = ROOT / "sweeps" / f"{study.provenance['study']}.toml"
    spec = read_spec(file) if file.is_file() else checked(study.provenance["spec"], folder.name)
    assert file.is_file() or spec.sampled, "only a search may have been asked for without a file"
    asked = {
        (point.problem.m, point.data, point.regime, *point.config.as_dict().values())
        for point in with_row(spec, points(spec))
    }
    rows = {
        (row["m"], row["data"], row["regime"], *(row[name] for name in FIELDS))
        for row in study.trials.to_dict("records")
    }
    assert rows <= asked if spec.sampled or folder.name in UNFINISHED else rows == asked
    ok = study.trials["status"] == "ok"
    assert study.trials.loc[ok, ["speedup", "time_us", "sm_mhz", "tensor_active", "rel_err"]].notna().all(axis=None)
    assert study.trials.loc[~ok, list(FIGURES)].isna().all(axis=None)
    steady = ok & (study.trials["regime"] == "steady")
    assert study.trials.loc[steady, ["watts", "pj_per_flop"]].notna().all(axis=None)


@pytest.mark.parametrize("folder", SEARCHES, ids=lambda path: path.name)
def test_a_search_of_the_suite_measured_what_may_run_there(folder):
    study = read_study(folder)
    problem = GemmProblem(**study.provenance["spec"]["problems"][0])
    assert folder.name == f"tune-{problem}-burst"
    rows = study.trials.to_dict("records")
    assert len(rows) == len({config_of(row) for row in rows})
    assert all(is_legal(config_of(row), problem) for row in rows)


@pytest.mark.parametrize("folder", [*STUDIES, *SEARCHES], ids=lambda path: path.name)
def test_figures_of_a_row_agree_with_each_other(folder):
    frame = read_study(folder).trials.query("status == 'ok'")
    flop = 2.0 * frame["m"].astype(float) * frame["n"].astype(float) * frame["k"].astype(float)
    assert (flop / frame["time_us"] / 1e6 / frame["tflops"] - 1).abs().max() < 1e-4
    of_medians = frame["cublas_us"] / frame["time_us"]
    apart = (of_medians / frame["speedup"] - 1).abs()
    assert (apart <= (frame["speedup_high"] - frame["speedup_low"]).clip(lower=0.02)).all()
    assert frame["speedup"].between(frame["speedup_low"], frame["speedup_high"]).all()
    assert frame["tensor_active"].between(1, 100).all()
    assert frame["rel_err"].between(1.5e-3, 2.5e-3).all()
    steady = frame[frame["regime"] == "steady"]
    assert steady["watts"].between(200, 720).all()


@pytest.mark.parametrize("folder", [*STUDIES, *SEARCHES], ids=lambda path: path.name)
def test_the_page_is_what_the_rows_give(folder):
    assert (folder / "table.md").read_text() == report(read_study(folder))


def test_the_tuned_table_holds_legal_configs():
    entries = read_tuned(ROOT / "results/h200/best_configs.json")
    assert {(entry.problem.m, entry.regime) for entry in entries} >= {
        (m, r) for m in (4096, 8192) for r in ("burst", "steady")
    }
    assert all(is_legal(entry.config, entry.problem) for entry in entries)


def test_the_published_targets_are_met():
    """256x128 at k_depth 4 is no slower than cuBLAS at 4096^3; the 320 row reaches 0.90 at k_depth 4 and 8192^3."""
    frame = (
        read_study(ROOT / "results/h200/seed-table")
        .trials.query("regime == 'burst' and k_depth == 4")
        .set_index(["m", "tile_m"])
    )
    assert frame.loc[(4096, 256), "speedup_low"] >= 1.0
    assert frame.loc[(8192, 320), "speedup_low"] >= 0.90


def test_the_readme_shows_the_recorded_tables():
    readme = (ROOT / "README.md").read_text()
    for group, part in groups(read_study(ROOT / "results/h200/seed-table").trials):
        if (group.m, group.regime) in ((4096, "burst"), (8192, "burst")):
            assert markdown_table(pivot(part), "M tile \\ K depth") in readme


def test_the_readme_s_suite_is_the_recorded_one():
    readme = (ROOT / "README.md").read_text()
    records = cells(read_compare(ROOT / "results/h200/suite"))
    rows: dict[str, dict[str, Any]] = {}
    for one in records:
        rows.setdefault(f"| {one['m']} x {one['n']} x {one['k']} |", {})[one["against"]] = one
    for start, row in rows.items():
        ours, theirs = row["cublas"], row["cublaslt"]
        figures = f" {ours['time_us']:.1f} | {ours['tflops']:.0f} | {ours['speedup']:.3f}x | {theirs['speedup']:.3f}x |"
        assert start + figures in readme
    over = {mean.against: mean.speedup for mean in means(records)}
    average = f"| geometric mean of {len(rows)} |  |  | {over['cublas']:.3f}x | {over['cublaslt']:.3f}x |"
    assert average in readme


def test_the_readme_s_ladder_is_the_recorded_one():
    """TFLOP/s at 8192^3, in burst and in steady state; cuBLAS's are those beside the tuned kernel."""
    study = read_study(ROOT / "results/h200/ladder")
    large = study.trials[study.trials["m"] == 8192]
    flop, tuned = 2 * 8192**3, {}
    rates = {}
    for rung in study.provenance["rungs"]:
        same = large[(large[list(rung["config"])].astype(str) == pd.Series(rung["config"]).astype(str)).all(axis=1)]
        rates[rung["name"]] = {row["regime"]: round(row["tflops"]) for row in same.to_dict("records")}
        tuned = same if rung["name"] == "peek" else tuned
    rates["cuBLAS"] = {row["regime"]: round(flop / row["cublas_us"] / 1e6) for row in tuned.to_dict("records")}
    readme = (ROOT / "README.md").read_text()
    section = readme[readme.index("## What each idea is worth") : readme.index("Not every rung goes up")]
    shown = {
        "full ring, swizzle 8": "swizzle 8",
        "serpentine, peeking": "peek",
        "256 x 192 instead": "256x192",
    }
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    assert len(lines) == 15
    for name, _, burst, steady in lines[1:]:
        if not name.startswith("---"):
            assert rates[shown.get(name, name)] == {"burst": int(burst), "steady": int(steady)}, name


def test_the_page_on_scale_shows_the_recorded_costs():
    """Trials a second of two runs, one after the other in the file; and what a burst point takes."""
    page = (ROOT / "docs/scale.md").read_text()
    runs = pd.read_csv(ROOT / "docs/storage-cost.csv")
    rates = (runs["trials"] / runs["seconds"]).round().astype(int)
    names = {"journal": "journal", "sqlite": "SQLite", "postgres": "PostgreSQL 15"}
    half = len(runs) // 2
    for row, first, second in zip(runs[:half].itertuples(), rates[:half], rates[half:], strict=True):
        assert f"| {names[row.storage]} | {row.workers} | {first} | {second} |" in page
    stagger = read_study(ROOT / "results/h200/stagger")
    assert f"took {stagger.provenance['seconds'] / len(stagger.trials):.2f} s in `results/h200/stagger`" in page


def test_the_default_config_is_legal():
    assert is_legal(GemmConfig())
