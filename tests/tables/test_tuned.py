"""The tuned table: what replaces what, and which entry serves a problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.trials import ResultsError
from hopper_gemm.tables.tuned import Pick, TunedEntry, best_known, pick, read_tuned, write_tuned

ENTRY = TunedEntry(
    GemmProblem(4096, 4096, 4096),
    "burst",
    resolve(GemmConfig()),
    1.0,
    0.99,
    1.01,
    0.001,
    168,
    8,
    500,
    "k",
    "seed",
    "NVIDIA H200",
)

OTHER = resolve(GemmConfig(tile_m=128))


def test_what_is_written_is_read_back(tmp_path):
    other = replace(ENTRY, regime="steady", speedup=0.9)
    write_tuned(tmp_path / "t.json", [ENTRY, other])
    assert set(read_tuned(tmp_path / "t.json")) == {ENTRY, other}


@pytest.mark.parametrize(
    ("newer", "wins"),
    [
        (replace(ENTRY, speedup=0.95), True),  # the same study, measured again
        (replace(ENTRY, speedup=0.95, study="other"), True),  # the same config: no better-of-two
        (replace(ENTRY, speedup=0.95, study="other", config=OTHER), False),
        (replace(ENTRY, speedup=1.05, study="other", config=OTHER), True),
    ],
)
def test_a_study_replaces_its_own_figure_and_another_config_only_by_a_faster_one(tmp_path, newer, wins):
    write_tuned(tmp_path / "t.json", [ENTRY])
    write_tuned(tmp_path / "t.json", [newer])
    assert read_tuned(tmp_path / "t.json") == [newer if wins else ENTRY]


def test_a_tuned_problem_is_served_its_config_and_any_other_the_model_s_choice():
    steady = replace(ENTRY, regime="steady", config=OTHER)
    assert pick([steady, ENTRY], ENTRY.problem) == Pick(ENTRY.config, "tuned", ENTRY)
    assert pick([steady], ENTRY.problem) == Pick(OTHER, "other regime", steady)
    assert best_known([steady, ENTRY], ENTRY.problem, "steady") == Pick(OTHER, "tuned", steady)
    for problem in (GemmProblem(16, 6144, 4096), GemmProblem(512, 512, 65536, layouts="mn"), GemmProblem(8, 8, 8)):
        chosen = pick([ENTRY], problem)
        assert (chosen.how, chosen.entry, chosen.tuned_on) == ("model", None, "")
        assert is_legal(chosen.config, problem)


def test_an_entry_older_than_a_parameter_takes_its_default(tmp_path):
    path = tmp_path / "t.json"
    write_tuned(path, [ENTRY])
    text = path.read_text()
    path.write_text(text.replace('"serpentine": true,', "").replace('"swizzle": 8,', ""))
    assert path.read_text() != text
    assert read_tuned(path) == [ENTRY]


def test_a_damaged_entry_is_named(tmp_path):
    path = tmp_path / "t.json"
    write_tuned(path, [ENTRY])
    path.write_text(path.read_text().replace('"tile_m": 256', '"tile_m": "big"'))
    with pytest.raises(ResultsError) as caught:
        read_tuned(path)
    assert "entry 0: tile_m must be an integer from 1 but got 'big'" in str(caught.value)
