"""The device's own raster code, run on the host: every tile once, groups walked as documented."""

from __future__ import annotations

import cutlass
import pytest
import torch
from cutlass import Int32, cute
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.kernel.work import Raster


@cute.jit
def _walk(out: cute.Tensor, tiles_m: Int32, tiles_n: Int32, along_m: Int32, swizzle: Int32, serpentine: Int32):
    raster = Raster.of(tiles_m, tiles_n, along_m, swizzle, serpentine, Int32(66))
    for i in cutlass.range(raster.tiles):
        m, n = raster.tile(i)
        out[i, 0] = m
        out[i, 1] = n


@pytest.fixture(scope="module")
def walk():
    """The order of tiles as a list of (m, n)."""

    def tensor(rows):
        return from_dlpack(torch.full((rows, 2), -1, dtype=torch.int32)).mark_layout_dynamic(leading_dim=1)

    compiled = cute.compile(_walk, tensor(1), *[Int32(1)] * 5, options="--gpu-arch sm_90a")

    def run(tiles_m, tiles_n, along_m, swizzle, serpentine=False):
        out = torch.full((tiles_m * tiles_n, 2), -1, dtype=torch.int32)
        order = from_dlpack(out).mark_layout_dynamic(leading_dim=1)
        compiled(order, *map(Int32, (tiles_m, tiles_n, along_m, swizzle, serpentine)))
        return [tuple(pair) for pair in out.tolist()]

    return run


@pytest.mark.parametrize("along_m", [0, 1])
@pytest.mark.parametrize("serpentine", [False, True])
def test_every_tile_is_visited_exactly_once(walk, along_m, serpentine):
    for tiles_m in (1, 2, 3, 7, 16):
        for tiles_n in (1, 2, 5, 8, 33):
            for swizzle in (1, 2, 4, 8, 16):
                order = walk(tiles_m, tiles_n, along_m, swizzle, serpentine)
                assert sorted(order) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]


def test_the_example_of_the_docstring(walk):
    order = walk(3, 5, 1, 2)
    table = [[order.index((m, n)) for n in range(5)] for m in range(3)]
    assert table == [[0, 1, 6, 7, 12], [2, 3, 8, 9, 13], [4, 5, 10, 11, 14]]


def test_raster_along_n_is_the_transpose_of_raster_along_m(walk):
    assert walk(5, 3, 0, 2) == [(n, m) for m, n in walk(3, 5, 1, 2)]


def test_a_serpentine_group_starts_beside_the_end_of_the_last(walk):
    order = walk(6, 8, 1, 2, serpentine=True)
    assert order[:12] == walk(6, 8, 1, 2)[:12], "the first group is walked forward"
    for end in range(11, 47, 12):
        assert order[end][0] == order[end + 1][0]


def test_swizzle_one_walks_plain_columns(walk):
    assert walk(3, 2, 1, 1) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
