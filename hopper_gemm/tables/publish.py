"""Writing a study's page and pictures from its rows."""

from __future__ import annotations

from pathlib import Path

from hopper_gemm.tables.ladder import ladder
from hopper_gemm.tables.plots import heatmap, ladder_bars
from hopper_gemm.tables.report import read_study, report, source_line

TABLE, HEATMAP, LADDER = "table.md", "heatmap.png", "ladder.png"


def publish(folder: Path) -> None:
    """Write ``table.md`` and the pictures anew: ``ladder.png`` of a ladder, else ``heatmap.png``.

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
    title = f"{about['study']}: speedup over cuBLAS (stages). {source_line(about)}"
    heatmap(study.trials, folder / HEATMAP, title, about["rows"], about["cols"])
