"""The page on what was verified follows from the rows."""

from __future__ import annotations

from dataclasses import replace

from hopper_gemm.verify.drawing import pairs
from hopper_gemm.verify.report import page
from hopper_gemm.verify.rows import Row

PAIRS = [Row("pair", pair.as_dict(), "ok", kernel="new", code="c", board="GPU-1", gpu="H") for pair in pairs(1, 8)]
LOADS = [
    Row("busy SMs: static", PAIRS[0].subject, "ok", kernel="new", board="GPU-2", gpu="H"),
    Row("busy SMs: dynamic", PAIRS[0].subject, "timeout", "no answer", kernel="new", minimal=PAIRS[1].subject),
    Row("graphs: static", PAIRS[0].subject, "skipped", "no graphs", kernel="new"),
]
MODEL = Row("protocol", {"name": "pace", "model": "m"}, "ok", kernel="p", bits="1234", board="cpu")


def test_it_names_kernel_boards_and_counts():
    text = page([*PAIRS, *LOADS, MODEL])
    assert "Kernel: `new`" in text
    assert "- H, board GPU-1: 8 rows" in text
    assert "8 verified: 8 ok" in text
    assert "3 verified: 1 ok, 1 skipped, 1 timeout" in text
    assert "| kind | busy SMs | graphs |" in text
    assert "| static | ok | skipped |" in text
    assert "| dynamic | timeout | - |" in text
    assert "| protocol | pace | 1 | 1,234 |" in text
    assert "- busy SMs: dynamic: timeout: no answer. Smallest: " in text


def test_only_the_last_kernel_counts_and_a_thing_verified_twice_once():
    old = [replace(row, kernel="old", status="wrong_result") for row in PAIRS]
    text = page([*old, *PAIRS, *PAIRS])
    assert "8 verified: 8 ok" in text
    assert "wrong_result" not in text
    assert "## Failures" not in text


def test_without_rows_it_says_that_nothing_was_verified():
    assert "Kernel: `none`" in page([])
    assert page([]).count("0 verified") == 3
