"""A check holds a kernel that is as it was, and finds one that is slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopper_gemm.compiler.loader import compile_into
from hopper_gemm.compiler.store import KernelId, KernelStore
from hopper_gemm.measure.statistics import Ratio, speedup
from hopper_gemm.model.tuned import read_tuned
from hopper_gemm.run.check import MARGIN, regression
from hopper_gemm.study.reader import read_study
from tests.conftest import ROOT

RECORDED = ROOT / "results/h200"
ENTRIES = read_tuned(RECORDED / "best_configs.json")
QUIET = [entry for entry in ENTRIES if entry.noise <= MARGIN]
"""Of the others, whose launches are too long for a burst, nothing can be said."""
SHARP = [entry for entry in QUIET if entry.speedup_high - entry.speedup_low + entry.noise < 0.03]
"""Whose interval and noise floor together are narrower than the 3 % that are to be told."""

RUNS = ("h200", "drawn", "suite", "suite-second", "suite-first", "earlier")
"""Folders of studies: those of the suite's runs from the latest on."""


def name_of(entry):
    return f"{entry.problem} {entry.regime}"


def recorded_pairs(entry):
    """Of the study that the entry names; of several runs of the suite the latest that measured its config."""
    found = {path.parent for path in RECORDED.rglob(f"{entry.study}/provenance.json")}
    for folder in sorted(found, key=lambda folder: RUNS.index(folder.parent.name)):
        for row in read_study(folder).stage("final"):
            point = row.point
            if (point.config, point.problem, point.regime) == (entry.config, entry.problem, entry.regime) and row.ok:
                return row.samples
    raise AssertionError(f"nobody recorded {entry}")


def decided(entry, slower=1.0):
    pairs = [sample._replace(ours_us=sample.ours_us * slower) for sample in recorded_pairs(entry)]
    recorded = Ratio(entry.speedup, entry.speedup_low, entry.speedup_high, 0)
    return regression(recorded, speedup(pairs), entry.noise)


@pytest.mark.parametrize("entry", QUIET, ids=name_of)
def test_the_recorded_pairs_hold_their_own_record(entry):
    assert decided(entry)[0] == "held"


@pytest.mark.parametrize("entry", SHARP, ids=name_of)
def test_a_kernel_three_percent_slower_has_fallen(entry):
    status, message = decided(entry, slower=1.03)
    assert status == "fallen"
    assert message.startswith("fallen 0.0")


def test_a_noisy_record_is_skipped_and_not_passed():
    assert {str(entry.problem) for entry in ENTRIES if entry not in QUIET} == {"16384x16384x16384"}
    assert decided(replace(ENTRIES[0], noise=0.05))[0] == "skipped"


@pytest.mark.compile
@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_the_best_configs_still_compile_to_what_was_recorded(entry, kernel_store):
    """The very machine code that was measured; the counts come first because they say more when they differ."""
    report = compile_into(KernelStore(kernel_store), KernelId.of(entry.config, entry.problem))
    assert not report.spills
    assert (report.registers, report.wgmma, report.instructions) == (entry.registers, entry.wgmma, entry.instructions)
    assert report.code == entry.code, "the kernel has changed: measure it again"
