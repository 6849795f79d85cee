"""An exported study is Optuna's own: its trials are the rows, with their values, and nothing is overwritten."""

from __future__ import annotations

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hopper_gemm.cli import app
from hopper_gemm.tune.search.trials import write_journal
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError
from tests.tune.tables.making import row, write_study

ROWS = [
    row(tile_m=64, speedup=0.8),
    row(tile_m=128, speedup=0.9),
    row("crash", "died", tile_m=256),
    row("illegal", "registers: too many", tile_m=320),
    row(tile_m=64, speedup=1.1, context="chained"),
]


def test_optuna_loads_the_rows_as_trials_with_equal_values(tmp_path):
    folder, file = write_study(tmp_path / "s", *ROWS), tmp_path / "journal.log"
    app(["export", str(folder), "--optuna", str(file)], standalone_mode=False)
    storage = JournalStorage(JournalFileBackend(str(file)))
    names = {summary.study_name for summary in optuna.get_all_study_summaries(storage)}
    assert names == {"s/64x64x64 burst isolated", "s/64x64x64 burst chained"}
    trials = optuna.load_study(study_name="s/64x64x64 burst isolated", storage=storage).trials
    states = optuna.trial.TrialState
    assert [one.state for one in trials] == [states.COMPLETE, states.COMPLETE, states.PRUNED]
    assert [one.values for one in trials] == [[0.8], [0.9], None]
    assert [one.params["tile_m"] for one in trials] == ["64", "128", "256"]
    assert trials[2].user_attrs["status"] == "crash"
    assert {path.name for path in tmp_path.iterdir()} == {"s", "journal.log"}


def test_a_file_that_exists_and_a_study_without_trials_are_refused(tmp_path):
    study, file = read_study(write_study(tmp_path / "s", *ROWS)), tmp_path / "journal.log"
    file.write_text("mine")
    with pytest.raises(ResultsError, match=r"journal\.log exists; name another file with --optuna"):
        write_journal(study, file)
    assert file.read_text() == "mine"
    compared = read_study(write_study(tmp_path / "c", row(stage="compare")))
    with pytest.raises(ResultsError, match="holds no trials"):
        write_journal(compared, tmp_path / "new")
