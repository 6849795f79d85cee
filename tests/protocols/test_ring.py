"""The ring's protocol holds in every order of events, and each mistake in it is found."""

from __future__ import annotations

import random
from itertools import cycle, product
from math import ceil

import pytest

from hopper_gemm.model.rules.shape import STAGGER_MAX
from tests.each import each
from tests.protocols.broken import failing
from tests.protocols.exploration import Broken
from tests.protocols.ring_machine import ORDERS, explore, run
from tests.protocols.ring_protocol import Barrier, Fault, Protocol

STAGES = (*range(1, 11), 13, 18)
"""Every depth of the published grid."""

SMALL = range(1, 4)


def staggers(stages: int) -> range:
    """All that legality lets pass."""
    return range(min(stages - 1, STAGGER_MAX) + 1)


def shapes(stages: int, stagger: int) -> list[tuple[int, int]]:
    """(tiles, k_tiles): tiles shorter than the stagger, than the ring, as long as the ring, longer; every slot is
    filled twice at least, slot 0 three times."""
    k_tiles = {1, max(1, stagger - 1), stagger + 1, stages, stages + 2}
    return [(max(2, ceil((2 * stages + 1) / k)), k) for k in sorted(k_tiles)]


def drawn(rng: random.Random) -> dict:
    """The options that the protocol must not depend on."""
    return {
        "warps": rng.randint(1, 2),
        "lanes": rng.randint(1, 2),
        "pingpong": rng.random() < 0.5,
        "one_full": rng.random() < 0.5,
    }


# What a barrier counts --------------------------------------------------------------------------


def test_a_barrier_keeps_its_phase_until_arrivals_and_bytes_are_in_whatever_comes_first():
    armed = Barrier(expected=2, pending=2).arrive(1, 0, announced=3)
    for barrier in (armed.arrive(1, 0).land(3, 0), armed.land(3, 0).arrive(1, 0), armed.land(1, 0).land(2, 0)):
        assert barrier.phase == (barrier.pending == 2)
    assert armed.land(3, 0).arrive(1, 0) == Barrier(expected=2, pending=2, bytes=0, phase=1)


def test_a_wait_blocks_only_in_the_phase_of_its_parity_and_cannot_tell_two_phases_apart():
    """So a waiter that is two phases ahead of the barrier passes as if it were not."""
    for phase in range(4):
        barrier = Barrier(expected=1, pending=1, phase=phase)
        assert not barrier.passes(phase % 2)
        assert barrier.passes((phase - 1) % 2)
        assert barrier.passes((phase + 1) % 2)


def test_arrivals_beyond_the_count_or_for_another_phase_are_refused():
    assert failing(Barrier(2, 1).arrive, 2, 0) == "arrivals"
    assert failing(Barrier(2, 2).arrive, 1, 1) == "arrivals"
    assert failing(Barrier(1, 1).land, 1, 1) == "bytes"


# The protocol holds ----------------------------------------------------------------------------


@each("stages", STAGES)
def test_no_drawn_or_adverse_order_breaks_the_ring(stages):
    rng, orders = random.Random(stages), cycle(ORDERS)
    for stagger in staggers(stages):
        for shape, consumers in product(shapes(stages, stagger), (1, 2, 3)):
            ring = Protocol(stages, stagger, *shape, consumers, **drawn(rng))
            machine = run(ring, next(orders), seed=rng.randrange(1000))
            assert [len(program) for program in ring.programs] == machine.at
            assert sum(kind == "land" for kind, *_ in machine.trail) == 2 * ring.fills
            assert sum(kind == "retire" for kind, *_ in machine.trail) == sum(map(len, ring.readers))


@pytest.mark.parametrize("stages", SMALL)
def test_no_order_at_all_breaks_a_small_ring_of_one_consumer(stages):
    for stagger, k_tiles, options in product(
        staggers(stages),
        range(1, stages + 2),
        ({}, {"one_full": False}, {"lanes": 2}),
    ):
        assert explore(Protocol(stages, stagger, ceil((2 * stages + 1) / k_tiles), k_tiles, **options)) > stages


