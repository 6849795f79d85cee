"""Where figures come from: everything a reader needs to trust or repeat them."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hopper_gemm.study import version1
from hopper_gemm.study.row import ResultsError
from hopper_gemm.study.schema import SCHEMA_VERSION

PROVENANCE = "provenance.json"
PACKAGES = ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "optuna", "nvidia-cublas", "pandas", "numpy")

NEEDED = ("study", "source", "created", "gpu", "spec")
"""Keys without which the file says too little."""

TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("study", "source", "question", "created", "rows", "cols", "spec_digest"), str),
    **dict.fromkeys(("gpu.name", "gpu.driver", "gpu.uuid", "finished.digest"), str),
    **dict.fromkeys(("facet_rows", "facet_cols", "commit", "kernel"), (str, type(None))),
    **dict.fromkeys(("schema_version", "seed", "points", "finished.rows"), int),
    **dict.fromkeys(("searched", "at_work", "seconds"), (int, float)),
    **dict.fromkeys(("gpu", "spec", "versions", "noise", "skipped", "even", "importance", "finished"), dict),
    **dict.fromkeys(("boards", "protocols", "rungs"), list),
}


def checked(about: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content of a provenance file, in the terms of now.

    Raises:
        ResultsError: a key is missing or of the wrong type; the message names it.
    """
    version = about.get("schema_version", 1)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ResultsError(f"{path}: schema_version {version} is newer than {SCHEMA_VERSION}; update hopper-gemm")
    finished = about.get("finished")
    if version == 1 and isinstance(finished, dict):  # there it noted the budget that was used up
        about = {name: value for name, value in about.items() if name != "finished"}
    _check(about, NEEDED, path, "")
    _check(about["gpu"], ("name",), path, "gpu.")
    if "finished" in about:
        _check(about["finished"], ("rows", "digest"), path, "finished.")
    wrong = [place for place, value in about.get("noise", {}).items() if not isinstance(value, int | float)]
    if wrong:
        raise ResultsError(f"{path}: noise.{wrong[0]} must be a number; restore the file")
    return version1.in_terms_of_now(about) if version == 1 else about


def _check(found: Mapping[str, Any], needed: Sequence[str], path: Path, prefix: str) -> None:
    for name in needed:
        if name not in found:
            raise ResultsError(f"{path}: the key {prefix}{name} is missing; restore the file")
    for name, value in found.items():
        kinds = TYPES.get(f"{prefix}{name}", object)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not object):
            wanted = " or ".join(_WORDS[one] for one in (kinds if isinstance(kinds, tuple) else (kinds,)))
            got = type(value).__name__
            raise ResultsError(f"{path}: {prefix}{name} must be {wanted} but is a {got}; restore the file")


_WORDS = {str: "text", int: "an integer", float: "a number", dict: "an object", list: "a list", type(None): "null"}


def fresh(study: str, question: str, source: str, **more: Any) -> dict[str, Any]:
    """The content of the file at the start of a study.

    Args:
        study: its name.
        question: in a sentence.
        source: measured or replayed.
        more: further keys, such as spec and spec_digest.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "question": question,
        "source": source,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "versions": versions(),
        "noise": {},
        "boards": [],
        **more,
    }


def versions(*more: str) -> dict[str, str | None]:
    """Versions of Python, of the packages that figures depend on, and of more; None where one is missing."""
    return {"python": platform.python_version(), **{name: _version(name) for name in (*PACKAGES, *more)}}


def commit() -> str | None:
    """The revision of this checkout, marked where it has changes; from a file ``COMMIT`` where one says so."""
    root = Path(__file__).parents[2]
    note = root / "COMMIT"
    if note.is_file():
        return note.read_text().strip()
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        described = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)
        return described.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
