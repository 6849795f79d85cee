"""A study as an Optuna journal file, which ``optuna-dashboard FILE`` shows and ``optuna.load_study`` reads.

Each problem, regime and context is an Optuna study, called ``study/place``. A row that ran is a complete trial with the
figures of the study's objective; one that did not is a pruned trial. Points that a rule refused are no trials.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.objective import Objective
from hopper_gemm.tune.search.samplers import ended_trial
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import place_of


def write_journal(study: Study, path: Path) -> None:
    """Write the rows of a sweep or a search as a journal, whole or not at all.

    Args:
        study: that was read.
        path: of the file; it must not exist.

    Raises:
        ResultsError: the study has no such rows, or the file exists or cannot be written.
    """
    places: dict[str, list[Row]] = {}
    for row in study.stage("sweep"):
        if not row.point.is_baseline and row.status != "illegal":
            places.setdefault(place_of(row.point), []).append(row)
    if not places:
        raise ResultsError(f"{study.path} holds no trials; name the folder of a sweep such as results/h200/seed-table")
    if path.exists():
        raise ResultsError(f"{path} exists; name another file with --optuna")
    objective = Objective(tuple(study.provenance["spec"].get("objective", ["speedup"])))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder, "journal")
            storage = JournalStorage(JournalFileBackend(str(made)))
            for place, rows in places.items():
                _add(storage, f"{study.provenance['study']}/{place}", objective, rows)
            os.replace(made, path)
    except OSError as error:
        raise ResultsError(f"{path} cannot be written ({error.strerror}); name another file with --optuna") from None


def _add(storage: JournalStorage, name: str, objective: Objective, rows: list[Row]) -> None:
    space = LegalSpace([row.point.config for row in rows])
    written = optuna.create_study(study_name=name, storage=storage, directions=objective.directions)
    for number, row in enumerate(rows):
        values = objective.values(row.figures) if row.ok else None
        written.add_trial(ended_trial(space, number, values, status=row.status, reason=row.reason))
