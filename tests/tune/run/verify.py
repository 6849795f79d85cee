"""The long proofs that need no GPU: 100 damaged folders, and 50 kills under each executor. ``make verify-cpu``.

Writes its rows to results/verification/verify-cpu.csv; a run under fire that fails ends with what went wrong.
"""

from __future__ import annotations

import csv
import random
import shutil
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.store import bare_code
from hopper_gemm.model.sealed import sha256
from hopper_gemm.tune.study.provenance import MOMENT
from tests.conftest import ROOT
from tests.tune.run.damage import Ground
from tests.tune.run.killing import as_row, under_fire

OUT = ROOT / "results/verification/verify-cpu.csv"
CASES, KILLS, WORKERS = 100, 50, 8


def damage(folder: Path) -> list[dict[str, Any]]:
    """One row for each kind of damage."""
    ground = Ground(folder)
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for seed in range(CASES):
        case = ground.case(seed)
        counts[case.study, case.file, case.damage, case.outcome] += 1
        print(f"{seed} {case.study} {case.file} {case.damage}: {case.outcome} {case.told[:100]}", flush=True)
    names = ("study", "file", "damage", "outcome")
    return [{"proof": "damage", **dict(zip(names, key, strict=True)), "cases": n} for key, n in sorted(counts.items())]


def kills(folder: Path, executor: str) -> list[dict[str, Any]]:
    """Sweeps one after the other until so many processes were killed; one row for each sweep."""
    found, left, rng = [], KILLS, random.Random(executor)
    while left > 0:
        place = folder / f"{executor}-{len(found)}"
        report = under_fire(place, executor, WORKERS, min(left, 17), rng.randrange(10**6))
        row = as_row(report)
        print(row, *report.orphans, *report.lines, sep="\n", flush=True)
        left -= sum(report.kills.values())
        found.append({"proof": "kills", **row})
        if report.rows != report.points or report.orphans or report.lines:
            raise SystemExit(f"{executor}: see above; the folder is {place}")
    return found


def main() -> None:
    """All of it."""
    folder = Path(tempfile.mkdtemp(prefix="hopper-gemm-verify-"))
    rows = damage(folder / "damage")
    for executor in ("local", "dask"):
        rows += kills(folder, executor)
    sources = sorted((ROOT / "hopper_gemm/tune").rglob("*.py"))
    digest = sha256("".join(bare_code(path.read_text()) for path in sources))[:16]
    rows = [{**row, "sources": digest, "date": datetime.now(UTC).strftime(MOMENT)} for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    shutil.rmtree(folder)
    print(f"written to {OUT}", file=sys.stderr)


if __name__ == "__main__":
    main()
