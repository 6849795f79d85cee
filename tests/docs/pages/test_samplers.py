"""Live searches stand beside the simulated ones once they are recorded, and nowhere before."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from benchmarks.live import SAMPLERS, searches
from benchmarks.samplers import STUDIES
from docs.generate.pages.samplers import NOT_LIVE, live, live_answer, trials_until_close
from hopper_gemm.cli.running import open_sweep
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.run.coordinator import Coordinator
from hopper_gemm.tune.run.source import Source
from hopper_gemm.tune.run.task import Job
from hopper_gemm.tune.study.reader import read_study


def test_without_rows_the_pages_say_that_nothing_was_recorded(tmp_path):
    """No table, no heading and no figure stand for searches that were not run."""
    assert live(tmp_path) == live_answer(tmp_path) == NOT_LIVE


@pytest.mark.results
def test_every_live_search_stands_beside_its_replay(tmp_path):
    """Searches that replay the rows of joint must read as the simulated runs do: the model's first config is within 1 %
    of the best, so each sampler that has the model gets there at the first trial."""
    source = Source(recorded=read_study(results_root() / STUDIES["joint"]))
    with closing(Coordinator(source.executor(Job("live")))) as coordinator:
        for name, spec in searches(1, 12):
            coordinator.run(open_sweep(spec, source, tmp_path / name))
    lines = [line for line in live(tmp_path).splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(cells) == len(SAMPLERS)
    for _, model, trials, _, _, median, within in cells:
        if model == "with":
            assert (trials, median, within) == ("1", "1", "100% of 30")
    assert " ".join(live_answer(tmp_path).split()).count("in 1 of 1 searches (after 1 trials)") >= 3


def test_a_search_that_stays_behind_has_no_trial_within_one_percent():
    """The first trial within 1 % counts, and a search without such a trial has none."""
    assert trials_until_close(np.array([0.9, 0.995, 1.0])) == 2
    assert trials_until_close(np.array([0.9, 0.98])) is None
