"""The page on what was verified, made from its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hopper_gemm.verify.drawing import STRATA, Pair
from hopper_gemm.verify.rows import FAILED, Row


def page(rows: Sequence[Row]) -> str:
    """Markdown on the last kernel that has rows."""
    kernels = [row.kernel for row in rows if row.kind != "protocol"]
    current = [row for row in rows if row.kind != "protocol" and row.kernel == kernels[-1]] if kernels else []
    last = {row.key: row for row in current}.values()
    pairs = [row for row in last if row.kind == "pair"]
    loads = [row for row in last if row.kind != "pair"]
    sources = [row.kernel for row in rows if row.kind == "protocol"]
    protocols = [row for row in rows if row.kind == "protocol" and row.kernel == sources[-1]]
    parts = [
        "# What was verified",
        "",
        "Made by `make verify` and `make verify-cpu` from their rows; whoever changes the kernel runs them again.",
        "",
        f"Kernel: `{kernels[-1] if kernels else 'none'}` (digest of its sources), "
        f"{len({row.code for row in last if row.code})} machine codes.",
        *_boards(last),
        "",
        "## Pairs of config and problem",
        "",
        _counts(pairs),
        "",
        "Of each: every element against fp32; nothing written outside the output, which lies between guards, nor into "
        "the operands, which lie among NaNs; the same bits in three runs over outputs that held other things, and in "
        "two replays of a graph; infinities and NaNs where torch has them, zeros and subnormal numbers.",
        "",
        *_coverage(pairs),
        "",
        "## Kinds of kernel under load",
        "",
        _counts(loads),
        "",
        *_circumstances(loads),
        "",
        "## Protocols, every order of events",
        "",
        _counts(protocols),
        "",
        *_protocols(protocols),
        "",
        *_failures([*last, *protocols]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _boards(rows: Iterable[Row]) -> list[str]:
    boards = Counter((row.gpu, row.board) for row in rows if row.board)
    return ["", *(f"- {gpu}, board {board}: {count} rows" for (gpu, board), count in sorted(boards.items()))]


def _counts(rows: Sequence[Row]) -> str:
    found = Counter(row.status for row in rows)
    words = ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
    return f"{len(rows)} verified{': ' + words if words else ''}; {sum(row.seconds for row in rows):.0f} s."


def _coverage(rows: Sequence[Row]) -> list[str]:
    """How many pairs had each technique, type and layout."""
    pairs = [Pair.of(row.subject) for row in rows]
    techniques = [
        (f"{name} = {value}", sum(getattr(one.config, name) == value for one in pairs)) for name, value in STRATA
    ]
    problems = Counter(f"{one.problem.dtype}, {one.problem.layouts}" for one in pairs)
    return [
        "Pairs by type and layouts: " + "; ".join(f"{name} {count}" for name, count in sorted(problems.items())) + ".",
        "",
        "Pairs by technique: " + "; ".join(f"{name}: {count}" for name, count in techniques) + ".",
    ]


def _circumstances(rows: Sequence[Row]) -> list[str]:
    """A table: kinds of kernel down, circumstances across."""
    cells = {tuple(row.kind.split(": ", 1)): row.status for row in rows}
    if not cells:
        return []
    across = list(dict.fromkeys(circumstance for circumstance, _ in cells))
    down = list(dict.fromkeys(kind for _, kind in cells))
    table = [f"| kind | {' | '.join(across)} |", "| --- |" + " --- |" * len(across)]
    return table + [f"| {one} | {' | '.join(cells.get((way, one), '-') for way in across)} |" for one in down]


def _protocols(rows: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(row.subject["protocol"] for row in rows)
    table = ["| protocol | sizes | moments |", "| --- | --- | --- |"] if names else []
    for name in names:
        own = [row for row in rows if row.subject["protocol"] == name]
        table.append(f"| {name} | {len(own)} | {sum(int(row.bits or 0) for row in own):,} |")
    return table


def _failures(rows: Iterable[Row]) -> list[str]:
    failed = [row for row in rows if row.status in FAILED]
    lines = [f"- {row.kind}: {row.status}: {row.reason}. Smallest: `{row.minimal or row.subject}`" for row in failed]
    return ["## Failures", "", *lines] if lines else []
