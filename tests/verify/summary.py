"""The page on what was verified, made from its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hopper_gemm.tune.parameters import DEFAULTS, all_values
from tests.verify.drawing import STRATA, Pair
from tests.verify.harness import legal_pair
from tests.verify.kinds import CIRCUMSTANCES
from tests.verify.rows import CPU, FIXED, NOT_BUILT, WENT_WRONG, Judgement, VerifyRow, failed_before, judged

PAIRS, LOADS, MODELS = "pairs of config and problem", "checks under load", "protocol models"
KILLED = ("worker", "child", "coordinator", "scheduler")
"""Columns of the kills, by kind of process, among the proofs of runs."""


def page(
    rows: Sequence[VerifyRow],
    wanted: Sequence[VerifyRow],
    proofs: Sequence[Mapping[str, str]] = (),
    damages: Sequence[Mapping[str, str]] = (),
    faults: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Markdown on what was verified of the sources as they are now, and on what is still to be run.

    Args:
        rows: of any sources; those of others than the wanted ones only count as older.
        wanted: a row without a status for each thing to verify.
        proofs: lines of the table of damaged and killed runs, by column.
        damages: lines of the table of ``benchmarks.damages``, by column.
        faults: rows of ``benchmarks.mutants``.
    """
    sources = {row.sources for row in wanted}
    keys = {row.key for row in wanted}
    known = {key: one for key, one in judged(rows).items() if one.rows and one.rows[0].sources in sources}
    done = {key: one.row for key, one in known.items() if key in keys}
    refused = [one for one in known.values() if one.failed and not _runs(one.row)]
    parts = {name: [row for row in done.values() if _part(row) == name] for name in (PAIRS, LOADS, MODELS)}
    left = Counter(_part(row) for row in wanted if row.key not in done)
    wants = Counter(map(_part, wanted))
    kernel, verifier = next((row.sources for row in wanted if row.board != CPU), ("none", "none"))
    lines = [
        "# What was verified",
        "",
        "`make verify` compares random kernels with an fp32 product and runs every kind of kernel under load, on a "
        "Hopper GPU; `make verify-cpu` checks the protocols between warps and CTAs, and sweeps that are damaged and "
        "killed, without one. Both go on where their rows stop, and write this page.",
        "",
        f"Kernel: `{kernel}`, verifier: `{verifier}` (digests of their sources).",
        "",
        "| what | wanted | done | ok | skipped | not built | wrong, hung or crashed | still to be run |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_counts(name, wants[name], parts[name], left[name]) for name in parts),
        "",
        *_left(left),
        *_boards([*parts[PAIRS], *parts[LOADS]]),
        *_elsewhere(row for row in rows if row.key in done and row.board not in ("", CPU)),
        *_failures("Failures", standing(rows, wanted)),
        *_failures("Found, and refused by a rule since", refused),
        *_suspects(rows, sources, known.values()),
        *_pairs(parts[PAIRS], wants[PAIRS]),
        *_loads(parts[LOADS], [row for row in wanted if _part(row) == LOADS]),
        *_models(parts[MODELS]),
        *_proofs(proofs),
        *_damages(damages),
        *_faults(faults),
    ]
    return "\n".join(lines).rstrip() + "\n"


def standing(rows: Iterable[VerifyRow], wanted: Iterable[VerifyRow]) -> list[Judgement]:
    """Things that failed with the sources as they are now and that no rule refuses since, wanted or not.

    Args:
        rows: of any sources.
        wanted: a row without a status for each thing to verify.
    """
    sources = {row.sources for row in wanted}
    found = judged(row for row in rows if row.sources in sources).values()
    return [one for one in found if one.failed and _runs(one.row)]


def _runs(row: VerifyRow) -> bool:
    """Return True if the subject of a row can still be run."""
    return row.board == CPU or legal_pair(row) is not None


def _part(row: VerifyRow) -> str:
    if row.board == CPU:
        return MODELS
    return PAIRS if row.kind == "pair" else LOADS


def _counts(name: str, wanted: int, rows: Sequence[VerifyRow], left: int) -> str:
    found = Counter(row.status for row in rows)
    unbuilt, wrong = (sum(found[status] for status in group) for group in (NOT_BUILT, WENT_WRONG))
    counts = (wanted, len(rows), found["ok"], found["skipped"], unbuilt, wrong, left)
    return f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |"


def _left(left: Mapping[str, int]) -> list[str]:
    missing = [f"{count:,} {name}" for name, count in left.items()]
    return [f"**Not verified yet: {', '.join(missing)}.**" if missing else "Everything wanted was run.", ""]


def _boards(rows: Iterable[VerifyRow]) -> list[str]:
    boards = Counter((row.gpu, row.board) for row in rows if row.board)
    lines = [f"- {gpu}, board `{board}`: {count:,} checks" for (gpu, board), count in sorted(boards.items())]
    return ["Boards:", "", *lines, ""] if lines else []


