"""Small multiples and scatter plots show the figures that the rows hold, on one scale."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from hopper_gemm.tables.plots import scatter_by, small_multiples
from hopper_gemm.tables.publish import publish
from hopper_gemm.tables.schema import NAMES
from hopper_gemm.tables.trials import PROVENANCE, TRIALS, AppendFile
from tests.tables.test_tables import row


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


def multiples(frame, path, rows="k_depth", cols="cluster_n", value="speedup"):
    small_multiples(frame, rows, cols, x="stages", y="tile_m", value=value, path=path, title="t")


def test_every_facet_holds_its_cells_and_what_is_not_there_stays_empty(frame, tmp_path, drawn):
    multiples(frame, tmp_path / "h.png")
    titled = {axis.get_title(): axis for axis in drawn[0].axes if axis.get_title()}
    assert list(titled) == [f"k_depth {k}, cluster_n {n}" for k in (4, 6) for n in (1, 2)]
    assert cells(titled["k_depth 4, cluster_n 1"]) == {(0, 0): "1.10", (1, 0): "0.41", (0, 1): "0.41", (1, 1): "0.41"}
    assert cells(titled["k_depth 6, cluster_n 2"]) == {(0, 0): "0.62", (1, 0): "0.62", (0, 1): "0.62"}
    assert titled["k_depth 6, cluster_n 2"].images[0].get_array().mask.tolist() == [[False, False], [False, True]]


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
    multiples(frame, tmp_path / "h.png", rows=None, value="tflops")
    titled = {axis.get_title(): axis for axis in drawn[0].axes if axis.get_title()}
    assert list(titled) == ["cluster_n 1", "cluster_n 2"]
    assert cells(titled["cluster_n 1"])[0, 0] == "880"
    assert cells(titled["cluster_n 1"])[1, 1] == "488"


def test_a_scatter_leaves_out_rows_that_lack_a_figure(frame, tmp_path, drawn):
    scatter_by(frame, "tflops", "speedup", "watts", tmp_path / "s.png", "t", "power, W")
    points = drawn[0].axes[0].collections[0]
    assert len(points.get_offsets()) == frame["tflops"].notna().sum() == 16
    assert sorted(points.get_offsets()[:, 1]) == sorted(frame["speedup"].dropna())
    assert drawn[0].axes[1].get_ylabel() == "power, W"
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("regimes", "files"),
    [
        (["burst"], ["heatmap.png"]),
        (["burst", "steady"], ["heatmap-64x64x64-burst.png", "heatmap-64x64x64-steady.png"]),
    ],
)
def test_a_study_with_facets_has_a_picture_for_each_problem_and_regime_that_ran(tmp_path, regimes, files):
    file = AppendFile(tmp_path / TRIALS, NAMES)
    for regime in regimes:
        file.append([row(regime=regime, tile_m=tile_m, k_depth=4) for tile_m in (64, 128)])
    file.append([row("illegal", "registers: too many", m=128, tile_m=320)])
    about = {"study": "s", "source": "measured", "created": "then", "seed": 0, "rows": "tile_m", "cols": "stages"}
    about |= {"gpu": {"name": "NVIDIA H200", "driver": "580"}, "spec": {"space": {}}, "facet_rows": "k_depth"}
    (tmp_path / PROVENANCE).write_text(json.dumps(about))
    publish(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == files
