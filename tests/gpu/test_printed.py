"""The code that the chapters print multiplies as the kernel does; one that hangs is ended, and the next one runs."""

from __future__ import annotations

import pytest

from docs.generate.chapters import times
from docs.generate.chapters.build import build
from docs.generate.chapters.listing import functions, listing, read
from docs.generate.pages.chapters import CHAPTERS
from hopper_gemm.tune.measure.protocol import Burst

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_the_listing_of_every_chapter_multiplies_and_is_timed(gpu, tmp_path):
    numbers = range(1, len(CHAPTERS) + 1)
    rows = list(times.rows(build(read(numbers, None), tmp_path), gpu, Burst(pairs=1)))
    assert {row["chapter"]: (row["status"], row["reason"]) for row in rows} == dict.fromkeys(numbers, ("ok", ""))
    assert {row["board"] for row in rows} == {gpu.uuid}


def test_a_producer_that_begins_in_the_consumers_phase_hangs_and_the_next_listing_runs(gpu, tmp_path, monkeypatch):
    """The exercise of chapter 3."""
    monkeypatch.setattr(times, "LISTING_SECONDS", 10.0)
    hung = listing(3).replace("self._state(phase=1)", "self._state(phase=0)")
    built = build({3: functions(hung), 8: functions(listing(8))}, tmp_path)
    assert [row["status"] for row in times.rows(built, gpu, Burst(pairs=1))] == ["timeout", "ok"]