def _elsewhere(rows: Iterable[VerifyRow]) -> list[str]:
    """One line that compares the bits of checks that ran on several boards."""
    bits: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.status == "ok":
            bits.setdefault(row.key, {})[row.board] = row.bits
    several = [set(found.values()) for found in bits.values() if len(found) > 1]
    other = sum(len(found) > 1 for found in several)
    told = f"{len(several):,} of them ran on a second board too; with other bits there: {other:,}."
    return [told, ""] if several else []


def _pairs(rows: Sequence[VerifyRow], wanted: int) -> list[str]:
    """Number of pairs of each technique, type and layout."""
    lines = [
        "## Pairs of config and problem",
        "",
        f"{len(rows):,} of {wanted:,}. A pair is a config drawn from the whole legal space, on a problem drawn around "
        "its tile. Checked of each:",
        "",
        "- every element of the output against an fp32 product;",
        "- nothing written outside the output, which lies between guards, nor into the operands, which lie among NaNs;",
        "- the same bits in three launches over outputs that held other values, and in two replays of a graph;",
        "- infinities and NaNs where torch has them, also beside zeros and subnormal numbers.",
        "",
    ]
    if not rows:
        return lines
    pairs = [Pair.of(row.subject) for row in rows]
    problems = Counter((one.problem.dtype, one.problem.layouts) for one in pairs)
    types, layouts = (sorted({key[at] for key in problems}) for at in (0, 1))
    lines += ["Pairs by type (down) and layouts (across):", "", *_table("type", layouts)]
    lines += [_line(dtype, [problems[dtype, axes] for axes in layouts]) for dtype in types]
    lines += ["", "Pairs by technique, as value: pairs; a parameter's default is left out:", ""]
    lines += ["| parameter | default | pairs |", "| --- | --- | --- |"]
    for name in dict.fromkeys(name for name, _ in STRATA):
        counts = Counter(all_values(one.config)[name] for one in pairs)
        values = ", ".join(f"{_word(value)}: {counts[value]}" for other, value in STRATA if other == name)
        lines.append(f"| `{name}` | {_word(DEFAULTS[name])} | {values} |")
    return [*lines, ""]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _loads(rows: Sequence[VerifyRow], wanted: Sequence[VerifyRow]) -> list[str]:
    """A table: kinds of kernel down, circumstances across."""
    lines = ["## Kinds of kernel under load", "", f"{len(rows):,} of {len(wanted):,}. Each kind is launched thus:", ""]
    lines += [f"- {name}: {text}" for name, text in CIRCUMSTANCES.items()]
    cells = {_cell(row): "to be run" for row in wanted} | {_cell(row): row.status for row in rows}
    across = [name for name in CIRCUMSTANCES if any(way == name for way, _ in cells)]
    lines += ["", "Each must end, and give the bits of a launch with nothing beside it. A dash: not for this kind.", ""]
    lines += _table("kind", across, "---")
    for kind in dict.fromkeys(kind for _, kind in cells):
        lines.append(_line(kind, [cells.get((way, kind), "-") for way in across]))
    skipped = Counter(row.reason for row in rows if row.status == "skipped")
    return [*lines, "", *(f"Skipped {count}: {why}." for why, count in skipped.items()), *[""] * bool(skipped)]


def _cell(row: VerifyRow) -> tuple[str, str]:
    circumstance, _, kind = row.kind.partition(": ")
    return circumstance, kind


def _models(rows: Sequence[VerifyRow]) -> list[str]:
    """A table: how many sizes of each protocol, and the states explored."""
    lines = [
        "## Protocols, without a GPU",
        "",
        "Each protocol between warps and CTAs is a model, run through every order of events that is possible: none "
        "ends in a deadlock, overwrites what is still read, or loses or repeats a part.",
        "",
        *_table("protocol", ["sizes", "states", "seconds"]),
    ]
    for name in dict.fromkeys(row.subject["name"] for row in rows):
        own = [row for row in rows if row.subject["name"] == name]
        states, seconds = sum(int(row.bits or 0) for row in own), sum(row.seconds for row in own)
        lines.append(_line(name, [len(own), f"{states:,}", f"{seconds:.1f}"]))
    return [*lines, ""]


def _proofs(proofs: Sequence[Mapping[str, str]]) -> list[str]:
    """The outcomes for damaged results folders and for sweeps whose processes were killed."""
    if not proofs:
        return []
    damages, kills = ([one for one in proofs if one["proof"] == proof] for proof in ("damage", "kills"))
    outcomes = Counter[str]()
    for one in damages:
        outcomes[one["outcome"]] += int(one["cases"])
    lines = [
        "## Runs that are damaged and killed, without a GPU",
        "",
        f"{outcomes.total():,} damaged results folders, each then given to the same command again: "
        f"{', '.join(f'{count:,} {outcome}' for outcome, count in sorted(outcomes.items()))} (same rows: as of an "
        f"undisturbed run; refused: the message names the place), {_when(proofs)}. Every line: `verify-cpu.csv`, "
        "beside the rows.",
        "",
        "Sweeps on faked GPUs whose processes were killed at random until the same command had finished them:",
        "",
        *_table("executor", ["sweeps", "kills", "points", "rows", "points lost to two kills", "orphans"]),
    ]
    for executor in dict.fromkeys(one["executor"] for one in kills):
        own = [one for one in kills if one["executor"] == executor]
        killed = sum(int(one[kind]) for one in own for kind in KILLED)
        sums = [sum(int(one[name]) for one in own) for name in ("points", "rows", "crashed", "orphans")]
        lines.append(_line(executor, [len(own), killed, *(f"{each:,}" for each in sums)]))
    return [*lines, ""]


