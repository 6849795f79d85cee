"""CTAs that share a tile and load it for each other, each a part of every stage or all of it in turns: no order of
events overwrites what is still read, reads what has not landed, or stops.

Two CTAs share B; each has its own A. What the kernel does is in :mod:`hopper_gemm.kernel.loads` and
:mod:`hopper_gemm.kernel.pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from hopper_gemm.model.protocol.ring import Barrier, Broken

CTAS = (0, 1)
A_BYTES, B_BYTES = 3, 2


@dataclass(frozen=True)
class Cta:
    """Fills that its producer has started, its consumer has read and given back; the barriers of each slot."""

    full: tuple[Barrier, ...]
    empty: tuple[Barrier, ...]
    loaded: int = 0
    read: int = 0
    released: int = 0


@dataclass(frozen=True)
class Moment:
    """Both CTAs, and what is under way: (to which CTA, fill, bytes, from which)."""

    ctas: tuple[Cta, Cta]
    flying: frozenset[tuple[int, int, int, int]] = frozenset()


def loads_of_b(how: str, cta: int, fill: int) -> int:
    """Bytes of B that a CTA sends to both."""
    if how == "rows":
        return B_BYTES // len(CTAS)
    return B_BYTES if fill % len(CTAS) == cta else 0


def after(moment: Moment, stages: int, fills: int, how: str, readers: tuple[int, ...]) -> Iterator[Moment]:
    """Every moment that may come next.

    Args:
        moment: now.
        stages, fills: of the ring, of the run.
        how: ``"rows"``, ``"turns"``.
        readers: whom a consumer tells that it has read a slot: both CTAs; or, by mistake, its own alone.
    """

    def with_cta(at: Moment, number: int, **changes) -> Moment:
        ctas = list(at.ctas)
        ctas[number] = replace(ctas[number], **changes)
        return replace(at, ctas=tuple(ctas))

    def put(barriers: tuple[Barrier, ...], slot: int, barrier: Barrier) -> tuple[Barrier, ...]:
        return (*barriers[:slot], barrier, *barriers[slot + 1 :])

    for number in CTAS:
        cta = moment.ctas[number]
        slot, round_ = cta.loaded % stages, cta.loaded // stages
        if cta.loaded < fills and cta.empty[slot].passes(round_ & 1 ^ 1):
            full = put(cta.full, slot, cta.full[slot].arrive(1, round_, A_BYTES + B_BYTES))
            flying = {(number, cta.loaded, A_BYTES, number)}
            if b := loads_of_b(how, number, cta.loaded):
                flying |= {(to, cta.loaded, b, number + len(CTAS)) for to in CTAS}
            found = with_cta(moment, number, full=full, loaded=cta.loaded + 1)
            yield replace(found, flying=moment.flying | flying)
        slot, round_ = cta.read % stages, cta.read // stages
        if cta.read < fills and cta.read == cta.released and cta.full[slot].passes(round_ & 1):
            if any((to, fill) == (number, cta.read) for to, fill, *_ in moment.flying):
                raise Broken("early read", f"fill {cta.read} in CTA {number}")
            yield with_cta(moment, number, read=cta.read + 1)
        if cta.released < cta.read:
            slot, round_ = cta.released % stages, cta.released // stages
            found = with_cta(moment, number, released=cta.released + 1)
            for other in readers:
                to = (number + other) % len(CTAS)
                empty = found.ctas[to].empty
                found = with_cta(found, to, empty=put(empty, slot, empty[slot].arrive(1, round_)))
            yield found
    for load in moment.flying:
        to, fill, size, _ = load
        cta, slot = moment.ctas[to], fill % stages
        if cta.released <= fill - stages:
            raise Broken("overwrite", f"fill {fill} in CTA {to}, which has given back {cta.released}")
        full = put(cta.full, slot, cta.full[slot].land(size, fill // stages))
        yield replace(with_cta(moment, to, full=full), flying=moment.flying - {load})


def explore(stages: int, fills: int, how: str, readers: tuple[int, ...] = CTAS) -> int:
    """Run through every order of events; how many moments there are.

    Raises:
        Broken: some order breaks it.
    """
    idle = Cta((Barrier(1, 1),) * stages, (Barrier(len(readers), len(readers)),) * stages)
    seen = {Moment((idle, idle))}
    todo = list(seen)
    while todo:
        moment = todo.pop()
        following = list(after(moment, stages, fills, how, readers))
        if not following and any(cta.released < fills for cta in moment.ctas):
            raise Broken("deadlock", str(moment))
        for one in following:
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return len(seen)


@pytest.mark.parametrize(
    ("stages", "fills", "how"), [(1, 4, "rows"), (1, 4, "turns"), (2, 5, "rows"), (2, 5, "turns"), (3, 5, "turns")]
)
def test_no_order_of_events_breaks_a_ring_that_two_ctas_fill_for_each_other(stages, fills, how):
    assert explore(stages, fills, how) > 50


@pytest.mark.parametrize("how", ["rows", "turns"])
def test_a_slot_that_only_its_own_cta_gives_back_is_overwritten_by_the_other(how):
    with pytest.raises(Broken, match=r"overwrite|bytes"):
        explore(2, 5, how, readers=(0,))
