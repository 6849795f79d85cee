"""A batch-invariant matmul in Triton, as servers of language models use: one tile for every problem, no cut of k.

Written from the public description of such kernels: as many programs as SMs, each walking over tiles of 128 x 128 in
groups of eight rows of tiles, in steps of 64 along k, with three stages and eight warps, by pointers and masks. The
module needs triton, which torch for CUDA brings along.
"""

import torch
import triton
import triton.language as tl

TILE_M, TILE_N, TILE_K, GROUP, STAGES, WARPS = 128, 128, 64, 8, 3, 8


@triton.jit
def _multiply(a, b, c, m, n, k, row_a, row_b, row_c, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
              GROUP: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        group, within = tile // (GROUP * tiles_n), tile % (GROUP * tiles_n)
        height = min(tiles_m - group * GROUP, GROUP)
        rows = (group * GROUP + within % height) * TILE_M + tl.arange(0, TILE_M)
        columns = within // height * TILE_N + tl.arange(0, TILE_N)
        read_rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < m, rows, 0), TILE_M), TILE_M)
        read_columns = tl.max_contiguous(tl.multiple_of(tl.where(columns < n, columns, 0), TILE_N), TILE_N)
        total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for step in range(tl.cdiv(k, TILE_K)):
            depth = step * TILE_K + tl.arange(0, TILE_K)
            left = tl.load(a + read_rows[:, None] * row_a + depth[None, :], mask=depth[None, :] < k, other=0.0)
            right = tl.load(b + read_columns[None, :] * row_b + depth[:, None], mask=depth[:, None] < k, other=0.0)
            total = tl.dot(left, right, total)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(c + rows[:, None] * row_c + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out = a @ b.T``, all contiguous along their last axis.

    Args:
        a: (m, k).
        b: (n, k).
        out: (m, n).
    """
    (m, k), n = a.shape, b.shape[0]
    programs = torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 4
    grid = (min(programs, triton.cdiv(m, TILE_M) * triton.cdiv(n, TILE_N)),)
    sizes = TILE_M, TILE_N, TILE_K, GROUP, grid[0]
    pitches = a.stride(0), b.stride(0), out.stride(0)
    _multiply[grid](a, b, out, m, n, k, *pitches, *sizes, num_stages=STAGES, num_warps=WARPS)
