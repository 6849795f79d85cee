"""Operands: who loads which part of a shared tile."""

from __future__ import annotations

import pytest
from cutlass import BFloat16

from hopper_gemm.kernel.operand import Operand


def operand(tile: int, sharers: int, by_rows: bool, tile_k: int = 64, turns: bool = False) -> Operand:
    """An operand whose tile is one consumer's share."""
    return Operand(BFloat16, tile, tile, tile_k, 4, sharers, turns, by_rows)


@pytest.mark.parametrize(
    ("tile", "sharers", "parts", "box"),
    [
        (128, 1, 1, (64, 64)),
        (128, 2, 1, (64, 64)),
        (128, 4, 4, (64, 16)),
        (192, 2, 2, (64, 32)),
        (160, 4, 4, (32, 16)),
        (256, 4, 1, (64, 64)),
        (16, 2, 2, (16, 32)),
    ],
)
def test_those_that_share_a_tile_along_its_rows_share_out_its_boxes_or_else_its_depth(tile, sharers, parts, box):
    one = operand(tile, sharers, True)
    assert (one.parts_of_depth, one.box) == (parts, box)
    boxes = one.slices // (1 if parts > 1 else sharers)
    assert boxes * box[0] * box[1] * sharers == tile * 64, "each loads as much"


def test_a_tile_along_its_depth_or_loaded_in_turn_keeps_its_depth():
    assert operand(96, 4, False).parts_of_depth == 1
    assert operand(96, 4, True, turns=True).parts_of_depth == 1
