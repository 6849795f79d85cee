"""A recorded simulation becomes a page and a picture."""

from __future__ import annotations

import json

from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.tables.pages.simulation import publish


def test_a_recorded_simulation_is_published_with_a_page_and_a_picture(tmp_path):
    recorded = json.loads((results_root() / "archive/h200/2026-11-21-split-k/simulation.json").read_text())
    publish(tmp_path / "s", "split-k", recorded)
    page = (tmp_path / "s/simulation.md").read_text()
    assert "| 512x512x65536 bf16 burst chained | 51 | random | 30 | over 15 | over 15 | 20% | 48.86% |" in page
    assert (
        "in 100% of 30 runs; without the model prior, in 10%; random search, in 20%; the model alone needs 1 trial."
        in page
    )
    assert (tmp_path / "s/simulation.svg").read_bytes()[:5] == b"<?xml"
    assert json.loads((tmp_path / "s/simulation.json").read_text()) == recorded
