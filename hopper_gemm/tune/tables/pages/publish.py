"""Writing a study's page and pictures from its rows; each file is replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.reader import Study, read_study
from hopper_gemm.tune.study.schema import PAIRS
from hopper_gemm.tune.tables.comparison import cells, compare_page
from hopper_gemm.tune.tables.forest import forest
from hopper_gemm.tune.tables.ladder import ladder
from hopper_gemm.tune.tables.mapped import map_page, map_picture, mapped
from hopper_gemm.tune.tables.pages.report import is_list, report, source_line, spanning, varied
from hopper_gemm.tune.tables.pivot import Group, groups, rows_of
from hopper_gemm.tune.tables.plots import heatmap, ladder_bars, search_plot, small_multiples

TABLE, COMPARISON, FOREST = "table.md", "compare.md", "compare.svg"
MAP, MAP_PICTURE = "map.md", "map.svg"


def publish(folder: Path, pictures: bool = True) -> None:
    """Write the pages and, unless told otherwise, the pictures of a results folder anew.

    Rows of a sweep give ``table.md`` and pictures: ``ladder.svg`` of a ladder, ``search.svg`` of a search, else
    ``heatmap.svg`` where a problem has several cells; one picture for each problem, regime and context, such as
    ``heatmap-4096x4096x4096-burst-chained.svg``, where a study with facets has several; none of problems that were
    searched one by one. Rows of a comparison give ``compare.md`` and, of several problems, ``compare.svg``; rows of a
    map ``map.md`` and ``map.svg``.
    """
    study = read_study(folder)
    if study.stage("compare"):
        write_whole(folder / COMPARISON, compare_page(study))
        if pictures:
            forest(cells(study.stage("compare")), folder / FOREST, comparison_title(study))
    if study.stage("map"):
        write_whole(folder / MAP, map_page(study))
        problems = mapped(study.stage("map"))
        if pictures and problems:
            title = f"{study.provenance['study']}: kernels picked for {len(problems)} problems that nobody tuned."
            map_picture(problems, folder / MAP_PICTURE, f"{title} {source_line(study.provenance)}")
    if study.stage("sweep"):
        write_whole(folder / TABLE, report(study))
        if pictures:
            _pictures(study)


def comparison_title(study: Study) -> str:
    """Return the title of a comparison's picture."""
    name = study.provenance.get("study") or study.path.name
    return f"{name}: speedup with the 95 % intervals of its pairs. {source_line(study.provenance)}"


def _pictures(study: Study) -> None:
    provenance, rows = study.provenance, rows_of(study, "sweep")
    source = source_line(provenance)
    if is_list(provenance) or not (rows["status"] == "ok").any():
        return
    if provenance.get("rungs"):
        title = f"{provenance['study']}: TFLOP/s, and the gain over the rung it starts from. {source}"
        ladder_bars(ladder(rows, provenance["rungs"]), study.path / "ladder.svg", title)
    elif provenance["spec"].get("sampler", "exhaustive") != "exhaustive":
        for group, part, path in _each(study.path, "search", rows):
            title = f"{provenance['study']}, {group.title}: {provenance['spec']['sampler']}. {source}"
            names = {field for name in varied(provenance) for field in PAIRS.get(name, (name,))}
            sliced = [name for name in FIELDS if name in names and part[name].nunique() > 1]
            search_plot(part, sliced, group.noted(provenance, "importance"), path, title)
    elif provenance.get("facet_rows") or provenance.get("facet_cols"):
        for group, part, path in _each(study.path, "heatmap", rows):
            title = f"{provenance['study']}, {group.title}: speedup over {group.over}. {source}"
            down, across, x, y = spanning(provenance, "facet_rows", "facet_cols", "cols", "rows")
            small_multiples(part, down, across, x, y, path, title)
    else:
        title = f"{provenance['study']}: speedup over cuBLAS (stages). {source}"
        heatmap(rows, study.path / "heatmap.svg", title, *spanning(provenance))


def _each(folder: Path, name: str, rows: pd.DataFrame) -> Iterator[tuple[Group, pd.DataFrame, Path]]:
    """Yield each group in which anything ran with its rows and its picture's path, named after it among several."""
    parts = [(group, part) for group, part in groups(rows) if (part["status"] == "ok").any()]
    for group, part in parts:
        file = f"{name}.svg" if len(parts) == 1 else f"{name}-{group.key.replace(' ', '-')}.svg"
        yield group, part, folder / file
