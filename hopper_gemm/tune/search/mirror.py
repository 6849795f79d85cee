"""A one-way copy of a search's trials in an Optuna storage, for its dashboard. Nothing is ever read back from it."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import optuna

from hopper_gemm.model.point import Point
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.objective import Objective
from hopper_gemm.tune.search.samplers import ended_trial
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.study.spec import SweepSpec

CLOSE_SECONDS = 10.0
"""So long the end of a run waits for a storage that lags behind."""

POINT = "point"
"""User attribute of a trial: the label of its config, by which a later run knows that it is there."""


class Mirror:
    """Copies rows as trials, in a thread of its own: a storage that fails or is slow never holds a sweep up.

    Args:
        url: a path is a journal file; else any URL that Optuna takes.
        spec: of the sweep; studies are called ``name/place``.
        legal: its points.
        say: takes a line for the user.

    Raises:
        ValueError: the URL is of no storage that Optuna knows.
    """

    def __init__(self, url: str, spec: SweepSpec, legal: Sequence[Point], say: Callable[[str], None]) -> None:
        check_url(url)
        self._url, self._spec, self._legal, self._say = url, spec, legal, say
        self._objective = Objective(tuple(spec.objective))
        self._rows: queue.Queue[Row | None] = queue.Queue()
        self._thread = threading.Thread(target=self._copy, name="mirror", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Copy a row, some time."""
        self._rows.put(row)

    def close(self) -> None:
        """Wait a little for what is still to be copied."""
        self._rows.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._say(f"{shown_url(self._url)} lags behind by {self._rows.qsize()} trials, which it will not get")

    def _copy(self) -> None:
        try:
            logging.getLogger("sqlalchemy").setLevel(logging.CRITICAL)
            storage = _opened(self._url)
            studies: dict[str, tuple[optuna.Study, LegalSpace, set[str]]] = {}
            while (row := self._rows.get()) is not None:
                place = place_of(row.point)
                if place not in studies:
                    studies[place] = self._study(storage, place)
                study, space, there = studies[place]
                config = row.point.config
                if config is not None and str(config) not in there:
                    values = self._objective.values(row.figures) if row.ok else None
                    there.add(str(config))
                    noted = {POINT: str(config), "status": row.status}
                    study.add_trial(ended_trial(space, space.number[config], values, **noted))
        except Exception as error:  # any: whatever a storage raises, the rows are what counts
            lines = [line.strip() for line in hidden(str(error), self._url).splitlines() if line.strip()]
            why = lines[0] if lines else type(error).__name__
            self._say(f"{shown_url(self._url)} cannot mirror the trials ({why}); the sweep goes on without it")

    def _study(self, storage: Any, place: str) -> tuple[optuna.Study, LegalSpace, set[str]]:
        study = optuna.create_study(
            study_name=f"{self._spec.name}/{place}",
            storage=storage,
            directions=self._objective.directions,
            load_if_exists=True,
        )
        configs = [p.config for p in self._legal if p.config is not None and place_of(p) == place]
        there = {str(trial.user_attrs.get(POINT)) for trial in study.get_trials(deepcopy=False)}
        return study, LegalSpace(configs), there


def check_url(url: str) -> None:
    """Refuse what is no storage.

    Raises:
        ValueError: the URL's kind is unknown.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme and scheme.split("+")[0] not in ("sqlite", "postgresql", "mysql"):
        forms = "a path, sqlite:///FILE, or postgresql+psycopg://USER@HOST/DATABASE"
        raise ValueError(f"--storage must be {forms} but got {shown_url(url)}")


def shown_url(url: str) -> str:
    """A URL without its password, wherever in it that stands."""
    if "://" not in url:
        return url
    scheme, _, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if at:
        rest = f"{user.partition(':')[0]}{':...' if ':' in user else ''}@{place}"
    return re.sub(r"(?i)\b(password|passwd|pwd|sslpassword)=[^&#]*", r"\1=...", f"{scheme}://{rest}")


def hidden(text: str, url: str) -> str:
    """A message without the password of a URL."""
    _, _, rest = url.partition("://")
    secrets = [rest.rpartition("@")[0].partition(":")[2], *re.findall(r"(?i)(?:password|passwd|pwd)=([^&#]*)", url)]
    with contextlib.suppress(ValueError):
        secrets.append(urlsplit(url).password or "")
    for secret in filter(None, secrets):
        text = text.replace(secret, "...")
    return text


def _opened(url: str) -> Any:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    if "://" not in url:
        return JournalStorage(JournalFileBackend(url))
    if url.startswith("sqlite"):
        return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
    return RDBStorage(url.replace("postgresql://", "postgresql+psycopg://", 1))
