"""The data package of the results: ``results/datapackage.json`` with its table schema, and all rows as one Parquet.

    python -m docs.generate.data [FILE]     # every recorded row, by default in build/rows.parquet; needs pyarrow

The descriptors follow Data Package 2 (datapackage.org). A board that a file does not name is ``unknown``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from docs.generate.measurements import named, text_of
from docs.generate.pages.sources import read
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.reader import ROWS, frame_of, packed, recorded_folders
from hopper_gemm.tune.study.row import SUM, ResultsError
from hopper_gemm.tune.study.schema import COLUMNS, NAMES, Column
from hopper_gemm.tune.tables.pivot import one_line
from hopper_gemm.tune.tables.view import write_parquet

PACKAGE, SCHEMA = "datapackage.json", "rows.schema.json"

PROFILES = "https://datapackage.org/profiles/2.0/"

LICENCES = (
    {
        "name": "CC-BY-4.0",
        "path": "https://creativecommons.org/licenses/by/4.0/",
        "title": "Creative Commons Attribution 4.0",
    },
    {"name": "Apache-2.0", "path": "https://www.apache.org/licenses/LICENSE-2.0", "title": "Apache License 2.0"},
)
"""Licences of the data; its user takes either."""

FOLDER = Column("folder", "text", f"folder of the study in results; only in the Parquet of all rows, which lacks {SUM}")

CHECK = Column(SUM, "text", "CRC-32 of the column names, a line break and the row's values")

OTHERS = (
    *("*/checks.jsonl", "*/ideas.jsonl", "measurements/*.csv", "measurements/*.json*"),
    *("verification/*.jsonl", "archive/verification/*.jsonl"),
)
"""Data files that are no rows of a study."""


def table_schema() -> dict[str, Any]:
    """Return the Table Schema of rows. A file of rows may lack columns: it is a superset of the file's."""
    fields = [
        {
            "name": one.name,
            "type": one.type,
            **({"unit": one.unit} if one.unit else {}),
            "description": one_line(one.doc),
        }
        for one in (FOLDER, *COLUMNS, CHECK)
    ]
    return {
        "$schema": f"{PROFILES}tableschema.json",
        "description": "A parameter of the kernel without a column in a file stands at its default there.",
        "fieldsMatch": "superset",
        "fields": fields,
    }


def package(root: Path) -> dict[str, Any]:
    """Return the descriptor of a results folder: every study's rows, then the data that no study made."""
    studies = [_study(folder, root) for folder in recorded_folders()]
    paths = [path for pattern in OTHERS for path in sorted(root.glob(pattern))]
    others = [_other(path, root) for path in paths]
    return {
        "$schema": f"{PROFILES}datapackage.json",
        "name": "hopper-gemm-results",
        "title": "Measurements of a Hopper GEMM kernel and its autotuner beside cuBLAS",
        "licenses": [*LICENCES],
        "resources": studies + others,
    }


def _study(folder: Path, root: Path) -> dict[str, Any]:
    study, path = read(folder), folder.relative_to(root)
    file = path / ROWS if (folder / ROWS).is_file() else packed(path)
    return {
        "name": "-".join(path.parts).lower(),
        "path": str(file),
        "description": one_line(study.provenance.get("question", study.provenance["study"])),
        "type": "table",
        "format": "csv",
        "mediatype": "application/x-xz" if file.suffix == ".xz" else "text/csv",
        "schema": SCHEMA,
        "rows": len(study.rows),
        "created": study.provenance.get("created", "unknown"),
        "gpus": sorted({row.gpu or "unknown" for row in study.rows}),
        "boards": sorted({row.board for row in study.rows}),
        "provenance": str(path / "provenance.json"),
    }


def _other(path: Path, root: Path) -> dict[str, Any]:
    name, origin = path.relative_to(root), named(text_of(path))
    return {
        "name": "-".join(name.parts).lower(),
        "path": str(name),
        "format": path.name.removesuffix(".gz").rpartition(".")[2],
        **({"mediatype": "application/gzip"} if path.suffix == ".gz" else {}),
        "gpus": origin["gpus"],
        "boards": origin["boards"],
    }


def write_package(root: Path) -> None:
    """Write the descriptor and the schema into a results folder."""
    _write(root / SCHEMA, table_schema(), "fields")
    _write(root / PACKAGE, package(root), "resources")


def _write(path: Path, value: dict[str, Any], key: str) -> None:
    """Write a descriptor with one line for each item of a list, so that a new study is one new line."""
    items = ",\n".join([f"  {json.dumps(item)}" for item in value[key]])
    head = json.dumps({**value, key: []}, indent=1)
    write_whole(path, head.replace(f'"{key}": []', f'"{key}": [\n{items}\n ]') + "\n")


def write_rows(path: Path) -> int:
    """Write every recorded row as one Parquet file; return their number."""
    root = results_root()
    rows = [(str(folder.relative_to(root)), row) for folder in recorded_folders() for row in read(folder).rows]
    frame = frame_of([row for _, row in rows])[[*NAMES]]
    frame.insert(0, FOLDER.name, [folder for folder, _ in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(frame, path)
    return len(rows)


if __name__ == "__main__":
    target = Path(sys.argv[1] if sys.argv[1:] else "build/rows.parquet")
    try:
        print(f"{write_rows(target):,} rows written to {target}")
    except ResultsError as error:
        sys.exit(str(error))
