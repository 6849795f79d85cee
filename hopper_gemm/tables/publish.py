"""Writing a study's page and pictures from its rows."""

from __future__ import annotations

from pathlib import Path

from hopper_gemm.model.config import FIELDS
from hopper_gemm.tables.ladder import ladder
from hopper_gemm.tables.pivot import groups
from hopper_gemm.tables.plots import heatmap, ladder_bars, search_plot, small_multiples
from hopper_gemm.tables.report import Study, read_study, report, source_line
from hopper_gemm.tables.schema import PAIRS

TABLE, HEATMAP, LADDER, SEARCH = "table.md", "heatmap.png", "ladder.png", "search.png"


def publish(folder: Path) -> None:
    """Write ``table.md`` and the pictures anew: ``ladder.png`` of a ladder, ``search.png`` of a search, else
    ``heatmap.png``. With facets, and of a search, that is a file for each problem and regime, such as
    ``heatmap-4096x4096x4096-burst.png``, where there are several.

    Args:
        folder: of a study.

    Raises:
        ResultsError: it is not one.
    """
    study = read_study(folder)
    (folder / TABLE).write_text(report(study))
    about = study.provenance
    if not (study.trials["status"] == "ok").any():
        return
    if about.get("rungs"):
        title = f"{about['study']}: TFLOP/s, and the gain over the rung it starts from. {source_line(about)}"
        ladder_bars(ladder(study.trials, about["rungs"]), folder / LADDER, title)
        return
    if about["spec"].get("sampler", "exhaustive") != "exhaustive":
        _search(study, folder)
        return
    if about.get("facet_rows") or about.get("facet_cols"):
        _facets(study, folder)
        return
    title = f"{about['study']}: speedup over cuBLAS (stages). {source_line(about)}"
    heatmap(study.trials, folder / HEATMAP, title, about["rows"], about["cols"])


def _search(study: Study, folder: Path) -> None:
    """``search.png``, or one for each problem and regime where there are several."""
    about = study.provenance
    value = about["spec"].get("objective", ["speedup"])[0]
    parts = [(group, part) for group, part in groups(study.trials) if (part["status"] == "ok").any()]
    for group, part in parts:
        importance = about.get("importance", {}).get(group.place)
        choices = [name for pair in PAIRS if pair in about["spec"]["space"] for name in PAIRS[pair]]
        varied = [name for name in FIELDS if name in {*about["spec"]["space"], *choices} and part[name].nunique() > 1]
        path = folder / (SEARCH if len(parts) == 1 else f"search-{group.place.replace(' ', '-')}.png")
        title = f"{about['study']}, {group.title}: {about['spec']['sampler']}. {source_line(about)}"
        search_plot(part, varied, value, importance, path, title)


def _facets(study: Study, folder: Path) -> None:
    about = study.provenance
    parts = [(group, part) for group, part in groups(study.trials) if (part["status"] == "ok").any()]
    for group, part in parts:
        path = folder / (HEATMAP if len(parts) == 1 else f"heatmap-{group.place.replace(' ', '-')}.png")
        small_multiples(
            part,
            rows=about.get("facet_rows"),
            cols=about.get("facet_cols"),
            x=about["cols"],
            y=about["rows"],
            value="speedup",
            path=path,
            title=f"{about['study']}, {group.title}: speedup over cuBLAS. {source_line(about)}",
        )
