"""A recorded simulation becomes a page and a picture."""

from __future__ import annotations

import json

from hopper_gemm.lab.simulation.page import publish
from hopper_gemm.model.tuned import results_root


def test_a_simulation_recorded_earlier_is_published_in_the_words_of_now(tmp_path):
    """Records of version 1 name problems and games; the page says places, with their context, and runs."""
    recorded = json.loads((results_root() / "h200/split-k/simulation.json").read_text())
    assert "games" in recorded[0]
    publish(tmp_path / "s", "split-k", recorded)
    page = (tmp_path / "s/simulation.md").read_text()
    assert "| 512x512x65536 bf16 burst chained | 51 | random | 30 | over 15 | over 15 | 20% | 48.86% |" in page
    assert (
        "in 100% of 30 runs; without the model prior, in 10%; random search, in 20%; the model alone needs 1 trial."
        in page
    )
    assert "game" not in page
    assert (tmp_path / "s/simulation.svg").read_bytes()[:5] == b"<?xml"
    assert json.loads((tmp_path / "s/simulation.json").read_text()) == recorded
