"""Rows as Optuna's trials: the importance of each parameter, and a journal file, which ``optuna-dashboard FILE`` shows
and ``optuna.load_study`` reads.

Each problem, regime and context is an Optuna study, such as ``seed-table/4096x4096x4096 burst isolated``. A row that
ran is a complete trial with its speedup, a row that did not a pruned trial. Points that a rule refused are no trials.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.samplers import ended_trial, speedup_of
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import place_of


def importances(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return for each task of a sweep's rows the evaluator's name and each parameter's importance, the greatest
    first; of no task with fewer than ten configs that ran."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    importance = {}
    for task, ran in grouped((row for row in rows if row.ok), lambda row: place_of(row.point)).items():
        if len(ran) < 10:
            continue
        study = optuna.create_study(direction="maximize")
        _add(study, ran)
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        parameters = {k: round(v, 4) for k, v in shares.items()}
        importance[task] = {"evaluator": "PED-ANOVA", "of": "speedup", "parameters": parameters}
    return importance


def write_journal(study: Study, path: Path) -> None:
    """Write the rows of a sweep or a search as a journal, whole or not at all. ResultsError if the study has no such
    rows, or the file exists or cannot be written."""
    trials = [row for row in study.stage("sweep") if not row.point.is_baseline and row.status != "illegal"]
    tasks = grouped(trials, lambda row: place_of(row.point))
    if not tasks:
        raise ResultsError(f"{study.path} holds no trials; name the folder of a sweep such as results/h200/seed-table")
    if path.exists():
        raise ResultsError(f"{path} exists; name another file with --optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            journal = Path(folder, "journal")
            storage = JournalStorage(JournalFileBackend(str(journal)))
            for task, rows in tasks.items():
                name = f"{study.provenance['study']}/{task}"
                _add(optuna.create_study(study_name=name, storage=storage, direction="maximize"), rows)
            os.replace(journal, path)
    except OSError as error:
        raise ResultsError(f"{path} cannot be written ({error.strerror}); name another file with --optuna") from None


def _add(study: optuna.Study, rows: Sequence[Row]) -> None:
    space = LegalSpace([row.point.config for row in rows], as_text=True)
    for number, row in enumerate(rows):
        study.add_trial(ended_trial(space, number, speedup_of(row), status=row.status, reason=row.reason))
