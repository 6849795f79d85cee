"""Writing a study's page and pictures from its rows; each file is replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.reader import Study, read_study
from hopper_gemm.tune.study.schema import PAIRS
from hopper_gemm.tune.tables.comparison import cells, compare_page
from hopper_gemm.tune.tables.forest import forest
from hopper_gemm.tune.tables.ladder import ladder
from hopper_gemm.tune.tables.mapped import map_page, map_picture, mapped
from hopper_gemm.tune.tables.pages.report import report, source_line, spanning, varied
from hopper_gemm.tune.tables.pages.winners import is_list
from hopper_gemm.tune.tables.pivot import Group, groups, rows_of
from hopper_gemm.tune.tables.plots import heatmap, ladder_bars, search_plot, small_multiples

TABLE, COMPARISON, FOREST = "table.md", "compare.md", "compare.svg"
MAP, MAP_PICTURE = "map.md", "map.svg"


def publish(folder: Path, pictures: bool = True) -> None:
    """Write the pages and pictures of a results folder anew.

    Rows of a sweep give ``table.md`` and pictures: ``ladder.svg`` of a ladder, ``search.svg`` of a search, else
    ``heatmap.svg`` where a problem has several cells; one picture for each problem, regime and context, such as
    ``heatmap-4096x4096x4096-burst-chained.svg``, where a study with facets has several; none of problems that were
    searched one by one. Rows of a comparison give ``compare.md`` and, of several problems, ``compare.svg``; rows of
    a map ``map.md`` and ``map.svg``.

    Args:
        folder: of a study.
        pictures: whether to draw any.

    Raises:
        ResultsError: the folder holds no study, or a damaged one; the message says where.
    """
    study = read_study(folder)
    if study.stage("compare"):
        write_whole(folder / COMPARISON, compare_page(study))
        if pictures:
            forest(cells(study.stage("compare")), folder / FOREST, comparison_title(study))
    if study.stage("map"):
        write_whole(folder / MAP, map_page(study))
        found = mapped(study.stage("map"))
        if pictures and found:
            title = f"{study.provenance['study']}: kernels picked for {len(found)} problems that nobody tuned."
            map_picture(found, folder / MAP_PICTURE, f"{title} {source_line(study.provenance)}")
    if study.stage("sweep"):
        write_whole(folder / TABLE, report(study))
        if pictures:
            _pictures(study)


def comparison_title(study: Study) -> str:
    """The title of a comparison's picture."""
    about = study.provenance
    return (
        f"{about.get('study') or study.path.name}: speedup with the 95 % intervals of its pairs. {source_line(about)}"
    )


def _pictures(study: Study) -> None:
    about, rows = study.provenance, rows_of(study, "sweep")
    source = source_line(about)
    if is_list(about) or not (rows["status"] == "ok").any():
        return
    if about.get("rungs"):
        title = f"{about['study']}: TFLOP/s, and the gain over the rung it starts from. {source}"
        ladder_bars(ladder(rows, about["rungs"]), study.path / "ladder.svg", title)
    elif about["spec"].get("sampler", "exhaustive") != "exhaustive":
        value = about["spec"].get("objective", ["speedup"])[0]
        for group, part, path in _each(study.path, "search", rows):
            title = f"{about['study']}, {group.title}: {about['spec']['sampler']}. {source}"
            search_plot(part, _sliced(about, part), value, group.noted(about, "importance"), path, title)
    elif about.get("facet_rows") or about.get("facet_cols"):
        for group, part, path in _each(study.path, "heatmap", rows):
            title = f"{about['study']}, {group.title}: speedup over cuBLAS. {source}"
            down, across, x, y = spanning(about, "facet_rows", "facet_cols", "cols", "rows")
            small_multiples(part, down, across, x, y, path, title)
    else:
        title = f"{about['study']}: speedup over cuBLAS (stages). {source}"
        heatmap(rows, study.path / "heatmap.svg", title, *spanning(about))


def _each(folder: Path, name: str, rows: pd.DataFrame) -> Iterator[tuple[Group, pd.DataFrame, Path]]:
    """The file of a picture for each group in which anything ran, named after it where there are several."""
    parts = [(group, part) for group, part in groups(rows) if (part["status"] == "ok").any()]
    for group, part in parts:
        file = f"{name}.svg" if len(parts) == 1 else f"{name}-{group.place.replace(' ', '-')}.svg"
        yield group, part, folder / file


def _sliced(about: Mapping[str, Any], part: pd.DataFrame) -> list[str]:
    """Parameters of a search that took several values."""
    asked = {one for name in varied(about) for one in PAIRS.get(name, (name,))}
    return [name for name in FIELDS if name in asked and part[name].nunique() > 1]
