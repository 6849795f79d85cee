"""Counters stand beside trials: no row twice, kinds survive, and a join gives a trial its own."""

from __future__ import annotations

import pandas as pd
import pytest

from hopper_gemm.measure import waits
from hopper_gemm.measure.counters import COUNTERS
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.tables.counters import (
    FIGURES,
    FILE,
    METERED,
    NAMES,
    PROFILED,
    counter_key,
    counters_table,
    read_counters,
    recorded_keys,
    with_counters,
    write_counters,
)
from hopper_gemm.tables.schema import NAMES as TRIAL_NAMES
from hopper_gemm.tables.trials import TRIALS, AppendFile, ResultsError, read_trials

PROBLEM = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "layouts": "kk"}


def ours(code="c0de", figures=None, **fields):
    config = resolve(GemmConfig(tile_m=256, tile_n=128, k_depth=4, **fields)).as_dict()
    counted = figures or {"sm_ghz": 1.617, "dram_read_bytes": 9.8e8, "l2_hit_pct": 75.5}
    return {**PROBLEM, **config, **counted, "arm": "ours", "kernel": "kernel_cutlass_k", "code": code, "gpu": "H200"}


CUBLAS = {**PROBLEM, "arm": "cublas", "sm_ghz": 1.57, "l2_hit_pct": 70.0, "kernel": "nvjet_sm90", "gpu": "H200"}


@pytest.fixture
def study(tmp_path):
    """A folder with two configs and cuBLAS counted."""
    write_counters(tmp_path, [CUBLAS, ours(swizzle=4)])
    write_counters(tmp_path, [ours(swizzle=8, figures={"sm_ghz": 1.6})])
    return tmp_path


def test_the_file_has_the_figures_that_are_counted():
    assert tuple(counter.name for counter in COUNTERS) == PROFILED
    assert waits.FIGURES == METERED
    assert set(FIGURES) < set(NAMES)
    assert "regime" not in NAMES


def test_a_row_is_known_again_by_its_key(study):
    assert recorded_keys(study) == {counter_key(CUBLAS), counter_key(ours(swizzle=4)), counter_key(ours(swizzle=8))}
    assert counter_key(ours(swizzle=8, serpentine=False)) not in recorded_keys(study)
    assert counter_key({**CUBLAS, "m": 8192}) not in recorded_keys(study)


def test_keys_of_the_table_are_those_of_the_file(study):
    assert {counter_key(row) for row in read_counters(study).to_dict("records")} == recorded_keys(study)


def test_kinds_survive_the_file_with_cublas_without_parameters(study):
    frame = read_counters(study)
    assert frame["swizzle"].tolist()[1:] == [4, 8]
    assert frame["swizzle"].isna().tolist() == [True, False, False]
    assert frame["serpentine"].isna().tolist() == [True, False, False]
    assert frame["dram_read_bytes"].tolist()[1] == 9.8e8
    assert frame["dram_read_bytes"].isna().tolist() == [True, False, True]


def test_a_flag_that_is_a_word_comes_back_as_the_word(study):
    write_counters(study, [ours(peek="producer"), ours(peek=False)])
    frame = read_counters(study)
    assert frame["peek"].tolist()[1:] == [True, True, "producer", False]
    assert {counter_key(row) for row in frame.to_dict("records")} == recorded_keys(study)


def test_a_config_that_was_metered_apart_from_the_profiler_is_one_row(study):
    """Whichever came first, the other kind is added to it; and it is known which of them a config has."""
    metered = {"producer_hit_pct": 80.0, "consumer_wait_pct": 12.5}
    assert recorded_keys(study, METERED) == set()
    write_counters(study, [ours(swizzle=4, figures=metered), ours(swizzle=16, figures=metered)])
    frame = read_counters(study)
    assert frame["swizzle"].fillna(0).tolist() == [0, 4, 8, 16]
    assert frame["consumer_wait_pct"].fillna(-1).tolist() == [-1, 12.5, -1, 12.5]
    assert frame["sm_ghz"].fillna(-1).tolist() == [1.57, 1.617, 1.6, -1]
    assert recorded_keys(study, METERED) == {counter_key(ours(swizzle=4)), counter_key(ours(swizzle=16))}
    assert counter_key(ours(swizzle=16)) not in recorded_keys(study, PROFILED)
    assert len(recorded_keys(study)) == 4


