"""The page on what was verified, made from its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hopper_gemm.verify.drawing import STRATA, Pair
from hopper_gemm.verify.rows import CPU, FAILED, Row

ON_GPU = "the kernel"


def page(rows: Sequence[Row]) -> str:
    """Markdown on the last sources of each kind that have rows."""
    sources = {_sources(row): row.kernel for row in rows}
    last = {row.key: row for row in rows if row.kernel == sources[_sources(row)]}.values()
    pairs = [row for row in last if row.board != CPU and row.kind == "pair"]
    loads = [row for row in last if row.board != CPU and row.kind != "pair"]
    models = [row for row in last if row.board == CPU]
    parts = [
        "# What was verified",
        "",
        "Made by `make verify` and `make verify-cpu` from their rows; whoever changes the kernel runs them again.",
        "",
        f"Kernel: `{sources.get(ON_GPU, 'none')}` (digest of its sources), "
        f"{len({row.code for row in last if row.code})} machine codes.",
        *_boards([*pairs, *loads]),
        "",
        "## Pairs of config and problem",
        "",
        _counts(pairs),
        "",
        "Of each: every element against fp32; nothing written outside the output, which lies between guards, nor into "
        "the operands, which lie among NaNs; the same bits in three runs over outputs that held other things, and in "
        "two replays of a graph; infinities and NaNs where torch has them, also beside zeros and subnormal numbers.",
        "",
        *_coverage(pairs),
        "",
        "## Kinds of kernel under load",
        "",
        _counts(loads),
        "",
        *_circumstances(loads),
        "",
        "## Without a GPU",
        "",
        _counts(models),
        "",
        *_models(models),
        "",
        *_failures(last),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _sources(row: Row) -> str:
    """What a row's digest of sources is of."""
    return row.kind if row.board == CPU else ON_GPU


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


def _models(rows: Sequence[Row]) -> list[str]:
    """A table: how many sizes or cases of each thing, and the moments of those that were explored."""
    names = dict.fromkeys((row.kind, row.subject["name"]) for row in rows)
    table = ["| kind | what | cases | moments |", "| --- | --- | --- | --- |"] if names else []
    for name in names:
        own = [row for row in rows if (row.kind, row.subject["name"]) == name]
        table.append(f"| {' | '.join(name)} | {len(own)} | {sum(int(row.bits or 0) for row in own):,} |")
    return table


def _failures(rows: Iterable[Row]) -> list[str]:
    failed = [row for row in rows if row.status in FAILED]
    lines = [f"- {row.kind}: {row.status}: {row.reason}. Smallest: `{row.minimal or row.subject}`" for row in failed]
    return ["## Failures", "", *lines] if lines else []
