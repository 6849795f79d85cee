"""Batch invariance on its page: what was compared, and what it costs."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

from hopper_gemm.lab.verify.rows import read_rows
from hopper_gemm.lab.verify.tally import counted, torch_lines
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.pivot import markdown

NOT_YET = "Not run on a GPU yet."

MM, TRITON = "torch", "triton"
"""Arms of ``benchmarks.invariant`` beside ours."""


def bits(folder: Path | None = None) -> str:
    """Kernels and outputs that were compared, by what was launched; and the digests of kernel and verifier."""
    rows = read_rows(folder or results_root() / "verification/batch-invariance")
    if not rows:
        return NOT_YET
    now = [row for row in rows if row.sources == rows[-1].sources]
    lines = []
    for kind in [*dict.fromkeys(row.kind for row in now), ""]:
        own = [row for row in now if kind in ("", row.kind)]
        status = Counter(row.status for row in own)
        other = status["wrong_result"]
        counts = len(own), counted(own), other, len(own) - status["ok"] - status["skipped"] - other
        boards = len({row.board for row in own if row.board})
        lines.append([kind or "all", *(f"{count:,}" for count in counts), str(boards)])
    kernel, verifier = now[0].sources
    gpus = ", ".join(dict.fromkeys(row.gpu for row in now if row.gpu))
    head = ["launched", "jobs", "outputs with the reference's bits", "jobs with other bits", "failed else", "boards"]
    reasons = Counter(row.reason.split(":")[0] if row.status == "crash" else row.status for row in now)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if reason not in ("ok", "skipped"))
    about = f" Failed: {told}." if told else ""
    return f"{markdown(head, lines)}\n\nOn {gpus}; kernel `{kernel}`, verifier `{verifier}`.{about}"


def torch_changes(folder: Path | None = None) -> str:
    """Outputs and rows of torch.mm that change with the number of rows, by cuBLAS workspace."""
    path = (folder or results_root() / "verification/batch-invariance") / "torch-mm.csv"
    if not path.is_file():
        return NOT_YET
    rows = list(csv.DictReader(path.read_text().splitlines()))
    ran = ", ".join(dict.fromkeys(f"{row['gpu']}, torch {row['torch']}" for row in rows))
    return "\n".join([*torch_lines(rows), "", f"On {ran}."])


def prices(path: Path | None = None) -> str:
    """Our batch-invariant kernels over torch.mm, over torch.mm with a fixed workspace, and over ours without the
    condition, problem by problem."""
    rows = _measured(path)
    arms = [("", MM, "ours"), (":16:8", MM, "ours"), ("", "plain", "ours")]
    head = ["problem", "over `torch.mm`", "over it with `:16:8`", "over ours without the condition"]
    return _table([row for row in rows if row["list"] == "suite"], arms, head)


def deep(path: Path | None = None) -> str:
    """The same of few columns and a long k."""
    rows, arms = _measured(path), [("", MM, "ours"), ("", "plain", "ours")]
    head = ["problem", "over `torch.mm`", "over ours without the condition"]
    return _table([row for row in rows if row["list"] == "deep"], arms, head)


def by_rows(path: Path | None = None) -> str:
    """Our batch-invariant kernels and torch.mm over the Triton kernel, on layers at 256 to 8192 rows."""
    rows = [row for row in _measured(path) if row["list"] == "rows"]
    arms = [("", TRITON, "ours"), ("", MM, "ours"), ("", "plain", "ours")]
    return _table(rows, arms, ["problem", "over Triton", "over `torch.mm`", "over ours without the condition"])


def _measured(path: Path | None) -> list[dict[str, Any]]:
    found = path or results_root() / "measurements/invariance.jsonl"
    return [json.loads(line) for line in found.read_text().splitlines()] if found.is_file() else []


def _table(rows: Sequence[dict[str, Any]], arms: Sequence[tuple[str, str, str]], head: list[str]) -> str:
    """A line for each problem, then the geometric means and the least; a column for each (workspace, other, own)."""
    if not rows:
        return NOT_YET
    ratios: list[dict[str, float]] = [defaultdict(float) for _ in arms]
    problems = list(dict.fromkeys(_label(row) for row in rows))
    for found, (workspace, other, own) in zip(ratios, arms, strict=True):
        for problem in problems:
            of = [row["us"] for row in rows if _label(row) == problem and row["workspace"] == workspace]
            each = [median(map(truediv, us[other], us[own])) for us in of if other in us and own in us]
            if each:
                found[problem] = geometric_mean(each)
    lines = [[one, *(f"{found[one]:.3f}x" if one in found else "" for found in ratios)] for one in problems]
    for name, of_all in (("geometric mean", geometric_mean), ("least", min)):
        lines.append([name, *(f"{of_all(list(found.values())):.3f}x" if found else "" for found in ratios)])
    boards = ", ".join(f"{gpu} `{board[:12]}`" for gpu, board in dict.fromkeys((r["gpu"], r["board"]) for r in rows))
    kernels = ", ".join(dict.fromkeys(f"`{row['kernel'][:6]}`" for row in rows))
    return f"{markdown(head, lines)}\n\nIsolated, on {boards}; kernel {kernels}."


def _label(row: dict[str, Any]) -> str:
    return "x".join(map(str, row["problem"][:3]))
