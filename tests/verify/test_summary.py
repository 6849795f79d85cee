"""The page on what was verified follows from the rows, and says what is still to be run."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

from tests.conftest import ROOT
from tests.verify.__main__ import DAMAGES, FAULTS
from tests.verify.__main__ import PROOFS as PROOFS_FILE
from tests.verify.drawing import pairs
from tests.verify.rows import FIXED, VerifyRow
from tests.verify.summary import page, standing

PAIRS = [
    VerifyRow("pair", pair.as_dict(), "ok", kernel="new", code="c", board="GPU-1", gpu="H") for pair in pairs(1, 8)
]
LOADS = [
    VerifyRow("busy SMs: static", PAIRS[0].subject, "ok", kernel="new", board="GPU-2", gpu="H"),
    VerifyRow("busy SMs: dynamic", PAIRS[0].subject, "timeout", "no answer", kernel="new", minimal=PAIRS[1].subject),
    VerifyRow("graphs: static", PAIRS[0].subject, "skipped", "no graphs", kernel="new"),
]
MODEL = VerifyRow("protocol", {"name": "pace", "model": "m"}, "ok", kernel="p", bits="1234", board="cpu", seconds=2.0)
WANTED = [replace(row, status="") for row in (*PAIRS, *LOADS, MODEL)]
PROOFS = [
    {"proof": "damage", "outcome": "refused", "cases": "3"},
    {"proof": "damage", "outcome": "same rows", "cases": "1"},
    {"proof": "damage", "outcome": "refused", "cases": "4"},
    *(
        {"proof": "kills", "executor": "dask", "worker": "9", "child": "8", "coordinator": "7", "scheduler": "6"}
        | {"points": "1500", "rows": "1500", "crashed": "2", "orphans": "0"}
        for _ in range(2)
    ),
]


def test_it_names_kernel_boards_and_counts():
    text = page([*PAIRS, *LOADS, MODEL], WANTED)
    assert "Kernel: `new`" in text
    assert "- H, board `GPU-1`: 8 checks" in text
    assert "| pairs of config and problem | 8 | 8 | 8 | 0 | 0 | 0 | 0 |" in text
    assert "| checks under load | 3 | 3 | 1 | 1 | 0 | 1 | 0 |" in text
    assert "| kind | busy SMs | graphs |" in text
    assert "| static | ok | skipped |" in text
    assert "| dynamic | timeout | - |" in text
    assert "Skipped 1: no graphs." in text
    assert "| pace | 1 | 1,234 | 2.0 |" in text
    assert (
        f"- busy SMs: dynamic: timeout: no answer; failed 1 of 1 runs; smallest that fails: `{PAIRS[1].subject}`"
        in text
    )
    assert "Everything wanted was run." in text


def test_it_says_plainly_what_is_still_to_be_run():
    text = page([*PAIRS[:3], LOADS[0]], WANTED)
    assert "| pairs of config and problem | 8 | 3 | 3 | 0 | 0 | 0 | 5 |" in text
    assert "**Not verified yet: 5 pairs of config and problem, 2 checks under load, 1 protocol models.**" in text
    assert "| static | ok | to be run |" in text
    assert "| dynamic | to be run | - |" in text


def test_only_the_kernel_as_it_is_now_counts_and_a_thing_verified_twice_once():
    old = [replace(row, kernel="old", status="wrong_result") for row in PAIRS]
    text = page([*PAIRS, *PAIRS, *old], WANTED)
    assert "| pairs of config and problem | 8 | 8 | 8 | 0 | 0 | 0 | 0 |" in text
    assert "## Failures" not in text


def test_a_failure_counts_once_and_shows_the_smallest_as_soon_as_it_is_known():
    failed = replace(PAIRS[0], status="wrong_result", reason="off", board="GPU-1")
    assert "not made small yet" in page([failed], WANTED)
    text = page([failed, replace(failed, minimal=PAIRS[1].subject)], WANTED)
    assert "| pairs of config and problem | 8 | 1 | 0 | 0 | 0 | 1 | 7 |" in text
    assert "not made small yet" not in text
    unbuilt = page([replace(failed, status="compile_error")], WANTED)
    assert "not made small yet" not in unbuilt
    assert "| pairs of config and problem | 8 | 1 | 0 | 0 | 1 | 0 | 7 |" in unbuilt


def test_what_failed_and_is_refused_since_is_told_and_does_not_count():
    refused = {**PAIRS[0].subject, "config": {"tile_m": 320, "tile_n": 256}}
    rows = [*PAIRS, replace(PAIRS[0], status="timeout", subject=refused)]
    text = page(rows, WANTED)
    assert "| pairs of config and problem | 8 | 8 | 8 | 0 | 0 | 0 | 0 |" in text
    assert "## Found, and refused by a rule since\n\n- pair: timeout" in text
    assert "## Failures" not in text
    assert standing(rows, WANTED) == []


def test_a_failure_stands_whatever_ran_since_and_although_it_is_not_among_what_is_wanted():
    failed = replace(PAIRS[0], status="timeout", board="GPU-2")
    rows = [PAIRS[0], failed, PAIRS[0]]
    text = page(rows, WANTED)
    assert "| pairs of config and problem | 8 | 1 | 0 | 0 | 0 | 1 | 7 |" in text
    assert "failed 1 of 3 runs" in text
    assert [one.row for one in standing(rows, WANTED[1:])] == [failed]
    assert "failed 1 of 3 runs" in page(rows, WANTED[1:])


def test_what_failed_before_is_told_with_its_fix_unless_it_was_right_since():
    old = [replace(row, kernel="old", status="timeout", reason="no answer") for row in PAIRS[:2]]
    note = replace(PAIRS[2], status=FIXED, reason="commit 123")
    rows = [*old, PAIRS[0], replace(PAIRS[0], board="GPU-2"), replace(PAIRS[2], status="crash"), note]
    found = page(rows, WANTED).partition("## Failed before")[2]
    assert found.count("timeout with `old`: no answer; now to be run") == 1
    assert "fixed: commit 123; now to be run" in found
    assert "Failed with earlier sources, and right since: 1." in found


def test_what_ran_on_several_boards_is_compared_bit_by_bit():
    elsewhere = [replace(row, board="GPU-3", bits=bits) for row, bits in zip(PAIRS, ("a", "b"), strict=False)]
    text = page([*(replace(row, bits="a") for row in PAIRS), *elsewhere, *LOADS], WANTED)
    assert "2 of them ran on a second board too; with other bits there: 1." in text


def test_pairs_are_counted_by_type_layout_and_technique():
    text = page(PAIRS, WANTED)
    kinds = [tuple(row.subject["problem"][name] for name in ("dtype", "layouts")) for row in PAIRS]
    across = sorted({axes for _, axes in kinds})
    assert f"| type | {' | '.join(across)} |" in text
    for dtype in {dtype for dtype, _ in kinds}:
        assert f"| {dtype} | {' | '.join(str(kinds.count((dtype, axes))) for axes in across)} |" in text
    pingpong = sum(row.subject["config"].get("schedule") == "pingpong" for row in PAIRS)
    assert pingpong > 0
    assert f"| `schedule` | cooperative | pingpong: {pingpong}, " in text


def test_damaged_and_killed_runs_are_summed_up_where_there_are_some():
    text = page([], WANTED, PROOFS)
    assert "8 damaged results folders" in text
    assert "7 refused, 1 same rows" in text
    assert "2026-11-26 04:00 UTC with sources `abc`. Every line" in page(
        [], WANTED, [{**PROOFS[0], "date": "2026-11-26 04:00 UTC", "sources": "abc"}]
    )
    assert "| dask | 2 | 60 | 3,000 | 3,000 | 4 | 0 |" in text
    assert "damaged results folders" not in page([], WANTED)


def test_damaged_files_and_planted_faults_are_counted_and_survivors_named():
    damages = [
        {
            "kind": kind,
            "damage": "cut",
            "outcome": outcome,
            "cases": "3",
            "date": "2026-11-26 04:00 UTC",
            "sources": "abc",
        }
        for kind, outcome in (("studies", "refused"), ("tables", "refused"), ("tables", "read as before"))
    ]
    fault = {"seed": None, "file": "a.py", "old": "x <\n 1", "new": "x <= 1", "status": "caught", "why": ""}
    faults = [fault, {**fault, "seed": 7}, {**fault, "seed": 7, "status": "survived", "why": "no x is 1"}]
    text = page([], WANTED, (), damages, faults)
    assert "9 copies of recorded files" in text
    assert "2026-11-26 04:00 UTC with sources `abc`; every line" in text
    assert "| studies | 3 | 3 | 0 |\n| tables | 6 | 3 | 3 |" in text
    assert "| of the list | 1 | 1 | 0 |\n| drawn by seed 7 | 2 | 1 | 1 |" in text
    assert "- `a.py`, `x < 1` as `x <= 1`: no x is 1" in text
    assert "Damaged files" not in page([], WANTED)


def test_the_recorded_page_counts_the_recorded_proofs_damages_and_faults():
    folder = ROOT / "results/verification"
    tables = [list(csv.DictReader((folder / name).read_text().splitlines())) for name in (PROOFS_FILE, DAMAGES)]
    faults = [*map(json.loads, (folder / FAULTS).read_text().splitlines())]
    _, title, said = page([], [], *tables, faults).partition("## Runs that are damaged")
    assert title + said in (ROOT / "docs/verification.md").read_text()


def test_without_rows_it_says_that_nothing_was_verified():
    text = page([], WANTED)
    assert "| pairs of config and problem | 8 | 0 | 0 | 0 | 0 | 0 | 8 |" in text
    assert "0 of 8" in text
    assert "Boards:" not in text
