"""Pictures show the figures that the rows hold, on one scale, and are small."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from PIL import Image

from hopper_gemm.tune.tables.plots import png, regret_curves, small_multiples


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
    multiples(frame, tmp_path / "h.png")
    titled = {axis.get_title(): axis for axis in drawn[0].axes if axis.get_title()}
    assert list(titled) == [f"k_depth {k}\ncluster_n {n}" for k in (4, 6) for n in (1, 2)]
    assert cells(titled["k_depth 4\ncluster_n 1"]) == {(0, 0): "1.10", (1, 0): "0.41", (0, 1): "0.41", (1, 1): "0.41"}
    assert cells(titled["k_depth 6\ncluster_n 2"]) == {(0, 0): "0.62", (1, 0): "0.62", (0, 1): "0.62"}
    assert titled["k_depth 6\ncluster_n 2"].images[0].get_array().mask.tolist() == [[False, False], [False, True]]


def test_all_facets_share_one_scale_with_no_speedup_in_its_middle(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.png")
    norms = [image.norm for axis in drawn[0].axes for image in axis.images]
    assert len({(norm.vmin, norm.vcenter, norm.vmax) for norm in norms}) == 1
    assert (norms[0].vmin, norms[0].vcenter, norms[0].vmax) == (pytest.approx(0.41), 1.0, 1.1)


@pytest.mark.parametrize("frame_of", [lambda f: f, lambda f: f[f["speedup"] < 0.9], lambda f: f[f["speedup"] > 1]])
def test_the_middle_of_the_scale_is_no_speedup_whatever_was_found(frame, tmp_path, drawn, frame_of):
    multiples(frame_of(frame), tmp_path / "h.png")
    (image, *_) = [image for axis in drawn[0].axes for image in axis.images]
    assert image.norm(1.0) == 0.5


def test_one_facet_column_alone_gives_one_row_of_facets_of_its_best(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.png", rows=None)
    titled = {axis.get_title(): axis for axis in drawn[0].axes if axis.get_title()}
    assert list(titled) == ["cluster_n 1", "cluster_n 2"]
    assert cells(titled["cluster_n 1"])[0, 0] == "1.10"
    assert cells(titled["cluster_n 1"])[1, 1] == "0.61"


def test_a_curve_for_each_sampler_of_a_place(tmp_path, drawn):
    run = {"low": [0.1, 0.0], "middle": [0.2, 0.01], "high": [0.5, 0.1]}
    runs = [{**run, "place": place, "sampler": name} for place in ("a", "b") for name in ("gp", "random")]
    regret_curves(runs, tmp_path / "r.png", "t")
    shown = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in shown] == ["a", "b"]
    assert [text.get_text() for text in shown[0].get_legend().get_texts()] == ["gp", "random"]
    assert shown[0].lines[0].get_ydata().tolist() == [20.0, 1.0]


def test_a_saved_picture_has_a_palette(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.png")
    image = Image.open(tmp_path / "h.png")
    assert (image.format, image.mode) == ("PNG", "P")
    assert png(drawn[0], 40) != png(drawn[0], 80)
