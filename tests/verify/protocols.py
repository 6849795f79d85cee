"""The protocols' models at larger sizes than the tests take: the part of the verification that needs no GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.protocols.exploration import Broken
from tests.protocols.ledger_model import LedgerModel
from tests.protocols.multicast import MulticastCluster
from tests.protocols.pace import Meetings
from tests.protocols.ring_machine import explore
from tests.protocols.ring_protocol import Protocol
from tests.protocols.scheduler import Launch
from tests.verify.rows import CPU, Rows, VerifyRow, failed_before, judged, verifier_digest

MODULES = tuple(
    f"tests.protocols.{name}"
    for name in ("exploration", "ledger_model", "multicast", "pace", "ring_machine", "ring_protocol", "scheduler")
)
"""Modules whose sources name what was verified."""

Model = Protocol | MulticastCluster | LedgerModel | Meetings | Launch


def models() -> Iterator[tuple[str, Model]]:
    """Every protocol with its sizes, the quickest first."""
    for parts in (2, 3, 4):
        for resident in range(1, parts + 1):
            for looks in (0, 1, 2):
                yield "split-K ledger", LedgerModel(parts, resident, looks)
    for parts in (2, 3, 4, 5, 6):
        for resident in range(1, parts + 1):
            yield "stream-K ledger", LedgerModel(parts, resident, 2, owned=True)
    for attends, shared in (((4, 4, 4), 4), ((3, 3, 2, 2), 2), ((5, 1, 0), 3)):
        for resident in range(1, len(attends) + 1):
            yield "pace", Meetings(attends, shared, resident)
    for stages, stagger in ((2, 0), (2, 1), (3, 1), (3, 2)):
        yield "ring", Protocol(stages, stagger, 2, stages + 1, 2)
        yield "ring, pingpong", Protocol(stages, stagger, 3, stages, 2, pingpong=True)
        yield "ring, in order", Protocol(stages, stagger, 2, stages, 2, order=stages - stagger)
        yield "ring, skew", Protocol(stages, stagger, 2, stages, 2, skew=stages - 1)
        yield "ring, C staged in it", Protocol(stages, stagger, 2, stages, 2, held=stages)
    for stages, fills, multicast in ((2, 5, "split"), (2, 6, "alternate"), (3, 5, "alternate")):
        yield "multicast", MulticastCluster(stages, fills, multicast)  # type: ignore[arg-type]
    for stages, fills, cluster in ((1, 3, (4, 2)), (2, 4, (2, 2))):
        yield "multicast", MulticastCluster(stages, fills, "split", cluster, at_once=True)
    yield "multicast", MulticastCluster(2, 4, "alternate", (1, 4), at_once=True)
    for stages, fills, cluster in ((1, 2, (2, 2)), (2, 3, (2, 2)), (2, 3, (4, 1)), (1, 2, (2, 3))):
        yield "multicast", MulticastCluster(stages, fills, "split", cluster, at_once=True, ending="kept")
    for sizes in ((4, 2, 1, 2, 2, 2), (3, 3, 1, 3), (4, 3, 1, 2, 2), (2, 2, 2, 2), (4, 2, 2, 1, 2), (3, 1, 3, 1, 2)):
        yield "dynamic scheduler", Launch(*sizes)


def moments(model: Model) -> int:
    """Number of moments of a model.

    Raises:
        Broken: some order of events breaks it.
    """
    return explore(model) if isinstance(model, Protocol) else model.run().moments


def verify_protocols(folder: Path, processes: int, say: Callable[[str], None] = print) -> None:
    """Run every model that has no row yet; first those that broke before.

    Args:
        folder: of the rows.
        processes: to share the models.
        say: takes a line of progress.
    """
    rows, named = Rows(folder), [(_row(name, model), name, model) for name, model in models()]
    done = {key for key, found in judged(rows.rows).items() if found.rows}
    before = failed_before(rows.rows, {row.sources for row, _, _ in named})
    named = sorted((one for one in named if one[0].key not in done), key=lambda one: one[0].thing not in before)
    todo = [(name, model) for _, name, model in named]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        asked = {pool.submit(_timed, model): (name, model) for name, model in todo}
        for number, one in enumerate(as_completed(asked), 1):
            name, model = asked[one]
            status, reason, count, seconds = one.result()
            rows.add(_row(name, model, status, reason=reason, bits=count, seconds=seconds))
            say(f"{number} of {len(todo)}: {name}: {status} {reason or f'{count} moments'}")


def wanted() -> list[VerifyRow]:
    """A row without a status for every model."""
    return [_row(name, model) for name, model in models()]


def digest() -> str:
    """A name for the models' sources."""
    return verifier_digest(*MODULES)


def _timed(model: Model) -> tuple[str, str, str, float]:
    begun = time.monotonic()
    try:
        status, reason, count = "ok", "", str(moments(model))
    except Broken as broken:
        status, reason, count = "wrong_result", str(broken)[:500], ""
    return status, reason, count, round(time.monotonic() - begun, 3)


def _row(name: str, model: Model, status: str = "", **about: Any) -> VerifyRow:
    subject, judge = {"name": name, "model": repr(model)}, verifier_digest(__name__)
    return VerifyRow("protocol", subject, status, kernel=digest(), verifier=judge, board=CPU, **about)
