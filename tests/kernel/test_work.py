"""The device's own walks, run on the host: every stage of every tile once, and who adds up whose sums."""

from __future__ import annotations

import cutlass
import pytest
import torch
from cutlass import Int32, cute
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.kernel.work import LEAST_STAGES, Raster, StreamWalk, Walk

CLUSTERS, MOST = 66, 64

Piece = tuple[int, ...]
"""Tile, part, first stage, stages; of stream-K then the cluster that begins the tile and how many have a piece of
it."""


@cute.jit
def _walk(
    out: cute.Tensor,
    tiles: Int32,
    k_tiles: Int32,
    cluster: Int32,
    parts: cutlass.Constexpr,
    stream: cutlass.Constexpr,
    by_part: cutlass.Constexpr,
    kind: cutlass.Constexpr,
):
    """The items of a cluster, one a row."""
    order = Int32(1), Int32(1), Int32(1), Int32(0)
    raster = kind.of(tiles, *order, Int32(CLUSTERS), parts, stream, by_part)
    if cutlass.const_expr(stream):
        walk = StreamWalk.of(raster, k_tiles, cluster)
    else:
        walk = Walk(raster, 0, k_tiles, cluster, raster.clusters)
    at = walk.start(None)
    count = Int32(0)
    while walk.more(at):
        item = walk.item(at)
        out[count, 0], out[count, 1] = item.tile, Int32(item.part)
        out[count, 2], out[count, 3] = Int32(item.k_first), item.k_count
        if cutlass.const_expr(stream):
            out[count, 4], out[count, 5] = walk.pieces(item.tile)
        at = walk.next(walk.ask(at), None)
        count = count + 1


def walking(parts: int = 1, stream: bool = False, by_part: bool = False, kind: type[Raster] = Raster):
    """What gives the items of a cluster, by the code of the kernel."""

    def tensor():
        out = torch.full((MOST, 6), -1, dtype=torch.int32)
        return out, from_dlpack(out).mark_layout_dynamic(leading_dim=1)

    ways = parts, stream, by_part, kind
    compiled = cute.compile(_walk, tensor()[1], *[Int32(1)] * 3, *ways, options="--gpu-arch sm_90a")

    def run(tiles: int, k_tiles: int, cluster: int) -> list[Piece]:
        out, argument = tensor()
        compiled(argument, *map(Int32, (tiles, k_tiles, cluster)))
        return [tuple(row) for row in out.tolist() if row[0] >= 0]

    return run


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 16, 33, 64])
def test_clusters_deal_out_the_parts_of_every_tile_which_are_neighbours_and_make_up_its_depth(parts):
    walk = walking(parts)
    for tiles, k_tiles in ((1, 64), (3, parts), (7, 1024), (40, 67)):
        walks = [walk(tiles, k_tiles, cluster) for cluster in range(min(CLUSTERS, tiles * parts))]
        dealt = {cluster + i * len(walks): item for cluster, one in enumerate(walks) for i, item in enumerate(one)}
        items = [dealt[number] for number in range(tiles * parts)]
        assert len(dealt) == tiles * parts
        assert [item[:2] for item in items] == [(tile, part) for tile in range(tiles) for part in range(parts)]
        for tile in range(tiles):
            ranges = [range(first, first + count) for _, _, first, count, *_ in items[tile * parts :][:parts]]
            assert [stage for one in ranges for stage in one] == list(range(k_tiles))
        assert {item[3] for item in items} <= {k_tiles // parts, -(-k_tiles // parts)}


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_by_part_all_tiles_have_their_first_part_before_any_has_its_second(parts):
    walk = walking(parts, by_part=True)
    for tiles, k_tiles in ((1, 64), (4, 67)):
        items = [walk(tiles, k_tiles, cluster)[0] for cluster in range(tiles * parts)]
        assert [item[:2] for item in items] == [(tile, part) for part in range(parts) for tile in range(tiles)]
        for tile in range(tiles):
            ranges = [range(first, first + count) for _, _, first, count, *_ in items[tile::tiles]]
            assert [stage for one in ranges for stage in one] == list(range(k_tiles))


@pytest.fixture(scope="module")
def stream():
    """Items of a cluster in stream-K: tile, first stage, stages, owner, pieces."""
    walk = walking(stream=True)
    return lambda *arguments: [(tile, *rest) for tile, _, *rest in walk(*arguments)]


@pytest.mark.parametrize("tiles", [1, 2, 7, 33, 65, 66, 67, 100, 131, 132, 200])
@pytest.mark.parametrize("k_tiles", [1, 7, 8, 64, 1000])
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
