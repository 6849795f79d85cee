"""Producers that meet: in every order of events all of them get to the end, none is two meetings ahead of another, and
the counter is zero again for the next launch. The protocol of :mod:`hopper_gemm.kernel.pace`, step by step."""

from __future__ import annotations

import pytest

WAIT, COME, DONE = "wait", "come", "done"


def steps(state: tuple, meetings: int):
    """What can happen next: (counter, ((meeting, what it does), ...)) for each CTA that can go on."""
    counter, ctas = state
    for i, (meeting, doing) in enumerate(ctas):
        others = [*ctas]
        if doing == WAIT and counter >= (meeting - 1) * len(ctas):
            others[i] = (meeting, COME)
            yield counter, tuple(others)
        elif doing == COME:
            last = meeting == meetings
            others[i] = (meeting, DONE) if last else (meeting + 1, WAIT)
            after = counter + 1
            yield (0 if last and after == meeting * len(ctas) else after), tuple(others)


def reached(ctas: int, meetings: int) -> tuple[set, set]:
    """All states that can come about, and those from which nothing can."""
    first = (0, ((1, WAIT),) * ctas)
    seen, todo, ends = {first}, [first], set()
    while todo:
        state = todo.pop()
        following = list(steps(state, meetings))
        if not following:
            ends.add(state)
        todo += [one for one in following if one not in seen and not seen.add(one)]
    return seen, ends


@pytest.mark.parametrize(("ctas", "meetings"), [(1, 3), (2, 1), (2, 4), (3, 3), (4, 3)])
def test_every_order_of_events_ends_with_all_at_the_end_and_the_counter_at_zero(ctas, meetings):
    _, ends = reached(ctas, meetings)
    assert ends == {(0, ((meetings, DONE),) * ctas)}


@pytest.mark.parametrize(("ctas", "meetings"), [(2, 4), (3, 3), (4, 3)])
def test_nobody_is_further_ahead_than_from_one_meeting_to_the_next_but_one(ctas, meetings):
    """Who has come to a meeting knows that all have come to the one before."""
    seen, _ = reached(ctas, meetings)
    came = [[meeting - (doing != DONE) for meeting, doing in state] for _, state in seen]
    assert max(max(one) - min(one) for one in came) == 1
