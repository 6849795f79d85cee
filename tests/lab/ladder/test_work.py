"""The study's walks, run on the host: every stage once, and who adds up whose sums."""

from __future__ import annotations

from itertools import product

import pytest

from hopper_gemm.lab.ladder.ladder_gemm import InterleavedRaster
from hopper_gemm.lab.ladder.stream import LEAST_STAGES, StreamRaster, StreamWalk
from tests.each import each
from tests.kernel.test_work import CLUSTERS, walking


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_interleaved_parts_take_every_so_many_stages_and_leave_none_out(parts):
    walk = walking(parts, kind=InterleavedRaster)
    for k_tiles in (parts, 64, 67):
        items = [walk(1, k_tiles, cluster)[0] for cluster in range(parts)]
        taken = [range(first, first + count * parts, parts) for _, _, first, count, *_ in items]
        assert sorted(stage for one in taken for stage in one) == list(range(k_tiles))


@pytest.fixture(scope="module")
def stream():
    """Items of a cluster in stream-K: tile, first stage, stages, owner, pieces."""
    walk = walking(kind=StreamRaster, walk_of=StreamWalk.of, cut=True)
    return lambda *arguments: [(tile, *rest) for tile, _, *rest in walk(*arguments)]


@each("tiles, k_tiles", product((1, 2, 7, 33, 65, 66, 67, 100, 131, 132, 200), (1, 7, 8, 64, 1000)))
def test_every_stage_is_computed_once_and_its_sum_is_found(stream, tiles, k_tiles):
    walks = [stream(tiles, k_tiles, cluster) for cluster in range(CLUSTERS)]
    pieces: dict[int, list[tuple[int, int, int]]] = {tile: [] for tile in range(tiles)}
    for cluster, items in enumerate(walks):
        for tile, first, count, *_ in items:
            pieces[tile].append((first, count, cluster))
    for of_tile in map(sorted, pieces.values()):
        reached = 0
        for first, count, _ in of_tile:
            assert first == reached
            reached += count
        assert reached == k_tiles
        clusters = [cluster for *_, cluster in of_tile]
        assert clusters == list(range(clusters[0], clusters[0] + len(clusters))), "neighbours, in the order of k"
    for items in walks:
        for i, (tile, first, count, head, number) in enumerate(items):
            if count < k_tiles:
                assert (head, number) == (min(pieces[tile])[2], len(pieces[tile])), "who owns it, and who else has some"
            if first:
                assert all(item[1:3] == (0, k_tiles) for item in items[:i]), "left for another after whole tiles only"
            elif count < k_tiles:
                assert i == len(items) - 1, "finished as the last that the cluster does"
        assert sum(bool(first) for _, first, *_ in items) <= 1, "sums are left once, of the first piece"


@pytest.mark.parametrize("tiles", [1, 7, 33])
def test_tiles_fewer_than_clusters_are_cut_for_all_of_them(stream, tiles):
    k_tiles = 1024
    counts = [sum(item[2] for item in stream(tiles, k_tiles, cluster)) for cluster in range(CLUSTERS)]
    assert max(counts) - min(counts) <= 1
    short = [sum(item[2] for item in stream(tiles, LEAST_STAGES, cluster)) for cluster in range(CLUSTERS)]
    assert sorted(filter(None, short)) == [LEAST_STAGES] * tiles
