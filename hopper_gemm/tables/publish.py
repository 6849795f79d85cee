"""Writing a study's page and pictures from its rows."""

from __future__ import annotations

from pathlib import Path

from hopper_gemm.tables.plots import heatmap
from hopper_gemm.tables.report import read_study, report, source_line

TABLE, HEATMAP = "table.md", "heatmap.png"


def publish(folder: Path) -> None:
    """Write ``table.md`` and ``heatmap.png`` anew.

    Args:
        folder: of a study.

    Raises:
        ResultsError: it is not one.
    """
    study = read_study(folder)
    (folder / TABLE).write_text(report(study))
    if (study.trials["status"] == "ok").any():
        title = f"{study.provenance['study']}: speedup over cuBLAS (stages). {source_line(study.provenance)}"
        heatmap(study.trials, folder / HEATMAP, title, study.provenance["rows"], study.provenance["cols"])