@pytest.mark.parametrize("options", [{"lanes": 2}, {"pingpong": True}, {"pingpong": True, "one_full": False}])
@pytest.mark.parametrize("stages", SMALL)
def test_no_order_at_all_breaks_a_small_ring_of_two_consumers(stages, options):
    for stagger, k_tiles in product(staggers(stages), range(1, stages + 2)):
        tiles = ceil((2 * stages + 1 if stages < 3 else stages + 2) / k_tiles)
        assert explore(Protocol(stages, stagger, tiles, k_tiles, 2, **options)) > stages


@pytest.mark.parametrize(("consumers", "warps", "pingpong"), [(3, 1, False), (3, 1, True), (1, 3, False), (2, 2, True)])
def test_no_order_at_all_breaks_a_tiny_ring_of_three_warps_or_more(consumers, warps, pingpong):
    for stages, k_tiles in ((1, 1), (2, 1), (2, 2)):
        ring = Protocol(stages, stages - 1, ceil(5 / k_tiles), k_tiles, consumers, warps, pingpong=pingpong)
        assert explore(ring) > stages


# Mistakes are found ----------------------------------------------------------------------------


def test_the_counterexample_is_the_shortest_there_is():
    """A slot given back while its group runs is loaded anew as soon as the other slot is filled."""
    with pytest.raises(Broken) as found:
        explore(Protocol(stages=2, stagger=1, tiles=1, k_tiles=3, fault=Fault(early=1)))
    assert found.value.kind == "overwrite"
    assert sorted(kind for kind, *_ in found.value.trail) == ["land", "land", "load", "load", "load", "read", "release"]
    assert found.value.trail[-1] == ("load", 0)


def overwrites(ring: Protocol) -> bool:
    """Whether releasing too soon can be seen at all.

    It cannot where a tile is too short to release anything but after wait_group 0, which leaves no group running; nor
    where the run ends before any slot is filled again. Fill 0 is the first to be released, and to be overwritten.
    """
    return ring.k_tiles > ring.stagger - ring.fault.early and ring.fills > ring.stages


@pytest.mark.parametrize("fault", [Fault(early=1), Fault(lax=1)], ids=["early", "lax"])
@pytest.mark.parametrize("stages", SMALL)
def test_a_slot_given_back_too_soon_is_found_exactly_where_it_does_harm(stages, fault):
    seen = set()
    for stagger, tiles, k_tiles, consumers in product(staggers(stages), (1, 2, 3), range(1, 5), (1, 2)):
        if fault.early <= stagger and tiles * k_tiles <= stages + 2:
            ring = Protocol(stages, stagger, tiles, k_tiles, consumers, fault=fault)
            assert failing(explore, ring) == ("overwrite" if overwrites(ring) else None)
            seen.add(overwrites(ring))
    assert seen == ({True, False} if stages > fault.early else set())


@each("stages, fault", product(STAGES, (Fault(early=1), Fault(lax=1))))
def test_hasty_loads_find_a_slot_given_back_too_soon_at_every_depth(stages, fault):
    rng = random.Random(stages)
    for stagger in staggers(stages)[fault.early :]:
        for shape in shapes(stages, stagger):
            ring = Protocol(stages, stagger, *shape, rng.randint(1, 3), fault=fault, **drawn(rng))
            assert failing(run, ring, "hasty loads") == ("overwrite" if overwrites(ring) else None)


@each("stages", STAGES)
def test_holding_back_as_many_slots_as_there_are_deadlocks(stages):
    """So stagger is at most stages - 1."""
    assert failing(run, Protocol(stages, stages, 1, stages + 1)) == "deadlock"
    assert failing(run, Protocol(stages, stages - 1, 1, stages + 1)) is None


