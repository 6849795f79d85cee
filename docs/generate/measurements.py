"""Tables that no sweep made: read only while they are what was recorded of them.

    python -m docs.generate.measurements FILE...      record files of results/measurements as they are now

``results/measurements/provenance.json`` holds of each file the SHA-256 of its lines in their order, their number, GPUs,
boards, digests of the kernel's sources and the date; what a file does not name is ``unknown``.
"""

from __future__ import annotations

import re
import sys
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
"""What a file names of its origin, by patterns."""


def named(text: str) -> dict[str, list[str]]:
    """Return what the text of a file names of its origin, ``unknown`` for what it does not."""
    return {name: sorted({*re.findall(pattern, text)}) or ["unknown"] for name, pattern in NAMED.items()}


def measurement(name: str) -> Path:
    """Return the path of a file of ``results/measurements``, checked.

    Raises:
        ResultsError: it is missing, or is not what was recorded of it; the message says the fix.
    """
    path = results_root() / "measurements" / name
    said, now = read_object(path.with_name(PROVENANCE)).get(name), _counted(read_text(path))
    if said is None or any(said[key] != value for key, value in now.items()):
        raise ResultsError(
            f"{path} must be what {PROVENANCE} beside it says but has {now['lines']} other lines; restore it, or if it "
            f"was measured anew: python -m docs.generate.measurements {path}"
        )
    return path


def record(path: Path, date: str | None = None) -> None:
    """Note what a file holds now.

    Args:
        path: of a file of ``results/measurements``.
        date: when it was measured; today by default.
    """
    noted, text = path.with_name(PROVENANCE), read_text(path)
    entries = read_object(noted) if noted.is_file() else {}
    entries[path.name] = {**_counted(text), **named(text), "date": date or datetime.now(UTC).strftime("%Y-%m-%d")}
    write_sealed(noted, dict(sorted(entries.items())))


def _counted(text: str) -> dict[str, Any]:
    lines = text.split("\n")
    return {"lines": len(lines) - 1, "digest": digest_of(lines)}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        record(Path(argument))