def _damages(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A table: kinds of file down, what their readers did with damaged copies across."""
    if not rows:
        return []
    outcomes = [*dict.fromkeys(row["outcome"] for row in rows)]
    cells: Counter[tuple[str, str]] = Counter()
    for row in rows:
        cells[row["kind"], row["outcome"]] += int(row["cases"])
    lines = [
        "## Damaged files",
        "",
        f"{cells.total():,} copies of recorded files with a damage each, drawn by a seed: cut, emptied, a bit or a "
        "digit flipped, lines gone, doubled or exchanged, a NaN, a renamed word. A library that is refused is "
        f"made again. By `python -m benchmarks.damages`, {_when(rows)}; every line: `damages.csv`, "
        "beside the rows.",
        "",
        *_table("copies of", ["cases", *outcomes]),
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        counts = [cells[kind, outcome] for outcome in outcomes]
        lines.append(_line(kind, [sum(counts), *counts]))
    return [*lines, ""]


def _faults(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of the planted faults that tests caught, and a line for each that survived."""
    if not rows:
        return []
    lines = [
        "## Planted faults",
        "",
        "Faults planted in the sources one at a time, and judged by the tests that need no GPU, the recorded digests "
        "of the sources left out: those of a list, 86 of 135 of an earlier version (the code of the others is gone "
        "or has left the package), and some drawn by a seed over all packages (a comparison with its "
        "neighbour, a constant off by one, a dropped operand, a negated condition). Faults that survived at first got "
        "a test where that can hold, and were judged again. By `python -m benchmarks.mutants`; "
        "every fault: `mutants.jsonl`, beside the rows.",
        "",
        *_table("faults", ["planted", "caught", "survived"]),
    ]
    for seed in dict.fromkeys(row["seed"] for row in rows):
        statuses = Counter(row["status"] for row in rows if row["seed"] == seed)
        name = "of the list" if seed is None else f"drawn by seed {seed}"
        lines.append(_line(name, [statuses.total(), statuses["caught"], statuses["survived"]]))
    survivors = [row for row in rows if row["status"] != "caught"]
    lines += ["", "Survivors:", ""] if survivors else []
    for row in survivors:
        old, new = (" ".join(row[name].split()) for name in ("old", "new"))
        lines.append(f"- `{row['file']}`, `{old}` as `{new}`: {row['why']}")
    return [*lines, ""]


def _when(proofs: Sequence[Mapping[str, str]]) -> str:
    """Return when the proofs ran and of which sources, in words."""
    runs = dict.fromkeys((one.get("date") or "", one.get("sources") or "") for one in proofs)
    return ", ".join(f"{date} with sources `{digest}`" if date else "with sources of no note" for date, digest in runs)


def _failures(title: str, found: Iterable[Judgement]) -> list[str]:
    lines = []
    for one in found:
        row = one.row
        least = f"smallest that fails: `{row.minimal}`" if row.minimal else f"`{row.subject}`"
        later = ", not made small yet" if row.status in WENT_WRONG and not row.minimal and row.board != CPU else ""
        lines.append(f"- {row.kind}: {row.status}: {row.reason}; {one.tally}; {least}{later}")
    return [f"## {title}", "", *lines, ""] if lines else []


def _suspects(rows: Sequence[VerifyRow], sources: Collection[tuple[str, str]], known: Iterable[Judgement]) -> list[str]:
    """Lines on earlier failures that were not found right since, each with the result for today's sources."""
    now = {one.row.thing: one for one in known}
    fixes = {row.key: row.reason for row in rows if row.status == FIXED}
    lines, right = [], 0
    for thing, row in failed_before(rows, sources).items():
        if thing in now and not now[thing].failed:
            right += 1
            continue
        told = now[thing].tally if thing in now else "to be run" if _runs(row) else "refused by a rule"
        fix = f"; fixed: {fixes[row.key]}" if row.key in fixes else ""
        lines.append(f"- {row.kind}: {row.status} with `{row.kernel}`: {row.reason}{fix}; now {told}; `{row.subject}`")
    found = ["## Failed before", "", *lines, ""] if lines else []
    return [*found, *([f"Failed with earlier sources, and right since: {right:,}.", ""] if right else [])]


def _table(first: str, names: Sequence[str], rule: str = "---:") -> list[str]:
    return [_line(first, names), _line("---", [rule] * len(names))]


def _line(first: str, cells: Iterable[object]) -> str:
    return f"| {' | '.join([first, *map(str, cells)])} |"
