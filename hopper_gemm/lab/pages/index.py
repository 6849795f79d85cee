"""The index of recorded results: every study with its question, its best, what it lacks, and who reads it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopper_gemm.model.point import Point
from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.reader import Study, has_rows, read_study
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.tables.compare import cells, means
from hopper_gemm.tune.tables.pages.publish import COMPARISON, TABLE
from hopper_gemm.tune.tables.pages.report import scope
from hopper_gemm.tune.tables.pivot import escaped, interval, markdown, one_line

INDEX, NOTES = "README.md", "notes.toml"
"""The index; and remarks on studies that their rows do not show, such as what was cut off, by study."""

SEARCH = "tune-"
"""What the name of a search of one problem begins with."""

TITLE = """# Results

{folders} results folders with {rows} rows, {searches} of them searches of single problems. This page is made from their
provenance by `make pages`. Each folder holds its rows (as CSV, or as Parquet once it is finished), `provenance.json`
(GPU, driver, versions, commit, digest of the kernel's sources, protocol, seed, noise floor), a page and pictures. What
the columns mean: [schema](../../hopper_gemm/tune/study/schema.py). The searches of a list share the files
`studies-*.parquet` of its folder. [best_configs.json](best_configs.json) is the tuned table that `matmul` and `check`
read.

Best: the greatest speedup over torch.mm among the finals, or, where there are none, in the sweep; for a comparison the
geometric mean over its problems. Studies recorded before rows named their board say `unknown`."""


def index(root: Path) -> str:
    """The Markdown index of one GPU's results.

    Args:
        root: a folder of results folders, such as ``results/h200``; notebooks are looked for in the checkout around it.

    Raises:
        ResultsError: a folder in it is damaged; the message says where.
    """
    folders = [folder for folder in sorted(root.rglob("*")) if folder.is_dir() and has_rows(folder)]
    studies = [read_study(folder) for folder in folders]
    notes = tomllib.loads((root / NOTES).read_text()) if (root / NOTES).is_file() else {}
    readers = {path.stem: path.read_text() for path in sorted(root.parents[1].glob("notebooks/*.py"))}
    rows = sum(len(study.rows) for study in studies)
    single = [study for study in studies if study.path.name.startswith(SEARCH)]
    lines = [TITLE.format(folders=len(studies), rows=f"{rows:,}", searches=len(single)), ""]
    lines += [_table(root, [study for study in studies if study not in single], notes, readers), ""]
    for folder in dict.fromkeys(study.path.parent for study in single):
        part = [study for study in single if study.path.parent == folder]
        path = folder.relative_to(root)
        of = "" if folder == root else f" of [{path}]({path})"
        lines += [f"## Searches{of}", "", _table(root, part, notes, {}), ""]
    return "\n".join(lines)


def write_index(root: Path) -> None:
    """Write the index of a GPU's results anew."""
    write_whole(root / INDEX, index(root))


def missing(study: Study) -> str:
    """What a study's rows lack by its provenance: finals that were asked for, or, of a run that never ended, some of
    its rows. A study that ended lacks none: else it is not read at all."""
    about = study.provenance
    if "rows" in (about.get("finished") or {}):
        return ""
    asked = about.get("spec", {}).get("final", {}).get("best", 0)
    ran, had = (_by_place(study.stage(stage)) for stage in ("sweep", "final"))
    wanted = {place: min(asked, len(configs)) for place, configs in ran.items()}
    lacking = sum(max(0, count - len(had.get(place, ()))) for place, count in wanted.items())
    if lacking:
        return f"{lacking} of {sum(wanted.values())} finals"
    return "rows" if about.get("schema_version", 1) > 1 else ""  # a run that ended says so


def _by_place(rows: Iterable[Row]) -> dict[Point, set[Any]]:
    """The configs that ran, by the point without them."""
    found: dict[Point, set[Any]] = {}
    for row in rows:
        if row.ok:
            found.setdefault(replace(row.point, config=None), set()).add(row.point.config)
    return found


def _table(root: Path, studies: Iterable[Study], notes: dict[str, Any], readers: dict[str, str]) -> str:
    known = ("study", "question", "best", "status", "regime", "context", "board", "notebook", "date")
    columns = [name for name in known if readers or name not in ("question", "notebook")]
    rows = []
    for study in studies:
        path, about = study.path.relative_to(root), escaped(study.provenance)
        pages = [name for name in (TABLE, COMPARISON) if (study.path / name).is_file()]
        named = f"[{study.path.name}]({'/'.join([str(path), *pages[:1]])})"
        note = notes.get(str(path), {})
        lacks = note.get("missing") or missing(study)
        status = f"unfinished: {lacks} missing" if lacks else "finished"
        remark = f"; {note['remark']}" if "remark" in note else ""
        users = [f"[{name}](../../notebooks/{name}.ipynb)" for name, text in readers.items() if _reads(text, path)]
        line = {"study": named, "question": about.get("question", ""), "best": _best(study), "status": status + remark}
        line |= {**scope(study), "notebook": ", ".join(users), "date": about.get("created", "").split(" ")[0]}
        rows.append([one_line(line[name]) for name in columns])
    return markdown(columns, rows)


def _reads(text: str, path: Path) -> bool:
    """Whether a notebook's source names the folder."""
    return re.search(rf"""["'/ ]{re.escape(str(path))}["'/]""", text) is not None


def _best(study: Study) -> str:
    compared = means(cells(study.stage("compare")))
    if compared:
        return ", ".join(f"{one.speedup:.3f}x {one.against}" for one in compared)
    for stage, where in (("final", ""), ("sweep", " in the sweep")):
        ran = [row for row in pooled(study.stage(stage)) if row.ok and row.point.config is not None]
        if ran:
            best = max(ran, key=lambda row: float(row.figures["speedup"]))
            config, point = best.point.config, best.point
            assert config is not None
            tile = f"{config.tile_m}x{config.tile_n}x{config.tile_k}"
            return f"{interval(best.figures)}{where}, {point.problem} {point.regime}: {tile}"
    return ""
