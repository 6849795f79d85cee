"""Parts that meet in a workspace: every order of events ends, each part is read after it was written, in one launch
after the other; with fewer clusters than parts some order does not end.

A model of the protocol that :mod:`hopper_gemm.kernel.gathering` describes, each step taken by one cluster at a time.
Which part of which tile comes when is asked of the kernel.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from cutlass import BFloat16

from hopper_gemm.kernel.gathering import weights
from hopper_gemm.kernel.gemm import HopperGemm
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import footprint
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.roofline import clusters_at_once

SEND, COUNT_IN, WAIT, READ = range(4)
TOP = 2**31


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


def stuck(tiles: int, parts: int, clusters: int, weights=weights, start: int = 0) -> tuple[set[str], set[int]]:
    """What can go wrong in some order of events of a launch, nothing if all is well; and the counters it leaves."""
    items = tiles * parts
    tile_of, part_of = zip(*(item[:2] for item in walk(parts, items, 64)), strict=True)
    resident = min(clusters, items)
    found: set[str] = set()
    left: set[int] = set()
    begin = (tuple((c, SEND, 0) for c in range(resident)), (start,) * tiles, frozenset())
    seen, todo = {begin}, [begin]
    while todo:
        places, counters, written = todo.pop()
        moved = False
        for c, (item, step, before) in enumerate(places):
            if item >= items:
                continue
            tile = tile_of[item]
            count, slots = list(counters), written
            if step == WAIT and not (counters[tile] ^ before) & TOP:
                continue
            if step == SEND:
                slots = written | {item}
            elif step == COUNT_IN:
                before = count[tile]
                count[tile] = (before + weights(parts)[part_of[item] > 0]) % (2 * TOP)
            elif step == READ and not written >= {other for other in range(items) if tile_of[other] == tile}:
                found.add("read before it was written")
            after = (item, step + 1, before) if step < READ else (item + resident, SEND, 0)
            state = ((*places[:c], after, *places[c + 1 :]), tuple(count), slots)
            moved = True
            if state not in seen:
                seen.add(state)
                todo.append(state)
        if not moved and any(item < items for item, *_ in places):
            found.add("deadlock")
        if all(item >= items for item, *_ in places):
            left |= set(counters)
    return found, left


@pytest.mark.parametrize(
    ("tiles", "parts", "clusters"),
    [(1, 2, 2), (1, 4, 4), (2, 2, 2), (2, 2, 3), (2, 3, 4), (3, 2, 3), (3, 2, 4), (5, 2, 2), (3, 3, 4)],
)
def test_with_as_many_clusters_as_parts_every_order_of_two_launches_ends_well(tiles, parts, clusters):
    assert stuck(tiles, parts, clusters) == (set(), {TOP})
    assert stuck(tiles, parts, clusters, start=TOP) == (set(), {0})


@pytest.mark.parametrize(("tiles", "parts", "clusters"), [(1, 2, 1), (1, 3, 2), (2, 3, 2)])
def test_with_fewer_clusters_than_parts_it_can_hang(tiles, parts, clusters):
    assert "deadlock" in stuck(tiles, parts, clusters)[0]


def test_the_parts_must_add_up_to_the_highest_bit():
    assert stuck(1, 3, 3, weights=lambda parts: (TOP - parts, 1))[0] == {"deadlock"}
    assert "read before it was written" in stuck(1, 3, 3, weights=lambda parts: (TOP - 1, 1))[0]
