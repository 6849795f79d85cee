"""The protocols' models are verified at larger sizes, and a broken one is a failure with its reason."""

from __future__ import annotations

from tests.protocols.ledger_model import LedgerModel
from tests.protocols.ring_protocol import Protocol
from tests.verify import protocols
from tests.verify.protocols import models, moments, verify_protocols
from tests.verify.rows import Rows, VerifyRow, read_rows


def test_every_protocol_is_among_the_models():
    names = {name for name, _ in models()}
    assert names >= {"ring", "ring, pingpong", "multicast", "split-K ledger", "stream-K ledger", "pace"}
    assert "dynamic scheduler" in names


def test_a_model_that_breaks_is_a_failure_and_what_was_done_is_not_done_again(tmp_path, monkeypatch):
    few = [
        ("ledger", LedgerModel(2, 2)),
        ("broken", LedgerModel(2, 2, fault="no turn")),
        ("ring", Protocol(1, 0, 2, 1)),
    ]
    monkeypatch.setattr(protocols, "models", lambda: iter(few))
    verify_protocols(tmp_path, 2, lambda _: None)
    rows = {row.subject["name"]: row for row in read_rows(tmp_path)}
    assert {name: row.status for name, row in rows.items()} == {"ledger": "ok", "broken": "wrong_result", "ring": "ok"}
    assert "sums" in rows["broken"].reason
    assert int(rows["ring"].bits) == moments(few[2][1])
    verify_protocols(tmp_path, 2, lambda _: None)
    assert len(read_rows(tmp_path)) == 3


def test_a_model_that_broke_with_earlier_sources_runs_first(tmp_path, monkeypatch):
    few = [("first", LedgerModel(2, 2)), ("second", LedgerModel(2, 1)), ("third", LedgerModel(3, 1))]
    monkeypatch.setattr(protocols, "models", lambda: iter(few))
    subject = {"name": "third", "model": repr(few[2][1])}
    Rows(tmp_path).add(VerifyRow("protocol", subject, "wrong_result", kernel="old", board="cpu"))
    verify_protocols(tmp_path, 1, lambda _: None)
    assert read_rows(tmp_path)[1].subject == subject