@each("stages", STAGES)
def test_copies_announced_late_need_as_many_slots_that_nobody_holds_back(stages):
    """So cp.async keeps stages - 1 - stagger stages under way at most."""
    rng, orders = random.Random(stages), cycle(ORDERS)
    for stagger in staggers(stages):
        spare = stages - 1 - stagger
        for late, shape in product(sorted({0, min(1, spare), spare // 2, spare}), shapes(stages, stagger)):
            run(Protocol(stages, stagger, *shape, late=late, **drawn(rng)), next(orders), seed=rng.randrange(1000))
        assert failing(run, Protocol(stages, stagger, 1, 2 * stages + 1, late=spare + 1)) == "deadlock"


@each("stages", STAGES)
def test_a_producer_that_does_not_start_one_phase_ahead_never_starts(stages):
    with pytest.raises(Broken) as found:
        run(Protocol(stages, 0, 1, 1, fault=Fault(phase_ahead=False)))
    assert (found.value.kind, found.value.trail) == ("deadlock", ())


@each("stages", STAGES)
def test_a_tail_that_is_not_released_deadlocks_a_later_tile_or_is_missed_at_the_end(stages):
    rng = random.Random(stages)
    for stagger in staggers(stages)[1:]:
        for tiles, k_tiles in [(1, stages), *shapes(stages, stagger)]:
            ring = Protocol(stages, stagger, tiles, k_tiles, 2, fault=Fault(skip_drain=True), **drawn(rng))
            kept = max(0, k_tiles - stagger)
            assert failing(run, ring) == ("deadlock" if kept + stages < ring.fills else "unsettled")


@each("stages", STAGES)
def test_one_arrival_too_many_or_too_few_is_found(stages):
    for stagger, warps, lanes in product(staggers(stages), (1, 2), (1, 2)):
        shape = (2, stages + 1)
        many = Protocol(stages, stagger, *shape, warps=warps, lanes=lanes, fault=Fault(strays=1))
        few = Protocol(stages, stagger, *shape, warps=warps, lanes=lanes, fault=Fault(strays=-1))
        assert failing(run, many) in ("arrivals", "overwrite")
        assert failing(run, few) == "deadlock"


@pytest.mark.parametrize("one_full", [True, False])
def test_bytes_that_are_not_announced_let_a_slot_be_read_before_it_is_full(one_full):
    ring = Protocol(2, 1, 1, 2, one_full=one_full, fault=Fault(short=True))
    found = {failing(run, ring, "late loads", seed) for seed in range(8)}
    assert "early read" in found
    assert None not in found


def shared_slot(ring: Protocol) -> bool:
    """Whether a consumer ever fills in for another on a slot; if not, its own reading keeps it from running ahead."""
    return any(ring.readers[fill] != ring.readers[fill - ring.stages] for fill in range(ring.stages, ring.fills))


@pytest.mark.parametrize("stages", SMALL)
def test_a_pingpong_consumer_that_does_not_await_its_turn_passes_on_the_wrong_phase(stages):
    """The parity of a slot's last round but one is that of the next: whoever skips a round not yet loaded passes."""
    for k_tiles, tiles in product(range(1, 5), (2, 3, 4)):
        if k_tiles * tiles <= 3 * stages + 2:
            ring = Protocol(stages, 0, tiles, k_tiles, 2, pingpong=True, fault=Fault(ordered=False))
            assert failing(explore, ring) == ("wrong phase" if shared_slot(ring) else None)


@each("stages", STAGES)
def test_late_loads_find_a_missing_turn_at_every_depth(stages):
    for k_tiles in (stages, stages + 1):
        ring = Protocol(stages, min(1, stages - 1), 4, k_tiles, 2, pingpong=True, fault=Fault(ordered=False))
        assert failing(run, ring, "late loads") == "wrong phase"


# Consumers that start behind one another, and slots in which C is staged ------------------------


@pytest.mark.parametrize(("stages", "stagger", "skew"), [(2, 0, 1), (3, 0, 2), (3, 1, 1)])
def test_no_order_breaks_a_ring_whose_consumers_start_behind_one_another(stages, stagger, skew):
    """Also with tiles shorter than the skew, and with fewer stages in all."""
    for k_tiles, tiles in ((1, 1), (1, 3), (2, 1), (2, 2), (stages + 1, 1)):
        assert explore(Protocol(stages, stagger, tiles, k_tiles, 2, skew=skew)) > stages


@each("stages", STAGES[1:])
def test_a_skewed_consumer_that_waits_for_a_stage_beyond_its_first_tile_may_wait_for_ever(stages):
    skew = stages - 1
    for tiles, k_tiles in ((1, skew), (1, skew + 1)):
        rash = Protocol(stages, 0, tiles, k_tiles, 2, skew=skew, fault=Fault(rash=True))
        assert failing(run, rash) == ("deadlock" if k_tiles == skew else None)
        assert failing(run, Protocol(stages, 0, tiles, k_tiles, 2, skew=skew)) is None


@pytest.mark.parametrize("stages", SMALL)
def test_no_order_of_events_breaks_a_ring_whose_consumers_end_tiles_in_order(stages):
    """Also with tiles shorter than the stages that are kept in order, and than the ring."""
    for stagger in staggers(stages):
        for order, k_tiles in product(range(1, stages - stagger + 1), range(1, stages + 2)):
            tiles = max(2, ceil((stages + 2) / k_tiles))
            assert explore(Protocol(stages, stagger, tiles, k_tiles, 2, order=order)) > stages


@each("stages", STAGES)
def test_no_drawn_order_of_events_breaks_a_ring_whose_consumers_end_tiles_in_order(stages):
    rng, orders = random.Random(stages), cycle(ORDERS)
    for stagger in staggers(stages):
        for order, shape in product({1, stages - stagger}, shapes(stages, stagger)):
            ring = Protocol(stages, stagger, *shape, 2, warps=rng.randint(1, 2), order=order)
            run(ring, next(orders), seed=rng.randrange(1000))


@each("stages", STAGES)
def test_more_stages_in_order_than_the_ring_has_beside_the_stagger_deadlock(stages):
    for stagger in staggers(stages):
        most = stages - stagger
        assert failing(run, Protocol(stages, stagger, 1, 2 * stages + 1, 2, order=most + 1)) == "deadlock"
        assert failing(run, Protocol(stages, stagger, 1, 2 * stages + 1, 2, order=most)) is None


@pytest.mark.parametrize("stages", SMALL)
def test_a_turn_that_is_given_unasked_is_found_where_two_may_be_given_for_one(stages):
    """Where the ring holds all that the first consumer may do beyond the stage before which the second waits."""
    for k_tiles, order in product(range(1, 4), range(1, stages + 1)):
        ring = Protocol(stages, 0, 3, k_tiles, 2, order=order, fault=Fault(unasked=True))
        second_waits = max(0, k_tiles - order)
        twice = 2 * k_tiles <= second_waits + stages
        assert failing(explore, ring) == ("turns" if twice else None)


@pytest.mark.parametrize("stages", SMALL)
def test_no_order_breaks_a_ring_in_whose_slots_the_tile_is_staged(stages):
    for stagger, held in product(staggers(stages), range(1, stages + 1)):
        for k_tiles in {held, stages, stages + 1}:
            assert explore(Protocol(stages, stagger, 2, k_tiles, held=held)) > stages
            assert failing(run, Protocol(stages, stagger, 3, k_tiles, 2, held=held)) is None


def test_a_tile_with_fewer_stages_than_it_is_staged_in_gives_back_slots_that_are_not_its_own():
    assert failing(run, Protocol(3, 1, 2, 2, held=3)) == "arrivals"
