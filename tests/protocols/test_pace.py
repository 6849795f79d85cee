"""Producers that meet: in every order of events all of them get to the end, whoever is resident, and the counter is
zero again for the next launch."""

from __future__ import annotations

import pytest

from tests.protocols.broken import failing
from tests.protocols.pace import Meetings

LAUNCHES = [((3,), 3), ((1, 1), 1), ((4, 4), 4), ((3, 2), 2), ((2, 2, 2), 2), ((3, 3, 2), 2)]
"""Meetings of each CTA and of all: whole waves, and a last one in which not all have a tile."""


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize(("attends", "shared"), LAUNCHES)
def test_whoever_is_resident_every_order_ends_with_all_at_the_end_and_the_counter_at_zero(attends, shared, looks):
    for resident in range(1, len(attends) + 1):
        assert Meetings(attends, shared, resident, looks).run().moments > sum(attends)


@pytest.mark.parametrize("attends", [(4, 0), (5, 1), (0, 3, 3), (5, 1, 0)])
def test_a_cta_that_the_dynamic_scheduler_gives_few_tiles_or_none_stops_nobody(attends):
    for resident, shared in ((1, 2), (2, 2), (len(attends), 3)):
        assert Meetings(attends, shared, resident, looks=2).run().moments > sum(attends)


@pytest.mark.parametrize("looks", [2, None])
@pytest.mark.parametrize("attends", [(5, 5), (4, 4, 4)])
def test_nobody_who_waits_is_two_meetings_ahead_of_the_average(attends, looks):
    """Unless its patience ran out."""
    expected = None if looks is None else "ahead"
    assert failing(Meetings(attends, attends[0] - 1, len(attends), looks, ahead=2).run) == expected
    assert failing(Meetings(attends, attends[0] - 1, len(attends), looks, ahead=1).run) == "ahead"


@pytest.mark.parametrize(
    ("fault", "launch", "kind"),
    [
        ("torn", ((2, 2), 2, 2), "counter"),
        ("short total", ((2, 2), 2, 2), "counter"),
        ("short total", ((2, 2), 2, 1), "counter"),
        ("whole waves", ((3, 2), 2, 2), "counter"),
    ],
)
def test_each_mistake_is_found(fault, launch, kind):
    assert failing(Meetings(*launch, fault=fault).run) == kind


def test_without_a_bound_a_producer_waits_for_ever_where_a_cta_has_no_sm_or_the_counter_is_set_back_meanwhile():
    assert failing(Meetings((3, 3), 2, resident=2, looks=None).run) is None
    assert failing(Meetings((3, 3), 3, resident=1, looks=None).run) == "deadlock"
    assert failing(Meetings((4, 4), 4, resident=2, looks=None).run) == "deadlock"
