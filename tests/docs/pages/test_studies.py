"""Tables of single studies follow from their rows."""

from __future__ import annotations

from itertools import pairwise
from math import log

import pytest

from benchmarks import groups as benchmark
from docs.generate.pages import comparisons, depth, rings, studies
from tests.conftest import ROOT


def of_parameters() -> str:
    """The words of the page on parameters."""
    return " ".join((ROOT / "docs/studies.md").read_text().split())


def test_a_ring_holds_what_is_read_in_the_time_of_a_load_in_whole_stages():
    """256x192 at a depth of 2: stages of 28 KiB, three of which hold 66 KiB, and one that is being multiplied."""
    table = studies.bytes_ahead()
    assert "| 256x192 | 66 KiB | 112 KiB | 168 KiB |" in table
    assert "| 256x128 | 84 KiB | 120 KiB | 144 KiB |" in table


@pytest.mark.results
def test_the_order_of_the_tiles_is_told_as_far_as_it_is_the_same_in_both_regimes():
    """The eighth in a burst is not the eighth in steady state."""
    rates = depth.ran("tile-shape").groupby(["regime", "tile"])["speedup"].max()
    burst, steady = (rates[regime].sort_values(ascending=False).index.tolist() for regime in ("burst", "steady"))
    assert burst[:7] == steady[:7]
    assert burst[7] != steady[7]
    assert studies.tile_order().startswith("The 7 fastest tiles have the same order")


@pytest.mark.results
def test_four_ideas_bring_nearly_all_of_the_ladder():
    """Overlap, the order of the tiles, a larger tile and the epilogue; at 8192^3 the order brings more than the
    epilogue."""
    found = {name: {one.group: one.speedup for one in step.results} for name, step in rings.rungs("ladder").items()}
    for place in found["serial"]:
        names = "serial", "full ring", "swizzle 8", "stagger 1", "persistent", "TMA store", "256x192"
        logs = [log(found[name][place]) for name in names]
        steps = [above - below for below, above in pairwise(logs)]
        overlap, order, tile, _, epilogue, _ = steps
        assert overlap + order + tile + epilogue > 0.9 * sum(steps)
        assert (order > epilogue) == (place.m == 8192)


@pytest.mark.results
def test_rows_of_shallow_stages_are_counted_once_where_a_cluster_shares_them():
    """128x128 alone in its cluster: 256 rows in 128 clocks at the peak. With A shared by two CTAs: 192."""
    found = studies.shallow_rows().query("tile == '128x128' and k == 4096 and n == 4096")
    per_peak = (found["rows"] / (found["busy"] / 100)).round(3)
    assert set(zip(found["cluster"], per_peak, strict=True)) == {("1x1", 2.0), ("1x2", 1.5)}


@pytest.mark.results
def test_the_answer_on_the_suite_counts_the_problems_by_published_intervals():
    told = list(comparisons.standings().values())
    answer = " ".join(comparisons.suite_answer().split())
    assert f"on {told.count('ahead')} of the {len(told)} problems" in answer
    assert f"on {told.count('behind')}; over `torch.mm`" in answer


@pytest.mark.results
def test_at_equal_look_ahead_a_late_release_is_busier_where_the_ring_starves_and_even_where_it_does_not():
    """With two or three consumers, on the long problem; the page on parameters says so."""
    rows = depth.ran("stagger").query("k == 8192").copy()
    rows["ahead"] = rows["stages"] - 1 - rows["stagger"]
    rows["lasts"] = rows["ahead"] * rows["tile_m"] * rows["tile_n"] * rows["k_depth"] / 128
    busy = rows.set_index(["tile", "k_depth", "ahead", "lasts", "stagger"])["tensor_active"].astype(float)
    ratio = (busy.unstack("stagger")[1] / busy.unstack("stagger")[0]).dropna()
    lasts, deep = ratio.index.get_level_values("lasts"), ratio.index.get_level_values("k_depth").isin([2, 4])
    assert ratio[lasts < 900].median() > 1.1
    assert ratio[(lasts >= 1800) & deep].median() == pytest.approx(1, abs=0.003)
    assert "At equal look-ahead a ring that starves is faster at stagger 1" in of_parameters()


@pytest.mark.results
def test_depths_2_and_4_are_as_busy_at_equal_bytes_ahead_on_the_long_problem_only():
    rows = depth.ran("stagger").query("stagger == 0 and k_depth in (2, 4)").copy()
    rows["ahead"] = (rows["stages"] - 1) * rows["k_depth"]
    busy = rows.query("ahead > 0").set_index(["k", "tile", "ahead", "k_depth"])["tensor_active"].astype(float)
    ratio = (busy.unstack("k_depth")[2] / busy.unstack("k_depth")[4]).dropna().groupby(level="k").median()
    assert ratio[8192] == pytest.approx(1, abs=0.003)
    assert 0.95 < ratio[512] < 0.99
    assert "equally busy on the long problem" in of_parameters()


@pytest.mark.results
def test_two_tiles_take_longer_for_a_row_in_the_second_than_where_the_rows_fill_both():
    """Where the last tile reaches out, tiles of 96 rows take at least twice as long, tiles of 64 less; where it moves
    back, as long. The ratios are those of the table."""
    told, _, table = studies.edge().partition("\n\n")
    told = " ".join(told.split())
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    column = {int(name.removeprefix("m = ")): index for index, name in enumerate(lines[0]) if name.startswith("m = ")}
    ends = {"reaches out": ((96, 2.0, 2.4), (64, 1.6, 2.0)), "moves back": ((96, 0.9, 1.1), (64, 0.9, 1.15))}
    for end, sides in ends.items():
        for side, least, most in sides:
            rows = [line for line in lines[2:] if line[0].startswith(str(side)) and line[2] == end]
            ratios = [float(line[column[side + 1]]) / float(line[column[2 * side]]) for line in rows]
            assert least <= min(ratios) <= max(ratios) < most
            assert f"{min(ratios):.1f} to {max(ratios):.1f} times as long" in told


def test_a_study_of_groups_shows_nothing_until_there_are_rows_then_those_that_ran(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "results_root", lambda: tmp_path)
    monkeypatch.setattr(studies, "measurement", lambda name: tmp_path / name)
    assert studies.groups("groups-study", studies.GROUPS_STUDY) == ""
    path = tmp_path / "measurements/groups-study.csv"
    path.parent.mkdir()
    figures = "9,10,11,500,0.001,3,1700,64x64,model,NVIDIA H100 80GB HBM3,GPU-1,2.11"
    rows = [
        f"fp8 row,8,16,64,128,uniform,ok,1.100,1.09,1.11,{figures}",
        f"fp8 row,8,16,64,128,half,ok,1.050,1.04,1.06,{figures}",
        f"masked,8,16,64,128,half,wrong,,,,{figures}",
    ]
    path.write_text("\n".join([",".join(benchmark.COLUMNS), *rows]) + "\n")
    text = studies.groups("groups-study", studies.GROUPS_STUDY)
    assert text.startswith("Picks from 4 to 256 groups on an NVIDIA H100, down to")
    assert "| scaled_grouped_mm by rows | 8 | 16 rows each to 64x128 | 1.075x" in text
    assert "1.050x, half" in text
    assert "counts |" not in text
