"""The mirror copies trials for Optuna's dashboard; whatever becomes of it, the sweep goes on."""

from __future__ import annotations

import sqlite3

import optuna
import pytest

from hopper_gemm.tune.search.mirror import Mirror, hidden, shown_url
from hopper_gemm.tune.study.space import points
from tests.databases import postgres  # noqa: F401  (a fixture)
from tests.tune.run.instant import SEARCH, spec_of
from tests.tune.search.test_search import ran


def mirrored(tmp_path, url, rows=5):
    """Lines that were said while rows were copied."""
    spec, said = spec_of(tmp_path, SEARCH), []
    legal = [point for point, why in points(spec).items() if not why]
    mirror = Mirror(url, spec, legal, said.append)
    for point in legal[:rows]:
        mirror.add(ran(point))
    mirror.close()
    return said


def storage_of(url):
    if "://" in url:
        return optuna.storages.RDBStorage(url.replace("postgresql://", "postgresql+psycopg://", 1))
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(url))


@pytest.mark.parametrize("kind", ["journal", "sqlite", "postgres"])
def test_every_row_is_a_trial_once_however_often_the_sweep_is_run(tmp_path, kind, request):
    url = {"journal": str(tmp_path / "j.log"), "sqlite": f"sqlite:///{tmp_path / 's.db'}"}.get(kind)
    url = url or request.getfixturevalue("postgres")
    assert mirrored(tmp_path, url) == []
    assert mirrored(tmp_path, url, 7) == []
    (study,) = optuna.get_all_study_summaries(storage_of(url))
    assert study.study_name == "search/1024x1024x1024 burst isolated"
    assert study.n_trials == 7


def broken(tmp_path, kind):
    path = tmp_path / "broken"
    if kind == "garbage sqlite":
        path.write_bytes(b"no database" * 100)
        return f"sqlite:///{path}"
    if kind == "garbage journal":
        path.write_bytes(b"\x8b\x00{]" * 100 + b"\n")
        return str(path)
    if kind == "other schema":
        with sqlite3.connect(path) as base:
            base.execute("create table version_info (version_info_id int, schema_version int, library_version text)")
            base.execute("insert into version_info values (1, 3, '1.0.0')")
        return f"sqlite:///{path}"
    return {
        "unknown option": "postgresql://u:secret@127.0.0.1:9/d?colour=red",
        "no folder": str(tmp_path / "none" / "j.log"),
        "nobody there": "postgresql://u:secret@127.0.0.1:9/d?connect_timeout=1",
    }[kind]


@pytest.mark.parametrize(
    "kind", ["garbage sqlite", "garbage journal", "other schema", "unknown option", "no folder", "nobody there"]
)
def test_a_storage_that_cannot_be_used_is_one_line_and_stops_nothing(tmp_path, kind):
    said = mirrored(tmp_path, broken(tmp_path, kind))
    assert len(said) == 1
    assert said[0].endswith("the sweep goes on without it")
    assert "\n" not in said[0]
    assert "secret" not in said[0]


def test_a_postgres_role_that_may_not_create_is_one_line(tmp_path, postgres):  # noqa: F811
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as base:
        base.execute("create role guest login")
        base.execute("revoke create on schema public from public")
    user, _, rest = postgres.partition("://")[2].partition("@")
    (line,) = mirrored(tmp_path, f"postgresql://guest@{rest}")
    assert "permission denied" in line, user


def test_what_is_no_storage_is_refused_at_once(tmp_path):
    with pytest.raises(
        ValueError, match=r"--storage must be a path, sqlite:///FILE, or postgresql.* but got redis://h"
    ):
        mirrored(tmp_path, "redis://h/0")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h/d", "postgresql://u:...@h/d"),
        ("postgresql://h/d?user=u&password=secret", "postgresql://h/d?user=u&password=..."),
        ("postgresql://h/d?password=secret&user=u#x", "postgresql://h/d?password=...&user=u#x"),
        ("postgresql://u:sec@ret/@h/d", "postgresql://u:...@h/d"),
        ("postgresql+psycopg://u:s:e@c/r@et@h:5432/d", "postgresql+psycopg://u:...@h:5432/d"),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("folder/j.log", "folder/j.log"),
    ],
)
def test_a_url_is_shown_without_its_password_in_every_form(url, shown):
    assert shown_url(url) == shown
    assert hidden(f"cannot connect to {url}: no", url).count("sec") == 0
