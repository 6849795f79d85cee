"""The ring of two CTAs that share a tile of B and load it for each other; each has its own A.

Mirrors what :class:`hopper_gemm.kernel.operand.OperandLoad` issues and whom
:meth:`hopper_gemm.kernel.pipeline.Ring.release` tells: with multicast ``split`` each CTA sends a part of every stage's
B to both, with ``alternate`` one of them all of it, stage by stage. A consumer gives a slot back to both CTAs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from hopper_gemm.lab.protocols.exploration import Broken, Explored, explore
from hopper_gemm.lab.protocols.ring import Barrier

CTAS = (0, 1)
A_BYTES, B_BYTES = 3, 2


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
    """Both CTAs, and what is under way: (to which CTA, fill, bytes, number of the load)."""

    ctas: tuple[MulticastCta, MulticastCta]
    flying: frozenset[tuple[int, int, int, int]] = frozenset()

    def having(self, cta: int, **changes: object) -> MulticastState:
        """The moment with another CTA."""
        ctas = list(self.ctas)
        ctas[cta] = replace(ctas[cta], **changes)  # type: ignore[arg-type]
        return replace(self, ctas=(ctas[0], ctas[1]))


@dataclass(frozen=True)
class MulticastPair:
    """Two CTAs that share B.

    Args:
        stages: of the ring.
        fills: of the run.
        multicast: as the config's parameter.
        told: CTAs, counted from a consumer's own, that learn that it has read a slot: both; or, by mistake, its own
            alone.
    """

    stages: int
    fills: int
    multicast: Literal["split", "alternate"]
    told: tuple[int, ...] = CTAS

    def run(self) -> Explored:
        """Run every order of events.

        Raises:
            Broken: ``overwrite``, ``early read``, ``bytes``, ``arrivals`` or ``deadlock``.
        """
        empty = Barrier(len(self.told), len(self.told))
        idle = MulticastCta((Barrier(1, 1),) * self.stages, (empty,) * self.stages)
        return explore(MulticastState((idle, idle)), self._moves, self._ended)

    def _sent(self, cta: int, fill: int) -> int:
        """Bytes of B that a CTA sends to both."""
        if self.multicast == "split":
            return B_BYTES // len(CTAS)
        return B_BYTES if fill % len(CTAS) == cta else 0

    def _moves(self, moment: MulticastState) -> Iterator[MulticastState]:
        for number in CTAS:
            cta = moment.ctas[number]
            slot, round_ = cta.loaded % self.stages, cta.loaded // self.stages
            if cta.loaded < self.fills and cta.empty[slot].passes(round_ & 1 ^ 1):
                full = _put(cta.full, slot, cta.full[slot].arrive(1, round_, A_BYTES + B_BYTES))
                flying = {(number, cta.loaded, A_BYTES, number)}
                if sent := self._sent(number, cta.loaded):
                    flying |= {(to, cta.loaded, sent, number + len(CTAS)) for to in CTAS}
                found = moment.having(number, full=full, loaded=cta.loaded + 1)
                yield replace(found, flying=moment.flying | flying)
            slot, round_ = cta.read % self.stages, cta.read // self.stages
            if cta.read < self.fills and cta.read == cta.released and cta.full[slot].passes(round_ & 1):
                if any((to, fill) == (number, cta.read) for to, fill, *_ in moment.flying):
                    raise Broken("early read", f"fill {cta.read} in CTA {number}")
                yield moment.having(number, read=cta.read + 1)
            if cta.released < cta.read:
                yield self._release(moment, number)
        for load in moment.flying:
            to, fill, size, _ = load
            cta, slot = moment.ctas[to], fill % self.stages
            if cta.released <= fill - self.stages:
                raise Broken("overwrite", f"fill {fill} in CTA {to}, which has given back {cta.released}")
            full = _put(cta.full, slot, cta.full[slot].land(size, fill // self.stages))
            yield replace(moment.having(to, full=full), flying=moment.flying - {load})

    def _release(self, moment: MulticastState, number: int) -> MulticastState:
        cta = moment.ctas[number]
        slot, round_ = cta.released % self.stages, cta.released // self.stages
        moment = moment.having(number, released=cta.released + 1)
        for other in self.told:
            to = (number + other) % len(CTAS)
            empty = moment.ctas[to].empty
            moment = moment.having(to, empty=_put(empty, slot, empty[slot].arrive(1, round_)))
        return moment

    def _ended(self, moment: MulticastState) -> None:
        if any(cta.released < self.fills for cta in moment.ctas):
            raise Broken("deadlock", str(moment))


def _put(barriers: tuple[Barrier, ...], slot: int, barrier: Barrier) -> tuple[Barrier, ...]:
    return (*barriers[:slot], barrier, *barriers[slot + 1 :])
