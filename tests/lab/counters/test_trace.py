"""The words that a traced kernel writes become moments in order, in clocks since the CTA began; those of every rung
stand in one table, beside where they come from."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from hopper_gemm.lab.counters.trace import (
    ROLE_MOMENTS,
    ROLE_WORDS,
    ROLES,
    STAGE_MOMENTS,
    STAGES,
    Moment,
    moments_of,
    trace,
)
from hopper_gemm.lab.ladder import meter
from hopper_gemm.lab.ladder.meter import ROLES_TRACED, TRACE_WORDS, TRACED_STAGES, Stamp
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.row import ResultsError
from tests.conftest import ROOT


def words(**written: int) -> np.ndarray:
    """Words of all roles; keys are like ``r0_fed`` or ``r1_3_had``."""
    found = np.zeros((ROLES_TRACED, TRACE_WORDS), dtype=np.uint32)
    for key, clock in written.items():
        role, *stage, moment = key.split("_", 2) if key.split("_")[1].isdigit() else key.split("_", 1)
        column = (
            ROLE_WORDS + int(stage[0]) * len(STAGE_MOMENTS) + STAGE_MOMENTS.index(moment)
            if stage
            else ROLE_MOMENTS.index(moment)
        )
        found[int(role[1:]), column] = clock % 2**32
    return found.view(np.int32)


def test_roles_and_words_are_those_that_the_kernel_writes():
    assert len(ROLES) == ROLES_TRACED
    assert (Stamp._fields, meter.STAGE_MOMENTS) == (ROLE_MOMENTS, STAGE_MOMENTS)
    assert (STAGES, ROLE_WORDS + len(STAGE_MOMENTS) * STAGES) == (TRACED_STAGES, TRACE_WORDS)


@pytest.mark.parametrize("start", [1, 5_000, 2**31 - 3, 2**32 - 30])
def test_clocks_count_from_the_first_entry_also_where_the_clock_wraps(start):
    told = words(r0_entry=start + 7, r1_entry=start, r1_fed=start + 900, r0_2_issued=start + 40, r1_2_had=start + 500)
    assert moments_of(told) == [
        Moment("producer", -1, "entry", 7),
        Moment("producer", 2, "issued", 40),
        Moment("consumer 0", -1, "entry", 0),
        Moment("consumer 0", -1, "fed", 900),
        Moment("consumer 0", 2, "had", 500),
    ]


def test_a_kernel_that_wrote_nothing_has_no_moments():
    assert moments_of(words()) == []


# -- a ladder, by a process that is none ------------------------------------------------------------

GPU = GpuId(0, "NVIDIA H200", "GPU-0")
TIMELINE = ROOT / "sweeps/sources/timeline.toml"


def tracing(store: Path | None, seed: int):
    """Stands in for the handler: a moment that tells the config; four consumers fail."""

    def handle(point: Point) -> list[Moment]:
        if point.config.consumers == 4:
            raise ArithmeticError("traced, the product is wrong")
        return [Moment("producer", 0, "asked", 100 * point.config.stages + point.config.stagger)]

    return handle


def failing(store: Path | None, seed: int):
    def handle(point: Point) -> list[Moment]:
        raise RuntimeError("no clock")

    return handle


def test_every_rung_that_ran_has_its_moments_and_the_others_are_told(tmp_path):
    told = []
    file = trace(TIMELINE, tmp_path / "timeline", GPU, say=told.append, factory=tracing)
    rows = list(csv.DictReader(file.read_text().splitlines()))
    clocks = {row["rung"]: int(row["clocks"]) for row in rows}
    assert clocks["one stage"] == 100
    assert (clocks["stagger 0"], clocks["stagger 2"]) == (400, 402)
    assert "four consumers" not in clocks
    assert [line for line in told if "wrong" in line] == [
        "four consumers, 4096x4096x4096: ArithmeticError: traced, the product is wrong"
    ]
    about = json.loads((file.parent / "provenance.json").read_text())
    assert (about["study"], about["gpu"]["name"]) == ("timeline", "NVIDIA H200")
    assert [rung["name"] for rung in about["rungs"]][:2] == ["one stage", "two stages"]


def test_nothing_is_written_where_nothing_could_be_traced(tmp_path):
    first = tmp_path / "first.toml"
    first.write_text(TIMELINE.read_text().partition('[[rungs]]\nname = "two stages"')[0])
    with pytest.raises(ResultsError, match=r"nothing could be traced: .*no clock"):
        trace(first, tmp_path / "timeline", GPU, factory=failing)
    assert not (tmp_path / "timeline").exists()


def test_a_sweep_without_rungs_is_refused_with_what_to_name(tmp_path):
    with pytest.raises(ResultsError, match=r"has no .*timeline.toml"):
        trace(ROOT / "sweeps/sources/joint.toml", tmp_path, GPU, factory=tracing)
