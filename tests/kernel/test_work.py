"""The device's own walks, run on the host: every stage of every tile once."""

from __future__ import annotations

from functools import cache

import cutlass
import pytest
import torch
from cutlass import Int32, cute
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.kernel.work import Edge, Raster, Walk
from hopper_gemm.model.rules.invariance import CUT, cuts

CLUSTERS, MOST = 66, 64

Piece = tuple[int, ...]
"""Tile, part, first stage, stages; where tiles are cut then the cluster that begins the tile and how many have a piece
of it."""


def plain(raster: Raster, k_tiles: Int32, cluster: Int32) -> Walk:
    """The kernel's own walk of a cluster."""
    return Walk(raster, 0, k_tiles, cluster, raster.clusters)


@cute.jit
def _walk(
    out: cute.Tensor,
    tiles: Int32,
    k_tiles: Int32,
    cluster: Int32,
    parts: Int32,
    by_part: Int32,
    kind: cutlass.Constexpr,
    walk_of: cutlass.Constexpr,
    cut: cutlass.Constexpr,
):
    """The items of a cluster, one a row."""
    order = Int32(1), Int32(1), Int32(1), Int32(0)
    of_parts = () if cutlass.const_expr(cut) else (parts, by_part, k_tiles)
    walk = walk_of(kind.of(tiles, *order, Int32(CLUSTERS), *of_parts), k_tiles, cluster)
    at = walk.start(None)
    count = Int32(0)
    while walk.more(at):
        item = walk.item(at)
        out[count, 0], out[count, 1] = item.tile, Int32(item.part)
        out[count, 2], out[count, 3] = Int32(item.k_first), item.k_count
        if cutlass.const_expr(cut):
            out[count, 4], out[count, 5] = walk.pieces(item.tile)
        at = walk.next(walk.ask(at), None)
        count = count + 1


@cute.jit
def _edge(out: cute.Tensor, rows: Int32, columns: Int32):
    edge = Edge.of((rows, columns), (128, 96), (8, 16))
    out[0, 0], out[0, 1] = edge.row, edge.column


@cache
def walked(kind: type[Raster], walk_of, cut: bool):
    """The code of a walk: the same for any number of parts."""
    return cute.compile(_walk, tensor()[1], *[Int32(1)] * 5, kind, walk_of, cut, options="--gpu-arch sm_90a")


def tensor():
    """Memory for the items of a cluster."""
    out = torch.full((MOST, 6), -1, dtype=torch.int32)
    return out, from_dlpack(out).mark_layout_dynamic(leading_dim=1)


def walking(parts=1, by_part=False, kind: type[Raster] = Raster, walk_of=plain, cut=False):
    """What gives the items of a cluster, by the code of the kernel."""
    compiled = walked(kind, walk_of, cut)

    def run(tiles: int, k_tiles: int, cluster: int) -> list[Piece]:
        out, argument = tensor()
        compiled(argument, *map(Int32, (tiles, k_tiles, cluster, parts, int(by_part))))
        return [tuple(row) for row in out.tolist() if row[0] >= 0]

    return run


@pytest.mark.parametrize("parts", [*range(1, 18), 31, 32, 33, 63, 64])
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


@pytest.mark.parametrize("parts", [4, 8])
def test_parts_begin_where_the_rule_of_batch_invariance_says(parts):
    walk = walking(parts)
    for k in (8192, 8200, 8264, 20000):
        items = [walk(1, -(-k // CUT), cluster)[0] for cluster in range(parts)]
        assert tuple(first * CUT for _, _, first, *_ in items[1:]) == cuts(k, parts)


@pytest.mark.parametrize("parts", [1, 2, 3, 16])
def test_by_part_all_tiles_have_their_first_part_before_any_has_its_second(parts):
    walk = walking(parts, by_part=True)
    for tiles, k_tiles in ((1, 64), (4, 67)):
        items = [walk(tiles, k_tiles, cluster)[0] for cluster in range(tiles * parts)]
        assert [item[:2] for item in items] == [(tile, part) for part in range(parts) for tile in range(tiles)]
        for tile in range(tiles):
            ranges = [range(first, first + count) for _, _, first, count, *_ in items[tile::tiles]]
            assert [stage for one in ranges for stage in one] == list(range(k_tiles))


def test_the_last_tiles_begin_at_the_first_step_from_which_they_reach_the_end():
    compiled = cute.compile(_edge, tensor()[1], Int32(1), Int32(1), options="--gpu-arch sm_90a")
    for rows, columns in ((1000, 1000), (128, 96), (5, 200), (129, 97), (136, 112)):
        out, argument = tensor()
        compiled(argument, Int32(rows), Int32(columns))
        first = [
            next(at for at in range(0, 1000, step) if at + tile >= size)
            for size, tile, step in ((rows, 128, 8), (columns, 96, 16))
        ]
        assert out[0, :2].tolist() == first
