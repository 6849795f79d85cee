"""The ring of a cluster whose CTAs share tiles and load them for each other.

CTAs of a row of the cluster share a tile of A, CTAs of a column a tile of B. Mirrors what
:class:`hopper_gemm.kernel.operand.OperandLoad` issues and whom :meth:`hopper_gemm.kernel.pipeline.Ring.release` tells:
with multicast ``split`` each CTA sends a part of every stage to all sharers, with ``alternate`` one of them all of it,
stage by stage. A consumer gives a slot back to the CTAs of its row and of its column. With the dynamic scheduler a last
fill carries a number alone, which no other CTA sends, and which nobody gives back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Literal

from tests.protocols.exploration import Broken, Explored, explore
from tests.protocols.ring_protocol import Barrier


@dataclass(frozen=True)
class MulticastCta:
    """Fills that its producer has started, its consumer has read and given back; the barriers of each slot."""

    full: tuple[Barrier, ...]
    empty: tuple[Barrier, ...]
    loaded: int = 0
    read: int = 0
    released: int = 0


@dataclass(frozen=True)
class MulticastState:
    """All CTAs, and what is under way: (to which CTA, fill, bytes, from which CTA, operand)."""

    ctas: tuple[MulticastCta, ...]
    flying: frozenset[tuple[int, int, int, int, int]] = frozenset()

    def having(self, cta: int, **changes: object) -> MulticastState:
        """The moment with another CTA."""
        ctas = list(self.ctas)
        ctas[cta] = replace(ctas[cta], **changes)  # type: ignore[arg-type]
        return replace(self, ctas=tuple(ctas))


@dataclass(frozen=True)
class MulticastCluster:
    """A cluster of CTAs.

    Args:
        stages: of the ring.
        fills: of the run.
        multicast: as the config's parameter.
        cluster: CTAs along m and along n.
        told: True if the sharers learn that a consumer has read a slot; False, by mistake, if its own CTA alone does.
        at_once: True if loads land when they are issued: fewer orders, for larger clusters.
        ending: what becomes of the slot of a last fill that carries a number alone: it is kept, or by mistake given
            back; empty: there is none.
    """

    stages: int
    fills: int
    multicast: Literal["split", "alternate"]
    cluster: tuple[int, int] = (2, 1)
    told: bool = True
    at_once: bool = False
    ending: Literal["", "kept", "given back"] = ""

    @cached_property
    def sharers(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """For A, then B: the CTAs that share the tile of each CTA, itself among them."""
        rows, columns = self.cluster
        places = list(product(range(rows), range(columns)))
        return (
            tuple(tuple(i * columns + j for j in range(columns)) for i, _ in places),
            tuple(tuple(i * columns + j for i in range(rows)) for _, j in places),
        )

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each CTA, those that it tells of a slot read, itself among them."""
        if not self.told:
            return tuple((cta,) for cta in range(len(self.sharers[0])))
        return tuple(tuple(sorted({*row, *column})) for row, column in zip(*self.sharers, strict=True))

    def run(self) -> Explored:
        """Run every order of events.

        Raises:
            Broken: ``overwrite``, ``early read``, ``bytes``, ``arrivals``, ``gone`` or ``deadlock``.
        """
        count = len(self.readers[0])
        idle = MulticastCta((Barrier(1, 1),) * self.stages, (Barrier(count, count),) * self.stages)
        return explore(MulticastState((idle,) * len(self.readers)), self._moves, self._ended)

    def _sent(self, cta: int, fill: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Loads that a CTA issues for a fill."""
        for operand, by_cta in enumerate(self.sharers):
            sharers = by_cta[cta]
            whole = self._bytes(operand)
            if self.multicast == "split":
                size = whole // len(sharers)
            else:
                size = whole if sharers[fill % len(sharers)] == cta else 0
            if size:
                yield from ((to, fill, size, cta, operand) for to in sharers)

    def _bytes(self, operand: int) -> int:
        """Bytes of an operand's tile; unequal, so that one cannot stand for the other."""
        return len(self.sharers[operand][0]) * (3, 2)[operand]

    @property
    def _filled(self) -> int:
        """Fills of the run, with the one that carries a number alone."""
        return self.fills + (self.ending != "")

    @property
    def _released(self) -> int:
        """Fills that are given back."""
        return self.fills + (self.ending == "given back")

    def _moves(self, moment: MulticastState) -> Iterator[MulticastState]:
        for number, cta in enumerate(moment.ctas):
            slot, round_ = cta.loaded % self.stages, cta.loaded // self.stages
            if cta.loaded < self._filled and cta.empty[slot].passes(round_ & 1 ^ 1):
                yield self._load(moment, number)
            slot, round_ = cta.read % self.stages, cta.read // self.stages
            if cta.read < self._filled and cta.read == cta.released and cta.full[slot].passes(round_ & 1):
                if any((to, fill) == (number, cta.read) for to, fill, *_ in moment.flying):
                    raise Broken("early read", f"fill {cta.read} in CTA {number}")
                yield moment.having(number, read=cta.read + 1)
            if cta.released < min(cta.read, self._released):
                yield self._release(moment, number)
        for load in moment.flying:
            yield self._land(replace(moment, flying=moment.flying - {load}), load)

    def _load(self, moment: MulticastState, number: int) -> MulticastState:
        cta = moment.ctas[number]
        slot, round_ = cta.loaded % self.stages, cta.loaded // self.stages
        last = cta.loaded == self.fills
        announced = 0 if last else self._bytes(0) + self._bytes(1)
        full = _put(cta.full, slot, cta.full[slot].arrive(1, round_, announced))
        sent = () if last else tuple(self._sent(number, cta.loaded))
        found = moment.having(number, full=full, loaded=cta.loaded + 1)
        if not self.at_once:
            return replace(found, flying=moment.flying | set(sent))
        for load in sent:
            found = self._land(found, load)
        return found

    def _land(self, moment: MulticastState, load: tuple[int, int, int, int, int]) -> MulticastState:
        to, fill, size, *_ = load
        cta, slot = self._reached(moment, to), fill % self.stages
        if cta.released <= fill - self.stages:
            raise Broken("overwrite", f"fill {fill} in CTA {to}, which has given back {cta.released}")
        return moment.having(to, full=_put(cta.full, slot, cta.full[slot].land(size, fill // self.stages)))

    def _release(self, moment: MulticastState, number: int) -> MulticastState:
        cta = moment.ctas[number]
        slot, round_ = cta.released % self.stages, cta.released // self.stages
        moment = moment.having(number, released=cta.released + 1)
        for to in self.readers[number]:
            empty = self._reached(moment, to).empty
            moment = moment.having(to, empty=_put(empty, slot, empty[slot].arrive(1, round_)))
        return moment

    def _reached(self, moment: MulticastState, number: int) -> MulticastCta:
        """A CTA whose shared memory is touched: it must not be free to leave, all of its slots come back."""
        cta = moment.ctas[number]
        rounds = (len(range(slot, self._released, self.stages)) for slot in range(self.stages))
        drained = all(empty.phase >= count for empty, count in zip(cta.empty, rounds, strict=True))
        if drained and cta.loaded == cta.read == self._filled and cta.released == self._released:
            raise Broken("gone", f"CTA {number} has left: {moment}")
        return cta

    def _ended(self, moment: MulticastState) -> None:
        if any(cta.read < self._filled or cta.released < self._released for cta in moment.ctas):
            raise Broken("deadlock", str(moment))


def _put(barriers: tuple[Barrier, ...], slot: int, barrier: Barrier) -> tuple[Barrier, ...]:
    return (*barriers[:slot], barrier, *barriers[slot + 1 :])
