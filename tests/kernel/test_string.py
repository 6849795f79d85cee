"""The device's own stream-K code, run on the host: every stage of every tile once, and who waits for whom."""

from __future__ import annotations

import cutlass
import pytest
import torch
from cutlass import Int32, cute
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.kernel.stream_k import LEAST_STAGES, String
from hopper_gemm.kernel.tile_scheduler import Raster

CLUSTERS = 66


@cute.jit
def _walk(out: cute.Tensor, tiles: Int32, k_tiles: Int32, cluster: Int32):
    raster = Raster(tiles, Int32(1), Int32(1), Int32(1), Int32(0), Int32(CLUSTERS), cut=True)
    string = String.of(raster, k_tiles)
    index, at, end = cluster, string.start(cluster), string.start(cluster + 1)
    pieces = Int32(0)
    while string.more(index, at, end):
        tile, first, count = string.piece(index, at, end)
        at = cutlass.select_(index < string.whole, at, at + count)
        index = index + raster.clusters
        out[pieces, 0] = tile
        out[pieces, 1] = first
        out[pieces, 2] = count
        pieces = pieces + 1


@pytest.fixture(scope="module")
def walk():
    """The pieces of a cluster as a list of (tile, first stage, stages)."""

    def tensor():
        out = torch.full((64, 3), -1, dtype=torch.int32)
        return out, from_dlpack(out).mark_layout_dynamic(leading_dim=1)

    compiled = cute.compile(_walk, tensor()[1], *[Int32(1)] * 3, options="--gpu-arch sm_90a")

    def run(tiles, k_tiles, cluster):
        out, argument = tensor()
        compiled(argument, *map(Int32, (tiles, k_tiles, cluster)))
        return [tuple(piece) for piece in out.tolist() if piece[0] >= 0]

    return run


@pytest.mark.parametrize("tiles", [1, 2, 7, 33, 65, 66, 67, 100, 131, 132, 200])
@pytest.mark.parametrize("k_tiles", [1, 7, 8, 64, 1000])
def test_every_stage_is_computed_once_and_its_sum_is_found(walk, tiles, k_tiles):
    walks = [walk(tiles, k_tiles, cluster) for cluster in range(CLUSTERS)]
    stages = sorted((tile, first, count) for pieces in walks for tile, first, count in pieces)
    for tile in range(tiles):
        reached = 0
        for _, first, count in (piece for piece in stages if piece[0] == tile):
            assert first == reached
            reached += count
        assert reached == k_tiles
    cut = [piece for piece in stages if piece[2] < k_tiles]
    assert len(cut) <= CLUSTERS + tiles % CLUSTERS
    for cluster, pieces in enumerate(walks):
        for i, (tile, first, count) in enumerate(pieces):
            if first:  # left for the cluster that began the tile: before this one waits for anybody
                assert all(piece[1:] == (0, k_tiles) for piece in pieces[:i]), "after whole tiles only"
            elif count < k_tiles:  # finished by this one, of sums that the next clusters left first in the string
                missing, other = k_tiles - count, cluster + 1
                while missing:
                    left = next(piece for piece in walks[other] if piece[1])
                    assert left[0] == tile
                    missing, other = missing - left[2], other + 1
                assert i == len(pieces) - 1, "the last that it does"


@pytest.mark.parametrize("tiles", [1, 7, 33])
def test_tiles_fewer_than_clusters_are_cut_for_all_of_them(walk, tiles):
    k_tiles = 1024
    counts = [sum(count for *_, count in walk(tiles, k_tiles, cluster)) for cluster in range(CLUSTERS)]
    assert max(counts) - min(counts) <= 1
    short = [sum(count for *_, count in walk(tiles, LEAST_STAGES, cluster)) for cluster in range(CLUSTERS)]
    assert sorted(filter(None, short)) == [LEAST_STAGES] * tiles
