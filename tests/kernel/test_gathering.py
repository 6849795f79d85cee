"""Parts that meet in a workspace: every order of events ends, each part is read after it was written, and the counters
are where the next launch wants them; with fewer clusters than parts some order does not end.

A model of the protocol that :mod:`hopper_gemm.kernel.gathering` describes, each step taken by one cluster at a time.
"""

from __future__ import annotations

import pytest

SEND, COUNT_IN, WAIT, READ, LEAVE = range(5)


def stuck(tiles: int, parts: int, clusters: int, resets: bool = True) -> set[str]:
    """What can go wrong in some order of events; empty where nothing can."""
    items = tiles * parts
    resident = min(clusters, items)
    found: set[str] = set()
    start = (tuple((c, SEND) for c in range(resident)), (0,) * tiles, frozenset())
    seen, todo = {start}, [start]
    while todo:
        places, counters, written = todo.pop()
        moved = False
        for c, (item, step) in enumerate(places):
            if item >= items:
                continue
            tile = item // parts
            count, slots = list(counters), written
            if step == WAIT and counters[tile] < parts:
                continue
            if step == SEND:
                slots = written | {item}
            elif step == COUNT_IN:
                count[tile] += 1
            elif step == READ and not written >= set(range(tile * parts, (tile + 1) * parts)):
                found.add("read before it was written")
            elif step == LEAVE:
                count[tile] += 1
                if resets and count[tile] == 2 * parts:
                    count[tile] = 0
            after = (item, step + 1) if step < LEAVE else (item + resident, SEND)
            state = ((*places[:c], after, *places[c + 1 :]), tuple(count), slots)
            moved = True
            if state not in seen:
                seen.add(state)
                todo.append(state)
        if not moved and any(item < items for item, _ in places):
            found.add("deadlock")
        if all(item >= items for item, _ in places) and any(counters):
            found.add("counters are not back at 0")
    return found


@pytest.mark.parametrize(
    ("tiles", "parts", "clusters"),
    [(1, 2, 2), (1, 4, 4), (2, 2, 2), (2, 2, 3), (2, 3, 4), (3, 2, 3), (3, 2, 4), (5, 2, 2), (3, 3, 4)],
)
def test_with_as_many_clusters_as_parts_every_order_ends_well(tiles, parts, clusters):
    assert stuck(tiles, parts, clusters) == set()


@pytest.mark.parametrize(("tiles", "parts", "clusters"), [(1, 2, 1), (1, 3, 2), (2, 3, 2)])
def test_with_fewer_clusters_than_parts_it_can_hang(tiles, parts, clusters):
    assert "deadlock" in stuck(tiles, parts, clusters)


def test_the_last_one_to_leave_must_set_the_counter_back():
    assert stuck(1, 2, 2, resets=False) == {"counters are not back at 0"}
