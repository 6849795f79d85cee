"""One binary serves any number of split-K parts through a workspace, and adds them in their order."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch

from hopper_gemm.compiler.loader import LoadedKernel, load, load_binary
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.invariance import cuts
from hopper_gemm.tune.measure.correctness import same_bits

pytestmark = pytest.mark.gpu

PARTS = (2, 3, 4, 8, 16, 33)
DTYPES = ("bf16", "bf16_fp32")
PROBLEM = GemmProblem(300, 520, 70 * 64 + 8)
TILES = {
    "128x128": GemmConfig(tile_m=128, tile_n=128, stagger=0),
    "128x256 2x1": GemmConfig(tile_m=128, tile_n=256, cluster_m=2, stagger=0),
    "64x192 swapped": GemmConfig(tile_m=64, tile_n=192, swap_ab=True),
    "64x32": GemmConfig(tile_m=64, tile_n=32),
}


def apart(tile: GemmConfig, parts: int, part_order: str = "tile") -> GemmConfig:
    """The config of a tile with split-K parts through a workspace."""
    return replace(tile, split_k=parts, reduction="workspace", part_order=part_order)  # type: ignore[arg-type]


def kernels() -> list[KernelId]:
    """The binaries of all tests."""
    configs = [config for tile in TILES.values() for config in (tile, apart(tile, 2))]
    configs += [replace(TILES["128x128"], split_k=parts) for parts in (2, 4, 8)]
    return [KernelId.of(config, replace(PROBLEM, dtype=dtype)) for config in configs for dtype in DTYPES]


@cache
def operands(k: int = PROBLEM.k) -> tuple[torch.Tensor, torch.Tensor]:
    """A (m, k) and B (n, k)."""
    generator = torch.Generator("cuda").manual_seed(k)
    a, b = (torch.randn(rows, k, device="cuda", generator=generator) for rows in (PROBLEM.m, PROBLEM.n))
    return a.bfloat16(), b.bfloat16()


def product(kernel: LoadedKernel, a: torch.Tensor, b: torch.Tensor, dtype: str) -> torch.Tensor:
    """C by a kernel."""
    out = a.new_full((a.shape[0], b.shape[0]), float("nan"), dtype=torch.float32 if "_" in dtype else a.dtype)
    kernel(a, b, out)
    return out


def in_order(tile: GemmConfig, parts: int, dtype: str) -> torch.Tensor:
    """C as zero plus the product of each stretch of k in turn, by the plain kernel to fp32."""
    a, b = operands()
    ends = (0, *cuts(PROBLEM.k, parts, tile.tile_k), PROBLEM.k)
    total = torch.zeros(PROBLEM.m, PROBLEM.n, device="cuda")
    for first, last in pairwise(ends):
        kernel = load(tile, GemmProblem(PROBLEM.m, PROBLEM.n, last - first, "bf16_fp32"))
        total += product(kernel, a[:, first:last].contiguous(), b[:, first:last].contiguous(), "bf16_fp32")
    return total if "_" in dtype else total.bfloat16()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
def test_any_number_of_parts_in_either_order_gives_the_bits_of_its_order_of_addition(tile, dtype):
    """Parts that own no chunk, several chunks, and a remainder of k among them; three launches each."""
    problem = replace(PROBLEM, dtype=dtype)
    for parts in PARTS:
        expected = in_order(TILES[tile], parts, dtype)
        for part_order in ("tile", "part"):
            config = apart(TILES[tile], parts, part_order)
            if is_legal(config, problem):  # in the order "part" all run at once
                kernel = load(config, problem)
                assert all(same_bits(product(kernel, *operands(), dtype), expected) for _ in range(3)), str(config)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_through_a_workspace_have_the_bits_of_parts_in_a_cluster(parts):
    tile = TILES["128x128"]
    for dtype in DTYPES:
        problem = replace(PROBLEM, dtype=dtype)
        kinds = (replace(tile, split_k=parts), apart(tile, parts))
        in_cluster, through = (product(load(config, problem), *operands(), dtype) for config in kinds)
        assert same_bits(in_cluster, through)


@pytest.mark.parametrize("tile", TILES)
def test_one_part_has_the_bits_of_the_plain_kernel(tile):
    """No config asks for it, since the plain kernel is faster; the binary serves it all the same."""
    kernel = KernelId.of(apart(TILES[tile], 2), PROBLEM)
    whole = LoadedKernel.of(resolve(apart(TILES[tile], 2)).but(split_k=1), *load_binary(kernel))
    plain = load(TILES[tile], PROBLEM)
    assert same_bits(product(whole, *operands(), "bf16"), product(plain, *operands(), "bf16"))


@pytest.mark.parametrize("tile", TILES)
def test_launches_with_different_numbers_of_parts_take_turns_on_a_stream_and_in_a_graph(tile):
    """The words of a workspace serve the next launch, whatever its parts; the workspace grows in between."""
    expected = {parts: in_order(TILES[tile], parts, "bf16") for parts in PARTS}
    loaded = {parts: load(apart(TILES[tile], parts), PROBLEM) for parts in PARTS}
    turns = [*PARTS, *reversed(PARTS), 2, 33, 2, 3, 33]
    outs = [product(loaded[parts], *operands(), "bf16") for parts in turns]
    assert all(same_bits(out, expected[parts]) for out, parts in zip(outs, turns, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [product(loaded[parts], *operands(), "bf16") for parts in turns]
    for _ in range(3):
        for out in captured:
            out.fill_(float("nan"))
        graph.replay()
        assert all(same_bits(out, expected[parts]) for out, parts in zip(captured, turns, strict=True))
