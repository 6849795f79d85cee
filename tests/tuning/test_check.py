"""The guard of the best configs, on recorded samples."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from hopper_gemm.compiler.loader import compile_into
from hopper_gemm.compiler.store import KernelId, KernelStore
from hopper_gemm.tables.trials import read_samples
from hopper_gemm.tables.tuned import read_tuned
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.check import MARGIN, check
from tests.conftest import ROOT

RECORDED = ROOT / "results/h200"
ENTRIES = read_tuned(RECORDED / "best_configs.json")
QUIET = [entry for entry in ENTRIES if entry.noise <= MARGIN]
"""Of the others, whose launches are too long for a burst, nothing can be said."""
SHARP = [entry for entry in QUIET if entry.speedup_high - entry.speedup_low + entry.noise < 0.03]
"""Whose interval and noise floor together are narrower than the 3 % that are to be told."""


RUNS = ("h200", "drawn", "suite", "suite-second", "suite-first", "earlier")
"""Folders of studies: those of the suite's runs from the latest on."""


def recorded_samples(entry, stage: str, config: str) -> tuple[tuple[int, float, float], ...]:
    """Of the study that the entry names; of several runs of the suite the latest that measured its config."""
    found = [path.parent for path in RECORDED.rglob(f"{entry.study}/final.csv")]
    runs = [read_samples(folder) for folder in sorted(found, key=lambda folder: RUNS.index(folder.parent.name))]
    config_of_entry = str(entry.config)
    frame = next(run for run in runs if ((run["stage"] == "final") & (run["config"] == config_of_entry)).any())
    key = {"m": entry.problem.m, "n": entry.problem.n, "regime": entry.regime, "stage": stage, "config": config}
    chosen = frame[(frame[list(key)] == pd.Series(key)).all(axis=1)]
    return tuple(chosen[["process", "ours_us", "cublas_us"]].itertuples(index=False, name=None))


class Recording:
    """Answers with the recorded final, slowed by a factor, and the recorded control."""

    source = "measured"

    def __init__(self, entry, slower: float = 1.0, status: str = "ok") -> None:
        self._entry, self._slower, self._status = entry, slower, status

    def prepare(self, points):
        assert [point.config for point in points] == [self._entry.config]

    def control(self, point):
        return Answer("ok", "", {}, recorded_samples(self._entry, "control", "cublas"))

    def measure(self, point):
        if self._status != "ok":
            return Answer(self._status, "3 of 9 elements", {})
        samples = recorded_samples(self._entry, "final", str(point.config))
        assert len(samples) >= (18 if self._entry.regime == "burst" else 4)
        return Answer("ok", "", {}, tuple((process, ours * self._slower, theirs) for process, ours, theirs in samples))


def verdict(entry, **changes):
    (checked,) = check([entry], Recording(entry, **changes))
    return checked.verdict


@pytest.mark.parametrize("entry", QUIET, ids=lambda entry: f"{entry.problem} {entry.regime}")
def test_the_recorded_samples_hold_their_own_record(entry):
    assert verdict(entry).status == "held"


@pytest.mark.parametrize("entry", SHARP, ids=lambda entry: f"{entry.problem} {entry.regime}")
def test_a_kernel_three_percent_slower_has_fallen(entry):
    found = verdict(entry, slower=1.03)
    assert found.status == "fallen"
    assert found.message.startswith("fallen 0.0")


def test_a_kernel_that_computes_something_else_has_fallen():
    found = verdict(ENTRIES[0], status="wrong_result")
    assert (found.status, found.message) == ("fallen", "wrong result: 3 of 9 elements")


def test_a_noisy_record_is_skipped_and_not_passed():
    assert {str(entry.problem) for entry in ENTRIES if entry not in QUIET} == {"16384x16384x16384"}
    assert verdict(replace(ENTRIES[0], noise=0.05)).status == "skipped"


@pytest.mark.compile
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.problem} {entry.regime}")
def test_the_best_configs_still_compile_to_what_was_recorded(entry, kernel_store):
    """The very machine code that was measured; the counts come first because they say more when they differ."""
    report = compile_into(KernelStore(kernel_store), KernelId.of(entry.config, entry.problem))
    assert not report.spills
    assert (report.registers, report.wgmma, report.instructions) == (entry.registers, entry.wgmma, entry.instructions)
    assert report.code == entry.code, "the kernel has changed: measure it again"
