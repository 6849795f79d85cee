"""Products of groups: drawn offsets and counts, and what each group's product must be.

Operands and outputs are flat matrices here, those of the groups one below the other: B as (groups * n, k), of groups
along k as (n, k), whose C is (groups * m, n).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.grouped_mm import Grouped
from hopper_gemm.serve.reference import activated, finished
from hopper_gemm.tune.measure import scaling

if TYPE_CHECKING:
    from hopper_gemm.compiler.loader import LoadedKernel
    from tests.verify.drawing import Pair

KINDS = ("even", "uneven", "empty", "single", "full", "wrong")
"""How rows, or k, are spread: alike, one group of most, half of the groups without any, all in one group, all of them
used; or offsets that fall and exceed, and counts that are negative or too large."""

UNTOUCHED = 0.0
"""What :func:`launching` leaves in rows that no group has, where the kernel did not write them."""


def flat(problem: GroupedProblem) -> GemmProblem:
    """The problem whose operands are the flat ones."""
    n = problem.n if problem.deep else problem.groups * problem.n
    return GemmProblem(problem.m, n, problem.k, problem.dtype, problem.layouts, promote=problem.promote)


def ends_of(problem: GroupedProblem, seed: int) -> list[int] | None:
    """Offsets, or counts, of a pair's seed; None for a batch."""
    if problem.grouping == "batch":
        return None
    rng, groups, masked = random.Random(f"{seed}/ends"), problem.groups, problem.grouping.startswith("masked")
    kind, size = rng.choice(KINDS), problem.k if problem.deep else problem.m
    most = size // groups if masked else size
    if kind == "wrong":
        return [rng.choice((rng.randint(-5, most + 50), -(2**31), 2**31 - 1)) for _ in range(groups)]
    if masked:
        return [
            {"full": most, "empty": rng.choice((0, most // 2))}.get(kind, rng.randint(0, most)) for _ in range(groups)
        ]
    used, chosen = most if kind == "full" else rng.randint(0, most), rng.randrange(groups)
    weights = [rng.random() ** 4 if kind == "uneven" else 1.0 for _ in range(groups)]
    if kind in ("empty", "single"):
        weights = [float(at == chosen if kind == "single" else at % 2) for at in range(groups)]
    whole = sum(weights) or 1.0
    return [int(used * min(1.0, part / whole)) for part in accumulate(weights)]


def spans_of(problem: GroupedProblem, ends: list[int] | None) -> list[tuple[int, int]]:
    """Where each group begins and ends, in rows or along k."""
    if ends is None:
        return [(at * problem.rows, (at + 1) * problem.rows) for at in range(problem.groups)]
    shape = (1, problem.k) if problem.deep else (problem.m, 1)
    matrix = torch.empty(shape, device="meta")
    b = torch.empty((1,) * (2 if problem.deep else 3), device="meta")
    masked = problem.grouping.startswith("masked")
    return Grouped(matrix, b, torch.tensor(ends, dtype=torch.int64), masked=masked).spans()


def drawn_scales(problem: GroupedProblem, kind: str, generator: torch.Generator) -> scaling.Scales:
    """Scales of rows as :func:`scaling.drawn_scales` gives them for flat operands, or of blocks: those of A,
    and of B for each group, (groups, blocks of n, blocks of k)."""
    if kind == "row":
        return scaling.drawn_scales(flat(problem), kind, generator)
    each = [scaling.drawn_scales(problem, kind, generator) for _ in range(problem.groups)]
    return each[0][0], torch.stack([second.t() for _, second in each])


def scales_of_group(scales: scaling.Scales, kind: str, group: int, span: tuple[int, int], n: int) -> scaling.Scales:
    """Those of a group, as torch takes them."""
    first, second = scales
    own = second[:, group * n : (group + 1) * n] if kind == "row" else second[group].t()
    return first[slice(*span)], own


def product_of(pair: Pair, a: torch.Tensor, b: torch.Tensor, call: Call, scales: scaling.Scales | None) -> torch.Tensor:
    """What a pair's kernel must compute of flat operands, in fp32; :data:`UNTOUCHED` in rows that no group has."""
    problem, finish = pair.problem, pair.finish
    assert isinstance(problem, GroupedProblem)
    n, deep = problem.n, problem.deep
    columns = n // 2 if finish is not None and finish.gated else n
    out = a.new_full((problem.groups * problem.m if deep else problem.m, columns), UNTOUCHED, dtype=torch.float32)
    for at, (start, end) in enumerate(spans_of(problem, ends_of(problem, pair.seed))):
        if deep:
            out[at * problem.m : (at + 1) * problem.m] = a[:, start:end].float() @ b[:, start:end].float().t()
            continue
        left, right = a[start:end], b[at * n : (at + 1) * n]
        if scales is not None and finish is not None:
            left, right = scaling.dequantised(
                left, right, scales_of_group(scales, finish.scales, at, (start, end), n), finish.scales
            )
        z = left.float() @ right.float().t()
        if finish is not None and finish.gated:
            out[start:end] = activated(z[:, :columns], finish.activation) * z[:, columns:]
            continue
        bias = None if call.bias is None else call.bias[at * n : (at + 1) * n]
        residual = None if call.residual is None else call.residual[start:end]
        out[start:end] = finished(z, call._replace(bias=bias, residual=residual))
    return out


def outer(pair: Pair, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Of each element of C the product of a number of its row of A and one of its row of B."""
    problem = pair.problem
    assert isinstance(problem, GroupedProblem)
    if problem.deep:
        return (left[:, None] * right).repeat(problem.groups, 1)
    return product_of(replace(pair, finish=None), left[:, None], right[:, None], Call(left, right), None)


def launching(
    kernel: LoadedKernel, pair: Pair, call: Call, scales: scaling.Scales | None, device: str
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """The launch of a pair's kernel on flat matrices. Elements of rows that no group has become :data:`UNTOUCHED` if
    they hold what they held before; what was written there stays, and is found."""
    problem = pair.problem
    assert isinstance(problem, GroupedProblem)
    groups, deep, ends = problem.groups, problem.deep, ends_of(problem, pair.seed)
    sides = {"batch": (True, True, True), "depth": (False, False, True), "masked_depth": (False, False, True)}
    spread = sides.get(problem.grouping, (False, True, False))
    outside = torch.ones(problem.m, dtype=torch.bool, device=device)
    for start, end in [] if deep else spans_of(problem, ends):
        outside[start:end] = False
    given: dict[str, Any] = {} if ends is None else {"ends": torch.tensor(ends, dtype=torch.int32, device=device)}
    residual = None if call.residual is None else call.residual.unflatten(0, (groups, -1))
    added = () if pair.finish is None else (call.bias, residual, call.scale)
    if scales is not None and pair.finish is not None:
        by_blocks = pair.finish.scales == "blocks"
        given["scales"] = (scales[0].t(), scales[1]) if by_blocks else scaling.for_kernel(scales, pair.finish.scales)

    def launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        before = out.clone()
        first, second, third = (
            matrix.unflatten(0, (groups, -1)) if apart else matrix
            for matrix, apart in zip((a, b, out), spread, strict=True)
        )
        kernel(first, second, third, *added, **given)
        if not deep:
            bits = {2: torch.int16, 4: torch.int32}[out.element_size()]
            kept = outside[:, None] & (out.view(bits) == before.view(bits))
            out.copy_(torch.where(kept, UNTOUCHED, out))

    return launch
