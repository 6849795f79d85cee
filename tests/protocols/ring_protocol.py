"""The ring's protocol, written out: what every role does step by step, and what a barrier makes of it.

:mod:`hopper_gemm.kernel.pipeline` says who waits for whom; here the same waits and arrivals are plain values, which
:mod:`tests.protocols.ring_machine` runs and watches. A barrier counts its phases where the chip keeps only a
parity, so that a waiter let through by the right parity of the wrong phase is seen; each filling of a slot has a
number, so that a slot loaded anew under a running wgmma is seen. Fill ``f`` lives in slot ``f % stages`` and is that
slot's round ``f // stages``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tests.protocols.exploration import Broken

OPERAND_BYTES = (2, 1)
"""Bytes that A and B bring to a stage; unequal, so that one cannot stand for the other."""


def place(stages: int, fill: int, ahead: bool = False) -> tuple[int, int]:
    """Slot of a fill, and the phase parity that a role waits for there: the producer's is one phase ahead, so that its
    first round passes at once. The kernel's states, which count step by step, are tested against it."""
    return fill % stages, (fill // stages + ahead) % 2


class Barrier(NamedTuple):
    """An mbarrier: a phase ends when all expected arrivals and all announced bytes are in (PTX, mbarrier)."""

    expected: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def passes(self, parity: int) -> bool:
        """try_wait.parity: blocks in a phase of that parity, passes in any other."""
        return self.phase & 1 != parity

    def arrive(self, count: int, phase: int, announced: int = 0) -> Barrier:
        """Announce bytes, then arrive ``count`` times; all is meant for ``phase``."""
        if self.phase != phase or count > self.pending:
            raise Broken("arrivals", f"{count} for phase {phase} in phase {self.phase}, which misses {self.pending}")
        return self._after(self.pending - count, self.bytes + announced)

    def land(self, size: int, phase: int) -> Barrier:
        """Bytes meant for ``phase`` are in."""
        if self.phase != phase:
            raise Broken("bytes", f"{size} for phase {phase} in phase {self.phase}")
        return self._after(self.pending, self.bytes - size)

    def _after(self, pending: int, size: int) -> Barrier:
        ends = not pending and not size
        return Barrier(self.expected, self.expected if ends else pending, size, self.phase + ends)


@dataclass(frozen=True)
class RingStep:
    """One line of a role's program.

    Args:
        kind: ``load``, ``read``, ``release``, ``give``, ``ask`` or ``take``.
        fill: the fill that it must be, in the slot of that fill; none for a wait_group that releases nothing, and of a
            turn.
        parity: phase parity to wait for, of a load or a read.
        turn: the fill that must have been read before, of a read.
        behind: the fill of the first round that must be full before, of a read.
        leave: groups that may still run, of a release.
        whose: the consumer whose turn it is, of a turn.
        turns: those that this consumer had before, of one that it takes.
    """

    kind: str
    fill: int | None
    parity: int = 0
    turn: int | None = None
    behind: int = 0
    leave: int = 0
    whose: int = 0
    turns: int = 0


Move = tuple[str, int] | tuple[str, int, int]
"""An event: a kind and the role, or ``land`` with fill and operand."""


@dataclass(frozen=True)
class Fault:
    """Mistakes to make on purpose; the defaults make none.

    Args:
        early: fills by which a release runs ahead: i - stagger + early after the commit of i; up to stagger.
        lax: groups too many left running by the wait before such a release.
        phase_ahead: False starts the producer in the consumers' phase.
        skip_drain: the last stagger slots of a tile are not released.
        ordered: False lets a pingpong consumer start before the one before it has read its whole tile.
        strays: arrivals of a warp beyond its lanes; negative for missing ones.
        short: the bytes of B are not announced.
        rash: a skewed consumer waits for a stage beyond its first tile.
        unasked: of two consumers that end tiles in order, the first gives the turn without having taken it.
    """

    early: int = 0
    lax: int = 0
    phase_ahead: bool = True
    skip_drain: bool = False
    ordered: bool = True
    strays: int = 0
    short: bool = False
    rash: bool = False
    unasked: bool = False


@dataclass(frozen=True)
class Protocol:
    """The ring of one CTA and the programs of its roles: the producer is role 0, the others are consumer warps.

    Args:
        stages: slots.
        stagger: groups in flight when an older slot is released.
        tiles: output tiles, one after the other; the ring runs on across them.
        k_tiles: fills of a tile.
        consumers: consumer warpgroups.
        warps: warps of a consumer.
        lanes: threads of a warp that arrive on ``empty``: one, or all.
        pingpong: the consumers take the tiles in turn instead of sharing each.
        one_full: one full barrier for A and B; else one each.
        skew: stages by which each consumer starts behind the one before it.
        order: last stages of a tile that the first of two consumers issues before the second begins with them.
        held: last fills of a tile that its consumers give back only once they have stored it out of their slots.
        late: fills that the producer starts beyond one before it says that it is in, as with copies by threads: they
            wait for their own copies, and only the last ones have nothing more to start first.
        fault: mistakes to make.

    Raises:
        ValueError: a release would name a slot that is not even being read.
    """

    stages: int
    stagger: int
    tiles: int
    k_tiles: int
    consumers: int = 1
    warps: int = 1
    lanes: int = 1
    pingpong: bool = False
    one_full: bool = True
    skew: int = 0
    order: int = 0
    held: int = 0
    late: int = 0
    fault: Fault = Fault()

    def __post_init__(self) -> None:
        if self.fault.early > self.stagger:
            raise ValueError(f"early must be at most stagger, {self.stagger}, but got {self.fault.early}")

    @property
    def fills(self) -> int:
        """Fills of the whole run."""
        return self.tiles * self.k_tiles

    @property
    def announced(self) -> tuple[int, ...]:
        """Bytes announced on each full barrier of a slot."""
        a, b = OPERAND_BYTES[0], 0 if self.fault.short else OPERAND_BYTES[1]
        return (a + b,) if self.one_full else (a, b)

    def owns(self, consumer: int, tile: int) -> bool:
        """Return True if a consumer works on a tile."""
        return not self.pingpong or tile % self.consumers == consumer

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The roles that read each fill."""
        roles = [(1 + warp, warp // self.warps) for warp in range(self.consumers * self.warps)]
        tiles = [tuple(role for role, of in roles if self.owns(of, tile)) for tile in range(self.tiles)]
        return tuple(tiles[fill // self.k_tiles] for fill in range(self.fills))

    @cached_property
    def programs(self) -> tuple[tuple[RingStep, ...], ...]:
        """The steps of each role."""
        ahead = self.fault.phase_ahead
        load = tuple(RingStep("load", fill, place(self.stages, fill, ahead)[1]) for fill in range(self.fills))
        multiply = [tuple(self._multiply(consumer)) for consumer in range(self.consumers)]
        return (load, *(program for program in multiply for _ in range(self.warps)))

    def _second(self, tile: int, k: int) -> Iterator[RingStep]:
        """What the second of two consumers that end tiles in order does before it reads a stage; see
        :class:`hopper_gemm.kernel.consumer.Order`."""
        if k == 0 and not self.fault.unasked:
            yield RingStep("give", None, whose=0)
        if k == max(0, self.k_tiles - self.order):
            yield from (RingStep(kind, None, whose=1, turns=tile) for kind in ("ask", "take"))

    def _multiply(self, consumer: int) -> Iterator[RingStep]:
        """Step by step what :func:`hopper_gemm.kernel.consumer.multiply_tile` does, tile after tile."""
        lag = self.stagger - self.fault.early
        behind = consumer * self.skew
        if behind >= self.k_tiles and not self.fault.rash:
            behind = 0
        for tile in (tile for tile in range(self.tiles) if self.owns(consumer, tile)):
            first = tile * self.k_tiles
            turn = first - 1 if tile and self.pingpong and self.fault.ordered else None
            for k in range(self.k_tiles):
                parity = place(self.stages, first + k)[1]
                if self.order and consumer == 1:
                    yield from self._second(tile, k)
                yield RingStep("read", first + k, parity, turn, behind=0 if tile or k else behind)
                if self.order and consumer == 0 and k == self.k_tiles - 1:
                    if not self.fault.unasked:
                        yield from (RingStep(kind, None, whose=0, turns=tile) for kind in ("ask", "take"))
                    yield RingStep("give", None, whose=1)
                fill = first + k - lag if lag <= k < self.k_tiles - self.held + lag else None
                yield RingStep("release", fill, leave=self.stagger + self.fault.lax)
            yield RingStep("release", None)
            for k in range(max(lag, self.k_tiles), self.k_tiles + lag - self.held):
                if not self.fault.skip_drain:
                    yield RingStep("release", first + k - lag, leave=self.k_tiles)
            for fill in range(first + self.k_tiles - self.held, first + self.k_tiles):
                yield RingStep("release", fill, leave=self.k_tiles)
