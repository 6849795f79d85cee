"""Claims of the source texts are laid beside rows as they were published, and pairs differ in one parameter alone."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from docs.generate.pages import sources
from docs.generate.pages.counted import tile_order, unique_panels
from docs.generate.pages.sources import beside, pairs_by, published, recorded, share, spans
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.tune.study.reader import frame_of, read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.tables.pivot import rows_of
from tests.conftest import ROOT
from tests.tune.tables.making import row


def test_the_published_table_has_the_cells_that_the_rules_allow_with_their_stages():
    table = published()
    assert len(table) == 39
    configs = {cell: GemmConfig(tile_m=cell[0], tile_n=128, k_depth=cell[1], stagger=0) for cell in table.index}
    assert all(is_legal(config) for config in configs.values())
    assert {cell: resolve(config).stages for cell, config in configs.items()} == table["stages"].to_dict()
    assert table["speedup"].idxmax() == (256, 4)
    assert table.loc[(320, 4), "speedup"] == 0.13


def test_every_published_cell_stands_beside_ours_the_best_of_theirs_first():
    cells = published().reset_index().assign(speedup=lambda frame: 2 * frame["speedup"])
    found = beside(cells)
    assert len(found) == 39
    assert (found["ours"] == 2 * found["theirs"]).all()
    assert list(found.index[:2]) == [(256, 4), (192, 4)]
    assert len(beside(cells[cells["tile_m"] != 320])) == 32


def test_the_recorded_seed_table_has_every_published_cell():
    rows = rows_of(read_study(ROOT / "results/h200/seed-table"), "sweep").query("regime == 'burst' and m == 8192")
    assert len(beside(rows)) == 39


def test_pairs_differ_in_one_parameter_alone_within_a_study_and_a_place():
    def made(speedup, study="s", **fields):
        return replace(row(speedup=speedup, k_depth=2, stages=4, **fields), study=study)

    rows = [
        made(1.0, stagger=0),
        made(1.2, stagger=1),
        made(2.0, stagger=0, tile_m=64),
        made(0.5, stagger=1, study="other"),
        made(0.7, stagger=1, regime="steady"),
        made(0.9, stagger=2),
    ]
    found = pairs_by(frame_of(rows), "stagger", 0, 1)
    assert found["ratio"].tolist() == pytest.approx([1.2])


def test_pairs_may_differ_in_what_follows_from_the_parameter():
    rows = [row(speedup=s, tile_m=256, consumers=c, split="m") for c, s in ((2, 1.0), (4, 0.9))]
    assert len({one.point.config.epi_buffers for one in rows}) == 2
    assert pairs_by(frame_of(rows), "consumers", 2, 4).empty
    found = pairs_by(frame_of(rows), "consumers", 2, 4, follow=("epi_n", "epi_buffers"))
    assert found["ratio"].tolist() == pytest.approx([0.9])


def test_the_rasterisation_example_needs_eight_panels_instead_of_ten():
    sums = {s: [sum(wave) for wave in unique_panels(tile_order(8, 8, "m", s, False), 16)] for s in (1, 4)}
    assert sums == {1: [10] * 4, 4: [8] * 4}


def test_a_study_that_is_not_recorded_is_refused_by_its_name():
    with pytest.raises(ResultsError, match="no recorded study nothing lies under "):
        recorded("nothing")


def moments(stagger: int) -> pd.DataFrame:
    """Two stages of one slot each: a load of 50 clocks, wgmma of 100, the second group issued under the first."""
    found = [
        ("producer", k, name, 10 * k + at) for k in (0, 1) for name, at in (("asked", 0), ("had", 2), ("issued", 5))
    ]
    issued, ends = (60, 65), (160, 260)
    for k in (0, 1):
        found += [("consumer 0", k, "asked", issued[k] - 8), ("consumer 0", k, "had", issued[k] - 5)]
        found += [("consumer 0", k, "issued", issued[k])]
        done = k - stagger
        found += [("consumer 0", k, "released", ends[done] if done >= 0 else issued[k] + 1)]
    found.append(("consumer 0", -1, "fed", ends[-1]))
    return pd.DataFrame(found, columns=["role", "stage", "moment", "clocks"])


@pytest.mark.parametrize("stagger", [0, 1])
def test_math_of_a_stage_runs_from_its_first_wgmma_to_the_end_of_the_wait_for_it(stagger):
    found = spans(moments(stagger), stagger).set_index(["what", "stage"])
    math = found.loc["math"].sort_index()
    assert math["end"].tolist() == [160, 260]
    assert math["start"].tolist() == [55, 160]
    queued = found.loc["queued"].sort_index()
    assert (queued["end"] - queued["start"]).tolist() == [0, 100]
    load = found.loc["load"].sort_index()
    assert list(zip(load["start"], load["end"], strict=True)) == [(5, 55), (15, 60)]


def test_the_share_of_a_stretch_counts_overlapping_spans_once():
    found = spans(moments(1), 1)
    assert share(found, "math", 60, 260) == pytest.approx(1.0)
    assert share(found, "load", 0, 100) == pytest.approx(0.55)
    assert share(found, "math", 0, 100) == pytest.approx(0.45)


def test_versions_and_changed_commits_are_counted_over_all_studies(monkeypatch):
    """A version that differs is named beside the others, and a study without one is not counted."""
    told = [
        {
            "commit": "a1-dirty",
            "versions": dict(zip(PACKAGES, "123", strict=True)),
            "gpu": {"cuda": "4", "driver": "5"},
        },
        {"commit": "a1", "versions": dict(zip(PACKAGES, "163", strict=True)), "gpu": {"cuda": "4", "driver": "5"}},
        {"commit": None, "gpu": {}},
    ]
    monkeypatch.setattr(sources, "recorded_folders", lambda: range(3))
    monkeypatch.setattr(sources, "read_provenance", told.__getitem__)
    sources.versions.cache_clear()
    try:
        text = " ".join(sources.versions_measured().split())
    finally:
        sources.versions.cache_clear()
    assert "torch 1, cuBLAS 2 and 6, the CuTe DSL 3, CUDA 4 and driver 5, by the provenance of 2 of 3" in text
    assert sources.changed_commits() == "The commit of 1 of 3 recorded studies ends in `-dirty`."


PACKAGES = "torch", "nvidia-cublas", "nvidia-cutlass-dsl"
