"""The dynamic scheduler's protocol: how clusters take numbers of items, and how a number reaches every role.

Mirrors :class:`hopper_gemm.kernel.work.DynamicWalk` and ``ReceivedWalk``, and the loops of ``HopperGemm._fill`` and
``_consume``: the producer of a cluster's first CTA takes numbers one ahead, passes them to the other producers through
a mailbox of :data:`SLOTS` slots with full and empty barriers, and every producer hands them to its consumer beside the
stages of the item. The ring itself is that of :mod:`tests.protocols.ring_protocol`; here a slot is full once
every CTA of the cluster has loaded its share of it, and empty once the consumers of all have given it back; the one
that carries the end is never given back, see :mod:`tests.protocols.multicast`. CTAs of a
cluster begin together; any cluster may begin first, and no more than ``resident`` are under way at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.protocols.exploration import Broken, Explored, explore

SLOTS = 2
NO_MORE, NOTHING = -1, -2

Fault = Literal["", "torn", "reset early", "never reset", "full mailbox", "leave at once", "no drain", "late tag"]
"""A mistake to make: read the counter and write it in two steps; reset it at every number beyond the items, or never;
write into the mailbox without waiting for an empty slot; leave before the numbers were taken out of it, or before the
slots of the ring came back; write a number after its stage is announced."""


@dataclass(frozen=True, order=True)
class SchedulerCta:
    """State of the producer and the consumer of one CTA.

    Args:
        producer: ``ask``, ``write`` (of a torn addition), ``take``, ``reset``, ``post``, ``get``, ``return``, ``load``,
            ``tag`` (of a late one), ``finish``, ``drain``, ``leave``, ``done``.
        index: number at hand.
        taken: what the counter said last.
        turn: numbers passed on, or taken out of the mailbox.
        returned: of those, the slots given back.
        mail: numbers in the mailbox.
        arrived: how many came into each slot.
        todo: stages of the item still to be loaded.
        loaded: stages announced.
        tags: number beside each slot of the ring.
        consumer: ``wait``, ``read`` or ``done``.
        left: stages of its item.
        released: slots given back.
        items: numbers that the consumer has seen.
    """

    producer: str
    index: int = 0
    taken: int = 0
    turn: int = 0
    returned: int = 0
    mail: tuple[int, ...] = (NOTHING,) * SLOTS
    arrived: tuple[int, ...] = (0,) * SLOTS
    todo: int = 0
    loaded: int = 0
    tags: tuple[int, ...] = ()
    consumer: str = "wait"
    left: int = 0
    released: int = 0
    items: tuple[int, ...] = ()

    @property
    def gone(self) -> bool:
        """Return True if the CTA has left its SM, and with it its shared memory."""
        return self.producer == self.consumer == "done"


@dataclass(frozen=True, order=True)
class SchedulerCluster:
    """The CTAs of a cluster, the first being the one that asks, and numbers on their way: (to, turn, number)."""

    ctas: tuple[SchedulerCta, ...]
    begun: bool = False
    mail: tuple[tuple[int, int, int], ...] = ()

    def having(self, rank: int, **changes: Any) -> SchedulerCluster:
        """The cluster with another CTA."""
        ctas = self.ctas
        return replace(self, ctas=(*ctas[:rank], replace(ctas[rank], **changes), *ctas[rank + 1 :]))

    def reach(self, ranks: range) -> None:
        """Touch the shared memory of some CTAs."""
        for rank in ranks:
            if self.ctas[rank].gone:
                raise Broken("gone", f"CTA {rank} has left: {self}")

    def given_back(self, stages: int) -> bool:
        """Return True if all consumers have given back so many stages."""
        return all(cta.released >= stages for cta in self.ctas)

    def taken_out(self, numbers: int) -> bool:
        """Return True if every mailbox has given back so many numbers."""
        return all(cta.returned >= numbers for cta in self.ctas[1:])


@dataclass(frozen=True)
class SchedulerState:
    """The counter, and every cluster."""

    counter: int
    clusters: tuple[SchedulerCluster, ...]


@dataclass(frozen=True)
class Launch:
    """One launch.

    Args:
        items: to compute.
        clusters: of the launch.
        size: CTAs of a cluster.
        resident: clusters under way at once.
        stages: slots of the ring.
        k_tiles: stages of an item.
        fault: a mistake to make.
    """

    items: int
    clusters: int
    size: int = 1
    resident: int = 1
    stages: int = 1
    k_tiles: int = 1
    fault: Fault = ""

    def run(self) -> Explored:
        """Run every order of events.

        Raises:
            Broken: ``deadlock``; ``items``: one is computed twice, never, or not by all CTAs of a cluster; ``counter``:
                not zero for the next launch; ``gone``: a CTA reaches into one that has left; ``mailbox``: a number is
                overwritten before it was taken out.
        """
        tags = (NOTHING,) * self.stages
        ctas = (SchedulerCta("ask", tags=tags), *(SchedulerCta("get", tags=tags) for _ in range(self.size - 1)))
        return explore(SchedulerState(0, (SchedulerCluster(ctas),) * self.clusters), self._moves, self._ended)

    def _moves(self, moment: SchedulerState) -> Iterator[SchedulerState]:
        under_way = sum(one.begun and not all(cta.gone for cta in one.ctas) for one in moment.clusters)
        for i, cluster in enumerate(moment.clusters):
            if cluster.begun:
                steps = self._steps(moment.counter, cluster)
            else:
                steps = iter([(moment.counter, replace(cluster, begun=True))] if under_way < self.resident else [])
            for counter, after in steps:  # clusters are alike: in what order they are listed makes no difference
                yield SchedulerState(counter, tuple(sorted((*moment.clusters[:i], after, *moment.clusters[i + 1 :]))))

    def _steps(self, counter: int, cluster: SchedulerCluster) -> Iterator[tuple[int, SchedulerCluster]]:
        for rank, cta in enumerate(cluster.ctas):
            if self._may_produce(cluster, cta):
                yield self._produce(counter, cluster, rank, cta)
            if cta.consumer != "done" and self._full(cluster, cta):
                yield counter, self._consume(cluster, rank, cta)
        for one in cluster.mail:
            yield counter, self._deliver(cluster, one)

    # The producers: DynamicWalk.ask, next and leave; Fill.tile and end ------------------------------

    def _may_produce(self, cluster: SchedulerCluster, cta: SchedulerCta) -> bool:
        if cta.producer == "post":
            return self.fault == "full mailbox" or cluster.taken_out(cta.turn - SLOTS + 1)
        if cta.producer == "get":
            return cta.arrived[cta.turn % SLOTS] > cta.turn // SLOTS
        if cta.producer in ("load", "finish"):
            return cluster.given_back(cta.loaded - self.stages + 1)
        if cta.producer == "drain":
            return self.fault == "no drain" or cluster.given_back(cta.loaded - 1)
        if cta.producer == "leave":
            return self.fault == "leave at once" or cluster.taken_out(cta.turn)
        return cta.producer != "done"

    def _produce(
        self, counter: int, cluster: SchedulerCluster, rank: int, cta: SchedulerCta
    ) -> tuple[int, SchedulerCluster]:
        step, others = cta.producer, range(1, self.size)
        after: dict[str, Any] = {}
        if step == "ask" and self.fault == "torn":
            after = {"taken": counter, "producer": "write"}
        elif step in ("ask", "write"):
            taken = cta.taken if step == "write" else counter
            counter, after = taken + 1, {"taken": taken, "producer": "load" if cta.todo else "take"}
        elif step == "take":
            beyond = cta.taken >= self.items if self.fault == "reset early" else cta.taken == self._numbers - 1
            resets = beyond and self.fault != "never reset"
            after = {"index": cta.taken, **({"producer": "reset"} if resets else self._pass_on(cta.taken))}
        elif step == "reset":
            counter, after = 0, self._pass_on(cta.index)
        elif step == "post":
            cluster = replace(cluster, mail=tuple(sorted((*cluster.mail, *((r, cta.turn, cta.index) for r in others)))))
            after = {"turn": cta.turn + 1, **self._begin(cta.index, 0)}
        elif step == "get":
            after = {"index": cta.mail[cta.turn % SLOTS], "turn": cta.turn + 1, "producer": "return"}
        elif step == "return":
            cluster.reach(range(1))
            after = {"returned": cta.returned + 1, **self._begin(cta.index, rank)}
        elif step in ("load", "finish"):
            cluster.reach(range(self.size if step == "load" else 0))
            after = {"loaded": cta.loaded + 1, "producer": "tag"}
            if self.fault != "late tag":
                after |= {"tags": self._tagged(cta, cta.loaded), **self._loaded(cta, rank)}
        elif step == "tag":
            after = {"tags": self._tagged(cta, cta.loaded - 1), **self._loaded(cta, rank)}
        else:
            after = {"producer": "leave" if step == "drain" and rank == 0 else "done"}
        return counter, cluster.having(rank, **after)

    @property
    def _numbers(self) -> int:
        """Numbers that are taken in all."""
        return self.items + self.clusters

    def _pass_on(self, index: int) -> dict[str, Any]:
        """The first CTA has a number: others want it too, or it begins."""
        return {"producer": "post"} if self.size > 1 else self._begin(index, 0)

    def _begin(self, index: int, rank: int) -> dict[str, Any]:
        if index >= self.items:
            return {"producer": "finish"}
        return {"todo": self.k_tiles, "producer": "load" if rank else "ask"}

    def _loaded(self, cta: SchedulerCta, rank: int) -> dict[str, Any]:
        """The step after a stage, or the number that says that there is no more."""
        if cta.index >= self.items:
            return {"producer": "drain" if self.size > 1 else "done"}
        more = "get" if rank else "take"
        return {"todo": cta.todo - 1, "producer": "load" if cta.todo > 1 else more}

    def _tagged(self, cta: SchedulerCta, fill: int) -> tuple[int, ...]:
        slot, number = fill % self.stages, cta.index if cta.index < self.items else NO_MORE
        return (*cta.tags[:slot], number, *cta.tags[slot + 1 :])

    def _deliver(self, cluster: SchedulerCluster, one: tuple[int, int, int]) -> SchedulerCluster:
        """A number arrives in a mailbox, with the bytes that its full barrier waits for."""
        rank, turn, number = one
        cluster.reach(range(rank, rank + 1))
        cta, slot = cluster.ctas[rank], turn % SLOTS
        if cta.turn <= turn - SLOTS:
            raise Broken("mailbox", f"number {number} over one that CTA {rank} has not taken out: {cluster}")
        mail = (*cta.mail[:slot], number, *cta.mail[slot + 1 :])
        arrived = (*cta.arrived[:slot], cta.arrived[slot] + 1, *cta.arrived[slot + 1 :])
        cluster = replace(cluster, mail=tuple(other for other in cluster.mail if other != one))
        return cluster.having(rank, mail=mail, arrived=arrived)

    # The consumers: ReceivedWalk.next, multiply_tile --------------------------------------------------

    def _full(self, cluster: SchedulerCluster, cta: SchedulerCta) -> bool:
        """Return True if the consumer's next slot is full: loaded by every CTA, or marked as the end by its own."""
        last = cta.tags[cta.released % self.stages] == NO_MORE
        return all(other.loaded > cta.released for other in ((cta,) if last else cluster.ctas))

    def _consume(self, cluster: SchedulerCluster, rank: int, cta: SchedulerCta) -> SchedulerCluster:
        if cta.consumer == "wait":
            number = cta.tags[cta.released % self.stages]
            if number == NO_MORE:
                return cluster.having(rank, consumer="done")
            return cluster.having(rank, items=(*cta.items, number), left=self.k_tiles, consumer="read")
        cluster.reach(range(self.size))
        left = cta.left - 1
        return cluster.having(rank, released=cta.released + 1, left=left, consumer="read" if left else "wait")

    # What must hold ------------------------------------------------------------------------------

    def _ended(self, moment: SchedulerState) -> None:
        if not all(cta.gone for cluster in moment.clusters for cta in cluster.ctas):
            raise Broken("deadlock", str(moment))
        if moment.counter:
            raise Broken("counter", f"left at {moment.counter}")
        computed = [cta.items for cluster in moment.clusters for cta in cluster.ctas]
        alike = all(cta.items == cluster.ctas[0].items for cluster in moment.clusters for cta in cluster.ctas)
        if not alike or sorted(number for items in computed for number in items) != sorted(
            [*range(self.items)] * self.size
        ):
            raise Broken("items", str(computed))
