"""Where figures come from: everything a reader needs to trust or repeat them."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hopper_gemm.tables.schema import SCHEMA_VERSION
from hopper_gemm.tuning.space import rungs
from hopper_gemm.tuning.spec import SweepSpec

PACKAGES = ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "optuna", "nvidia-cublas", "pandas", "numpy")


def provenance(
    spec: SweepSpec, source: str, about: dict[str, Any], total: int, refused: dict[str, int]
) -> dict[str, Any]:
    """The content of ``provenance.json`` at the start of a sweep.

    Args:
        spec: the question.
        source: measured or replayed.
        about: what the backend says of itself; its entries win.
        total: points of the sweep.
        refused: points that each rule refuses.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "study": spec.name,
        "question": spec.question,
        "source": source,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "seed": spec.seed,
        "rows": spec.table.rows,
        "cols": spec.table.cols,
        "facet_rows": spec.table.facet_rows,
        "facet_cols": spec.table.facet_cols,
        "spec": spec.model_dump(mode="json", by_alias=True),
        **({"rungs": [rung.as_dict() for rung in rungs(spec)]} if spec.rungs else {}),
        **({"skipped": refused} if spec.skip_illegal or spec.sampled else {}),
        **({"points": total} if spec.sampled else {}),
        "spec_digest": spec.digest,
        "commit": commit(),
        "versions": versions(),
        "noise": {},
        **about,
    }


def versions(*more: str) -> dict[str, str | None]:
    """Of Python, of the packages that figures depend on, and of more packages; None where one is missing."""
    return {"python": platform.python_version(), **{name: _version(name) for name in (*PACKAGES, *more)}}


def commit() -> str | None:
    """The revision of this checkout, marked where it has changes; from a file ``COMMIT`` where one says so."""
    root = Path(__file__).parents[2]
    note = root / "COMMIT"
    if note.is_file():
        return note.read_text().strip()
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return described.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
