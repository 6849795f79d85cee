"""Publishing writes what the rows give, and a reader never finds a part of a file."""

from __future__ import annotations

import pytest

from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.tables.comparison import compare_page
from hopper_gemm.tune.tables.pages.publish import publish
from hopper_gemm.tune.tables.pages.report import report
from tests.tune.tables.making import row, write_study


def test_pages_and_pictures_are_written_whole_before_they_take_their_names(tmp_path, steps):
    """So no reader finds a part of one, however many publish at once."""
    write_study(tmp_path, *(row(tile_m=m, k_depth=k) for m in (64, 128) for k in (2, 4)))
    steps.clear()
    publish(tmp_path)
    assert {"table.md", "heatmap.svg"} <= {*steps}


def test_a_folder_gets_the_page_of_each_stage_that_it_holds(tmp_path):
    folder = write_study(tmp_path, row(), row(stage="compare"))
    publish(folder, pictures=False)
    study = read_study(folder)
    assert (folder / "table.md").read_text() == report(study)
    assert (folder / "compare.md").read_text() == compare_page(study)
    assert not list(folder.glob("*.svg"))


@pytest.mark.parametrize(
    ("contexts", "files"),
    [
        (["isolated"], ["heatmap.svg"]),
        (["isolated", "chained"], ["heatmap-64x64x64-burst-chained.svg", "heatmap-64x64x64-burst-isolated.svg"]),
    ],
)
def test_a_study_with_facets_has_a_picture_for_each_group_that_ran(tmp_path, contexts, files):
    rows = [row(context=context, tile_m=tile_m, k_depth=4) for context in contexts for tile_m in (64, 128)]
    rows.append(row("illegal", "registers: too many", sizes=(128, 64, 64), tile_m=320))
    publish(write_study(tmp_path, *rows, cols="stages", facet_rows="k_depth"))
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == files


def test_a_search_has_a_picture_of_its_course(tmp_path):
    rows = [row(tile_m=m, speedup=s) for m, s in ((64, 0.8), (128, 0.9), (256, 1.0))]
    spec = {"space": {"tile_m": [64, 128, 256]}, "sampler": "gp"}
    shares = {"evaluator": "PED-ANOVA", "parameters": {"tile_m": 1.0}}
    publish(write_study(tmp_path, *rows, spec=spec, importance={"64x64x64 burst isolated": shares}))
    assert [path.name for path in tmp_path.glob("*.svg")] == ["search.svg"]


def test_rows_that_share_one_cell_give_no_heat_map(tmp_path):
    publish(write_study(tmp_path, *(row(tile_m=128, k_depth=4, stages=stages) for stages in (2, 3))))
    assert not list(tmp_path.glob("heatmap*"))


def test_a_comparison_of_several_problems_has_a_picture(tmp_path):
    rows = [row(sizes=(m, 64, 64), stage="compare") for m in (64, 128)]
    publish(write_study(tmp_path, *rows))
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".md", ".svg")) == [
        "compare.md",
        "compare.svg",
    ]
