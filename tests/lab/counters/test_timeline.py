"""A trace writes one table of the moments of every rung, beside where they come from."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hopper_gemm.lab.counters.timeline import trace
from hopper_gemm.lab.counters.trace import Moment
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.row import ResultsError
from tests.conftest import ROOT

GPU = GpuId(0, "NVIDIA H200", "GPU-0")
TIMELINE = ROOT / "sweeps/archive/timeline.toml"


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
        trace(ROOT / "sweeps/archive/joint.toml", tmp_path, GPU, factory=tracing)
