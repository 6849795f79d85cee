"""Pictures show the figures that the rows hold, on one scale, and are small."""

from __future__ import annotations

from io import BytesIO

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from PIL import Image

from docs.generate.pages.pictures import png
from hopper_gemm.tune.tables.ladder import MeasuredRung, Result
from hopper_gemm.tune.tables.pivot import Group
from hopper_gemm.tune.tables.plots import ladder_bars, regret_curves, search_plot, small_multiples


@pytest.fixture
def drawn(monkeypatch):
    """The figures, kept open after they were written."""
    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    yield kept
    monkeypatch.undo()
    plt.close("all")


def cells(axis) -> dict[tuple[int, int], str]:
    """Text of a heat map by (column, row)."""
    return {tuple(map(int, text.get_position())): text.get_text() for text in axis.texts}


@pytest.fixture
def frame():
    """2 x 2 facets of 2 x 2 cells; one facet lacks a cell, one cell has two rows, one did not run."""
    speedups = {(k, n, s, t): k / 10 + n / 100 for k in (4, 6) for n in (1, 2) for s in (2, 3) for t in (64, 128)}
    speedups[4, 1, 2, 64] = 1.1
    del speedups[6, 2, 3, 128]
    rows = [
        {"k_depth": k, "cluster_n": n, "stages": s, "tile_m": t, "speedup": v, "tflops": 800 * v, "watts": 500.0}
        for (k, n, s, t), v in speedups.items()
    ]
    slower = {**rows[0], "speedup": 0.2, "tflops": 160.0}
    failed = {
        **slower,
        "k_depth": 6,
        "cluster_n": 2,
        "stages": 3,
        "tile_m": 128,
        "speedup": float("nan"),
        "tflops": None,
    }
    return pd.DataFrame([slower, *rows, failed])


def multiples(frame, path, rows="k_depth", cols="cluster_n"):
    small_multiples(frame, rows, cols, x="stages", y="tile_m", path=path, title="t")


def test_every_facet_holds_its_cells_and_what_is_not_there_stays_empty(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.svg")
    titled = {axis.get_title(): axis for axis in drawn[0].axes if axis.get_title()}
    assert list(titled) == [f"k_depth {k}\ncluster_n {n}" for k in (4, 6) for n in (1, 2)]
    assert cells(titled["k_depth 4\ncluster_n 1"]) == {(0, 0): "1.10", (1, 0): "0.41", (0, 1): "0.41", (1, 1): "0.41"}
    assert cells(titled["k_depth 6\ncluster_n 2"]) == {(0, 0): "0.62", (1, 0): "0.62", (0, 1): "0.62"}
    assert titled["k_depth 6\ncluster_n 2"].collections[0].get_array().mask.tolist() == [[False, False], [False, True]]


def test_all_facets_share_one_scale_with_no_speedup_in_its_middle(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.svg")
    norms = [axis.collections[0].norm for axis in drawn[0].axes if axis.get_title()]
    assert len(norms) == 4
    assert {(norm.vmin, norm.vmax) for norm in norms} == {(0.5, 2.0)}


@pytest.mark.parametrize("shift", [0.0, -0.15, 1.0])
def test_the_middle_of_the_scale_is_no_speedup_whatever_was_found(frame, tmp_path, drawn, shift):
    multiples(frame.assign(speedup=frame["speedup"] + shift), tmp_path / "h.svg")
    (norm, *_) = [axis.collections[0].norm for axis in drawn[0].axes if axis.get_title()]
    assert norm(1.0) == pytest.approx(0.5)


def test_one_facet_column_alone_gives_one_row_of_facets_of_its_best(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.svg", rows=None)
    titled = {axis.get_title(): axis for axis in drawn[0].axes if axis.get_title()}
    assert list(titled) == ["cluster_n 1", "cluster_n 2"]
    assert cells(titled["cluster_n 1"])[0, 0] == "1.10"
    assert cells(titled["cluster_n 1"])[1, 1] == "0.61"


def test_a_curve_for_each_sampler_of_a_place(tmp_path, drawn):
    run = {"low": [0.1, 0.0], "middle": [0.2, 0.01], "high": [0.5, 0.1]}
    runs = [{**run, "place": place, "sampler": name} for place in ("a", "b") for name in ("gp", "random")]
    regret_curves(runs, tmp_path / "r.svg", "t")
    shown = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in shown] == ["a", "b"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["gp", "random"]
    assert shown[0].lines[0].get_ydata().tolist() == [20.0, 1.0]


def test_a_picture_of_a_notebook_has_a_palette(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.svg")
    image = Image.open(BytesIO(png(drawn[0], 40)))
    assert (image.format, image.mode) == ("PNG", "P")
    assert png(drawn[0], 40) != png(drawn[0], 80)


def test_a_single_cell_and_a_single_trial_give_no_picture(frame, tmp_path):
    multiples(frame[:2], tmp_path / "h.svg")
    search_plot(frame[:1].assign(status="ok"), [], None, tmp_path / "s.svg", "t")
    assert list(tmp_path.iterdir()) == []


def test_a_ladder_of_which_nothing_ran_has_an_axis_and_no_figures(tmp_path, drawn):
    group = Group(64, 64, 64, "bf16", "kk", False, 0, "", "normal", "burst", "chained", "cublas")
    ladder_bars([MeasuredRung("first", "", None, {}, (Result(group, "illegal"),))], tmp_path / "l.svg", "t")
    (axis,) = drawn[0].axes
    assert axis.get_xlim() == (0.0, 1.46)
    assert [text.get_text() for text in axis.texts] == ["TFLOP/s", "gain", "illegal"]


def test_no_bar_and_no_line_of_a_ladder_crosses_a_figure(tmp_path, drawn):
    """Every figure stands right of all bars, of their guides and of cuBLAS, whichever is longest."""
    group = Group(64, 64, 64, "bf16", "kk", False, 0, "", "normal", "burst", "chained", "cublas")
    results = [Result(group, "ok", "", rate, 785.0, rate / 785, 0.5) for rate in (412.0, 627.0, 791.0)]
    steps = [MeasuredRung(f"rung {i}", "", None, {}, (result,)) for i, result in enumerate(results)]
    ladder_bars([*steps, MeasuredRung("last", "", None, {}, (Result(group, "illegal"),))], tmp_path / "l.svg", "t")
    (axis,) = drawn[0].axes
    drawn[0].canvas.draw()
    ends = [path.vertices[:, 0].max() for lines in axis.collections for path in lines.get_paths()]
    longest = max([*ends, *(bar.get_width() for bar in axis.patches)])
    edge = axis.transData.transform((longest, 0))[0]
    figures = [text for text in axis.texts if not text.get_text().startswith("cuBLAS")]
    assert len(figures) == 2 + 2 * 3 + 1
    assert all(text.get_window_extent().x0 > edge for text in figures)
