"""The page on batch invariance, made from its rows."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields

from tests.verify.batches import TorchCount, comparisons
from tests.verify.drawing import Pair
from tests.verify.rows import FAILED, Judgement, VerifyRow, judged

COLUMNS = (*(one.name for one in fields(TorchCount)), "board", "gpu", "torch")
"""Columns of the table of torch.mm."""


def counted(rows: Iterable[VerifyRow]) -> int:
    """Outputs that rows compared and found to have the bits of the reference."""
    return sum(comparisons(Pair.of(row.subject)) for row in rows if row.status == "ok")


def failures(rows: Iterable[VerifyRow], wanted: Iterable[VerifyRow]) -> list[Judgement]:
    """Things that failed with the sources of the wanted rows."""
    sources = {row.sources for row in wanted}
    return [one for one in judged(row for row in rows if row.sources in sources).values() if one.failed]


def page(rows: Sequence[VerifyRow], wanted: Sequence[VerifyRow], torch_rows: Sequence[Mapping[str, str]]) -> str:
    """Markdown on what was compared with the sources as they are now, and on torch.mm beside it.

    Args:
        rows: of any sources.
        wanted: a row without a status for each thing to compare.
        torch_rows: lines of the table of torch.mm.
    """
    sources = {row.sources for row in wanted}
    now = [row for row in rows if row.sources in sources]
    kernel, verifier = next(iter(sources), ("none", "none"))
    lines = [
        "# Batch invariance, bit by bit",
        "",
        "`python -m tests.verify --batch-invariant` compares outputs with a reference row by row and writes this page. "
        f"Kernel: `{kernel}`, verifier: `{verifier}` (digests of their sources). "
        "[docs/batch-invariance](../../../docs/batch-invariance.md) says what is promised.",
        "",
        "| launched | wanted | done | ok | failed | outputs with the bits of the reference |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *_counts(now, wanted),
        "",
        *_by_type(now),
        *_boards(now),
        *_failures(failures(rows, wanted)),
        *_torch(torch_rows),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _counts(rows: Sequence[VerifyRow], wanted: Sequence[VerifyRow]) -> Iterable[str]:
    wants, kinds = Counter(row.kind for row in wanted), dict.fromkeys(row.kind for row in (*wanted, *rows))
    total = Counter[str]()
    for kind in kinds:
        own = [row for row in rows if row.kind == kind]
        found = Counter(
            wanted=wants[kind],
            done=len(own),
            ok=sum(row.status == "ok" for row in own),
            failed=sum(row.status in FAILED for row in own),
            outputs=counted(own),
        )
        total.update(found)
        yield _line(kind, found)
    yield _line("all", total)


def _line(name: str, found: Mapping[str, int]) -> str:
    return f"| {name} | {' | '.join(f'{found[each]:,}' for each in ('wanted', 'done', 'ok', 'failed', 'outputs'))} |"


def _by_type(rows: Iterable[VerifyRow]) -> list[str]:
    pairs = [Pair.of(row.subject) for row in rows if row.status == "ok"]
    done = Counter[tuple[str, str]]()
    for pair in pairs:
        done[pair.problem.dtype, pair.problem.layouts] += comparisons(pair)
    types, layouts = (sorted({key[at] for key in done}) for at in (0, 1))
    lines = [f"| {dtype} | {' | '.join(f'{done[dtype, axes]:,}' for axes in layouts)} |" for dtype in types]
    head = [f"| type | {' | '.join(layouts)} |", f"| --- |{' ---: |' * len(layouts)}"]
    return ["Equal outputs by type (down) and layouts (across):", "", *head, *lines, ""] if done else []


def _boards(rows: Iterable[VerifyRow]) -> list[str]:
    """A line for each board, and whether the references of one problem have the same bits on all boards."""
    ran = [row for row in rows if row.status == "ok"]
    boards = Counter((row.gpu, row.board) for row in ran)
    bits: dict[tuple[object, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in ran:
        problem = Pair.of(row.subject).problem
        bits[problem.n, problem.k, problem.dtype][row.board].add(row.bits)
    several = [set().union(*found.values()) for found in bits.values() if len(found) > 1]
    told = f"References on several boards: {len(several)}; of other bits on another board: "
    lines = [f"- {gpu}, board `{board}`: {count:,} jobs" for (gpu, board), count in sorted(boards.items())]
    return ["Boards:", "", *lines, "", f"{told}{sum(len(one) > 1 for one in several)}.", ""] if lines else []


def _failures(found: Iterable[Judgement]) -> list[str]:
    lines = [f"- {one.row.kind}: {one.row.status}: {one.row.reason}; `{one.row.subject}`" for one in found]
    return ["## Failures", "", *lines, ""] if lines else []


def _torch(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A table of torch.mm's rows that change with m, by cuBLAS workspace."""
    lines = [
        "## torch.mm beside it",
        "",
        "Rows of `torch.mm` whose bits change with the number of rows, on the same batches; of a NaN only the place "
        "counts. The second workspace is cuBLAS's setting for the same bits in every run.",
        "",
        *torch_lines(rows),
    ]
    return [*lines, ""] if rows else []


def torch_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The lines of that table: one for each workspace."""
    lines = [
        "| workspace | outputs | of them changed | rows | of them changed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for workspace in dict.fromkeys(row["workspace"] for row in rows):
        own = [row for row in rows if row["workspace"] == workspace]
        changed = [int(row["rows_changed"]) for row in own]
        counts = len(own), sum(map(bool, changed)), sum(int(row["m"]) for row in own), sum(changed)
        lines.append(f"| {workspace or 'its own'} | {' | '.join(f'{count:,}' for count in counts)} |")
    return lines


def torch_table(counts: Iterable[TorchCount], **about: str) -> str:
    """CSV of torch.mm's counts; ``about`` names board, GPU and version."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**asdict(one), **about} for one in counts)
    return file.getvalue()
