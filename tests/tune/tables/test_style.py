"""Pictures have one scale of speedups, axes in words, and the same bytes each time."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.schema import PAIRS
from hopper_gemm.tune.tables.style import DPI, LONGEST, STYLE, label, save, speedup_bar, speedup_norm
from tests.each import each


@pytest.mark.parametrize("speedups", [[], [1.01], [0.8, 1.02], [1.3], [0.1, float("nan"), 5.0]])
def test_a_loss_and_the_gain_that_makes_up_for_it_are_equally_far_from_even(speedups):
    norm = speedup_norm(speedups)
    assert norm(1.0) == pytest.approx(0.5)
    for factor in (1.01, 1.1, 1.19):
        assert norm(factor) - 0.5 == pytest.approx(0.5 - norm(1 / factor))
    assert norm(1.01) - 0.5 < 0.03


@pytest.mark.parametrize("speedups", [[1.0], [0.3, 1.01], [0.99, 1.4]])
def test_the_colour_bar_has_ticks_on_both_sides_of_even(speedups):
    norm = speedup_norm(speedups)
    figure, axis = plt.subplots()
    speedup_bar(figure, norm, axis, speedups)
    ticks = figure.axes[-1].get_yticks()
    plt.close(figure)
    assert sum(ticks < 0.99) == sum(ticks > 1.01) >= 2
    assert min(abs(ticks - 1)) < 1e-9


def test_both_axes_have_figures_of_one_size():
    assert STYLE["xtick.labelsize"] == STYLE["ytick.labelsize"] == STYLE["font.size"]


@each("name", [*FIELDS, *PAIRS])
def test_the_axis_of_every_parameter_has_words_and_its_name(name):
    words, _, rest = label(name).partition(f" ({name})")
    assert (0 < len(words) <= LONGEST, rest) == (True, ""), label(name)


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_picture_drawn_again_has_the_same_bytes(tmp_path, form):
    paths = [tmp_path / f"{number}.{form}" for number in range(2)]
    for path in paths:
        with plt.rc_context(STYLE):
            figure, axis = plt.subplots(figsize=(2, 1))
            axis.plot([1, 2], [1, 2], marker="o", clip_on=True)
            save(figure, path, "a title")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    if form == "png":
        assert Image.open(paths[0]).size == (2 * DPI, DPI)
    else:
        assert "date" not in paths[0].read_text()
        assert "fill: #ffffff" in paths[0].read_text()
