"""Pairs are spent where they matter: few on what cannot win, none on what is the same machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.trials import read_json, read_trials
from hopper_gemm.tuning.pooling import pooled
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SpecError, read_spec
from hopper_gemm.tuning.sweep import Sweep
from tests.tuning.fakes import SPEC, FakeBackend


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results" / "small"


@pytest.fixture(autouse=True)
def unpublished(monkeypatch):
    monkeypatch.setattr("hopper_gemm.tuning.sweep.publish", lambda folder: None)


def spec_of(tmp_path, text):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return read_spec(path)


class Paired(FakeBackend):
    """As many samples as it was asked for, and a memory of how many that were."""

    def __init__(self, spread: float = 0.001) -> None:
        super().__init__()
        self.pairs: list[tuple[int, int | None]] = []
        self._spread = spread

    def measure(self, point, pairs=None):
        self.pairs.append((point.config.tile_m, pairs))
        answer = super().measure(point)
        if answer.status != "ok":
            return answer
        speed = answer.figures["speedup"]
        count = pairs or 15
        times = [100 / speed * (1 + self._spread * (i % 3 - 1)) for i in range(count)]
        low, high = speed * (1 - self._spread), speed * (1 + self._spread)
        figures = {**answer.figures, "pairs": count, "speedup_low": low, "speedup_high": high}
        return replace(answer, figures=figures, samples=tuple((0, time, 100.0) for time in times))


def test_a_candidate_far_behind_keeps_its_few_pairs_and_the_others_get_all(tmp_path, out):
    text = SPEC.replace("[64, 128, 320]", "[320, 64, 128]").replace("[4, 16]", "4") + "[race]\nburst_pairs = 3\n"
    backend = Paired()
    Sweep(spec_of(tmp_path, text), out).run(backend)
    assert backend.pairs == [(320, 3), (320, 12), (64, 3), (128, 3)]
    rows = read_trials(out / "trials.csv").set_index("tile_m")
    assert rows["pairs"].to_dict() == {320: 15, 64: 3, 128: 3}
    assert (rows["status"] == "ok").all()


def test_a_glance_is_enough_for_what_is_far_behind(tmp_path, out):
    text = SPEC.replace("[64, 128, 320]", "[320, 64, 128]").replace("[4, 16]", "4") + "[race]\nfar = 0.03\n"
    backend = Paired()
    Sweep(spec_of(tmp_path, text), out).run(backend)
    assert backend.pairs == [(320, 1), (320, 2), (320, 12), (64, 1), (128, 1)]
    near = Paired()
    Sweep(spec_of(tmp_path, text.replace("0.03", "0.9")), out.parent / "near").run(near)
    assert near.pairs == [(320, 1), (320, 2), (320, 12), (64, 1), (64, 2), (128, 1), (128, 2)]


def test_without_a_race_each_gets_all_its_pairs_at_once(tmp_path, out):
    backend = Paired()
    Sweep(spec_of(tmp_path, SPEC), out).run(backend)
    assert {pairs for _, pairs in backend.pairs} == {None}


def test_two_looks_are_pooled_as_one_measurement():
    point = Point(GemmProblem(1024, 1024, 1024), "burst", GemmConfig())
    first, rest = (replace(Paired().measure(point, pairs), reason="") for pairs in (3, 12))
    slow = replace(first, samples=tuple((0, 2 * ours, theirs) for _, ours, theirs in first.samples))
    both = pooled(slow, rest)
    assert (both.figures["pairs"], len(both.samples)) == (15, 15)
    assert both.figures["speedup"] == pytest.approx(rest.figures["speedup"], rel=1e-3)
    assert both.figures["tflops"] * both.figures["time_us"] == pytest.approx(
        rest.figures["tflops"] * rest.figures["time_us"]
    )


def test_finals_that_are_even_are_told_so(tmp_path, out):
    class Even(FakeBackend):
        def final(self, point):
            answer = super().final(point)
            return replace(
                answer, figures={**answer.figures, "speedup": 1.0, "speedup_low": 0.99, "speedup_high": 1.01}
            )

    Sweep(spec_of(tmp_path, SPEC), out).run(Even())
    (place,) = read_json(out / "provenance.json")["even"].values()
    assert len(place) == 2
    Sweep(spec_of(tmp_path, SPEC), out.parent / "unique").run(FakeBackend())
    assert read_json(out.parent / "unique" / "provenance.json")["even"] == {}


class Twins(FakeBackend):
    """Configs of one tile are one machine code, however they split or peek."""

    def code(self, point):
        return f"{point.config.tile_m}"

    def measure(self, point, pairs=None):
        answer = super().measure(point)
        figures = {**answer.figures, "code": self.code(point)}
        return replace(answer, figures=figures)


TWINS = (
    SPEC.replace("[64, 128, 320]", "[64, 128]").replace("[4, 16]", "4").replace("stagger = 1", "peek = [true, false]")
)


def test_the_same_machine_code_is_measured_once_and_says_whose_figures_it_has(tmp_path, out):
    backend = Twins()
    Sweep(spec_of(tmp_path, TWINS), out).run(backend)
    assert sum(backend.asked.values()) == 2
    rows = read_trials(out / "trials.csv")
    assert rows["status"].tolist() == ["ok"] * 4
    assert rows.groupby("tile_m")["speedup"].nunique().tolist() == [1, 1]
    copied = rows[rows["reason"] != ""]
    assert len(copied) == 2
    assert copied["reason"].str.match(r"same machine code as \d+x128x64 .* peek; not measured again").all()
    assert len(backend.measured_again) == 2


def test_a_twin_is_known_again_after_an_interruption(tmp_path, out):
    spec = spec_of(tmp_path, TWINS)
    Sweep(spec, out).run(Twins(), trials=1)
    backend = Twins()
    Sweep(spec, out).run(backend)
    assert sum(backend.asked.values()) == 1


def test_the_same_code_launched_otherwise_is_another_measurement(tmp_path, out):
    backend = Twins()
    Sweep(spec_of(tmp_path, TWINS.replace("peek = [true, false]", 'raster = ["m", "n"]')), out).run(backend)
    assert sum(backend.asked.values()) == 4
    descriptors = Twins()
    text = TWINS.replace("peek = [true, false]", "l2_promotion = [64, 256]")
    Sweep(spec_of(tmp_path, text), out.parent / "other").run(descriptors)
    assert sum(descriptors.asked.values()) == 4


def test_a_race_is_for_speed(tmp_path):
    text = SPEC.replace('["burst"]', '["steady"]').replace("[[prob", 'objective = "pj_per_flop"\n[[prob') + "[race]\n"
    with pytest.raises(SpecError, match="race: drops what is slow; leave it out where energy is looked for"):
        spec_of(tmp_path, text)
