"""Files of results that are no rows of a study: read only while they are what was recorded of them.

    python -m docs.generate.measurements FILE...      record files as they are now

``results/provenance.json`` holds of each the SHA-256 of its lines in their order, their number, GPUs, boards, digests
of the kernel's sources and the date; what a file does not name is ``unknown``.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.study.files import read_object, read_text, write_sealed
from hopper_gemm.tune.study.provenance import PROVENANCE
from hopper_gemm.tune.study.reader import digest_of
from hopper_gemm.tune.study.row import ResultsError

NAMED = {
    "gpus": r"NVIDIA H[12]00",
    "boards": r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "kernels": r'(?<="kernel": ")[0-9a-f]{16}(?=")',
}
"""Patterns by which a file names its origin."""


def named(text: str) -> dict[str, list[str]]:
    """Return what the text of a file names of its origin, ``unknown`` for what it does not."""
    return {name: sorted({*re.findall(pattern, text)}) or ["unknown"] for name, pattern in NAMED.items()}


def measurement(name: Path | str) -> Path:
    """Return the path of a recorded file that no study made, checked.

    Args:
        name: its path, or that from ``results``.

    Raises:
        ResultsError: it is missing, or is not what was recorded of it; the message says the fix.
    """
    root = results_root()
    path = root / name
    said, now = read_object(root / PROVENANCE).get(str(path.relative_to(root))), counted(text_of(path))
    if said is None or any(said[key] != value for key, value in now.items()):
        raise ResultsError(
            f"{path} must be what results/{PROVENANCE} says of it but has {now['lines']} other lines; restore it, or "
            f"if it was measured anew: python -m docs.generate.measurements {path}"
        )
    return path


def record(path: Path, date: str | None = None) -> None:
    """Note what a file of ``results`` holds now.

    Args:
        path: of the file.
        date: when it was measured; today by default.
    """
    root, text = results_root(), text_of(path)
    entries = read_object(root / PROVENANCE) if (root / PROVENANCE).is_file() else {}
    date = date or datetime.now(UTC).strftime("%Y-%m-%d")
    entries[str(path.resolve().relative_to(root.resolve()))] = {**counted(text), **named(text), "date": date}
    write_sealed(root / PROVENANCE, dict(sorted(entries.items())))


def text_of(path: Path) -> str:
    """Return the text of a file, packed or not.

    Raises:
        ResultsError: it is missing or cannot be read.
    """
    if path.suffix != ".gz":
        return read_text(path)
    try:
        return gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ResultsError(f"{path} cannot be unpacked ({error}); restore it") from None


def counted(text: str) -> dict[str, Any]:
    """Return the number of lines of a text and their digest."""
    lines = text.split("\n")
    return {"lines": len(lines) - 1, "digest": digest_of(lines)}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        record(Path(argument))
