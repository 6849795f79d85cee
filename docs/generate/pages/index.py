"""The index of recorded results: every study with its question, its best, and what it lacks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.generate.pages.means import mean_figure, pick_of
from docs.generate.pages.sources import read
from hopper_gemm.model.tuned import FILE
from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.reader import Study, has_rows, missing
from hopper_gemm.tune.tables.comparison import cells, means
from hopper_gemm.tune.tables.mapped import mapped
from hopper_gemm.tune.tables.pages.publish import COMPARISON, MAP, TABLE
from hopper_gemm.tune.tables.pages.report import scope
from hopper_gemm.tune.tables.pivot import escaped, interval, markdown, one_line

INDEX, NOTES = "README.md", "notes.toml"
"""The index; and remarks on studies that their rows do not show, such as what was cut off, by study and in the order of
the index."""

TITLE = """# Results

One line a study. A folder holds its rows, `provenance.json` (GPU, driver, versions, commit, digest of the kernel's
sources, protocol, seed, noise floor), a page and pictures; what the columns mean:
[docs/results](../../docs/results.md).{more} `make pages` writes this page.

Best: the greatest speedup over torch.mm among the finals, or, where there are none, in the sweep; for a comparison the
geometric mean over its problems."""

TUNED = """ [best_configs.json](best_configs.json) is the tuned table that `matmul` and `check` read."""
"""Part of the title for a kind of GPU with a tuned table."""

MORE = """ Superseded studies and those of one question: [archive](../archive/{name}/README.md)."""
"""Part of the title for a kind of GPU with an archive."""

ARCHIVED = """# Archived results

Superseded studies and those of one question: rows and `provenance.json` alone. `hopper-gemm table DIR --write` makes a
folder's page and pictures again, and `hopper-gemm sweep` with `--from` replays it from its file in `sweeps`, if it has
one. The studies to read first: [results/{name}](../../{name}/README.md). `make pages` writes this page.

Best: as there, by the kernels of those days. A board that rows do not name is `unknown`."""

INTERACTIVE = ("seed-table", "ladder", "suite", "suite-chained", "short", "drawn", "map")
"""Studies of H200s whose interactive pages the site has; ``make reports`` writes the same."""

DATED = re.compile(r"^\d{4}-\d\d-\d\d-")
"""Prefix of the name of an archived folder: its date."""


def index(root: Path) -> str:
    """The Markdown index of one GPU's results.

    Args:
        root: a folder of results folders, such as ``results/h200``, or their archive, ``results/archive/h200``.

    Raises:
        ResultsError: a folder in it is damaged; the message says where.
    """
    notes = tomllib.loads((root / NOTES).read_text()) if (root / NOTES).is_file() else {}
    folders = [path for path in (*root.glob("*"), *root.glob("*/*")) if path.is_dir()]
    names = {str(path.relative_to(root)): path for path in sorted(folders) if has_rows(path)}
    archived = root.parent.name == "archive"
    order = {} if archived else {name: place for place, name in enumerate(notes)}
    studies = {name: read(names[name]) for name in sorted(names, key=lambda name: order.get(name, len(order)))}
    more = "" if archived or not (root.parent / "archive" / root.name).is_dir() else MORE.format(name=root.name)
    more += TUNED if (root / FILE).is_file() else ""
    title = (ARCHIVED if archived else TITLE).format(name=root.name, more=more)
    return f"{title}\n\n{_table(studies, notes)}\n"


def _key(name: str) -> str:
    """Name of a study's remarks."""
    return DATED.sub("", name)


def write_index(root: Path) -> None:
    """Write the index of a GPU's results anew."""
    write_whole(root / INDEX, index(root))


def interactive(root: Path) -> str:
    """Return a line for each study of :data:`INTERACTIVE`, with an anchor of its name and a link to its page: question,
    regime and context."""
    notes, rows = tomllib.loads((root / NOTES).read_text()), []
    for name in INTERACTIVE:
        study = read(root / name)
        page = next(page for page in (COMPARISON, TABLE, MAP) if (study.path / page).is_file())
        question = notes.get(name, {}).get("question") or study.provenance["question"]
        link = f'<a id="{name}"></a>[{name}](../results/{root.name}/{name}/{page})'
        mode = scope(study)
        rows.append((link, one_line(question), f"{mode['regime']}; {mode['context']}"))
    return markdown(("study", "question", "regime and context"), rows)


def _table(studies: Mapping[str, Study], notes: Mapping[str, Any]) -> str:
    columns, rows = ["study", "question", "best", "status", "regime", "context", "date"], []
    for name, study in studies.items():
        about, note = escaped(study.provenance), notes.get(_key(name), {})
        pages = [page for page in (COMPARISON, TABLE, MAP) if (study.path / page).is_file()]
        lacks = note.get("missing") or missing(study)
        status = f"unfinished: {lacks} missing" if lacks else "finished"
        remark = f"; {note['remark']}" if "remark" in note else ""
        line = {
            "study": f"[{_key(name)}]({'/'.join([name, *pages[:1]])})",
            "question": note.get("question") or about.get("question", ""),
            "best": _best(study),
            "status": status + remark,
            "date": about.get("created", "").split(" ")[0],
            **scope(study),
        }
        rows.append([one_line(line[name]) for name in columns])
    return markdown(columns, rows)


def _best(study: Study) -> str:
    compared = means(cells(study.stage("compare")))
    if compared:
        several = len({one.context for one in compared}) > 1
        said = (f"{one.figure} {one.against}{f' {one.context}' if several else ''}" for one in compared)
        return ", ".join(said)
    for stage, where in (("final", ""), ("sweep", " in the sweep")):
        ran = [row for row in pooled(study.stage(stage)) if row.ok and not row.point.is_baseline]
        if ran:
            best = max(ran, key=lambda row: float(row.figures["speedup"]))
            config, point = best.point.config, best.point
            tile = f"{config.tile_m}x{config.tile_n}x{config.tile_k}"
            return f"{interval(best.figures)}{where}, {point.problem} {point.regime}: {tile}"
    picks = [*map(pick_of, mapped(study.stage("map")))]
    return f"{mean_figure(picks)} cublas, {len(picks)} picks" if picks else ""
