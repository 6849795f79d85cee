"""Parts that meet in a workspace: every order of events ends, each part is read after it was written, and the counters
are where the next launch wants them; with fewer clusters than parts some order does not end.

A model of the protocol that :mod:`hopper_gemm.kernel.gathering` describes, each step taken by one cluster at a time.
Which part of which tile comes when is asked of the kernel.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from cutlass import BFloat16

from hopper_gemm.kernel.gemm import HopperGemm
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import footprint
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.roofline import clusters_at_once

SEND, COUNT_IN, WAIT, READ, LEAVE = range(5)


def walk(parts: int, items: int, k_tiles: int) -> list[tuple[int, int, int, int]]:
    """Tile, part, first stage and stages of each item, by the kernel."""
    config = GemmConfig(tile_m=64, split_k=parts, reduction="workspace")
    kernel = HopperGemm(footprint(config), BFloat16, "kk", BFloat16)
    found = (kernel._item(index, 0, k_tiles) for index in range(items))
    return [tuple(int(getattr(value, "value", value)) for value in item) for item in found]


@pytest.mark.parametrize(("parts", "k_tiles"), [(2, 2), (3, 17), (5, 64), (16, 1024), (33, 40)])
def test_the_parts_of_a_tile_are_neighbours_and_make_up_its_depth(parts, k_tiles):
    items = walk(parts, 3 * parts, k_tiles)
    assert [(tile, part) for tile, part, _, _ in items] == [(t, p) for t in range(3) for p in range(parts)]
    for tile in range(3):
        stages = [one for _, _, first, count in items[tile * parts :][:parts] for one in range(first, first + count)]
        assert stages == list(range(k_tiles))
    assert {count for *_, count in items} <= {k_tiles // parts, -(-k_tiles // parts)}


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_no_legal_config_has_more_parts_than_clusters_that_run_at_once(size):
    sides = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2)}[size]
    config = GemmConfig(tile_m=64, cluster_m=sides[0], cluster_n=sides[1], reduction="workspace")
    legal = [parts for parts in range(2, 200) if is_legal(replace(config, split_k=parts))]
    assert max(legal) == min(64, clusters_at_once(size))


def stuck(tiles: int, parts: int, clusters: int, resets: bool = True) -> set[str]:
    """What can go wrong in some order of events; empty where nothing can."""
    items = tiles * parts
    tile_of = [tile for tile, *_ in walk(parts, items, 64)]
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
            tile = tile_of[item]
            count, slots = list(counters), written
            if step == WAIT and counters[tile] < parts:
                continue
            if step == SEND:
                slots = written | {item}
            elif step == COUNT_IN:
                count[tile] += 1
            elif step == READ and not written >= {other for other in range(items) if tile_of[other] == tile}:
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