def test_figures_of_two_machine_codes_are_not_put_in_one_row(study):
    """The later takes the place of the earlier, whose kernel is no more."""
    write_counters(study, [ours(swizzle=4, code="0ther", figures={"consumer_wait_pct": 12.5})])
    row = read_counters(study).set_index("swizzle").loc[4]
    assert (row["code"], row["consumer_wait_pct"]) == ("0ther", 12.5)
    assert pd.isna(row["sm_ghz"])
    assert counter_key(ours(swizzle=4)) not in recorded_keys(study, PROFILED)


def test_a_torn_last_line_is_not_read(study):
    path = study / FILE
    path.write_text(path.read_text() + "4096,4096,40")
    assert len(recorded_keys(study)) == 3


def test_a_folder_without_counters_has_no_keys_and_no_table(tmp_path):
    assert recorded_keys(tmp_path) == set()
    with pytest.raises(ResultsError, match=r"counters\.csv does not exist; run hopper-gemm counters"):
        read_counters(tmp_path)


def test_a_file_of_another_version_is_not_added_to(study):
    path = study / FILE
    path.write_text(path.read_text().replace("l2_hit_pct", "hits", 1))
    with pytest.raises(ResultsError, match="has the columns of another version; move it away and count again"):
        recorded_keys(study)


def trials(tmp_path, *rows):
    known = {"status": "ok", "study": "s", "source": "measured", "gpu": "NVIDIA H200", "speedup": 1.0}
    AppendFile(tmp_path / TRIALS, TRIAL_NAMES).append([{**known, **row} for row in rows])
    return read_trials(tmp_path / TRIALS)


def test_a_trial_gets_the_counters_of_its_config_in_both_regimes_and_those_of_cublas(study):
    rows = [{**ours(swizzle=swizzle), "regime": regime} for swizzle in (8, 4, 16) for regime in ("burst", "steady")]
    joined = with_counters(trials(study, *rows), read_counters(study))
    assert joined["swizzle"].tolist() == [8, 8, 4, 4, 16, 16]
    assert joined["sm_ghz"].fillna(0).tolist() == [1.6, 1.6, 1.617, 1.617, 0, 0]
    assert joined["l2_hit_pct"].isna().tolist() == [True, True, False, False, True, True]
    assert joined["cublas_sm_ghz"].tolist() == [1.57] * 6
    assert joined["speedup"].tolist() == [1.0] * 6
    assert not {f"cublas_{name}" for name in METERED} & set(joined.columns), "cuBLAS counts no waits"


def test_counters_of_other_machine_code_are_not_a_trials_own(study):
    rows = [{**ours(swizzle=4, code=code), "regime": "burst"} for code in ("0ther", "c0de", "")]
    joined = with_counters(trials(study, *rows), read_counters(study))
    assert joined["sm_ghz"].isna().tolist() == [True, False, False]


def test_a_trial_gets_its_counters_whatever_data_it_was_timed_on(study):
    rows = [{**ours(swizzle=4), "regime": "burst", "data": data} for data in ("normal", "zeros")]
    joined = with_counters(trials(study, *rows), read_counters(study))
    assert joined["sm_ghz"].tolist() == [1.617, 1.617]


def test_the_table_shows_figures_and_the_best_swizzle_in_theory(study):
    text = counters_table(read_counters(study))
    lines = text.splitlines()
    assert lines[0] == "4096 x 4096 x 4096 bf16"
    assert "| cuBLAS nvjet_sm90 | - | - | 1.570 | - |" in text
    assert "| m4 (16.2) | - | 1.617 | - | 0.980 |" in text
    assert len([line for line in lines if line.startswith("| 256x128x64")]) == 2
    assert "producer hit % | consumer hit % | producer wait % | consumer wait % |" in lines[2]


def test_configs_come_back_whole(study):
    label = str(resolve(GemmConfig(tile_m=256, tile_n=128, k_depth=4, swizzle=4)))
    assert f"| {label} |" in counters_table(read_counters(study))


def test_nothing_counted_joins_to_empty_figures(study):
    joined = with_counters(trials(study, {**ours(), "regime": "burst"}), read_counters(study).iloc[:0])
    assert isinstance(joined, pd.DataFrame)
    assert joined[list(FIGURES)].isna().all(axis=None)


def test_a_file_older_than_a_parameter_is_read_with_its_default(study):
    path = study / FILE
    read = read_counters(study)
    lines = [line.split(",") for line in path.read_text().splitlines()]
    at = lines[0].index("early")
    path.write_text("".join(",".join(line[:at] + line[at + 1 :]) + "\n" for line in lines))
    again = read_counters(study)
    assert again["early"].tolist() == read["early"].tolist()
    assert again.drop(columns="early").equals(read.drop(columns="early"))
