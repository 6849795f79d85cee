"""The ring's protocol, run: through every order of events, or through chosen ones. No GPU.

What can happen at any moment, each on its own:

    load       the producer passes ``empty``, arms ``full`` and starts the loads of A and B
    land       one started load ends, in any order: its bytes are in on ``full``. Copies by threads are said to be in
               only when the producer has started so many more
    read       a warp passes ``full`` and commits a wgmma group that reads the slot from now on
    retire     the oldest group of a warp ends; possible from its commit on
    release    a warp passes wait_group, which asks for enough groups retired, and arrives on ``empty``
    give, ask  a warp arrives on the named barrier of the other consumer's turn, or of its own
    take       a warp passes the named barrier of its own turn, once every warp of both has arrived

A warp is the smallest reader: nothing but the barriers binds the warps of a consumer to one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from random import Random

from tests.protocols import exploration
from tests.protocols.exploration import Broken
from tests.protocols.ring_protocol import OPERAND_BYTES, Barrier, Move, Protocol, RingStep

TURNS = ("give", "ask", "take")
"""Steps of a turn."""


class RingMachine:
    """A moment of a run: where every role stands, what every barrier has counted, what is under way."""

    def __init__(self, ring: Protocol) -> None:
        roles = len(ring.programs)
        arrivals = len(ring.readers[0]) * ring.lanes
        self.ring = ring
        self.at = [0] * roles
        self.read = [0] * roles
        self.groups: list[tuple[int, ...]] = [()] * roles
        self.full = [(Barrier(1, 1),) * len(ring.announced)] * ring.stages
        self.empty = [Barrier(arrivals, arrivals)] * ring.stages
        self.flying: tuple[tuple[int, int], ...] = ()
        self.arrived: list[tuple[int, int]] = [(0, 0)] * 2
        self.turns = [0, 0]
        self.trail: tuple[Move, ...] = ()

    def fork(self) -> RingMachine:
        """A copy that goes its own way."""
        other = copy(self)
        other.at, other.read, other.groups = self.at[:], self.read[:], self.groups[:]
        other.full, other.empty = self.full[:], self.empty[:]
        other.arrived, other.turns = self.arrived[:], self.turns[:]
        return other

    def key(self) -> tuple:
        """All that the future depends on; machines with one key are equal."""
        turns = *self.arrived, *self.turns
        return (*self.at, *self.groups, *self.full, *self.empty, *turns, frozenset(self.flying))

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RingMachine) and self.key() == other.key()

    def following(self) -> Iterator[RingMachine]:
        """Every moment that may come next."""
        for move in self.moves():
            after = self.fork()
            after.do(move)
            yield after

    def moves(self) -> list[Move]:
        """All that can happen next."""
        found: list[Move] = [("land", *load) for load in self.flying if self._may_land(load[0])]
        for role, program in enumerate(self.ring.programs):
            if self.groups[role]:
                found.append(("retire", role))
            if self.at[role] < len(program) and self._ready(role, program[self.at[role]]):
                found.append((program[self.at[role]].kind, role))
        return found

    def _may_land(self, fill: int) -> bool:
        return self.at[0] > min(fill + self.ring.late, self.ring.fills - 1)

    def _ready(self, role: int, step: RingStep) -> bool:
        if step.kind in TURNS:
            return step.kind != "take" or self.turns[step.whose] > step.turns
        if step.fill is None or step.kind == "release":
            return len(self.groups[role]) <= step.leave
        slot = step.fill % self.ring.stages
        if step.kind == "load":
            return self.empty[slot].passes(step.parity)
        if step.turn is not None and any(self.read[warp] <= step.turn for warp in self.ring.readers[step.turn]):
            return False
        if step.behind and not all(full.passes(0) for full in self.full[step.behind]):
            return False
        return all(full.passes(step.parity) for full in self.full[slot])

    def do(self, move: Move) -> None:
        """Let one thing happen.

        Raises:
            Broken: it must not.
        """
        self.trail += (move,)
        kind, who = move[:2]
        try:
            if kind == "land":
                self._land(*move[1:])
            elif kind == "retire":
                self.groups[who] = self.groups[who][1:]
            else:
                step = self.ring.programs[who][self.at[who]]
                self.at[who] += 1
                self._step(who, step)
        except Broken as broken:
            broken.trail = self.trail
            raise

    def _step(self, role: int, step: RingStep) -> None:
        if step.kind in TURNS:
            self._turn(step)
            return
        if step.fill is None:
            return
        round_, slot = divmod(step.fill, self.ring.stages)
        if step.kind == "load":
            self._load(step.fill, slot, round_)
        elif step.kind == "read":
            self._read(role, step.fill, slot, round_)
        else:
            self.empty[slot] = self.empty[slot].arrive(self.ring.lanes + self.ring.fault.strays, round_)

    def _turn(self, step: RingStep) -> None:
        """A named barrier begins anew once all have arrived; it does not know for which turn a warp does."""
        at, most = step.whose, self.ring.warps
        if step.kind == "take":
            return
        given, asked = self.arrived[at]
        given, asked = (given + 1, asked) if step.kind == "give" else (given, asked + 1)
        if given > most or asked > most:
            raise Broken("turns", f"one for consumer {at} before it has taken the last")
        ends = given == asked == most
        self.arrived[at] = (0, 0) if ends else (given, asked)
        self.turns[at] += ends

    def _load(self, fill: int, slot: int, round_: int) -> None:
        before = fill - self.ring.stages
        _check_phase(self.empty[slot], round_, f"the producer, to empty, for fill {fill}")
        for warp in self.ring.readers[before] if before >= 0 else ():
            if self.read[warp] <= before or before in self.groups[warp]:
                raise Broken("overwrite", f"fill {fill} over fill {before}, which role {warp} has not read to the end")
        barriers = zip(self.full[slot], self.ring.announced, strict=True)
        self.full[slot] = tuple(full.arrive(1, round_, size) for full, size in barriers)
        self.flying += tuple((fill, operand) for operand in range(len(OPERAND_BYTES)))

    def _land(self, fill: int, operand: int) -> None:
        round_, slot = divmod(fill, self.ring.stages)
        barriers = list(self.full[slot])
        at = operand % len(barriers)
        barriers[at] = barriers[at].land(OPERAND_BYTES[operand], round_)
        self.full[slot] = tuple(barriers)
        self.flying = tuple(load for load in self.flying if load != (fill, operand))

    def _read(self, role: int, fill: int, slot: int, round_: int) -> None:
        for full in self.full[slot]:
            _check_phase(full, round_ + 1, f"role {role}, to full, for fill {fill}")
        if any(flying == fill for flying, _ in self.flying):
            raise Broken("early read", f"fill {fill} by role {role} while a load of it is under way")
        self.read[role] = fill + 1
        self.groups[role] += (fill,)

    def finish(self) -> None:
        """Nothing can happen any more.

        Raises:
            Broken: a role is not at its end, or a barrier not at the start of the phase after its last round.
        """
        stuck = [program[at] for program, at in zip(self.ring.programs, self.at, strict=True) if at < len(program)]
        if stuck:
            raise Broken("deadlock", f"before {', '.join(map(str, stuck))}", self.trail)
        for index in range(self.ring.stages):
            rounds = len(range(index, self.ring.fills, self.ring.stages))
            for barrier in (self.empty[index], *self.full[index]):
                if barrier != Barrier(barrier.expected, barrier.expected, 0, rounds):
                    raise Broken("unsettled", f"slot {index} after {rounds} rounds: {barrier}", self.trail)


def _check_phase(barrier: Barrier, wanted: int, who: str) -> None:
    """A waiter has passed: because ``wanted`` phases have ended, or only by their parity?"""
    if barrier.phase != wanted:
        raise Broken("wrong phase", f"{who}, passed after {barrier.phase} phases, not {wanted}")


def explore(ring: Protocol) -> int:
    """Run through every order of events.

    Returns:
        How many different moments there are; ten thousand take less than a second.

    Raises:
        Broken: some order breaks the protocol; no shorter trail does.
    """
    return exploration.explore(RingMachine(ring), RingMachine.following, RingMachine.finish).moments


ORDERS: dict[str, tuple[str, ...]] = {
    "fair": (),
    "hasty loads": ("load", "land", "release", "read", "retire"),
    "late loads": ("load", "release", "read", "retire", "land"),
    "late producer": ("land", "release", "read", "retire", "load"),
}
"""Kinds of move that go first; among equals one is drawn, among all where none is named.

Hasty loads fill a slot anew the moment they may, while every group still runs that may run.
"""


def run(ring: Protocol, order: str = "fair", seed: int = 0) -> RingMachine:
    """Run through one order of events.

    Args:
        ring: what to run.
        order: a key of :data:`ORDERS`.
        seed: of the draws.

    Returns:
        The last moment.

    Raises:
        Broken: this order breaks the protocol.
    """
    rng, kinds = Random(seed), ORDERS[order]
    machine = RingMachine(ring)
    while moves := machine.moves():
        present = {move[0] for move in moves}
        first = next((kind for kind in kinds if kind in present), None)
        machine.do(rng.choice([move for move in moves if first in (None, move[0])]))
    machine.finish()
    return machine
